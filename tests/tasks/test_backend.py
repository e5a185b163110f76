"""The backend behaves like Django's own backends, seen through the framework's public API."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone
from pytest_django import Settings

from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.tasks import SqlQueueBackend
from tests.tasks import work
from tests.tasks.conftest import Office, Signals
from tests.tasks.framework import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    default_task_backend,
    task,
    task_backends,
)


def test_backend_reports_its_features(office: Office) -> None:
    backend = task_backends["default"]
    assert type(backend) is SqlQueueBackend
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority
    assert list(backend.check()) == []


def test_an_enqueued_task_is_ready(office: Office) -> None:
    before = timezone.now()
    result = work.add.enqueue(1, second=2)

    assert result.task == work.add
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.READY, False, 0)
    assert (result.args, result.kwargs, result.backend) == ([1], {"second": 2}, "default")
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    assert (result.errors, result.worker_ids) == ([], [])
    assert result.enqueued_at is not None
    assert before <= result.enqueued_at <= timezone.now()
    assert work.add.get_result(result.id) == result
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value


def test_worker_runs_the_task_and_stores_the_result(office: Office) -> None:
    result = work.add.enqueue(1, second=2)
    office.run()

    found = work.add.get_result(result.id)
    assert (found.status, found.is_finished, found.return_value) == (TaskResultStatus.SUCCESSFUL, True, 3)
    assert (found.task, found.args, found.kwargs, found.errors) == (work.add, [1], {"second": 2}, [])
    assert found.attempts == len(found.worker_ids) == 1
    assert found.enqueued_at == result.enqueued_at
    assert found.started_at == found.last_attempted_at
    assert found.enqueued_at is not None
    assert found.started_at is not None
    assert found.finished_at is not None
    assert found.enqueued_at <= found.started_at <= found.finished_at
    assert office.rows("default") == office.rows("error") == []


def test_a_result_is_refreshed(office: Office) -> None:
    result, other = work.add.enqueue(1), work.add.enqueue(2)
    office.run()

    assert result.status == TaskResultStatus.READY
    result.refresh()
    async_to_sync(other.arefresh)()
    assert (result.return_value, other.return_value) == (1, 2)


def test_asynchronous_code_may_enqueue_and_read_results(office: Office) -> None:
    async def enqueue() -> Any:
        return await work.add_later.aenqueue(2, second=3)

    result = async_to_sync(enqueue)()
    office.run()

    found: Any = async_to_sync(work.add_later.aget_result)(result.id)
    assert found.return_value == 5


def test_a_task_that_fails_keeps_its_error(office: Office) -> None:
    result = work.fail.enqueue("no luck \x00 \ud800")
    office.run()

    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.FAILED, True, 1)
    (error,) = result.errors
    assert error.exception_class is ValueError
    assert error.exception_class_path == "builtins.ValueError"
    assert "no luck \x00 \ud800" in error.traceback
    assert "work.py" in error.traceback
    assert result.finished_at is not None
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert office.rows("default") == office.rows("error") == []


@pytest.mark.parametrize(("broken", "kind"), [(work.leave, SystemExit), (work.return_no_json, TypeError)])
def test_any_error_fails_the_task(office: Office, broken: Any, kind: type) -> None:
    result = broken.enqueue()
    office.run()

    result.refresh()
    assert (result.status, result.errors[0].exception_class) == (TaskResultStatus.FAILED, kind)


@pytest.mark.parametrize(
    "value", [None, "", "\x00\ud800é", 0.1, -(10**30), float("inf"), [[], {}], {"a": {"b": [1, None, True]}}, ("x", 1)]
)
def test_all_json_values_are_passed_unchanged(office: Office, value: Any) -> None:
    result = work.echo.enqueue(value, named=value)
    office.run()

    result.refresh()
    plain = list(value) if isinstance(value, tuple) else value
    assert result.return_value == [[plain], {"named": plain}]


def test_a_task_without_a_value_returns_none(office: Office) -> None:
    result = work.nothing.enqueue()
    office.run()

    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, None)


@pytest.mark.parametrize("wrong", [object(), {1, 2}, datetime(2026, 1, 1, tzinfo=UTC), b"\xff"])
def test_arguments_that_are_no_json_are_refused(office: Office, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="Unsupported"):
        work.echo.enqueue(wrong)
    with pytest.raises((TypeError, ValueError), match="Unsupported"):
        work.echo.enqueue(a=[wrong])
    assert office.rows("default") == []


def test_a_task_may_take_its_context(office: Office) -> None:
    result = work.answer.enqueue("word")
    office.run()

    result.refresh()
    assert result.return_value == ["word", 1, "RUNNING", result.id, ["word"]]


def test_missing_result_is_an_error(office: Office) -> None:
    async def read(missing: str) -> None:
        with pytest.raises(TaskResultDoesNotExist):
            await default_task_backend.aget_result(missing)

    for missing in ("123", "", "\0", "\ud800"):
        with pytest.raises(TaskResultDoesNotExist):
            default_task_backend.get_result(missing)
        async_to_sync(read)(missing)


def test_id_may_be_a_uuid(office: Office) -> None:
    result = work.add.enqueue(1)
    stored: Any = UUID(result.id)
    assert default_task_backend.get_result(stored) == result


def test_result_of_another_task_is_an_error(office: Office) -> None:
    result = work.add.enqueue(1)
    with pytest.raises(TaskResultMismatch):
        work.fail.get_result(result.id)


def test_result_of_another_backend_is_an_error(office: Office) -> None:
    entry = office.settings.TASKS["default"]
    office.settings.TASKS = {"default": entry, "other": entry}
    result = work.add.using(backend="other").enqueue(1)

    with pytest.raises(TaskResultDoesNotExist):
        default_task_backend.get_result(result.id)
    office.run()
    result.refresh()
    assert (result.backend, result.task.backend, result.return_value) == ("other", "other", 1)


def test_signals_are_sent_for_each_step(office: Office, signals: Signals) -> None:
    work.add.enqueue(1)
    assert signals.received == [("enqueued", "READY")]
    office.run()
    work.fail.enqueue()
    office.run()

    assert signals.received[1:] == [
        ("started", "RUNNING"),
        ("finished", "SUCCESSFUL"),
        ("enqueued", "READY"),
        ("started", "RUNNING"),
        ("finished", "FAILED"),
    ]
    assert set(signals.senders) == {SqlQueueBackend}
    assert signals.results[2].return_value == 1
    assert signals.results[-1].errors[0].exception_class is ValueError


def test_the_framework_logs_a_failure_with_its_traceback(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    work.fail.enqueue()
    office.run()

    (record,) = [
        record for record in caplog.records if record.name in ("django.tasks", "django_tasks") and record.levelname == "ERROR"
    ]
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


# --- what is refused ------------------------------------------------------------------------------------------------------------


def test_priority_is_refused_with_the_alternative(office: Office) -> None:
    with pytest.raises(InvalidTask, match=r"Backend does not support setting priority of tasks\. .*PRIORITIES.*queue_name="):
        work.add.using(priority=10)


def test_priority_chooses_the_queue(office: Office) -> None:
    office.endpoints(default={"PRIORITIES": True})
    for priority, queue in ((100, "default.High"), (0, "default"), (-1, "default.Low")):
        result = work.add.using(priority=priority).enqueue(1)
        assert [json.loads(row.body or b"")["result_id"] for row in office.rows(queue)] == [result.id]
        assert work.add.get_result(result.id).task.priority == priority
    office.run()
    assert office.rows("default.High") == office.rows("default") == office.rows("default.Low") == []


def test_task_that_failed_keeps_its_priority(office: Office) -> None:
    office.endpoints(default={"PRIORITIES": True})
    office.tasks(RETRIES=1, RETRY_DELAY=0)
    result = work.fail.using(priority=5).enqueue()
    office.run()
    assert office.row(result.id).priority == 5
    assert len(office.row(result.id).errors) == 2


def test_satellite_has_no_priorities(office: Office) -> None:
    office.tasks(queues=["default", "Slow"])
    office.endpoints(default={"PRIORITIES": True, "SATELLITES": {"Slow": {}}})
    with pytest.raises(InvalidTask, match="the satellite 'Slow' has no queues for priorities"):
        work.add.using(queue_name="Slow", priority=1)


def test_a_queue_that_is_not_in_queues_is_refused(office: Office) -> None:
    with pytest.raises(InvalidTask, match="Queue 'unknown' is not valid for backend"):
        work.add.using(queue_name="unknown")


def test_a_queue_without_an_endpoint_is_refused(office: Office) -> None:
    office.tasks(queues=[])
    with pytest.raises(InvalidTask, match=r"receives from the task queue 'defualt'.* did you mean 'default'\?"):
        work.add.using(queue_name="defualt").enqueue(1)


def test_a_task_is_checked_again_when_it_is_enqueued(office: Office) -> None:
    default_task_backend.queues = {"other"}
    with pytest.raises(InvalidTask, match="Queue 'default' is not valid for backend"):
        work.add.enqueue(1)


def test_a_time_without_a_zone_is_refused(office: Office) -> None:
    with pytest.raises(InvalidTask, match="run_after must be an aware datetime"):
        work.add.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001


def test_a_function_inside_of_another_is_refused(office: Office) -> None:
    with pytest.raises(InvalidTask, match="module level"):
        task(lambda: None)


# --- later ----------------------------------------------------------------------------------------------------------------------


def test_deferred_task_waits_in_the_delayed_table(office: Office) -> None:
    at = timezone.now() + timedelta(hours=1)
    result = work.add.using(run_after=at).enqueue(1)
    office.run()

    result.refresh()
    assert (result.status, result.task.run_after) == (TaskResultStatus.READY, at)
    assert work.add.get_result(result.id).task.run_after == at
    assert len(office.delayed()) == 1
    assert office.rows("default") == []


@pytest.mark.parametrize("zone", [None, UTC])
def test_time_of_a_project_without_time_zones(office: Office, settings: Settings, zone: tzinfo | None) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "America/New_York"
    office.database.connection.close()
    at = datetime.now(zone).replace(microsecond=0) + timedelta(hours=1)

    result = work.add.using(run_after=at).enqueue(1)
    work.add.using(run_after=at - timedelta(hours=2)).enqueue(2)

    assert (len(office.delayed()), len(office.rows("default"))) == (1, 1)
    assert parse_time(json.loads(office.delayed()[0])["NServiceBus.DeliverAt"]) == at.astimezone(UTC)
    assert work.add.get_result(result.id).task.run_after == at.astimezone(None).replace(tzinfo=None)
    office.database.connection.close()


def test_overdue_task_runs_at_once(office: Office) -> None:
    result = work.add.using(run_after=timezone.now() - timedelta(seconds=1)).enqueue(1)
    assert len(office.rows("default")) == 1
    office.run()

    result.refresh()
    assert result.return_value == 1
