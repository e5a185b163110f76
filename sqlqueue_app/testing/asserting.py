"""Assertions about sent messages: `assert_sent`, `assert_not_sent`, `sent` and `failed`.

They read the tables, so a message counts only if the code that sent it was not rolled back. Messages that `drain()` has taken in
the transaction of the test count too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress
from sqlqueue_app.messages.errors import (
    AddressError,
    BodyNotFound,
    MessageBodyError,
    PoisonMessage,
    SqlQueueError,
    TableMismatch,
    counted,
)
from sqlqueue_app.messages.headers import Headers, Intent, read_headers
from sqlqueue_app.messages.serializers import CONTENT_TYPES, deserialize, is_xml, number_in_dict, serialize
from sqlqueue_app.messages.times import as_delay, parse_time
from sqlqueue_app.messages.types import registry as message_types, resolve_enclosed
from sqlqueue_app.sending.claim_checks import claim_checks_of, claimed_body
from sqlqueue_app.status.queues import QueueKind, address_book_of, known_queues, table_key
from sqlqueue_app.tables.connections import connection_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from sqlqueue_app.tables.queue import QueueTable, queue_table, used_tables

# A delay is known to the second.
TOLERANCE = timedelta(seconds=1)
_MAX_LINES = 20


def assert_sent(
    message: object,
    body: Mapping[str, Any] | None = None,
    *,
    to: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    count: int | None = None,
    delay: timedelta | float | None = None,
) -> SentMessage:
    """Raise AssertionError unless such a message was sent and not rolled back; return the first.

    `message` is a message class, the name of a type, or an object whose members are compared. `body` and `headers` list required
    entries; others may exist. Values are compared as on the wire, member names as handlers read them (`order_id` is `OrderId`).
    `to` is an address, `count` the expected number (None: at least one). `delay` is compared to the second; 0 means no delay.
    """
    found, matching = _find(message, body, to, headers, delay)
    if not matching if count is None else len(matching) != count:
        number = "was not sent" if count is None else f"was sent {counted(len(matching), 'time')}, expected {count}"
        _fail(f"{_wanted(message, body, to, headers, delay)} {number}", found)
    if not matching:
        raise ValueError("count=0: call assert_not_sent(), which returns nothing")
    return matching[0]


def assert_not_sent(
    message: object = None,
    body: Mapping[str, Any] | None = None,
    *,
    to: str | None = None,
    headers: Mapping[str, str | None] | None = None,
    delay: timedelta | float | None = None,
) -> None:
    """Raise AssertionError if such a message was sent; without arguments, if any was. Arguments as for `assert_sent`."""
    found, matching = _find(message, body, to, headers, delay)
    if matching:
        _fail(f"{_wanted(message, body, to, headers, delay)} was sent {counted(len(matching), 'time')}, expected none", found)


def _find(
    message: object,
    body: Mapping[str, Any] | None,
    to: str | None,
    headers: Mapping[str, str | None] | None,
    delay: timedelta | float | None,
) -> tuple[list[tuple[SentMessage, list[str]]], list[SentMessage]]:
    if body is not None and not isinstance(message, (str, type)) and message is not None:
        raise TypeError(f"a body was passed with the message {type(message).__qualname__}: pass one of them")
    right_place = None if to is None else {_key(each) for each in sent(to=to)}
    checks: list[Callable[[SentMessage], list[str]]] = [
        lambda each: _type_differs(each, message),
        lambda each: _body_differs(each, message if body is None else body),
        lambda each: _headers_differ(each, headers or {}),
        lambda each: _delay_differs(each, delay),
        lambda each: [] if right_place is None or _key(each) in right_place else [_other_place(each, to)],
    ]
    found = [(each, [text for check in checks for text in check(each)]) for each in sent()]
    return found, [each for each, differences in found if not differences]


def _other_place(each: SentMessage, to: str | None) -> str:
    # On PostgreSQL, Sales.High is the table High in the schema Sales: show how that queue is addressed.
    return f"it went to {each.address if each.queue == to else each.queue}, expected {to}"


def _key(message: SentMessage) -> tuple[object, ...]:
    return message.message_id, message.address, message.raw


def _body_differs(each: SentMessage, wanted: object) -> list[str]:
    """Compare as on the wire. XML has no types: if a class reads the body, its values are compared as in JSON."""
    if wanted is None or isinstance(wanted, (str, type)):
        return []
    with suppress(SqlQueueError):
        if is_xml(each.content_type) and message_types.by_name(each.message_type) is not None:
            return _differences(decoded(serialize(wanted)), decoded(serialize(each.message)), "body")
    on_the_wire = decoded(serialize(wanted, content_type=each.content_type, types=each.message_types), each.content_type)
    return _differences(on_the_wire, each.body if isinstance(each.body, bytes) else decoded(each.raw, each.content_type), "body")


def _name(message: object) -> str:
    return type_name(message if isinstance(message, (str, type)) else type(message))


def _type_differs(each: SentMessage, message: object) -> list[str]:
    if message is None or (name := _name(message)) in each.message_types:
        return []
    return [f"its type is {each.message_type!r}, expected {name!r}"]


def _headers_differ(each: SentMessage, headers: Mapping[str, str | None]) -> list[str]:
    return [
        f"header {name!r} is {each.headers.get(name)!r}, expected {value!r}"
        for name, value in headers.items()
        if each.headers.get(name) != value
    ]


def _delay_differs(each: SentMessage, delay: timedelta | float | None) -> list[str]:
    if (wanted := as_delay(delay)) is None or abs(each.delay - wanted) <= TOLERANCE:
        return []
    return [f"its delay is {each.delay}, expected {delay}"]


def _differences(wanted: Any, found: Any, place: str) -> list[str]:
    """The differences: the parts of `wanted` that `found` lacks."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        texts: list[str] = []
        for key, value in wanted.items():
            member = _member(found, key)
            texts += _differences(value, found[member], f"{place}[{key!r}]") if member is not None else [f"{place} has no {key!r}"]
        return texts
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [text for number, (a, b) in pairs for text in _differences(a, b, f"{place}[{number}]")]
    # True is 1 in Python, but not on the wire.
    same = wanted == found and isinstance(wanted, bool) == isinstance(found, bool)
    return [] if same else [f"{place} is {shown(found)}, expected {shown(wanted)}"]


