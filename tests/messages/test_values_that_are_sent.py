"""Bodies are checked before they are written: the sender refuses values that do not fit the class of the message."""

from __future__ import annotations

import json
from dataclasses import InitVar, dataclass, field, make_dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import pytest
from django.db import models
from hypothesis import given, strategies as st

from sqlqueue_app.messages.errors import MessageBodyError
from sqlqueue_app.messages.serializers import deserialize, serialize

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]

T = TypeVar("T")


class Status(Enum):
    OPEN = 1
    PAID = 2


KEY = UUID(int=1)


class Address(TypedDict, total=False):
    city: str


class Pair(NamedTuple):
    name: str
    value: int


PAIR = Pair("x", 1)


@dataclass
class Line:
    sku: str
    quantity: int = 1


@dataclass
class Special(Line):
    discount: float = 0.5


@dataclass
class Page(Generic[T]):
    items: list[T]


@dataclass
class Order:
    order_id: str = "42"
    total: Decimal = Decimal("9.90")
    placed_at: datetime = datetime(2026, 11, 20, tzinfo=UTC)
    day: date = date(2026, 11, 20)
    patience: timedelta = timedelta(hours=1)
    weight: float = 1.5
    count: int = 3
    express: bool = False
    key: UUID = KEY
    status: Status = Status.OPEN
    raw: bytes = b""
    note: str | None = None
    mixed: int | str = 1
    kind: Literal["a", "b"] = "a"
    lines: list[Line] = field(default_factory=list)
    first: Line | None = None
    by_name: dict[str, Line] = field(default_factory=dict)
    by_number: dict[int, str] = field(default_factory=dict)
    pair: tuple[int, str] = (1, "x")
    tags: set[str] = field(default_factory=set)
    pages: Page[Line] | None = None
    named: Pair = PAIR
    address: Address = field(default_factory=lambda: Address(city="Ulm"))
    anything: Any = None
    plain: dict = field(default_factory=dict)


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)


