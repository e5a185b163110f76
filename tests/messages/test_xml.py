"""XML bodies: every recorded one read and written exactly, and rules that no recorded body shows."""

from __future__ import annotations

import base64
import enum
import math
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.messages import read_headers
from sqlqueue_app.messages.errors import MessageBodyError
from sqlqueue_app.messages.headers import CONTENT_TYPE, ENCLOSED_MESSAGE_TYPES
from sqlqueue_app.messages.serializers import XML_CONTENT_TYPE, deserialize, serialize
from sqlqueue_app.messages.types import resolve_enclosed
from sqlqueue_app.messages.xml import messages_in
from tests.support import play
from tests.support.golden import rows

ORDER = UUID("00000000-0000-0000-0000-000000000001")


def recorded() -> list[tuple[list[str], bytes]]:
    found = []
    for row in rows("xml"):
        headers = read_headers(row.get("headers"))
        if headers.get(CONTENT_TYPE) == XML_CONTENT_TYPE and row["body_base64"]:
            types = resolve_enclosed(headers.get(ENCLOSED_MESSAGE_TYPES))
            found.append((types, base64.b64decode(row["body_base64"])))
    return found


def read(text: str, target: Any = None) -> Any:
    return deserialize(text.encode(), XML_CONTENT_TYPE, target)


def written(message: object, *types: str, names: str = "as_is") -> str:
    """Return the content of the root element."""
    text = serialize(message, names, XML_CONTENT_TYPE, types or ("Shop.Thing",)).decode()
    return text.partition('">')[2].rpartition("</")[0]


def test_every_recorded_body_is_read_and_written_exactly() -> None:
    bodies = recorded()
    typed = [(types, play.CLASSES[types[0]], body) for types, body in bodies if types[0] in play.CLASSES]
    assert len(bodies) > 40
    assert {cls for _, cls, _ in typed} == set(play.CLASSES.values())
    for types, cls, body in typed:
        message = deserialize(body, XML_CONTENT_TYPE, cls)
        if isinstance(message, play.PlaceOrder):
            assert message.labels == {}
            message.labels = None  # as the sender had it
        again = serialize(message, "pascal", XML_CONTENT_TYPE, types).decode()
        if cls is not play.OrderShippedFast:  # .NET writes own members before inherited ones; readers ignore the order
            assert again == body.decode().replace("13:14:15.678Z", "13:14:15.678000Z")


def test_every_recorded_body_names_its_types() -> None:
    for types, body in recorded():
        (message,) = messages_in(body)
        assert set(types) <= set(message.type_names)


def test_every_recorded_body_is_readable_without_a_class() -> None:
    for _, body in recorded():
        assert isinstance(deserialize(body, XML_CONTENT_TYPE), dict)


def test_recorded_order_is_read_completely() -> None:
    body = next(body for types, body in recorded() if types == ["Shop.Messages.PlaceOrder"])
    order = deserialize(body, XML_CONTENT_TYPE, play.PlaceOrder)
    assert order.patience == timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)
    assert (order.status, order.previous_status, order.express) == (play.OrderStatus.OnHold, None, True)
    assert order.lines == [play.OrderLine("A-1", 2, play.Money(Decimal("12.3400"), "EUR")), play.OrderLine("<B&2>", 1)]
    assert order.signature == b"\0\1\2\xfd\xfe\xff"
    assert order.note == 'line one\nline "two" <three> & four'


@dataclass
class Nullable:
    first: str
    middle: str | None
    raw: bytes | None
    items: list[int] | None
    inner: Inner | None
    count: int | None
    anything: Any
    kind: Literal["a", None]
    either: str | int | None
    by_name: dict[str, str | None] | None
    typed: NullableKey | None


class NullableKey(TypedDict):
    note: str | None
    extra: NotRequired[str | None]


NO_VALUES = (None,) * 10


@pytest.mark.parametrize("names", ["as_is", "pascal"])
@pytest.mark.parametrize("message", [Nullable("a", *NO_VALUES), Nullable("a", *NO_VALUES[:-1], NullableKey(note=None))])
def test_null_reference_without_default_is_read(message: Nullable, names: str) -> None:
    body = serialize(message, names, XML_CONTENT_TYPE, ["Shop.Nullable"])
    assert "iddle" not in body.decode()
    assert deserialize(body, XML_CONTENT_TYPE, Nullable, names) == message


