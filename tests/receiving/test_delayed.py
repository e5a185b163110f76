"""Delayed messages from end to end: sent through the public face, moved by a worker, handled; and the mover on its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue_app import handles, send, send_many
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.receiving.delayed_mover import FAILURE_CAP_SECONDS, LOOK_SECONDS, MISSING_SECONDS, DelayedMover
from sqlqueue_app.receiving.delayed_tables import due_messages_of
from sqlqueue_app.receiving.due_messages import BATCH
from sqlqueue_app.receiving.stopping import EmptyQueues, StopSignal
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.queue import forget_tables
from sqlqueue_app.tables.well_known import delayed_address
from tests.messages.golden import rows as golden_rows
from tests.receiving.conftest import FAST, Bench, Calls
from tests.receiving.processes import address
from tests.support.waiting import join_all, poll_until

FORWARD = "NServiceBus.SqlServer.ForwardDestination"
MESSAGE = {"NServiceBus.MessageId": "aaaaaaaa-0000-0000-0000-000000000001", "NServiceBus.EnclosedMessageTypes": "Test.Message"}
PAST = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
ROUTES = {"Test.*": "Sales", "Other.*": "Billing"}


@pytest.fixture
def office(bench: Bench) -> Bench:
    """Sales with its delayed table; this process sends as Web, whose delayed table is there too; and a queue Billing."""
    bench.database.configure(SEND_AS="Web")
    bench.configure(routes=ROUTES)
    bench.install_queues("Billing")
    return bench


def delayed(bench: Bench, endpoint: str = "Web") -> DelayedTable:
    return DelayedTable(bench.database.alias, delayed_address(get_settings().address_book(bench.database.vendor), endpoint))


def waiting(bench: Bench, endpoint: str = "Web") -> int:
    return delayed(bench, endpoint).count(1_000_000)[0]


def put(bench: Bench, due: datetime = PAST, endpoint: str = "Web", body: bytes = b"{}", /, **headers: str) -> None:
    delayed(bench, endpoint).add(json.dumps({**MESSAGE, **headers}), body, due)


@contextmanager
def working(bench: Bench) -> Iterator[None]:
    """A worker runs in a thread of its own meanwhile."""
    stop = StopSignal()
    thread = threading.Thread(target=lambda: bench.run(stop, until_empty=False), name="worker")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        join_all([thread])


class Looks:
    """A mover without a thread, on a clock of its own: the test looks when it likes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.stop = StopSignal()
        self.mover = DelayedMover(due_messages_of(get_settings()), self.stop, clock=lambda: self.seconds)

    def look(self, after: float = 0.0) -> float:
        self.seconds += after
        return self.mover.look()


# --- through the public face ------------------------------------------------------------------------------------------------------


def test_a_delayed_message_is_handled_once_it_is_due_and_the_worker_ends_although_another_is_not(
    office: Bench, calls: Calls
) -> None:
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


def test_a_short_delay_behind_a_long_one_arrives_while_the_worker_runs(office: Bench, calls: Calls, counting: object) -> None:
    send("Test.Message", {"long": True}, delay=DAY)
    with working(office):
        send("Test.Message", {"short": True}, delay=timedelta(milliseconds=20))
        poll_until(lambda: len(calls.seen) == 1)
    assert calls.seen == [{"short": True}]
    assert waiting(office) == 1


def test_a_handler_delays_what_it_sends(office: Bench, calls: Calls) -> None:
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
def test_a_handler_that_fails_delays_nothing(office: Bench, mode: str, batch_size: int) -> None:
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


def test_in_mode_none_a_delayed_message_is_written_by_itself(office: Bench) -> None:
    office.configure(routes=ROUTES, TRANSACTION_MODE="none")
    handles("Test.First")(lambda message, context: context.send("Test.Message", delay=DAY) and None)
    office.put_message("Test.First")
    office.run()
    assert waiting(office, "Sales") == 1


