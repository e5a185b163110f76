"""The messages of a queue: browse without receiving, find, delete, move, send copies, purge.

Browsing locks nothing and waits for nothing. Functions raise DatabaseErrors unless stated otherwise.
"""

from __future__ import annotations

import base64
import enum
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import TextChoices
from django.utils.translation import gettext_lazy

from sqlqueue_app.browsing.bodies import DecodedBody, decode_body
from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.lake.search import FoundMessage
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.envelope import IncomingMessage, guid_of
from sqlqueue_app.messages.errors import PoisonMessage, QueueNotFound, SqlQueueError
from sqlqueue_app.messages.headers import Headers, read_headers
from sqlqueue_app.messages.types import full_name
from sqlqueue_app.models import FailedMessage, managed_alias
from sqlqueue_app.policies.priorities import Priority
from sqlqueue_app.sending.claim_checks import claim_checks_of
from sqlqueue_app.sending.composer import Routes
from sqlqueue_app.sending.sender import send, send_many
from sqlqueue_app.status.events import EventKind, report_event
from sqlqueue_app.status.queues import QueueKind, address_book_of, known_queues, table_key
from sqlqueue_app.tables.connections import database_errors, guarded_read, optional_read
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT, LAST_ROW_VERSION, PEEKED_BODY_BYTES, QueueTable, queue_table
from sqlqueue_app.tables.row_selection import TakenRow, find_ids, remove_rows, take_rows
from sqlqueue_app.tables.rows import NewRow, PeekedRow

PAGE_SIZES = (25, 50, 100)
# Messages scanned for a text in their headers: about a tenth of a second.
SEARCHED_ROWS = 2_000
# The largest substring length that the databases accept.
MAX_BODY_BYTES = 2**31 - 1


class Flag(enum.StrEnum):
    """Conditions worth showing next to a message."""

    EXPIRED = "expired"
    POISON = "poison"
    FAILED = "failed"
    NULL_BODY = "null_body"


@dataclass(frozen=True, slots=True)
class MessageSummary:
    """A message in a list. `size`: bytes of the body, None for NULL; `unreadable`: why the headers cannot be parsed.

    `message_id` comes from the headers, else it is the row's id; `types` are plain names, the concrete one first.
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
    unreadable: str | None
    failure: str | None

    @property
    def message_type(self) -> str:
        return self.types[0] if self.types else ""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """A page by RowVersion: `size` messages after `after`, or the last ones up to and including `before`.

    `header` filters by a text in the headers, ignoring case; ``Name: text`` searches the header of that name.
    """

    after: int = 0
    before: int | None = None
    size: int = PAGE_SIZES[0]
    header: str = ""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages of a queue, the oldest first.

    `next_after` starts the next page, None on the last one. `previous_before` ends the previous page, None on the first one.
    `scanned` is the number of messages scanned for `header`, None without that filter.
    """

    messages: tuple[MessageSummary, ...]
    query: PageQuery
    next_after: int | None
    previous_before: int | None
    scanned: int | None = None


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """A message in full. `previous` and `next` are the RowVersions of its neighbours."""

    summary: MessageSummary
    headers: Headers | None
    groups: tuple[HeaderGroup, ...]
    headers_text: str | None
    body: DecodedBody
    correlation_id: str | None
    reply_to_address: str | None
    previous: int | None
    next: int | None


def read_page(table: QueueTable, query: PageQuery | None = None) -> MessagePage:
    """Read a page: one or two statements. With `header`, 2,000 messages are scanned at most; `next_after` continues."""
    query = query or PageQuery()
    with guarded_read(table.alias, f"read {table.qualified}"):
        if query.header:
            return _search(table, query)
        if query.before is not None:
            return _read_back(table, query, query.before)
        rows = table.peek(query.size + 1, after=query.after, body_limit=0)
    shown = rows[: query.size]
    next_after = shown[-1].row_version if len(rows) > query.size else None
    first = shown[0].row_version if shown else query.after + 1
    return MessagePage(tuple(map(summary_of, shown)), query, next_after, first - 1 if query.after else None)


