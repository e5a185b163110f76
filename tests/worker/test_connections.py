"""Settings of the queue alias, with a worker on a real PostgreSQL; docs/howto/connections.md documents the results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue_app import handles, send_many
from sqlqueue_app.tables.connections import ConnectionPool
from tests.support.bench import Bench, Calls, Running
from tests.support.waiting import poll_until
from tests.support.worker_processes import address


def set_on_alias(bench: Bench, monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """Change the entry in DATABASES; `sets` are settings of the server's session."""
    alias = bench.database.alias
    sets: dict[str, str] | None = values.pop("sets", None)
    if sets is not None:
        options = connections.settings[alias].get("OPTIONS", {})
        words = " ".join(f"-c {name}={value}" for name, value in sets.items())
        values["OPTIONS"] = {**options, "options": words}
    for name, value in values.items():
        monkeypatch.setitem(connections.settings[alias], name, value)
    connections[alias].close()


def backend(context: Any) -> int:
    with context.connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def is_there(bench: Bench, pid: int) -> bool:
    """Return whether the server still has the session, as queried in another session."""
    provider: Any = bench.database.provider
    with provider.server.connect() as session:
        return bool(session.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone())


def send_numbers(bench: Bench, count: int) -> None:
    send_many("Test.Message", [{"n": n} for n in range(count)], to=address(bench, "Sales"))


# Three receive threads, plus the monitor in that model; the mover of delayed messages; the jobs; the listener of PostgreSQL.
@pytest.mark.parametrize(("model", "held"), [("fixed", 3 + 2), ("adaptive", 3 + 2), ("monitor", 4 + 2)])
def test_worker_holds_one_session_per_receive_thread_and_few_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, model: str, held: int
) -> None:
    if bench.database.vendor == "sqlite":
        pytest.skip("a file has no sessions")
    monkeypatch.setattr("sqlqueue_app.receiving.background.ConnectionPool", partial(ConnectionPool, kept_seconds=0.5))
    monkeypatch.setattr("sqlqueue_app.receiving.instances.HEARTBEAT_SECONDS", 0.5)
    bench.configure(MAX_CONCURRENCY=3)
    held += bench.database.vendor == "postgresql"
    all_busy, go_on = threading.Barrier(4), threading.Event()

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        all_busy.wait(60)
        assert go_on.wait(60)

    send_numbers(bench, 3)
    # PostgreSQL lists the session of this thread too
    bench.database.connection.close()
    most = 0

    def settled() -> bool:
        nonlocal most
        most = max(most, count := len(bench.database.sessions()))
        return count == held

    with Running(bench, model=model):
        try:
            all_busy.wait(60)
            poll_until(settled, 60, what=f"{held} sessions")
        finally:
            go_on.set()
    # up to four jobs at once, each with a session, and one that is kept for the next job
    assert most <= held + 4


@pytest.mark.parametrize("age", [0, 600, None])
def test_worker_keeps_its_connection_with_any_conn_max_age(
    postgresql_bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch, age: int | None
) -> None:
    bench = postgresql_bench
    bench.configure(MAX_CONCURRENCY=1)
    set_on_alias(bench, monkeypatch, CONN_MAX_AGE=age)
    handles("Test.Message")(lambda message, context: calls.add(backend(context)))
    send_numbers(bench, 5)
    bench.run()
    assert len(calls.seen) == 5
    assert len(set(calls.seen)) == 1


@pytest.mark.parametrize("age", [0, None])
def test_connection_cut_between_two_messages_is_renewed(
    postgresql_bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]], age: int | None
) -> None:
    bench = postgresql_bench
    bench.configure(MAX_CONCURRENCY=1)
    set_on_alias(bench, monkeypatch, CONN_MAX_AGE=age)
    handles("Test.Message")(lambda message, context: calls.add(backend(context)))
    with Running(bench):
        send_numbers(bench, 1)
        poll_until(lambda: len(calls.seen) == 1 and not bench.rows("Sales"), 60, what="the first message is handled")
        with bench.database.connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [calls.seen[0]])
        send_numbers(bench, 1)
        poll_until(lambda: len(calls.seen) == 2, 60, what="the second message is handled")
    assert calls.seen[0] != calls.seen[1]
    assert bench.rows("error") == bench.rows("Sales") == []
    assert events().count("receive_failed") <= 1


