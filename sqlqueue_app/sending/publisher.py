"""`publish()`: an event, for all who have subscribed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from sqlqueue_app.sending.current import current_handling
from sqlqueue_app.sending.sender import sender


def publish(
    message: object,
    body: object = None,
    *,
    headers: Mapping[str, str | None] | None = None,
    time_to_be_received: timedelta | None = None,
    message_id: str | None = None,
) -> str:
    """Send an event to all who have subscribed to its type or to one of its parents; returns the message id.

    Each address gets one copy, all with the same id; without subscribers nothing is written. The copies are written in the same
    transactions as those of `send()`, all or none. Who has subscribed is remembered for 5 seconds.

    Raises as `send()`, but for routes. QueueNotFound if the queue of a subscriber, or the subscription table, does not exist, and
    AddressError if a row of the table holds no address: nothing is sent then; the error names the subscription.
    """
    handled = current_handling()
    chosen = sender()
    event_id, copies = chosen.composer.compose_event(
        message,
        body,
        headers=headers,
        time_to_be_received=time_to_be_received,
        message_id=message_id,
        incoming=handled.incoming if handled is not None else None,
    )
    if copies:
        chosen.write(copies)
    return event_id