Price = Annotated[Decimal | None, "in euros"]


@dataclass
class Priced:
    price: Price | None
    number_or_price: Price | int | None


@pytest.mark.parametrize("message", [Priced(Decimal("9.90"), 5), Priced(None, None), Priced(Decimal(1), Decimal("0.5"))])
@pytest.mark.parametrize("content_type", [XML_CONTENT_TYPE, "application/json"])
def test_union_in_a_named_hint_is_read(message: Priced, content_type: str) -> None:
    body = serialize(message, content_type=content_type, types=["Shop.Priced"])
    assert deserialize(body, content_type, Priced) == message


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


@pytest.mark.parametrize(("rights", "text"), [(3, "READ, WRITE"), (0, "0"), (5, "5"), (8, "8")])
def test_flags_are_written_by_name_unless_a_bit_has_none(rights: int, text: str) -> None:
    assert written({"a": Rights(rights)}) == f"<a>{text}</a>"
    assert read(f"<H><value>{text}</value></H>", make_dataclass("H", [("value", Rights)])).value == Rights(rights)


def test_missing_value_without_default_is_refused() -> None:
    with pytest.raises(MessageBodyError, match="Nullable needs the member 'first', which has no default"):
        read("<Nullable><Middle>x</Middle></Nullable>", Nullable)
    assert read("<Nullable><First>a</First><MIDDLE>b</MIDDLE></Nullable>", Nullable).middle == "b"


class Colors(enum.Flag):
    Red = 1
    Green = 2


class Size(enum.StrEnum):
    SMALL = "small"


@dataclass
class Inner:
    name: str | None = None


@dataclass
class Everything:
    flag: bool | None = None
    count: int | None = None
    ratio: float | None = None
    amount: Decimal | None = None
    at: datetime | None = None
    day: date | None = None
    clock: time | None = None
    wait: timedelta | None = None
    ident: UUID | None = None
    raw: bytes | None = None
    text: str | None = None
    colors: Colors | None = None
    size: Size | None = None
    inner: Inner | None = None
    numbers: list[int | None] = field(default_factory=list)
    pair: tuple[int, str] | None = None
    unique: frozenset[str] = frozenset()
    labels: dict[str, Decimal] = field(default_factory=dict)
    kind: Literal["a", 7] | None = None
    either: int | Inner | None = None


FULL = Everything(
    True, -5, 0.1, Decimal("1.50"), datetime(2026, 1, 2, 3, 4, 5, 600, UTC), date(2026, 1, 2), time(3, 4), timedelta(-1), ORDER,
    b"", "<&>\r\n\"' ", Colors.Red | Colors.Green, Size.SMALL, Inner("x"), [1, None, 2**40], (1, "b"), frozenset({"s"}),
    {"a": Decimal(1)}, 7, Inner(),
)  # fmt: skip


@pytest.mark.parametrize("names", ["as_is", "pascal"])
@pytest.mark.parametrize("message", [Everything(), FULL])
def test_written_message_is_read_unchanged(message: Everything, names: str) -> None:
    body = serialize(message, names, XML_CONTENT_TYPE, ["Shop.Everything"])
    assert deserialize(body, XML_CONTENT_TYPE, Everything, names) == message


@given(
    st.builds(
        Everything, text=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"))
    )
)
def test_any_text_is_kept(message: Everything) -> None:
    body = serialize(message, "as_is", XML_CONTENT_TYPE, ["Shop.Everything"])
    assert deserialize(body, XML_CONTENT_TYPE, Everything) == message


@given(st.text() | st.binary())
def test_any_body_is_read_or_refused(body: str | bytes) -> None:
    raw = body if isinstance(body, bytes) else f"<a>{body}</a>".encode("utf-8", "surrogatepass")
    try:
        deserialize(raw, XML_CONTENT_TYPE, Everything)
    except MessageBodyError:
        pass


