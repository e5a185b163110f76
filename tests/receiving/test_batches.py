"""Many messages in one transaction: each has its own savepoint, and all or none are committed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction

from sqlqueue_app import handles
from sqlqueue_app.policies import polling
from sqlqueue_app.receiving.processing import MessageProcessor
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.tables.postgresql_receive import PostgresReceiveTransaction
from sqlqueue_app.tables.rows import ReceivedRow
from tests.receiving.batches import configure, put_rows
from tests.support.bench import Bench, Calls
from tests.support.tables import execute

Batches = list[list[ReceivedRow]]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    """The rows of each batch, in order."""
    seen: Batches = []
    process = MessageProcessor.process

    def seen_first(self: MessageProcessor, rows: Any) -> bool:
        seen.append(list(rows))
        return process(self, rows)

    monkeypatch.setattr(MessageProcessor, "process", seen_first)
    return seen


@pytest.fixture
def written(bench: Bench) -> Callable[[], list[int]]:
    """Create the table `written` for handlers to fill, and return a function that reads it."""
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE written (number integer NOT NULL)")

    def numbers() -> list[int]:
        with bench.database.connection.cursor() as cursor:
            cursor.execute("SELECT number FROM written ORDER BY number")
            return [row[0] for row in cursor.fetchall()]

    return numbers


def write(context: Any, number: int) -> None:
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO written (number) VALUES (%s)", [number])


@pytest.mark.parametrize("mode", ["receive_only", "sends_atomic_with_receive", "transaction_scope"])
def test_batch_keeps_the_order_and_is_one_transaction(
    bench: Bench, batches: Batches, written: Callable[[], list[int]], mode: str
) -> None:
    configure(bench, TRANSACTION_MODE=mode)
    put_rows(bench, range(25))
    order: list[int] = []

    def handle(message: Any, context: Any) -> None:
        order.append(message["number"])
        write(context, message["number"])

    handles("Test.Message")(handle)
    assert bench.run() == 25
    assert [len(rows) for rows in batches] == [10, 10, 5]
    assert order == list(range(25)) == written()


def test_mode_none_takes_each_message_alone(bench: Bench, batches: Batches, counting: None) -> None:
    configure(bench, TRANSACTION_MODE="none")
    put_rows(bench, range(5))
    bench.run()
    assert [len(rows) for rows in batches] == [1] * 5


def test_failing_message_does_not_fail_the_others(bench: Bench, batches: Batches, written: Callable[[], list[int]]) -> None:
    configure(bench, IMMEDIATE_RETRIES=2)
    put_rows(bench, range(10))
    attempts: list[int] = []

    def handle(message: Any, context: Any) -> None:
        write(context, message["number"])
        if message["number"] == 3:
            attempts.append(context.attempt)
            raise ValueError("three")

    handles("Test.Message")(handle)
    bench.run()
    assert attempts == [1, 2, 3]
    assert [len(rows) for rows in batches] == [10]
    assert written() == [0, 1, 2, *range(4, 10)]
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.Message"] == "three"


def test_failure_undoes_only_its_own_work_and_hooks(bench: Bench, written: Callable[[], list[int]]) -> None:
    configure(bench)
    put_rows(bench, range(4))
    hooks: list[int] = []

    def handle(message: Any, context: Any) -> None:
        number = message["number"]
        transaction.on_commit(lambda: hooks.append(number), using=bench.database.alias)
        if number % 2:
            write(context, number)
            raise ValueError(number)
        if number:
            write(context, number)

    handles("Test.Message")(handle)
    bench.run()
    assert hooks == [0, 2]
    assert written() == [2]
    assert len(bench.rows("error")) == 2


def test_batch_sends_together_and_only_for_handled_messages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(bench, IMMEDIATE_RETRIES=0)
    bench.install_queues("Out")
    put_rows(bench, range(6))
    dispatched: list[int] = []
    dispatch = Dispatcher.dispatch_each

    def counted(self: Dispatcher, groups: Any, **more: Any) -> None:
        dispatched.append(sum(map(len, groups)))
        dispatch(self, groups, **more)

    monkeypatch.setattr(Dispatcher, "dispatch_each", counted)

    def handle(message: Any, context: Any) -> None:
        context.send("Test.Out", {"number": message["number"]}, to="Out")
        if message["number"] == 4:
            raise ValueError("four")

    handles("Test.Message")(handle)
    bench.run()
    assert dispatched == [5]
    assert [row.body for row in bench.rows("Out")] == [f'{{"number":{number}}}'.encode() for number in (0, 1, 2, 3, 5)]


def test_batch_that_cannot_commit_is_handled_one_by_one(
    bench: Bench, batches: Batches, events: Callable[[], list[str]], written: Callable[[], list[int]]
) -> None:
    configure(bench, IMMEDIATE_RETRIES=0)
    put_rows(bench, range(12))

    def handle(message: Any, context: Any) -> None:
        write(context, message["number"])
        if message["number"] == 3:
            context.send("Test.Out", {}, to="Missing")

    handles("Test.Message")(handle)
    bench.run()
    assert [len(rows) for rows in batches] == [10, *[1] * 10, 2]
    assert written() == [0, 1, 2, *range(4, 12)]
    assert events().count("batch_lost") == 1
    (headers,) = bench.headers("error")
    assert "Missing" in headers["NServiceBus.ExceptionInfo.Message"]


def test_deferred_constraint_fails_only_its_own_message(
    postgresql_bench: Bench, batches: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    bench = postgresql_bench
    configure(bench, IMMEDIATE_RETRIES=0, BATCH_SIZE=4)
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE once (number integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        cursor.execute("INSERT INTO once VALUES (2)")
    put_rows(bench, range(4))

    def handle(message: Any, context: Any) -> None:
        with context.connection.cursor() as cursor:
            cursor.execute("INSERT INTO once VALUES (%s)", [message["number"]])

    handles("Test.Message")(handle)
    bench.run()
    assert [len(rows) for rows in batches][:2] == [4, 1]
    (headers,) = bench.headers("error")
    assert "once_number_key" in headers["NServiceBus.ExceptionInfo.Message"]
    with bench.database.connection.cursor() as cursor:
        cursor.execute("SELECT number FROM once ORDER BY number")
        assert [row[0] for row in cursor.fetchall()] == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["transaction_scope", "receive_only"])
def test_commit_that_fails_is_a_failure_of_its_message(
    sqlite_bench: Bench, calls: Calls, events: Callable[[], list[str]], mode: str
) -> None:
    bench = sqlite_bench
    configure(bench, IMMEDIATE_RETRIES=1, TRANSACTION_MODE=mode)
    execute(bench.database, "CREATE TABLE one (number integer PRIMARY KEY)")
    execute(bench.database, "CREATE TABLE other (one integer REFERENCES one DEFERRABLE INITIALLY DEFERRED)")
    put_rows(bench, range(1))

    def handle(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        with context.connection.cursor() as cursor:
            cursor.execute("INSERT INTO other VALUES (99)")

    handles("Test.Message")(handle)
    bench.run()
    assert calls.seen == [1, 2]
    (headers,) = bench.headers("error")
    assert "FOREIGN KEY constraint failed" in headers["NServiceBus.ExceptionInfo.Message"]
    assert events().count("transaction_lost") == 2
    assert "transaction_ended" not in events()


def test_lost_transaction_counts_only_for_the_current_message(
    bench: Bench, batches: Batches, written: Callable[[], list[int]]
) -> None:
    configure(bench, IMMEDIATE_RETRIES=1, BATCH_SIZE=4)
    put_rows(bench, range(4))
    attempts: list[tuple[int, int]] = []

    def handle(message: Any, context: Any) -> None:
        attempts.append((message["number"], context.attempt))
        write(context, message["number"])
        if message["number"] == 2:
            context.connection.close()
            raise ValueError("two")

    handles("Test.Message")(handle)
    bench.run()
    assert attempts == [(0, 1), (1, 1), (2, 1), (0, 1), (1, 1), (2, 2), (3, 1)]
    assert written() == [0, 1, 3]
    assert len(bench.rows("error")) == 1


def test_deadlock_of_two_batches_counts_as_no_attempt(
    postgresql_bench: Bench, calls: Calls, events: Callable[[], list[str]]
) -> None:
    bench = postgresql_bench
    bench.configure(BATCH_SIZE=2, MAX_CONCURRENCY=2, CONCURRENCY_MODEL="fixed")
    execute(bench.database, "CREATE TABLE counted AS SELECT * FROM (VALUES (1, 0), (2, 0)) AS rows (number, times)")
    both = threading.Barrier(2)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        is_first_call = message not in calls.seen
        calls.add(message)
        with context.connection.cursor() as cursor:
            cursor.execute("UPDATE counted SET times = times + 1 WHERE number = %s", [message["row"]])
        if message["waits"] and is_first_call:
            both.wait(60)

    for number, (row, waits) in enumerate([(1, True), (2, False), (2, True), (1, False)]):
        bench.put_message_of(number, "Test.Message", {"row": row, "waits": waits})
    bench.run()
    with bench.database.connection.cursor() as cursor:
        cursor.execute("SELECT times FROM counted")
        assert cursor.fetchall() == [(2,), (2,)]
    assert bench.rows("error") == []
    assert "receive_gave_way" in events()


def test_unreadable_and_expired_rows_are_settled_with_their_batch(bench: Bench, calls: Calls, counting: None) -> None:
    configure(bench)
    bench.put("not headers", b"1", row_id="00000000-0000-0000-0000-000000000001")
    put_rows(bench, range(5, 8))
    bench.put('{"a": "b"}', b"", row_id="00000000-0000-0000-0000-000000000002")
    bench.run()
    assert [message["number"] for message in calls.seen] == [5, 6, 7]
    assert [row.headers for row in bench.rows("error")] == ["not headers"]
    assert bench.rows("Sales") == []


def test_swallowed_error_fails_only_its_own_message(bench: Bench, written: Callable[[], list[int]]) -> None:
    configure(bench)
    put_rows(bench, range(3))

    def handle(message: Any, context: Any) -> None:
        if message["number"] == 1:
            with pytest.raises(IntegrityError), transaction.atomic(using=bench.database.alias, savepoint=False):
                write(context, None)  # type: ignore[arg-type]
            return
        write(context, message["number"])

    handles("Test.Message")(handle)
    bench.run()
    assert written() == [0, 2]
    assert len(bench.rows("error")) == 1


def test_auto_batch_size_grows_while_the_queue_is_deep(
    bench: Bench, batches: Batches, counting: None, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "AUTO_SECONDS", 3_600)  # no batch is slow, however busy the machine is
    configure(bench, BATCH_SIZE="auto")
    put_rows(bench, range(40))
    bench.run()
    *sizes, _rest = (len(rows) for rows in batches)
    # PostgreSQL receives the second batch with the commit of the first, so it is still one row.
    assert list(dict.fromkeys(sizes)) == [1, 2, 4, 8, 16]
    assert [message["number"] for message in calls.seen] == list(range(40))


def test_all_models_with_batches_handle_every_message_once(bench: Bench, calls: Calls, counting: None) -> None:
    for model in ("fixed", "adaptive", "monitor"):
        calls.seen.clear()
        configure(bench, BATCH_SIZE="auto", MAX_CONCURRENCY=4, CONCURRENCY_MODEL=model)
        put_rows(bench, range(60))
        bench.run()
        assert sorted(message["number"] for message in calls.seen) == list(range(60))


def test_savepoint_is_taken_only_when_a_handler_uses_the_database(
    postgresql_bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = postgresql_bench
    configure(bench)
    taken: list[str] = []
    for name in ("_take_savepoint", "_renew_savepoint"):
        method = getattr(PostgresReceiveTransaction, name)

        def noted(self: Any, method: Any = method, name: str = name) -> None:
            taken.append(name)
            method(self)

        monkeypatch.setattr(PostgresReceiveTransaction, name, noted)
    put_rows(bench, range(6))

    def handle(message: Any, context: Any) -> None:
        number = message["number"]
        if number == 1:
            context.connection.ensure_connection()
        elif number == 2:
            connections[bench.database.alias].connection.execute("SELECT 1")
        elif number == 4:
            with context.connection.cursor() as cursor, cursor.copy("COPY (SELECT 1) TO STDOUT") as copy:
                list(copy)

    handles("Test.Message")(handle)
    bench.run()
    assert taken == ["_take_savepoint", "_renew_savepoint", "_renew_savepoint"]
    assert bench.rows("error") == []


def test_raw_commit_loses_no_message_of_the_batch(
    bench: Bench, events: Callable[[], list[str]], written: Callable[[], list[int]]
) -> None:
    configure(bench, IMMEDIATE_RETRIES=0)
    bench.install_queues("Out")
    put_rows(bench, range(5))

    def handle(message: Any, context: Any) -> None:
        write(context, message["number"])
        context.send("Test.Out", {"number": message["number"]}, to="Out")
        if message["number"] == 2:
            with context.connection.cursor() as cursor:
                cursor.execute("COMMIT")

    handles("Test.Message")(handle)
    bench.run()
    if bench.database.vendor == "sqlserver":
        # On SQL Server, such a COMMIT commits nothing: only its own message has failed.
        assert [headers["NServiceBus.MessageId"] for headers in bench.headers("error")] == ["2"]
        assert sorted(row.body or b"" for row in bench.rows("Out")) == [b'{"number":%d}' % number for number in (0, 1, 3, 4)]
        assert sorted(written()) == [0, 1, 3, 4]
        return
    # the two before it are handled and sent; the others are not handled, and unchanged in the error queue
    assert sorted(row.id.int for row in bench.rows("error") if bench.database.vendor == "sqlite") in ([], [2, 3, 4])
    assert [headers["NServiceBus.MessageId"] for headers in bench.headers("error")] == ["2", "3", "4"]
    assert [row.body for row in bench.rows("Out")] == [b'{"number":0}', b'{"number":1}']
    assert written() == [0, 1, 2]
    assert events().count("transaction_ended") == 1
