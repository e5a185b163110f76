"""Delayed messages from end to end: sent through the public interface, moved by a worker, handled; and the mover alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue_app import handles, send, send_many
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.receiving.delayed import POLL_SECONDS
from tests.support.bench import FAST, Bench, Calls
from tests.support.delayed_tables import DAY, FORWARD, MESSAGE, PAST, ROUTES, ManualMover, delayed, office_of, put, waiting, working
from tests.support.golden import rows as golden_rows
from tests.support.tables import execute
from tests.support.waiting import poll_until
from tests.support.worker_processes import address


@pytest.fixture
def office(bench: Bench) -> Bench:
    return office_of(bench)


def test_due_message_is_handled_and_worker_ends_before_a_later_one(office: Bench, calls: Calls) -> None:
    handles("Test.Message")(lambda message, context: calls.add((message["n"], context.message_id, context.headers)) and None)
    now = send("Test.Message", {"n": 1}, delay=timedelta())
    past = send("Test.Message", {"n": 2}, deliver_at=PAST)
    send("Test.Message", {"n": 3}, delay=DAY)

    office.run()

    assert {(number, message_id) for number, message_id, _ in calls.seen} == {(1, now), (2, past)}
    for _, _, headers in calls.seen:
        assert FORWARD not in headers
        assert "NServiceBus.DeliverAt" in headers
    assert waiting(office) == 1


def test_short_delay_behind_a_long_one_arrives(office: Bench, calls: Calls, counting: object) -> None:
    send("Test.Message", {"long": True}, delay=DAY)
    with working(office):
        send("Test.Message", {"short": True}, delay=timedelta(milliseconds=20))
        poll_until(lambda: len(calls.seen) == 1)
    assert calls.seen == [{"short": True}]
    assert waiting(office) == 1


def test_handler_delays_its_sends(office: Bench, calls: Calls) -> None:
    @handles("Test.First")
    def first(message: Any, context: Any) -> None:
        context.send("Test.Message", {"by": "context"}, delay=timedelta(milliseconds=1))
        context.send("Test.Message", {"by": "time"}, deliver_at=PAST)
        context.send("Test.Message", {"by": "immediate"}, delay=timedelta(), immediate=True)
        send("Test.Message", {"by": "send"}, delay=timedelta())
        send_many([("Test.Message", {"by": "many"})], delay=timedelta())
        context.send("Test.Message", {"by": "later"}, delay=DAY)

    handles("Test.Message")(lambda message, context: calls.add((message["by"], context.headers["NServiceBus.RelatedTo"])) and None)
    office.put_message("Test.First", **{"NServiceBus.MessageId": "first"})

    with working(office):
        poll_until(lambda: len(calls.seen) == 5)

    assert sorted(calls.seen) == [(by, "first") for by in ("context", "immediate", "many", "send", "time")]
    # a handler sends as its own endpoint, not as SEND_AS
    assert (waiting(office, "Sales"), waiting(office)) == (1, 0)


@pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only"])
@pytest.mark.parametrize("batch_size", [1, 10])
def test_failing_handler_delays_nothing(office: Bench, mode: str, batch_size: int) -> None:
    office.configure(routes=ROUTES, TRANSACTION_MODE=mode)

    @handles("Test.First")
    def first(message: Any, context: Any) -> None:
        context.send("Test.Message", delay=DAY)
        send("Test.Message", delay=DAY)
        if not message:
            raise ValueError("no")

    for number in range(4):
        body = {"ok": True} if number % 2 else {}
        office.put(
            json.dumps({"NServiceBus.EnclosedMessageTypes": "Test.First"}), json.dumps(body).encode(), row_id=f"{number:032}"
        )

    office.run(batch_size=batch_size)

    assert waiting(office, "Sales") == 4
    assert len(office.rows("error")) == 2


def test_mode_none_writes_a_delayed_message_separately(office: Bench) -> None:
    office.configure(routes=ROUTES, TRANSACTION_MODE="none")
    handles("Test.First")(lambda message, context: context.send("Test.Message", delay=DAY) and None)
    office.put_message("Test.First")
    office.run()
    assert waiting(office, "Sales") == 1


def test_any_worker_moves_delayed_messages_of_any_endpoint(office: Bench, calls: Calls, counting: object) -> None:
    office.database.configure(ENDPOINTS={"Sales": FAST, "Billing": FAST, "Gone": FAST})
    office.install()
    for endpoint in ("Sales", "Billing", "Web"):
        put(office, PAST, endpoint, **{FORWARD: address(office, "Sales")})
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {delayed(office, 'Gone').qualified}")
    office.run(endpoints=["Sales"])
    assert len(calls.seen) == 3


def test_missing_delayed_table_is_reported_at_start(office: Bench) -> None:
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {delayed(office, 'Sales').qualified}")
    with pytest.raises(QueueNotFound, match=r"Sales\.Delayed.*sqlqueue_install"):
        office.run()


def test_recorded_rows_are_moved_as_a_real_endpoint_moves_them(postgresql_bench: Bench) -> None:
    bench = postgresql_bench
    bench.database.configure(SEND_AS="Web", ENDPOINTS={"Sales": FAST, "Billing": FAST})
    bench.install()
    recorded = golden_rows("json")
    stored = [row for row in recorded if row["table"].endswith(".Delayed")]
    for row in stored:
        delayed(bench, row["table"].removesuffix(".Delayed")).add(row["headers"], b"body", PAST)
    assert ManualMover().run() == POLL_SECONDS

    arrived = [headers for queue in ("Sales", "Billing") for headers in bench.headers(queue)]
    assert len(arrived) == len(stored)
    # the rows that a real endpoint wrote after it removed the header
    final = [json.loads(row["headers"]) for row in recorded if row["table"] in ("Sales", "Billing")]
    compared = 0
    for headers in arrived:
        assert FORWARD not in headers
        same = [other for other in final if other.get("NServiceBus.DeliverAt") == headers["NServiceBus.DeliverAt"]]
        compared += any(other == headers and list(other) == list(headers) for other in same)
    assert compared >= 2


def test_due_messages_arrive_in_time_order_with_their_ids(office: Bench) -> None:
    for second in (3, 1, 2):
        put(office, PAST + timedelta(seconds=second), **{FORWARD: address(office, "Billing"), "n": str(second)})
    ManualMover().run()
    assert [headers["n"] for headers in office.headers("Billing")] == ["1", "2", "3"]
    for row in office.rows("Billing"):
        assert json.loads(row.headers or "")["NServiceBus.MessageId"] == MESSAGE["NServiceBus.MessageId"]
        assert row.expires is None
        if office.database.vendor != "postgresql":
            assert str(row.id) == MESSAGE["NServiceBus.MessageId"]


def test_message_without_destination_goes_to_its_endpoint(office: Bench) -> None:
    put(office, PAST, "Sales")
    ManualMover().run()
    assert len(office.rows("Sales")) == 1


def test_undeliverable_message_is_in_error_queue_and_blocks_no_other(office: Bench, events: Callable[[], list[str]]) -> None:
    for to in ("Gone", "", "[", "Billing", "x" * 300):
        put(office, PAST, "Sales", **{FORWARD: to, "to": to})
    delayed(office, "Sales").add("{not json", b"poison", PAST)

    ManualMover().run()

    assert len(office.rows("Billing")) == len(office.rows("Sales")) == 1
    failed = {row.body: row for row in office.rows("error")}
    assert failed[b"poison"].headers == "{not json"
    others = [json.loads(row.headers or "") for row in office.rows("error") if row.body != b"poison"]
    assert {headers["NServiceBus.FailedQ"] for headers in others} == {"Gone", "[", "x" * 300}
    assert all(headers["NServiceBus.FailedQ"] == headers["to"] and FORWARD not in headers for headers in others)
    assert events().count("message_unroutable") == 4
    assert waiting(office, "Sales") == 0


def test_null_headers_and_null_body_are_moved_with_a_reason(office: Bench) -> None:
    table = delayed(office, "Sales")
    table.add("null", b"headers", PAST)
    table.add(json.dumps(MESSAGE), b"body", PAST)
    table.add(json.dumps({**MESSAGE, "NServiceBus.ControlMessage": "True"}), b"control", PAST)
    execute(office.database, f"UPDATE {table.qualified} SET Body = NULL WHERE Headers <> 'null'")

    ManualMover().run()

    assert [row.body for row in office.rows("Sales")] == [b""]
    failed = sorted((row["NServiceBus.ExceptionInfo.Message"], row["NServiceBus.FailedQ"]) for row in office.headers("error"))
    main = address(office, "Sales")
    assert failed == [("the column Body is NULL", main), ("the headers are null; expected a JSON object", main)]


def test_dropped_destination_fails_only_its_own_messages(office: Bench) -> None:
    mover = ManualMover()
    put(office, PAST, **{FORWARD: address(office, "Billing")})
    mover.run()
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {office.table('Billing').qualified}")
    put(office, PAST, **{FORWARD: address(office, "Billing")})
    put(office, PAST, **{FORWARD: address(office, "Sales")})

    mover.run()

    assert len(office.rows("Sales")) == 1
    (failed,) = office.headers("error")
    assert failed["NServiceBus.FailedQ"] == address(office, "Billing")


def test_forbidden_destination_fails_only_its_own_messages(postgresql_bench: Bench) -> None:
    bench = postgresql_bench
    bench.install_queues("Secret", "Billing")
    role = bench.database.create_role("mover")
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA public TO "{role}"')
        cursor.execute(f'GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO "{role}"')
        cursor.execute(f'REVOKE ALL ON {bench.table("Secret").qualified} FROM "{role}"')
    for to in ("Billing", "Secret"):
        put(bench, PAST, "Sales", **{FORWARD: address(bench, to)})
    with bench.database.as_role(role):
        ManualMover().run()
    assert len(bench.rows("Billing")) == 1
    assert [headers["NServiceBus.FailedQ"] for headers in bench.headers("error")] == [address(bench, "Secret")]


def test_allowed_destinations_do_not_limit_own_delayed_messages(office: Bench) -> None:
    office.database.configure(ALLOWED_DESTINATIONS=["Nowhere"])
    send("Other.Message", delay=timedelta())
    ManualMover().run()
    assert len(office.rows("Billing")) == 1
