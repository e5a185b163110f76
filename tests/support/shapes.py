"""Rows of any shape, with header texts and bodies that no sensible program writes, and handlers for them.

Handlers mark the messages they send with a header that no generated row has, to distinguish them from the rows themselves.
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
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import NullHeaders, PoisonMessage
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.support.bench import Bench

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
    has_id: bool = True
    """Whether the row has an id; rows of a delayed table have only headers."""

    @property
    def is_poison(self) -> bool:
        """Whether its headers are unreadable; such a row must be kept unchanged."""
        try:
            read_headers(self.headers)
        except NullHeaders:
            return False
        except PoisonMessage:
            return True
        return False


def register_handlers() -> None:
    """Handlers that take a class or a dict, and handlers that reply with, publish and send what they received."""
    message_type("Shape.Order")(Order)

    @handles(Order, "Shape.Dict")
    def inspects(message: Any, context: Any) -> None:
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


# --- parts of a row ------------------------------------------------------------------------------------------------
any_text = st.text(st.characters(), max_size=20)
"""Includes surrogates and NUL."""
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
"""Text in a place where other text is expected."""
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
    """A JSON object, possibly with duplicate names and slightly invalid values."""
    return "{" + ", ".join(f"{json.dumps(name)}:{value}" for name, value in pairs) + "}"


# Most are nearly valid, so that they reach later stages.
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
"""The headers column: any text that it can contain."""

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


def delayed_table(bench: Bench) -> DelayedTable:
    book = get_settings().address_book(bench.database.vendor)
    return DelayedTable(bench.database.alias, delayed_address(book, "Sales"))
