"""Draining the satellite queues of transports 1.x to 3.x: every message reaches its destination or the error queue."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.installation import planned_tables
from sqlqueue_app.messages.errors import LockTimeout, QueueNotFound
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.receiving.delayed import due_messages_of
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from sqlqueue_app.tables.queue import forget_tables
from sqlqueue_app.tables.rows import NewRow
from tests.support.bench import FAST, Bench, Calls
from tests.support.tables import execute
from tests.support.worker_processes import address

MESSAGE_ID = "aaaaaaaa-0000-0000-0000-000000000001"
HEADERS = {"NServiceBus.MessageId": MESSAGE_ID, "NServiceBus.EnclosedMessageTypes": "Test.Message", "Own": "é"}
NOW = datetime.now(UTC)


@pytest.fixture
def drained(bench: Bench) -> Bench:
    bench.configure(LEGACY_SATELLITES=True)
    bench.install_queues("Billing")
    return bench


def put(bench: Bench, satellite: str, body: bytes = b"{}", /, **headers: str | None) -> None:
    bench.put(json.dumps({**HEADERS, **headers}), body, queue=f"Sales.{satellite}", row_id=str(uuid.uuid4()))


def timeout(due: datetime, to: str, **more: str) -> dict[str, Any]:
    return {"NServiceBus.Timeout.Expire": format_time(due), "NServiceBus.Timeout.RouteExpiredTimeoutTo": to, **more}


def delayed(bench: Bench) -> DelayedTable:
    book = get_settings().address_book(bench.database.vendor)
    return DelayedTable(bench.database.alias, delayed_address(book, "Sales"))


def in_delayed(bench: Bench) -> int:
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {delayed(bench).qualified}")
        return int(cursor.fetchone()[0])


def move_due(bench: Bench) -> int:
    (due,) = due_messages_of(get_settings())
    moved = 0
    while batch := due.move_batch():
        moved += batch
    return moved


def satellites_are_empty(bench: Bench) -> bool:
    return not any(bench.rows(f"Sales.{name}") for name in ("Retries", "Timeouts", "TimeoutsDispatcher"))


def test_without_delayed_retries_a_retry_is_handled_where_it_failed(drained: Bench, calls: Calls, counting: object) -> None:
    put(drained, "Retries", **{"NServiceBus.FailedQ": address(drained, "Sales"), "NServiceBus.Retries": "1"})
    drained.run()
    assert len(calls.seen) == 1
    assert satellites_are_empty(drained)
    assert drained.rows("error") == []


def test_message_is_moved_unchanged(drained: Bench) -> None:
    text = json.dumps({**HEADERS, "NServiceBus.FailedQ": address(drained, "Billing")}, ensure_ascii=False, indent=1)
    row = NewRow(MESSAGE_ID, text, b"\x00body", "correlation", "Web")
    drained.table("Sales.Retries").send([row])
    drained.run()
    (moved,) = drained.rows("Billing")
    assert (moved.headers, moved.body, moved.expires) == (text, b"\x00body", None)
    if drained.database.vendor != "postgresql":
        assert (str(moved.id), moved.correlation_id, moved.reply_to_address) == (MESSAGE_ID, "correlation", "Web")


def test_message_id_that_only_the_row_has_is_kept(drained: Bench) -> None:
    text = json.dumps({"NServiceBus.FailedQ": address(drained, "Billing")})
    drained.put(text, b"{}", queue="Sales.Retries", row_id=MESSAGE_ID)
    drained.run()
    (moved,) = drained.rows("Billing")
    assert MESSAGE_ID in (str(moved.id), json.loads(moved.headers or "").get("NServiceBus.MessageId"))


def test_addresses_of_old_transports_are_parsed(drained: Bench) -> None:
    for to in ("Billing", "Billing@OLDBOX", address(drained, "Billing")):
        put(drained, "Retries", **{"NServiceBus.FailedQ": to})
    drained.run()
    assert len(drained.rows("Billing")) == 3


@pytest.mark.parametrize(
    ("satellite", "headers", "reason", "retried_to"),
    [
        ("Retries", {}, "the retry has no header NServiceBus.FailedQ", "Sales"),
        ("Retries", {"NServiceBus.FailedQ": ""}, "the retry has no header NServiceBus.FailedQ", "Sales"),
        ("Retries", {"NServiceBus.FailedQ": "@BOX"}, "on its way to '@BOX'", "@BOX"),
        ("Retries", {"NServiceBus.FailedQ": "Gone"}, "on its way to 'Gone'", "Gone"),
        ("Retries", {"NServiceBus.FailedQ": "Sales.Retries"}, "a satellite queue of the same endpoint", "Sales.Retries"),
        ("Timeouts", {}, "has no time: it has no header NServiceBus.Timeout.Expire", None),
        ("Timeouts", {"NServiceBus.ClearTimeouts": "True"}, "none of which is stored here: the timeout store", None),
        ("Timeouts", {"NServiceBus.Timeout.Expire": "tomorrow"}, "is 'tomorrow'", None),
        ("Timeouts", {"NServiceBus.Timeout.Expire": format_time(NOW)}, "no header NServiceBus.Timeout.RouteExpired", None),
        ("Timeouts", timeout(NOW + timedelta(days=1), "Gone"), "on its way to 'Gone'", None),
        ("TimeoutsDispatcher", {"Timeout.Id": "timeouts/7"}, "'timeouts/7' in the timeout store of the old endpoint", None),
    ],
)
@pytest.mark.parametrize("body", [b"{}", b""])
def test_unroutable_message_is_in_the_error_queue_with_the_reason(
    drained: Bench, satellite: str, headers: dict[str, Any], reason: str, retried_to: str | None, body: bytes
) -> None:
    put(drained, satellite, body, **headers)
    drained.run()
    (failed,) = drained.headers("error")
    assert reason in failed["NServiceBus.ExceptionInfo.Message"]
    main = {"Sales": address(drained, "Sales"), None: address(drained, f"Sales.{satellite}")}
    assert failed["NServiceBus.FailedQ"] == main.get(retried_to, retried_to)
    assert {name: failed[name] for name in HEADERS} == HEADERS
    assert drained.rows("error")[0].body == body
    assert satellites_are_empty(drained)
    assert in_delayed(drained) == 0


def test_row_with_unreadable_headers_is_unchanged_in_the_error_queue(drained: Bench) -> None:
    drained.put("{not json", b"body", queue="Sales.Timeouts")
    drained.run()
    (row,) = drained.rows("error")
    assert (row.headers, row.body) == ("{not json", b"body")


def test_due_timeout_is_forwarded_without_its_delay_headers(drained: Bench) -> None:
    due = timeout(NOW, address(drained, "Billing"), **{"NServiceBus.Timeout.ReplyToAddress": "Web@OLDBOX"})
    put(drained, "Timeouts", b"body", **due)
    drained.run()
    (headers,) = drained.headers("Billing")
    assert headers == {**HEADERS, "NServiceBus.ReplyToAddress": "Web@OLDBOX"}
    assert drained.rows("Billing")[0].body == b"body"


def test_future_timeout_waits_in_the_delayed_table_until_it_is_due(drained: Bench) -> None:
    tomorrow = NOW + timedelta(days=1)
    put(drained, "Timeouts", b"body", **timeout(tomorrow, "Billing@OLDBOX"))
    drained.run()
    assert satellites_are_empty(drained)
    assert (in_delayed(drained), drained.rows("Billing"), move_due(drained)) == (1, [], 0)
    with drained.database.connection.cursor() as cursor:
        cursor.execute(f"UPDATE {delayed(drained).qualified} SET due = %s", ["2020-01-01 00:00:00.000"])
    assert move_due(drained) == 1
    assert in_delayed(drained) == 0
    # A current core writes the same header when it delays; the critical time starts there.
    assert drained.headers("Billing") == [{**HEADERS, "NServiceBus.DeliverAt": format_time(tomorrow)}]
    assert drained.rows("Billing")[0].body == b"body"


def test_timeout_at_the_maximum_time_waits(drained: Bench) -> None:
    put(drained, "Timeouts", b"body", **timeout(datetime.max.replace(tzinfo=UTC), "Billing"))
    drained.run()
    assert (in_delayed(drained), drained.rows("error")) == (1, [])


@pytest.mark.parametrize("mode", ["transaction_scope", "receive_only", "none"])
def test_completed_saga_cancels_only_its_own_timeouts(drained: Bench, mode: str) -> None:
    drained.configure(LEGACY_SATELLITES=True, TRANSACTION_MODE=mode)
    drained.install_queues("Billing")
    tomorrow = NOW + timedelta(days=1)
    sagas = [str(uuid.UUID(int=number)) for number in (1, 2)]
    for saga in (*sagas, sagas[0]):
        of_saga = {"NServiceBus.SagaId": saga, "NServiceBus.IsSagaTimeoutMessage": "True"}
        put(drained, "Timeouts", saga.encode(), **timeout(tomorrow, "Billing", **of_saga))
    # A message to the saga, not one of its own timeouts.
    put(drained, "Timeouts", b"other", **timeout(tomorrow, "Billing", **{"NServiceBus.SagaId": sagas[0]}))
    drained.run()
    assert in_delayed(drained) == 4

    clear = {"NServiceBus.ControlMessage": "True", "NServiceBus.ClearTimeouts": "True"}
    put(drained, "Timeouts", b"", **{**clear, "NServiceBus.SagaId": sagas[0]})
    put(drained, "Timeouts", b"", **{**clear, "NServiceBus.SagaId": "%"})
    drained.run()
    assert satellites_are_empty(drained)
    assert {row.body for row in delayed(drained).peek(10)} == {sagas[1].encode(), b"other"}
    # A saga without timeouts here has them in the store of the old endpoint.
    assert [headers["NServiceBus.SagaId"] for headers in drained.headers("error")] == ["%"]


def test_due_messages_of_several_batches_all_arrive(drained: Bench) -> None:
    for number in range(250):
        headers = {"NServiceBus.MessageId": f"id-{number}", "NServiceBus.SqlServer.ForwardDestination": address(drained, "Billing")}
        delayed(drained).add(json.dumps(headers), b"", NOW - timedelta(seconds=250 - number))
    assert move_due(drained) == 250
    assert {headers["NServiceBus.MessageId"] for headers in drained.headers("Billing")} == {f"id-{n}" for n in range(250)}


def test_due_message_without_a_destination_is_in_the_error_queue(drained: Bench) -> None:
    gone = {**HEADERS, "NServiceBus.SqlServer.ForwardDestination": "Gone"}
    delayed(drained).add(json.dumps(gone), b"body", NOW - timedelta(seconds=2))
    delayed(drained).add("{not json", b"poison", NOW - timedelta(seconds=1))
    delayed(drained).add(json.dumps(HEADERS), b"ours", NOW - timedelta(seconds=1))
    assert move_due(drained) == 3
    rows = {row.body: row for row in drained.rows("error")}
    assert rows.keys() == {b"body", b"poison"}
    assert json.loads(rows[b"body"].headers or "")["NServiceBus.FailedQ"] == "Gone"
    assert rows[b"poison"].headers == "{not json"
    assert [row.body for row in drained.rows("Sales")] == [b"ours"]


def test_headers_cannot_name_a_forbidden_queue(drained: Bench) -> None:
    drained.database.configure(ENDPOINTS={"Sales": {**FAST, "LEGACY_SATELLITES": True}}, ALLOWED_DESTINATIONS=["Billing"])
    drained.install_queues("Secret")
    for to in ("Billing", "Secret"):
        put(drained, "Retries", **{"NServiceBus.FailedQ": address(drained, to)})
    drained.run()
    assert len(drained.rows("Billing")) == 1
    assert drained.rows("Secret") == []
    (failed,) = drained.headers("error")
    assert "ALLOWED_DESTINATIONS" in failed["NServiceBus.ExceptionInfo.Message"]


@pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"])
def test_move_is_one_transaction_in_every_mode(
    drained: Bench, mode: str, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    drained.configure(LEGACY_SATELLITES=True, TRANSACTION_MODE=mode)
    drained.install_queues("Billing")
    put(drained, "Retries", **{"NServiceBus.FailedQ": address(drained, "Billing")})
    table = type(drained.table("Billing"))
    send = table.send
    broken = [True]

    def breaks_once(self: Any, rows: Any) -> None:
        send(self, rows)
        if broken:
            broken.pop()
            raise LockTimeout("another session locks the table")

    monkeypatch.setattr(table, "send", breaks_once)
    drained.run()
    assert "message_stays" in events()
    assert len(drained.rows("Billing")) == 1
    assert satellites_are_empty(drained)


def test_message_whose_body_is_null_is_in_the_error_queue(drained: Bench) -> None:
    put(drained, "Timeouts", **timeout(datetime.now(UTC), address(drained, "Billing")))
    execute(drained.database, f"UPDATE {drained.table('Sales.Timeouts').qualified} SET Body = NULL")
    drained.run()
    (failed,) = drained.headers("error")
    assert failed["NServiceBus.ExceptionInfo.Message"] == "the column Body is NULL"
    assert (drained.rows("Billing"), satellites_are_empty(drained)) == ([], True)


def test_messages_in_a_satellite_reach_no_handler(drained: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.endpoint)

    put(drained, "Retries", **{"NServiceBus.FailedQ": address(drained, "Billing")})
    drained.run()
    assert calls.seen == []


def test_configured_satellite_is_drained_with_its_own_settings(drained: Bench) -> None:
    drained.configure(LEGACY_SATELLITES=True, MAX_CONCURRENCY=10, SATELLITES={"Sales.Retries": {"MAX_CONCURRENCY": 1}})
    queues = ReceivingEndpoint(get_settings(), "Sales").receiving_queues(None)
    assert [(queue.name, queue.maximum, queue.is_drained) for queue in queues] == [
        ("Sales", 10, False),
        ("Sales.Retries", 1, True),
        ("Sales.Timeouts", 10, True),
        ("Sales.TimeoutsDispatcher", 10, True),
    ]


def test_satellites_are_planned_and_required_by_the_worker(bench: Bench) -> None:
    names = {table.address.table for table in planned_tables(get_settings(), bench.database.vendor)}
    bench.database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False, "LEGACY_SATELLITES": True}})
    more = {table.address.table for table in planned_tables(get_settings(), bench.database.vendor)}
    assert more - names == {"Sales.Retries", "Sales.Timeouts", "Sales.TimeoutsDispatcher"}
    forget_tables()
    with pytest.raises(QueueNotFound, match=r"Sales\.Retries.*Sales\.Timeouts.*Sales\.TimeoutsDispatcher.*run sqlqueue_install"):
        bench.run()


def test_installer_reports_and_creates_missing_satellites(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False, "LEGACY_SATELLITES": True}})
    with pytest.raises(SystemExit) as ended:
        call_command("sqlqueue_install", "--check")
    assert ended.value.code == 1
    output = capsys.readouterr().out
    assert all(f"Sales.{name}" in output for name in ("Retries", "Timeouts", "TimeoutsDispatcher"))
    call_command("sqlqueue_install")
    call_command("sqlqueue_install", "--check")
    assert satellites_are_empty(bench)


def test_worker_with_until_empty_handles_due_messages(drained: Bench, calls: Calls, counting: object) -> None:
    delayed(drained).add(json.dumps(HEADERS), b"{}", NOW - timedelta(seconds=1))
    drained.run()
    assert len(calls.seen) == 1
    assert in_delayed(drained) == 0