def test_root_names_the_type_and_its_bases() -> None:
    body = serialize(Inner("x"), "pascal", XML_CONTENT_TYPE, ["Shop.Messages.Outer+Inner", "Shop.IBase", "Shop.IOther"]).decode()
    assert body == (
        '<?xml version="1.0"?><Inner xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
        'xmlns:xsd="http://www.w3.org/2001/XMLSchema" xmlns:baseType="Shop.IBase" xmlns:baseType1="Shop.IOther" '
        'xmlns="http://tempuri.net/Shop.Messages"><Name>x</Name></Inner>'
    )


@pytest.mark.parametrize(
    ("name", "root"),
    [
        ("Shop.Envelope`1[[Shop.Messages.Order]]", "EnvelopeOfOrder"),
        ("Shop.Outer+Pair`2[[System.Int32],[Shop.Envelope`1[[Shop.Outer+Inner]]]]", "PairOfInt32AndEnvelopeOfInner"),
    ],
)
def test_root_of_a_generic_type_names_its_arguments(name: str, root: str) -> None:
    body = serialize(Inner("x"), "pascal", XML_CONTENT_TYPE, [name])
    assert body.startswith(f'<?xml version="1.0"?><{root} xmlns:xsi='.encode())
    assert body.endswith(f' xmlns="http://tempuri.net/Shop"><Name>x</Name></{root}>'.encode())
    assert deserialize(body, XML_CONTENT_TYPE, Inner) == Inner("x")


@pytest.mark.parametrize("name", ["Shop.Envelope`1[[System.Byte[]]]", "Shop.Envelope`1", "Shop.Order[]"])
def test_type_without_a_name_in_xml_is_refused(name: str) -> None:
    with pytest.raises(MessageBodyError, match="cannot be the name of an XML element"):
        serialize(Inner("x"), "pascal", XML_CONTENT_TYPE, [name])


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Inner(), ""),
        (Inner(""), "<name></name>"),
        (
            {"inner": Inner(), "none": None, "list": [], "texts": ["a"]},
            "<inner>\n</inner><list>\n</list><texts><String>a</String></texts>",
        ),
        (
            {"wait": timedelta(hours=1), "size": Size.SMALL, "n": play.OrderStatus.OnHold},
            "<wait>PT1H</wait><size>small</size><n>OnHold</n>",
        ),
        ({"a": {"b": 1}, "c": [{"d": True}]}, "<a><b>1</b></a><c><Dictionary><d>true</d></Dictionary></c>"),
    ],
)
def test_values_have_the_form_of_net(message: Any, text: str) -> None:
    assert written(message) == text


def test_null_values_are_written_and_null_references_omitted() -> None:
    assert written(Everything(labels={}, numbers=[])).startswith('<flag xsi:nil="true"></flag><count xsi:nil="true"></count>')
    assert "inner" not in written(Everything())
    assert "raw" not in written(Everything())


def test_pairs_of_a_dictionary_are_elements() -> None:
    assert read("<a><Labels><entry><key>x</key><VALUE>1</VALUE></entry></Labels></a>", Everything).labels == {"x": 1}
    text = written(Everything(labels={"a": Decimal("1.0")}))
    entry = "<KeyValuePairOfStringAndDecimal><Key>a</Key><Value>1.0</Value></KeyValuePairOfStringAndDecimal>"
    assert f"<labels>{entry}</labels>" in text


class Typed(TypedDict):
    order_id: UUID
    quantity: NotRequired[int]


@dataclass
class Holder:
    anything: Any = None
    typed: Typed | None = None


def test_member_of_any_type_and_typed_dict_are_read() -> None:
    found = read(
        f"<Holder><Anything>5</Anything><Typed><quantity>5</quantity><order_id>{ORDER}</order_id></Typed></Holder>", Holder
    )
    assert (found.anything, found.typed) == ("5", {"quantity": 5, "order_id": ORDER})
    found = read('<Holder xmlns:int32="Int32"><int32:Anything>5</int32:Anything></Holder>', Holder)
    assert found.anything == 5


def test_body_without_class_gives_text_and_lists() -> None:
    body = '<a xmlns:x="http://www.w3.org/2001/XMLSchema-instance"><b>1</b><c>x</c><c>y</c><d x:nil="true"/><e><f/></e></a>'
    assert read(body) == {"b": "1", "c": ["x", "y"], "d": None, "e": {"f": ""}}
    assert read("<a/>") == {}