def _read_back(table: QueueTable, query: PageQuery, before: int) -> MessagePage:
    rows = table.peek_back(query.size + 1, before=before)
    shown = list(reversed(rows[: query.size]))
    last = shown[-1].row_version if shown else before
    previous = shown[0].row_version - 1 if len(rows) > query.size else None
    following = table.peek(1, after=last, body_limit=0) if last < LAST_ROW_VERSION else []
    return MessagePage(tuple(map(summary_of, shown)), query, last if following else None, previous)


def _search(table: QueueTable, query: PageQuery) -> MessagePage:
    rows = table.peek(SEARCHED_ROWS + 1, after=query.after, body_limit=0)
    window = rows[:SEARCHED_ROWS]
    found = []
    for number, row in enumerate(window, start=1):
        if _holds(row, query.header):
            found.append(row)
            if len(found) == query.size:
                window = window[:number]
                break
    is_last = len(window) == len(rows)
    next_after = None if is_last or not window else window[-1].row_version
    return MessagePage(tuple(map(summary_of, found)), query, next_after, None, scanned=len(window))


def _holds(row: PeekedRow, wanted: str) -> bool:
    """Whether the headers contain the text; unparsable headers are searched as raw text."""
    headers, unreadable = _read(row)
    name, colon, text = wanted.partition(":")
    if unreadable is not None or headers is None:
        return wanted.casefold() in (row.headers or "").casefold()
    if colon and (known := [value for key, value in headers.items() if key.casefold() == name.strip().casefold()]):
        return any(text.strip().casefold() in (value or "").casefold() for value in known)
    folded = wanted.casefold()
    return any(folded in key.casefold() or folded in (value or "").casefold() for key, value in headers.items())


def read_message(table: QueueTable, row_version: int, *, as_hex: bool = False) -> MessageDetail | None:
    """Read a message with its neighbours, its body cut at 64 KiB or as a hex dump; None if it does not exist."""
    if not 0 < row_version <= LAST_ROW_VERSION:
        return None
    with guarded_read(table.alias, f"read {table.qualified}"):
        row = table.peek_row(row_version)
        if row is None:
            return None
        following = table.peek(1, after=row_version, body_limit=0)
        before = table.peek_back(1, before=row_version - 1)
    previous = before[0].row_version if before else None
    return detail_of(row, as_hex=as_hex, previous=previous, following=following[0].row_version if following else None)


def read_body(table: QueueTable, row_version: int, limit: int = MAX_BODY_BYTES) -> bytes | None:
    """Read the body of a message up to `limit` bytes; None if the message does not exist or its body is NULL."""
    if not 0 < row_version <= LAST_ROW_VERSION:
        return None
    with guarded_read(table.alias, f"read {table.qualified}"):
        row = table.peek_row(row_version, body_limit=limit)
    return None if row is None else _with_claimed_body(row, limit).body


def _with_claimed_body(row: PeekedRow, limit: int) -> PeekedRow:
    """The row with the beginning of its body from the storage, if that is a file; unchanged if the file cannot be read."""
    if row.body_length or names.CLAIM_CHECK not in (row.headers or ""):
        return row
    settings = get_settings()
    with suppress(Exception):
        claim_checks = claim_checks_of(settings, address_book_of(settings))
        name = read_headers(row.headers).get(names.CLAIM_CHECK)
        if claim_checks is not None and name:
            return replace(row, body=claim_checks.read(name, limit), body_length=claim_checks.size(name))
    return row


def read_details(table: QueueTable, *, limit: int) -> list[MessageDetail]:
    """Read the first messages in full."""
    with guarded_read(table.alias, f"read {table.qualified}"):
        return [detail_of(row) for row in table.peek(limit)]


# Messages per read for a file.
_SAVE_BATCH: Final = 200


def saved_messages(table: QueueTable) -> Iterator[str]:
    """Every message of a queue as a JSON line with all columns, the body in base64. Read in chunks, not as one snapshot."""
    after = 0
    while rows := table.peek(_SAVE_BATCH, after=after, body_limit=MAX_BODY_BYTES):
        for row in rows:
            line = {
                "row_version": row.row_version,
                "id": str(row.id),
                "correlation_id": row.correlation_id,
                "reply_to_address": row.reply_to_address,
                "expires": None if row.expires is None else row.expires.isoformat(),
                "headers": row.headers,
                "body_base64": None if row.body is None else base64.b64encode(row.body).decode("ascii"),
            }
            yield json.dumps(line) + "\n"
        after = rows[-1].row_version


