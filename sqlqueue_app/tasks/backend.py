"""The backend that Django's setting `TASKS` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.apps import apps
from django.core import checks
from django.utils import timezone

from sqlqueue_app.conf import Code, TaskBackend, TaskQueue, get_settings
from sqlqueue_app.messages.envelope import new_message_id
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.tasks.framework import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from sqlqueue_app.tasks.messages import TaskPost
from sqlqueue_app.tasks.results import new_row, result_of, rows

DEFAULT_PRIORITY = 0


class SqlQueueBackend(BaseTaskBackend):
    """Tasks as messages of our queues, run by `run_sqlqueue_worker`. Importing and making it reaches no database.

    `enqueue` inside of `atomic()` on the queues' database commits and rolls back with the caller's rows. A task, its result and the
    message that brought it are one transaction, in every TRANSACTION_MODE but `none`.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    # A queue gives its oldest message first: what is urgent has a queue of its own.
    supports_priority = False

    def validate_task(self, task: Task[..., Any]) -> None:
        """InvalidTask for a task that this backend cannot run."""
        if task.priority != DEFAULT_PRIORITY:
            raise InvalidTask(
                f"Backend does not support setting priority of tasks. {task.module_path} has {task.priority!r}: give urgent tasks "
                "a queue of their own by queue_name=, which has an endpoint or satellite of its own to receive from it"
            )
        super().validate_task(task)

    def enqueue(self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[Any]:
        """Keep a result and send its message, both or none, in the caller's transaction if there is one.

        InvalidTask for a task that cannot be run; TypeError or ValueError for arguments that are no JSON; ConfigurationError for
        wrong settings; errors of the database. Nothing is enqueued then.
        """
        self.validate_task(task)
        place, now = self._place_of(task), timezone.now()
        result: TaskResult[Any] = TaskResult(
            task=task,
            id=new_message_id(),
            status=TaskResultStatus.READY,
            enqueued_at=now,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        waits = run_after is not None and run_after > now
        TaskPost(place).enqueue(
            new_row(result, now),
            lambda: _say_enqueued(type(self), result),
            deliver_at=run_after if waits else None,
        )
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """The result of this id as it is committed, or as the caller's transaction sees it.

        TaskResultDoesNotExist if this backend has none, or has none any more; ImportError or InvalidTask if its task is gone.
        """
        # No id has a NUL, and PostgreSQL takes none: such text comes from outside.
        found = None if "\0" in result_id else rows().filter(pk=result_id, backend=self.alias).first()
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(found)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """What the checks of the app cannot report: that it is not installed. The options are checked with the tag sqlqueue."""
        if apps.is_installed("sqlqueue_app"):
            return []
        message = f'TASKS["{self.alias}"] names the backend of sqlqueue_app, which is not in INSTALLED_APPS'
        return [checks.Error(message, hint='add "sqlqueue_app" to INSTALLED_APPS and run migrate', id=str(Code.TASKS_WITHOUT_APP))]

    def _place_of(self, task: Task[..., Any]) -> TaskQueue:
        entry = settings_of(self.alias)
        try:
            return entry.place_of(task.queue_name, get_settings().endpoints)
        except ConfigurationError as error:
            raise InvalidTask(f"{task.module_path}: {error}") from error


def settings_of(alias: str) -> TaskBackend:
    """The entry of TASKS; ConfigurationError if it names another backend, or is wrong."""
    found = get_settings().task_backends.get(alias)
    if found is None:
        raise ConfigurationError(
            f'TASKS["{alias}"]["BACKEND"] is not "sqlqueue_app.tasks.SqlQueueBackend": write that path, for a worker goes by it'
        )
    return found


def _say_enqueued(backend: type[SqlQueueBackend], result: TaskResult[Any]) -> None:
    task_enqueued.send(backend, task_result=result)
