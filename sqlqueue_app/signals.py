"""Django signals of sent, handled and failed messages: `from sqlqueue_app.signals import message_handled`.

The `sender` of each is the class of the message, so that `@receiver(message_sent, sender=PlaceOrder)` selects one type; for a type
without a class it is None, which reaches only receivers of every sender. docs/howto/signals.md lists the arguments.

Without receivers, a signal costs a look at an empty list.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

from sqlqueue_app.messages.headers import ENCLOSED_MESSAGE_TYPES, Headers
from sqlqueue_app.messages.types import registry, resolve_enclosed

message_sent = Signal()
"""A row of a new message is written, in the transaction of its sender. An error of a receiver is raised by `send()`."""
message_handled = Signal()
"""The handlers of a message have returned, and their transaction is committed."""
message_failed = Signal()
"""An attempt has failed, and what happens next is committed."""
message_moved_to_error = Signal()
"""A received message is in the error queue, and that is committed."""


def about(headers: Headers, body: bytes | None) -> dict[str, Any]:
    """The arguments that every signal has: `sender`, `message_type`, `headers` and `body`. For this package."""
    types = resolve_enclosed(headers.get(ENCLOSED_MESSAGE_TYPES))
    message_type = types[0] if types else ""
    known = registry.by_name(message_type)
    return {
        "sender": None if known is None else known.cls,
        "message_type": message_type,
        "headers": dict(headers),
        "body": body or b"",
    }
