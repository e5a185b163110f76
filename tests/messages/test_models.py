"""TypedDicts and Pydantic models as message types, in JSON and XML."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any, NotRequired, TypedDict
from uuid import UUID

import pytest
from pydantic import AliasChoices, BaseModel, Field, NonNegativeInt, PositiveInt, RootModel

from sqlqueue_app.messages.errors import MessageBodyError
from sqlqueue_app.messages.serializers import JSON_CONTENT_TYPE, XML_CONTENT_TYPE, deserialize, serialize
from sqlqueue_app.messages.type_hints import check_mappable

ORDER = UUID("00000000-0000-0000-0000-000000000001")
CONTENT_TYPES = [JSON_CONTENT_TYPE, XML_CONTENT_TYPE]


class Status(IntEnum):
    Open = 0
    OnHold = 7


class LineDict(TypedDict):
    sku: str
    price: NotRequired[Decimal]


class OrderDict(TypedDict):
    order_id: UUID
    status: NotRequired[Status]
    lines: list[LineDict]


class Line(BaseModel):
    sku: str
    quantity: PositiveInt = 1


class Order(BaseModel):
    order_id: UUID
    total: Decimal = Decimal(0)
    status: Status = Status.Open
    wait: timedelta | None = None
    lines: list[Line] = []
    from_: str = Field("", alias="from")
    score: Annotated[int, Field(le=10)] | None = None


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
@pytest.mark.parametrize("names", ["as_is", "pascal"])
def test_typed_dict_is_read_with_the_types_of_its_keys(content_type: str, names: str) -> None:
    check_mappable(OrderDict)
    wire = {"OrderId": ORDER, "Status": Status.OnHold, "Lines": [{"sku": "a", "PRICE": Decimal("1.50")}], "Unknown": 1}
    body = serialize(wire, names, content_type, ["Shop.OrderDict"])

    found = deserialize(body, content_type, OrderDict)

    assert found == {"order_id": ORDER, "status": Status.OnHold, "lines": [{"sku": "a", "price": Decimal("1.50")}]}
    assert type(found["status"]) is Status


@pytest.mark.parametrize(
    ("body", "expected_error"),
    [
        (b'{"lines": []}', "OrderDict needs the member 'order_id'"),
        (b'{"order_id": "x", "lines": []}', "order_id: expected a GUID, got 'x'"),
        (b'{"order_id": "00000000-0000-0000-0000-000000000001", "lines": [{}]}', r"lines\[0\]: LineDict needs the member 'sku'"),
    ],
)
def test_misfitting_typed_dict_is_refused_with_the_position(body: bytes, expected_error: str) -> None:
    with pytest.raises(MessageBodyError, match=expected_error):
        deserialize(body, JSON_CONTENT_TYPE, OrderDict)


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
@pytest.mark.parametrize("names", ["as_is", "pascal"])
def test_model_is_written_and_read(content_type: str, names: str) -> None:
    check_mappable(Order)
    values: dict[str, Any] = {"order_id": ORDER, "wait": timedelta(days=1, seconds=2), "from": "here"}
    message = Order(**values, total=Decimal("9.90"), status=Status.OnHold, lines=[Line(sku="a", quantity=2)], score=3)
    least = Order.model_validate({"order_id": ORDER, "from": ""})

    body = serialize(message, names, content_type, ["Shop.Order"])

    assert deserialize(body, content_type, Order, names) == message
    assert deserialize(serialize(least, names, content_type, ["Shop.Order"]), content_type, Order, names) == least


@pytest.mark.parametrize(
    ("body", "expected_error"),
    [
        (b'{"OrderId": "x"}', "order_id: expected a GUID, got 'x'"),
        (b"{}", "Order needs the member 'order_id'"),
        (b'{"order_id": "00000000-0000-0000-0000-000000000001", "score": 11}', "less than or equal to 10"),
        (
            b'{"order_id": "00000000-0000-0000-0000-000000000001", "lines": [{"sku": "a", "quantity": 0}]}',
            r"lines\[0\]: .*greater than 0",
        ),
    ],
)
def test_refusal_of_a_model_has_the_position(body: bytes, expected_error: str) -> None:
    with pytest.raises(MessageBodyError, match=f"(?s){expected_error}"):
        deserialize(body, JSON_CONTENT_TYPE, Order)


class Tags(RootModel[list[str]]):
    pass


class Tagged(BaseModel):
    tags: Tags
    number: int = Field(validation_alias=AliasChoices("no", "num"))


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_root_model_and_choices_of_aliases_are_read_as_written(content_type: str) -> None:
    message = Tagged.model_validate({"tags": ["a", "b"], "num": 5})

    assert deserialize(serialize(message, "as_is", content_type, ["Shop.Tagged"]), content_type, Tagged) == message


class Numbered(BaseModel):
    order_id: str = Field(alias="orderNumber")
    weight: int = Field(1, validation_alias=AliasChoices("kg", "Kilograms"))
    note: str | None = Field(alias="remark")
    id: int = 0


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON_CONTENT_TYPE, b'{"orderNumber": "7", "Kilograms": 3, "remark": "x", "Id": 5}'),
        (JSON_CONTENT_TYPE, b'{"OrderNumber": "7", "KG": 3, "Remark": "x", "Id": 5}'),
        (JSON_CONTENT_TYPE, b'{"OrderId": "7", "weight": 3, "note": "x", "Id": 5}'),
        (XML_CONTENT_TYPE, b"<N><OrderNumber>7</OrderNumber><Kilograms>3</Kilograms><Remark>x</Remark><Id>5</Id></N>"),
    ],
)
def test_members_of_a_model_are_found_by_their_aliases(content_type: str, body: bytes) -> None:
    """Peers write the names that the model declares; sqlqueue writes the names of the fields."""
    expected = Numbered.model_validate({"orderNumber": "7", "kg": 3, "remark": "x", "id": 5})

    assert deserialize(body, content_type, Numbered) == expected
    assert deserialize(serialize(expected, "pascal", content_type, ["N"]), content_type, Numbered) == expected


def test_alternative_of_a_union_is_known_by_its_aliases() -> None:
    class Holder(BaseModel):
        item: Line | Numbered

    found = deserialize(b'{"item": {"orderNumber": "7", "remark": null}}', JSON_CONTENT_TYPE, Holder)

    assert found.item == Numbered.model_validate({"orderNumber": "7", "remark": None})


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
def test_undeclared_members_of_a_model_are_refused(content_type: str) -> None:
    class Open(BaseModel, extra="allow"):
        pass

    class Holder(BaseModel):
        held: list[Open]

    with pytest.raises(MessageBodyError, match=r"held\[1\]: .*Open does not declare colour, size, which would be lost"):
        serialize(Holder(held=[Open(), Open.model_validate({"colour": 1, "size": 2})]), "as_is", content_type, ["Shop.Holder"])


def test_unknown_type_is_left_to_pydantic() -> None:
    class Page(BaseModel):
        size: NonNegativeInt | complex = 0

    assert deserialize(b'{"size": "1+2j"}', JSON_CONTENT_TYPE, Page) == Page(size=1 + 2j)
