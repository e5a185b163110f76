"""Delayed messages: list by due time, read, deliver now, cancel.

Delivering and cancelling delete the row in the same transaction and skip rows that a worker holds: nothing is delivered twice.
Functions raise DatabaseErrors, QueueNotFound among them.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from django.db import transaction
from django.db.models import TextChoices
from django.utils.translation import gettext_lazy

from sqlqueue_app.browsing.messages import MAX_BODY_BYTES, MessageDetail, MessageSummary, detail_of, summary_of
from sqlqueue_app.conf import Settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.headers import Headers, read_headers
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.receiving.delayed import DueMessage, destinations_of_delayed
from sqlqueue_app.receiving.destinations import Unroutable
from sqlqueue_app.status.delayed import KnownDelayed
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.tables.connections import database_errors, database_now, guarded_read
from sqlqueue_app.tables.delayed import (
    DelayedPosition,
    DelayedTable,
    WaitingRow,
    key_of,
    list_rows,
    read_rows,
    remove_rows,
    take_rows,
)
from sqlqueue_app.tables.queue import PEEKED_BODY_BYTES, QueueTable, chunks_by_table, write_chunks
from sqlqueue_app.tables.rows import NewRow, PeekedRow

# Limit of a selection: all bodies are in memory together.
MAX_SELECTED: Final = 1_000


class DelayKind(TextChoices):
    """The reason for a delay: a delayed retry, a saga timeout, or a deferred send."""

    RETRY = "retry", gettext_lazy("delayed retry")
    TIMEOUT = "timeout", gettext_lazy("timeout")
    DEFERRED = "deferred", gettext_lazy("deferred send")


@dataclass(frozen=True, slots=True)
class DelayedEntry:
    """A delayed message in a list. `destination` comes from its headers, empty for the queue of the table's endpoint."""

    row: WaitingRow
    kind: DelayKind | None
    destination: str
    message: MessageSummary

    @property
    def key(self) -> str:
        return self.row.key


@dataclass(frozen=True, slots=True)
class DelayedPage:
    """Messages by due time. `next` is the start of the next page, None on the last one."""

    messages: tuple[DelayedEntry, ...]
    next: DelayedPosition | None


