"""Moving what is due from an endpoint's delayed table straight to where it goes (transport reference 7.2)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from django.db import transaction

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import columns_of
from sqlqueue_app.messages.errors import DatabaseError, PoisonMessage, TransientError
from sqlqueue_app.messages.headers import Headers, read_headers, write_headers
from sqlqueue_app.receiving.error_queue import ErrorQueue
from sqlqueue_app.receiving.failures import failure_of
from sqlqueue_app.receiving.routes_of_satellites import Destinations, Unroutable
from sqlqueue_app.tables.connections import database_errors
from sqlqueue_app.tables.delayed import DelayedRow, DelayedTable
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.rows import NewRow, ReceivedRow
from sqlqueue_app.tables.writing import chunks_by_table, write_chunks

logger = logging.getLogger("sqlqueue.receive")

# As every version of NServiceBus has it: so many messages in a transaction.
BATCH = 100


@dataclass(frozen=True, slots=True)
class DueMessage:
    """A message on its way: its headers without those of the delay, its destination as it is written."""

    headers: Headers
    body: bytes
    to: str

    @classmethod
    def of(cls, headers: str | None, body: bytes, *, main: str) -> DueMessage:
        """The message of a row of a delayed table, bound for `main` if it names no destination. Raises PoisonMessage."""
        known = read_headers(headers)
        to = known.pop(names.FORWARD_DESTINATION, None) or main
        return cls(known, body, to)

    @property
    def row_id(self) -> uuid.UUID:
        """The message id where it can be a row's id, which transports 1.x and 2.x take it from."""
        try:
            return uuid.UUID(self.headers.get(names.MESSAGE_ID) or "")
        except ValueError:
            return uuid.uuid4()

    def row(self, table: QueueTable) -> NewRow:
        """The row in the destination. On PostgreSQL its id is a primary key, and a copy of the message may be there."""
        new_id = uuid.uuid4() if table.dialect.name == "postgresql" else self.row_id
        return NewRow(str(new_id), write_headers(self.headers), self.body, *columns_of(self.headers))


class DueMessages:
    """Moves what is due out of one delayed table. Several processes may do so side by side; an object serves one thread."""

    def __init__(
        self,
        endpoint: str,
        delayed: DelayedTable,
        *,
        main: str,
        destinations: Destinations,
        error_queue_of: Callable[[str], ErrorQueue],
    ) -> None:
        """`main` is the address text of the endpoint's own queue, where a message goes that names no destination."""
        self.endpoint = endpoint
        self.delayed = delayed
        self._main = main
        self._destinations = destinations
        self._error_queue_of = error_queue_of

    def move_batch(self) -> int:
        """Move at most BATCH due messages, the earliest, in one transaction; returns how many. 0: none, or others are at them.

        What has no destination, and what cannot be read, goes to the error queue. Raises DatabaseError: nothing is moved then.
        """
        lost: list[tuple[str, Exception]] = []
        doing = database_errors(self.delayed.dialect, f"move due messages from {self.delayed.qualified}")
        with doing, transaction.atomic(using=self.delayed.alias):
            rows = self.delayed.take_due(BATCH)
            self._deliver([due for row in rows if (due := self._read(row, lost)) is not None], lost)
        for message_id, reason in lost:
            logger.error("a delayed message is moved to the error queue: %s", reason, extra=self._extra(message_id))
        return len(rows)

    def _read(self, row: DelayedRow, lost: list[tuple[str, Exception]]) -> DueMessage | None:
        """The message of a row; None for one that cannot be read, which is in the error queue as it is."""
        try:
            return DueMessage.of(row.headers, row.body, main=self._main)
        except PoisonMessage as poison:
            row_id = uuid.uuid4()
            self._error_queue_of(self._main).move_poison(ReceivedRow(row_id, None, None, False, row.headers, row.body))
            lost.append((str(row_id), poison))
            return None

    def _deliver(self, messages: list[DueMessage], lost: list[tuple[str, Exception]]) -> None:
        """All with one statement for each destination; where that fails, one by one, so that one bad table holds up nobody."""
        try:
            with transaction.atomic(using=self.delayed.alias):
                placed: list[tuple[QueueTable, NewRow]] = []
                for due in messages:
                    table = self._destinations.table(due.to)
                    placed.append((table, due.row(table)))
                write_chunks(self.delayed.alias, chunks_by_table(placed), begun=True)
        except TransientError:
            raise
        except (Unroutable, DatabaseError):
            for due in messages:
                self._deliver_one(due, lost)

    def _deliver_one(self, due: DueMessage, lost: list[tuple[str, Exception]]) -> None:
        try:
            with transaction.atomic(using=self.delayed.alias):
                table = self._destinations.table(due.to)
                table.send([due.row(table)])
        except TransientError:
            raise
        except (Unroutable, DatabaseError) as error:
            # NServiceBus, too, gives the destination as the queue that failed: a retry goes there.
            queue = self._error_queue_of(due.to)
            row_id = due.row_id
            queue.move(row_id, due.headers, due.body, failure_of(error, unrecoverable=True))
            lost.append((due.headers.get(names.MESSAGE_ID) or str(row_id), error))

    def _extra(self, message_id: str) -> dict[str, object]:
        return {
            "event": "message_unroutable",
            "endpoint": self.endpoint,
            "queue": self.delayed.address.table,
            "message_id": message_id,
        }
