"""Reading bodies: typed conversion, spellings of members, and clear errors for every misfit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from typing import Annotated, Any, Final, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.messages.errors import MessageBodyError, MessageTypeError
from sqlqueue_app.messages.serializers import deserialize, serialize
from tests.support import play
from tests.support.fuzzing import fuzzed

JSON = "application/json"
OrderNumber = NewType("OrderNumber", int)
T = TypeVar("T")


class Colour(Enum):
    RED = "r"
    DARK_BLUE = "b"


class Level(IntEnum):
    NONE = 0
    ON_HOLD = 7


class Rights(Flag):
    NONE = 0
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: int
    right: int = 5


class Options(TypedDict):
    a: int


def read(value: Any, hint: Any) -> Any:
    return deserialize(json.dumps([value]).encode(), JSON, list[hint])[0]


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Any, {"a": [1]}, {"a": [1]}),
        (object, None, None),
        (T, 1, 1),
        (str, "x", "x"),
        (bool, True, True),
        (int, 3, 3),
        (int, 3.0, 3),
        (OrderNumber, 3, 3),
        (float, 3, 3.0),
        (float, 1.25, 1.25),
        (Decimal, 12.25, Decimal("12.25")),
        (Decimal, 3, Decimal(3)),
        (Decimal, "12.3400", Decimal("12.3400")),
        (datetime, "2026-11-20T12:14:21.8687242Z", datetime(2026, 11, 20, 12, 14, 21, 868724, UTC)),
        (datetime, "2026-11-20T10:11:12", datetime(2026, 11, 20, 10, 11, 12)),  # noqa: DTZ001
        (datetime, "2026-11-20 10:11:12+00:00", datetime(2026, 11, 20, 10, 11, 12, tzinfo=UTC)),
        (date, "2026-11-20", date(2026, 11, 20)),
        (date, "2026-11-20T00:00:00Z", date(2026, 11, 20)),
        (time, "10:11:12.1234567", time(10, 11, 12, 123456)),
        (timedelta, "1.02:03:04.0050000", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
        (UUID, "00000000000000000000000000000001", UUID(int=1)),
        (bytes, "AP8=", b"\0\xff"),
        (bytes, " AP\n8=\n", b"\0\xff"),
        (Colour, "b", Colour.DARK_BLUE),
        (Colour, "DARK_BLUE", Colour.DARK_BLUE),
        (Colour, "DarkBlue", Colour.DARK_BLUE),
        (play.OrderStatus, 7, play.OrderStatus.OnHold),
        (play.OrderStatus, 7.0, play.OrderStatus.OnHold),
        (play.OrderStatus, "onhold", play.OrderStatus.OnHold),
        (play.OrderStatus, "7", play.OrderStatus.OnHold),
        (Level, "None", Level.NONE),
        (Level, " 0", Level.NONE),
        (Rights, 3, Rights.READ | Rights.WRITE),
        (Rights, "Read, Write", Rights.READ | Rights.WRITE),
        (Rights, "none", Rights.NONE),
        (dict[Level, int], {"7": 1, "None": 2}, {Level.ON_HOLD: 1, Level.NONE: 2}),
        (Literal[Level.ON_HOLD, "x"], 7, Level.ON_HOLD),
        (int | None, None, None),
        (None, None, None),
        (int | str, "3", "3"),
        (datetime | str, "soon", "soon"),
        (Annotated[int, "minutes"], 3, 3),
        (Final[int], 3, 3),
        (Literal["a", 1], 1, 1),
        (list, [1, "x"], [1, "x"]),
        (Sequence[UUID], [str(UUID(int=1))], [UUID(int=1)]),
        (set[int], [1, 1], {1}),
        (frozenset[int], [1], frozenset({1})),
        (tuple, [1, "x"], (1, "x")),
        (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
        (tuple[int, str], [1, "x"], (1, "x")),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict[int, str], {"1": "x"}, {1: "x"}),
        (Mapping[Colour, int], {"r": 1}, {Colour.RED: 1}),
        (
            dict[UUID, play.Money],
            {str(UUID(int=1)): {"amount": 1, "currency": "EUR"}},
            {UUID(int=1): play.Money(Decimal(1), "EUR")},
        ),
        (Options, {"a": 1}, {"a": 1}),
        (Pair, {"Left": 1}, Pair(1, 5)),
        (list[int], {"$type": "System.Int32[], mscorlib", "$values": [1, 2]}, [1, 2]),
        (dict[str, int], {"$type": "System.Collections.Generic.Dictionary`2[[...]], mscorlib", "a": 1}, {"a": 1}),
        (dict[str, str], {"$type": "mine"}, {"$type": "mine"}),
        (float, "-Infinity", float("-inf")),
        (play.Node, {"name": "a", "children": [{"name": "b"}]}, play.Node("a", [play.Node("b")])),
    ],
)
def test_conversion(hint: Any, value: Any, expected: Any) -> None:
    found = read(value, hint)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "expected_error"),
    [
        (str, 3, r"\[0\]: expected text, got the number 3"),
        (str, None, "expected text, got null"),
        (bool, 1, "expected true or false, got the number 1"),
        (int, True, "expected a whole number, got true"),
        (int, "3", "expected a whole number, got '3'"),
        (int, 1.5, "expected a whole number, got the number 1.5"),
        (float, "1.5", "expected a number that fits a float, got '1.5'"),
        (float, 10**400, "expected a number that fits a float"),
        (Decimal, "NaN", "expected a decimal number, got 'NaN'"),
        (Decimal, "x" * 100, r"expected a decimal number, got 'x{60}'\.\.\. \(100 characters\)"),
        (Decimal, False, "expected a decimal number, got false"),
        (datetime, "yesterday", "expected a date and time like '2026-11-20T10:11:12Z', got 'yesterday'"),
        (datetime, 1, "expected a date and time"),
        (timedelta, "P1DT2H", "expected a duration like '1.02:03:04.0050000', got 'P1DT2H'"),
        (UUID, "x", "expected a GUID, got 'x'"),
        (bytes, "?", "expected base64 text"),
        (Colour, "GREEN", "expected a value or name of Colour, got 'GREEN'"),
        (play.OrderStatus, 5, "expected a value or name of OrderStatus, got the number 5"),
        (play.OrderStatus, True, "expected a value or name of OrderStatus, got true"),
        (Rights, 4, "expected a value or name of Rights, got the number 4"),
        (Rights, "Read, Walk", "expected a value or name of Rights, got 'Read, Walk'"),
        (Literal[Level.ON_HOLD], 0, "expected <Level.ON_HOLD: 7>, got the number 0"),
        (Colour, ["r"], "expected a value or name of Colour, got an array of 1"),
        (int | None, "x", "expected a whole number, got 'x'"),
        (int | bool | None, "x", "expected int or bool or null, got 'x'"),
        (None, 1, "expected null, got the number 1"),
        (Literal["a", 1], True, "expected 'a' or 1, got true"),
        (list[int], {"a": 1}, "expected an array, got an object"),
        (list[list[int]], [[1], [2, "x"]], r"\[0\]\[1\]\[1\]: expected a whole number"),
        (tuple[int, str], [1], "expected an array of 2, got an array of 1"),
        (dict[str, int], {"a": "x"}, r"\[0\]\['a'\]: expected a whole number"),
        (dict[int, int], {"a": 1}, "expected a whole number as key, got 'a'"),
        (set[Any], [{}], "the items do not fit a set: unhashable type: 'dict'"),
        (frozenset[play.Ping] | int, [{}], "expected frozenset or int, got an array of 1"),
        (Options, [], "expected an object for Options, got an array of 0"),
        (Pair, [1, 2], "expected an object for Pair, got an array of 2"),
    ],
)
def test_misfitting_value_is_refused(hint: Any, value: Any, expected_error: str) -> None:
    with pytest.raises(MessageBodyError, match=expected_error):
        read(value, hint)


def test_error_names_type_member_and_value() -> None:
    body = b'{"sku":"A","price":{"amount":"cheap","currency":"EUR"}}'
    with pytest.raises(MessageBodyError) as caught:
        deserialize(body, JSON, play.PriceQuoted)
    assert str(caught.value) == "the body does not fit PriceQuoted: price.amount: expected a decimal number, got 'cheap'"


def test_missing_member_names_type_and_field() -> None:
    with pytest.raises(MessageBodyError) as caught:
        deserialize(b'{"Sku":"A","Price":{"Amount":1}}', JSON, play.PriceQuoted)
    assert str(caught.value) == (
        "the body does not fit PriceQuoted: price: Money needs the member 'currency', which has no default; the body has 'Amount'"
    )
    with pytest.raises(MessageBodyError, match="the body is empty"):
        deserialize(b"{}", JSON, play.Node)


@dataclass
class Names:
    order_id: int
    url: str = ""
    class_: str = ""


@pytest.mark.parametrize("name", ["order_id", "OrderId", "orderId", "ORDER_ID", "orderid", "Order_Id"])
def test_any_spelling_of_a_member_is_found(name: str) -> None:
    assert deserialize(json.dumps({name: 1, "URL": "u", "Class": "c"}).encode(), JSON, Names) == Names(1, "u", "c")


def test_the_exact_name_wins() -> None:
    body = b'{"ORDERID":4,"orderId":3,"OrderId":2,"order_id":1}'
    assert deserialize(body, JSON, Names).order_id == 1
    assert deserialize(body, JSON, Names, names="pascal").order_id == 2
    assert deserialize(b'{"Orderid":5,"ORDERID":4}', JSON, Names).order_id == 5


@dataclass
class Close:
    ab: int
    a_b: int = 0
    AB: int = 0


def test_member_does_not_take_the_value_of_another() -> None:
    assert deserialize(b'{"ab":1}', JSON, Close) == Close(1, 0, 0)
    assert deserialize(b'{"ab":1,"AB":3}', JSON, Close) == Close(1, 0, 3)


@dataclass
class Checked:
    total: int
    doubled: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.total < 0:
            raise ValueError("total must not be negative")
        self.doubled = self.total * 2


def test_constructor_may_refuse() -> None:
    assert deserialize(b'{"total":2,"doubled":9}', JSON, Checked).doubled == 4
    with pytest.raises(MessageBodyError, match="Checked refused its members: total must not be negative") as caught:
        deserialize(b'{"total":-1}', JSON, Checked)
    assert isinstance(caught.value.__cause__, ValueError)


@dataclass
class Unmappable:
    value: memoryview


@dataclass
class Unresolved:
    value: NoSuchType  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("target", "expected_error"),
    [
        (Unmappable, r"Unmappable\.value: nothing in JSON can be read as <class 'memoryview'>; use a dataclass"),
        (Unresolved, "type hints of Unresolved cannot be resolved .*NoSuchType"),
        (object.__class__, "nothing in JSON can be read as"),
        (list[range], "nothing in JSON can be read as <class 'range'>"),
        (type[int], r"nothing in JSON can be read as type\[int\]"),
    ],
)
def test_unmappable_target_is_refused(target: Any, expected_error: str) -> None:
    with pytest.raises(MessageTypeError, match=expected_error):
        deserialize(b'{"value":1}' if isinstance(target, type) else b"[1]", JSON, target)


def test_message_without_target_is_a_dict() -> None:
    found = deserialize(b'\xef\xbb\xbf {"total":9.90,"n":1,"none":null,"unknown":{"a":[1.5]}}', None)
    assert found == {"total": Decimal("9.90"), "n": 1, "none": None, "unknown": {"a": [Decimal("1.5")]}}
    assert str(found["total"]) == "9.90"
    assert serialize(found) == b'{"total":9.90,"n":1,"none":null,"unknown":{"a":[1.5]}}'


@pytest.mark.parametrize("target", [None, dict, play.Node])
def test_array_of_one_object_is_the_object(target: Any) -> None:
    expected = deserialize(b'{"name":"a"}', JSON, target)
    assert deserialize(b'[{"name":"a"}]', JSON, target) == expected
    with pytest.raises(MessageBodyError, match=r"expected an object.*, got an array of 2"):
        deserialize(b"[{},{}]", JSON, target)


def test_unknown_members_are_ignored() -> None:
    assert deserialize(b'{"a":1}', JSON, play.Ping) == play.Ping()


@pytest.mark.parametrize("content_type", [None, "", JSON, "text/json", "application/json; charset=utf-8", "application/x-python"])
def test_every_content_type_but_xml_is_json(content_type: str | None) -> None:
    assert deserialize(b'{"a":1}', content_type) == {"a": 1}


@pytest.mark.parametrize(
    ("body", "expected_error"),
    [
        (b"", "the body is empty; expected a JSON object"),
        (b"\xef\xbb\xbf", "the body is not JSON"),
        (b"null", "the body is null; expected an object"),
        (b" [null] ", "expected an object, got an array of 1"),
        (b"3", "expected an object, got the number 3"),
        (b'"x"', "expected an object, got 'x'"),
        (b"{", "the body is not JSON: Expecting property name"),
        (b"<Ping/>", "the body is not JSON: Expecting value.*; it starts with b'<Ping/>'"),
        ('{"a":1}'.encode("utf-16"), "the body is UTF-16 or UTF-32 text"),
        ('{"a":1}'.encode("utf-16-le"), "the body is UTF-16 or UTF-32 text"),
        ('{"a":1}'.encode("utf-32-be"), "the body is UTF-16 or UTF-32 text"),
        (b'{"a":"\xff"}', "the body is not UTF-8: invalid start byte at byte 6"),
        (b'{"a":NaN}', "a number that cannot be read: NaN is not JSON"),
        (b'{"a":-Infinity}', "-Infinity is not JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "a number that cannot be read"),
        (b'{"a":1e9999999999999999999999}', "a number that cannot be read|the body does not fit"),
        (b"[" * 200_000, "the body is nested too deeply"),
        (b'{"a":' * 200_000, "the body is nested too deeply"),
        (b'{"a":"\n"}', "the body is not JSON: Invalid control character"),
    ],
)
def test_unreadable_body_is_refused(body: bytes, expected_error: str) -> None:
    with pytest.raises(MessageBodyError, match=expected_error):
        deserialize(body, JSON)


def test_huge_number_is_refused() -> None:
    with pytest.raises(MessageBodyError, match=r"expected a whole number, got the number 1E\+999999999"):
        deserialize(b"[1e999999999]", JSON, list[int])
    assert deserialize(b"[1e3]", JSON, list[int]) == [1000]


def test_deeply_nested_dataclasses_are_read_or_refused() -> None:
    depth = 300
    body = b'{"name":"n","children":[' * depth + b"]}" * depth
    try:
        found = deserialize(body, JSON, play.Node)
    except MessageBodyError as error:
        assert "nested too deeply" in str(error)  # noqa: PT017 - Python decides how deep is too deep
    else:
        assert found.name == "n"


def test_memory_view_is_accepted_as_body() -> None:
    assert deserialize(memoryview(b'{"a":1}'), JSON) == {"a": 1}  # type: ignore[arg-type]


def test_body_of_64_mebibytes_is_read() -> None:
    text = "x" * (64 * 1024 * 1024)
    assert deserialize(serialize(play.Node(text)), JSON, play.Node).name == text


@fuzzed(150)
@given(
    st.builds(
        play.PlaceOrder,
        order_id=st.uuids(),
        customer=st.none() | st.text(alphabet=st.characters(codec="utf-8"), max_size=20),
        placed_at=st.none() | st.datetimes() | st.datetimes(timezones=st.just(UTC)),
        placed_at_offset=st.none(),
        patience=st.timedeltas(min_value=timedelta(days=-9000), max_value=timedelta(days=9000)),
        weight=st.floats(allow_nan=False, allow_infinity=False),
        points=st.integers(),
        signature=st.none() | st.binary(max_size=20),
        lines=st.lists(
            st.builds(
                play.OrderLine,
                sku=st.text(alphabet=st.characters(codec="utf-8"), max_size=9),
                price=st.none() | st.builds(play.Money, amount=st.decimals(allow_nan=False, allow_infinity=False)),
            ),
            max_size=3,
        ),
        labels=st.dictionaries(st.text(alphabet="ab_é", max_size=4), st.just("x"), max_size=3),
    ),
    st.sampled_from(["as_is", "pascal"]),
)
def test_any_order_is_read_unchanged(order: play.PlaceOrder, names: str) -> None:
    body = serialize(order, names)
    assert deserialize(body, JSON, play.PlaceOrder, names=names) == order


@fuzzed(150)
@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,0123456789eE.-nulltruefalse\\ud8', max_size=40).map(str.encode))
def test_any_bytes_are_a_dict_or_a_body_error(body: bytes) -> None:
    try:
        found = deserialize(body, JSON)
    except MessageBodyError:
        return
    assert isinstance(found, dict)
