"""Registration of message types and the text of EnclosedMessageTypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import pytest

from sqlqueue_app.messages.errors import MessageTypeError
from sqlqueue_app.messages.types import MessageTypes, full_name, message_type, registry, resolve_enclosed, topics_of
from tests.support.golden import rows


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test an empty registry; the process's own is restored."""
    fresh = MessageTypes()
    for name in ("_by_name", "_by_class"):
        monkeypatch.setattr(registry, name, getattr(fresh, name))


def test_registered_class_is_found_by_name_and_class() -> None:
    @message_type("Sales.PlaceOrder", assembly="Shop.Messages", names="pascal")
    @dataclass(slots=True)
    class PlaceOrder:
        order_id: str

    found = registry.by_name("Sales.PlaceOrder")
    assert found is not None
    assert (found.cls, found.assembly, found.names) == (PlaceOrder, "Shop.Messages", "pascal")
    assert registry.of(PlaceOrder("1")) == registry.of(PlaceOrder) == found
    assert registry.names() == ["Sales.PlaceOrder"]
    assert registry.by_name("sales.placeorder") is None


def test_error_for_an_unregistered_class_names_the_decorator() -> None:
    class PlaceOrder:
        pass

    with pytest.raises(MessageTypeError, match=r'decorate it with @message_type\("Namespace.PlaceOrder"\)'):
        registry.of(PlaceOrder())


def test_subclass_is_not_a_message_type_by_itself() -> None:
    @message_type("Base")
    @dataclass
    class Base:
        pass

    class Derived(Base):
        pass

    with pytest.raises(MessageTypeError, match="Derived is not a message type"):
        registry.of(Derived())


def test_duplicate_names_are_refused() -> None:
    @message_type("Sales.PlaceOrder")
    @dataclass
    class First:
        pass

    with pytest.raises(MessageTypeError, match=r"'Sales.PlaceOrder' is registered twice: for .*First and for .*Second"):

        @message_type("Sales.PlaceOrder")
        @dataclass
        class Second:
            pass

    with pytest.raises(MessageTypeError, match=r"First is registered as 'Sales.PlaceOrder' already; it cannot be 'Other'"):
        message_type("Other")(First)
    assert registry.by_name("Other") is None


def test_class_imported_again_replaces_itself() -> None:
    def load() -> type:
        @message_type("Sales.PlaceOrder")
        @dataclass
        class PlaceOrder:
            pass

        return PlaceOrder

    first, second = load(), load()
    found = registry.by_name("Sales.PlaceOrder")
    assert found is not None
    assert found.cls is second is not first
    assert registry.of(first()).name == "Sales.PlaceOrder"


def test_enclosed_types_are_those_of_the_recorded_event() -> None:
    @message_type("Shop.Messages.IOrderEvent", assembly="Shop.Messages")
    @dataclass
    class OrderEvent:
        order_id: str

    @dataclass
    class Unregistered(OrderEvent):
        pass

    @message_type("Shop.Messages.OrderShipped", assembly="Shop.Messages")
    @dataclass
    class OrderShipped(Unregistered):
        carrier: str

    @message_type("Shop.Messages.OrderShippedFast")
    @dataclass
    class OrderShippedFast(OrderShipped):
        hours: int

    text = registry.enclosed(OrderShippedFast("1", "dhl", 3))
    assert text == (
        "Shop.Messages.OrderShippedFast;Shop.Messages.OrderShipped, Shop.Messages;Shop.Messages.IOrderEvent, Shop.Messages"
    )
    assert registry.enclosed(OrderEvent) == "Shop.Messages.IOrderEvent, Shop.Messages"
    recorded = [resolve_enclosed(_enclosed(row)) for row in rows("json") if "OrderShippedFast" in _enclosed(row)]
    assert recorded
    ours = resolve_enclosed(text)
    for names in recorded:
        # The type itself is first; .NET orders the others differently, and no reader depends on it.
        assert names[0] == ours[0]
        assert set(names) == set(ours)


