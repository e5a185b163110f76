"""Moving a message to the error queue, on the connection of the receive transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import columns_of, complete_headers
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.headers import read_headers, write_headers
from sqlqueue_app.receiving.failures import Failure, Processor, failure_headers, without_counters
from sqlqueue_app.receiving.reading import headers_of_copy
from sqlqueue_app.sending.composer import utc_now
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.rows import NewRow, ReceivedRow


class ErrorQueue:
    """The error queue of an endpoint, as one of its receiving queues uses it. Expiry is dropped: a failure waits for a person."""

    def __init__(
        self,
        alias: str,
        address: QueueAddress,
        *,
        failed_queue: str,
        processor: Processor,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self.alias = alias
        self._queue = address
        self._failed_queue = failed_queue
        self._processor = processor
        self._now = now

    @property
    def address(self) -> str:
        """The error queue in words, for logs."""
        return str(self._queue)

    def at(self, address: QueueAddress) -> ErrorQueue:
        """The same for another queue that takes failed messages."""
        return ErrorQueue(self.alias, address, failed_queue=self._failed_queue, processor=self._processor, now=self._now)

    def move(
        self,
        row_id: uuid.UUID,
        headers: dict[str, str | None],
        body: bytes,
        failure: Failure,
        correlation_id: str | None = None,
        reply_to_address: str | None = None,
    ) -> None:
        """Write the message with its failure headers; the receive has deleted the original in the same transaction.

        What only its columns or its row's id said stands in the headers, too: who retries it may read nothing else.
        """
        told = complete_headers(headers, message_id=str(row_id), correlation_id=correlation_id, reply_to=reply_to_address)
        written = failure_headers(told, failure, processor=self._processor, failed_queue=self._failed_queue, at=self._now())
        self._send(row_id, write_headers(written), body, *columns_of(written))

    def move_failed(self, row: ReceivedRow, headers: dict[str, str | None], failure: Failure) -> None:
        """Write a message that has failed elsewhere: what it says of that stays to the letter.

        `failure` is for one that says nothing of it but the queue.
        """
        written = headers_of_copy(row, without_counters(headers))
        if not written.get(names.EXCEPTION_TYPE):
            failed_queue = written.get(names.FAILED_QUEUE) or self._failed_queue
            written = failure_headers(written, failure, processor=self._processor, failed_queue=failed_queue, at=self._now())
        self._send(row.id, write_headers(written), row.body or b"", *columns_of(written))

    def move_poison(self, row: ReceivedRow) -> None:
        """Write a row whose headers cannot be read as it is, to the byte (transport reference 5.5)."""
        self._send(row.id, row.headers or "", row.body or b"", row.correlation_id, row.reply_to_address)

    def rescue(self, row: ReceivedRow, failure: Failure) -> None:
        """Write a row that is in no queue any more."""
        try:
            headers = read_headers(row.headers)
        except PoisonMessage:
            self.move_poison(row)
            return
        self.move(row.id, headers, row.body or b"", failure, row.correlation_id, row.reply_to_address)

    def _send(self, row_id: uuid.UUID, headers: str, body: bytes, correlation_id: str | None, reply_to_address: str | None) -> None:
        table = queue_table(self.alias, self._queue)
        # The row id is a primary key on PostgreSQL, and somebody may have copied rows: a new one, as NServiceBus writes there.
        new_id = uuid.uuid4() if table.dialect.name == "postgresql" else row_id
        table.send([NewRow(str(new_id), headers, body, correlation_id, reply_to_address)])