@dataclass(frozen=True, slots=True)
class PlannedDelivery:
    """A message to deliver: its destination, or the reason why it cannot be delivered."""

    row: WaitingRow
    to: str
    target: QueueTable | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Counts of delivered and vanished messages, and the refused ones, which stay in the table."""

    done: int
    gone: int
    refused: tuple[PlannedDelivery, ...]


def read_delayed_page(table: DelayedTable, size: int, *, after: DelayedPosition | None = None) -> DelayedPage:
    """Read a page: one statement."""
    with guarded_read(table.alias, f"read {table.qualified}"):
        rows = list_rows(table, size + 1, after=after)
    shown = rows[:size]
    return DelayedPage(tuple(map(_message_of, shown)), shown[-1].position if len(rows) > size else None)


def read_from_page(table: DelayedTable, page: DelayedPage) -> Iterator[DelayedEntry]:
    """The messages from a page to the end of the table, 500 for each statement; those that move in the meantime may be missing."""
    yield from page.messages
    while page.next is not None:
        page = read_delayed_page(table, 500, after=page.next)
        yield from page.messages


def read_delayed_message(table: DelayedTable, key: str, *, as_hex: bool = False) -> tuple[DelayedEntry, MessageDetail] | None:
    """Read a message in full, its body cut at 64 KiB; None if it does not exist."""
    row = _read_row(table, key, PEEKED_BODY_BYTES)
    return None if row is None else (_message_of(row), detail_of(_peeked(row), as_hex=as_hex))


def read_delayed_body(table: DelayedTable, key: str) -> bytes | None:
    """Read the whole body of a message; None if the message does not exist or its body is NULL."""
    row = _read_row(table, key, MAX_BODY_BYTES)
    return None if row is None else row.body


def _read_row(table: DelayedTable, text: str, body_limit: int) -> WaitingRow | None:
    """The row of a key, which may be any text."""
    key = key_of(table, text)
    if key is None:
        return None
    with guarded_read(table.alias, f"read {table.qualified}"):
        return next(iter(read_rows(table, [key], body_limit=body_limit)), None)


def plan_deliveries(settings: Settings, known: KnownDelayed, keys: Collection[str]) -> list[PlannedDelivery]:
    """Resolve the destinations of those messages that still exist; changes nothing."""
    table = known.table(settings.database)
    book = address_book_of(settings)
    destinations = destinations_of_delayed(settings, book, known.endpoint)
    main = book.canonical(book.of_queue(known.endpoint))
    found = []
    with guarded_read(table.alias, f"read {table.qualified}"):
        for row in read_rows(table, keys):
            try:
                to = DueMessage.of(row.headers, row.body, main=main).to
            except PoisonMessage as error:
                found.append(PlannedDelivery(row, "", refusal=str(error)))
                continue
            try:
                found.append(PlannedDelivery(row, to, destinations.table(to)))
            except Unroutable as error:
                found.append(PlannedDelivery(row, to, refusal=str(error)))
    return found


def deliver_now(settings: Settings, known: KnownDelayed, keys: Collection[str]) -> DeliveryResult:
    """Deliver messages now, whatever their due time, in one transaction. On an error nothing is delivered.

    Unreadable messages and those without a reachable destination are refused and stay. Messages that are gone or that a worker is
    moving count as gone. DeliverAt of a message that was not due becomes now, so that its critical time is not negative.
    """
    table = known.table(settings.database)
    # Before the transaction, because on SQLite it must begin with a write.
    planned = plan_deliveries(settings, known, keys)
    ready = {each.row.key: (each, each.target) for each in planned if each.target is not None}
    now = database_now(table.alias)
    with database_errors(table.dialect, f"deliver messages from {table.qualified}"), transaction.atomic(using=table.alias):
        placed: list[tuple[QueueTable, NewRow]] = []
        for taken in take_rows(table, list(ready)):
            each, target = ready[taken.key]
            due = DueMessage.of(taken.headers, taken.body, main=each.to)
            if each.row.seconds is not None and each.row.seconds > 0 and names.DELIVER_AT in due.headers:
                due.headers[names.DELIVER_AT] = format_time(now)
            placed.append((target, due.row(target)))
        write_chunks(table.alias, chunks_by_table(placed), begun=True)
    refused = tuple(each for each in planned if each.target is None)
    return DeliveryResult(len(placed), len(set(keys)) - len(placed) - len(refused), refused)


def cancel_delayed(table: DelayedTable, keys: Sequence[str]) -> int:
    """Delete messages permanently and return the count; skips messages that a worker is moving."""
    return len(remove_rows(table, keys))


def _message_of(row: WaitingRow) -> DelayedEntry:
    try:
        headers = read_headers(row.headers)
    except PoisonMessage:
        return DelayedEntry(row, None, "", summary_of(_peeked(row)))
    return DelayedEntry(row, _kind(headers), headers.get(names.FORWARD_DESTINATION) or "", summary_of(_peeked(row)))


def _kind(headers: Headers) -> DelayKind:
    if headers.get(names.DELAYED_RETRIES):
        return DelayKind.RETRY
    is_timeout = (headers.get(names.IS_SAGA_TIMEOUT_MESSAGE) or "").strip().lower() == "true"
    return DelayKind.TIMEOUT if is_timeout else DelayKind.DEFERRED


def _peeked(row: WaitingRow) -> PeekedRow:
    """The row as a queue row, without the columns that delayed messages lack."""
    row_id = uuid.UUID(row.key) if len(row.key) == 36 else uuid.UUID(int=int(row.key))
    number = int(row.key) if row.key.isdigit() else 0
    return PeekedRow(number, row_id, None, None, None, False, row.headers, row.body, row.body_length)