@pytest.mark.parametrize(
    "text",
    [
        "<Inner><name>x</name></Inner>",
        "<Messages><Inner><Name>x</Name></Inner></Messages>",
        '<messages xmlns="http://tempuri.net/Shop">\n <Inner>\n <NAME>x</NAME><other/>\n</Inner>\n</messages>',
    ],
)
def test_any_spelling_and_a_messages_root_are_read(text: str) -> None:
    assert read(text, Inner) == Inner("x")


def test_special_floats_have_the_form_of_net() -> None:
    assert read("<a><Ratio>INF</Ratio></a>", Everything).ratio == float("inf")
    assert read("<a><Ratio> -INF </Ratio></a>", Everything).ratio == float("-inf")
    assert math.isnan(read("<a><Ratio>NaN</Ratio></a>", Everything).ratio)


def test_comments_and_instructions_are_ignored() -> None:
    body = "<!-- 1 --><?pi?><Inner><!-- 2 --><Name>a<!-- 3 --><![CDATA[<b&>]]>&lt;</Name><?pi?></Inner><!-- 4 -->"
    assert read(body, Inner) == Inner("a<b&><")
    assert read('<m:Inner xmlns:m="http://tempuri.net/Shop"><m:Name>x</m:Name></m:Inner>', Inner) == Inner("x")


def test_references_to_control_characters_are_read_as_net_writes_them() -> None:
    body = "<Inner><Name>a&#x1;&#31;&#x0;&#x9;&lt;&#x41;\U000f1234</Name></Inner>"
    assert read(body, Inner) == Inner("a\1\x1f\0\t<A\U000f1234")
    for refused in ("&#xD800;", "&#x1;&#xFFFE;", "&#x1;<![CDATA[&#x1;]]>", "\1"):
        with pytest.raises(MessageBodyError, match="the body is not XML"):
            read(f"<Inner><Name>{refused}</Name></Inner>", Inner)


def test_every_encoding_is_read() -> None:
    text = "<Inner><Name>é</Name></Inner>"
    latin = f'<?xml version="1.0" encoding="iso-8859-1"?>{text}'.encode("latin-1")
    for body in (text.encode(), text.encode("utf-8-sig"), text.encode("utf-16"), latin):
        assert deserialize(body, "application/xml; charset=any", Inner) == Inner("é")


@pytest.mark.parametrize(
    ("text", "expected_error"),
    [
        ("", "the body is empty"),
        ("no", "the body is not XML"),
        ("<a>", "the body is not XML"),
        ('<!DOCTYPE a [<!ENTITY e "x">]><a>&e;</a>', "document type"),
        ("<a>&e;</a>", "not XML"),
        ("<x:a/>", "not XML"),
        ('<?xml version="1.0" encoding="klingon"?><a/>', "encoding"),
        ('<?xml version="1.0" encoding="shift_jis"?><a/>', "encoding that cannot be read: multi-byte encodings are not supported"),
        (f'<?xml version="1.0" encoding="{"x" * 9000}"?><a/>', "^.{1,300}$"),
        ("<a>" * 200 + "</a>" * 200, "nested too deeply"),
        ("<Messages><a/><a/></Messages>", "holds 2 messages"),
        ("<Messages/>", "holds 0 messages"),
        ("<a><Count>x</Count></a>", "count: expected a whole number, got 'x'"),
        ("<a><Numbers><Int32>1</Int32><Int32>x</Int32></Numbers></a>", r"numbers\[1\]: expected a whole number, got 'x'"),
        ("<a><Count><b>1</b></Count></a>", "count: expected a whole number, got an object"),
        ("<a><Labels><e><Value>1</Value></e></Labels></a>", "an entry with Key and Value, got the element 'e'"),
        ("<a><Count>1</Count><Count>2</Count></a>", "count: expected a whole number, got an array of 2"),
        ("<a><Ratio>sNaN</Ratio></a>", "ratio: expected a number that fits a float, got 'sNaN'"),
        ("<a><Amount>INF</Amount></a>", "amount: expected a decimal number, got the number Infinity"),
    ],
)
def test_misfitting_element_is_refused_with_the_position(text: str, expected_error: str) -> None:
    with pytest.raises(MessageBodyError, match=expected_error):
        read(text, Everything)


