"""DEDUPLICATE_FOR: message ids are stored in the receive transaction, and a second copy is dropped."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.utils import timezone

from sqlqueue_app import handles
from sqlqueue_app.checks import check_deduplication
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import HandledMessage
from sqlqueue_app.receiving import duplicates
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.tables.installation import migrate_command
from tests.support.bench import Bench, Calls
from tests.support.sqlserver import needs


def put(bench: Bench, *message_ids: str, **more: str) -> None:
    """Insert rows with these message ids, each with its own row id."""
    begin = len(bench.rows("Sales"))
    for number, message_id in enumerate(message_ids, begin):
        headers = {"NServiceBus.EnclosedMessageTypes": "Test.Message", "NServiceBus.MessageId": message_id, **more}
        body = json.dumps({"id": message_id}).encode()
        bench.put(json.dumps(headers), body, row_id=f"00000000-0000-0000-0000-{number:012}")


@pytest.mark.parametrize("batch_size", [1, 10])
def test_duplicate_is_dropped_and_logged(
    bench: Bench, calls: Calls, counting: Callable[..., None], caplog: pytest.LogCaptureFixture, batch_size: int
) -> None:
    """The duplicate comes in the same batch or in a later run."""
    bench.configure(DEDUPLICATE_FOR=3600, BATCH_SIZE=batch_size, AUDIT_QUEUE="audit")
    caplog.set_level("INFO", logger="sqlqueue")
    put(bench, "a", "b", "a", "x" * 300)
    bench.run()
    put(bench, "b", "c", "x" * 300)
    assert bench.run() == 3
    assert [message["id"] for message in calls.seen] == ["a", "b", "x" * 300, "c"]
    records: list[Any] = [record for record in caplog.records if getattr(record, "event", "") == "duplicate_dropped"]
    assert [(record.message_id, record.queue) for record in records] == [("a", "Sales"), ("b", "Sales"), ("x" * 300, "Sales")]
    assert "(1 dropped by this process)" in records[0].getMessage()
    assert len(bench.rows("audit")) == 4
    assert bench.rows("error") == []


def test_nothing_is_stored_without_the_setting(bench: Bench, calls: Calls, counting: Callable[..., None]) -> None:
    put(bench, "a", "a")
    bench.run()
    assert len(calls.seen) == 2
    assert not HandledMessage.objects.using(bench.database.alias).exists()


@pytest.mark.parametrize("batch_size", [1, 10])
def test_failed_message_is_not_stored(bench: Bench, calls: Calls, batch_size: int) -> None:
    """A failed message may return from the error queue, and a retry in the same transaction is no duplicate."""
    bench.configure(DEDUPLICATE_FOR=3600, IMMEDIATE_RETRIES=1, BATCH_SIZE=batch_size)
    fails = [True]

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        calls.add((message["id"], context.attempt))
        if message["id"] == "bad" and fails[0]:
            raise ValueError("bad")
        if message["id"] == "later" and context.attempt == 1:
            raise ValueError("not yet")

    put(bench, "bad", "later", "good")
    bench.run()
    fails.clear()
    fails.append(False)
    put(bench, "bad", "later")
    bench.run()
    assert sorted(calls.seen) == [("bad", 1), ("bad", 1), ("bad", 2), ("good", 1), ("later", 1), ("later", 2)]
    assert len(bench.rows("error")) == 1


def test_other_queues_do_not_share_message_ids(bench: Bench, calls: Calls, counting: Callable[..., None]) -> None:
    bench.configure(DEDUPLICATE_FOR=3600, SATELLITES={"Sales.Other": {}})
    put(bench, "a")
    headers = {"NServiceBus.EnclosedMessageTypes": "Test.Message", "NServiceBus.MessageId": "a"}
    bench.put(json.dumps(headers), b"{}", queue="Sales.Other")
    bench.run()
    assert len(calls.seen) == 2


def test_duplicate_retry_of_servicecontrol_is_acknowledged(bench: Bench, calls: Calls, counting: Callable[..., None]) -> None:
    bench.configure(DEDUPLICATE_FOR=3600, AUDIT_QUEUE="audit")
    bench.install_queues("control")
    retry = {"ServiceControl.Retry.UniqueMessageId": "u", "ServiceControl.Retry.AcknowledgementQueue": "control"}
    put(bench, "a", "a", **retry)
    bench.run()
    assert (len(calls.seen), len(bench.rows("control")), len(bench.rows("audit"))) == (1, 2, 1)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("first_fails", [False, True])
def test_one_of_two_simultaneous_copies_is_handled(
    postgresql_bench: Bench, calls: Calls, gate: threading.Event, first_fails: bool
) -> None:
    """The second thread waits for the first one's transaction; if that is rolled back, the second copy is handled."""
    bench = postgresql_bench
    bench.configure(DEDUPLICATE_FOR=3600, MAX_CONCURRENCY=2, CONCURRENCY_MODEL="fixed")

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        number = calls.add(threading.get_ident())
        if number == 1:
            waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            other = connections.create_connection(bench.database.alias)
            try:
                for _ in range(6000):
                    with other.cursor() as cursor:
                        cursor.execute(waits)
                        if cursor.fetchone()[0]:
                            break
                    gate.wait(0.01)
                else:
                    raise AssertionError("the copy does not wait")
            finally:
                other.close()
            if first_fails:
                raise ValueError("the first")

    put(bench, "a", "a")
    bench.run()
    assert len(calls.seen) == (2 if first_fails else 1)
    assert len(bench.rows("error")) == (1 if first_fails else 0)
    assert bench.rows("Sales") == []


