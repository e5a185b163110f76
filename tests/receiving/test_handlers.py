"""Registration of handlers."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from sqlqueue_app import handles
from sqlqueue_app.messages.errors import ConfigurationError, HandlerError, MessageTypeError
from sqlqueue_app.receiving.handlers import HandlerTable, handlers_of, registry
from sqlqueue_app.receiving.processing import read_message
from sqlqueue_app.tables.rows import ReceivedRow

HEADERS = '{"NServiceBus.EnclosedMessageTypes": "Test.Derived;Test.Base"}'

pytestmark = pytest.mark.usefixtures("handler_registry")


@pytest.mark.parametrize("wrong", [lambda: None, lambda message: None, lambda a, b, c: None, "text", None, dict])
def test_callable_with_other_parameters_is_refused(wrong: Any) -> None:
    with pytest.raises(HandlerError):
        handles("Test.Message")(wrong)


def test_unregistered_class_or_missing_type_is_refused() -> None:
    @dataclass
    class Plain:
        a: int

    with pytest.raises(MessageTypeError, match="not a message type"):
        handles(Plain)(lambda message, context: None)
    with pytest.raises(HandlerError, match="names no message type"):
        handles()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (" ", "is blank"),
        (", Shop", "names no type"),
        ("Sales.*", "is a pattern"),
        ("Sales.PlaceOrder;Sales.Other", "names several types"),
        ("\ud800", "contains half of a surrogate pair"),
    ],
)
def test_name_that_no_message_can_have_is_refused(name: str, fault: str) -> None:
    with pytest.raises(HandlerError, match=rf"the name {fault}; expected a message type name, as in .*several arguments"):
        handles(name)


def test_name_may_have_an_assembly() -> None:
    handles("Sales.PlaceOrder, Sales.Messages")(lambda message, context: None)
    assert HandlerTable(registry.all(), body_names="as_is").message_types == ["Sales.PlaceOrder"]


def test_callable_object_and_function_with_defaults_are_handlers() -> None:
    class Handler:
        def __call__(self, message: Any, context: Any) -> None: ...

    def with_default(message: Any, context: Any, more: int = 1) -> None: ...

    handles("Test.Message")(Handler())
    handles("Test.Message", "Test.Other")(with_default)
    assert [handler.message_type for handler in registry.all()] == ["Test.Message", "Test.Message", "Test.Other"]


def test_function_registered_again_keeps_its_place() -> None:
    def handler(message: Any, context: Any) -> None: ...

    handles("Test.Message")(handler)
    handles("Test.Message")(handler)
    assert len(registry.all()) == 1


def test_message_calls_handlers_of_all_its_types_once_in_order() -> None:
    def both(message: Any, context: Any) -> None: ...

    def derived(message: Any, context: Any) -> None: ...

    anonymous = [lambda message, context: None, lambda message, context: None]
    handles("Test.Derived", "Test.Base")(both)
    handles("Test.Derived")(derived)
    handles("Test.Derived")(anonymous[0])
    handles("Test.Base")(anonymous[1])
    table = HandlerTable(handlers_of([__name__]), body_names="as_is")
    row = ReceivedRow(UUID(int=1), None, None, False, HEADERS, b"{}")

    called = [(handler.message_type, handler.function) for handler, _ in table.calls(read_message(row))]

    assert called == [
        ("Test.Derived", both),
        ("Test.Derived", derived),
        ("Test.Derived", anonymous[0]),
        ("Test.Base", anonymous[1]),
    ]


@pytest.mark.parametrize(
    ("enclosed", "found"),
    [
        ("Ns.A", ["Ns.A"]),
        ("Ns.A, Asm, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null", ["Ns.A"]),
        (" Ns.Unknown, X ;; Ns.A, X ; ", ["Ns.A"]),
        ("Ns.IA__impl, Dynamic;Ns.A", ["Ns.A"]),
        ("Ns.Outer+Inner, Asm;Ns.A, Asm", ["Ns.Outer+Inner", "Ns.A"]),
        ("Ns.Page`1[[Ns.A, Asm, Version=1.0.0.0, Culture=neutral]], Asm, Version=1.0.0.0", ["Ns.Page`1[[Ns.A, Asm]]"]),
        ("Ns.Page`1[[Ns.B, Asm]], Asm", []),
        ("ns.a", []),
        ("Ns.A__impl, Dynamic", []),
        ("Ns.Unknown", []),
        (";", []),
    ],
)
def test_type_name_is_recognised_in_every_form(enclosed: str, found: list[str]) -> None:
    for name in ("Ns.A", "Ns.Outer+Inner", "Ns.Page`1[[Ns.A, Asm]]"):
        handles(name)(lambda message, context: None)
    table = HandlerTable(registry.all(), body_names="as_is")
    row = ReceivedRow(UUID(int=1), None, None, False, json.dumps({"NServiceBus.EnclosedMessageTypes": enclosed}), b"{}")
    if found:
        assert [handler.message_type for handler, _ in table.calls(read_message(row))] == found
    else:
        with pytest.raises(MessageTypeError, match="no handler for message"):
            table.calls(read_message(row))
    assert table.message_types == ["Ns.A", "Ns.Outer+Inner", "Ns.Page`1[[Ns.A, Asm]]"]


def test_functions_of_one_path_are_separate_handlers_unless_registered_again() -> None:
    def make() -> Any:
        return lambda message, context: None

    def register() -> None:
        handles("Test.Message")(make())

    handles("Test.Message")(make())
    handles("Test.Message")(make())
    assert len(registry.all()) == 2
    register()
    register()  # like a module that is imported again
    assert len(registry.all()) == 3


def test_handler_belongs_to_the_registering_module() -> None:
    elsewhere = partial(deepcopy, None)
    elsewhere.__module__ = "shop.factories"
    handles("Test.Message")(elsewhere)

    assert [handler.function for handler in handlers_of([__name__])] == [elsewhere]
    assert handlers_of(["tests.support"]) == []


def test_handlers_come_from_modules_in_the_settings() -> None:
    def here(message: Any, context: Any) -> None: ...

    handles("Test.Message")(here)
    assert [handler.function for handler in handlers_of([__name__])] == [here]
    assert [handler.function for handler in handlers_of(["tests.receiving"])] == [here]
    assert handlers_of(["tests.support"]) == []
    assert here in [handler.function for handler in handlers_of(None)]


def test_missing_module_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"'tests\.nowhere\.handlers', which does not exist"):
        handlers_of(["tests.nowhere.handlers"])
