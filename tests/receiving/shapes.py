"""Rows of any shape: header texts and bodies as nobody sensible writes them, and what became of each after a worker ran.

Handlers mark what they send with a header that no generated row has, so that it is told apart from the rows themselves.
"""

from __future__ import annotations

import enum
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from hypothesis import strategies as st

from sqlqueue_app import handles, message_type
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import NullHeaders, PoisonMessage
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.tables.rows import NewRow
from tests.receiving.conftest import Bench

MADE: Final = "Shape.Made"
MARK: Final = {MADE: "yes"}
NAMES: Final = sorted(value for name, value in vars(names).items() if name.isupper() and isinstance(value, str))
TYPES: Final = ["Shape.Order", "Shape.Dict", "Shape.Replies", "Shape.Publishes", "Shape.Sends"]


class Status(enum.Enum):
    NEW = 1
    OLD = "old"


@dataclass
class Inner:
    name: str
    inner: Inner | None = None


@dataclass
class Order:
    """A member of every kind that a body can have."""

    order_id: int | None = None
    text: str = ""
    flag: bool = False
    amount: Decimal | None = None
    ratio: float | None = None
    at: datetime | None = None
    day: date | None = None
    wait: timedelta | None = None
    ident: uuid.UUID | None = None
    raw: bytes | None = None
    status: Status | None = None
    either: int | Inner | None = None
    lines: list[Inner] = field(default_factory=list)
    labels: dict[str, Decimal] = field(default_factory=dict)
    by_number: dict[int, Any] = field(default_factory=dict)


MEMBERS: Final = [*Order.__dataclass_fields__, "OrderId", "$type"]


@dataclass(frozen=True)
class Shape:
    """A row as it is put into a queue."""

    row_id: uuid.UUID
    headers: str
    body: bytes | None
    correlation_id: str | None = None
    reply_to: str | None = None

    @property
    def is_poison(self) -> bool:
        """Whether nobody can read its headers: it must come out as it went in."""
        try:
            read_headers(self.headers)
        except NullHeaders:
            return False
        except PoisonMessage:
            return True
        return False


def register_handlers() -> None:
    """One that takes a class, one that takes a dict, and those that answer, publish and send what they got."""
    message_type("Shape.Order")(Order)

    @handles(Order, "Shape.Dict")
    def looks(message: Any, context: Any) -> None:
        repr(message)
        repr((context.headers, context.message_id, context.message_types, context.handler))

    @handles("Shape.Replies")
    def replies(message: Any, context: Any) -> None:
        context.reply("Shape.Reply", message, headers=MARK)

    @handles("Shape.Publishes")
    def publishes(message: Any, context: Any) -> None:
        context.publish("Shape.Event", message, headers=MARK)

    @handles("Shape.Sends")
    def sends(message: Any, context: Any) -> None:
        context.send("Shape.Sent", message, to="Other", headers=MARK)