def test_any_worker_moves_what_any_endpoint_of_the_settings_delayed(office: Bench, calls: Calls, counting: object) -> None:
    office.database.configure(ENDPOINTS={"Sales": FAST, "Billing": FAST, "Gone": FAST})
    office.install()
    for endpoint in ("Sales", "Billing", "Web"):
        put(office, PAST, endpoint, **{FORWARD: address(office, "Sales")})
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {delayed(office, 'Gone').qualified}")
    office.run(endpoints=["Sales"])
    assert len(calls.seen) == 3


def test_a_worker_says_at_its_start_that_its_delayed_table_is_missing(office: Bench) -> None:
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {delayed(office, 'Sales').qualified}")
    with pytest.raises(QueueNotFound, match=r"Sales\.Delayed.*sqlqueue_install"):
        office.run()


# --- where messages go ------------------------------------------------------------------------------------------------------------


def test_the_recorded_rows_of_a_real_endpoint_are_moved_as_it_moves_them(postgresql_bench: Bench) -> None:
    bench = postgresql_bench
    bench.database.configure(SEND_AS="Web", ENDPOINTS={"Sales": FAST, "Billing": FAST})
    bench.install()
    recorded = golden_rows("json")
    stored = [row for row in recorded if row["table"].endswith(".Delayed")]
    for row in stored:
        delayed(bench, row["table"].removesuffix(".Delayed")).add(row["headers"], b"body", PAST)
    assert Looks().look() == LOOK_SECONDS

    arrived = [headers for queue in ("Sales", "Billing") for headers in bench.headers(queue)]
    assert len(arrived) == len(stored)
    # the rows that a real endpoint wrote when it had taken the header away
    final = [json.loads(row["headers"]) for row in recorded if row["table"] in ("Sales", "Billing")]
    compared = 0
    for headers in arrived:
        assert FORWARD not in headers
        same = [other for other in final if other.get("NServiceBus.DeliverAt") == headers["NServiceBus.DeliverAt"]]
        compared += any(other == headers and list(other) == list(headers) for other in same)
    assert compared >= 2


def test_what_is_due_arrives_in_the_order_of_its_times_with_its_ids(office: Bench) -> None:
    for second in (3, 1, 2):
        put(office, PAST + timedelta(seconds=second), **{FORWARD: address(office, "Billing"), "n": str(second)})
    Looks().look()
    assert [headers["n"] for headers in office.headers("Billing")] == ["1", "2", "3"]
    for row in office.rows("Billing"):
        assert json.loads(row.headers or "")["NServiceBus.MessageId"] == MESSAGE["NServiceBus.MessageId"]
        assert row.expires is None
        if office.database.vendor != "postgresql":
            assert str(row.id) == MESSAGE["NServiceBus.MessageId"]


def test_without_a_destination_a_message_goes_to_the_queue_of_its_endpoint(office: Bench) -> None:
    put(office, PAST, "Sales")
    Looks().look()
    assert len(office.rows("Sales")) == 1


def test_what_cannot_arrive_is_in_the_error_queue_and_holds_up_nobody(office: Bench, events: Callable[[], list[str]]) -> None:
    for to in ("Gone", "", "[", "Billing", "x" * 300):
        put(office, PAST, "Sales", **{FORWARD: to, "to": to})
    delayed(office, "Sales").add("{not json", b"poison", PAST)

    Looks().look()

    assert len(office.rows("Billing")) == len(office.rows("Sales")) == 1
    failed = {row.body: row for row in office.rows("error")}
    assert failed[b"poison"].headers == "{not json"
    others = [json.loads(row.headers or "") for row in office.rows("error") if row.body != b"poison"]
    assert {headers["NServiceBus.FailedQ"] for headers in others} == {"Gone", "[", "x" * 300}
    assert all(headers["NServiceBus.FailedQ"] == headers["to"] and FORWARD not in headers for headers in others)
    assert events().count("message_unroutable") == 4
    assert waiting(office, "Sales") == 0


