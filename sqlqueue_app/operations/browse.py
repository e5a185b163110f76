"""Reading the messages of a queue without taking them: pages of summaries, and one message in full."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.headers import Headers, read_headers
from sqlqueue_app.operations.bodies import DecodedBody, decode_body
from sqlqueue_app.operations.header_groups import HeaderGroup, grouped_headers
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.tables.queue import PEEKED_BODY_BYTES, QueueTable
from sqlqueue_app.tables.rows import PeekedRow

PAGE_SIZES = (25, 50, 100)
# The largest bigint: no RowVersion lies above it, and the databases refuse a larger number.
LAST_ROW_VERSION = 2**63 - 1


class Flag(enum.StrEnum):
    """What is special about a message."""

    EXPIRED = "expired"
    POISON = "poison"
    FAILED = "failed"
    NULL_BODY = "null_body"


@dataclass(frozen=True, slots=True)
class MessageSummary:
    """One row of a page. `size` is the body's in bytes, None for NULL; `unreadable` says why the headers are poison.

    `message_id` is the header's, else the row's id; `types` are plain names, the concrete one first.
    """

    row_version: int
    row_id: str
    message_id: str
    types: tuple[str, ...]
    intent: str
    time_sent: datetime | None
    expires: datetime | None
    size: int | None
    flags: frozenset[Flag]
    unreadable: str | None = None
    failure: str | None = None

    @property
    def message_type(self) -> str:
        """The concrete type, or nothing."""
        return self.types[0] if self.types else ""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """The messages after a RowVersion, oldest first. `next_after` starts the next page; None: this is the last one."""

    messages: tuple[MessageSummary, ...]
    after: int
    size: int
    next_after: int | None


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """One message in full, as it stands in the table. `previous` and `next` are the RowVersions beside it."""

    summary: MessageSummary
    headers: Headers | None
    groups: tuple[HeaderGroup, ...]
    headers_text: str | None
    body: DecodedBody
    correlation_id: str | None
    reply_to_address: str | None
    previous: int | None = None
    next: int | None = None


def read_page(table: QueueTable, *, after: int = 0, size: int = PAGE_SIZES[0]) -> MessagePage:
    """A page of the queue. Takes nothing, locks nothing, waits for nobody; one statement. Raises DatabaseErrors."""
    with looking(table.alias, f"read {table.qualified}"):
        rows = table.peek(size + 1, after=after, body_limit=0)
    shown = rows[:size]
    next_after = shown[-1].row_version if len(rows) > size else None
    return MessagePage(tuple(summary_of(row) for row in shown), after, size, next_after)


def read_message(table: QueueTable, row_version: int) -> MessageDetail | None:
    """One message with its neighbours, or None if it is gone or never was. The body is cut at 64 KiB. Raises DatabaseErrors."""
    if not 0 < row_version <= LAST_ROW_VERSION:
        return None
    with looking(table.alias, f"read {table.qualified}"):
        rows = table.peek(1, after=row_version - 1)
        if not rows or rows[0].row_version != row_version:
            return None
        following = table.peek(1, after=row_version, body_limit=0)
        before = row_version_before(table, row_version)
    return detail_of(rows[0], previous=before, following=following[0].row_version if following else None)


def read_details(table: QueueTable, *, limit: int, body_limit: int = PEEKED_BODY_BYTES) -> list[MessageDetail]:
    """The first messages in full. Raises DatabaseErrors."""
    with looking(table.alias, f"read {table.qualified}"):
        return [detail_of(row) for row in table.peek(limit, body_limit=body_limit)]


def detail_of(row: PeekedRow, *, previous: int | None = None, following: int | None = None) -> MessageDetail:
    """What a peeked row says."""
    headers, _ = _read(row)
    content_type = headers.get(names.CONTENT_TYPE) if headers else None
    return MessageDetail(
        summary=summary_of(row),
        headers=headers,
        groups=grouped_headers(headers or {}),
        headers_text=row.headers,
        body=decode_body(row.body, row.body_length, content_type),
        correlation_id=row.correlation_id,
        reply_to_address=row.reply_to_address,
        previous=previous,
        next=following,
    )


def summary_of(row: PeekedRow) -> MessageSummary:
    """What the headers of a peeked row say; a row with unreadable headers is summed up by its columns."""
    headers, unreadable = _read(row)
    message = IncomingMessage(row.id, headers or {}, b"", row.correlation_id, row.reply_to_address)
    flags = {Flag.EXPIRED: row.expired, Flag.POISON: unreadable is not None, Flag.NULL_BODY: row.body_length is None}
    flags[Flag.FAILED] = names.FAILED_QUEUE in message.headers
    return MessageSummary(
        row_version=row.row_version,
        row_id=str(row.id),
        message_id=message.message_id,
        types=tuple(message.message_types),
        intent=message.intent.value or message.headers.get(names.MESSAGE_INTENT) or "",
        time_sent=message.time_sent,
        expires=row.expires,
        size=row.body_length,
        flags=frozenset(flag for flag, raised in flags.items() if raised),
        unreadable=unreadable,
        failure=message.headers.get(names.EXCEPTION_TYPE),
    )


def row_version_before(table: QueueTable, row_version: int) -> int | None:
    """The RowVersion of the row before, or None.

    A table is only ever peeked forwards. Nearly always the row before has the next lower number: one statement. Across a gap
    (deleted rows, numbers that a rollback or a restart of the server used up) the look goes back in growing steps, then halves the
    last one.
    """

    def first_after(start: int) -> int:
        rows = table.peek(1, after=start, body_limit=0)
        return rows[0].row_version if rows else row_version

    empty_from, step = row_version, 1
    while True:
        start = max(row_version - 1 - step, 0)
        found = first_after(start)
        if found < row_version:
            break
        if start == 0:
            return None
        empty_from, step = start + 1, step * 4
    while found + 1 < empty_from:
        middle = (found + empty_from) // 2
        later = first_after(middle - 1)
        if later < empty_from:
            found = later
        else:
            empty_from = middle
    return found


def _read(row: PeekedRow) -> tuple[Headers | None, str | None]:
    try:
        return read_headers(row.headers), None
    except PoisonMessage as error:
        return None, str(error)
