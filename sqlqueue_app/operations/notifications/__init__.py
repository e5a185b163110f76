"""Notifications: rules that are looked at by one worker for all, and what is sent to mail and webhooks because of them."""
