"""New messages wake idle receivers on PostgreSQL: a trigger notifies, one connection listens."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections, transaction

from sqlqueue_app import handles, pause, resume, send, send_many
from sqlqueue_app.dialects.schema import wake_up_channel
from sqlqueue_app.receiving import instances
from sqlqueue_app.receiving.waiting import WakeUp
from tests.receiving.wake_ups import HEADERS, Line, at_rest, by_command, by_insert, by_own_send, prepare, wakes_an_idle_worker
from tests.support.bench import Bench, Calls, Running
from tests.support.tables import execute
from tests.support.waiting import poll_until
from tests.support.worker_processes import address


@pytest.fixture
def bench(postgresql_bench: Bench) -> Bench:
    return postgresql_bench


def by_copy(bench: Bench, number: int) -> None:
    with bench.database.connection.cursor() as cursor:
        copy = 'COPY "Sales" (id, headers, body) FROM STDIN'
        cursor.execute("SELECT gen_random_uuid()")
        (row_id,) = cursor.fetchone()
        with cursor.cursor.copy(copy) as target:
            target.write_row((row_id, HEADERS, json.dumps({"n": number}).encode()))


@pytest.mark.parametrize("model", ["fixed", "adaptive", "monitor"])
@pytest.mark.parametrize("sent", [by_command, by_insert, by_copy, by_own_send])
def test_any_sender_wakes_an_idle_worker(
    bench: Bench,
    calls: Calls,
    counting: object,
    wake_ups: list[WakeUp],
    model: str,
    sent: Callable[[Bench, int], None],
) -> None:
    prepare(bench, CONCURRENCY_MODEL=model, MAX_CONCURRENCY=2)
    wakes_an_idle_worker(bench, calls, at_rest(wake_ups, 2 if model == "fixed" else 1), sent)


def test_missing_trigger_is_logged_and_prevents_rest(
    bench: Bench, wake_ups: list[WakeUp], caplog: pytest.LogCaptureFixture, events: Callable[[], list[str]]
) -> None:
    prepare(bench, trigger=False)
    with Running(bench):
        poll_until(lambda: "wake_up_without_trigger" in events())
        assert not wake_ups[0].push_enabled
        call_command("sqlqueue_install", "--wake-up", verbosity=0)
    assert events().count("wake_up_without_trigger") == 2  # Sales and Sales.Delayed
    assert "wake_up_on" not in events()
    assert "python manage.py sqlqueue_install --wake-up" in caplog.text


def test_until_empty_uses_no_wake_up(bench: Bench, calls: Calls, counting: object, wake_ups: list[WakeUp]) -> None:
    prepare(bench, SATELLITES={"Sales.Priority": {}})
    send_many("Test.Message", [{"n": n} for n in range(20)], to=address(bench, "Sales"))
    assert bench.run() == 20
    assert wake_ups == []


def test_worker_without_wake_up_does_not_listen(bench: Bench, wake_ups: list[WakeUp], events: Callable[[], list[str]]) -> None:
    bench.configure(WAKE_UP=False)
    with Running(bench):
        poll_until(lambda: "worker_started" in events())
    assert wake_ups == []
    assert "wake_up_on" not in events()


def listeners(bench: Bench) -> list[int]:
    """The process ids of the listening sessions."""
    where = "datname = current_database() AND query LIKE '%wanted%' AND pid <> pg_backend_pid()"
    rows = execute(bench.database, f"SELECT pid FROM pg_stat_activity WHERE {where}")
    return [int(pid) for (pid,) in rows]


def test_queues_of_a_process_share_one_connection(bench: Bench, calls: Calls, counting: object, wake_ups: list[WakeUp]) -> None:
    endpoint = {"CALLBACKS": False, "PURGE_EXPIRED_EVERY": 0}
    bench.database.configure(ENDPOINTS={"Sales": {**endpoint, "SATELLITES": {"Sales.Priority": {}}}, "Billing": endpoint})
    call_command("sqlqueue_install", verbosity=0)
    with Running(bench):
        poll_until(at_rest(wake_ups), 60)
        assert len(wake_ups) == 3
        assert len(listeners(bench)) == 1
        for number, queue in enumerate(("Billing", "Sales.Priority", "Sales"), start=1):
            send("Test.Message", {"n": number}, to=address(bench, queue))
            poll_until(lambda expected=number: len(calls.seen) == expected, 60)  # type: ignore[misc]
    poll_until(lambda: listeners(bench) == [], what="the connection is gone")
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("sqlqueue")] == []


def test_paused_receiver_ends_its_rest_and_polls_when_resumed(
    bench: Bench, calls: Calls, counting: object, wake_ups: list[WakeUp], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", 0.1)
    prepare(bench, MAX_CONCURRENCY=2, CONCURRENCY_MODEL="fixed")
    with Running(bench):
        poll_until(at_rest(wake_ups, threads=2), 60)
        pause("Sales")
        poll_until(at_rest(wake_ups, threads=0), 60, what="no thread waits at the queue")
        for number in range(2):
            by_insert(bench, number)
        resume("Sales")
        poll_until(lambda: len(calls.seen) == 2, 60)
        poll_until(at_rest(wake_ups, threads=2), 60)
        by_insert(bench, 3)
        poll_until(lambda: len(calls.seen) == 3, 60)


def test_lost_connection_is_reopened_and_no_message_is_missed(
    bench: Bench, calls: Calls, counting: object, wake_ups: list[WakeUp], events: Callable[[], list[str]]
) -> None:
    prepare(bench)
    with Running(bench):
        poll_until(at_rest(wake_ups), 60)
        (pid,) = listeners(bench)
        execute(bench.database, f"SELECT pg_terminate_backend({pid})")
        by_insert(bench, 1)
        poll_until(lambda: len(calls.seen) == 1, 60)
        poll_until(lambda: events().count("wake_up_on") == 2, 60)
        poll_until(at_rest(wake_ups), 60)
        assert listeners(bench) != [pid]
        by_insert(bench, 2)
        poll_until(lambda: len(calls.seen) == 2, 60)
    assert events().count("wake_up_lost") == 1


def test_no_message_is_missed_between_bursts_and_rests(
    bench: Bench, calls: Calls, counting: object, wake_ups: list[WakeUp], events: Callable[[], list[str]]
) -> None:
    """Senders that come and go in bursts; a resting worker does not poll on a timer."""
    prepare(bench, MAX_CONCURRENCY=2, CONCURRENCY_MODEL="fixed")
    with Running(bench):
        for burst in (1, 40, 3, 200, 1):
            expected = len(calls.seen) + 2 * burst

            def send_alone(burst: int = burst) -> None:
                try:
                    for number in range(burst):
                        by_own_send(bench, number)
                finally:
                    connections.close_all()

            senders = [threading.Thread(target=send_alone) for _ in range(2)]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
            poll_until(lambda expected=expected: len(calls.seen) == expected, 60)  # type: ignore[misc]
    assert "thread_died" not in events()


def test_worker_rests_only_after_unannounced_transactions_end(
    bench: Bench, calls: Calls, counting: object, wake_ups: list[WakeUp], events: Callable[[], list[str]]
) -> None:
    prepare(bench)
    with ExitStack() as under_way:
        under_way.enter_context(transaction.atomic(using=bench.database.alias))
        by_own_send(bench, 1)
        with Running(bench):
            poll_until(lambda: "wake_up_on" in events(), 60)
            poll_until(lambda: wake_ups[0].waiting == 1, 60)
            assert not wake_ups[0].push_enabled
            under_way.close()
            poll_until(lambda: len(calls.seen) == 1, 60)
            poll_until(at_rest(wake_ups), 60)


# --- the connection by itself -------------------------------------------------------------------------------------------------


def test_rollback_announces_nothing(bench: Bench) -> None:
    prepare(bench, SATELLITES={"Sales.Priority": {}})
    with Line(bench, "Sales", "Sales.Priority") as line:
        with transaction.atomic(using=bench.database.alias):
            by_own_send(bench, 1)
            send_many("Test.Message", [{"n": n} for n in range(200)], to=address(bench, "Sales"))
            transaction.set_rollback(True, using=bench.database.alias)
        # Notifications arrive in the order of the commits.
        send("Test.Message", {"n": 2}, to=address(bench, "Sales.Priority"))
        assert line.wait() == {"Sales.Priority"}


@pytest.mark.parametrize("many", [1, 3, 200])
def test_send_is_announced_with_its_commit(bench: Bench, many: int) -> None:
    prepare(bench)
    with Line(bench, "Sales") as line:
        send_many("Test.Message", [{"n": n} for n in range(many)], to=address(bench, "Sales"))
        assert line.wait() == {"Sales"}
    assert len(bench.rows("Sales")) == many


def test_send_of_a_handler_is_announced(bench: Bench, wake_ups: list[WakeUp]) -> None:
    prepare(bench)
    target = address(bench, "error")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send("Test.Other", {}, to=target)

    with Line(bench, "error") as line:
        bench.put_message("Test.Message")
        bench.run()
        assert line.wait() == {"error"}


def test_only_requested_queues_are_announced(bench: Bench) -> None:
    prepare(bench, SATELLITES={"Sales.Priority": {}})
    sales, priority = (wake_up_channel(bench.table(name).qualified) for name in ("Sales", "Sales.Priority"))
    with Line(bench, "Sales", "Sales.Priority", requests=False) as line:
        by_own_send(bench, 1)
        assert line.connection.request([priority]) == {priority}
        by_own_send(bench, 2)
        send("Test.Message", {"n": 3}, to=address(bench, "Sales.Priority"))
        assert line.wait() == {"Sales.Priority"}

        assert line.connection.request([sales, priority]) == {sales, priority}
        line.connection.withdraw_request(priority)
        send("Test.Message", {"n": 4}, to=address(bench, "Sales.Priority"))
        by_own_send(bench, 5)
        assert line.wait() == {"Sales"}


def test_listener_that_stops_asking_leaves_the_others_announcements(bench: Bench) -> None:
    prepare(bench)
    channel = wake_up_channel(bench.table("Sales").qualified)
    with Line(bench, "Sales") as other, Line(bench, "Sales") as line:
        assert line.request_locks() == {"Sales"}  # a repeated request takes no second lock
        line.connection.withdraw_request(channel)
        by_own_send(bench, 1)
        assert other.wait() == {"Sales"}
        other.connection.withdraw_request(channel)
    assert execute(bench.database, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]


@pytest.mark.parametrize("ended_by", ["commit", "rollback"])
def test_transaction_with_earlier_sends_delays_the_announcements(bench: Bench, ended_by: str) -> None:
    prepare(bench, SATELLITES={"Sales.Priority": {}})
    connection = transaction.get_connection(bench.database.alias)
    with Line(bench, "Sales", "Sales.Priority", requests=False) as line:
        with transaction.atomic(using=bench.database.alias):
            by_own_send(bench, 1)
            assert line.request_locks() == {"Sales.Priority"}
            assert line.request_locks() == {"Sales.Priority"}
            if ended_by == "rollback":
                connection.set_rollback(True)
        assert line.request_locks() == {"Sales", "Sales.Priority"}
        # The first one was not announced.
        send("Test.Message", {"n": 2}, to=address(bench, "Sales.Priority"))
        assert line.wait() == {"Sales.Priority"}


def test_ended_session_requests_no_announcements(bench: Bench) -> None:
    prepare(bench)
    with Line(bench, "Sales") as gone:
        assert gone.request_locks() == {"Sales"}
    poll_until(lambda: execute(bench.database, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)])


def test_prepared_transaction_keeps_the_receiver_polling(bench: Bench) -> None:
    prepare(bench)
    with Line(bench, "Sales", requests=False) as line:
        execute(bench.database, "BEGIN")
        by_insert(bench, 1)
        execute(bench.database, "PREPARE TRANSACTION 'sqlqueue_test_wake_up'")
        try:
            assert line.request_locks() == set()
        finally:
            execute(bench.database, "COMMIT PREPARED 'sqlqueue_test_wake_up'")
        assert line.request_locks() == {"Sales"}


def test_transaction_is_announced_once(bench: Bench) -> None:
    prepare(bench)
    alias = bench.database.alias
    parameters = connections[alias].get_connection_params()
    conninfo = {key: parameters[key] for key in ("dbname", "user", "password", "host", "port") if key in parameters}
    with Line(bench, "Sales"), psycopg.connect(**conninfo, autocommit=True) as listener:
        listener.execute(f"LISTEN {wake_up_channel(bench.table('Sales').qualified)}")
        with transaction.atomic(using=alias):
            for number in range(5):
                by_own_send(bench, number)
            send_many("Test.Message", [{"n": n} for n in range(200)], to=address(bench, "Sales"))
            by_insert(bench, 6)
        listener.execute("LISTEN done")
        listener.execute("NOTIFY done")
        received = [notification.channel for notification in listener.notifies(timeout=60, stop_after=2)]
    assert received == [wake_up_channel(bench.table("Sales").qualified), "done"]
