"""A task, its writes, its result and its message share one transaction."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from django.db import OperationalError, ProgrammingError, connections, transaction

from sqlqueue_app.messages.errors import ConfigurationError, QueueNotFound
from sqlqueue_app.models import TaskResult
from sqlqueue_app.sending import sender
from sqlqueue_app.tables.queue import forget_tables
from sqlqueue_app.tasks import SqlQueueBackend  # noqa: F401 - another path to it
from tests.support.other_databases import made_beside
from tests.support.provisioning import PostgresqlProvider
from tests.tasks import work
from tests.tasks.conftest import Office, Signals
from tests.tasks.framework import TaskResultDoesNotExist, TaskResultStatus


def results(office: Office) -> int:
    return TaskResult.objects.using(office.database.alias).count()


def test_enqueue_commits_with_the_callers_rows(office: Office) -> None:
    with transaction.atomic(using=office.database.alias):
        work.write("mine")
        result = work.add.enqueue(1)
        assert work.add.get_result(result.id).status == TaskResultStatus.READY
    assert (office.written(), len(office.rows("default")), results(office)) == (["mine"], 1, 1)


def test_enqueue_rolls_back_with_the_callers_rows(office: Office) -> None:
    with transaction.atomic(using=office.database.alias):
        work.write("mine")
        result = work.add.enqueue(1)
        transaction.set_rollback(True, using=office.database.alias)

    with pytest.raises(TaskResultDoesNotExist):
        work.add.get_result(result.id)
    assert (office.written(), office.rows("default"), results(office)) == ([], [], 0)


def test_missing_queue_enqueues_nothing(office: Office, signals: Signals) -> None:
    with office.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {office.table('default').qualified}")
    forget_tables()

    with transaction.atomic(using=office.database.alias):
        with pytest.raises(QueueNotFound):
            work.add.enqueue(1)
        assert results(office) == 0
    assert signals.received == []


def test_task_waits_for_the_commit_of_another_database(
    postgresql_office: Office, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = postgresql_office
    monkeypatch.setattr(sender, "_warned", set())
    with transaction.atomic(using="default"):
        work.add.enqueue(1)
        assert (results(office), signals.received) == (0, [])
    assert (results(office), len(office.rows("default")), signals.received) == (1, 1, [("enqueued", "READY")])


def test_writes_of_a_task_commit_with_its_result(office: Office) -> None:
    result = work.keep.enqueue("kept")
    office.run()

    result.refresh()
    assert (office.written(), result.status) == (["kept"], TaskResultStatus.SUCCESSFUL)


@pytest.mark.parametrize("broken", [work.keep_and_fail, work.swallow, work.set_rollback])
def test_writes_and_sends_of_a_failed_task_are_rolled_back(office: Office, broken: Any) -> None:
    result = broken.enqueue("never")
    office.run()

    result.refresh()
    assert (office.written(), office.rows("error"), office.rows("default")) == ([], [], [])
    assert (result.status, len(result.errors), result.attempts) == (TaskResultStatus.FAILED, 1, 1)


@pytest.mark.parametrize("failure", ["raises", "database error", "swallowed database error"])
def test_a_failed_task_leaves_nothing_in_other_databases(
    postgresql_office: Office, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    office = postgresql_office
    assert isinstance(office.database.provider, PostgresqlProvider)

    def write(name: str) -> None:
        second.write(name)
        if name == "kept":
            return
        if failure == "raises":
            raise ValueError(name)
        with suppress(ProgrammingError) if failure.startswith("swallowed") else nullcontext():
            connections["second"].cursor().execute("SELECT nothing")

    monkeypatch.setattr(work, "write", write)
    with made_beside(office.database.provider, "second", unique=False) as second:
        lost, kept = work.keep.enqueue("lost"), work.keep.enqueue("kept")
        office.run()
        assert second.effects() == ["kept"]
    lost.refresh()
    kept.refresh()
    assert (lost.status, lost.attempts, len(lost.errors)) == (TaskResultStatus.FAILED, 1, 1)
    assert (kept.status, office.rows("error")) == (TaskResultStatus.SUCCESSFUL, [])


def test_writes_of_an_asynchronous_task_share_the_transaction(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("django.tasks", "django_tasks"):
        # pytest would keep the log record and thus the error
        monkeypatch.setattr(logging.getLogger(name), "propagate", False)
    kept, lost = work.akeep.enqueue("kept"), work.akeep.enqueue("lost", fails=True)
    office.run()

    kept.refresh()
    lost.refresh()
    assert (kept.status, lost.status) == (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
    assert office.written() == ["kept"]


@pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"])
@pytest.mark.parametrize("enqueue", [work.enqueue_another, work.aenqueue_another])
def test_a_task_may_enqueue_another_in_every_mode(office: Office, mode: str, enqueue: Any) -> None:
    office.endpoints(default={"TRANSACTION_MODE": mode})
    result = enqueue.enqueue("kept")
    office.run()

    result.refresh()
    assert work.keep.get_result(result.return_value).status == TaskResultStatus.SUCCESSFUL
    assert office.written() == ["kept"]


def test_running_task_is_ready_for_other_sessions(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    assert statuses_while_running(office, monkeypatch) == ["READY"]


def test_running_task_is_visible_in_mode_none(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    office.endpoints(default={"TRANSACTION_MODE": "none"})
    assert statuses_while_running(office, monkeypatch) == ["RUNNING"]


def statuses_while_running(office: Office, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The status in the table while the task runs, as another connection sees it."""
    seen: list[str] = []
    result = work.keep.enqueue("kept")

    def write(name: str) -> None:
        other = connections[office.database.alias].copy()
        try:
            with other.cursor() as cursor:
                cursor.execute(f"SELECT status FROM {TaskResult._meta.db_table} WHERE id = '{result.id}'")
                seen.extend(status for (status,) in cursor.fetchall())
        finally:
            other.close()

    monkeypatch.setattr(work, "write", write)
    office.run()
    return seen


def test_an_attempt_that_loses_its_transaction_leaves_no_trace(
    office: Office, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    office.endpoints(default={"IMMEDIATE_RETRIES": 1})
    result = work.keep.enqueue("kept")
    write, calls = work.write, []

    def lose(name: str) -> None:
        calls.append(name)
        if len(calls) == 1:
            connections[office.database.alias].close()
            raise OperationalError("the connection is gone")
        write(name)

    monkeypatch.setattr(work, "write", lose)
    office.run()

    result.refresh()
    assert "transaction_lost" in events()
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.SUCCESSFUL, 1, [])
    assert (len(calls), office.written()) == (2, ["kept"])


def test_duplicate_message_does_not_run_the_task_again(office: Office, events: Callable[[], list[str]]) -> None:
    result = work.keep.enqueue("kept")
    (row,) = office.rows("default")
    office.put(row.headers or "", row.body or b"", queue="default")
    office.run()

    result.refresh()
    assert (result.attempts, office.written()) == (1, ["kept"])
    assert "task_finished_before" in events()


def test_a_message_whose_result_was_deleted_goes_to_the_error_queue(office: Office) -> None:
    result = work.add.enqueue(1)
    office.row(result.id).delete(using=office.database.alias)
    office.run()

    (headers,) = office.headers("error")
    assert "which holds its arguments, was deleted" in headers["NServiceBus.ExceptionInfo.Message"]


def test_backend_that_is_not_in_tasks_under_its_own_path_is_refused(office: Office) -> None:
    office.settings.TASKS = {"default": {"BACKEND": f"{__name__}.SqlQueueBackend"}}
    with pytest.raises(ConfigurationError, match="write that path"):
        work.add.enqueue(1)
