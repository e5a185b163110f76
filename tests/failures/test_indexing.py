"""Workers keep the failure index: several queues and processes, few queries when idle, expiry of old entries."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures.index import FailureIndexing, IndexState, catch_up
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureGroup, FailureStatus
from sqlqueue_app.status.retention import FAILURES_KEPT
from sqlqueue_app.tables.row_selection import remove_rows
from tests.support.databases import QueueDatabase
from tests.support.error_rows import FAILED_AT as NOW, acknowledgement, failed
from tests.support.failure_index import alias, index_errors, statuses
from tests.support.filling import install, table
from tests.support.sqlserver import needs
from tests.support.waiting import run_in_threads


def test_error_queues_are_scanned_in_turn(errors: QueueDatabase) -> None:
    install(errors, ENDPOINTS={name: {"ERROR_QUEUE": f"error_{name}", "CALLBACKS": False} for name in ("A", "B", "C")})
    for name in ("A", "B", "C"):
        table(errors, f"error_{name}").send([failed(f"m-{name}")])

    found = [catch_up(get_settings(), limit=10, now=NOW, max_queues=1).read for _ in range(3)]

    assert found == [1, 1, 1]
    assert {each.queue for each in FailedMessage.objects.using(alias()).all()} == {"error_A", "error_B", "error_C"}


def test_concurrent_scans_index_each_failure_once(errors: QueueDatabase) -> None:
    names = [f"m-{number}" for number in range(60)]
    table(errors, "error").send([failed(name) for name in names])
    begin = threading.Barrier(3)
    problems: list[Any] = []

    def work() -> None:
        try:
            begin.wait(60)
            while (found := index_errors(limit=20)).is_behind or found.problems:
                problems.extend(found.problems)
        except Exception as error:  # noqa: BLE001 - asserted by the test's own thread
            problems.append(error)
        finally:
            connections.close_all()

    run_in_threads(work, 3)

    assert [each for each in problems if "locked" not in str(each)] == []
    assert sorted(statuses()) == sorted(names)
    assert FailedAttempt.objects.using(alias()).count() == 60


def test_one_worker_scans_for_all(errors: QueueDatabase) -> None:
    table(errors, "error").send([failed(f"m-{number}") for number in range(3)])
    first, second = (FailureIndexing(get_settings(), now=lambda: NOW) for _ in range(2))

    assert (first.index(), second.index()) == (IndexState(read=3), IndexState())


def test_idle_worker_runs_few_queries(errors: QueueDatabase) -> None:
    queue = table(errors, "error")
    queue.send([failed("m-1")])
    clock = [NOW + timedelta(seconds=10 * number) for number in range(20)]
    indexing = FailureIndexing(get_settings(), now=lambda: clock.pop(0))
    assert indexing.index() == IndexState(read=1)

    with CaptureQueriesContext(errors.connection) as queries:
        assert [indexing.index() for _ in range(3)] == [IndexState()] * 3
    assert len(queries) == 3

    queue.send([failed("m-2")])
    assert indexing.index() == IndexState(read=1)
    queue.purge()
    # Removed rows are found at every sixth scan.
    assert [indexing.index().gone for _ in range(2)] == [0, 2]


def test_resolved_failures_expire(errors: QueueDatabase) -> None:
    names = {"kept": FailureStatus.UNRESOLVED, "archived": FailureStatus.ARCHIVED, "resolved": FailureStatus.RESOLVED}
    for name in (*names, "noted"):
        table(errors, "error").send([failed(name, NServiceBus_EnclosedMessageTypes=f"Shop.{name}")])
    index_errors()
    messages = FailedMessage.objects.using(alias())
    for name, status in {**names, "noted": FailureStatus.GONE}.items():
        if status in (FailureStatus.RESOLVED, FailureStatus.GONE):
            remove_rows(table(errors, "error"), [messages.get(message_id=name).row_version or 0])
            FailedAttempt.objects.using(alias()).filter(failure__message_id=name).update(row_version=None)
            messages.filter(message_id=name).update(row_version=None)
        messages.filter(message_id=name).update(status=status)
    FailureGroup.objects.using(alias()).filter(title="Shop.noted").update(note="why")

    early = NOW + FAILURES_KEPT
    FailureIndexing(get_settings(), now=lambda: early).index()
    assert len(statuses()) == 4
    FailureIndexing(get_settings(), now=lambda: early + timedelta(hours=1)).index()

    assert set(statuses()) == {"kept", "archived"}
    titles = set(FailureGroup.objects.using(alias()).filter(classifier="Message Type").values_list("title", flat=True))
    assert titles == {"Shop.kept", "Shop.archived", "Shop.noted"}
    assert not FailedAttempt.objects.using(alias()).filter(failure__message_id="resolved").exists()


def test_index_in_another_database_follows_the_queue(postgresql_database: QueueDatabase, settings: Any) -> None:
    install(postgresql_database)
    settings.DATABASE_ROUTERS = []
    queue = table(postgresql_database, "error")
    queue.send([failed("gone"), failed("retried")])
    assert index_errors() == IndexState(read=2)
    messages = FailedMessage.objects.using("default")
    assert messages.count() == 2

    retried = messages.get(message_id="retried")
    queue.purge()
    messages.filter(pk=retried.pk).update(status=FailureStatus.RETRY_ISSUED, row_version=None)
    FailedAttempt.objects.using("default").filter(failure=retried).update(row_version=None)
    queue.send([acknowledgement(retried.pk)])

    assert index_errors() == IndexState(gone=1, resolved=1)
    assert queue.row_versions(10) == []
    assert set(messages.values_list("message_id", "status")) == {
        ("gone", FailureStatus.GONE.value), ("retried", FailureStatus.RESOLVED.value),
    }  # fmt: skip


def test_missing_tables_are_reported_by_the_scan(errors: QueueDatabase) -> None:
    """The tables are missing between the deployment of new code and its migration."""
    needs(errors.vendor, "sp_rename without a kind")
    table(errors, "error").send([failed()])
    with errors.connection.schema_editor() as editor:
        editor.alter_db_table(FailedAttempt, FailedAttempt._meta.db_table, "elsewhere")
    try:
        found = index_errors()
    finally:
        with errors.connection.schema_editor() as editor:
            editor.alter_db_table(FailedAttempt, "elsewhere", FailedAttempt._meta.db_table)

    assert (found.read, len(found.problems)) == (0, 1)
    assert index_errors() == IndexState(read=1)