def test_a_destination_that_was_dropped_since_it_was_last_used_takes_nothing_with_it(office: Bench) -> None:
    looks = Looks()
    put(office, PAST, **{FORWARD: address(office, "Billing")})
    looks.look()
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {office.table('Billing').qualified}")
    put(office, PAST, **{FORWARD: address(office, "Billing")})
    put(office, PAST, **{FORWARD: address(office, "Sales")})

    looks.look()

    assert len(office.rows("Sales")) == 1
    (failed,) = office.headers("error")
    assert failed["NServiceBus.FailedQ"] == address(office, "Billing")


def test_a_destination_that_may_not_be_written_takes_nothing_with_it(postgresql_bench: Bench) -> None:
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
        Looks().look()
    assert len(bench.rows("Billing")) == 1
    assert [headers["NServiceBus.FailedQ"] for headers in bench.headers("error")] == [address(bench, "Secret")]


def test_allowed_destinations_do_not_limit_what_a_process_sends_itself(office: Bench) -> None:
    office.database.configure(ALLOWED_DESTINATIONS=["Nowhere"])
    send("Other.Message", delay=timedelta())
    Looks().look()
    assert len(office.rows("Billing")) == 1


# --- when it looks ----------------------------------------------------------------------------------------------------------------


def test_it_sleeps_until_the_next_due_time_and_at_most_a_second(office: Bench) -> None:
    looks = Looks()
    assert looks.look() == LOOK_SECONDS
    send("Test.Message", delay=DAY)
    assert looks.look() == LOOK_SECONDS
    now = datetime.now(UTC)
    for milliseconds in (700, 800):
        send("Test.Message", deliver_at=now + timedelta(milliseconds=milliseconds))
    assert 0 < looks.look() < 0.8


def test_due_times_without_an_end_are_no_trouble(postgresql_bench: Bench) -> None:
    postgresql_bench.install_queues("Billing")
    with postgresql_bench.database.connection.cursor() as cursor:
        for due, to in (("-infinity", "Billing"), ("infinity", "Billing")):
            headers = json.dumps({FORWARD: address(postgresql_bench, to)})
            cursor.execute(
                f"INSERT INTO {delayed(postgresql_bench, 'Sales').qualified} (headers, due) VALUES (%s, CAST(%s AS timestamptz))",
                [headers, due],
            )
    assert Looks().look() == LOOK_SECONDS
    assert (len(postgresql_bench.rows("Billing")), waiting(postgresql_bench, "Sales")) == (1, 1)


def test_an_earlier_message_of_this_process_wakes_it_at_its_commit(office: Bench) -> None:
    woken = threading.Event()
    slept: list[float] = []

    def wait(seconds: float) -> None:
        # the mover would sleep a second; only the flag ends this
        slept.append(seconds)
        woken.wait(60)
        woken.clear()

    stop = StopSignal()
    mover = DelayedMover(due_messages_of(get_settings()), stop, wait=wait)
    mover._wake.set = woken.set  # type: ignore[method-assign]
    stop.subscribe(woken.set)
    with mover.running():
        poll_until(lambda: len(slept) == 1)
        with transaction.atomic(using=office.database.alias):
            send("Other.Message", delay=timedelta())
            send("Other.Message", delay=DAY)
            assert not woken.is_set()
        poll_until(lambda: len(office.rows("Billing")) == 1)


def test_batches_of_one_table_do_not_keep_another_waiting(office: Bench) -> None:
    send_many([("Test.Message", {})] * (BATCH * 2 + 1), delay=timedelta())
    put(office, PAST, "Sales", **{FORWARD: address(office, "Billing")})
    Looks().look()
    assert len(office.rows("Sales")) == BATCH * 2 + 1
    assert len(office.rows("Billing")) == 1


