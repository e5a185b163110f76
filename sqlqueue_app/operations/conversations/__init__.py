"""Conversations: the messages that were sent because of one, found where they are, and how they hang together."""
