"""`revoke()` and `message_status()`: a message is cancelled or handled, never both, and the caller learns which."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sqlqueue_app import (
    MessageState,
    MessageStatus,
    RevokeResult,
    SqlQueueError,
    amessage_status,
    arevoke,
    handles,
    message_status,
    publish,
    revoke,
    send,
    send_many,
    subscribe,
)
from sqlqueue_app.browsing import by_id
from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.index import catch_up
from sqlqueue_app.messages.errors import ConfigurationError, LockTimeout, PermissionDenied, QueueNotFound, WireFormatError
from sqlqueue_app.models import FailedMessage, FailureStatus, TaskResult
from sqlqueue_app.status.queues import address_of_queue
from sqlqueue_app.tables.listing import sees_locked_rows
from sqlqueue_app.tables.row_selection import remove_rows
from sqlqueue_app.tables.rows import NewRow
from tests.support.bench import FAST, Bench, Calls, Running
from tests.support.conversations import audited, sent
from tests.support.databases import QueueDatabase
from tests.support.delayed_rows import delayed
from tests.support.lakes import write
from tests.support.tables import elsewhere
from tests.support.task_results import task
from tests.support.waiting import poll_until


@pytest.fixture
def shop(bench: Bench) -> Bench:
    bench.configure(routes={"Test.*": "Sales"})
    return bench


@contextmanager
def handling(bench: Bench, **options: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    """A worker whose handler waits in the middle of a message: yields the id of the message, and the call that lets it end."""
    begun, go_on = threading.Event(), threading.Event()

    @handles("Test.Slow")
    def slow(message: Any, context: Any) -> None:
        begun.set()
        assert go_on.wait(60)

    message_id = send("Test.Slow", {})
    try:
        with Running(bench, **options):
            assert begun.wait(60)
            yield message_id, go_on.set
            go_on.set()
    finally:
        go_on.set()


def shows_locked_rows(bench: Bench) -> bool:
    """Whether a reader sees that a worker holds a row. On SQLite it only sees the last commit."""
    return bench.database.vendor != "sqlite" and sees_locked_rows(bench.database.alias, [])


def no_trace(bench: Bench) -> RevokeResult:
    """The result for a message that is in no table; unknown if the reader cannot see locked rows."""
    return RevokeResult.NOT_FOUND if sees_locked_rows(bench.database.alias, []) else RevokeResult.UNKNOWN


# --- cancel -------------------------------------------------------------------------------------------------------------------


def test_waiting_message_is_cancelled(shop: Bench, calls: Calls, counting: Callable[..., None]) -> None:
    first, second, third = send_many("Test.Message", [{"n": 1}, {"n": 2}, {"n": 3}])
    assert revoke(second) is RevokeResult.CANCELLED
    assert revoke(second) is no_trace(shop)
    assert not revoke(second)
    shop.run()
    assert [message["n"] for message in calls.seen] == [1, 3]
    assert revoke(first) is revoke(third) is no_trace(shop)


def test_delayed_message_is_cancelled(shop: Bench) -> None:
    kept, cancelled = (send("Test.Message", {}, delay=3600) for _ in range(2))
    assert revoke(cancelled)
    assert revoke(cancelled, queue="Sales.Delayed") is no_trace(shop)
    assert message_status(kept).state is MessageState.DELAYED
    assert revoke(kept, queue="Sales") is no_trace(shop)
    assert revoke(kept, queue="Sales.Delayed")
    assert delayed(shop.database).count(10) == (0, 0)


def test_message_that_waits_for_a_retry_is_cancelled(shop: Bench, failing: Calls) -> None:
    shop.configure(routes={"Test.*": "Sales"}, DELAYED_RETRIES=3, DELAYED_RETRY_INCREASE=3600)
    message_id = send("Test.Message", {})
    shop.run()
    assert message_status(message_id).state is MessageState.DELAYED
    assert revoke(message_id)
    assert (len(failing.seen), shop.rows("error")) == (1, [])


def test_cancelling_commits_and_rolls_back_with_the_rows_of_the_caller(shop: Bench) -> None:
    alias = shop.database.alias
    waiting, later = send("Test.Message", {}), send("Test.Message", {}, delay=3600)
    with transaction.atomic(using=alias):
        assert revoke(waiting)
        assert revoke(later)
        assert shop.rows("Sales") == []
        transaction.set_rollback(True, using=alias)
    assert [message_status(each).state for each in (waiting, later)] == [MessageState.WAITING, MessageState.DELAYED]
    with transaction.atomic(using=alias):
        assert revoke(send("Test.Message", {})), "a message of the same transaction"
        assert revoke(waiting)
        assert revoke(later)
    assert revoke(waiting) is revoke(later) is no_trace(shop)


def test_message_in_any_table_of_the_database_is_cancelled(shop: Bench) -> None:
    shop.install_queues("Other")
    message_id = send("Test.Message", {}, to="Other")
    assert message_status(message_id) == MessageStatus(message_id, MessageState.WAITING, "Other")
    assert revoke(message_id, queue="Other")
    assert revoke(send("Test.Message", {}, to="Other"))


def test_all_waiting_copies_of_an_event_are_cancelled(bench: Bench) -> None:
    bench.database.configure(ENDPOINTS={"Sales": FAST, "Billing": FAST, "Shipping": FAST}, SEND_AS="Sales")
    bench.install()
    for endpoint in ("Sales", "Billing", "Shipping"):
        subscribe("Test.Event", endpoint=endpoint)
    event = publish("Test.Event", {})
    assert revoke(event, queue="Shipping")
    assert [len(bench.rows(queue)) for queue in ("Sales", "Billing", "Shipping")] == [1, 1, 0]
    assert revoke(event)
    assert revoke(event) is no_trace(bench)


@pytest.mark.parametrize("message_id", ['o\'clock "7" \\', "umsätze ☃ 42%_", "A" * 300, "<a&b>+`", " ", "{}", "a\0b"])
@pytest.mark.parametrize("tasks", [{}, {"default": {"BACKEND": "sqlqueue_app.tasks.SqlQueueBackend", "OPTIONS": {}}}])
def test_any_text_may_be_an_id(shop: Bench, message_id: str, tasks: dict[str, Any]) -> None:
    shop.database.settings.TASKS = tasks
    send("Test.Message", {}, message_id=f"{message_id}2")
    assert send("Test.Message", {}, message_id=message_id) == message_id
    assert message_status(message_id).state is MessageState.WAITING
    assert revoke(message_id)
    assert (revoke(message_id), len(shop.rows("Sales"))) == (no_trace(shop), 1)


@pytest.mark.parametrize("message_id", ["a\0b", "\ud800", "line\nbreak", "\x1b"])
@pytest.mark.parametrize("tasks", [{}, {"default": {"BACKEND": "sqlqueue_app.tasks.SqlQueueBackend", "OPTIONS": {}}}])
def test_ids_of_odd_characters_are_not_found(shop: Bench, message_id: str, tasks: dict[str, Any]) -> None:
    shop.database.settings.TASKS = tasks
    send("Test.Message", {})
    assert revoke(message_id) is no_trace(shop)
    assert message_status(message_id).state is MessageState.UNKNOWN


def test_only_the_message_itself_is_cancelled_not_those_that_name_it(shop: Bench) -> None:
    message_id = str(uuid.uuid4())
    table = shop.table("Sales")
    table.send([sent("child", message_id), sent(message_id)])
    assert revoke(message_id)
    (left,) = shop.headers("Sales")
    assert left["NServiceBus.MessageId"] == "child"
    assert revoke(message_id) is no_trace(shop)


def test_row_without_an_id_in_its_headers_has_the_id_of_the_row(shop: Bench) -> None:
    row_id = "11111111-2222-3333-4444-55555555aaaa"
    shop.put('{"NServiceBus.EnclosedMessageTypes": "Test.Message"}', b"{}", row_id=row_id)
    assert message_status(row_id).state is MessageState.WAITING
    assert revoke(row_id.upper())
    assert shop.rows("Sales") == []


def test_row_that_cannot_be_read_harms_nothing(shop: Bench) -> None:
    message_id = str(uuid.uuid4())
    shop.put(f'{{"NServiceBus.MessageId":"{message_id}" broken', b"")
    assert revoke(message_id) is no_trace(shop)
    assert message_status(message_id).state is MessageState.UNKNOWN


def test_copies_in_error_and_audit_queues_are_not_cancelled(shop: Bench) -> None:
    shop.database.configure(ENDPOINTS={"Sales": {**FAST, "AUDIT_QUEUE": "audit"}})
    shop.install()
    shop.install_queues("old-audit")
    shop.table("audit").send([audited("done")])
    shop.table("old-audit").send([audited("old")])
    assert revoke("done") is revoke("old") is no_trace(shop)
    assert message_status("done") == MessageStatus("done", MessageState.HANDLED, "audit")
    assert message_status("old") == MessageStatus("old", MessageState.HANDLED, "old-audit")


# --- beside workers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only"])
def test_message_that_a_worker_handles_is_in_progress(shop: Bench, mode: str) -> None:
    if not shows_locked_rows(shop):
        pytest.skip("only readers that see locked rows")
    shop.configure(routes={"Test.*": "Sales"}, TRANSACTION_MODE=mode)
    with handling(shop) as (message_id, go_on):
        assert revoke(message_id) is RevokeResult.IN_PROGRESS
        assert message_status(message_id) == MessageStatus(message_id, MessageState.IN_PROGRESS, "Sales")
        with transaction.atomic(using=shop.database.alias):
            assert revoke(message_id) is RevokeResult.IN_PROGRESS
        go_on()
        poll_until(lambda: revoke(message_id) is RevokeResult.NOT_FOUND)
    assert (shop.rows("Sales"), shop.rows("error")) == ([], [])


def test_message_is_gone_when_it_is_received_without_a_transaction(shop: Bench) -> None:
    shop.configure(routes={"Test.*": "Sales"}, TRANSACTION_MODE="none")
    with handling(shop) as (message_id, _):
        assert revoke(message_id) is no_trace(shop)
        assert message_status(message_id).state is MessageState.UNKNOWN


def test_message_that_another_transaction_cancels_is_in_progress(shop: Bench) -> None:
    if not shows_locked_rows(shop):
        pytest.skip("only readers that see locked rows")
    message_id = send("Test.Message", {}, delay=3600)
    alias = shop.database.alias
    with transaction.atomic(using=alias):
        assert revoke(message_id)
        assert elsewhere(lambda: revoke(message_id)) is RevokeResult.IN_PROGRESS
        transaction.set_rollback(True, using=alias)
    assert revoke(message_id)


def test_revoke_on_sqlite_waits_for_the_handler(sqlite_bench: Bench) -> None:
    sqlite_bench.configure(routes={"Test.*": "Sales"})
    done: list[RevokeResult] = []
    with handling(sqlite_bench) as (message_id, go_on):
        assert message_status(message_id).state is MessageState.WAITING, "a reader sees the last commit"

        def cancel() -> None:
            with connections[sqlite_bench.database.alias].cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 60000")
            done.append(revoke(message_id))
            connections.close_all()

        caller = threading.Thread(target=cancel)
        caller.start()
        caller.join(0.3)
        assert caller.is_alive()
        go_on()
        caller.join(60)
    assert done == [RevokeResult.NOT_FOUND]


def test_revoke_on_sqlite_raises_if_the_handler_takes_too_long(sqlite_bench: Bench) -> None:
    sqlite_bench.configure(routes={"Test.*": "Sales"})
    with handling(sqlite_bench) as (message_id, _):
        with connections[sqlite_bench.database.alias].cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 10")
        with pytest.raises(LockTimeout):
            revoke(message_id)


def test_handler_that_revokes_its_own_message_learns_that_it_is_in_progress(shop: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add((revoke(context.message_id), message_status(context.message_id).state, revoke(message["other"])))

    other = send("Test.Other", {}, delay=3600)
    send("Test.Message", {"other": other})
    shop.run()
    assert calls.seen == [(RevokeResult.IN_PROGRESS, MessageState.IN_PROGRESS, RevokeResult.CANCELLED)]
    assert revoke(other) is no_trace(shop)


@pytest.mark.parametrize("batch_size", [None, 10])
def test_handler_does_not_know_the_other_messages_of_its_batch(shop: Bench, calls: Calls, batch_size: int | None) -> None:

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(revoke(message["other"]))

    other = str(uuid.uuid4())
    send("Test.Message", {"other": other})
    send("Test.Message", {"other": str(uuid.uuid4())}, message_id=other)
    shop.run(batch_size=batch_size, max_concurrency=1)
    assert calls.seen == ([RevokeResult.UNKNOWN] * 2 if batch_size else [RevokeResult.CANCELLED])


def test_cancelling_in_a_handler_that_fails_is_undone(shop: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(revoke(message["other"]))
        raise LookupError("after it")

    other = send("Test.Other", {}, delay=3600)
    send("Test.Message", {"other": other})
    shop.run()
    assert calls.seen == [RevokeResult.CANCELLED]
    assert message_status(other).state is MessageState.DELAYED


def test_each_message_is_handled_or_cancelled_never_both_never_neither(shop: Bench, calls: Calls) -> None:
    """Two threads revoke from the end and at random, while a worker receives from the beginning, and delayed messages move."""
    shop.configure(routes={"Test.*": "Sales"}, MAX_CONCURRENCY=4)
    handles("Test.Message")(lambda message, context: calls.add(context.message_id))
    ids = send_many("Test.Message", [{"n": number} for number in range(200)])
    ids += send_many("Test.Message", [{"n": number} for number in range(100)], delay=1)
    results: dict[str, RevokeResult] = {}
    errors: list[BaseException] = []
    lock = threading.Lock()

    def cancel(chosen: list[str]) -> None:
        try:
            for message_id in chosen:
                result = revoke(message_id)
                with lock:
                    results[message_id] = result
        except BaseException as error:  # noqa: BLE001 - handed to the thread of the test
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=cancel, args=(each,)) for each in (ids[::-2], sorted(ids[::2]))]
    with Running(shop):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    shop.run(until_empty=True)
    assert errors == []
    handled = Counter(calls.seen)
    cancelled = {message_id for message_id, result in results.items() if result}
    left = {message_id for message_id in ids if message_status(message_id).state is not MessageState.UNKNOWN}
    for message_id in left:
        assert message_status(message_id).state is MessageState.DELAYED
    assert set(handled.values()) <= {1}
    assert cancelled & handled.keys() == set()
    assert cancelled | handled.keys() | left == set(ids)
    assert results.keys() == set(ids)
    assert set(results.values()) - {RevokeResult.CANCELLED, RevokeResult.IN_PROGRESS} <= {no_trace(shop)}
    assert cancelled
    assert not {each for each, result in results.items() if result is no_trace(shop)} - handled.keys()


@pytest.mark.parametrize("moves", [1, 4, 5, 99])
def test_message_that_moves_meanwhile_is_found_again(shop: Bench, monkeypatch: pytest.MonkeyPatch, moves: int) -> None:
    message_id = send("Test.Message", {})
    (row,) = shop.rows("Sales")
    remove, left = by_id._remove, [moves]

    def moving(*arguments: Any) -> bool:
        if left[0]:
            left[0] -= 1
            (old,) = shop.rows("Sales")
            assert remove_rows(shop.table("Sales"), [old.row_version])
            shop.table("Sales").send([NewRow(str(uuid.uuid4()), row.headers or "", b"")])
        return remove(*arguments)

    monkeypatch.setattr(by_id, "_remove", moving)
    assert revoke(message_id) is (RevokeResult.CANCELLED if moves < 5 else RevokeResult.UNKNOWN)


# --- look up ------------------------------------------------------------------------------------------------------------------


def test_place_and_due_time_of_a_message_are_reported(shop: Bench) -> None:
    waiting, later = send("Test.Message", {}), send("Test.Message", {}, delay=timedelta(hours=1))
    assert message_status(waiting) == MessageStatus(waiting, MessageState.WAITING, "Sales")
    found = message_status(later)
    assert (found.state, found.queue, found.failure) == (MessageState.DELAYED, "Sales.Delayed", None)
    assert found.due is not None
    assert timedelta(minutes=50) < found.due - datetime.now(UTC) < timedelta(minutes=70)
    never = str(uuid.uuid4())
    assert message_status(never) == MessageStatus(never, MessageState.UNKNOWN)
    assert f"{found.state}" == "delayed"


def test_due_time_is_that_of_the_sender(shop: Bench) -> None:
    at = datetime(2030, 1, 1, 8, tzinfo=UTC)
    assert message_status(send("Test.Message", {}, deliver_at=at)).due == at


def test_failed_message_is_found_with_its_failure(shop: Bench, failing: Calls) -> None:
    message_id = send("Test.Message", {})
    shop.run()
    assert revoke(message_id) is no_trace(shop)
    FailedMessage.objects.using(shop.database.alias).all().delete()
    assert message_status(message_id) == MessageStatus(message_id, MessageState.FAILED, "error"), "before it is indexed"
    catch_up(get_settings(), limit=100, now=timezone.now())
    failure = FailedMessage.objects.using(shop.database.alias).get(message_id=message_id)
    assert message_status(message_id) == MessageStatus(message_id, MessageState.FAILED, "error", failure=failure.pk)
    FailedMessage.objects.using(shop.database.alias).update(retried_to=address_of_queue("Sales"))
    for status, state, queue in (
        (FailureStatus.ARCHIVED, MessageState.ARCHIVED, "error"),
        (FailureStatus.RETRY_ISSUED, MessageState.RETRIED, "Sales"),
        (FailureStatus.RESOLVED, MessageState.HANDLED, "Sales"),
        (FailureStatus.DELETED, MessageState.GONE, "error"),
    ):
        FailedMessage.objects.using(shop.database.alias).update(status=status, row_version=None)
        remove_rows(shop.table("error"), [row.row_version for row in shop.rows("error")])
        assert message_status(message_id) == MessageStatus(message_id, state, queue, failure=failure.pk)
    shop.table("Sales").send([sent(message_id)])
    assert message_status(message_id).state is MessageState.WAITING, "retried, so it waits in its queue"


def test_handled_message_is_known_where_something_remembers_it(shop: Bench, counting: Callable[..., None]) -> None:
    message_id = send("Test.Message", {})
    shop.run()
    assert message_status(message_id).state is MessageState.UNKNOWN
    shop.configure(routes={"Test.*": "Sales"}, DEDUPLICATE_FOR=3600)
    message_id = send("Test.Message", {})
    shop.run()
    assert message_status(message_id) == MessageStatus(message_id, MessageState.HANDLED, "Sales")
    assert message_status(message_id, queue="Sales").state is MessageState.HANDLED


def test_result_of_a_task_is_the_state_of_its_message(shop: Bench) -> None:
    shop.database.settings.TASKS = {"default": {"BACKEND": "sqlqueue_app.tasks.SqlQueueBackend", "OPTIONS": {}}}
    for status, state in (
        ("SUCCESSFUL", MessageState.HANDLED),
        ("FAILED", MessageState.FAILED),
        ("READY", MessageState.UNKNOWN),
    ):
        assert message_status(task("shop.tasks.confirm", status=status).pk).state is state


def test_task_whose_message_is_cancelled_has_failed(shop: Bench) -> None:
    shop.database.settings.TASKS = {"default": {"BACKEND": "sqlqueue_app.tasks.SqlQueueBackend", "OPTIONS": {}}}
    alias = shop.database.alias
    tasks = [send("Test.Message", {}, delay=delay) for delay in (0, 3600)]
    for message_id in tasks:
        task("shop.tasks.confirm", status="READY", id=message_id)
    with transaction.atomic(using=alias):
        assert revoke(tasks[0])
        transaction.set_rollback(True, using=alias)
    assert {each.status for each in TaskResult.objects.using(alias).all()} == {"READY"}
    for message_id in tasks:
        assert revoke(message_id)
        result = TaskResult.objects.using(alias).get(pk=message_id)
        assert (result.status, result.finished_at is None) == ("FAILED", False)
        assert [each["exception_class_path"] for each in result.errors] == ["sqlqueue_app.messages.errors.TaskRevoked"]
        assert message_status(message_id).state is MessageState.GONE
    assert revoke(send("Test.Message", {}))


def test_archive_is_searched_last(shop: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_id, "LAKE_SECONDS", 600.0)
    shop.database.configure(PIPELINE={"LAKE": str(tmp_path)})
    write(tmp_path, [{"message_id": "old", "native_id": "old", "at": timezone.now()}])
    assert message_status("old").state is MessageState.HANDLED
    assert message_status("older").state is MessageState.UNKNOWN


def test_coroutines_revoke_and_look_up(shop: Bench) -> None:
    message_id = send("Test.Message", {})

    async def both() -> tuple[MessageStatus, RevokeResult]:
        return await amessage_status(message_id, queue="Sales"), await arevoke(message_id, queue="Sales")

    assert async_to_sync(both)() == (MessageStatus(message_id, MessageState.WAITING, "Sales"), RevokeResult.CANCELLED)


def test_id_of_a_uuid_field_is_known(shop: Bench) -> None:
    message_id = send("Test.Message", {})
    assert message_status(uuid.UUID(message_id)) == MessageStatus(message_id, MessageState.WAITING, "Sales")
    assert revoke(uuid.UUID(message_id))
    capitals = send("Test.Message", {}, message_id=str(uuid.uuid4()).upper())
    assert message_status(uuid.UUID(capitals)).state is MessageState.WAITING
    assert revoke(uuid.UUID(capitals))


# --- limits and wrong calls ---------------------------------------------------------------------------------------------------


def test_rows_that_were_not_read_make_the_answer_unknown(shop: Bench) -> None:
    first, *_, last = send_many("Test.Message", [{} for _ in range(5)])
    assert revoke(first, limit=3) is RevokeResult.UNKNOWN
    assert revoke(first, queue="Sales", limit=4) is RevokeResult.UNKNOWN
    assert message_status(first, limit=3).state is MessageState.UNKNOWN
    assert revoke(last, limit=1)
    assert revoke(first, limit=5)
    later, _ = (send("Test.Message", {}, delay=delay) for delay in (7200, 3600))
    assert revoke(later, queue="Sales.Delayed", limit=1) is RevokeResult.UNKNOWN
    assert revoke(later, queue="Sales.Delayed", limit=2)


def test_several_statements_make_the_answer_unknown(shop: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_id, "TABLES_PER_STATEMENT", 1)
    never = str(uuid.uuid4())
    assert revoke(never) is RevokeResult.UNKNOWN
    assert revoke(never, queue="Sales") is no_trace(shop)
    assert revoke(send("Test.Message", {}))


def test_naming_the_queue_takes_two_statements(shop: Bench) -> None:
    message_id = send("Test.Message", {})
    revoke(str(uuid.uuid4()), queue="Sales")
    with CaptureQueriesContext(shop.database.connection) as statements:
        assert revoke(message_id, queue="Sales")
    assert len(statements) == (3 if shop.database.vendor == "sqlserver" else 2)


@pytest.mark.parametrize("call", [revoke, message_status])
def test_wrong_arguments_are_refused_with_their_values(shop: Bench, call: Callable[..., object]) -> None:
    wrong: Any = 5
    with pytest.raises(WireFormatError, match=r"message_id is int \(5\); expected str or UUID: convert it first"):
        call(wrong)
    with pytest.raises(WireFormatError, match="message_id is empty"):
        call("")
    for queue in (5, "", " ", b"Sales"):
        with pytest.raises(ConfigurationError, match=r"queue is .*; expected the name of a queue, or None for all"):
            call("x", queue=queue)
    for limit in (0, -1, True, 1.5, "9", None, 10**30):
        with pytest.raises(ConfigurationError, match="expected the number of rows to read"):
            call("x", limit=limit)
    with pytest.raises(ConfigurationError, match=r"no queue 'Slaes' .*did you mean 'Sales'"):
        call("x", queue="Slaes")
    with pytest.raises(ConfigurationError, match=r"did you mean 'Sales\.Delayed'"):
        call("x", queue="Sales.Delyaed")


def test_tables_that_may_not_be_read_are_an_error_not_a_missing_message(postgresql_bench: Bench) -> None:
    database = postgresql_bench.database
    role = database.create_role("web")
    postgresql_bench.configure(routes={"Test.*": "Sales"})
    message_id = send("Test.Message", {})
    with database.connection.cursor() as cursor:
        cursor.execute(f'GRANT INSERT ON "Sales" TO {role}')
    with database.as_role(role):
        for call in (revoke, message_status):
            with pytest.raises(PermissionDenied, match="Sales"):
                call(message_id)
    with database.connection.cursor() as cursor:
        cursor.execute(f'GRANT SELECT ON "Sales", "Sales.Delayed", "error" TO {role}')
    with database.as_role(role):
        assert message_status(message_id).state is MessageState.WAITING
        with pytest.raises(PermissionDenied, match="Sales"):
            revoke(message_id)
    assert revoke(message_id)


def test_missing_tables_are_left_out_unless_they_are_named(queue_database: QueueDatabase) -> None:
    queue_database.configure(ENDPOINTS={"Sales": FAST})
    assert revoke("x") is no_trace(Bench(queue_database))
    assert message_status("x").state is MessageState.UNKNOWN
    for name in ("Sales", "Sales.Delayed"):
        with pytest.raises(QueueNotFound):
            revoke("x", queue=name)
    with transaction.atomic(using=queue_database.alias):
        with pytest.raises(SqlQueueError):
            message_status("x", queue="Sales")
        assert revoke("x") is no_trace(Bench(queue_database))
