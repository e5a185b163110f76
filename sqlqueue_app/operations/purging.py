"""Emptying a queue: everything at once, or what has expired in batches."""

from __future__ import annotations

from collections.abc import Callable

from sqlqueue_app.operations.events import EventKind, tell_event
from sqlqueue_app.tables.queue import QueueTable

EXPIRED_BATCH = 10_000


def purge_queue(table: QueueTable) -> int:
    """Delete every message and return how many there were. Waits for messages that are being received. Raises DatabaseErrors.

    It becomes an event, where there are tables for events.
    """
    purged = table.purge()
    tell_event(EventKind.QUEUE_PURGED, table.address.table, {"count": purged})
    return purged


def purge_expired(table: QueueTable, *, batch: int = EXPIRED_BATCH, progress: Callable[[int], None] | None = None) -> int:
    """Delete the expired messages, each batch in a transaction of its own, and return how many there were.

    Messages that are being received are stepped over. `progress` hears the number so far after each batch. Raises DatabaseErrors.
    """
    total = 0
    while True:
        deleted = table.purge_expired(batch)
        total += deleted
        if progress is not None and deleted:
            progress(total)
        if deleted < batch:
            return total