def refusal(message: object, **arguments: Any) -> str:
    with pytest.raises(MessageBodyError) as caught:
        serialize(message, **arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"order_id": 42}, "order_id: expected str, got int (42)"),
        ({"order_id": None}, "order_id: expected str, got NoneType (None)"),
        ({"order_id": UUID(int=1).int}, "order_id: expected str, got int (1)"),
        ({"total": "much"}, "total: expected Decimal, got str ('much')"),
        ({"total": True}, "total: expected Decimal, got bool (True)"),
        ({"placed_at": "soon"}, "placed_at: expected datetime, got str ('soon')"),
        ({"placed_at": 5}, "placed_at: expected datetime, got int (5)"),
        ({"day": "tomorrow"}, "day: expected date, got str ('tomorrow')"),
        ({"patience": 60}, "patience: expected timedelta, got int (60)"),
        ({"weight": "1.5"}, "weight: expected float, got str ('1.5')"),
        ({"count": 1.5}, "count: expected int, got float (1.5)"),
        ({"count": "3"}, "count: expected int, got str ('3')"),
        ({"count": True}, "count: expected int, got bool (True)"),
        ({"express": 1}, "express: expected bool, got int (1)"),
        ({"key": "no key"}, "key: expected UUID, got str ('no key')"),
        ({"status": 3}, "status: expected Status, got int (3)"),
        ({"note": 5}, "note: expected str | None, got int (5)"),
        ({"mixed": 1.5}, "mixed: expected int | str, got float (1.5)"),
        ({"kind": "c"}, "kind: expected Literal['a', 'b'], got str ('c')"),
        ({"lines": "abc"}, "lines: expected list[tests.messages.test_values_that_are_sent.Line], got str ('abc')"),
        ({"lines": [Line("a"), Line(5)]}, "lines[1].sku: expected str, got int (5)"),  # type: ignore[arg-type]
        ({"lines": (Line("a", "2"),)}, "lines[0].quantity: expected a whole number, got '2'"),  # type: ignore[arg-type]
        ({"lines": [{"sku": 5}]}, "lines[0].sku: expected text, got the number 5"),
        ({"lines": [Pair("x", 1)]}, "lines[0]: expected Line, got Pair (Pair(name='x', value=1))"),
        ({"first": Line(5)}, "first.sku: expected str, got int (5)"),  # type: ignore[arg-type]
        ({"by_name": {"a": Line(5)}}, "by_name['a'].sku: expected text, got the number 5"),  # type: ignore[arg-type]
        ({"by_number": {"one": "x"}}, "by_number['one']: expected a whole number as key"),
        ({"pair": (1, "x", 2)}, "pair: expected tuple[int, str], got tuple ((1, 'x', 2))"),
        ({"pair": (1, 2)}, "pair[1]: expected text, got the number 2"),
        ({"tags": {1}}, "tags[0]: expected text, got the number 1"),
        ({"pages": Page([Line(5)])}, "pages.items[0].sku: expected str, got int (5)"),  # type: ignore[arg-type]
        ({"named": Pair(1, 1)}, "named.name: expected str, got int (1)"),  # type: ignore[arg-type]
        ({"address": {"city": 7}}, "address.city: expected text, got the number 7"),
        ({"plain": [1]}, "plain: expected dict, got list ([1])"),
        ({"order_id": list(range(1000))}, "order_id: expected str, got list ([0, 1, 2,"),
    ],
)
def test_value_of_another_type_is_refused_with_the_position(values: dict[str, Any], text: str) -> None:
    for arguments in ({}, {"names": "pascal"}, {"content_type": "text/xml", "types": ["Shop.Order"]}):
        found = refusal(Order(**values), **arguments)
        assert found.startswith(f"the body of Order cannot be written: {text}"), found
        assert len(found) < 300


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"total": 3, "weight": 3, "count": 3.0},
        {"total": "9.90", "placed_at": "2026-11-20T10:11:12Z", "key": str(UUID(int=1))},
        {"order_id": UUID(int=1), "day": datetime(2026, 11, 20, tzinfo=UTC), "status": 2},
        {"lines": (Line("a"), Special("b"), {"sku": "c"})},
        {"lines": [Line("a")], "first": Special("b"), "by_name": {"a": Line("a")}, "by_number": {1: "x"}},
        {"pair": [1, "x"], "tags": ["a"], "pages": Page([Line("a")]), "anything": object, "address": {"other": 5}},
        {"plain": {"a": [1, Line("x")]}, "raw": bytearray(b"x"), "note": "x", "mixed": "x"},
    ],
)
def test_convertible_value_is_sent(values: dict[str, Any]) -> None:
    values = {name: value for name, value in values.items() if value is not object}
    body = serialize(Order(**values))
    assert isinstance(deserialize(body, None, Order), Order)


@pytest.mark.parametrize(
    ("placed_at", "is_before"),
    [
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(minutes=19, seconds=32))), True),
        (datetime.max.replace(tzinfo=timezone(-timedelta(seconds=1))), False),
    ],
)
def test_time_beyond_the_calendar_in_utc_is_refused(placed_at: datetime, is_before: bool) -> None:
    year = "before year 1" if is_before else "after year 9999"
    for arguments in ({}, {"content_type": "text/xml", "types": ["Shop.Order"]}):
        found = refusal(Order(placed_at=placed_at), **arguments)
        assert found.startswith("the body of Order cannot be written: placed_at: the offset of "), found
        assert year in found


class Text(str):
    """Like SafeString of Django."""


def test_subclass_of_the_declared_type_is_accepted() -> None:
    assert serialize(Line(Text("a"))) == b'{"sku":"a","quantity":1}'


def test_message_that_contains_itself_is_refused() -> None:
    node = Node("a")
    node.children.append(node)
    assert "nested too deeply, or contains itself" in refusal(node)


def test_unreadable_annotations_are_not_checked() -> None:
    @dataclass
    class Unresolved:
        value: Unknown
        name: str

    @dataclass
    class Strange:
        value: object | complex
        text: Path = "x"  # type: ignore[name-defined]  # noqa: F821
        name: str = "x"

    assert serialize(Unresolved(1, "x")) == b'{"value":1,"name":"x"}'
    assert serialize(Strange(1)) == b'{"value":1,"text":"x","name":"x"}'


