"""Bodies: every recorded JSON body, every hand-written row, and the rules of reading and writing."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntFlag, StrEnum
from typing import Any
from uuid import UUID

import pytest

from sqlqueue_app.messages import read_headers
from sqlqueue_app.messages.errors import MessageBodyError
from sqlqueue_app.messages.headers import CONTENT_TYPE, ENCLOSED_MESSAGE_TYPES
from sqlqueue_app.messages.serializers import JSON_CONTENT_TYPE, deserialize, media_type, serialize
from sqlqueue_app.messages.types import resolve_enclosed
from tests.support import play
from tests.support.golden import rows

ORDER_ID = UUID("00000000-0000-0000-0000-000000000001")


def recorded_bodies(name: str) -> list[tuple[str, bytes]]:
    found = []
    for row in rows(name):
        headers = read_headers(row.get("headers"))
        if headers.get(CONTENT_TYPE) == JSON_CONTENT_TYPE and row["body_base64"]:
            types = resolve_enclosed(headers.get(ENCLOSED_MESSAGE_TYPES))
            found.append((types[0], base64.b64decode(row["body_base64"])))
    return found


@pytest.mark.parametrize("name", ["json", "newtonsoft"])
def test_every_recorded_json_body_is_read_and_written(name: str) -> None:
    bodies = recorded_bodies(name)
    typed = [(play.CLASSES[kind], body) for kind, body in bodies if kind in play.CLASSES]
    assert len(bodies) > 60
    assert {cls for cls, _ in typed} == set(play.CLASSES.values())
    for _, body in bodies:
        read = deserialize(body, JSON_CONTENT_TYPE)
        assert deserialize(serialize(read), JSON_CONTENT_TYPE) == read
    for cls, body in typed:
        message = deserialize(body, JSON_CONTENT_TYPE, cls)
        assert isinstance(message, cls)
        written = serialize(message, names="pascal")
        assert deserialize(written, JSON_CONTENT_TYPE, cls, names="pascal") == message
        assert normal(written) == normal(body)


def normal(body: bytes) -> Any:
    """Return the body as JSON, without its free choices: escapes, a byte order mark, zeros at the end of a second."""
    text = re.sub(r"(T\d\d:\d\d:\d\d\.\d*?)0+(?=[Z+-])", r"\1", body.decode("utf-8-sig"))
    return json.loads(text, parse_float=str)


def test_recorded_order_is_read_completely() -> None:
    body = next(body for kind, body in recorded_bodies("json") if kind.endswith("PlaceOrder"))
    assert deserialize(body, JSON_CONTENT_TYPE, play.PlaceOrder) == play.PlaceOrder(
        order_id=ORDER_ID,
        customer="Zoë Ångström \U0001f69a",
        placed_at=datetime(2026, 11, 20, 13, 14, 15, 678000, UTC),
        placed_at_offset=datetime(2026, 11, 20, 13, 14, 15, tzinfo=timezone(timedelta(hours=2))),
        patience=timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5),
        status=play.OrderStatus.OnHold,
        previous_status=None,
        express=True,
        weight=1.25,
        points=9007199254740993,
        discount=15,
        signature=b"\0\1\2\xfd\xfe\xff",
        lines=[play.OrderLine("A-1", 2, play.Money(Decimal("12.3400"), "EUR")), play.OrderLine("<B&2>", 1)],
        labels={"gift": "yes", "naïve": "☃"},
        note='line one\nline "two" <three> & four',
    )


# Hand-written bodies that the real endpoint refused and ours refuses too; it accepts all others, also XML in a JSON endpoint.
REFUSED = {"utf-16 body", "body null literal", "body broken", "no content type, xml body"}
REFUSED |= {"number as text", "timespan ISO"}


@pytest.mark.parametrize("row", [row for row in rows("handwritten") if row["body_base64"]], ids=lambda row: row["case"])
def test_every_handwritten_body_is_read_or_refused(row: dict[str, Any]) -> None:
    body = base64.b64decode(row["body_base64"])
    content_type = None
    if row["headers"] and row["case"] not in ("headers broken", "headers null", "header nested", "header twice"):
        content_type = read_headers(row["headers"]).get(CONTENT_TYPE)
    cls = play.Ping if len(body) <= 7 else play.PlaceOrder
    if row["case"] in REFUSED:
        assert "MessageDeserializationException" in row["outcome"][0], "we refuse what the endpoint took"
        with pytest.raises(MessageBodyError):
            deserialize(body, content_type, cls)
    else:
        assert isinstance(deserialize(body, content_type, cls), cls)


class Colour(StrEnum):
    RED = "red"


class Rights(IntFlag):
    READ = 1
    WRITE = 2


class Shape(Enum):
    ROUND = (1, "round")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (-0.0, "-0.0e0"),
        (1.5, "1.5e0"),
        (1e22, "1e+22"),
        (2**80, str(2**80)),
        (Decimal("12.3400"), "12.3400"),
        (Decimal("1E+3"), "1000"),
        (Decimal("-0"), "-0"),
        (Decimal("0.1") ** 30, "0.000000000000000000000000000001"),
        (Decimal("1E+5000"), "1E+5000"),
        ('é/\u2028"\n\x7f', '"é/\u2028\\"\\n\x7f"'),
        (datetime(2026, 1, 2, 3, 4, 5), '"2026-01-02T03:04:05"'),  # noqa: DTZ001
        (datetime(2026, 1, 2, 3, 4, 5, 60, UTC), '"2026-01-02T03:04:05.000060Z"'),
        (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30))), '"2026-01-02T00:00:00-03:30"'),
        (datetime(1900, 1, 1, tzinfo=timezone(timedelta(minutes=19, seconds=32))), '"1899-12-31T23:40:28Z"'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (time(3, 4, 5, 60), '"03:04:05.000060"'),
        (timedelta(days=1, microseconds=5), '"1.00:00:00.0000050"'),
        (ORDER_ID, f'"{ORDER_ID}"'),
        (b"\0\xff", '"AP8="'),
        (bytearray(b"\0"), '"AA=="'),
        (memoryview(b"\0"), '"AA=="'),
        (Colour.RED, '"red"'),
        (play.OrderStatus.OnHold, "7"),
        (Rights.READ | Rights.WRITE, "3"),
        (Shape.ROUND, '[1,"round"]'),
        ([], "[]"),
        ((1, [2]), "[1,[2]]"),
        ({3}, "[3]"),
        ({}, "{}"),
        ({1: 2, ORDER_ID: 3, Colour.RED: 4}, f'{{"1":2,"{ORDER_ID}":3,"red":4}}'),
        (play.Ping(), "{}"),
    ],
)
def test_values_have_the_recorded_form(value: Any, text: str) -> None:
    assert serialize({"v": value}).decode() == f'{{"v":{text}}}'


def test_subclasses_are_written_like_their_base() -> None:
    class Text(str):
        __slots__ = ()

    class Number(int):
        pass

    assert serialize([Text("x"), Number(3)]) == b'["x",3]'


def test_member_names_follow_the_setting() -> None:
    order = play.OrderLine("A", 1, play.Money(Decimal("1.50"), "EUR"))
    assert serialize(order) == b'{"sku":"A","quantity":1,"price":{"amount":1.50,"currency":"EUR"}}'
    assert serialize(order, "pascal") == b'{"Sku":"A","Quantity":1,"Price":{"Amount":1.50,"Currency":"EUR"}}'
    assert serialize({"order_id": order}, "pascal").startswith(b'{"order_id":{"Sku"'), "keys of dicts are data"
    assert serialize(play.RejectOrder(ORDER_ID), "pascal") == b'{"OrderId":"%s","Reason":null}' % str(ORDER_ID).encode()
    with pytest.raises(ValueError, match="names is 'Pascal', expected one of as_is, pascal"):
        serialize(order, "Pascal")


@dataclass
class Clash:
    order_id: int = 1
    OrderId: int = 2


@dataclass
class Holder:
    value: Any = None


class Opaque:
    def __repr__(self) -> str:
        return "<opaque>"


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "expected_error"),
    [
        (float("nan"), "value: a body cannot contain the number nan"),
        (float("-inf"), "a body cannot contain the number -inf"),
        (Decimal("NaN"), r"a body cannot contain the number Decimal\('NaN'\)"),
        (Decimal("Infinity"), "a body cannot contain the number"),
        (Opaque(), r"value: Opaque cannot be written as JSON \(<opaque>\); make it a dataclass"),
        ([1, {"k": [Opaque()]}], r"value\[1\]\['k'\]\[0\]: Opaque cannot be written"),
        ({None: 1}, "value: the key None is NoneType; expected str, int, UUID, Decimal, date, time or timedelta"),
        ({True: 1}, "the key True is bool"),
        ({1: 1, "1": 2}, "two members would both be written as '1'"),
        (time(1, tzinfo=UTC), "has a time zone"),
        (timedelta.max, "longer than .NET can hold"),
        ([10**5000], "more digits than Python converts"),
        (endless(), "nested too deeply, or contains itself"),
        ("\ud83d", "half of a surrogate pair"),
        (Clash, "type cannot be written as JSON"),
    ],
)
def test_unwritable_value_is_refused(value: Any, expected_error: str) -> None:
    with pytest.raises(MessageBodyError, match=expected_error):
        serialize(Holder(value))


def test_members_with_the_same_written_name_are_refused() -> None:
    assert serialize(Clash()) == b'{"order_id":1,"OrderId":2}'
    with pytest.raises(MessageBodyError, match="both be written as 'OrderId'; rename one"):
        serialize(Clash(), "pascal")


@pytest.mark.parametrize("value", [None, "text", 1, b"{}", Opaque(), object()])
def test_only_objects_and_lists_are_bodies(value: Any) -> None:
    with pytest.raises(MessageBodyError, match="a body is a dataclass, a dict or a list; got "):
        serialize(value)


def test_media_type_is_normalised() -> None:
    assert media_type(" Application/JSON ; charset=utf-8") == "application/json"
    assert media_type(None) == ""
