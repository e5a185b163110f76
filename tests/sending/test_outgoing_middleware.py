"""OUTGOING_MIDDLEWARE surrounds what is sent: it sees and changes headers and body, or refuses by raising."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from django.db import transaction

from sqlqueue_app import handles, message_type, publish, send, send_many, subscribe
from sqlqueue_app.messages.errors import ConfigurationError, WireFormatError
from sqlqueue_app.sending.middleware import ComposerWithMiddleware
from sqlqueue_app.sending.sender import sender
from tests.support.bench import FAST, Bench, Calls
from tests.support.worker_processes import address


@message_type("Test.Outgoing")
@dataclass
class Order:
    n: int = 0


def configure(bench: Bench, *middleware: Any, **settings: Any) -> None:
    bench.database.configure(
        ENDPOINTS={"Sales": {**FAST, **settings.pop("endpoint", {})}},
        ROUTES={"Test.*": "Sales"},
        OUTGOING_MIDDLEWARE=list(middleware),
        **settings,
    )
    bench.install()


def tenant(call: Callable[..., Any]) -> Callable[..., Any]:
    def handle(message: Any, context: Any) -> Any:
        context.headers["Tenant"] = "north"
        return call(message, context)

    return handle


def noting(calls: Calls, name: str = "") -> Callable[..., Any]:
    def middleware(call: Callable[..., Any]) -> Callable[..., Any]:
        def handle(message: Any, context: Any) -> None:
            calls.add((name, context.message_type, message, context.destination, context.intent, context.body))
            call(message, context)
            calls.add((name, context.body))

        return handle

    return middleware


def test_each_middleware_sees_the_message_before_and_after_serialization(bench: Bench, calls: Calls) -> None:
    configure(bench, noting(calls, "outer"), noting(calls, "inner"))
    message_id = send(Order(1))

    sales = sender().dispatcher.book.canonical(sender().dispatcher.book.of_queue("Sales"))
    seen = "Test.Outgoing", Order(1), sales, "Send", None
    assert calls.seen == [("outer", *seen), ("inner", *seen), ("inner", b'{"n":1}'), ("outer", b'{"n":1}')]
    assert bench.headers("Sales")[0]["NServiceBus.MessageId"] == message_id


def test_headers_are_changed_before_and_after_the_body_is_written(bench: Bench) -> None:
    def signed(call: Callable[..., Any]) -> Callable[..., Any]:
        def handle(message: Any, context: Any) -> None:
            call(replace(message, n=message.n + 1), context)
            context.headers["Length"] = str(len(context.body))

        return handle

    configure(bench, "tests.sending.test_outgoing_middleware.tenant", signed)
    send(Order(1), headers={"Own": "kept"})

    (headers,) = bench.headers("Sales")
    assert (headers["Tenant"], headers["Own"], headers["Length"]) == ("north", "kept", "7")
    assert bench.rows("Sales")[0].body == b'{"n":2}'


def test_body_is_written_in_the_format_that_the_middleware_chooses(bench: Bench) -> None:
    def as_xml(call: Callable[..., Any]) -> Callable[..., Any]:
        def handle(message: Any, context: Any) -> None:
            context.headers["NServiceBus.ContentType"] = "text/xml"
            call(message, context)

        return handle

    configure(bench, as_xml)
    send(Order(1))
    assert b"<n>1</n>" in (bench.rows("Sales")[0].body or b"")


def test_middleware_applies_to_sent_messages_and_not_to_moved_ones(bench: Bench, calls: Calls) -> None:
    """send, send_many, publish, context.send and reply; not audit copies, delayed retries and the error queue."""

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        if context.headers.get("fails"):
            raise LookupError
        context.send("Test.Out", {}, to=address(bench, "out"))
        context.reply("Test.Reply", {})
        context.reply(7)

    configure(bench, tenant, endpoint={"AUDIT_QUEUE": "audit"}, SEND_AS="Sales")
    bench.install_queues("out", "replies")
    subscribe("Test.Event", endpoint="Sales")
    publish("Test.Event", {})
    send_many([("Test.Many", {}), Order(2)])
    assert [each["Tenant"] for each in bench.headers("Sales")] == ["north"] * 3
    bench.table("Sales").purge()

    reply_to = {"NServiceBus.ReplyToAddress": address(bench, "replies")}
    bench.put_message("Test.Message", **reply_to)
    bench.run()
    assert [each["Tenant"] for each in bench.headers("out") + bench.headers("replies")] == ["north"] * 3
    assert ["Tenant" in each for each in bench.headers("audit")] == [False]

    bench.put_message("Test.Message", fails="yes")
    bench.run()
    assert ["Tenant" in each for each in bench.headers("error")] == [False]


def test_middleware_sees_the_headers_of_the_handled_message(bench: Bench) -> None:
    def passing_on(call: Callable[..., Any]) -> Callable[..., Any]:
        def handle(message: Any, context: Any) -> None:
            if context.incoming_headers is not None:
                context.headers["Tenant"] = context.incoming_headers["Tenant"]
            call(message, context)

        return handle

    handles("Test.Message")(lambda message, context: context.send("Test.Out", {}, to=address(bench, "out")) and None)
    configure(bench, passing_on)
    bench.install_queues("out")
    bench.put_message("Test.Message", Tenant="south")
    bench.run()
    assert bench.headers("out")[0]["Tenant"] == "south"


def test_error_refuses_the_message(bench: Bench) -> None:
    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def handle(message: Any, context: Any) -> None:
            if message["n"] > 1:
                raise PermissionError("too many")
            call(message, context)

        return handle

    configure(bench, refusing)
    with transaction.atomic(using=bench.database.alias):
        send("Test.Message", {"n": 1})
        with pytest.raises(PermissionError, match="too many"):
            send("Test.Message", {"n": 2})
    with pytest.raises(PermissionError) as raised:
        send_many("Test.Message", [{"n": 1}, {"n": 2}])
    assert raised.value.__notes__ == ["while bodies[1] of send_many() was composed"]
    assert len(bench.rows("Sales")) == 1


def test_middleware_must_call_on_and_keep_the_headers_valid(bench: Bench) -> None:
    def silent(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda message, context: None

    configure(bench, silent)
    with pytest.raises(ConfigurationError, match=r"has not called its `call` for the message 'Test.Message': return call"):
        send("Test.Message", {})

    def changing(name: str, value: Any) -> Callable[..., Any]:
        def middleware(call: Callable[..., Any]) -> Callable[..., Any]:
            def handle(message: Any, context: Any) -> None:
                call(message, context)
                context.headers[name] = value

            return handle

        return middleware

    for name, value, text in [
        ("Tenant", 5, "the header 'Tenant' is int"),
        ("NServiceBus.MessageId", None, "has removed the header 'NServiceBus.MessageId'"),
        ("NServiceBus.TimeSent", "noon", "would fail at readers of NServiceBus"),
    ]:
        configure(bench, changing(name, value))
        with pytest.raises(WireFormatError, match=text):
            send("Test.Message", {})
    assert bench.rows("Sales") == []


def test_middleware_must_keep_the_types_of_an_event(bench: Bench) -> None:
    def untyped(call: Callable[..., Any]) -> Callable[..., Any]:
        def handle(message: Any, context: Any) -> None:
            call(message, context)
            del context.headers["NServiceBus.EnclosedMessageTypes"]

        return handle

    configure(bench, untyped)
    with pytest.raises(WireFormatError, match=r"has removed the header 'NServiceBus.EnclosedMessageTypes'"):
        publish("Test.Event", {})
    send("Test.Message", {})
    assert len(bench.rows("Sales")) == 1


def test_unusable_middleware_is_reported_with_its_setting(bench: Bench) -> None:
    configure(bench, "no.such.middleware")
    with pytest.raises(ConfigurationError, match=r'SQLQUEUE\["OUTGOING_MIDDLEWARE"\]\[0\] names .no.such.middleware'):
        send("Test.Message", {})
    with pytest.raises(ConfigurationError, match="OUTGOING_MIDDLEWARE"):
        bench.run()


def test_without_the_setting_composers_have_no_middleware(bench: Bench) -> None:
    configure(bench)
    assert not isinstance(sender().composer, ComposerWithMiddleware)
    assert not sender().composer.has_middleware


def test_delayed_message_keeps_the_headers(bench: Bench) -> None:
    configure(bench, tenant)
    send("Test.Message", {}, delay=-1)
    send_many("Test.Message", [{}, {}], delay=-1)
    headers: list[Any] = []
    handles("Test.Message")(lambda message, context: headers.append(json.dumps(context.headers)))
    bench.run()
    assert ['"Tenant": "north"' in each for each in headers] == [True] * 3


def numbering(*ids: str) -> Callable[..., Any]:
    """Middleware that gives the messages these ids, in turn."""
    left = list(ids)

    def middleware(call: Callable[..., Any]) -> Callable[..., Any]:
        def handle(message: Any, context: Any) -> Any:
            context.headers["NServiceBus.MessageId"] = left.pop(0)
            return call(message, context)

        return handle

    return middleware


GUID = "3f1c7e52-6b0f-4d6c-9a55-0d4a7c1f9b21"


@pytest.mark.parametrize("delay", [None, -1])
@pytest.mark.parametrize("lazy", [False, True])
def test_send_many_returns_the_ids_that_middleware_sets(bench: Bench, delay: float | None, lazy: bool) -> None:
    configure(bench, numbering("order-17", GUID, GUID))

    bodies: list[dict[str, Any]] = [{}, {}, {}]
    ids = send_many("Test.Message", iter(bodies) if lazy else bodies, delay=delay)

    assert ids == ["order-17", GUID, GUID]
    if delay is None:
        assert [headers["NServiceBus.MessageId"] for headers in bench.headers("Sales")] == ids


@pytest.mark.parametrize("mode", ["sends_atomic_with_receive", "receive_only"])
def test_send_many_in_a_handler_returns_the_ids_that_middleware_sets(bench: Bench, calls: Calls, mode: str) -> None:
    configure(bench, numbering("order-17", GUID), endpoint={"TRANSACTION_MODE": mode})
    out = address(bench, "out")
    bench.install_queues("out")
    handles("Test.Message")(lambda message, context: calls.add(send_many([("Test.A", {}), ("Test.A", {})], to=out)))
    bench.put_message("Test.Message")
    bench.run()

    assert calls.seen == [["order-17", GUID]]
    assert [headers["NServiceBus.MessageId"] for headers in bench.headers("out")] == ["order-17", GUID]


def test_send_many_returns_the_ids_that_middleware_sets_while_another_database_is_open(postgresql_bench: Bench) -> None:
    configure(postgresql_bench, numbering("order-17", GUID))

    with transaction.atomic(using="default"):
        assert send_many("Test.Message", [{}, {}]) == ["order-17", GUID]
    assert [headers["NServiceBus.MessageId"] for headers in postgresql_bench.headers("Sales")] == ["order-17", GUID]