def test_check_runs_no_constructor_and_needs_no_argument() -> None:
    made = []

    @dataclass
    class Counted:
        seed: InitVar[int]
        name: str
        number: int = field(init=False, default=0)

        def __post_init__(self, seed: int) -> None:
            made.append(seed)

    assert serialize(Counted(1, "x")) == b'{"name":"x","number":0}'
    assert made == [1]
    wrong = Counted(1, "x")
    wrong.number = "much"  # type: ignore[assignment]
    assert "number: expected int, got str ('much')" in refusal(wrong)


# --- enums with values that JSON has no form of its own for --------------------------------------------------------------------


class Moon(date, models.Choices):
    LANDING = 1969, 7, 20
    LAST = 1972, 12, 11


class Answer(Enum):
    YES = True
    NO = False
    UNKNOWN = None


class Key(Enum):
    FIRST = UUID(int=1)
    RAW = b"\xff\x00"
    WAIT = timedelta(hours=1)
    POINT = (1, "x")
    RATE = 0.1
    LARGE = 1e22
    PRICE = Decimal("1.50")


class Mixed(Enum):
    DAY = date(2026, 11, 20)
    TEXT = "2026-11-20"


@dataclass
class Enums:
    moon: Moon = Moon.LANDING
    answer: Answer = Answer.YES
    key: Key = Key.FIRST
    mixed: Mixed = Mixed.TEXT
    moons: list[Moon] = field(default_factory=list)
    keys: dict[str, Key] = field(default_factory=dict)
    last: Key | None = None


@pytest.mark.parametrize(
    "message",
    [
        *[Enums(moon=moon, moons=[moon]) for moon in Moon],
        *[Enums(answer=answer) for answer in Answer],
        *[Enums(key=key, keys={"a": key}, last=key) for key in Key],
    ],
)
@pytest.mark.parametrize("arguments", [{}, {"content_type": "text/xml", "types": ["Shop.Enums"]}])
def test_enum_of_any_value_is_read_back(message: Enums, arguments: dict[str, Any]) -> None:
    found = deserialize(serialize(message, **arguments), arguments.get("content_type"), Enums)
    assert found == message


def test_enum_that_reads_as_another_member_is_refused() -> None:
    assert refusal(Enums(mixed=Mixed.DAY)).startswith(
        "the body of Enums cannot be written: mixed: Mixed.DAY is read back as Mixed.TEXT, which is written as the same value"
    )


def test_null_and_booleans_are_no_members_of_other_enums() -> None:
    for value in (None, True):
        with pytest.raises(MessageBodyError, match="status: expected a value or name of Status"):
            deserialize(serialize({"status": value}), None, Order)


# --- unions --------------------------------------------------------------------------------------------------------------------


@dataclass
class Card:
    number: str = ""


@dataclass
class Iban:
    iban: str = ""


@dataclass
class LongIban(Iban):
    bank: str = ""


class Grade(StrEnum):
    GOOD = "good"


@dataclass
class Twin:
    number: str = ""


FORMATS: list[dict[str, Any]] = [{}, {"content_type": "text/xml", "types": ["Shop.Choice"]}]
MOMENT = datetime(2026, 11, 20, 10, 11, tzinfo=UTC)
DAY = date(2026, 11, 20)


def choice_of(hint: Any) -> Any:
    return make_dataclass("Choice", [("by", hint)])


