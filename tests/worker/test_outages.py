"""The database becomes unavailable, or is not available yet: the worker waits for it and continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from sqlqueue_app import handles, request
from sqlqueue_app.messages.errors import ConfigurationError, Deadlock, QueueNotFound
from sqlqueue_app.receiving.processing import MessageProcessor
from sqlqueue_app.tables.installation import migrate_command
from tests.support.bench import FAST, Bench, Calls, Running
from tests.support.postgresql import ThrowAwayServer
from tests.support.tables import execute
from tests.support.waiting import poll_until


def test_worker_survives_a_restart_of_the_server(
    postgresql_bench: Bench, postgresql_server: ThrowAwayServer, calls: Calls, counting: object, events: Callable[[], list[str]]
) -> None:
    bench = postgresql_bench
    bench.configure(MAX_CONCURRENCY=4)
    bench.put_message("Test.Message", {"n": 1})
    with Running(bench) as worker:
        # Committed: a message that returned to its queue would have the id of the next one.
        poll_until(lambda: calls.seen and not bench.rows("Sales"))
        connections.close_all()
        postgresql_server.stop()
        poll_until(lambda: "receive_failed" in events(), what="the outage was noticed")
        postgresql_server.start()
        bench.put_message("Test.Message", {"n": 2})
        poll_until(lambda: len(calls.seen) == 2, deadline=60)
        poll_until(lambda: "receive_recovered" in events())
        assert worker.error is None
    assert events().count("receive_failed") == 1


def test_connection_cut_in_a_handler_returns_the_message_and_counts_the_attempt(
    postgresql_bench: Bench, calls: Calls, events: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    bench = postgresql_bench
    bench.configure(IMMEDIATE_RETRIES=2)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        with context.connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    bench.put_message("Test.Message", None, **{"NServiceBus.MessageId": "its-id"})
    bench.run()
    assert calls.seen == [1, 2, 3]
    (headers,) = bench.headers("error")
    assert "NServiceBus.ExceptionInfo.Message" in headers
    assert events().count("transaction_lost") == 3
    lost = [record for record in caplog.records if getattr(record, "event", "") == "transaction_lost"]
    assert {getattr(record, "message_id", "") for record in lost} == {"its-id"}


def test_worker_waits_for_an_unavailable_database_at_start(
    postgresql_bench: Bench,
    postgresql_server: ThrowAwayServer,
    calls: Calls,
    counting: object,
    events: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = postgresql_bench
    bench.put_message("Test.Message")
    connections.close_all()
    postgresql_server.stop()
    with Running(bench):
        poll_until(lambda: "database_away" in events())
        postgresql_server.start()
        poll_until(lambda: len(calls.seen) == 1, deadline=60)
    assert "database 'postgresql' cannot be used yet, trying again in " in caplog.text


def test_stop_ends_the_wait_for_a_database_at_once(
    postgresql_bench: Bench, postgresql_server: ThrowAwayServer, events: Callable[[], list[str]]
) -> None:
    connections.close_all()
    postgresql_server.stop()
    try:
        with Running(postgresql_bench):
            poll_until(lambda: "database_away" in events())
    finally:
        postgresql_server.start()


def test_missing_tables_end_the_start_with_names_and_remedy(bench: Bench) -> None:
    bench.database.configure(ENDPOINTS={"Nowhere": {"CALLBACKS": False, "ERROR_QUEUE": "lost"}})
    with pytest.raises(QueueNotFound, match=r"Nowhere.*does not exist.*lost.*does not exist.*run sqlqueue_install"):
        bench.run()


@pytest.mark.parametrize("install", [False, True])
def test_missing_app_tables_are_reported_with_migrate(bench: Bench, install: bool) -> None:
    execute(bench.database, "DROP TABLE sqlqueue_app_instance")
    bench.database.configure(SEND_AS="Sales", ENDPOINTS={"Sales": FAST})
    command = migrate_command(bench.database.alias)
    expected = f"failed to register an instance of 'Sales': .*sqlqueue_app_instance.*; run {command}, which creates the tables of"
    with pytest.raises(QueueNotFound, match=f"(?s){expected}"):
        bench.run(install=install)
    bench.database.configure(ENDPOINTS={})
    with pytest.raises(QueueNotFound, match=f"(?s){expected}"):
        request("Test.Ask", to="Sales")


def test_install_creates_missing_queue_tables(bench: Bench) -> None:
    bench.database.configure(ENDPOINTS={"Nowhere": {"CALLBACKS": False, "ERROR_QUEUE": "lost"}})
    assert bench.run(install=True) == 0
    assert bench.table("lost").exists()


def test_dropped_error_queue_keeps_the_message(bench: Bench, calls: Calls, events: Callable[[], list[str]]) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        raise ValueError("always")

    bench.put_message("Test.Message")
    error = bench.table("error").qualified
    with Running(bench) as worker:
        poll_until(lambda: not bench.rows("Sales"))
        with bench.database.connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {error}")
        bench.put_message("Test.Message")
        poll_until(lambda: "message_stays" in events())
        bench.install()
        poll_until(lambda: len(bench.rows("error")) == 1, deadline=60, what="moved after the table came back")
        assert worker.error is None


def test_unknown_or_missing_endpoint_is_reported_in_one_line(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'Sales'"):
        bench.run(endpoints=["Sale"])
    bench.database.configure(ENDPOINTS={})
    with pytest.raises(ConfigurationError, match="no endpoint to run"):
        bench.run()


def test_until_empty_continues_after_a_deadlock(
    bench: Bench, calls: Calls, counting: object, events: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gave_way: list[int] = []
    receive = MessageProcessor.receive

    def first_gives_way(self: MessageProcessor) -> object:
        if len(gave_way) < 3:
            gave_way.append(1)
            raise Deadlock("chosen as the victim")
        return receive(self)

    monkeypatch.setattr(MessageProcessor, "receive", first_gives_way)
    bench.put_message("Test.Message")
    bench.run()
    assert len(calls.seen) == 1
    assert events().count("receive_gave_way") == 3