def detail_of(row: PeekedRow, *, as_hex: bool = False, previous: int | None = None, following: int | None = None) -> MessageDetail:
    """Build the detail of a peeked row."""
    row = _with_claimed_body(row, PEEKED_BODY_BYTES)
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


def detail_of_lake(each: FoundMessage, *, as_hex: bool) -> MessageDetail:
    """Build the detail of a message of the lake, as if it were in a table; the body is its beginning."""
    body = None if each.body is None else each.body[:PEEKED_BODY_BYTES]
    row_id = guid_of(each.native_id) or UUID(int=0)
    row = PeekedRow(each.row_version, row_id, None, None, each.expires, False, each.headers, body, each.body_bytes)
    return detail_of(row, as_hex=as_hex)


def summary_of(row: PeekedRow) -> MessageSummary:
    """Build the summary of a peeked row, from its columns alone if the headers cannot be parsed."""
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


class GroupName(TextChoices):
    """The groups of headers with their titles, in display order."""

    FAILURE = "failure", gettext_lazy("Failure")
    MESSAGE = "message", gettext_lazy("Message")
    ROUTING = "routing", gettext_lazy("Routing")
    TIMES = "times", gettext_lazy("Times")
    OTHER = "other", gettext_lazy("Other headers")


@dataclass(frozen=True, slots=True)
class HeaderGroup:
    """The headers of one group, in the order of the row."""

    name: GroupName
    headers: tuple[tuple[str, str | None], ...]


_MESSAGE: Final = frozenset(
    {
        names.MESSAGE_ID,
        names.CORRELATION_ID,
        names.CONVERSATION_ID,
        names.PREVIOUS_CONVERSATION_ID,
        names.RELATED_TO,
        names.MESSAGE_INTENT,
        names.ENCLOSED_MESSAGE_TYPES,
        names.CONTENT_TYPE,
        names.VERSION,
        names.CONTROL_MESSAGE,
        names.NON_DURABLE_MESSAGE,
        names.RETURN_MESSAGE_ERROR_CODE,
        names.SUBSCRIPTION_MESSAGE_TYPE,
        names.SAGA_ID,
        names.SAGA_TYPE,
        names.ORIGINATING_SAGA_ID,
        names.ORIGINATING_SAGA_TYPE,
        names.IS_SAGA_TIMEOUT_MESSAGE,
        names.LEGACY_CORRELATION_ID,
    }
)
_ROUTING: Final = frozenset(
    {
        names.REPLY_TO_ADDRESS,
        names.ORIGINATING_ENDPOINT,
        names.ORIGINATING_MACHINE,
        names.ORIGINATING_HOST_ID,
        names.ORIGINATING_ADDRESS,
        names.SUBSCRIBER_ADDRESS,
        names.SUBSCRIBER_ENDPOINT,
        names.CALLBACK_QUEUE,
        names.PROCESSING_ENDPOINT,
        names.PROCESSING_MACHINE,
        names.HOST_ID,
        names.HOST_DISPLAY_NAME,
        names.FORWARD_DESTINATION,
        names.TIMEOUT_ROUTE_TO,
        names.TIMEOUT_REPLY_TO_ADDRESS,
    }
)
_TIMES: Final = frozenset(
    {
        names.TIME_SENT,
        names.DELIVER_AT,
        names.IS_DEFERRED_MESSAGE,
        names.TIME_TO_BE_RECEIVED,
        names.PROCESSING_STARTED,
        names.PROCESSING_ENDED,
        names.TIMEOUT_EXPIRE,
    }
)
_FAILURE: Final = frozenset({names.FAILED_QUEUE, names.TIME_OF_FAILURE, names.IMMEDIATE_RETRIES})
_FAILURE_PREFIXES: Final = ("NServiceBus.ExceptionInfo.", names.DELAYED_RETRIES, "ServiceControl.Retry.")