# --- what is in a row ------------------------------------------------------------------------------------------------
any_text = st.text(st.characters(), max_size=20)
"""With halves of surrogate pairs and NUL."""
_NUMBERS = st.sampled_from(["1e999999999", "-0", "1E-999999999", "9" * 5000, "0.1", "-1", "2147483648", "NaN", "Infinity"])
_ADDRESSES = st.sampled_from(
    [
        "Other",
        "Nowhere",
        "Other@host",
        "Other@[dbo]",
        "Other@[dbo]@[nsb]",
        '"public"."Other"',
        '"',
        '""',
        '"."',
        "[",
        "@",
        "@@",
        "[a]]b",
        '"a"".b',
        ".",
        "..",
        "a.b.c",
        "Other\0",
        "Other\ud800",
        "\u3000",
        "Other" * 100,
        "SubscriptionRouting",
        "sqlite_master",
    ]
)
_TIMES = st.sampled_from(
    [
        "2026-04-29 21:56:55:590807 Z",
        "9999-12-31 23:59:59:999999 Z",
        "0001-01-01 00:00:00:000000 Z",
        "2026-13-41 25:61:61:000000 Z",
        "2026-04-29T21:56:55Z",
        "x" * 28,
        "٢٠٢٦-04-29 21:56:55:590807 Z",
        "00:00:01",
        "-00:00:01",
        "10675199.02:48:05.4775807",
        "99999999.00:00:00",
        "1",
        "PT1S",
    ]
)
_TYPES = st.sampled_from(
    [*TYPES, "Shape.Order, Shape;Shape.Dict, Shape", ";", ",", ";;,Shape.Dict", "Shape.Order__impl", "Shape.Unknown"]
)
_WORDS = st.sampled_from(
    [
        "",
        " ",
        "true",
        "True",
        "false",
        "null",
        "\0",
        "\ud800",
        "\udc00\ud800",
        "Send",
        "Publish",
        "Subscribe",
        "unsubscribe",
        "Reply",
        "4",
        "text/xml",
        "application/json",
        "application/xml; charset=klingon",
        "text/xml\0",
        "image/png",
        "00-" + "0" * 32 + "-" + "1" * 16 + "-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "a=b,c",
        "5",
        "49",
        "50",
        "1000000000",
        str(uuid.UUID(int=7)),
        "a" * 300,
    ]
)
header_value = st.one_of(_WORDS, _ADDRESSES, _TIMES, _TYPES, any_text, _NUMBERS)
"""Text that stands where another text is expected."""
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=6,
)
_raw_value = st.one_of(
    header_value.map(json.dumps), json_value.map(json.dumps), _NUMBERS, st.sampled_from(['"\\u0000"', "[[]]", "{}"])
)
_header_name = st.one_of(st.sampled_from(NAMES), any_text)
_FITTING: Final = {
    names.CONTENT_TYPE: st.sampled_from(["application/json", "text/xml"]),
    names.MESSAGE_ID: _WORDS,
    names.REPLY_TO_ADDRESS: _ADDRESSES,
    names.MESSAGE_INTENT: st.sampled_from(["Send", "Publish", "Reply", "Subscribe"]),
    names.FORWARD_DESTINATION: _ADDRESSES,
    names.CONTROL_MESSAGE: _WORDS,
    names.CALLBACK_QUEUE: _ADDRESSES,
    names.DELAYED_RETRIES: _NUMBERS,
    names.DELAYED_RETRIES_TIMESTAMP: _TIMES,
    names.TIME_SENT: _TIMES,
    names.FAILED_QUEUE: _ADDRESSES,
    names.TIMEOUT_ROUTE_TO: _ADDRESSES,
    names.TIMEOUT_EXPIRE: _TIMES,
    names.FORWARDS: _NUMBERS,
    names.TRACE_PARENT: _WORDS,
}
_fitting_pair = st.one_of([st.tuples(st.just(name), values) for name, values in _FITTING.items()])
_subscription = st.fixed_dictionaries(
    {
        names.CONTROL_MESSAGE: st.just("True"),
        names.MESSAGE_INTENT: st.sampled_from(["Subscribe", "Unsubscribe", "Send", "7"]),
        names.SUBSCRIPTION_MESSAGE_TYPE: _TYPES | any_text,
    },
    optional={names.SUBSCRIBER_ADDRESS: _ADDRESSES, names.SUBSCRIBER_ENDPOINT: header_value, names.REPLY_TO_ADDRESS: _ADDRESSES},
)
_acknowledged = st.fixed_dictionaries(
    {
        names.ENCLOSED_MESSAGE_TYPES: st.sampled_from(TYPES),
        names.RETRY_UNIQUE_MESSAGE_ID: header_value,
        names.RETRY_ACKNOWLEDGEMENT_QUEUE: _ADDRESSES | st.just("Acknowledged"),
    }
)
_saga = st.fixed_dictionaries(
    {names.SAGA_ID: header_value, names.CLEAR_TIMEOUTS: _WORDS, names.TIMEOUT_ID: header_value},
    optional={names.TIMEOUT_ROUTE_TO: _ADDRESSES, names.TIMEOUT_EXPIRE: _TIMES, names.IS_SAGA_TIMEOUT_MESSAGE: _WORDS},
)


