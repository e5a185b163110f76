"""Retries: messages go from the error queue back to where they failed, each in the transaction that also notes it (design 6.7)."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import columns_of, complete_headers, new_message_id
from sqlqueue_app.messages.errors import AddressError, WireFormatError
from sqlqueue_app.messages.headers import Headers, read_headers, write_headers
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.models import FailedMessage, FailureStatus, Redirect
from sqlqueue_app.operations.bulk.failure_rows import by_queue, lock, older_rows, rows_are_gone, write_columns
from sqlqueue_app.operations.bulk.outcome import Outcome, Reason, Why
from sqlqueue_app.operations.redirects import count_use
from sqlqueue_app.operations.retry_targets import RetryTargets, Target
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.tables.chosen_rows import TakenRow, headers_of_rows, remove_rows, take_rows
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.rows import NewRow

RETRIABLE: Final = (FailureStatus.UNRESOLVED,)
_WRITTEN: Final = ("status", "status_at", "row_version", "retried_to", "retry_row_id")
# What the failure has added (operations reference 3.3.3): headers whose names begin so.
_OF_THE_FAILURE: Final = (
    names.DELAYED_RETRIES,
    names.FAILED_QUEUE,
    names.TIME_OF_FAILURE,
    "NServiceBus.ExceptionInfo.",
    names.EDIT_OF,
)


def without_failure(headers: Headers) -> Headers:
    """The headers as they were before the message failed."""
    return {name: value for name, value in headers.items() if not name.startswith(_OF_THE_FAILURE)}


def retry_headers(headers: Headers, *, unique_id: uuid.UUID, acknowledgement_queue: str, failed_target: str) -> Headers:
    """The headers with which a failed message is sent again, so that an endpoint tells when it has succeeded.

    Where a header says that retries go to somebody who sends them on, `failed_target` tells him where to.
    """
    kept = without_failure(headers)
    kept[names.RETRY_UNIQUE_MESSAGE_ID] = str(unique_id)
    kept[names.RETRY_ACKNOWLEDGEMENT_QUEUE] = acknowledgement_queue
    if kept.get(names.RETRY_TO):
        kept[names.TARGET_ENDPOINT_ADDRESS] = failed_target
    else:
        kept.pop(names.TARGET_ENDPOINT_ADDRESS, None)
    return kept


def remove(targets: RetryTargets, rows: Iterable[tuple[str, int | None]]) -> list[tuple[str, int]]:
    """Remove rows of error queues, by the names of the queues and RowVersions; returns those that were there and nobody holds."""
    removed = []
    for queue, numbers in by_queue(rows).items():
        table = targets.error_table(queue)
        removed += [(queue, number) for number in remove_rows(table, numbers)] if table is not None else []
    return removed


def address_text(book: AddressBook, address: QueueAddress) -> str:
    """The address as others read it; for a name that no reader could read, as we do."""
    try:
        return book.canonical(address)
    except AddressError:
        return str(address)


def copy_of(table: QueueTable, row: TakenRow, headers: Headers, *, message_id: str | None = None) -> NewRow:
    """A row to send again, without an expiry. Its id is made as for other sends: `row_id_for`."""
    complete = complete_headers(
        headers, message_id=message_id or str(row.id), correlation_id=row.correlation_id, reply_to=row.reply_to_address
    )
    return NewRow(row_id_for(table, complete), write_headers(complete), row.body or b"", *columns_of(complete))


def row_id_for(table: QueueTable, headers: Headers) -> str:
    """The id of a row with these headers: new on PostgreSQL, else the message id where that is a GUID."""
    try:
        if table.dialect.name != "postgresql":
            return str(uuid.UUID(headers.get(names.MESSAGE_ID) or ""))
    except ValueError:
        pass
    return new_message_id()


@dataclass(frozen=True, slots=True)
class _Sendable:
    """A failed message whose row is there, and has a target."""

    failure: FailedMessage
    source: QueueAddress
    headers: Headers
    target: Target


class RetryBatch:
    """Retries one batch, in the caller's transactions on the managed tables and on the queues."""

    def __init__(self, settings: Settings, now: datetime) -> None:
        self._settings = settings
        self._now = now
        self._targets = RetryTargets(settings)
        self._dispatcher = Dispatcher(settings.database, self._targets.book, announces=settings.announces)

    def run(self, ids: Sequence[uuid.UUID]) -> Outcome:
        """Send the messages again. Those that cannot be are skipped, and stay where they are."""
        outcome = Outcome()
        failures = lock(ids, RETRIABLE, outcome)
        taken = self._take(list(self._sendable(failures, outcome)), outcome)
        self._send(taken)
        outcome.done += len(taken)
        return outcome

    def _sendable(self, failures: Sequence[FailedMessage], outcome: Outcome) -> Iterator[_Sendable]:
        texts = {
            (queue, row_version): text
            for queue, row_versions in by_queue((each.queue, each.row_version) for each in failures).items()
            if (table := self._targets.error_table(queue)) is not None
            for row_version, text in headers_of_rows(table, row_versions).items()
        }
        for failure in failures:
            found = self._look_at(failure, texts)
            if isinstance(found, _Sendable):
                yield found
            else:
                outcome.skip(*found)

    def _look_at(self, failure: FailedMessage, texts: dict[tuple[str, int], str | None]) -> _Sendable | Why:
        place = failure.queue, failure.row_version or 0
        if failure.row_version is None or place not in texts:
            return Reason.NOT_THERE, ""
        try:
            headers = read_headers(texts[place])
        except WireFormatError:
            return Reason.POISON, ""
        target = self._targets.of(headers.get(names.FAILED_QUEUE) or "", headers.get(names.RETRY_TO) or "")
        source = self._targets.error_table(failure.queue)
        if source is None:
            return Reason.NOT_THERE, ""
        return _Sendable(failure, source.address, headers, target) if isinstance(target, Target) else target

    def _take(self, sendable: list[_Sendable], outcome: Outcome) -> list[tuple[_Sendable, TakenRow]]:
        """Delete the rows of the messages, with those of their earlier attempts."""
        found = {
            (queue, row.row_version): row
            for queue, numbers in by_queue((each.failure.queue, each.failure.row_version) for each in sendable).items()
            if (table := self._targets.error_table(queue)) is not None
            for row in take_rows(table, numbers)
        }
        taken = []
        for each in sendable:
            row = found.get((each.failure.queue, each.failure.row_version or 0))
            if row is None:
                outcome.skip(Reason.NOT_THERE)
            else:
                taken.append((each, row))
        gone = [(each.failure.queue, row.row_version) for each, row in taken]
        older = older_rows(each.failure for each, _ in taken)
        gone += remove(self._targets, (row for rows in older.values() for row in rows))
        rows_are_gone(gone)
        return taken

    def _send(self, taken: list[tuple[_Sendable, TakenRow]]) -> None:
        row_ids = self._dispatcher.dispatch_rows((self._row(each, row) for each, row in taken), begun=True)
        turned: Counter[Redirect] = Counter()
        for (each, _), row_id in zip(taken, row_ids, strict=True):
            failure = each.failure
            failure.status, failure.status_at, failure.row_version = FailureStatus.RETRY_ISSUED, self._now, None
            failure.retried_to, failure.retry_row_id = each.target.text, row_id
            if each.target.redirect is not None:
                turned[each.target.redirect] += 1
        write_columns([each.failure for each, _ in taken], _WRITTEN)
        for redirect, count in turned.items():
            count_use(redirect, count)

    def _row(self, each: _Sendable, row: TakenRow) -> tuple[QueueAddress, NewRow]:
        book = self._targets.book
        failed = self._targets.of(each.headers.get(names.FAILED_QUEUE) or "")
        headers = retry_headers(
            each.headers,
            unique_id=each.failure.pk,
            acknowledgement_queue=address_text(book, each.source),
            failed_target=failed.text if isinstance(failed, Target) else each.headers.get(names.FAILED_QUEUE) or "",
        )
        table = queue_table(self._settings.database, each.target.address)
        return each.target.address, copy_of(table, row, headers)
