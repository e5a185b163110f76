"""Several messages in one body, as cores 3 and 4 write messages sent together: each for its own handlers, in one transaction."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from sqlqueue_app import handles, message_type
from tests.support.bench import Bench, Calls


@dataclass
class Placed:
    order_id: int


@dataclass
class Rush(Placed):
    by: str = ""


@dataclass
class Cancelled:
    order_id: int


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    message_type("Several.Placed")(Placed)
    message_type("Several.Rush")(Rush)
    message_type("Several.Cancelled")(Cancelled)


SPACE = 'xmlns="http://tempuri.net/Several"'
BOTH = "<Placed><OrderId>1</OrderId></Placed>\n<Cancelled><OrderId>2</OrderId></Cancelled>"
TYPES = "Several.Placed, Shop;Several.Cancelled, Shop"


def put(bench: Bench, inside: str, types: str | None = TYPES, root: str = f"Messages {SPACE}", **headers: str) -> None:
    headers_with_type = {"NServiceBus.ContentType": "text/xml", **headers}
    if types is not None:
        headers_with_type["NServiceBus.EnclosedMessageTypes"] = types
    bench.put(json.dumps(headers_with_type), f"<?xml version='1.0'?><{root}>{inside}</{root.partition(' ')[0]}>".encode())


def reason(bench: Bench) -> str:
    (headers,) = bench.headers("error")
    assert bench.rows("Sales") == []
    return str(headers["NServiceBus.ExceptionInfo.Message"])


@pytest.fixture
def seen(calls: Calls) -> Calls:
    """Handlers for `Placed` and `Cancelled` that record each call with the types in the context."""

    @handles("Several.Placed")
    def as_dict(message: Any, context: Any) -> None:
        calls.add((message, context.message_types))

    @handles(Placed, Cancelled, Rush)
    def as_object(message: Any, context: Any) -> None:
        calls.add((message, context.message_types))

    return calls


@pytest.mark.parametrize("types", [TYPES, "Several.Cancelled;Several.Placed", None])
def test_each_message_goes_to_handlers_of_its_type_in_order(bench: Bench, seen: Calls, types: str | None) -> None:
    put(bench, BOTH, types)
    bench.run()

    assert [message for message, _ in seen.seen] == [{"OrderId": "1"}, Placed(1), Cancelled(2)]
    assert [names[0] for _, names in seen.seen] == ["Several.Placed", "Several.Placed", "Several.Cancelled"]
    assert (bench.rows("Sales"), bench.rows("error")) == ([], [])


def test_body_with_two_messages_of_one_type_is_handled(bench: Bench, seen: Calls) -> None:
    put(bench, "<Cancelled><OrderId>1</OrderId></Cancelled><Cancelled><OrderId>2</OrderId></Cancelled>", "Several.Cancelled")
    bench.run()
    assert seen.seen == [(Cancelled(1), ["Several.Cancelled"]), (Cancelled(2), ["Several.Cancelled"])]


@pytest.mark.parametrize(
    ("inside", "types"),
    [
        (
            "<Rush><OrderId>1</OrderId></Rush><Cancelled><OrderId>2</OrderId></Cancelled>",
            "Several.Rush;Several.Placed;Several.Cancelled",
        ),
        ('<Rush xmlns:baseType="Several.Placed"><OrderId>1</OrderId></Rush><Cancelled><OrderId>2</OrderId></Cancelled>', None),
    ],
)
def test_message_has_the_types_of_its_bases(bench: Bench, calls: Calls, inside: str, types: str | None) -> None:
    @handles("Several.Placed")
    def placed(message: Any, context: Any) -> None:
        calls.add((message, context.message_types))

    @handles("Several.Cancelled")
    def cancelled(message: Any, context: Any) -> None:
        calls.add((message, context.message_types))

    put(bench, inside, types)
    bench.run()
    (first, first_types), (second, second_types) = calls.seen
    assert (first, second) == ({"OrderId": "1"}, {"OrderId": "2"})
    assert "Several.Placed" in first_types
    assert "Several.Placed" not in second_types


def test_namespace_prefixes_and_nested_classes_are_resolved(bench: Bench, calls: Calls) -> None:
    @handles("Several.Outer+Inner", "Other.Cancelled")
    def both(message: Any, context: Any) -> None:
        calls.add((message, context.message_types))

    inside = "<Inner><A>1</A></Inner><q1:Cancelled><A>2</A></q1:Cancelled>"
    put(bench, inside, "Several.Outer+Inner;Other.Cancelled", f'Messages {SPACE} xmlns:q1="http://tempuri.net/Other"')
    bench.run()
    assert calls.seen == [({"A": "1"}, ["Several.Outer+Inner"]), ({"A": "2"}, ["Other.Cancelled"])]


def test_failure_rolls_back_and_retries_the_whole_body(bench: Bench, calls: Calls) -> None:
    @handles("Several.Placed")
    def placed(message: Any, context: Any) -> None:
        calls.add("placed")
        context.send("Several.Other", {}, to="Elsewhere")

    @handles("Several.Cancelled")
    def cancelled(message: Any, context: Any) -> None:
        calls.add(f"cancelled {context.attempt}")
        if context.attempt == 1:
            raise LookupError("not yet")

    bench.configure(IMMEDIATE_RETRIES=1)
    bench.install_queues("Elsewhere")
    put(bench, BOTH)
    bench.run()
    assert calls.seen == ["placed", "cancelled 1", "placed", "cancelled 2"]
    assert len(bench.rows("Elsewhere")) == 1
    assert bench.rows("error") == []


def test_failed_body_is_moved_whole_and_once(bench: Bench, calls: Calls) -> None:
    @handles("Several.Placed")
    def placed(message: Any, context: Any) -> None:
        context.send("Several.Other", {}, to="Elsewhere")

    @handles("Several.Cancelled")
    def cancelled(message: Any, context: Any) -> None:
        raise LookupError("never")

    bench.install_queues("Elsewhere")
    put(bench, BOTH)
    (before,) = bench.rows("Sales")
    bench.run()
    assert reason(bench) == "never"
    assert bench.rows("error")[0].body == before.body
    assert bench.rows("Elsewhere") == []


def test_middleware_surrounds_each_call(bench: Bench, seen: Calls) -> None:
    bench.configure(MIDDLEWARE=[_noted])
    put(bench, BOTH)
    _NOTED.clear()
    bench.run()
    assert [names[0] for names in _NOTED] == ["Several.Placed", "Several.Placed", "Several.Cancelled"]
    assert len(seen.seen) == 3


_NOTED: list[list[str]] = []


def _noted(call: Any) -> Any:
    def handle(message: Any, context: Any) -> Any:
        _NOTED.append(context.message_types)
        return call(message, context)

    return handle


@pytest.mark.parametrize(
    ("inside", "types", "expected"),
    [
        ("", TYPES, "the body holds 0 messages: its root 'Messages' is empty; expected one message at least"),
        ("  \n ", None, "the body holds 0 messages"),
        (BOTH, "Several.Placed", "a message 'Cancelled' of the namespace 'http://tempuri.net/Several', which matches none"),
        (BOTH + "<Placed/>", TYPES, "Placed needs the member 'order_id'"),
        (BOTH + "<Unknown/>", None, "its types are 'Several.Unknown', 'Unknown'; this endpoint handles"),
        (BOTH + "<Unknown/>", TYPES + ";Several.Unknown", "its types are 'Several.Unknown'; this endpoint handles"),
    ],
)  # fmt: skip
def test_partly_unreadable_body_is_not_handled_at_all(
    sqlite_bench: Bench, seen: Calls, inside: str, types: str | None, expected: str
) -> None:
    put(sqlite_bench, inside, types)
    sqlite_bench.run()
    assert expected in reason(sqlite_bench)
    assert seen.seen == []


def test_ambiguous_name_is_refused(sqlite_bench: Bench, seen: Calls) -> None:
    put(sqlite_bench, BOTH, TYPES + ";Old.Placed", root="Messages")
    sqlite_bench.run()
    assert "matches several of the types" in reason(sqlite_bench)
    assert seen.seen == []


@pytest.mark.parametrize("types", [TYPES, None])
def test_message_as_the_root_is_one_message(sqlite_bench: Bench, seen: Calls, types: str | None) -> None:
    put(sqlite_bench, "<Cancelled><OrderId>2</OrderId></Cancelled>", types and "Several.Cancelled")
    sqlite_bench.run()
    assert [message for message, _ in seen.seen] == [Cancelled(2)]


def test_json_body_with_several_messages_is_refused(sqlite_bench: Bench, seen: Calls) -> None:
    sqlite_bench.put_message("Several.Cancelled", [{"OrderId": 1}, {"OrderId": 2}])
    sqlite_bench.run()
    assert reason(sqlite_bench) == (
        "the body holds several messages: expected an object, got an array of 2; let the sender send each by itself"
    )
    assert seen.seen == []


def test_json_array_of_one_object_names_its_type(sqlite_bench: Bench, seen: Calls) -> None:
    sqlite_bench.put("{}", b'[{"$type": "Several.Cancelled, Shop", "OrderId": 1}]')
    sqlite_bench.run()
    assert [message for message, _ in seen.seen] == [Cancelled(1)]