def group_of(header: str) -> GroupName:
    """The group of a header; OTHER if unknown."""
    if header in _FAILURE or header.startswith(_FAILURE_PREFIXES):
        return GroupName.FAILURE
    for name, members in ((GroupName.MESSAGE, _MESSAGE), (GroupName.ROUTING, _ROUTING), (GroupName.TIMES, _TIMES)):
        if header in members:
            return name
    return GroupName.OTHER


def grouped_headers(headers: Headers) -> tuple[HeaderGroup, ...]:
    """Every header once, in groups, without empty groups."""
    found: dict[GroupName, list[tuple[str, str | None]]] = {name: [] for name in GroupName}
    for name, value in headers.items():
        found[group_of(name)].append((name, value))
    return tuple(HeaderGroup(name, tuple(members)) for name, members in found.items() if members)


# Each queue costs one or two statements.
_MAX_QUEUES = 4

_Search = Callable[[QueueTable, str], int | None]


@dataclass(frozen=True, slots=True)
class MessageLocation:
    """The location of a message: a failed message by unique id, else a row of the queue with this name."""

    failure: UUID | None = None
    queue: str = ""
    row_version: int = 0


def find_sent_message(
    settings: Settings, message_id: str, message_type: str, sent_by: str, destination: str
) -> MessageLocation | None:
    """Find a message by id: failed messages, its destination, else the routed queue or the endpoints' queues, then audit queues.

    A queue is searched by row id (on SQL Server and SQLite within its first 10,000 rows), else by the headers of its first 2,000
    messages; an audit queue by its last 2,000. None if not found. Raises ConnectionLost; other unreadable queues are skipped.
    """
    alias = managed_alias()
    with guarded_read(alias, "look for a message"):
        failure = FailedMessage.objects.using(alias).filter(message_id=message_id).order_by("-failed_at", "-pk").first()
    if failure is not None:
        return MessageLocation(failure=failure.pk)
    book = address_book_of(settings)
    searches: list[tuple[str, QueueTable, _Search]] = [
        (name, queue_table(settings.database, book.of_queue(name)), _row_version)
        for name in queues_of_type(settings, message_type, sent_by, destination)
    ]
    audits = [queue for queue in known_queues(settings) if queue.kind is QueueKind.AUDIT][:_MAX_QUEUES]
    searches += [(queue.name, queue_table(settings.database, queue.address), _newest) for queue in audits]
    for name, table, search in searches:
        with optional_read(settings.database, f"look for a message in {table.qualified}"):
            found = search(table, message_id)
            if found is not None:
                return MessageLocation(queue=name, row_version=found)
    return None


def _row_version(table: QueueTable, message_id: str) -> int | None:
    """Search by row id, which usually equals the message id, else by the headers of the first rows."""
    wanted = guid_of(message_id)
    if wanted is not None and (found := find_ids(table, [wanted], limit=EXACT_COUNT_LIMIT).get(wanted)) is not None:
        return found
    rows = (summary_of(row) for row in table.peek(SEARCHED_ROWS, body_limit=0))
    return next((row.row_version for row in rows if row.message_id == message_id), None)


def _newest(table: QueueTable, message_id: str) -> int | None:
    """Search the headers of the last rows."""
    rows = (summary_of(row) for row in table.peek_back(SEARCHED_ROWS))
    return next((row.row_version for row in rows if row.message_id == message_id), None)


def queues_of_type(settings: Settings, message_type: str, sent_by: str, destination: str) -> Iterable[str]:
    """The names of the queues in which a message of this type may wait, at most four."""
    if destination:
        return (address_book_of(settings).parse(destination).table,)
    routed = Routes(settings.routes).find(full_name(message_type))
    if routed is not None:
        return (routed,)
    return list(dict.fromkeys([*([sent_by] if sent_by in settings.senders else ()), *settings.endpoints]))[:_MAX_QUEUES]


class MessageUnavailable(SqlQueueError):
    """The message was received or deleted, or is locked by another transaction."""


def delete_message(table: QueueTable, row_version: int) -> None:
    """Delete a message permanently. Raises MessageUnavailable."""
    if not remove_rows(table, [row_version]):
        raise MessageUnavailable(_gone(table, row_version))