@pytest.mark.parametrize("arguments", FORMATS)
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Card | Iban, Iban("DE1")),
        (Card | Iban | None, Iban("DE1")),
        (Iban | LongIban, LongIban("DE1", "x")),
        (Iban | LongIban, Iban("DE1")),
        (Card | Iban, Card("1")),
        (date | datetime, MOMENT),
        (date | datetime, DAY),
        (datetime | date, DAY),
        (datetime | date | None, None),
        (float | int, 2**53 + 1),
        (float | int, 3),
        (int | float, 3.0),
        (int | float, 3.5),
        (int | Decimal, Decimal("3.0")),
        (int | Decimal, Decimal("3.5")),
        (list[int] | list[str], ["a"]),
        (list[int] | dict[str, int], {"a": 1}),
        (dict[str, Any] | list[Any], {"a": "1"}),
        (list | dict, ["a"]),
        (dict[str, int] | Card, Card("1")),
        (Literal["a"] | int, 5),
        (Status | str, Status.PAID),
        (Status | str, "later"),
        (int | Card, Card("1")),
    ],
)
def test_value_of_a_union_is_read_back(hint: Any, value: Any, arguments: dict[str, Any]) -> None:
    cls = choice_of(hint)
    found = deserialize(serialize(cls(value), **arguments), arguments.get("content_type"), cls).by
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (Card | Twin, Twin("1"), "Twin is read back as Card"),
        (bytes | str, "abcd", "str is read back as bytes"),
        (str | UUID, UUID(int=1), "UUID is read back as str"),
        (float | Decimal, Decimal("1.50"), "Decimal is read back as float"),
        (str | datetime, MOMENT, "datetime is read back as str"),
        (list[Card] | list[Iban], [Iban("DE1")], "list[tests.messages.test_values_that_are_sent.Iban] is read back as list["),
        (str | Grade, Grade.GOOD, "Grade is read back as str"),
        (dict | Card, Card("1"), "Card is read back as dict"),
        (Card | dict, {"number": "1"}, "dict is read back as Card"),
    ],
)
def test_value_of_a_union_that_is_read_as_another_is_refused(hint: Any, value: Any, text: str) -> None:
    assert f"cannot be written: by: {text}" in refusal(choice_of(hint)(value))


def test_value_inside_a_dictionary_or_tuple_that_is_read_as_another_is_refused() -> None:
    assert "written: by['a']: UUID is read back as str" in refusal(choice_of(dict[str, str | UUID])({"a": UUID(int=1)}))
    assert "written: by[1]: UUID is read back as str" in refusal(choice_of(tuple[int, str | UUID])((1, UUID(int=1))))
    assert "written: by: expected dict[str, int], got list" in refusal(choice_of(dict[str, int])([1]))
    listed = choice_of(dict[str, list[str] | str])
    assert deserialize(serialize(listed({"a": "x"})), None, listed).by == {"a": "x"}
    # XML has no form that tells a text from a list: a reader would get [].
    assert "written: by['a']: str is read back as list[str]" in refusal(
        listed({"a": "x"}), content_type="text/xml", types=["Shop.Choice"]
    )


def test_convertible_value_of_a_union_is_sent() -> None:
    for hint, value in [
        (int | Decimal, Decimal(5)),
        (Grade | str, "good"),
        (datetime | None, "2026-11-20T10:11:12Z"),
        (float | bool, 3),
        (Card | Twin, {"number": "1"}),
        (date | str, MOMENT),
        (str | int, Text("a")),
        (list[float] | str, [1]),
        (Card | None, None),
    ]:
        serialize(choice_of(hint)(value))


def test_misfit_inside_a_union_is_refused_with_its_position() -> None:
    assert "written: by.iban: expected str, got int (5)" in refusal(choice_of(Card | Iban)(Iban(5)))  # type: ignore[arg-type]
    assert "written: by: expected int | str, got float (1.5)" in refusal(choice_of(int | str)(1.5))


# --- the numbers of dictionaries ----------------------------------------------------------------------------------------------

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(max_size=3), NUMBERS | st.lists(NUMBERS) | st.dictionaries(st.text(max_size=3), NUMBERS)))
def test_dictionary_keeps_its_numbers(body: dict[str, Any]) -> None:
    found = deserialize(serialize(body), None)
    assert repr(found) == repr(body)


@dataclass
class Report:
    name: str = "a"
    rate: float = 0.1
    price: Decimal = Decimal("1.5")
    meta: dict = field(default_factory=dict)
    typed: dict[str, Any] = field(default_factory=dict)
    anything: Any = None
    rows: list = field(default_factory=list)
    floats: list[float] = field(default_factory=list)
    untyped: dict[str, list[Any]] = field(default_factory=dict)
    either: dict[str, Any] | str = ""


