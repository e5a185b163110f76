"""The outcome of one message: handled, retried, moved to the error queue, poison, expired."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction

from sqlqueue_app import Unrecoverable, handles, message_type, send, send_many
from sqlqueue_app.messages import parse_time
from sqlqueue_app.messages.types import registry as message_types
from sqlqueue_app.models import Instance
from sqlqueue_app.tables.rows import NewRow
from tests.support.bench import FAST, Bench, Calls, write_instance, written


@dataclass
class PlaceOrder:
    order_id: str
    total: int = 0


if message_types.by_name("Test.PlaceOrder") is None:
    message_type("Test.PlaceOrder")(PlaceOrder)


def test_handler_gets_its_message_as_its_class(bench: Bench, calls: Calls) -> None:
    @handles(PlaceOrder)
    def place(message: PlaceOrder, context: Any) -> None:
        calls.add((message, context.message_id, context.endpoint, context.attempt, context.headers["x"]))

    message_id = send(PlaceOrder("42", 7), to=bench_address(bench, "Sales"), headers={"x": "y"})
    assert bench.run() == 1
    assert calls.seen == [(PlaceOrder("42", 7), message_id, "Sales", 1, "y")]
    assert bench.rows("Sales") == bench.rows("error") == []


def test_handlers_by_name_get_a_dict_and_run_in_order(bench: Bench, calls: Calls) -> None:
    handles("Test.Message")(lambda message, context: calls.add(("first", message)))

    @handles("Test.Message")
    def second(message: Any, context: Any) -> None:
        calls.add(("second", message))

    bench.put_message("Test.Message", {"a": 1})
    bench.run()
    assert calls.seen == [("first", {"a": 1}), ("second", {"a": 1})]


def test_rows_of_handler_and_receive_commit_together(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        assert connections[bench.database.alias].in_atomic_block
        assert context.connection is connections[bench.database.alias]
        write_instance(bench, "in handler")
        transaction.on_commit(lambda: calls.add("hook"), using=bench.database.alias)
        with pytest.raises(RuntimeError, match="durable"), transaction.atomic(using=bench.database.alias, durable=True):
            pass

    bench.put_message("Test.Message")
    bench.run()
    assert written(bench) == ["in handler"]
    assert calls.seen == ["hook"]


def test_handler_may_lock_rows_that_it_iterates_over(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        write_instance(bench, "locked")
        locked = Instance.objects.using(bench.database.alias).select_for_update()
        calls.add([each.name for each in locked.filter(endpoint="T").iterator()])

    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == [["locked"]]


def test_failed_attempt_is_rolled_back_and_retried_immediately(bench: Bench, calls: Calls, events: Callable[[], list[str]]) -> None:
    bench.configure(IMMEDIATE_RETRIES=3)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        write_instance(bench, f"attempt {context.attempt}")
        transaction.on_commit(lambda: calls.add("hook"), using=bench.database.alias)
        context.send("Test.Other", {}, to=bench_address(bench, "error"))
        context.headers["x"] = "changed"
        calls.add(context.attempt)
        if context.attempt < 3:
            raise ValueError("not yet")

    bench.put_message("Test.Message", x="original")
    bench.run()
    assert calls.seen == [1, 2, 3, "hook"]
    assert written(bench) == ["attempt 3"]
    assert len(bench.rows("error")) == 1
    assert events().count("immediate_retry") == 2


def test_failing_message_is_moved_after_all_retries(bench: Bench, calls: Calls) -> None:
    bench.configure(IMMEDIATE_RETRIES=2)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        write_instance(bench, "never seen")
        send("Test.Other", {}, to=bench_address(bench, "Sales"))
        raise KeyError("stock ☃")

    bench.put_message("Test.Message", {"a": 1}, Tenant="north", **{"NServiceBus.Retries": "1"})
    bench.run()
    assert calls.seen == [1, 2, 3]
    assert written(bench) == []
    assert bench.rows("Sales") == []
    (headers,) = bench.headers("error")
    (row,) = bench.rows("error")
    assert row.body == b'{"a": 1}'
    assert headers["Tenant"] == "north"
    assert "NServiceBus.Retries" not in headers
    assert headers["NServiceBus.MessageId"] == "11111111-2222-3333-4444-555555555555"
    assert headers["NServiceBus.FailedQ"] == {"sqlite": "Sales", "postgresql": '"public"."Sales"'}.get(
        bench.database.vendor, headers["NServiceBus.FailedQ"]
    )
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"] == "KeyError"
    assert headers["NServiceBus.ExceptionInfo.Message"] == "'stock ☃'"
    assert headers["NServiceBus.ExceptionInfo.Source"] == __name__
    trace = headers["NServiceBus.ExceptionInfo.StackTrace"].splitlines()
    assert trace[0] == "KeyError: 'stock ☃'"
    assert trace[1].startswith(f"   at {__name__}.test_failing_message_is_moved")
    assert ":line " in trace[1]
    assert "Traceback (most recent call last):" in trace
    assert headers["NServiceBus.ProcessingEndpoint"] == "Sales"
    assert {"NServiceBus.ProcessingMachine", "$.diagnostics.hostid", "$.diagnostics.hostdisplayname"} <= headers.keys()
    assert parse_time(headers["NServiceBus.TimeOfFailure"]).tzinfo is not None


@pytest.mark.parametrize("error", [Unrecoverable("no"), SystemExit(3)])
def test_any_exception_of_a_handler_fails_the_message(bench: Bench, calls: Calls, error: BaseException) -> None:
    bench.configure(IMMEDIATE_RETRIES=1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        raise error

    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == ([1] if isinstance(error, Unrecoverable) else [1, 2])
    assert len(bench.rows("error")) == 1


def test_swallowed_database_error_is_a_failure(bench: Bench) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        write_instance(bench, "lost")
        with contextlib.suppress(DatabaseError), context.connection.cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")
        if bench.database.vendor == "postgresql":
            return
        transaction.set_rollback(True, using=bench.database.alias)

    bench.put_message("Test.Message")
    bench.run()
    assert written(bench) == []
    (headers,) = bench.headers("error")
    assert "cannot be committed" in headers["NServiceBus.ExceptionInfo.Message"]


def test_open_atomic_block_fails_only_its_own_message(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])
        write_instance(bench, f"row {message['n']}")
        if message["n"] == 1:
            transaction.atomic(using=bench.database.alias).__enter__()
            write_instance(bench, "inside")

    send_many("Test.Message", [{"n": 1}, {"n": 2}], to=bench_address(bench, "Sales"))
    bench.run()
    assert calls.seen == [1, 2]
    assert written(bench) == ["row 2"]
    (headers,) = bench.headers("error")
    assert "left an atomic() open" in headers["NServiceBus.ExceptionInfo.Message"]


def test_handler_that_closes_its_connection_fails_only_its_message(bench: Bench, calls: Calls) -> None:
    bench.configure(IMMEDIATE_RETRIES=1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add((message["n"], context.attempt))
        write_instance(bench, f"row {message['n']}")
        if message["n"] == 1:
            context.connection.close()

    send_many("Test.Message", [{"n": 1}, {"n": 2}], to=bench_address(bench, "Sales"))
    bench.run()
    assert sorted(calls.seen) == [(1, 1), (1, 2), (2, 1)]
    assert written(bench) == ["row 2"]
    assert len(bench.rows("error")) == 1


def test_returned_coroutine_is_a_failure_without_retries(bench: Bench, calls: Calls) -> None:
    bench.configure(IMMEDIATE_RETRIES=3)

    async def work() -> None:
        calls.add("never")

    handles("Test.Message")(lambda message, context: work())
    bench.put_message("Test.Message")
    bench.run()
    (headers,) = bench.headers("error")
    assert "returned a coroutine" in headers["NServiceBus.ExceptionInfo.Message"]
    assert calls.seen == []


def test_send_to_missing_queue_fails_the_message_and_sends_nothing(bench: Bench) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send("Test.Other", {}, to=bench_address(bench, "error"))
        context.send("Test.Other", {}, to=bench_address(bench, "nowhere"))

    bench.put_message("Test.Message")
    bench.run()
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"].endswith("QueueNotFound")
    assert re.search(r"nowhere.*does not exist", headers["NServiceBus.ExceptionInfo.Message"])


def test_reply_goes_to_the_sender_and_keeps_the_conversation(bench: Bench) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.reply("Test.Answer", {"b": 2})
        context.forward(bench_address(bench, "error"))

    bench.configure(SATELLITES={"Other": {}})
    bench.put_message(
        "Test.Message",
        {"a": 1},
        **{
            "NServiceBus.MessageId": "order-17",
            "NServiceBus.ReplyToAddress": bench_address(bench, "error"),
            "NServiceBus.ConversationId": "talk",
        },
    )
    bench.run()
    answer, forwarded = bench.headers("error")
    assert answer["NServiceBus.MessageIntent"] == "Reply"
    assert answer["NServiceBus.CorrelationId"] == answer["NServiceBus.RelatedTo"] == "order-17"
    assert answer["NServiceBus.ConversationId"] == "talk"
    assert answer["NServiceBus.EnclosedMessageTypes"] == "Test.Answer"
    assert forwarded["NServiceBus.MessageId"] == "order-17"
    assert bench.rows("error")[1].body == b'{"a": 1}'


def test_send_local_ignores_the_routes(bench: Bench, calls: Calls) -> None:
    bench.configure(routes={"Test.*": "error"})

    @handles("Test.Message")
    def first(message: Any, context: Any) -> None:
        context.send_local("Test.Again", {"number": 2})

    handles("Test.Again")(lambda message, context: calls.add((context.endpoint, message)) and None)
    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == [("Sales", {"number": 2})]
    assert bench.rows("error") == []


def test_expired_message_is_dropped_without_a_call(bench: Bench, counting: object, calls: Calls) -> None:
    bench.table("Sales").send(
        [NewRow("11111111-2222-3333-4444-555555555555", typed("Test.Message"), b"{}", time_to_be_received_ms=-1000)]
    )
    bench.run()
    assert calls.seen == bench.rows("Sales") == bench.rows("error") == []


@pytest.mark.parametrize(
    "headers",
    ['{"a":', "[1]", "no json", '{"a":"1","a":"2"}', '{"n":{"a":1}}', '{"a":"line\nbreak"}', "[" * 100_000],
    ids=["cut", "list", "text", "twice", "nested", "control", "deep"],
)
def test_unreadable_headers_are_moved_unchanged(bench: Bench, headers: str, events: Callable[[], list[str]]) -> None:
    bench.put(headers, b"\x00\xffbody")
    bench.run()
    (row,) = bench.rows("error")
    assert (row.headers, row.body) == (headers, b"\x00\xffbody")
    assert "message_poison" in events()


def test_null_headers_and_null_body_are_moved_with_a_reason(bench: Bench) -> None:
    bench.put("null", b"{}")
    bench.put(typed("Test.Message"), b"", row_id="22222222-2222-3333-4444-555555555555")
    body = "body" if bench.database.vendor == "postgresql" else "Body"
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f"UPDATE {bench.table('Sales').qualified} SET {body} = NULL")
    bench.run()
    null_headers, null_body = bench.headers("error")
    assert [row.body for row in bench.rows("error")] == [b"", b""]
    assert null_headers["NServiceBus.ExceptionInfo.ExceptionType"].endswith("NullHeaders")
    assert null_headers["NServiceBus.FailedQ"]
    assert null_body["NServiceBus.EnclosedMessageTypes"] == "Test.Message"
    assert null_body["NServiceBus.ExceptionInfo.Message"] == "the column Body is NULL"


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ({"NServiceBus.EnclosedMessageTypes": "Test.Unknown"}, b"{}", "no handler for message"),
        ({}, b"{}", "EnclosedMessageTypes is missing"),
        ({"NServiceBus.EnclosedMessageTypes": "Test.PlaceOrder"}, b"{", "JSON"),
        ({"NServiceBus.EnclosedMessageTypes": "Test.PlaceOrder"}, b"{}", "needs the member 'order_id', which has no default"),
        ({"NServiceBus.EnclosedMessageTypes": "Test.PlaceOrder"}, b'{"order_id": 7}', "order_id: expected text, got the number 7"),
        ({"NServiceBus.EnclosedMessageTypes": "Test.PlaceOrder", "NServiceBus.ContentType": "text/xml"}, b"<a>", "XML"),
        ({"NServiceBus.EnclosedMessageTypes": "Test.PlaceOrder"}, "{}".encode("utf-16"), "UTF-16"),
    ],
)
def test_unrecoverable_message_is_not_retried(
    bench: Bench, calls: Calls, headers: dict[str, str], body: bytes, reason: str
) -> None:
    bench.configure(IMMEDIATE_RETRIES=5)
    handles(PlaceOrder)(lambda message, context: calls.add(message))
    bench.put(json.dumps(headers), body)
    bench.run()
    assert calls.seen == []
    (written_headers,) = bench.headers("error")
    assert reason in written_headers["NServiceBus.ExceptionInfo.Message"]
    assert bench.rows("error")[0].body == body


def test_empty_body_is_consumed_without_a_call(bench: Bench, counting: object, calls: Calls) -> None:
    bench.put(typed("Test.Message"), b"")
    assert bench.run() == 1
    assert calls.seen == bench.rows("error") == bench.rows("Sales") == []


def test_body_of_64_mib_is_handled(bench: Bench, calls: Calls) -> None:
    handles("Test.Message")(lambda message, context: calls.add(len(message["text"])))
    bench.database.configure(ENDPOINTS={"Sales": FAST}, MAX_BODY_SIZE=None)
    send("Test.Message", {"text": "x" * (64 * 1024 * 1024)}, to=bench_address(bench, "Sales"))
    bench.run()
    assert calls.seen == [64 * 1024 * 1024]


@pytest.mark.parametrize("hook", [lambda: 1 / 0, lambda: sys.exit("out of the hook")])
def test_failing_on_commit_hook_rolls_back_nothing(
    bench: Bench, calls: Calls, events: Callable[[], list[str]], hook: Callable[[], Any]
) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        write_instance(bench, "kept")
        transaction.on_commit(hook, using=bench.database.alias)
        transaction.on_commit(lambda: calls.add("second hook"), using=bench.database.alias)

    bench.put_message("Test.Message")
    bench.run()
    assert written(bench) == ["kept"]
    assert calls.seen == ["second hook"]
    assert bench.rows("error") == []
    assert "on_commit_hook_failed" in events()


def typed(name: str) -> str:
    return json.dumps({"NServiceBus.EnclosedMessageTypes": name})


def bench_address(bench: Bench, name: str) -> str:
    return bench.table(name).address.full(None)