def move_message(settings: Settings, table: QueueTable, row_version: int, to: str) -> QueueTable:
    """Move a message unchanged to another queue, in one transaction; return that queue's table.

    `to` is the literal name of a table or an address. The remaining time to be received is kept. Raises MessageUnavailable,
    QueueNotFound, AddressError for an invalid address, and ValueError if `to` is the same queue.
    """
    target = target_of(settings, to)
    if table_key(target.address) == table_key(table.address):
        raise ValueError(f"{to!r} is the queue that the message is in: name another one")
    with transaction.atomic(using=table.alias):
        taken = take_rows(table, [row_version])
        if not taken:
            raise MessageUnavailable(_gone(table, row_version))
        target.send(moved_rows(settings, target.address, taken))
    return target


def target_of(settings: Settings, text: str) -> QueueTable:
    """Resolve a literal table name, else an address. Raises QueueNotFound and AddressError."""
    book = address_book_of(settings)
    literal = queue_table(settings.database, book.of_queue(text))
    if literal.exists():
        return literal
    parsed = queue_table(settings.database, book.parse(text))
    if not parsed.exists():
        raise QueueNotFound(f"there is no queue {text!r} in database {settings.database!r}: create it, or name another one")
    return parsed


def moved_rows(settings: Settings, target: QueueAddress, rows: Iterable[TakenRow]) -> Iterator[NewRow]:
    """The rows for another queue, without their RowVersions. A NULL body, which some receivers reject, becomes empty."""
    claim_checks = claim_checks_of(settings, address_book_of(settings))
    for row in rows:
        moved = NewRow(str(row.id), row.headers or "", row.body or b"", row.correlation_id, row.reply_to_address, row.lifetime_ms)
        yield moved if claim_checks is None else claim_checks.check_out(target, moved)


def _gone(table: QueueTable, row_version: int) -> str:
    return (
        f"message {row_version} is not in {table.qualified}: it was received or deleted, or another transaction holds it; reload "
        "and try again"
    )


_CHUNK = 1_000
_FIRST: Final = "bodies[0]: "


def send_copies(
    table: QueueTable,
    message_type: str,
    body: Mapping[str, object],
    *,
    headers: Mapping[str, str],
    time_to_be_received: timedelta | None,
    delay: timedelta | None,
    priority: Priority | None,
    count: int,
    progress: Callable[[int], None],
) -> list[str]:
    """Send `count` times in one transaction; returns the ids. `progress` gets the number so far. Raises as `send_many`."""
    ids: list[str] = []
    options: Any = {
        "to": str(table.address),
        "headers": headers,
        "time_to_be_received": time_to_be_received,
        "delay": delay,
        "priority": priority,
    }
    with database_errors(table.dialect, f"send to {table.qualified}"), transaction.atomic(using=table.alias):
        if count == 1:
            # Its headers may have an id, unlike those of several messages.
            return [send(message_type, body, **options)]
        while len(ids) < count:
            size = min(_CHUNK, count - len(ids))
            try:
                ids += send_many(message_type, [body] * size, **options)
            except SqlQueueError as error:
                if (text := str(error)).startswith(_FIRST):
                    # All copies are the same: the caller has no list of them.
                    raise type(error)(text.removeprefix(_FIRST)) from error
                raise
            progress(len(ids))
    return ids


EXPIRED_BATCH = 10_000


def purge_queue(table: QueueTable) -> int:
    """Delete all messages, waiting for those in progress; record an event if there are managed tables. Returns the count."""
    purged = table.purge()
    report_event(EventKind.QUEUE_PURGED, table.address.table, {"count": purged})
    return purged


def purge_expired(table: QueueTable, *, batch: int = EXPIRED_BATCH, progress: Callable[[int], None] | None = None) -> int:
    """Delete expired messages that are not being received, each batch a transaction; returns the count, which `progress` gets."""
    total = 0
    while True:
        deleted = table.purge_expired(batch)
        total += deleted
        if progress is not None and deleted:
            progress(total)
        if deleted < batch:
            return total
