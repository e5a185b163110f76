"""What each peer needs to send and to handle. Run where that peer is installed; only ours imports sqlqueue."""
