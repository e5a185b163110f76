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
from sqlqueue_app.tables.queue import LAST_ROW_VERSION, PEEKED_BODY_BYTES, QueueTable
from sqlqueue_app.tables.rows import PeekedRow

PAGE_SIZES = (25, 50, 100)
# So many messages are looked at for a text in their headers: about a tenth of a second.
SEARCHED_ROWS = 2_000
# The largest length that the databases take for a part of a column.
LARGEST_BODY = 2**31 - 1


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
class PageAsked:
    """Which part of a queue to read: the messages after a RowVersion, or the last ones at and before one; `size` of them.

    With `header` those alone whose headers hold the text, in any case: in the header of this name where it is ``Name: text``.
    """

    after: int = 0
    before: int | None = None
    size: int = PAGE_SIZES[0]
    header: str = ""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages of a queue, the oldest first.

    `next_after` starts the next page, None: this is the last one. `previous_before` ends the one before, None: this is the first.
    `looked_at` is how many messages were looked at for a `header`, None without.
    """

    messages: tuple[MessageSummary, ...]
    asked: PageAsked
    next_after: int | None
    previous_before: int | None
    looked_at: int | None = None


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


def read_page(table: QueueTable, asked: PageAsked | None = None) -> MessagePage:
    """A page of the queue. Takes nothing, locks nothing, waits for nobody; one statement, two for the last page. DatabaseErrors.

    For a `header` it looks at 2,000 messages at most and says where to go on.
    """
    asked = asked or PageAsked()
    with looking(table.alias, f"read {table.qualified}"):
        if asked.header:
            return _search(table, asked)
        if asked.before is not None:
            return _read_back(table, asked, asked.before)
        rows = table.peek(asked.size + 1, after=asked.after, body_limit=0)
    shown = rows[: asked.size]
    next_after = shown[-1].row_version if len(rows) > asked.size else None
    first = shown[0].row_version if shown else asked.after + 1
    return MessagePage(tuple(map(summary_of, shown)), asked, next_after, first - 1 if asked.after else None)


def _read_back(table: QueueTable, asked: PageAsked, before: int) -> MessagePage:
    rows = table.peek_back(asked.size + 1, before=before, body_limit=0)
    shown = list(reversed(rows[: asked.size]))
    last = shown[-1].row_version if shown else before
    previous = shown[0].row_version - 1 if len(rows) > asked.size else None
    following = table.peek(1, after=last, body_limit=0) if last < LAST_ROW_VERSION else []
    return MessagePage(tuple(map(summary_of, shown)), asked, last if following else None, previous)


def _search(table: QueueTable, asked: PageAsked) -> MessagePage:
    rows = table.peek(SEARCHED_ROWS + 1, after=asked.after, body_limit=0)
    window = rows[:SEARCHED_ROWS]
    found = []
    for number, row in enumerate(window, start=1):
        if _holds(row, asked.header):
            found.append(row)
            if len(found) == asked.size:
                window = window[:number]
                break
    is_last = len(window) == len(rows)
    next_after = None if is_last or not window else window[-1].row_version
    return MessagePage(tuple(map(summary_of, found)), asked, next_after, None, looked_at=len(window))


def _holds(row: PeekedRow, wanted: str) -> bool:
    """Whether the headers of a row hold a text; what cannot be read is searched as it stands."""
    headers, unreadable = _read(row)
    name, colon, text = wanted.partition(":")
    if unreadable is not None or headers is None:
        return wanted.casefold() in (row.headers or "").casefold()
    if colon and (known := [value for key, value in headers.items() if key.casefold() == name.strip().casefold()]):
        return any(text.strip().casefold() in (value or "").casefold() for value in known)
    folded = wanted.casefold()
    return any(folded in key.casefold() or folded in (value or "").casefold() for key, value in headers.items())


def read_message(table: QueueTable, row_version: int, *, as_hex: bool = False) -> MessageDetail | None:
    """One message with its neighbours, or None if it is gone or never was. The body is cut at 64 KiB. Raises DatabaseErrors.

    `as_hex`: the body as bytes, whatever it is.
    """
    if not 0 < row_version <= LAST_ROW_VERSION:
        return None
    with looking(table.alias, f"read {table.qualified}"):
        rows = table.peek(1, after=row_version - 1)
        if not rows or rows[0].row_version != row_version:
            return None
        following = table.peek(1, after=row_version, body_limit=0)
        before = table.peek_back(1, before=row_version - 1, body_limit=0)
    previous = before[0].row_version if before else None
    return detail_of(rows[0], as_hex=as_hex, previous=previous, following=following[0].row_version if following else None)


def read_body(table: QueueTable, row_version: int, limit: int = LARGEST_BODY) -> bytes | None:
    """The body of one message, whole up to the limit; None if the message is gone, or its body NULL. Raises DatabaseErrors."""
    if not 0 < row_version <= LAST_ROW_VERSION:
        return None
    with looking(table.alias, f"read {table.qualified}"):
        rows = table.peek(1, after=row_version - 1, body_limit=limit)
    return rows[0].body if rows and rows[0].row_version == row_version else None


def read_details(table: QueueTable, *, limit: int, body_limit: int = PEEKED_BODY_BYTES) -> list[MessageDetail]:
    """The first messages in full. Raises DatabaseErrors."""
    with looking(table.alias, f"read {table.qualified}"):
        return [detail_of(row) for row in table.peek(limit, body_limit=body_limit)]


def detail_of(row: PeekedRow, *, as_hex: bool = False, previous: int | None = None, following: int | None = None) -> MessageDetail:
    """What a peeked row says."""
    headers, _ = _read(row)
    content_type = headers.get(names.CONTENT_TYPE) if headers else None
    return MessageDetail(
        summary=summary_of(row),
        headers=headers,
        groups=grouped_headers(headers or {}),
        headers_text=row.headers,
        body=decode_body(row.body, row.body_length, content_type, as_hex=as_hex),
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


def _read(row: PeekedRow) -> tuple[Headers | None, str | None]:
    try:
        return read_headers(row.headers), None
    except PoisonMessage as error:
        return None, str(error)
