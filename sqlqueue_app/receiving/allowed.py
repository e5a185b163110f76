"""Queues that the headers of a received message may make us send to."""

from __future__ import annotations

from fnmatch import fnmatchcase

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError


def check_allowed(destination: QueueAddress, allowed: tuple[str, ...] | None, *, message_id: str, what: str) -> None:
    """ConfigurationError if ALLOWED_DESTINATIONS (`allowed`, None: any) does not have the queue that the message asks `what` to."""
    if allowed is None or any(fnmatchcase(destination.table, pattern) for pattern in allowed):
        return
    raise ConfigurationError(
        f"message {message_id!r} asks for {what} to {destination.table!r}, which SQLQUEUE['ALLOWED_DESTINATIONS'] does not allow"
    )
