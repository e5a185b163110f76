"""Classes of every kind as messages: reading returns what was written, in JSON and XML."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, field
from decimal import Decimal
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import pytest
from pydantic import BaseModel

from sqlqueue_app.messages.errors import MessageBodyError
from sqlqueue_app.messages.serializers import JSON_CONTENT_TYPE, XML_CONTENT_TYPE, deserialize, serialize
from sqlqueue_app.messages.type_hints import check_mappable

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Line:
    sku: str
    price: Decimal = Decimal(0)


@dataclass
class ByName:
    order_id: int
    _: KW_ONLY
    note: str = ""


@dataclass
class Computed:
    quantity: int
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total = self.quantity * 2


@dataclass
class Seeded:
    quantity: int
    factor: InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self.quantity *= factor


@dataclass
class Page(Generic[T]):
    items: list[T]
    first: T | None = None


@dataclass
class Sorted(Page[T], Generic[T, U]):
    by: U | None = None


@dataclass
class Lines(Page[Line]):
    count: int = 0


@dataclass
class Book:
    page: Page[Line]
    dates: Page[Decimal] | None = None
    words: Sorted[str, Line] | None = None
    pages: list[Page[int]] = field(default_factory=list)


class Pair(NamedTuple):
    left: int
    right: Line | None = None


@dataclass
class Pairs:
    pair: Pair
    more: list[Pair]
    maybe: list[Line | None] = field(default_factory=list)
    texts: list[str | None] = field(default_factory=list)


@dataclass
class Names:
    URL: str
    order_id2: int
    _private: int
    class_: str
    größe: int = 0


class Chapter(TypedDict, Generic[T]):
    value: T


@dataclass
class Chapters:
    chapters: list[Chapter[Line]]


class Box(BaseModel, Generic[T]):
    value: T
    others: list[T] = []


class Boxes(BaseModel):
    box: Box[Decimal]


MESSAGES = [
    Line("a", Decimal("1.50")),
    ByName(1, note="n"),
    Computed(3),
    Seeded(3),
    Lines([Line("a")], Line("b"), 2),
    Book(Page([Line("a")], Line("b"))),
    Book(Page([]), Page([Decimal("1.10")], Decimal(2)), Sorted(["x"], "y", Line("z")), [Page([1], 2), Page([])]),
    Pairs(Pair(1, Line("a")), [Pair(2)], [Line("b"), None], ["a", None, ""]),
    Names("u", 1, 2, "c", 3),
    Chapters([{"value": Line("a")}]),
    Boxes(box=Box(value=Decimal("1.10"), others=[Decimal(2)])),
]


@pytest.mark.parametrize("content_type", [JSON_CONTENT_TYPE, XML_CONTENT_TYPE])
@pytest.mark.parametrize("names", ["as_is", "pascal"])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_written_message_is_read_unchanged(message: Any, names: str, content_type: str) -> None:
    cls = type(message)
    check_mappable(cls)
    wanted = Seeded(message.quantity) if isinstance(message, Seeded) else message
    assert deserialize(serialize(message, names, content_type, ["Test.Thing"]), content_type, cls, names) == wanted


def test_constructor_only_argument_is_read_but_not_written() -> None:
    assert serialize(Seeded(3)) == b'{"quantity":6}'
    assert deserialize(b'{"Quantity":6,"Factor":5}', None, Seeded).quantity == 30


def test_alias_of_a_class_is_a_valid_target() -> None:
    assert deserialize(b'[{"Items":[{"Sku":"a"}]}]', None, Page[Line]) == Page([Line("a")])
    with pytest.raises(MessageBodyError, match=r"page\.items\[0\]: Line needs the member 'sku'"):
        deserialize(b'{"page":{"items":[{}]}}', None, Book)


def test_unbound_type_variable_accepts_any_value() -> None:
    assert deserialize(b'{"items":[1,"x"]}', None, Page) == Page([1, "x"])


@dataclass
class Values:
    count: int = 5
    flag: bool = True
    kind: Literal["a", "b"] = "a"
    text: str = "default"
    raw: bytes = b"default"
    items: list[int] = field(default_factory=lambda: [1])
    line: Line | None = Line("default")


@pytest.mark.parametrize("form", ["<{0}></{0}>", "<{0}/>", '<{0} xsi:nil="true"/>'])
def test_empty_xml_element_keeps_the_default_or_is_an_empty_text(form: str) -> None:
    members = "".join(form.format(name) for name in ("Count", "Flag", "Text", "Raw", "Items", "Line"))
    body = f'<Values xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">{members}</Values>'
    assert deserialize(body.encode(), XML_CONTENT_TYPE, Values) == Values(text="", raw=b"", items=[], line=None)


def test_empty_xml_element_of_a_required_member_is_refused() -> None:
    with pytest.raises(MessageBodyError, match="quantity: expected a whole number, got ''"):
        deserialize(b"<Computed><Quantity/></Computed>", XML_CONTENT_TYPE, Computed)