def test_an_error_is_logged_and_tried_again_with_growing_waits(office: Bench, events: Callable[[], list[str]]) -> None:
    put(office, PAST, **{FORWARD: "Gone"})
    put(office, PAST, "Sales", **{FORWARD: address(office, "Billing")})
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {office.table('error').qualified}")
    forget_tables()
    looks = Looks()

    waits = [looks.look(after) for after in (0.0, 0.5, 0.5, 2.0, 4.0, 8.0)]

    assert waits == [1.0, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert [table._rests_until for table in looks.mover._tables] == [None, looks.seconds + FAILURE_CAP_SECONDS]
    assert events().count("delayed_move_failed") == 5
    # nothing is lost, and the other table is not held up
    assert (waiting(office), len(office.rows("Billing"))) == (1, 1)
    office.install_queues("error")
    looks.look(FAILURE_CAP_SECONDS)
    assert [headers["NServiceBus.FailedQ"] for headers in office.headers("error")] == ["Gone"]


def test_a_table_that_is_not_there_is_looked_for_once_a_minute(office: Bench, events: Callable[[], list[str]]) -> None:
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {delayed(office).qualified}")
    looks = Looks()
    for after in (0.0, 1.0, MISSING_SECONDS, MISSING_SECONDS):
        looks.look(after)
    assert events().count("delayed_table_missing") == 1
    office.install()
    put(office)
    put(office, PAST, **{FORWARD: address(office, "Billing")})
    looks.look(1.0)
    assert office.rows("Billing") == []
    looks.look(MISSING_SECONDS)
    assert len(office.rows("Billing")) == 1


def test_a_stop_ends_it_between_two_batches(office: Bench) -> None:
    looks = Looks()
    looks.stop.set()
    put(office, PAST, **{FORWARD: address(office, "Billing")})
    looks.look()
    assert waiting(office) == 1


def test_a_worker_that_ends_when_all_is_empty_waits_for_what_is_due() -> None:
    answers = [True, False]
    empty = EmptyQueues(["a"], anything_due=lambda: answers.pop(0))
    assert not empty.poll_ends("a", empty.poll_begins(), empty=True)
    assert empty.poll_ends("a", empty.poll_begins(), empty=True)


def test_a_message_that_is_moved_during_the_last_look_counts() -> None:
    def moved_meanwhile() -> bool:
        empty.message_begins()
        empty.message_ends()
        return False

    empty = EmptyQueues(["a"], anything_due=moved_meanwhile)
    assert not empty.poll_ends("a", empty.poll_begins(), empty=True)


# --- many at once -----------------------------------------------------------------------------------------------------------------


def test_many_instances_that_move_at_once_lose_and_double_nothing(office: Bench) -> None:
    ids = send_many([("Other.Message", {"n": number}) for number in range(1_000)], delay=timedelta())
    start = threading.Barrier(4)
    errors: list[BaseException] = []

    def move() -> None:
        try:
            looks = Looks()
            start.wait(60)
            while waiting(office):
                looks.look(FAILURE_CAP_SECONDS)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=move, name=f"mover-{number}") for number in range(4)]
    for thread in threads:
        thread.start()
    join_all(threads)
    assert errors == []
    assert sorted(headers["NServiceBus.MessageId"] for headers in office.headers("Billing")) == sorted(ids)