def _object_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Names may come twice; each value is JSON, or nearly."""
    return "{" + ", ".join(f"{json.dumps(name)}:{value}" for name, value in pairs) + "}"


# Most are nearly right, so that they get far.
header_text = st.one_of(
    st.builds(
        lambda types, pairs: json.dumps({names.ENCLOSED_MESSAGE_TYPES: types, **dict(pairs)}),
        st.sampled_from(TYPES),
        st.lists(_fitting_pair, max_size=4),
    ),
    st.one_of(_subscription, _acknowledged, _saga).map(json.dumps),
    st.dictionaries(_header_name, header_value, max_size=5).map(json.dumps),
    st.builds(
        lambda right, wrong: json.dumps({**right, **wrong}),
        st.fixed_dictionaries({names.ENCLOSED_MESSAGE_TYPES: _TYPES}),
        st.dictionaries(st.sampled_from(NAMES), header_value, max_size=4),
    ),
    st.lists(st.tuples(_header_name, _raw_value), max_size=4).map(_object_text),
    json_value.map(json.dumps),
    st.text(max_size=30),
    st.sampled_from(["", "null", "[]", "{}", " {} ", "\ufeff{}", "[" * 2000, '{"a":' * 2000, "{}{}", '"', "nul"]),
)
"""The headers column: any text that can stand there."""

_member = st.tuples(st.sampled_from(MEMBERS), st.one_of(_raw_value, header_value.map(json.dumps)))
_XML_PARTS = st.sampled_from(
    [
        "<Order>",
        "</Order>",
        "<Order xmlns='http://tempuri.net/Shape'>",
        "<Messages>",
        "</Messages>",
        "<OrderId>",
        "</OrderId>",
        "<Dict/>",
        "<Order/>",
        "<Amount>sNaN</Amount>",
        "<Amount>1e999999999</Amount>",
        "<Lines><Inner><Name>x</Name></Inner></Lines>",
        "<At>x</At>",
        "<x:y xmlns:x='Decimal'>sNaN</x:y>",
        "<Either>1</Either>",
        "&amp;",
        "&x;",
        "<!DOCTYPE a>",
        "<?xml version='1.0' encoding='utf-16'?>",
        "<![CDATA[",
        "]]>",
        "<!--",
        "-->",
        "\x00",
        "é",
        "<Wait>P9999999Y</Wait>",
        "<ByNumber><e><Key>x</Key></e></ByNumber>",
        "1",
        "<Status>old,NEW</Status>",
        "<Either xmlns:xsi='http://www.w3.org/2001/XMLSchema-instance' xsi:nil='true'/>",
    ]
)
body = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.sampled_from(
        [b"", b"{}", b"null", b"\xef\xbb\xbf{}", b"[{}]", b"[{},{}]", b"[]", b"\xff\xfe{\0}\0", b"[" * 3000, b"{" * 3000]
    ),
    json_value.map(json.dumps).map(str.encode),
    st.lists(_member, max_size=5).map(_object_text).map(str.encode),
    st.lists(_XML_PARTS, max_size=6).map("".join).map(str.encode),
    st.lists(_XML_PARTS, max_size=4).map("".join).map(lambda inside: f"<Order>{inside}</Order>".encode()),
)
column = st.none() | st.one_of(_ADDRESSES, _WORDS, any_text)
shapes = st.builds(Shape, st.uuids(), header_text, body, column, column)
"""Whole rows."""


# --- putting them in and finding them again --------------------------------------------------------------------------
def put(bench: Bench, rows: Iterable[Shape], queue: str = "Sales") -> list[Shape]:
    """The rows as they are in the queue then: no database holds half of a surrogate pair, PostgreSQL no NUL and no such columns."""
    held = [_as_held(row, bench.database.vendor) for row in rows]
    table = bench.table(queue)
    table.send([NewRow(str(row.row_id), row.headers, row.body or b"", row.correlation_id, row.reply_to) for row in held])
    null = [row.row_id for row in held if row.body is None]
    if null:
        # Foreign senders alone write that.
        values = [each.hex if bench.database.vendor == "sqlite" else str(each) for each in null]
        with bench.database.connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table.qualified} SET Body = NULL WHERE Id IN ({', '.join(['%s'] * len(values))})", values)
    return held


def _as_held(row: Shape, vendor: str) -> Shape:
    def held(text: str | None) -> str | None:
        if text is None:
            return None
        text = text.encode("utf-8", "replace").decode()
        return text.replace("\0", "?") if vendor == "postgresql" else text

    columns = (None, None) if vendor == "postgresql" else (held(row.correlation_id), held(row.reply_to))
    return Shape(row.row_id, held(row.headers) or "", row.body, *columns)


@dataclass(frozen=True)
class Found:
    """A row as it came out: where, with which headers, with which body."""

    queue: str
    text: str
    body: bytes

    @property
    def headers(self) -> dict[str, Any]:
        try:
            return dict(read_headers(self.text))
        except PoisonMessage:
            return {}

    @property
    def is_ours(self) -> bool:
        """Whether a handler, or the acknowledgement of a retry, made it."""
        return MADE in self.headers or (names.RETRY_SUCCESSFUL in self.headers and names.MESSAGE_ID not in self.headers)


def found_in(bench: Bench, *queues: str) -> list[Found]:
    """What the worker left in the queues, without what handlers sent."""
    found = [Found(queue, row.headers or "", row.body or b"") for queue in queues for row in bench.rows(queue)]
    return [each for each in found if not each.is_ours]


def account(rows: Iterable[Shape], found: list[Found]) -> None:
    """Each row was found exactly once, whole: a poison row to the byte, another one with its body and every header of its own."""
    left = list(found)
    for row in rows:
        place = next((place for place, each in enumerate(left) if _is_of(each, row)), None)
        assert place is not None, f"lost: {row!r}\nleft: {left!r}"
        del left[place]
    assert left == [], f"nobody has put these in: {left!r}"


def _is_of(each: Found, row: Shape) -> bool:
    if each.body != (row.body or b""):
        return False
    if row.is_poison:
        return each.queue == "error" and each.text == row.headers
    told = read_headers(row.headers) if row.headers != "null" else {}
    headers = each.headers
    if (told.get(names.MESSAGE_ID) or str(row.row_id)) != headers.get(names.MESSAGE_ID):
        return False
    return all(headers.get(name) == value for name, value in told.items() if name not in _MAY_CHANGE)


_MAY_CHANGE: Final = frozenset(
    {
        names.MESSAGE_ID,
        # Dropped in the error queue, and where a message was on its way to.
        names.DELAYED_RETRIES,
        names.IMMEDIATE_RETRIES,
        names.FORWARD_DESTINATION,
        # Written by the failure, or by the audit copy.
        names.FAILED_QUEUE,
        names.TIME_OF_FAILURE,
        names.PROCESSING_MACHINE,
        names.PROCESSING_ENDPOINT,
        names.PROCESSING_STARTED,
        names.PROCESSING_ENDED,
        names.HOST_ID,
        names.HOST_DISPLAY_NAME,
        names.EXCEPTION_TYPE,
        names.EXCEPTION_INNER_TYPE,
        names.EXCEPTION_MESSAGE,
        names.EXCEPTION_SOURCE,
        names.EXCEPTION_STACK_TRACE,
        names.RETRY_ACKNOWLEDGEMENT_SENT,
        # Said by the columns where the headers are silent.
        names.REPLY_TO_ADDRESS,
        names.CORRELATION_ID,
    }
)