def test_many_copies_on_many_threads_are_handled_once(bench: Bench, calls: Calls, counting: Callable[..., None]) -> None:
    bench.configure(DEDUPLICATE_FOR=3600, MAX_CONCURRENCY=4, CONCURRENCY_MODEL="fixed")
    put(bench, *(f"m-{number % 10}" for number in range(40)))
    bench.run()
    assert sorted(message["id"] for message in calls.seen) == [f"m-{number}" for number in range(10)]
    assert bench.rows("error") == []


def test_old_entries_are_deleted_in_batches(bench: Bench, counting: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    bench.configure(DEDUPLICATE_FOR=timedelta(hours=1))
    put(bench, *"abcdefg")
    bench.run()
    remembered = HandledMessage.objects.using(bench.database.alias)
    old = list(remembered.values_list("pk", flat=True))[:5]
    remembered.filter(pk__in=old).update(handled_at=timezone.now() - timedelta(hours=2))
    monkeypatch.setattr(duplicates, "FORGET_BATCH", 2)
    endpoint = ReceivingEndpoint(get_settings(), "Sales")
    (queue,) = endpoint.receiving_queues(None)
    endpoint.check_tables([queue])
    (job,) = [job for job in endpoint.watching_jobs() if job.name.startswith("forget")]
    job.call()
    assert remembered.count() == 2
    assert not remembered.filter(pk__in=old).exists()


def test_missing_table_is_reported_at_start(bench: Bench) -> None:
    needs(bench.database.vendor, "sp_rename without a kind")
    bench.configure(DEDUPLICATE_FOR=60)
    names = "sqlqueue_app_handledmessage", "away"
    rename = connections[bench.database.alias].schema_editor
    with rename() as editor:
        editor.alter_db_table(HandledMessage, *names)
    try:
        expected = f"DEDUPLICATE_FOR of endpoint 'Sales' needs the table .*: run {migrate_command(bench.database.alias)}$"
        with pytest.raises(ConfigurationError, match=expected):
            bench.run()
    finally:
        with rename() as editor:
            editor.alter_db_table(HandledMessage, *reversed(names))


class OtherDatabaseRouter:
    """A router that keeps the app's tables in another database than the queues."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "elsewhere" if model._meta.app_label == "sqlqueue_app" else None

    db_for_write = db_for_read


def test_app_tables_in_another_database_are_refused(sqlite_bench: Bench) -> None:
    sqlite_bench.configure(DEDUPLICATE_FOR=60)
    assert check_deduplication() == []
    sqlite_bench.database.settings.DATABASE_ROUTERS = [f"{__name__}.OtherDatabaseRouter"]
    (error,) = check_deduplication()
    assert (error.id, error.level) == ("sqlqueue.E031", 40)
    assert "in the database 'default', but the routers keep the tables of sqlqueue_app in 'elsewhere'" in error.msg
    with pytest.raises(ConfigurationError, match="but the routers keep the tables of sqlqueue_app in 'elsewhere'"):
        sqlite_bench.run()
    sqlite_bench.configure(DEDUPLICATE_FOR=None)
    assert check_deduplication() == []


@pytest.mark.parametrize("retries", [0, 5])
def test_two_batches_in_opposite_order_are_both_handled(
    postgresql_bench: Bench, calls: Calls, events: Callable[[], list[str]], retries: int
) -> None:
    """Each batch holds the id that the other needs next. One gives way without counting an attempt."""
    bench = postgresql_bench
    bench.configure(DEDUPLICATE_FOR=3600, BATCH_SIZE=2, MAX_CONCURRENCY=2, CONCURRENCY_MODEL="fixed", IMMEDIATE_RETRIES=retries)
    both_have_begun = threading.Barrier(2)
    handled: list[tuple[str, int]] = []

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        if calls.add(message["id"]) <= 2:
            both_have_begun.wait(60)
        transaction.on_commit(lambda: handled.append((message["id"], context.attempt)), using=bench.database.alias)

    put(bench, "a", "b", "b", "a")
    bench.run()
    assert sorted(handled) == [("a", 1), ("b", 1)]
    assert events().count("receive_gave_way") == 1
    assert events().count("duplicate_dropped") == 2
    assert bench.rows("error") == bench.rows("Sales") == []