@pytest.mark.parametrize(
    ("name", "values"), [("next_due", {}), ("take_due", {"limit": BATCH}), ("count_delayed", {"limit": 1_000})]
)
def test_a_hundred_thousand_delayed_messages_are_not_read_to_find_what_is_due(
    postgresql_bench: Bench, name: str, values: dict[str, object]
) -> None:
    """By the plan and the rows that it touched, not by a clock."""
    table = delayed(postgresql_bench, "Sales")
    connection = postgresql_bench.database.connection
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table.qualified} (headers, body, due) "
            "SELECT '{}', '', clock_timestamp() + (n - 50) * interval '1 minute' FROM generate_series(1, 100000) AS n"
        )
        cursor.execute(f"ANALYZE {table.qualified}")
        statement = table.dialect.statement(name, table=table.qualified)
        cursor.execute("EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF, FORMAT JSON) " + statement.sql, statement.bind(values))
        (found,) = cursor.fetchone()
    plan = json.dumps(found)
    assert "Sales.Delayed_Due" in plan
    touched = [int(node["Actual Rows"]) for node in nodes(found[0]["Plan"])]
    assert max(touched) <= 1_000


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def test_due_messages_move_in_as_many_statements_however_many_wait(postgresql_bench: Bench, calls: Calls) -> None:
    bench = postgresql_bench
    bench.install_queues("Billing")
    for _ in range(BATCH):
        put(bench, PAST, "Sales", **{FORWARD: address(bench, "Billing")})
    looks = Looks()
    looks.look()
    for _ in range(BATCH):
        put(bench, PAST, "Sales", **{FORWARD: address(bench, "Billing")})

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        calls.add(sql)
        return execute(sql, params, many, context)

    with bench.database.connection.execute_wrapper(count):
        looks.look()
    # a look, begin and savepoint aside: take, write with one statement, look again
    assert len(bench.rows("Billing")) == BATCH * 2
    assert sum("SAVEPOINT" not in sql for sql in calls.seen) <= 4


# --- what comes into an ordinary queue on its way elsewhere -----------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"{}", b""])
def test_a_message_on_its_way_to_another_queue_is_sent_on(office: Bench, calls: Calls, counting: object, body: bytes) -> None:
    office.put(json.dumps({**MESSAGE, FORWARD: address(office, "Billing"), "Own": "é"}), body)
    office.run()
    (headers,) = office.headers("Billing")
    assert headers == {**MESSAGE, "Own": "é"}
    assert (office.rows("Billing")[0].body, calls.seen, office.rows("Sales")) == (body, [], [])


@pytest.mark.parametrize("form", ["canonical", "plain", "empty", "other form"])
def test_a_message_that_has_arrived_is_handled_without_the_header(office: Bench, calls: Calls, form: str) -> None:
    handles("Test.Message")(lambda message, context: calls.add(FORWARD in context.headers) and None)
    canonical = address(office, "Sales")
    to = {"canonical": canonical, "plain": "Sales", "empty": "", "other form": canonical.replace('"', "").strip()}[form]
    office.put(json.dumps({**MESSAGE, FORWARD: to}), b"{}")
    office.run()
    assert calls.seen == [False]


def test_messages_do_not_go_round_in_circles(office: Bench, calls: Calls) -> None:
    office.database.configure(ENDPOINTS={"Sales": FAST, "Billing": FAST})
    office.install()
    handles("Test.Message")(lambda message, context: calls.add(context.endpoint) and None)
    office.put(json.dumps({**MESSAGE, FORWARD: address(office, "Billing")}), b"{}")
    office.put(json.dumps({**MESSAGE, FORWARD: address(office, "Sales")}), b"{}", queue="Billing")
    office.run()
    assert sorted(calls.seen) == ["Billing", "Sales"]


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("Gone", "on its way to 'Gone'"),
        ("Sales.Retries", "satellite queue of this very endpoint"),
        ("Secret", "ALLOWED_DESTINATIONS"),
    ],
)
@pytest.mark.parametrize("mode", ["transaction_scope", "none"])
def test_what_cannot_be_sent_on_is_in_the_error_queue_with_the_reason(office: Bench, to: str, reason: str, mode: str) -> None:
    office.configure(LEGACY_SATELLITES=True, TRANSACTION_MODE=mode)
    office.install_queues("Secret")
    office.database.configure(ALLOWED_DESTINATIONS=["Billing"])
    office.put(json.dumps({**MESSAGE, FORWARD: to}), b"{}")
    office.run()
    (failed,) = office.headers("error")
    assert reason in failed["NServiceBus.ExceptionInfo.Message"]
    assert failed["NServiceBus.FailedQ"] == to
    assert FORWARD not in failed
    assert office.rows("Sales") == office.rows("Secret") == []