def _member(found: dict[str, Any], key: str) -> str | None:
    if key in found:
        return key
    plain = key.replace("_", "").lower()
    return next((name for name in found if name.replace("_", "").lower() == plain), None)


def _wanted(
    message: object,
    body: Mapping[str, Any] | None,
    to: str | None,
    headers: Mapping[str, str | None] | None,
    delay: timedelta | float | None,
) -> str:
    wanted = message if body is None else body
    wire = None if wanted is None or isinstance(wanted, (str, type)) else decoded(serialize(wanted))
    return "".join(
        [
            "a message" if message is None else _name(message),
            "" if wire is None else f" with {shown(wire)}",
            "" if to is None else f" to {to}",
            "" if not headers else f" with headers {shown(dict(headers))}",
            "" if delay is None else f" with a delay of {delay}",
        ]
    )


def _fail(problem: str, found: list[tuple[SentMessage, list[str]]]) -> NoReturn:
    if not found:
        raise AssertionError(f"{problem}; nothing was sent")
    lines = [f"{problem}; sent were {len(found)}:"]
    for message, differences in found[:_MAX_LINES]:
        lines.append(f"  {message}")
        lines += [f"    but {difference}" for difference in differences]
    if len(found) > _MAX_LINES:
        lines.append(f"  and {len(found) - _MAX_LINES} more")
    raise AssertionError("\n".join(lines))


# A failed assertion lists no more; a test that sends more should count rows.
MAX_ROWS = 10_000
_WHOLE_BODY = 2**31 - 1

# Per transaction: messages that drains have taken, and ids and queues of messages that the test has put in.
_taken: WeakKeyDictionary[Atomic, list[SentMessage]] = WeakKeyDictionary()
_left_out: WeakKeyDictionary[Atomic, set[tuple[str | None, str]]] = WeakKeyDictionary()