def test_durable_atomic_inside_a_handler_fails_the_message(postgresql_bench: Bench, calls: Calls) -> None:
    bench = postgresql_bench
    bench.configure(IMMEDIATE_RETRIES=1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        with transaction.atomic(using=bench.database.alias, durable=True):
            calls.add("never")

    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == [1, 2]
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"] == "RuntimeError"
    assert "durable atomic block cannot be nested within another atomic block" in headers["NServiceBus.ExceptionInfo.Message"]


def test_handler_may_open_a_durable_atomic_in_mode_none(postgresql_bench: Bench, calls: Calls) -> None:
    bench = postgresql_bench
    bench.configure(TRANSACTION_MODE="none")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        with transaction.atomic(using=bench.database.alias, durable=True):
            calls.add("inside")

    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == ["inside"]
    assert bench.rows("error") == []


def test_session_cut_by_idle_timeout_returns_the_message_and_counts_the_attempt(
    postgresql_bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    bench = postgresql_bench
    bench.configure(IMMEDIATE_RETRIES=1)
    set_on_alias(bench, monkeypatch, sets={"idle_in_transaction_session_timeout": "1s"})

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add((context.attempt, pid := backend(context)))
        poll_until(lambda: not is_there(bench, pid), 60, what="the server cuts the session of a handler that computes too long")

    bench.put_message("Test.Message")
    bench.run()
    assert [attempt for attempt, _ in calls.seen] == [1, 2]
    assert len({pid for _, pid in calls.seen}) == 2
    assert events().count("transaction_lost") == 2
    assert bench.rows("Sales") == []
    (headers,) = bench.headers("error")
    # the handler wrote nothing and raised nothing: the commit reports the loss
    assert headers["NServiceBus.ExceptionInfo.Message"]


def test_statement_timeout_fails_the_handler_and_not_the_receive(
    postgresql_bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = postgresql_bench
    bench.configure(IMMEDIATE_RETRIES=1)
    set_on_alias(bench, monkeypatch, sets={"statement_timeout": "1s"})

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add((message["n"], context.attempt))
        if message["n"] == 0:
            with context.connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(60)")

    send_numbers(bench, 2)
    bench.run()
    assert sorted(calls.seen) == [(0, 1), (0, 2), (1, 1)]
    (headers,) = bench.headers("error")
    assert "statement timeout" in headers["NServiceBus.ExceptionInfo.Message"]


def test_lock_timeout_fails_only_the_waiting_handler(
    postgresql_bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = postgresql_bench
    set_on_alias(bench, monkeypatch, sets={"lock_timeout": "100ms"})

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])
        with context.connection.cursor() as cursor:
            cursor.execute("LOCK TABLE contended")

    provider: Any = bench.database.provider
    with provider.server.connect(provider.database) as session:
        session.execute("CREATE TABLE contended (id int)")
        session.execute("BEGIN")
        session.execute("LOCK TABLE contended")
        send_numbers(bench, 1)
        bench.run()
        session.execute("ROLLBACK")
    assert calls.seen == [0]
    (headers,) = bench.headers("error")
    assert "lock timeout" in headers["NServiceBus.ExceptionInfo.Message"]


def test_pooler_without_prepared_statements_loses_no_message(
    postgresql_bench: Bench, calls: Calls, events: Callable[[], list[str]]
) -> None:
    """As behind a pooler in transaction mode: the session of the EXECUTE is not that of the PREPARE."""
    bench = postgresql_bench
    bench.configure(MAX_CONCURRENCY=1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])
        with context.connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")

    send_numbers(bench, 3)
    bench.run()
    assert sorted(calls.seen) == [0, 1, 2]
    assert bench.rows("error") == bench.rows("Sales") == []
    assert "receive_failed" in events()


def test_prepared_statements_of_psycopg_do_not_end_the_receive(
    postgresql_bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    """psycopg deallocates every statement of the session after a rollback, if it has prepared any."""
    bench = postgresql_bench
    bench.configure(MAX_CONCURRENCY=1, IMMEDIATE_RETRIES=1)
    set_on_alias(bench, monkeypatch, OPTIONS={"server_side_binding": True, "prepare_threshold": 0})

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        with context.connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        if calls.add((message["n"], context.attempt)) != 2:
            raise LookupError

    send_numbers(bench, 2)
    bench.run()
    assert sorted(calls.seen) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert "receive_failed" not in events()


def test_long_handler_keeps_its_row_and_the_heartbeat(
    postgresql_bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    """The database has no time limit for a handler: the row is locked, not leased, for as long as the handler runs."""
    bench = postgresql_bench
    monkeypatch.setattr("sqlqueue_app.receiving.instances.HEARTBEAT_SECONDS", 0.05)
    bench.configure(MAX_CONCURRENCY=4)
    working, release = threading.Event(), threading.Event()

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        working.set()
        assert release.wait(120), "the test did not release the handler"

    beats: set[object] = set()

    def beat() -> object:
        with bench.database.connection.cursor() as cursor:
            cursor.execute("SELECT heartbeat_at FROM sqlqueue_app_instance")
            beats.update(row[0] for row in cursor.fetchall())
        return len(beats) > 5

    bench.put_message("Test.Message")
    with Running(bench) as worker:
        assert working.wait(60), "the handler was never called"
        poll_until(beat, 60, what="the heartbeat continues while the handler works")
        assert calls.seen == [1]
        assert worker.error is None
        release.set()
        poll_until(lambda: not bench.rows("Sales"), 60, what="the message is handled")
    assert calls.seen == [1]
    assert bench.rows("error") == []
    assert "lease_lost" not in events()