@dataclass
class Choice:
    either: int | bool


def test_non_number_fits_no_alternative() -> None:
    with pytest.raises(MessageBodyError, match="either: expected int or bool, got 'sNaN'"):
        read("<a xmlns:x='Decimal'><x:Either>sNaN</x:Either></a>", Choice)


@pytest.mark.parametrize(
    ("message", "expected_error"),
    [
        ({"a": "\x00"}, r"\['a'\]: XML cannot hold the character"),
        ({"a b": 1}, "cannot be the name of an XML element"),
        ({"¹": 1}, "cannot be the name of an XML element"),
        ({1: 1}, "the key 1 is int; expected str"),
        ({"a": float("nan")}, "a body cannot contain the number nan"),
        ({"a": [object()]}, r"\['a'\]\[0\]|\[0\]\['a'\]|object cannot be written as XML"),
        ({"a": timedelta.max}, "longer than .NET can hold"),
        ([1], "list cannot be written as XML"),
    ],
)
def test_unwritable_value_is_refused_with_the_position(message: Any, expected_error: str) -> None:
    with pytest.raises(MessageBodyError, match=expected_error):
        written(message)


def test_message_that_contains_itself_cannot_be_written() -> None:
    message: dict[str, Any] = {}
    message["a"] = message
    with pytest.raises(MessageBodyError, match="nested too deeply, or contains itself"):
        written(message)
    with pytest.raises(MessageBodyError, match="XML needs a message type"):
        serialize({}, "as_is", XML_CONTENT_TYPE)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 7


@dataclass
class Numbers:
    plain: int = 1
    optional: int | None = None
    several: list[int] = field(default_factory=list)
    by_name: dict[str, int] = field(default_factory=dict)
    by_number: dict[int, str] = field(default_factory=dict)
    ratio: float = 0.5
    either: int | str = 1
    level: Level = Level.LOW
    levels: list[Level] = field(default_factory=list)
    flag: Literal[True] = True
    rest: list = field(default_factory=list)
    inner: list[Inner | None] = field(default_factory=list)
    anything: Any = None


@pytest.mark.parametrize(
    "message",
    [
        Numbers(plain=Level.HIGH),
        Numbers(optional=Level.HIGH),
        Numbers(several=[Level.HIGH, 2]),
        Numbers(by_name={"a": Level.HIGH}),
        Numbers(by_number={Level.HIGH: "x"}),
        Numbers(ratio=Level.HIGH),
        Numbers(either=Level.HIGH),
        Numbers(level=Level.HIGH, levels=[Level.HIGH]),
        Numbers(plain=10**45),
        Numbers(rest=[None, "x", None]),
        Numbers(inner=[None, Inner("x"), Inner()]),
    ],
)
def test_value_is_written_in_the_form_of_its_annotation(message: Numbers) -> None:
    body = serialize(message, "as_is", XML_CONTENT_TYPE, ["Shop.Numbers"])
    assert deserialize(body, XML_CONTENT_TYPE, Numbers) == message


def test_enum_keeps_its_name_where_no_number_is_declared() -> None:
    text = written(Numbers(level=Level.HIGH, plain=Level.HIGH, anything=Level.HIGH))
    assert "<level>HIGH</level>" in text
    assert "<plain>7</plain>" in text
    assert "<anything>HIGH</anything>" in text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Numbers(plain=1.0), r"plain: expected int, got float \(1\.0\)"),  # type: ignore[arg-type]
        (Numbers(several=[1.0]), r"several\[0\]: expected int, got float \(1\.0\)"),  # type: ignore[list-item]
        (Numbers(by_name={"a": 1.0}), r"by_name\['a'\]: expected a whole number, got '1\.0'"),  # type: ignore[dict-item]
        (make_dataclass("Choice", [("by", str | int)])(5), "by: int is read back as str"),
        (make_dataclass("Choice", [("by", int | str)])("5"), "by: str is read back as int"),
    ],
)
def test_value_that_cannot_be_read_from_xml_is_refused(message: Any, text: str) -> None:
    serialize(message)
    with pytest.raises(MessageBodyError, match=f"cannot be written: {text}"):
        serialize(message, "as_is", XML_CONTENT_TYPE, ["Shop.Numbers"])