def sent(message: type | str | None = None, *, to: str | None = None) -> list[SentMessage]:
    """Messages that were sent and not rolled back, in the order of their time sent, optionally of one type or to one queue.

    These are the messages in the queues and delayed tables that this process has used, and those that `drain()` took in the open
    transaction of the test. Error and audit queues are not included. An event is listed once per queue.
    """
    settings = get_settings()
    book = address_book_of(settings)
    connection = connection_of(settings.database)
    taken = [each for block in connection.atomic_blocks for each in _taken.get(block, ())]
    found = _unique([*taken, *_waiting(settings, book)])
    put_in = {each for block in connection.atomic_blocks for each in _left_out.get(block, ())}
    found = [each for each in found if (each.message_id, each.queue) not in put_in]
    if message is not None:
        name = type_name(message)
        found = [each for each in found if name in each.message_types]
    if to is not None:
        found = [each for each in found if table_key(each.address) == table_key(book.parse(to))]
    return sorted(found, key=lambda each: each.headers.get(names.TIME_SENT) or "")


def failed() -> list[SentMessage]:
    """The messages in the error queues of the endpoints, with failure headers such as NServiceBus.ExceptionInfo.Message."""
    settings = get_settings()
    errors = [entry.address for entry in known_queues(settings) if entry.kind is QueueKind.ERROR]
    return [message for address in errors for message in _messages(queue_table(settings.database, address))]


def exclude(connection: BaseDatabaseWrapper, message_id: str, queue: str) -> None:
    """Do not list a message that the test itself puts into a queue."""
    _left_out.setdefault(_block_of_test(connection), set()).add((message_id, queue))


def type_name(message: type | str) -> str:
    """The name of a message type given as class or name. MessageTypeError for another class."""
    return message if isinstance(message, str) else message_types.of(message).name


def record(connection: BaseDatabaseWrapper, taken: Iterable[SentMessage]) -> None:
    """Remember messages that a drain took until the transaction of the test ends; nothing outside a transaction."""
    if connection.atomic_blocks:
        _taken.setdefault(_block_of_test(connection), []).extend(taken)


def _block_of_test(connection: BaseDatabaseWrapper) -> Atomic:
    """The block that lives as long as the test: the innermost of TestCase's, otherwise the outermost."""
    of_test = [block for block in connection.atomic_blocks if getattr(block, "_from_testcase", False)]
    block: Atomic = of_test[-1] if of_test else connection.atomic_blocks[0]
    return block


def _unique(messages: Iterable[SentMessage]) -> list[SentMessage]:
    """Each message once: one that waits for a retry was taken before."""
    found: dict[object, SentMessage] = {}
    for message in messages:
        found.setdefault((message.message_id, message.address) if message.message_id else object(), message)
    return list(found.values())


def _waiting(settings: Settings, book: AddressBook) -> Iterator[SentMessage]:
    for table in _queues(settings):
        yield from _messages(table)
    for delayed in delayed_tables(settings, book):
        for waiting in delayed.peek(MAX_ROWS):
            yield from _message(delayed.address, waiting.headers, waiting.body, book)


def _messages(table: QueueTable) -> Iterator[SentMessage]:
    if table.exists():
        with suppress(TableMismatch):  # every send to a table that is not a queue was refused
            table.layout()
            for row in table.peek(MAX_ROWS, after=-(2**63), body_limit=_WHOLE_BODY):
                yield from _message(table.address, row.headers, row.body)


def _queues(settings: Settings) -> list[QueueTable]:
    """The tables that this process has used and the main queues, without error and audit queues."""
    known = known_queues(settings)
    others = {table_key(entry.address) for entry in known if entry.kind in (QueueKind.ERROR, QueueKind.AUDIT)}
    own = [queue_table(settings.database, entry.address) for entry in known if entry.kind in (QueueKind.MAIN, QueueKind.SATELLITE)]
    tables = {table_key(table.address): table for table in (*used_tables(settings.database), *own)}
    return [table for key, table in tables.items() if key not in others]


def delayed_tables(settings: Settings, book: AddressBook) -> list[DelayedTable]:
    """The existing delayed tables of the settings."""
    tables = [DelayedTable(settings.database, delayed_address(book, name)) for name in settings.senders]
    return [table for table in tables if table.exists()]


