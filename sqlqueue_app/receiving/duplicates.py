"""Deduplication: drops further copies of a message, whose id is stored in the transaction of its work.

A rollback removes the id with the work, and so does a failure that goes to the error queue or to a later retry: only handled
messages are remembered. If two copies are handled at the same time, the second waits for the end of the first.
"""

from __future__ import annotations

import logging
import threading

from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.tables.installation import migrate_command
from sqlqueue_app.tables.managed import HandledTable, key_of

logger = logging.getLogger("sqlqueue.receive")

FORGET_EVERY_SECONDS = 60.0
FORGET_BATCH = 5_000
_QUEUE_CHARACTERS = 255


class Duplicates:
    """The remembered ids of one queue, kept for at least `seconds`. Shared by its threads."""

    def __init__(self, table: HandledTable, *, endpoint: str, queue: str, address: str, seconds: float) -> None:
        self._table = table
        self._endpoint = endpoint
        self._queue = queue
        self._address = address
        self._seconds = seconds
        self._lock = threading.Lock()
        self.count = 0
        """The number of copies dropped by this process."""

    def is_first(self, incoming: IncomingMessage) -> bool:
        """Remember the message in the thread's transaction. Returns False if a copy of it was handled before."""
        return self._table.remember(key_of(self._address, incoming.message_id), self._queue[:_QUEUE_CHARACTERS])

    def dropped(self, incoming: IncomingMessage) -> None:
        """Count and log a dropped copy, after the commit."""
        with self._lock:
            self.count += 1
            count = self.count
        logger.info(
            "a copy of this message was handled before, dropping it (%s dropped by this process)",
            count,
            extra={
                "event": "duplicate_dropped",
                "endpoint": self._endpoint,
                "queue": self._queue,
                "message_id": incoming.message_id,
            },
        )

    def check(self) -> None:
        """Raise ConfigurationError if the table is missing, DatabaseError if the database cannot be queried."""
        if not self._table.exists():
            raise ConfigurationError(
                f"DEDUPLICATE_FOR of endpoint {self._endpoint!r} needs the table {self._table.name!r} in {self._table.alias!r}: "
                f"run {migrate_command(self._table.alias)}"
            )

    def job(self) -> BackgroundJob:
        """The job that deletes old ids."""
        name = f"forget handled messages of {self._queue}"
        return BackgroundJob(name, FORGET_EVERY_SECONDS, self.forget, retries_silently=True)

    def forget(self) -> None:
        """Delete ids older than DEDUPLICATE_FOR, in batches that are committed one by one."""
        while self._table.forget(self._queue[:_QUEUE_CHARACTERS], self._seconds, FORGET_BATCH) == FORGET_BATCH:
            pass
