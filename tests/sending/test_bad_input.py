"""Messages that cannot be sent: one clear error at the call, and nothing written."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue_app import publish, request, send, send_many, subscribe
from sqlqueue_app.messages.errors import (
    AddressError,
    ConfigurationError,
    MessageBodyError,
    MessageTypeError,
    SqlQueueError,
    WireFormatError,
)
from sqlqueue_app.testing import FakeContext
from tests.sending.conftest import Desk
from tests.sending.types import NotRegistered, PlaceOrder


class Recursive(dict[str, Any]):
    """A dictionary that contains itself."""

    def __init__(self) -> None:
        super().__init__()
        self["self"] = self


CASES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a class that is no message type": (
        lambda: send(NotRegistered("1")),
        MessageTypeError,
        r"tests\.sending\.types\.NotRegistered is not a message type; decorate it with "
        r"@message_type\(\"Namespace\.NotRegistered\"\)",
    ),
    "a dictionary without a type": (
        lambda: send({"order_id": "1"}),
        MessageTypeError,
        r"dict is not a message type.*type name and a dict",
    ),
    "None": (lambda: send(None), MessageTypeError, "NoneType is not a message type"),
    "a class instead of its object": (lambda: send(PlaceOrder), MessageTypeError, "the class PlaceOrder: pass an instance of it"),
    "a blank type": (lambda: send("  ", {}), MessageTypeError, r"'  ' is blank: expected a name such as"),
    "an empty type": (lambda: send("", {}), MessageTypeError, "'' is blank"),
    "a body beside an object": (
        lambda: send(PlaceOrder("1"), {}),  # type: ignore[call-overload]
        MessageTypeError,
        r"body was passed with the message PlaceOrder",
    ),
    "a body beside a class": (
        lambda: send(PlaceOrder, {"order_id": "1"}),  # type: ignore[call-overload]
        MessageTypeError,
        r"body was passed with the class PlaceOrder",
    ),
    "a body beside an object, many": (lambda: send_many([(PlaceOrder("1"), {})]), MessageTypeError, "PlaceOrder"),
    "NaN": (lambda: send("Sending.A", {"price": math.nan}), MessageBodyError, r"no number for nan.*|\['price'\]"),
    "infinity in a list": (lambda: send("Sending.A", {"a": [1, {"b": -math.inf}]}), MessageBodyError, r"a.*1.*b"),
    "a value without a form": (lambda: send("Sending.A", {"when": object()}), MessageBodyError, r"when"),
    "a key without a form": (lambda: send("Sending.A", {(1, 2): 3}), MessageBodyError, r"\(1, 2\) is tuple"),
    "two keys of the same text": (lambda: send("Sending.A", {1: 1, "1": 2}), MessageBodyError, "both be written as '1'"),
    "half of a surrogate pair": (lambda: send("Sending.A", {"a": "\ud800"}), MessageBodyError, "surrogate"),
    "a text as the body": (lambda: send("Sending.A", "text"), MessageBodyError, "a dataclass, a dict or a list; got str"),  # type: ignore[call-overload]
    "a dictionary within itself": (lambda: send("Sending.A", Recursive()), MessageBodyError, "contains itself"),
    "a header that is a number": (
        lambda: send(PlaceOrder("1"), headers={"Count": 7}),  # type: ignore[dict-item]
        WireFormatError,
        r"the header 'Count' is int \(7\); expected str or None",
    ),
    "a header that is a number, many": (
        lambda: send_many([PlaceOrder("1")], headers={"Count": 7}),  # type: ignore[dict-item]
        WireFormatError,
        r"the header 'Count' is int",
    ),
    "a header without a name": (
        lambda: send(PlaceOrder("1"), headers={None: "x"}),  # type: ignore[dict-item]
        WireFormatError,
        "header name None is NoneType",
    ),
    "headers of a request that are no dictionary": (
        lambda: request("Sending.A", headers=["a"]),  # type: ignore[call-overload]
        WireFormatError,
        r"headers is list \(\['a'\]\); expected a dictionary of text",
    ),
    "headers of a return code that are no dictionary": (
        lambda: FakeContext().reply(1, headers=5),  # type: ignore[call-overload]
        WireFormatError,
        r"headers is int \(5\); expected a dictionary",
    ),
    "headers of a reply to a saga that are no dictionary": (
        lambda: FakeContext(headers={"NServiceBus.OriginatingSagaId": "1"}).reply("Sending.A", headers=5),  # type: ignore[call-overload]
        WireFormatError,
        r"headers is int \(5\); expected a dictionary",
    ),
    "headers that are no dictionary": (
        lambda: send(PlaceOrder("1"), headers=[("a", "b")]),  # type: ignore[call-overload]
        WireFormatError,
        "headers is list .*expected a dictionary",
    ),
    "headers that are a number, many": (
        lambda: send_many([PlaceOrder("1")], headers=5),  # type: ignore[arg-type]
        WireFormatError,
        r"messages\[0\]: headers is int \(5\); expected a dictionary of text",
    ),
    "a header that poisons the row for transports up to 9.0": (
        lambda: send(PlaceOrder("1"), headers={"__type": "x"}),
        WireFormatError,
        "the header name '__type' cannot be used",
    ),
    "a header that would forward the message": (
        lambda: send(PlaceOrder("1"), headers={"NServiceBus.SqlServer.ForwardDestination": "Billing"}),
        WireFormatError,
        "set the destination with to=",
    ),
    "an intent that nobody knows": (
        lambda: send(PlaceOrder("1"), headers={"NServiceBus.MessageIntent": "Whatever"}),
        WireFormatError,
        "the intent 'Whatever' is unknown; expected Send, Publish",
    ),
    "a time sent of one's own, in another form": (
        lambda: send(PlaceOrder("1"), headers={"NServiceBus.TimeSent": "2026-11-20T10:11:12Z"}),
        WireFormatError,
        r"the header 'NServiceBus\.TimeSent' .*is not like '2026-04-29 21:56:55:590807 Z'",
    ),
    "a time sent that is None, many": (
        lambda: send_many([PlaceOrder("1")], headers={"NServiceBus.TimeSent": None}),
        WireFormatError,
        r"messages\[0\]: the header 'NServiceBus\.TimeSent' is None; expected text",
    ),
    "types of one's own that are none": (
        lambda: send(PlaceOrder("1"), headers={"NServiceBus.EnclosedMessageTypes": " ; "}),
        WireFormatError,
        "names no message type",
    ),
    "a lifetime of one's own, in another form": (
        lambda: send(PlaceOrder("1"), headers={"NServiceBus.TimeToBeReceived": "20 s"}),
        WireFormatError,
        "the duration '20 s' is not like",
    ),
    "a type that is none": (lambda: send(";", {}), MessageTypeError, "';' names no type"),
    "several types": (lambda: send("A;B", {}), MessageTypeError, "'A;B' names several types: expected a name such as"),
    "several types of an event": (lambda: publish("A;B", {}), MessageTypeError, "'A;B' names several types"),
    "several topics": (lambda: subscribe("A;B", endpoint="Sales"), MessageTypeError, "event type 'A;B' names several types"),
    "an endpoint that is no text": (lambda: subscribe("A", endpoint=5), ConfigurationError, "endpoint is 5: expected the name"),  # type: ignore[arg-type]
    "half a character": (lambda: send("\ud800", {}), MessageTypeError, "contains half of a surrogate pair"),
    "half a character of an event": (lambda: publish("\ud800", {}), MessageTypeError, "contains half of a surrogate pair"),
    "half a character of a topic": (
        lambda: subscribe("\ud800", endpoint="Sales"),
        MessageTypeError,
        "contains half of a surrogate pair",
    ),
    "a list as the body": (lambda: send("Sending.A", [{}]), MessageBodyError, "is a list; expected an object: dict or dataclass"),  # type: ignore[call-overload]
    "a list as a body, many": (lambda: send_many("Sending.A", [{}, []]), MessageBodyError, r"bodies\[1\]: .* is a list"),
    "an empty address": (lambda: send(PlaceOrder("1"), to=""), AddressError, "no table"),
    "an address that is no text": (lambda: send(PlaceOrder("1"), to=7), AddressError, "address as text, got 7"),  # type: ignore[call-overload]
    "an address with NUL": (lambda: send(PlaceOrder("1"), to="a\0b"), AddressError, "NUL"),
    "a lifetime in seconds": (
        lambda: send(PlaceOrder("1"), time_to_be_received=20),  # type: ignore[call-overload]
        WireFormatError,
        r"time_to_be_received is int \(20\); expected a timedelta",
    ),
    "a lifetime beyond .NET": (
        lambda: send(PlaceOrder("1"), time_to_be_received=timedelta.max),
        WireFormatError,
        r"longer than \.NET can hold",
    ),
    "a message id that is no text": (
        lambda: send(PlaceOrder("1"), message_id=uuid.UUID(int=42)),  # type: ignore[call-overload]
        WireFormatError,
        r"message_id is UUID \(.*2a.*\); expected str: convert it first",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_call_is_refused_and_nothing_is_written(sqlite_desk: Desk, case: str) -> None:
    act, kind, words = CASES[case]

    with pytest.raises(kind, match=words):
        act()

    assert sqlite_desk.rows() == []


def test_too_long_name_is_refused(postgresql_desk: Desk) -> None:
    """PostgreSQL would truncate it and use another table."""
    with pytest.raises(SqlQueueError, match=r"x{64}"):
        send(PlaceOrder("1"), to="x" * 64)


def test_encoding_error_does_not_affect_the_next_message(desk: Desk) -> None:
    with pytest.raises(MessageBodyError):
        send("Sending.A", {"a": math.nan})

    send("Sending.A", {"a": 1})

    assert desk.bodies() == [{"a": 1}]