def _message(address: QueueAddress, text: str | None, body: bytes | None, book: AddressBook | None = None) -> Iterator[SentMessage]:
    """The message of a row; nothing for an unreadable row. With a book the row is delayed and its headers name the destination."""
    try:
        headers = dict(read_headers(text))
    except PoisonMessage:
        return
    if book is not None and (to := headers.pop(names.FORWARD_DESTINATION, None)):
        try:
            address = book.parse(to)
        except AddressError:
            pass  # keep the address of the delayed table
    yield SentMessage(address, headers, whole_body(headers, body))


def whole_body(headers: Headers, body: bytes | None) -> bytes:
    """The body of a row, or of the file that its claim check names; b"" if that is gone."""
    if body or (name := headers.get(names.CLAIM_CHECK)) is None:
        return body or b""
    settings = get_settings()
    try:
        return claimed_body(claim_checks_of(settings, address_book_of(settings)), name)
    except (BodyNotFound, MessageBodyError):
        return b""


@dataclass(frozen=True)
class SentMessage:
    """A sent message: waiting in its queue, delayed, or taken by `drain()`."""

    address: QueueAddress
    """The full address of the destination queue."""
    headers: Headers
    raw: bytes
    """The body as stored, in the row or by a claim check."""

    @property
    def queue(self) -> str:
        """The name of the destination queue."""
        return self.address.table

    @property
    def message_types(self) -> list[str]:
        """The names of its types, concrete type first; a published message has its parent types too."""
        return resolve_enclosed(self.headers.get(names.ENCLOSED_MESSAGE_TYPES))

    @property
    def message_type(self) -> str:
        """The name of its type; "" without one."""
        return next(iter(self.message_types), "")

    @property
    def message_id(self) -> str | None:
        """The header NServiceBus.MessageId."""
        return self.headers.get(names.MESSAGE_ID)

    @property
    def intent(self) -> Intent:
        """Send, publish or reply."""
        return Intent.read(self.headers.get(names.MESSAGE_INTENT))

    @property
    def content_type(self) -> str:
        """The content type by which a worker reads the body: that of SERIALIZER unless the header is JSON or XML."""
        return CONTENT_TYPES["xml" if is_xml(self.headers.get(names.CONTENT_TYPE), get_settings().serializer) else "json"]

    @cached_property
    def body(self) -> Any:
        """The decoded body: JSON with numbers as a handler of dicts gets them, XML with values as text, otherwise the raw bytes."""
        try:
            return decoded(self.raw, self.content_type, number_in_dict)
        except ValueError:
            return self.raw

    @cached_property
    def message(self) -> Any:
        """The body as an object of its message class; as `body` if no class is registered for its type."""
        known = message_types.by_name(self.message_type)
        if known is None:
            return self.body
        return deserialize(self.raw, self.content_type, known.cls, known.names or "as_is")

    @property
    def deliver_at(self) -> datetime | None:
        """The due time of a delayed message, aware; None without a delay."""
        text = self.headers.get(names.DELIVER_AT)
        return parse_time(text) if text else None

    @property
    def delay(self) -> timedelta:
        """The delay in whole seconds; zero without one."""
        sent = self.headers.get(names.TIME_SENT)
        if self.deliver_at is None or not sent:
            return timedelta()
        # The headers contain two readings of the clock.
        return timedelta(seconds=round((self.deliver_at - parse_time(sent)).total_seconds()))

    def __str__(self) -> str:
        when = f" in {self.delay}" if self.deliver_at is not None else ""
        return f"{self.message_type or 'a message without a type'} to {self.queue}{when}: {shown(self.body)}"


def decoded(body: bytes, content_type: str | None = None, number: Callable[[str], Any] = Decimal) -> Any:
    """Decode a body as JSON, or as XML by its content type; ValueError if it is neither."""
    if is_xml(content_type):
        return deserialize(body, content_type)
    return json.loads(body.decode("utf-8-sig"), parse_float=number)


def shown(value: object) -> str:
    """A body value for people, shortened if it is long."""
    text = _as_json(value) if not isinstance(value, bytes) else repr(value)
    return text if len(text) <= 500 else f"{text[:500]}…"


def _as_json(value: object) -> str:
    """A JSON text in which a Decimal is a number, which the module json cannot write."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_as_json(key)}: {_as_json(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_json, value)) + "]"
    return json.dumps(value, default=str, ensure_ascii=False)
