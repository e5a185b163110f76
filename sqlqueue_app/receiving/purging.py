"""Deleting expired messages, in batches that are committed each by itself."""

from __future__ import annotations

import logging

from sqlqueue_app.tables.queue import QueueTable

logger = logging.getLogger("sqlqueue.worker")


def purge_expired(table: QueueTable, batch: int) -> None:
    """Delete what has expired by now, at most `batch` messages at once. DatabaseError if the database refuses."""
    purged = 0
    while True:
        deleted = table.purge_expired(batch)
        purged += deleted
        if deleted < batch:
            break
    if purged:
        name = table.address.table
        logger.info("%s expired messages purged from %s", purged, name, extra={"event": "expired_purged", "queue": name})
