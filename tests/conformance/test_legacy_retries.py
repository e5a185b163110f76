"""The satellite queue `.Retries` of transports 1.x to 3.x: its messages are retried later, as often as the settings allow.

The rows are those of cores 4 and 5 (docs/internals/endpoints.md#retry-policy). They already have failure headers:
`NServiceBus.Retries` counts the delayed retries so far, and its timestamp is that of the first.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections

from sqlqueue_app import RetryNow, handles
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.messages.times import format_time, parse_time
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.rows import NewRow
from tests.support.bench import Bench, Calls
from tests.support.tables import refuse_a_second_copy
from tests.support.worker_processes import address

MESSAGE_ID = "aaaaaaaa-0000-0000-0000-000000000001"
HOUR = 3600
FAILURE: dict[str, str | None] = {
    "NServiceBus.ExceptionInfo.ExceptionType": "System.InvalidOperationException",
    "NServiceBus.ExceptionInfo.Message": "the card is blocked – später",
    "NServiceBus.ExceptionInfo.Source": "Shop",
    "NServiceBus.ExceptionInfo.StackTrace": "System.InvalidOperationException: …\r\n   at Shop.Sales.Handle()",
    "NServiceBus.ExceptionInfo.HelpLink": None,
    "NServiceBus.TimeOfFailure": "2015-09-01 10:11:12:123456 Z",
}
HEADERS: dict[str, str | None] = {
    "NServiceBus.MessageId": MESSAGE_ID,
    "NServiceBus.EnclosedMessageTypes": "Test.Message, Shop, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null",
    "NServiceBus.Version": "5.2.26",
    "Own": "é",
    **FAILURE,
}
Headers = dict[str, str | None]


@pytest.fixture
def drained(bench: Bench) -> Bench:
    configure(bench)
    bench.install_queues("Billing")
    return bench


def configure(bench: Bench, **endpoint: Any) -> None:
    bench.configure(LEGACY_SATELLITES=True, **{"DELAYED_RETRIES": 3, "DELAYED_RETRY_INCREASE": HOUR, **endpoint})


def put(bench: Bench, headers: Headers | None = None, body: bytes = b"{}", *, to: str | None = "Sales", **columns: Any) -> None:
    all_headers = {**HEADERS, "NServiceBus.FailedQ": to, **(headers or {})}
    row_id = str(uuid.uuid4()) if bench.database.vendor == "postgresql" else MESSAGE_ID
    bench.table("Sales.Retries").send([NewRow(row_id, json.dumps(all_headers, ensure_ascii=False), body, **columns)])


def waiting(bench: Bench) -> list[tuple[dict[str, Any], bytes]]:
    """Headers and bodies of the messages in the delayed table of Sales."""
    with bench.database.connection.cursor() as cursor:
        cursor.execute('SELECT headers, body FROM "Sales.Delayed"')
        return [(json.loads(headers), bytes(body)) for headers, body in cursor.fetchall()]


def seconds_to_wait(bench: Bench) -> float:
    """Seconds until the message is due, by the clock of the database."""
    table = DelayedTable(bench.database.alias, bench.table("Sales.Delayed").address)
    seconds = table.seconds_until_due()
    assert seconds is not None
    return seconds


@pytest.mark.parametrize(("retries", "delay"), [(None, HOUR), ("1", 2 * HOUR), ("2", 3 * HOUR)])
def test_retry_waits_in_the_delayed_table(drained: Bench, retries: str | None, delay: int) -> None:
    before = datetime.now(UTC)
    put(drained, {"NServiceBus.Retries": retries} if retries else {}, b"\x00body", to="Billing@OLDBOX")
    drained.run()

    assert drained.rows("Sales.Retries") == drained.rows("Billing") == drained.rows("error") == []
    ((headers, body),) = waiting(drained)
    assert body == b"\x00body"
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert headers["NServiceBus.FailedQ"] == "Billing@OLDBOX"
    assert headers["NServiceBus.Retries"] == str(int(retries or 0) + 1)
    stored = parse_time(headers["NServiceBus.Retries.Timestamp"])
    assert before - timedelta(milliseconds=1) <= stored <= datetime.now(UTC)
    # Every later transport reads this text as the same queue.
    assert headers["NServiceBus.SqlServer.ForwardDestination"] == address(drained, "Billing")
    assert (
        stored + timedelta(seconds=delay)
        <= parse_time(headers["NServiceBus.DeliverAt"])
        <= datetime.now(UTC) + timedelta(seconds=delay)
    )
    assert delay - HOUR < seconds_to_wait(drained) <= delay


def test_due_retry_is_handled_where_it_failed(drained: Bench, calls: Calls) -> None:
    configure(drained, DELAYED_RETRY_INCREASE=0)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add((context.message_id, context.headers["NServiceBus.Retries"], message))

    put(drained, {"NServiceBus.Retries": "1"}, b'{"a": 1}')
    drained.run()
    assert calls.seen == [(MESSAGE_ID, "2", {"a": 1})]
    assert waiting(drained) == []


def test_retries_that_an_old_endpoint_began_are_completed(drained: Bench, calls: Calls) -> None:
    configure(drained, DELAYED_RETRIES=3, DELAYED_RETRY_INCREASE=0, IMMEDIATE_RETRIES=1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.headers["NServiceBus.Retries"])
        raise LookupError("still")

    put(drained, {"NServiceBus.Retries": "1"})
    drained.run()
    assert calls.seen == ["2", "2", "3", "3"]
    (headers,) = drained.headers("error")
    assert headers["NServiceBus.ExceptionInfo.Message"] == "still"


@pytest.mark.parametrize("retries", ["3", "999999999"])
def test_message_without_retries_left_is_unchanged_in_the_error_queue(
    drained: Bench, events: Callable[[], list[str]], retries: str
) -> None:
    first = "2015-09-01 10:00:00:000000 Z"
    counted: Headers = {"NServiceBus.Retries": retries, "NServiceBus.FLRetries": "4", "NServiceBus.Retries.Timestamp": first}
    put(drained, counted, b"\x00body", to="Gone@OLDBOX", correlation_id="asked before", reply_to_address="Web@OLDBOX")
    drained.run()

    assert (drained.rows("Sales.Retries"), waiting(drained)) == ([], [])
    (row,) = drained.rows("error")
    kept = {**HEADERS, "NServiceBus.FailedQ": "Gone@OLDBOX", "NServiceBus.Retries.Timestamp": first}
    if drained.database.vendor != "postgresql":
        kept |= {"NServiceBus.CorrelationId": "asked before", "NServiceBus.ReplyToAddress": "Web@OLDBOX"}
    assert json.loads(row.headers or "") == kept
    assert (row.body, row.expires) == (b"\x00body", None)
    if drained.database.vendor != "postgresql":
        assert (str(row.id), row.correlation_id, row.reply_to_address) == (MESSAGE_ID, "asked before", "Web@OLDBOX")
    assert "moved_to_error_queue" in events()


def test_due_time_beyond_the_maximum_ends_the_retries(drained: Bench) -> None:
    configure(drained, DELAYED_RETRIES=1_000_000_000, DELAYED_RETRY_INCREASE=timedelta(days=3660))
    for retries in ("1500", "999999999"):
        put(drained, {"NServiceBus.Retries": retries})
        drained.run()
    assert [headers["NServiceBus.FailedQ"] for headers in drained.headers("error")] == ["Sales"] * 2
    assert (drained.rows("Sales.Retries"), waiting(drained)) == ([], [])


def test_no_retry_a_day_after_the_first_one(drained: Bench) -> None:
    long_ago = format_time(datetime.now(UTC) - timedelta(days=1, minutes=1))
    put(drained, {"NServiceBus.Retries": "1", "NServiceBus.Retries.Timestamp": long_ago})
    drained.run()
    assert (len(drained.rows("error")), waiting(drained)) == (1, [])


def test_message_without_failure_headers_gets_them_in_the_error_queue(drained: Bench) -> None:
    text = json.dumps({"NServiceBus.FailedQ": "Sales", "NServiceBus.Retries": "3"})
    drained.put(text, b"{}", queue="Sales.Retries", row_id=MESSAGE_ID)
    drained.run()
    (headers,) = drained.headers("error")
    assert (headers["NServiceBus.FailedQ"], headers["NServiceBus.MessageId"]) == ("Sales", MESSAGE_ID)
    assert headers["NServiceBus.ExceptionInfo.Message"] == "no delayed retry is left after 3"
    assert headers["NServiceBus.ProcessingEndpoint"] == "Sales"


@pytest.mark.parametrize("text", ["", "two", "9" * 40, None])
def test_invalid_retry_count_or_time_is_ignored(drained: Bench, text: str | None) -> None:
    put(drained, {"NServiceBus.Retries": text, "NServiceBus.Retries.Timestamp": text})
    drained.run()
    assert [headers["NServiceBus.Retries"] for headers, _ in waiting(drained)] == ["1"]


@pytest.mark.parametrize(
    ("retries", "to", "reason"),
    [
        (3, None, "the retry has no header NServiceBus.FailedQ"),
        (0, None, "the retry has no header NServiceBus.FailedQ"),
        (3, "  @BOX", "on its way to '  @BOX'"),
        (3, "Gone", "on its way to 'Gone'"),
        (3, "Sales.Retries", "a satellite queue of the same endpoint"),
    ],
)
def test_retry_without_a_queue_to_return_to_is_in_the_error_queue(
    drained: Bench, retries: int, to: str | None, reason: str
) -> None:
    configure(drained, DELAYED_RETRIES=retries)
    put(drained, body=b"\x00body", to=to)
    drained.run()
    assert (drained.rows("Sales.Retries"), waiting(drained)) == ([], [])
    ((row, headers),) = zip(drained.rows("error"), drained.headers("error"), strict=True)
    assert reason in headers["NServiceBus.ExceptionInfo.Message"]
    assert {name: headers[name] for name in HEADERS.keys() - FAILURE.keys()} == {
        name: HEADERS[name] for name in HEADERS.keys() - FAILURE.keys()
    }
    assert row.body == b"\x00body"


def test_values_of_columns_are_kept_in_the_headers(drained: Bench) -> None:
    if drained.database.vendor == "postgresql":
        pytest.skip("the tables of PostgreSQL have no such columns")
    text = json.dumps({"NServiceBus.FailedQ": "Sales", "NServiceBus.CorrelationId": None})
    drained.table("Sales.Retries").send([NewRow(MESSAGE_ID, text, b"{}", "asked before", "Web@OLDBOX")])
    drained.run()
    ((kept, _),) = waiting(drained)
    found = [kept[f"NServiceBus.{name}"] for name in ("MessageId", "CorrelationId", "ReplyToAddress")]
    assert found == [MESSAGE_ID, "asked before", "Web@OLDBOX"]


def own_policy(config: Any, context: Any) -> Any:
    return RetryNow()


def test_custom_policy_is_not_called(drained: Bench) -> None:
    configure(drained, RECOVERABILITY=f"{__name__}.own_policy")
    put(drained)
    drained.run()
    assert len(waiting(drained)) == 1


@pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only"])
def test_row_and_its_delayed_copy_are_one_transaction(
    drained: Bench, mode: str, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    configure(drained, TRANSACTION_MODE=mode)
    put(drained)
    broken = [DelayedTable]
    insert = DelayedTable.insert

    def breaks_once(self: DelayedTable, rows: Any) -> None:
        assert connections[self.alias].in_atomic_block
        insert(self, rows)
        if broken:
            broken.pop()
            raise QueueNotFound("the disk is full")

    monkeypatch.setattr(DelayedTable, "insert", breaks_once)
    drained.run()
    assert "message_stays" in events()
    assert (len(waiting(drained)), drained.rows("Sales.Retries")) == (1, [])


@pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only"])
def test_row_and_its_copy_in_the_error_queue_are_one_transaction(
    drained: Bench, mode: str, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    configure(drained, TRANSACTION_MODE=mode)
    put(drained, {"NServiceBus.Retries": "3"})
    broken = [QueueTable]
    send = QueueTable.send

    def breaks_once(self: QueueTable, rows: Any) -> None:
        send(self, rows)
        if broken:
            broken.pop()
            raise QueueNotFound("the disk is full")

    monkeypatch.setattr(QueueTable, "send", breaks_once)
    drained.run()
    assert "message_stays" in events()
    assert (len(drained.rows("error")), drained.rows("Sales.Retries")) == (1, [])


def test_without_transactions_a_retry_returns_immediately(drained: Bench) -> None:
    drained.configure(LEGACY_SATELLITES=True, TRANSACTION_MODE="none")
    drained.install_queues("Billing")
    put(drained, {"NServiceBus.Retries": "7"}, to="Billing")
    drained.run()
    assert [headers["NServiceBus.Retries"] for headers in drained.headers("Billing")] == ["7"]


def test_retry_that_its_queue_refuses_is_in_the_error_queue(drained: Bench) -> None:
    drained.configure(LEGACY_SATELLITES=True, TRANSACTION_MODE="none")
    drained.install_queues("Billing")
    refuse_a_second_copy(drained.database, drained.table("Billing"))
    for _ in range(2):
        put(drained, to="Billing", correlation_id="c")
    drained.run()
    assert len(drained.rows("Billing")) == 1
    (failed,) = drained.headers("error")
    assert failed["NServiceBus.FailedQ"] == "Billing"
