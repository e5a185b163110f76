"""Senders and handlers of each peer. They run where that peer is installed; only ours imports sqlqueue."""