MIXED_NUMBERS: dict[str, Any] = {
    "f": 1.5,
    "whole": 1.0,
    "price": Decimal("19.90"),
    "tax": Decimal("0.1"),
    "n": 1,
    "deep": [0.1, {"f": 2.5}],
}


@pytest.mark.parametrize(
    "message",
    [
        Report(meta=MIXED_NUMBERS),
        Report(typed=MIXED_NUMBERS),
        Report(anything=[MIXED_NUMBERS]),
        Report(rows=[MIXED_NUMBERS]),
        Report(floats=[1.5], untyped={"a": [1.5, Decimal("1.5")]}),
        Report(either=MIXED_NUMBERS),
    ],
)
def test_dictionary_in_a_class_keeps_its_numbers(message: Report) -> None:
    found = deserialize(serialize(message), None, Report)
    assert repr(found) == repr(message)
    assert b'"rate":0.1,"price":1.5,' in serialize(message)


def test_class_reads_the_numbers_of_a_dictionary() -> None:
    body = serialize({"rate": 0.1, "price": 9.9, "typed": {"n": 2.0}, "anything": 1.5, "floats": [2, 1e22]})
    assert repr(deserialize(body, None, Report)) == repr(
        Report(rate=0.1, price=Decimal("9.9"), typed={"n": 2.0}, anything=1.5, floats=[2.0, 1e22])
    )
    assert deserialize(serialize({"keys": {"a": 0.1, "b": 1.5}}), None, Enums).keys == {"a": Key.RATE, "b": Key.PRICE}


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimal_keeps_every_digit(value: Decimal) -> None:
    body = serialize({"value": value})
    found = deserialize(body, None)["value"]
    assert not isinstance(found, float)
    assert found == value
    assert serialize({"value": found}) == body


def test_floats_and_decimals_are_kept_apart() -> None:
    body: dict[str, Any] = {
        "one": 1.0,
        "rate": 0.1,
        "tiny": 1e-300,
        "none": -0.0,
        "price": Decimal("19.90"),
        "tax": Decimal("0.1"),
        "n": 1,
    }
    found = deserialize(serialize(body), None)
    assert {name: (type(value), repr(value)) for name, value in found.items()} == {
        name: (type(value), repr(value)) for name, value in body.items()
    }
    assert json.loads(serialize(body)) == {name: float(value) for name, value in body.items()}


@pytest.mark.parametrize("text", ["1.5", "1E+2", "1.50e0", "15e-1", "1e999", "0.1000000000000000055511151231257827e0"])
def test_numbers_of_other_writers_stay_exact(text: str) -> None:
    found = deserialize(f'{{"value":{text}}}'.encode(), None)["value"]
    assert (type(found), found) == (Decimal, Decimal(text))


def test_class_reads_floats_of_a_dictionary_and_writes_its_own_form() -> None:
    assert deserialize(serialize({"sku": "a", "quantity": 2.0, "discount": 1}), None, Special) == Special("a", 2, 1.0)
    assert deserialize(serialize({"order_id": "1", "total": 9.9, "weight": 0.1}), None, Order).total == Decimal("9.9")
    assert serialize(Special("a", 1, 0.5)) == b'{"sku":"a","quantity":1,"discount":0.5}'


@dataclass
class Prices:
    by_day: dict[date, int]
    by_instant: dict[datetime, int]
    by_duration: dict[timedelta, int]
    by_amount: dict[Decimal, int]


@pytest.mark.parametrize("content_type", ["application/json", "text/xml"])
def test_keys_that_are_dates_durations_and_amounts_are_read_back(content_type: str) -> None:
    prices = Prices(
        {date(2026, 11, 20): 1}, {datetime(2026, 11, 20, 10, tzinfo=UTC): 2}, {timedelta(days=1): 3}, {Decimal("1.50"): 4}
    )
    assert deserialize(serialize(prices, content_type=content_type, types=["Test.Prices"]), content_type, Prices) == prices


def test_keys_have_the_form_of_values() -> None:
    keys = {date(2026, 11, 20): 1, timedelta(days=1): 2, Decimal("1E+2"): 3}
    assert serialize(keys) == b'{"2026-11-20":1,"1.00:00:00":2,"100":3}'
