"""Addresses that lead nowhere: of replies, schemas and subscribers, and in circles (docs: What happens when …)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app import handles, publish, send, subscribe, unsubscribe
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError, QueueNotFound
from sqlqueue_app.messages.headers import MAX_FORWARDS
from sqlqueue_app.tables.installation import subscription_address
from sqlqueue_app.tables.subscriptions import SubscriptionRow, SubscriptionTable
from tests.support.bench import FAST, Bench, Calls
from tests.support.sqlserver import lacks, needs
from tests.support.tables import execute
from tests.support.worker_processes import address

MODES = pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"])
BATCHES = pytest.mark.parametrize("batch", [1, 10])
NOWHERE = {
    "gone": "does not exist",
    '"nowhere"."gone"': "does not exist",
    "gone@[nowhere]@[elsewhere]": "does not exist",
    'Sales"; DROP TABLE "error"; --': "does not exist",
    "Sales]; DROP TABLE error; --": "does not exist",
    "x" * 300: "x" * 100,
    "a\0b": "NUL",
    "": "no reply-to address",
}


# --- replies ----------------------------------------------------------------------------------------------------------------------


@MODES
@BATCHES
def test_reply_to_nowhere_fails_only_its_own_message(bench: Bench, calls: Calls, mode: str, batch: int) -> None:
    bench.configure(TRANSACTION_MODE=mode, BATCH_SIZE=batch, MAX_CONCURRENCY=1)
    bench.install_queues("Asker")

    @handles("Test.Ask")
    def handler(message: Any, context: Any) -> None:
        context.reply("Test.Answer", {})

    nowhere = dict(NOWHERE)
    if bench.database.vendor == "sqlserver" and lacks("NUL in a text"):
        del nowhere["a\x00b"]
    for number, to in enumerate([*nowhere, address(bench, "Asker")]):
        headers = {"NServiceBus.EnclosedMessageTypes": "Test.Ask", "NServiceBus.ReplyToAddress": to}
        bench.put(json.dumps(headers), b"{}", row_id=f"00000000-0000-0000-0000-{number:012}")
    bench.run()

    failed = {headers["NServiceBus.ReplyToAddress"]: headers for headers in bench.headers("error")}
    assert failed.keys() == nowhere.keys()
    for to, reason in nowhere.items():
        assert reason in failed[to]["NServiceBus.ExceptionInfo.Message"]
        assert failed[to]["NServiceBus.FailedQ"] == address(bench, "Sales")
    assert len(bench.rows("Asker")) == 1
    assert bench.rows("Sales") == []


# --- schemas ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"DEFAULT_SCHEMA": "nowhere"}, {"SCHEMA_FOR_QUEUE": {"error": "nowhere"}}])
def test_unknown_schema_in_settings_stops_worker_and_installer(bench: Bench, wrong: dict[str, Any]) -> None:
    bench.database.configure(**wrong)
    if bench.database.vendor == "sqlite":
        (key,) = wrong
        for start in (bench.run, bench.install):
            with pytest.raises(ConfigurationError, match=f"{key}.*SQLite has no schemas"):
                start()
        return
    quoted = re.escape("[nowhere]" if bench.database.vendor == "sqlserver" else '"nowhere"')
    with pytest.raises(QueueNotFound, match=rf"endpoint .Sales. cannot receive: table \S*{quoted}\..* run sqlqueue_install"):
        bench.run()
    needs(bench.database.vendor, "error 2760 for a missing schema")
    with pytest.raises(CommandError, match=rf"schema {quoted} does not exist: create it first \(CREATE SCHEMA {quoted}\)"):
        call_command("sqlqueue_install")


def test_error_queue_in_unknown_schema_stops_worker_and_installer(postgresql_bench: Bench) -> None:
    postgresql_bench.database.configure(ENDPOINTS={"Sales": {**FAST, "ERROR_QUEUE": '"nowhere"."error"'}})
    expected = r'endpoint .Sales. cannot receive: table \S*"nowhere"\."error" does not exist; run sqlqueue_install'
    with pytest.raises(QueueNotFound, match=expected):
        postgresql_bench.run()
    with pytest.raises(CommandError, match=r'schema "nowhere" does not exist: create it first'):
        call_command("sqlqueue_install")


def test_message_to_unknown_schema_is_not_sent(bench: Bench) -> None:
    if bench.database.vendor == "sqlite":
        send("Test.Message", {}, to="Sales@[nowhere]")
        assert len(bench.rows("Sales")) == 1, "SQLite has no schemas: a table is known by its name alone"
        return
    to, name = ("Sales@[nowhere]", "[nowhere].[Sales]") if bench.database.vendor == "sqlserver" else (('"nowhere"."Sales"',) * 2)
    with pytest.raises(QueueNotFound, match=re.escape(f"{name} does not exist")):
        send("Test.Message", {}, to=to)
    assert bench.rows("Sales") == []


# --- subscribers ------------------------------------------------------------------------------------------------------------------


@BATCHES
@MODES
def test_event_for_dropped_queue_is_published_after_unsubscribing(bench: Bench, calls: Calls, mode: str, batch: int) -> None:
    bench.configure(routes={"Test.*": "Sales"}, TRANSACTION_MODE=mode, BATCH_SIZE=batch, MAX_CONCURRENCY=1)
    bench.install_queues("Billing", "Gone")
    for endpoint in ("Billing", "Gone"):
        subscribe("Test.Placed", endpoint=endpoint)
    execute(bench.database, f"DROP TABLE {bench.table('Gone').qualified}")
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (number integer NOT NULL)")

    @handles("Test.Order")
    def order(message: Any, context: Any) -> None:
        with bench.database.connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (number) VALUES (%s)", [message["n"]])
        if message["n"] == 1:
            context.publish("Test.Placed", {"n": 1})

    def orders() -> list[int]:
        with bench.database.connection.cursor() as cursor:
            cursor.execute("SELECT number FROM orders ORDER BY number")
            return [row[0] for row in cursor.fetchall()]

    for number in range(3):
        send("Test.Order", {"n": number})
    bench.run()
    (failed,) = bench.rows("error")
    reason = json.loads(failed.headers or "")["NServiceBus.ExceptionInfo.Message"]
    assert "the subscription of endpoint 'Gone' to 'Test.Placed'" in reason
    assert "remove it with unsubscribe() or sqlqueue_subscriptions --remove" in reason
    # all of the message or nothing, except in mode none, where the handler's own rows are in no transaction
    assert orders() == ([0, 1, 2] if mode == "none" else [0, 2])
    assert bench.rows("Billing") == bench.rows("Sales") == []

    assert unsubscribe("Test.Placed", endpoint="Gone")
    bench.put(failed.headers or "", failed.body or b"")
    bench.run()
    assert len(bench.rows("Billing")) == 1
    assert orders()[:3] == ([0, 1, 1] if mode == "none" else [0, 1, 2])


def test_event_for_unknown_schema_reaches_no_subscriber_and_names_the_subscription(postgresql_bench: Bench) -> None:
    bench = postgresql_bench
    bench.install_queues("Billing")
    subscribe("Test.Placed", endpoint="Billing")
    table = SubscriptionTable(bench.database.alias, subscription_address(get_settings().address_book("postgresql")))
    table.subscribe(SubscriptionRow("Far", "Test.Placed", '"nowhere"."Far"'))
    with pytest.raises(QueueNotFound, match=r"the subscription of endpoint 'Far' to 'Test\.Placed'"):
        publish("Test.Placed", {})
    assert bench.rows("Billing") == []


# --- circles ----------------------------------------------------------------------------------------------------------------------


@BATCHES
def test_circle_of_two_endpoints_ends_in_error_queue(
    bench: Bench, calls: Calls, batch: int, events: Callable[[], list[str]]
) -> None:
    bench.database.configure(
        ENDPOINTS={name: {**FAST, "BATCH_SIZE": batch, "IMMEDIATE_RETRIES": 3} for name in ("Sales", "Billing")}
    )
    bench.install()

    @handles("Test.Ball")
    def play(message: Any, context: Any) -> None:
        calls.add(context.endpoint)
        context.forward(address(bench, "Billing" if context.endpoint == "Sales" else "Sales"))

    bench.put_message("Test.Ball", {"n": 1})
    bench.run()

    assert calls.seen == ["Sales", "Billing"] * (MAX_FORWARDS // 2) + ["Sales"]
    (failed,) = bench.rows("error")
    headers = json.loads(failed.headers or "")
    assert f"was forwarded {MAX_FORWARDS} times, now to" in headers["NServiceBus.ExceptionInfo.Message"]
    assert (bytes(failed.body or b""), headers["NServiceBus.FailedQ"]) == (b'{"n": 1}', address(bench, "Sales"))
    assert events().count("moved_to_error_queue") == 1


def test_finite_chain_is_not_a_circle(bench: Bench, calls: Calls) -> None:
    @handles("Test.Ball")
    def play(message: Any, context: Any) -> None:
        if calls.add(None) < MAX_FORWARDS:
            context.forward(address(bench, "Sales"))

    bench.put_message("Test.Ball")
    bench.run()
    assert len(calls.seen) == MAX_FORWARDS
    assert bench.rows("error") == bench.rows("Sales") == []


@pytest.mark.parametrize("key", ["ERROR_QUEUE", "AUDIT_QUEUE"])
def test_endpoint_cannot_be_its_own_error_or_audit_queue(bench: Bench, key: str) -> None:
    bench.database.configure(ENDPOINTS={"Sales": {**FAST, key: "Sales"}})
    with pytest.raises(ConfigurationError, match=rf"{key}.* is 'Sales', expected a queue that the endpoint does not receive from"):
        bench.run()