def _enclosed(row: dict[str, Any]) -> str:
    import json

    return json.loads(row.get("headers") or "{}").get("NServiceBus.EnclosedMessageTypes", "")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, []),
        ("", []),
        (" ; ,x;", []),
        ("A.B", ["A.B"]),
        ("A.B, C, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null;A.D", ["A.B", "A.D"]),
        (" A.B , C ; A.D ", ["A.B", "A.D"]),
        ("A.IB__impl, dynamic;A.IB, C", ["A.IB"]),
        ("A.B, C__impl;A.D", ["A.D"]),
        ("A.B;A.B", ["A.B", "A.B"]),
        ("A.Outer+Inner, C", ["A.Outer+Inner"]),
        (
            "A.Page`1[[A.B, C, Version=1.0.0.0, PublicKeyToken=null]], D, Version=2.0.0.0;A.E",
            ["A.Page`1[[A.B]]", "A.E"],
        ),
        ("A.Pair`2[[A.B, C],[A.List`1[[A.D , C]], C]]", ["A.Pair`2[[A.B],[A.List`1[[A.D]]]]"]),
        ("A.B[], C", ["A.B[]"]),
        ("A.B[,], C", ["A.B[,]"]),
        ("A.B[[C, D", ["A.B[[C"]),
    ],
)
def test_resolve_enclosed(text: str | None, names: list[str]) -> None:
    assert resolve_enclosed(text) == names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", ""),
        (" , Shop", ""),
        (" A.Outer+B , C, Version=1.0.0.0", "A.Outer+B"),
        ("A.B[,], C", "A.B[,]"),
        ("A.B[[C, D", "A.B[[C, D"),
        ("A.Page`1[[A.B, C, Version=1.0.0.0]], D, Version=2.0.0.0", "A.Page`1[[A.B, C, Version=1.0.0.0]]"),
        ("A.Pair`2[[A.B, C],[A.List`1[[A.D, C]], C]]", "A.Pair`2[[A.B, C],[A.List`1[[A.D, C]], C]]"),
    ],
)
def test_full_name_keeps_the_assemblies_of_type_arguments(text: str, name: str) -> None:
    assert full_name(text) == name


def test_topics_are_the_full_names_and_the_plain_names() -> None:
    assert topics_of("A.B, C;A.IB__impl, D; ;A.IB, C;A.B") == ("A.B", "A.IB")
    assert topics_of("A.Page`1[[A.B, C, Version=1.0.0.0]], D;A.IPage`1[[A.B]], D") == (
        "A.Page`1[[A.B, C, Version=1.0.0.0]]",
        "A.Page`1[[A.B]]",
        "A.IPage`1[[A.B]]",
    )


def test_type_arguments_are_compared_by_name_only() -> None:
    @message_type("Shop.Envelope`1[[Shop.Order, Shop.Orders]]", assembly="Shop")
    @dataclass
    class Envelope:
        pass

    found = registry.by_name("Shop.Envelope`1[[Shop.Order, Shop.Elsewhere, Version=2.0.0.0]]")
    assert found is not None
    assert found.cls is Envelope
    assert registry.by_name("Shop.Envelope`1[[Shop.Other, Shop.Orders]]") is None
    assert registry.enclosed(Envelope) == "Shop.Envelope`1[[Shop.Order, Shop.Orders]], Shop"
    assert registry.names() == ["Shop.Envelope`1[[Shop.Order, Shop.Orders]]"]


@pytest.mark.parametrize("name", ["", " ", "A;B", "A[[B;C]]", "A,B", " A", "A ", "A\n", None, 7])
def test_bad_names_are_refused(name: Any) -> None:
    with pytest.raises(MessageTypeError, match=r"cannot be used; expected text like 'Sales\.PlaceOrder'"):
        message_type(name)


def test_bad_assembly_and_names_are_refused() -> None:
    with pytest.raises(MessageTypeError, match="the assembly 'a;b' of 'X' cannot be used"):
        message_type("X", assembly="a;b")
    with pytest.raises(MessageTypeError, match="names='Pascal' of 'X' is unknown; expected one of as_is, pascal"):
        message_type("X", names="Pascal")


def plain_class() -> type:
    class Plain:
        order_id: str

    return Plain


def class_without_annotations() -> type:
    class Bare:
        def __init__(self, order_id: str) -> None:
            self.order_id = order_id

    return Bare


def half_annotated() -> type:
    class Half:
        order_id: str

        def __init__(self, order_id: str, total: int) -> None:
            self.order_id = order_id

    return Half


def protocol() -> type:
    class OrderEvent(Protocol):
        order_id: str

    return OrderEvent


def derived_without_decorator() -> type:
    @dataclass
    class Base:
        pass

    class Derived(Base):
        order_id: str

    return Derived


@pytest.mark.parametrize(
    ("make", "expected_error"),
    [
        (plain_class, "differ in order_id; make it a dataclass, with @dataclass below @message_type"),
        (class_without_annotations, "Bare has no annotations"),
        (half_annotated, "differ in total"),
        (protocol, "differ in order_id"),
        (derived_without_decorator, r"not dataclass fields \(order_id\): put @dataclass on the class itself"),
        (lambda: "no class", "decorates a class, got 'no class'"),
        (lambda: int, "int has no annotations"),
    ],
)
def test_classes_that_no_body_fits_are_refused(make: Any, expected_error: str) -> None:
    with pytest.raises(MessageTypeError, match=expected_error):
        message_type("Sales.PlaceOrder")(make())
    assert registry.names() == []


def test_other_classes_that_map_are_accepted() -> None:
    @message_type("Tuple")
    class Pair(NamedTuple):
        left: int
        right: int = 0

    @message_type("Written")
    class Written:
        limit: ClassVar[int] = 3
        order_id: str

        def __init__(self, order_id: str, **others: object) -> None:
            self.order_id = order_id

    assert registry.names() == ["Tuple", "Written"]
    assert registry.of(Pair(1)).name == "Tuple"
    assert registry.of(Written("1")).name == "Written"
