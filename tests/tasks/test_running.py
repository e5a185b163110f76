"""Which endpoint runs a task; retries, removed tasks, old results."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone
from pytest_django import Settings

from sqlqueue_app import MessageState, RevokeResult, message_status, revoke
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import SoftTimeLimitExceeded, TaskRevoked
from sqlqueue_app.models import TaskResult
from sqlqueue_app.receiving.endpoint import endpoints_of
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from sqlqueue_app.worker.run import purge_task_results, task_result_jobs
from tests.support.bench import FAST
from tests.support.databases import QueueDatabase
from tests.support.waiting import poll_until
from tests.tasks import work
from tests.tasks.conftest import BACKEND, Office, Signals
from tests.tasks.framework import TaskResultStatus, task_finished


def test_message_has_the_headers_of_a_task(office: Office) -> None:
    result = work.add.enqueue(1)

    ((row, headers),) = zip(office.rows("default"), office.headers("default"), strict=True)
    assert headers["NServiceBus.EnclosedMessageTypes"] == "sqlqueue.Task"
    assert headers["NServiceBus.MessageId"] == result.id
    assert json.loads(row.body or b"") == {"result_id": result.id, "task": "tests.tasks.work.add"}


def test_tasks_alone_are_enough(sqlite_database: QueueDatabase, settings: Settings) -> None:
    del settings.SQLQUEUE
    settings.TASKS = {"default": {"BACKEND": BACKEND}}
    call_command("migrate", verbosity=0)
    result = work.add.enqueue(1, 2)
    call_command("run_sqlqueue_worker", "--until-empty", "--processes=0")

    result.refresh()
    assert result.return_value == 3


def test_eager_task_has_its_result_at_once(office: Office) -> None:
    office.database.configure(ENDPOINTS={"default": {**FAST}}, EAGER=True)
    office.install()
    result = work.add.enqueue(1, 2)
    result.refresh()
    assert result.return_value == 3


def test_queue_name_is_an_endpoint_a_satellite_or_default(office: Office) -> None:
    office.tasks(queues=["default", "mail", "Sales.Slow"], ENDPOINT="Sales")
    office.endpoints(mail={}, Sales={"SATELLITES": {"Sales.Slow": {"MAX_CONCURRENCY": 1}}})
    for queue, table in [("default", "Sales"), ("mail", "mail"), ("Sales.Slow", "Sales.Slow")]:
        result = work.add.using(queue_name=queue).enqueue(1)
        assert len(office.rows(table)) == 1
        office.run()
        result.refresh()
        assert (result.return_value, result.task.queue_name) == (1, queue)


def test_default_stands_for_the_only_endpoint(office: Office) -> None:
    office.endpoints(Sales={"HANDLERS": ["tests.tasks.work"]})
    result = work.add.enqueue(1)
    office.run()

    result.refresh()
    assert result.return_value == 1


def test_endpoint_without_tasks_has_no_task_handler(office: Office) -> None:
    office.tasks(queues=["default"])
    office.endpoints(default={}, mail={})
    office.put(json.dumps({"NServiceBus.EnclosedMessageTypes": "sqlqueue.Task"}), b"{}", queue="mail")
    office.run()

    (headers,) = office.headers("error")
    assert "no handler for message" in headers["NServiceBus.ExceptionInfo.Message"]


def test_workers_do_not_subscribe_to_tasks(office: Office) -> None:
    (endpoint,) = endpoints_of(get_settings(), None)
    assert (endpoint.handlers.message_types, endpoint.events) == (["sqlqueue.Task"], [])


def test_failed_task_is_retried_later_on_request(office: Office, signals: Signals, events: Callable[[], list[str]]) -> None:
    office.tasks(RETRIES=1, RETRY_DELAY=3600)
    result = work.succeed_at.enqueue(2)
    office.run()

    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.READY, 1, 1)
    assert "attempt 1" in result.errors[0].traceback
    assert "task_retry" in events()
    assert [word for word, _ in signals.received] == ["enqueued", "started"]
    assert len(office.delayed()) == 1


def test_task_that_waits_for_its_retry_is_found_and_cancelled_by_the_id_of_its_result(office: Office) -> None:
    office.tasks(RETRIES=2, RETRY_DELAY=3600)
    result = work.fail.enqueue()
    office.run()
    bring_nearer(office)
    office.run()
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.READY, 2)

    found = message_status(result.id)
    assert (found.state, found.queue, found.due is None) == (MessageState.DELAYED, "default.Delayed", False)
    assert revoke(result.id) is RevokeResult.CANCELLED
    assert revoke(result.id) is RevokeResult.NOT_FOUND
    result.refresh()
    assert (result.status, result.errors[-1].exception_class) == (TaskResultStatus.FAILED, TaskRevoked)
    assert message_status(result.id).state is MessageState.GONE
    assert office.delayed() == []


def test_retry_that_is_cancelled_by_its_own_id_ends_the_task(office: Office) -> None:
    office.tasks(RETRIES=1, RETRY_DELAY=3600)
    result, other = work.fail.enqueue(), work.add.enqueue(1)
    office.run()
    (headers,) = office.delayed()
    own_id = json.loads(headers)["NServiceBus.MessageId"]
    assert own_id != result.id
    assert revoke(own_id) is RevokeResult.CANCELLED
    result.refresh()
    other.refresh()
    assert (result.status, other.status) == (TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL)


def test_retried_task_that_queries_its_own_state_is_in_progress(office: Office) -> None:
    office.tasks(RETRIES=1, RETRY_DELAY=0)
    result = work.ask_for_itself.enqueue()
    run_until_finished(office, result)
    assert (result.return_value, result.attempts) == ([MessageState.IN_PROGRESS, RevokeResult.IN_PROGRESS], 2)


def bring_nearer(office: Office) -> None:
    address = delayed_address(get_settings().address_book(office.database.vendor), "default")
    DelayedTable(office.database.alias, address).bring_nearer(timedelta(hours=3))


def run_until_finished(office: Office, result: Any) -> None:
    def finished() -> bool:
        office.run()
        result.refresh()
        return bool(result.is_finished)

    poll_until(finished, what="the end of the task")


def test_retries_end_with_a_success(office: Office, signals: Signals) -> None:
    office.tasks(RETRIES=2, RETRY_DELAY=0)
    result = work.succeed_at.enqueue(3)
    run_until_finished(office, result)

    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 3)
    assert ["attempt 1" in error.traceback for error in result.errors] == [True, False]
    assert [word for word, _ in signals.received] == ["enqueued", "started", "started", "started", "finished"]


def test_retries_end_with_a_failure(office: Office) -> None:
    office.tasks(RETRIES=1, RETRY_DELAY=0)
    result = work.keep_and_fail.enqueue("never")
    run_until_finished(office, result)

    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 2, 2)
    assert (office.written(), office.rows("error"), office.delayed()) == ([], [], [])


def test_deferred_task_runs_when_due(office: Office) -> None:
    result = work.add.using(run_after=timezone.now() + timedelta(seconds=0.3)).enqueue(1)
    assert len(office.delayed()) == 1
    run_until_finished(office, result)

    assert (result.return_value, office.delayed()) == (1, [])


def test_failing_signal_receiver_causes_a_retry(office: Office) -> None:
    office.endpoints(default={"IMMEDIATE_RETRIES": 1})
    raised: list[str] = []

    def raise_once(task_result: Any, **_: Any) -> None:
        if not raised:
            raised.append(task_result.id)
            raise ValueError("the first time")

    task_finished.connect(raise_once, weak=False)
    try:
        result = work.keep.enqueue("kept")
        office.run()
    finally:
        task_finished.disconnect(raise_once)

    result.refresh()
    assert raised == [result.id]
    assert (result.status, result.attempts, office.written()) == (TaskResultStatus.SUCCESSFUL, 1, ["kept"])


@pytest.mark.parametrize("task", ["linger", "compute"])
def test_task_is_ended_at_its_soft_limit(office: Office, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    for name in ("django.tasks", "django_tasks"):
        # pytest would keep the log record and thus the loop
        monkeypatch.setattr(logging.getLogger(name), "propagate", False)
    office.endpoints(default={"SOFT_TIME_LIMIT": 0.5})
    result = getattr(work, task).enqueue()
    office.run()

    result.refresh()
    assert [error.exception_class for error in result.errors] == [SoftTimeLimitExceeded]
    assert f"task tests.tasks.work.{task} has exceeded its soft time limit of 0.5 s" in result.errors[0].traceback
    assert office.rows("error") == []


def test_tasks_share_a_batch_and_only_the_failed_one_is_undone(office: Office) -> None:
    office.endpoints(default={"BATCH_SIZE": 5, "MAX_CONCURRENCY": 1, "CONCURRENCY_MODEL": "fixed"})
    results = [work.keep.enqueue("one"), work.keep_and_fail.enqueue("two"), work.keep.enqueue("three")]
    office.run()

    for result in results:
        result.refresh()
    assert [str(result.status) for result in results] == ["SUCCESSFUL", "FAILED", "SUCCESSFUL"]
    assert (office.written(), office.rows("error")) == (["one", "three"], [])


def test_missing_task_function_is_a_failure(office: Office, events: Callable[[], list[str]]) -> None:
    for path in ("tests.tasks.gone.add", "tests.tasks.work.gone", "tests.tasks.work.no_task"):
        result = work.add.enqueue(1)
        TaskResult.objects.using(office.database.alias).filter(pk=result.id).update(task=path)
        office.run()

        row = office.row(result.id)
        assert (row.status, len(row.errors), len(row.worker_ids)) == ("FAILED", 1, 1)
    assert events().count("task_not_started") == 3
    assert office.rows("error") == []


def test_old_results_are_deleted_and_no_others(office: Office) -> None:
    office.tasks(KEEP_RESULTS=timedelta(hours=1))
    old, failed, young, waiting = work.add.enqueue(1), work.fail.enqueue(), work.add.enqueue(2), work.add.enqueue(3)
    rows = TaskResult.objects.using(office.database.alias)
    long_ago = timezone.now() - timedelta(hours=2)
    rows.filter(pk=waiting.id).update(enqueued_at=long_ago)
    for result in (old, failed):
        rows.filter(pk=result.id).update(status="SUCCESSFUL", finished_at=long_ago)
    rows.filter(pk=young.id).update(status="FAILED", finished_at=timezone.now())

    (job,) = task_result_jobs(get_settings())
    job.call()

    assert set(rows.values_list("pk", flat=True)) == {young.id, waiting.id}


def test_results_are_deleted_in_batches_and_by_backend(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue_app.status.retention.DELETE_BATCH", 2)
    ids = [work.add.enqueue(number).id for number in range(5)]
    rows = TaskResult.objects.using(office.database.alias)
    rows.update(status="SUCCESSFUL", finished_at=timezone.now())
    rows.filter(pk=ids[0]).update(backend="other")

    before = timezone.now() + timedelta(seconds=1)
    assert purge_task_results(office.database.alias, "default", before=before) == 4
    assert list(rows.values_list("pk", flat=True)) == [ids[0]]


def test_results_may_be_kept_without_limit(office: Office) -> None:
    office.tasks(KEEP_RESULTS=None)
    assert task_result_jobs(get_settings()) == []


def test_importing_tasks_needs_no_loaded_models() -> None:
    code = (
        "from django.conf import settings\n"
        f"settings.configure(TASKS={{'default': {{'BACKEND': {BACKEND!r}}}}}, USE_TZ=True)\n"
        "import tests.tasks.early\n"
        "from django.apps import apps\n"
        "assert not apps.models_ready\n"
        "(message,) = tests.tasks.early.early.get_backend().check()\n"
        "assert message.id == 'sqlqueue.E041', message\n"
    )
    # An app's config may import tasks before even the apps are ready.
    code = code.replace("(message,)", "import django\ndjango.setup()\n(message,)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
