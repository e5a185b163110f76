"""Second copies of a message are dropped: the ids of handled messages are remembered, in the transaction of their work.

A rollback forgets the id with the work, and so does a failure that goes to the error queue or to a later retry: only what was
handled is remembered. Of two copies that are handled at the same time the second waits for the end of the first.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import uuid

from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import ConfigurationError, TransientError
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.tables.managed import HandledTable

logger = logging.getLogger("sqlqueue.receive")

FORGET_EVERY_SECONDS = 60.0
FORGET_BATCH = 5_000
_QUEUE_CHARACTERS = 255


class Duplicates:
    """What is remembered for one queue, for `seconds` at least. Shared by its threads."""

    def __init__(self, table: HandledTable, *, endpoint: str, queue: str, address: str, seconds: float) -> None:
        self._table = table
        self._endpoint = endpoint
        self._queue = queue
        # Whoever chooses message ids chooses no collision: 128 bits of a cryptographic digest, also for ids of any length.
        self._digest = hashlib.blake2b(address.encode() + b"\0", digest_size=16)
        self._seconds = seconds
        self._lock = threading.Lock()
        self.count = 0
        """How many copies were dropped by this process."""

    def is_first(self, incoming: IncomingMessage) -> bool:
        """Remember the message in the transaction of the thread; False if a copy of it was handled before."""
        digest = self._digest.copy()
        digest.update(incoming.message_id.encode("utf-8", "surrogatepass"))
        return self._table.remember(uuid.UUID(bytes=digest.digest()), self._queue[:_QUEUE_CHARACTERS])

    def dropped(self, incoming: IncomingMessage) -> None:
        """Count and log a copy that was dropped, once that is committed."""
        with self._lock:
            self.count += 1
            count = self.count
        logger.info(
            "a copy of this message was handled before: it is dropped (the %s. of this process)",
            count,
            extra={
                "event": "duplicate_dropped",
                "endpoint": self._endpoint,
                "queue": self._queue,
                "message_id": incoming.message_id,
            },
        )

    def check(self) -> None:
        """ConfigurationError if the table is missing. DatabaseError if the database cannot be asked."""
        if not self._table.exists():
            raise ConfigurationError(
                f"DEDUPLICATE_FOR of endpoint {self._endpoint!r} needs the table {self._table.name!r} in {self._table.alias!r}: "
                "run migrate"
            )

    def job(self) -> BackgroundJob:
        """The job that forgets what is old."""
        return BackgroundJob(f"forget handled messages of {self._queue}", FORGET_EVERY_SECONDS, self.forget)

    def forget(self) -> None:
        """Delete what was remembered for longer than DEDUPLICATE_FOR, in batches that are committed one by one."""
        try:
            while self._table.forget(self._queue[:_QUEUE_CHARACTERS], self._seconds, FORGET_BATCH) == FORGET_BATCH:
                pass
        except TransientError:
            # SQLite and a handler that takes long, or an unavailable database: the next run deletes it.
            return
