"""The messages of a table of delayed messages, one by one: listed by their due times, read, delivered now, cancelled.

Looking takes nothing. What is delivered now, or cancelled, is deleted from the table in the same transaction, so that each message
goes one way, however many workers move what is due meanwhile: what one of them holds is stepped over.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from django.db import transaction

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.headers import Headers, read_headers
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.operations.browse import LARGEST_BODY, MessageDetail, MessageSummary, detail_of, summary_of
from sqlqueue_app.operations.known_delayed import KnownDelayed
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.receiving.delayed_tables import destinations_of_delayed
from sqlqueue_app.receiving.due_messages import DueMessage
from sqlqueue_app.receiving.routes_of_satellites import Unroutable
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import database_errors
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.delayed_rows import Place, WaitingRow, list_rows, read_rows, remove_rows, take_rows
from sqlqueue_app.tables.queue import PEEKED_BODY_BYTES, QueueTable
from sqlqueue_app.tables.rows import NewRow, PeekedRow
from sqlqueue_app.tables.writing import chunks_by_table, write_chunks

# So many can be chosen at once: their bodies are in memory together.
MOST_CHOSEN: Final = 1_000


class DelayKind(enum.StrEnum):
    """Why a message waits: for its next attempt, as the timeout of a saga, or because somebody sent it for later."""

    RETRY = "retry"
    TIMEOUT = "timeout"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """One message that waits. `destination` is as its headers say it, empty for the queue of the endpoint whose table it is."""

    row: WaitingRow
    kind: DelayKind | None
    destination: str
    message: MessageSummary

    @property
    def key(self) -> str:
        """What tells it from the others of its table."""
        return self.row.key


@dataclass(frozen=True, slots=True)
class DelayedPage:
    """Messages by their due times; `next` is where the next page begins, None: this is the last one."""

    messages: tuple[DelayedMessage, ...]
    next: Place | None


@dataclass(frozen=True, slots=True)
class Bound:
    """A message that is to be delivered: where to, or why it cannot be."""

    row: WaitingRow
    to: str
    target: QueueTable | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Delivered:
    """How many were delivered, how many were not there any more, and what could not be delivered, with why; those stay."""

    done: int
    gone: int
    refused: tuple[Bound, ...] = ()


def read_delayed_page(table: DelayedTable, size: int, *, after: Place | None = None) -> DelayedPage:
    """A page of the table: one statement. Raises DatabaseErrors, QueueNotFound among them."""
    with looking(table.alias, f"read {table.qualified}"):
        rows = list_rows(table, size + 1, after=after)
    shown = rows[:size]
    return DelayedPage(tuple(map(_message_of, shown)), shown[-1].place if len(rows) > size else None)


def read_delayed_message(table: DelayedTable, key: str, *, as_hex: bool = False) -> tuple[DelayedMessage, MessageDetail] | None:
    """One message in full, its body cut at 64 KiB; None if it is gone or never was. Raises as `read_delayed_page`."""
    with looking(table.alias, f"read {table.qualified}"):
        rows = read_rows(table, [key], body_limit=PEEKED_BODY_BYTES)
    return (_message_of(rows[0]), detail_of(_peeked(rows[0]), as_hex=as_hex)) if rows else None


def read_delayed_body(table: DelayedTable, key: str) -> bytes | None:
    """The whole body of one message; None if the message is gone, or its body NULL. Raises as `read_delayed_page`."""
    with looking(table.alias, f"read {table.qualified}"):
        rows = read_rows(table, [key], body_limit=LARGEST_BODY)
    return rows[0].body if rows else None


def bound_messages(settings: Settings, known: KnownDelayed, keys: Collection[str]) -> list[Bound]:
    """Those of these messages that are there, each with where it would go now. Takes nothing. Raises as `read_delayed_page`."""
    table = known.table(settings.database)
    book = address_book_of(settings)
    destinations = destinations_of_delayed(settings, book, known.endpoint)
    main = book.canonical(book.of_queue(known.endpoint))
    found = []
    with looking(table.alias, f"read {table.qualified}"):
        for row in read_rows(table, keys):
            try:
                to = DueMessage.of(row.headers, b"", main=main).to
            except PoisonMessage as error:
                found.append(Bound(row, "", refusal=str(error)))
                continue
            try:
                found.append(Bound(row, to, destinations.table(to)))
            except Unroutable as error:
                found.append(Bound(row, to, refusal=str(error)))
    return found


def deliver_now(settings: Settings, known: KnownDelayed, keys: Collection[str]) -> Delivered:
    """Put messages into their queues at once, whenever they are due: taken out and written in one transaction.

    A message that cannot be brought where it goes, or be read, stays and is told; one that is gone, or that a worker is moving, is
    counted as gone. The header DeliverAt of one that was not due yet becomes now, so that nobody counts its times from the future.
    Raises DatabaseErrors: nothing is delivered then.
    """
    table = known.table(settings.database)
    # Before the transaction, which on SQLite must begin with a write.
    bound = bound_messages(settings, known, keys)
    ready = {each.row.key: (each, each.target) for each in bound if each.target is not None}
    now = database_now(table.alias)
    with database_errors(table.dialect, f"deliver messages from {table.qualified}"), transaction.atomic(using=table.alias):
        placed: list[tuple[QueueTable, NewRow]] = []
        for taken in take_rows(table, list(ready)):
            each, target = ready[taken.key]
            due = DueMessage.of(taken.headers, taken.body or b"", main=each.to)
            if each.row.seconds is not None and each.row.seconds > 0 and names.DELIVER_AT in due.headers:
                due.headers[names.DELIVER_AT] = format_time(now)
            placed.append((target, due.row(target)))
        write_chunks(table.alias, chunks_by_table(placed), begun=True)
    refused = tuple(each for each in bound if each.target is None)
    return Delivered(len(placed), len(set(keys)) - len(placed) - len(refused), refused)


def cancel_delayed(table: DelayedTable, keys: Sequence[str]) -> int:
    """Delete messages for good and return how many there were; what a worker is moving is left to it. Raises DatabaseErrors."""
    return len(remove_rows(table, keys))


def _message_of(row: WaitingRow) -> DelayedMessage:
    try:
        headers = read_headers(row.headers)
    except PoisonMessage:
        return DelayedMessage(row, None, "", summary_of(_peeked(row)))
    return DelayedMessage(row, _kind(headers), headers.get(names.FORWARD_DESTINATION) or "", summary_of(_peeked(row)))


def _kind(headers: Headers) -> DelayKind:
    if headers.get(names.DELAYED_RETRIES):
        return DelayKind.RETRY
    is_timeout = (headers.get(names.IS_SAGA_TIMEOUT_MESSAGE) or "").strip().lower() == "true"
    return DelayKind.TIMEOUT if is_timeout else DelayKind.DEFERRED


def _peeked(row: WaitingRow) -> PeekedRow:
    """As a row of a queue, whose columns of the reply and expiry it has not."""
    row_id = uuid.UUID(row.key) if len(row.key) == 36 else uuid.UUID(int=int(row.key))
    number = int(row.key) if row.key.isdigit() else 0
    return PeekedRow(number, row_id, None, None, None, False, row.headers, row.body, row.body_length)
