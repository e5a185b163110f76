"""Sending one message many times in one transaction, as `sqlqueue_send` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from django.db import transaction

from sqlqueue_app.sending.sender import send_many
from sqlqueue_app.tables.queue import QueueTable

_CHUNK = 1_000


def send_copies(
    table: QueueTable,
    message_type: str,
    body: Mapping[str, object],
    *,
    headers: Mapping[str, str],
    time_to_be_received: timedelta | None = None,
    delay: timedelta | None = None,
    count: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """Send the message `count` times, all or none, and return the message ids in order.

    Each copy has an id of its own. `progress` hears the number written so far. Raises what `send_many` raises.
    """
    ids: list[str] = []
    with transaction.atomic(using=table.alias):
        while len(ids) < count:
            size = min(_CHUNK, count - len(ids))
            ids += send_many(
                message_type,
                [body] * size,
                to=str(table.address),
                headers=headers,
                time_to_be_received=time_to_be_received,
                delay=delay,
            )
            if progress is not None:
                progress(len(ids))
    return ids
