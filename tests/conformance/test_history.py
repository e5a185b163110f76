"""The tests of older transports, ported; docs/reference/conformance.md maps theirs to these.

See docs/internals/endpoints.md#historical-tests.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from sqlqueue_app import handles, publish
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.headers import MAX_FORWARDS
from sqlqueue_app.models import Instance
from sqlqueue_app.tables.installation import subscription_address
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.subscriptions import SubscriptionRow, SubscriptionTable
from tests.support.bench import Bench, Calls, Running
from tests.support.waiting import poll_until
from tests.support.worker_processes import address

MODES = ["none", "receive_only", "sends_atomic_with_receive", "transaction_scope"]
ROW = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize("mode", MODES)
def test_poison_message_is_unchanged_in_the_error_queue_and_blocks_no_other(bench: Bench, calls: Calls, mode: str) -> None:
    bench.configure(TRANSACTION_MODE=mode)
    handles("Test.Message")(lambda message, context: calls.add(message) and None)
    bench.put("{broken", b"\x00\xff")
    bench.put_message_of(1, "Test.Message", {"number": 1})
    bench.run()

    ((headers, body),) = [(row.headers, row.body) for row in bench.rows("error")]
    assert (headers, body) == ("{broken", b"\x00\xff")
    assert calls.seen == [{"number": 1}]


def test_raw_reply_to_address_is_kept_unchanged(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.headers.get("NServiceBus.ReplyToAddress"))
        context.forward(address(bench, "error"))

    headers = {"NServiceBus.EnclosedMessageTypes": "Test.Message", "NServiceBus.ReplyToAddress": "ReplyHere@SomeSchema"}
    bench.table("Sales").send([NewRow(ROW, json.dumps(headers), b"{}", None, "ReplyHere@SomeSchema")])
    bench.run()

    assert calls.seen == ["ReplyHere@SomeSchema"]
    assert [row["NServiceBus.ReplyToAddress"] for row in bench.headers("error")] == ["ReplyHere@SomeSchema"]


def test_circular_forwarding_ends_in_the_error_queue(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(None)
        context.forward(address(bench, "Sales"))

    bench.configure(IMMEDIATE_RETRIES=2)
    bench.put_message("Test.Message")
    bench.run()

    assert len(calls.seen) == MAX_FORWARDS + 1
    (headers,) = bench.headers("error")
    assert "forwarded" in headers["NServiceBus.ExceptionInfo.Message"]
    assert bench.rows("Sales") == []


@pytest.mark.parametrize("callbacks", [True, False])
def test_replies_reach_callback_queues_of_the_callers(bench: Bench, callbacks: bool) -> None:
    bench.configure(CALLBACKS=callbacks, INSTANCE="here", CALLBACK_QUEUES=1)
    bench.install_queues("Old", "Old.HOST-1")

    @handles("Test.Ask")
    def answer(message: Any, context: Any) -> None:
        context.reply("Test.Answer", {})

    headers = {"NServiceBus.ReplyToAddress": "Old", "NServiceBus.SqlServer.CallbackQueue": "Old.HOST-1"}
    bench.put_message("Test.Ask", **headers)
    bench.run()

    assert [len(bench.rows(queue)) for queue in ("Old", "Old.HOST-1", "error")] == [0, 1, 0]


def test_subscriber_with_several_workers_gets_one_copy(bench: Bench, calls: Calls) -> None:
    bench.configure(CALLBACKS=True, INSTANCE="here", CALLBACK_QUEUES=2)
    handles("Test.Placed")(lambda message, context: calls.add(message["n"]) and None)
    with Running(bench), Running(bench):
        poll_until(lambda: len(subscriptions(bench)) == 1 and Instance.objects.using(bench.database.alias).count() == 2)
        publish("Test.Placed", {"n": 1})
        poll_until(lambda: calls.seen == [1])
    assert [(row.endpoint, row.address) for row in subscriptions(bench)] == [("Sales", address(bench, "Sales"))]
    assert calls.seen == [1]
    assert [bench.rows(queue) for queue in ("Sales", "Sales.here", "Sales.here-2", "error")] == [[]] * 4


@pytest.mark.parametrize("fails", [False, True])
def test_native_transaction_spans_queues_of_several_schemas(postgresql_bench: Bench, fails: bool) -> None:
    bench = postgresql_bench
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA bil")
    bench.database.configure(SCHEMA_FOR_QUEUE={"Billing": "bil"})
    bench.configure(TRANSACTION_MODE="sends_atomic_with_receive", routes={"Billing.*": "Billing"})
    bench.install_queues("Billing", "Shipping")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send("Billing.Bill", {})
        context.send("Shipping.Ship", {}, to="Shipping")
        if fails:
            raise ValueError("no")

    bench.put_message("Test.Message")
    bench.run()

    assert bench.table("Billing").qualified == '"bil"."Billing"'
    assert [len(bench.rows(queue)) for queue in ("Billing", "Shipping", "error")] == ([0, 0, 1] if fails else [1, 1, 0])


def subscriptions(bench: Bench) -> list[SubscriptionRow]:
    book = get_settings().address_book(bench.database.vendor)
    return SubscriptionTable(bench.database.alias, subscription_address(book)).all()
