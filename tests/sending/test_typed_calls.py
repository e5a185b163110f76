"""Type errors of `publish()`, `request()` and the calls of a handler's context: each ignored error must be a real one.

mypy (`make types`) reports an unused ignore. Calls of `send()` are in test_bad_input.py.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, assert_type

import pytest

from sqlqueue_app import MessageContext, handles, publish, request
from sqlqueue_app.messages.errors import AddressError, MessageBodyError, MessageTypeError, WireFormatError
from sqlqueue_app.sending.replies import Request
from tests.sending.types import PlaceOrder
from tests.support.bench import Bench

WRONG: list[tuple[type[Exception], Callable[[MessageContext], object]]] = [
    (MessageTypeError, lambda _: publish(PlaceOrder("1"), {})),  # type: ignore[call-overload]
    (MessageBodyError, lambda _: publish("Test.Event", "text")),  # type: ignore[call-overload]
    (WireFormatError, lambda _: publish("Test.Event", {}, message_id=1)),  # type: ignore[call-overload]
    (TypeError, lambda _: publish("Test.Event", {}, to="Sales")),  # type: ignore[call-overload]
    (MessageTypeError, lambda context: context.send(PlaceOrder("1"), {})),  # type: ignore[call-overload]
    (MessageBodyError, lambda context: context.send("Test.Order", "text")),  # type: ignore[call-overload]
    (AddressError, lambda context: context.send("Test.Order", {}, to=7)),  # type: ignore[call-overload]
    (TypeError, lambda context: context.send("Test.Order", {}, message_id="1")),  # type: ignore[call-overload]
    (MessageTypeError, lambda context: context.send_local(PlaceOrder("1"), {})),  # type: ignore[call-overload]
    (MessageBodyError, lambda context: context.send_local("Test.Order", [{}])),  # type: ignore[call-overload]
    (TypeError, lambda context: context.send_local("Test.Order", {}, to="Sales")),  # type: ignore[call-overload]
    (MessageTypeError, lambda context: context.publish(PlaceOrder("1"), {})),  # type: ignore[call-overload]
    (MessageBodyError, lambda context: context.publish("Test.Event", "text")),  # type: ignore[call-overload]
    (TypeError, lambda context: context.publish("Test.Event", {}, delay=1)),  # type: ignore[call-overload]
    (MessageTypeError, lambda context: context.reply(PlaceOrder("1"), {})),  # type: ignore[call-overload]
    (MessageBodyError, lambda context: context.reply("Test.Answer", "text")),  # type: ignore[call-overload]
    (TypeError, lambda context: context.reply("Test.Answer", {}, delay=1)),  # type: ignore[call-overload]
]


def test_wrong_calls_are_refused(sqlite_bench: Bench) -> None:
    sqlite_bench.configure(routes={"Test.*": "Sales", "Sending.*": "Sales"})
    refused: list[type[Exception]] = []

    @handles("Test.Message")
    def handle(message: Any, context: MessageContext) -> None:
        for expected, call in WRONG:
            with pytest.raises(expected):
                call(context)
            refused.append(expected)

    sqlite_bench.put_message("Test.Message", **{"NServiceBus.ReplyToAddress": "Other"})
    sqlite_bench.run()

    assert refused == [expected for expected, _ in WRONG]
    assert sqlite_bench.rows("error") == []


def test_right_calls_are_sent(sqlite_bench: Bench) -> None:
    sqlite_bench.configure(routes={"Test.*": "Other", "Sending.*": "Other"})
    sqlite_bench.install_queues("Other")

    @handles("Test.Message")
    def handle(message: Any, context: MessageContext) -> None:
        context.send(PlaceOrder("1"), to="Other", delay=None, headers={"a": "b"})
        context.send("Test.Order", PlaceOrder("1"), immediate=False)
        context.send("Test.Order", {"a": 1}, time_to_be_received=timedelta(hours=1))
        context.send_local("Test.Local", {"a": 1})
        context.send_local("Test.Local", immediate=False)
        context.publish(PlaceOrder("1"))
        context.publish("Test.Event", {"a": 1}, immediate=False)
        publish("Test.Event", {"a": 1}, message_id="1")
        publish(PlaceOrder("1"))

    local: list[object] = []
    handles("Test.Local")(lambda message, context: local.append(message))
    sqlite_bench.put_message("Test.Message")
    sqlite_bench.run()

    assert sqlite_bench.rows("error") == []
    assert (len(sqlite_bench.rows("Other")), len(local)) == (3, 2)


def check_types_of_requests() -> None:
    """Never called: only a type checker reads it."""
    assert_type(request("Test.Ask"), Request[Any])
    assert_type(request("Test.Ask", {"a": 1}, to="Sales"), Request[Any])
    assert_type(request(PlaceOrder("1"), returns=int), Request[int])
    assert_type(request("Test.Ask", {"a": 1}, returns=str, message_id="1"), Request[str])
    request(PlaceOrder("1"), {})  # type: ignore[call-overload]
    request("Test.Ask", "text", returns=int)  # type: ignore[call-overload]
    request("Test.Ask", delay=1)  # type: ignore[call-overload]
