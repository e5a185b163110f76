"""The mover of delayed messages: when it polls, what wakes it, and many movers at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue_app import send, send_many
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConnectionLost
from sqlqueue_app.receiving.delayed import BATCH, FAILURE_CAP_SECONDS, MISSING_SECONDS, POLL_SECONDS, DelayedMover, due_messages_of
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.waiting import EmptyQueues
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.queue import forget_tables
from tests.support.bench import Bench, Calls
from tests.support.delayed_tables import DAY, FORWARD, PAST, ManualMover, delayed, office_of, put, waiting
from tests.support.waiting import join_all, poll_until
from tests.support.worker_processes import address


@pytest.fixture
def office(bench: Bench) -> Bench:
    return office_of(bench)


def test_mover_sleeps_until_next_due_time_or_a_second(office: Bench) -> None:
    mover = ManualMover()
    assert mover.run() == POLL_SECONDS
    send("Test.Message", delay=DAY)
    assert mover.run() == POLL_SECONDS
    now = datetime.now(UTC)
    for milliseconds in (700, 800):
        send("Test.Message", deliver_at=now + timedelta(milliseconds=milliseconds))
    assert 0 < mover.run() < 0.8


def test_infinite_due_times_are_accepted(postgresql_bench: Bench) -> None:
    postgresql_bench.install_queues("Billing")
    with postgresql_bench.database.connection.cursor() as cursor:
        for due, to in (("-infinity", "Billing"), ("infinity", "Billing")):
            headers = json.dumps({FORWARD: address(postgresql_bench, to)})
            table = delayed(postgresql_bench, "Sales").qualified
            cursor.execute(f"INSERT INTO {table} (headers, body, due) VALUES (%s, '', CAST(%s AS timestamptz))", [headers, due])
    assert ManualMover().run() == POLL_SECONDS
    assert (len(postgresql_bench.rows("Billing")), waiting(postgresql_bench, "Sales")) == (1, 1)


def test_earlier_message_wakes_the_mover_at_commit(office: Bench) -> None:
    slept: list[float] = []

    def wait(seconds: float) -> None:
        # the mover would sleep a second; only the flag ends the wait
        slept.append(seconds)
        assert mover._wake.wait(60)

    stop = StopSignal()
    mover = DelayedMover(due_messages_of(get_settings()), stop, wait=wait)
    with mover.running():
        poll_until(lambda: len(slept) == 1)
        with transaction.atomic(using=office.database.alias):
            send("Other.Message", delay=timedelta())
            send("Other.Message", delay=DAY)
            assert not mover._wake.is_set()
        poll_until(lambda: len(office.rows("Billing")) == 1)


def test_batches_of_one_table_do_not_delay_another(office: Bench) -> None:
    send_many([("Test.Message", {})] * (BATCH * 2 + 1), delay=timedelta())
    put(office, PAST, "Sales", **{FORWARD: address(office, "Billing")})
    ManualMover().run()
    assert len(office.rows("Sales")) == BATCH * 2 + 1
    assert len(office.rows("Billing")) == 1


def test_error_is_logged_and_retried_with_growing_waits(office: Bench, events: Callable[[], list[str]]) -> None:
    put(office, PAST, **{FORWARD: "Gone"})
    put(office, PAST, "Sales", **{FORWARD: address(office, "Billing")})
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {office.table('error').qualified}")
    forget_tables()
    mover = ManualMover()

    waits = [mover.run(after) for after in (0.0, 0.5, 0.5, 2.0, 4.0, 8.0)]

    assert waits == [1.0, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert [table._retry_at for table in mover.mover._tables] == [None, mover.seconds + FAILURE_CAP_SECONDS]
    assert events().count("delayed_move_failed") == 5
    # nothing is lost, and the other table is not delayed
    assert (waiting(office), len(office.rows("Billing"))) == (1, 1)
    office.install_queues("error")
    mover.run(FAILURE_CAP_SECONDS)
    assert [headers["NServiceBus.FailedQ"] for headers in office.headers("error")] == ["Gone"]


def test_outage_is_logged_once_for_each_table(
    office: Bench, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="sqlqueue")
    mover = ManualMover()

    def unreachable(_: DelayedTable) -> float:
        raise ConnectionLost("connection refused")

    for outages in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(DelayedTable, "seconds_until_due", unreachable)
            for _ in range(3):
                mover.run(FAILURE_CAP_SECONDS)
        mover.run(FAILURE_CAP_SECONDS)
        assert events().count("delayed_move_failed") == outages * len(mover.mover._tables)


def test_session_that_is_read_only_since_a_failover_is_replaced(postgresql_bench: Bench) -> None:
    office = office_of(postgresql_bench)
    put(office, PAST, "Sales")
    mover = ManualMover()
    with office.database.connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    mover.run()
    assert waiting(office, "Sales") == 1
    mover.run(FAILURE_CAP_SECONDS)
    assert waiting(office, "Sales") == 0


def test_fatal_error_in_mover_thread_stops_the_worker(
    office: Bench, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    def broken(self: object) -> float:
        raise MemoryError

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(DelayedMover, "move_due", broken)
    stop = StopSignal()
    with DelayedMover(due_messages_of(get_settings()), stop).running():
        assert stop.wait(60)
    assert stop.has_failed
    assert "thread_died" in events()


def test_missing_table_is_checked_once_a_minute(office: Bench, events: Callable[[], list[str]]) -> None:
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {delayed(office).qualified}")
    mover = ManualMover()
    for after in (0.0, 1.0, MISSING_SECONDS, MISSING_SECONDS):
        mover.run(after)
    assert events().count("delayed_table_missing") == 1
    office.install()
    put(office)
    put(office, PAST, **{FORWARD: address(office, "Billing")})
    mover.run(1.0)
    assert office.rows("Billing") == []
    mover.run(MISSING_SECONDS)
    assert len(office.rows("Billing")) == 1


def test_stop_ends_the_mover_between_two_batches(office: Bench) -> None:
    mover = ManualMover()
    mover.stop.set()
    put(office, PAST, **{FORWARD: address(office, "Billing")})
    mover.run()
    assert waiting(office) == 1


def test_worker_until_empty_waits_for_due_messages() -> None:
    answers = [True, False]
    empty = EmptyQueues(["a"], anything_due=lambda: answers.pop(0))
    assert not empty.poll_ends("a", empty.poll_begins(), empty=True)
    assert empty.poll_ends("a", empty.poll_begins(), empty=True)


def test_message_moved_during_the_last_check_counts() -> None:
    def moved_meanwhile() -> bool:
        empty.message_begins()
        empty.message_ends()
        return False

    empty = EmptyQueues(["a"], anything_due=moved_meanwhile)
    assert not empty.poll_ends("a", empty.poll_begins(), empty=True)


def test_concurrent_movers_lose_and_double_nothing(office: Bench) -> None:
    ids = send_many([("Other.Message", {"n": number}) for number in range(1_000)], delay=timedelta())
    start = threading.Barrier(4)
    errors: list[BaseException] = []

    def move() -> None:
        try:
            mover = ManualMover()
            start.wait(60)
            while waiting(office):
                mover.run(FAILURE_CAP_SECONDS)
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
def test_finding_due_messages_reads_few_rows_on_postgresql(postgresql_bench: Bench, name: str, values: dict[str, object]) -> None:
    """Checks the plan and the rows that it reads instead of the time."""
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


@pytest.mark.parametrize(
    ("name", "values"), [("next_due", {}), ("take_due", {"limit": BATCH}), ("count_delayed", {"limit": 1_000})]
)
def test_finding_due_messages_uses_the_index_on_sqlite(sqlite_bench: Bench, name: str, values: dict[str, object]) -> None:
    """Checks the plan: due rows come from the index, and nothing is sorted."""
    table = delayed(sqlite_bench, "Sales")
    with sqlite_bench.database.connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table.qualified} (Headers, Body, Due)"
            " WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT 100000)"
            " SELECT '{}', '', strftime('%Y-%m-%d %H:%M:%f', 'now', ((value - 50) * 60) || ' seconds') FROM n"
        )
        cursor.execute(f"ANALYZE {table.qualified}")
        statement = table.dialect.statement(name, table=table.qualified)
        cursor.execute("EXPLAIN QUERY PLAN " + statement.sql, statement.bind(values))
        steps = [step[3] for step in cursor.fetchall()]
    read = [step for step in steps if "Sales.Delayed" in step]
    # the first entry of the index; the due ones in it; then rows by their number. A row count ends at its limit.
    by_due = "SEARCH Sales.Delayed USING COVERING INDEX Sales.Delayed_Due (Due<?)"
    first = "SCAN Sales.Delayed USING COVERING INDEX Sales.Delayed_Due"
    expected = {
        "next_due": [first],
        "take_due": ["SEARCH Sales.Delayed USING INTEGER PRIMARY KEY (rowid=?)", by_due],
        "count_delayed": [first, by_due],
    }
    assert read == expected[name]
    assert not any("TEMP B-TREE" in step for step in steps), "nothing is sorted"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def test_number_of_statements_does_not_grow_with_due_messages(postgresql_bench: Bench, calls: Calls) -> None:
    bench = postgresql_bench
    bench.install_queues("Billing")
    for _ in range(BATCH):
        put(bench, PAST, "Sales", **{FORWARD: address(bench, "Billing")})
    mover = ManualMover()
    mover.run()
    for _ in range(BATCH):
        put(bench, PAST, "Sales", **{FORWARD: address(bench, "Billing")})

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        calls.add(sql)
        return execute(sql, params, many, context)

    with bench.database.connection.execute_wrapper(count):
        mover.run()
    # a check, begin and savepoint aside: take, write with one statement, check again
    assert len(bench.rows("Billing")) == BATCH * 2
    assert sum("SAVEPOINT" not in sql for sql in calls.seen) <= 4
