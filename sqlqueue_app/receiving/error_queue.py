"""Moving a message to the error queue, on the connection of the receive transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.headers import read_headers, write_headers
from sqlqueue_app.receiving.failures import Failure, Processor, failure_headers, without_counters
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
        """Write the message with its failure headers; the receive has deleted the original in the same transaction."""
        written = failure_headers(headers, failure, processor=self._processor, failed_queue=self._failed_queue, at=self._now())
        self._send(
            row_id,
            write_headers(written),
            body,
            written.get(names.CORRELATION_ID) or correlation_id,
            reply_to_address or written.get(names.REPLY_TO_ADDRESS),
        )

    def move_failed(self, row: ReceivedRow, headers: dict[str, str | None], failure: Failure) -> None:
        """Write a message that has failed elsewhere: what it says of that stays to the letter.

        `failure` is for one that says nothing of it but the queue.
        """
        written = {**without_counters(headers), names.MESSAGE_ID: headers.get(names.MESSAGE_ID) or str(row.id)}
        if not written.get(names.EXCEPTION_TYPE):
            failed_queue = written.get(names.FAILED_QUEUE) or self._failed_queue
            written = failure_headers(written, failure, processor=self._processor, failed_queue=failed_queue, at=self._now())
        self._send(row.id, write_headers(written), row.body or b"", row.correlation_id, row.reply_to_address)

    def move_poison(self, row: ReceivedRow) -> None:
        """Write a row whose headers cannot be read as it is, to the byte (transport reference 5.5)."""
        self._send(row.id, row.headers or "", row.body or b"", row.correlation_id, row.reply_to_address)

    def rescue(self, row: ReceivedRow, failure: Failure) -> None:
        """Write a row that is in no queue any more."""
        try:
            headers = dict(read_headers(row.headers))
        except PoisonMessage:
            self.move_poison(row)
            return
        headers[names.MESSAGE_ID] = headers.get(names.MESSAGE_ID) or str(row.id)
        self.move(row.id, headers, row.body or b"", failure, row.correlation_id, row.reply_to_address)

    def _send(self, row_id: uuid.UUID, headers: str, body: bytes, correlation_id: str | None, reply_to_address: str | None) -> None:
        table = queue_table(self.alias, self._queue)
        # The row id is a primary key on PostgreSQL, and somebody may have copied rows: a new one, as NServiceBus writes there.
        new_id = uuid.uuid4() if table.dialect.name == "postgresql" else row_id
        table.send([NewRow(str(new_id), headers, body, correlation_id, reply_to_address)])
