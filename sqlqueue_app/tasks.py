"""Django's Tasks framework on queues: `TASKS = {"default": {"BACKEND": "sqlqueue_app.tasks.SqlQueueBackend"}}`.

A worker runs the tasks. The work of a task is behind a savepoint of the receive transaction: if the task fails, its work is undone,
and the transaction that takes its message from the queue stores the result FAILED. If the whole transaction is lost (a lost
connection, a killed process), nothing is stored and the message is received again.

The model of results is looked up on first use: a module with tasks may be imported before Django has loaded the models.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import TYPE_CHECKING, Any

import django
from asgiref.sync import async_to_sync
from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from sqlqueue_app.conf import TASK_MESSAGE, Code, TaskBackend, TaskQueue, get_settings
from sqlqueue_app.messages.envelope import OutgoingMessage, new_message_id
from sqlqueue_app.messages.errors import ConfigurationError, DoomedTransaction, Unrecoverable
from sqlqueue_app.messages.headers import TASK_RESULT
from sqlqueue_app.messages.types import has_half_pair
from sqlqueue_app.policies.priorities import Priority
from sqlqueue_app.receiving.context import MessageContext
from sqlqueue_app.receiving.handlers import with_timeout
from sqlqueue_app.receiving.time_limits import end_watching, explain
from sqlqueue_app.sending.composer import SendOptions
from sqlqueue_app.sending.sender import current_handling, sender
from sqlqueue_app.tables.queue import all_or_none

# The Tasks framework: `django.tasks` from Django 6.0 on, the package django-tasks before.
if TYPE_CHECKING or django.VERSION < (6, 0):
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskError as InvalidTask, TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json
else:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from sqlqueue_app.models import TaskResult as Row


class SqlQueueBackend(BaseTaskBackend):
    """Sends tasks as messages, which `run_sqlqueue_worker` runs. Importing and creating it uses no database.

    `enqueue` inside `atomic()` on the queues' database commits and rolls back with the caller's rows. A task, its result and its
    message are one transaction, in every TRANSACTION_MODE except `none`.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    # Where the endpoint has PRIORITIES: above 0 is high, below 0 is low.
    supports_priority = True

    def validate_task(self, task: Task[..., Any]) -> None:
        """Raise InvalidTask for a task that this backend cannot run."""
        super().validate_task(task)
        if task.priority and (reason := self._priority_refused(task)):
            raise InvalidTask(
                f"Backend does not support setting priority of tasks. {task.module_path} has {task.priority!r}: {reason}, or put "
                "urgent tasks into another queue with queue_name= and receive from it with a separate endpoint"
            )

    def enqueue(self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[Any]:
        """Store a result and send its message, both or neither, in the caller's transaction if there is one.

        Raises InvalidTask for a task that cannot run, TypeError or ValueError for arguments that are not JSON, ConfigurationError,
        and database errors. Nothing is enqueued then.
        """
        self.validate_task(task)
        place, now = self._place_of(task), timezone.now()
        row = new_row(self.alias, task, args, kwargs, now)
        result = result_of(row, task)
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        # Not `now`, which is naive without USE_TZ.
        waits = run_after is not None and run_after > datetime.now(UTC)
        signal = partial(task_enqueued.send, type(self), task_result=result)
        TaskPost(place).enqueue(row, signal, deliver_at=run_after if waits else None)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """The result with this id, as committed or as the caller's transaction sees it.

        TaskResultDoesNotExist if this backend has no such result; ImportError or InvalidTask if its task no longer exists.
        """
        # Projects that store ids in a UUIDField pass UUIDs.
        wanted = str(result_id)
        # Databases refuse these characters, and no id contains one.
        is_storable = "\0" not in wanted and not has_half_pair(wanted)
        found = rows().filter(pk=wanted, backend=self.alias).first() if is_storable else None
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(found)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Report a missing app, which the app itself cannot; the tag sqlqueue checks the options."""
        if apps.is_installed("sqlqueue_app"):
            return []
        message = f'TASKS["{self.alias}"] names the backend of sqlqueue_app, which is not in INSTALLED_APPS'
        return [checks.Error(message, hint='add "sqlqueue_app" to INSTALLED_APPS and run migrate', id=str(Code.TASKS_WITHOUT_APP))]

    def _priority_refused(self, task: Task[..., Any]) -> str | None:
        """What to do before a task of this queue may have a priority; None if it may."""
        place = self._place_of(task)
        if place.queue != place.endpoint:
            return f"the satellite {place.queue!r} has no queues for priorities; use the queue of endpoint {place.endpoint!r}"
        if get_settings().endpoints[place.endpoint].priorities:
            return None
        return f'set "PRIORITIES": True of endpoint {place.endpoint!r} in SQLQUEUE["ENDPOINTS"]'

    def _place_of(self, task: Task[..., Any]) -> TaskQueue:
        entry = settings_of(self.alias)
        try:
            return entry.place_of(task.queue_name, get_settings().endpoints)
        except ConfigurationError as error:
            raise InvalidTask(f"{task.module_path}: {error}") from error


def settings_of(alias: str) -> TaskBackend:
    """The entry of TASKS; ConfigurationError if it is wrong or names another backend."""
    found = get_settings().task_backends.get(alias)
    if found is None:
        raise ConfigurationError(
            f'TASKS["{alias}"]["BACKEND"] is not "sqlqueue_app.tasks.SqlQueueBackend": write that path, which workers rely on'
        )
    return found


logger = logging.getLogger("sqlqueue.tasks")

_OUTCOME = ("status", "started_at", "last_attempted_at", "finished_at", "errors", "worker_ids", "return_value")
_FINISHED = (TaskResultStatus.SUCCESSFUL.value, TaskResultStatus.FAILED.value)


def handle_task(message: dict[str, Any], context: MessageContext) -> None:
    """Run the task of a message and store its result. The worker calls this inside the receive transaction.

    Raises Unrecoverable if the result does not exist, and errors that have broken the receive transaction.
    """
    row = _row_of(message, in_transaction=context.connection is not None)
    if row.status in _FINISHED:
        logger.info(
            "task %s was finished before, its second message is dropped",
            row.task,
            extra={"event": "task_finished_before", "endpoint": context.endpoint, "message_id": context.message_id},
        )
        return
    Attempt(row, context).run()


def _row_of(message: dict[str, Any], *, in_transaction: bool) -> Row:
    found = rows()
    if in_transaction:
        # If a task has two messages, as after a retry by an operator, the second waits and finds it finished.
        found = found.select_for_update()
    row = found.filter(pk=str(message.get("result_id"))).first()
    if row is None:
        raise Unrecoverable(
            f"the task {message.get('task')!r} cannot be run: its result {message.get('result_id')!r}, which holds its arguments, "
            "was deleted"
        )
    return row


class Attempt:
    def __init__(self, row: Row, context: MessageContext) -> None:
        self._row = row
        self._context = context
        self._alias = get_settings().database
        self._options = settings_of(row.backend).options
        self._backend = type(task_backends[row.backend])

    def run(self) -> None:
        """Run the task and store its outcome. Raises errors that have broken the receive transaction."""
        row, now = self._row, timezone.now()
        row.status = TaskResultStatus.RUNNING.value
        row.started_at = row.started_at or now
        row.last_attempted_at = now
        row.worker_ids = [*row.worker_ids, f"{platform.node() or 'unknown'}:{os.getpid()}"]
        if self._context.connection is None:
            # In mode none others see it immediately; inside a transaction it would be invisible.
            self._save()
        try:
            result = result_of(row)
        except Exception as error:  # noqa: BLE001 - importing the task's module may raise anything
            self._failed(error, None)
            return
        task_started.send(self._backend, task_result=result)
        try:
            with nullcontext() if self._context.connection is None else transaction.atomic(using=self._alias):
                row.return_value = self._call(result)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # As in Django's own backends, the task has failed whatever it raises.
            if self._context.connection is not None and transaction.get_rollback(using=self._alias):
                raise
            if self._context.participants is not None:
                # The savepoint above is in the database of the queues alone.
                self._context.participants.undo_message()
            self._failed(error, result)
        else:
            self._finish(TaskResultStatus.SUCCESSFUL)
            self._signal_finished(result)

    def _call(self, result: TaskResult[Any]) -> Any:
        task = result.task
        first = [TaskContext(task_result=result)] if result.task.takes_context else []
        if iscoroutinefunction(task.func):
            # Cancelled at the soft time limit, as an `async def` handler is. An exception would leave its loop behind.
            end_watching()
            work = with_timeout(lambda _message, _context: task.func(*first, *result.args, **result.kwargs))
            value = json_of(async_to_sync(work)(None, self._context))
        else:
            value = json_of(task.call(*first, *result.args, **result.kwargs))
        if self._context.connection is not None and transaction.get_rollback(using=self._alias):
            raise DoomedTransaction(
                "the task's work cannot be committed: a database error inside of it was caught outside of an atomic() block, "
                "or set_rollback(True) was called; wrap the statement that may fail in transaction.atomic()"
            )
        if self._context.participants is not None:
            self._context.participants.check_usable()
        return value

    def _failed(self, error: BaseException, result: TaskResult[Any] | None) -> None:
        row, kind = self._row, type(error)
        explain(error, f"task {row.task}", getattr(self._context.called, "soft_time_limit", None))
        path = f"{kind.__module__}.{kind.__qualname__}"
        text = "".join(format_exception(error))
        row.errors = [*row.errors, {"exception_class_path": path, "traceback": text}]
        if len(row.errors) <= self._options.retries:
            self._again(error)
            return
        self._finish(TaskResultStatus.FAILED)
        if result is not None:
            self._signal_finished(result)
            return
        logger.error("task %s cannot be started: %s", row.task, error, extra=self._log_extra("task_not_started"), exc_info=error)

    def _again(self, error: BaseException) -> None:
        row = self._row
        delay = timedelta(seconds=self._options.retry_delay_seconds * len(row.errors))
        row.status = TaskResultStatus.READY.value
        place = settings_of(row.backend).place_of(row.queue_name, get_settings().endpoints)
        with transaction.atomic(using=self._alias, savepoint=False):
            self._save()
            TaskPost(place).again(row, delay)
        logger.warning(
            "task %s failed, it is run again in %g s: %s",
            row.task,
            delay.total_seconds(),
            error,
            extra={**self._log_extra("task_retry"), "attempt": len(row.worker_ids), "delay_seconds": delay.total_seconds()},
            exc_info=error,
        )

    def _finish(self, status: TaskResultStatus) -> None:
        self._row.status, self._row.finished_at = status.value, timezone.now()
        self._save()

    def _save(self) -> None:
        """Save only the outcome, and only if the row still exists."""
        self._row.save(using=self._alias, update_fields=_OUTCOME)

    def _signal_finished(self, result: TaskResult[Any]) -> None:
        """Signal the current result. Called while an exception is handled, so that receivers can log it."""
        fresh = result_of(self._row, result.task)
        for name in ("status", "errors", "finished_at", "_return_value"):
            object.__setattr__(result, name, getattr(fresh, name))
        task_finished.send(self._backend, task_result=result)

    def _log_extra(self, event: str) -> dict[str, object]:
        return {"event": event, "endpoint": self._context.endpoint, "message_id": self._context.message_id}


class TaskPost:
    """Sends the task messages of one queue: as the endpoint that is handling a message, SEND_AS, or the task's endpoint."""

    def __init__(self, place: TaskQueue) -> None:
        self._sender = sender(place.endpoint)
        book = self._sender.dispatcher.book
        self._address = book.canonical(book.of_queue(place.queue))

    def compose(self, row: Row, options: SendOptions) -> OutgoingMessage:
        """The message of a result, to the queue of the task; it holds the id."""
        handled = current_handling()
        # The path is only for people who read the message.
        body = {"result_id": row.id, "task": row.task}
        incoming = None if handled is None else handled.incoming
        return self._sender.composer.compose(TASK_MESSAGE, body, replace(options, to=self._address), incoming=incoming)

    def enqueue(self, row: Row, written: Callable[[], object], *, deliver_at: datetime | None = None) -> None:
        """Write a new row and its message, both or neither, in the transaction of the queues' database if there is one.

        Otherwise it is committed on return, or when the `atomic()` of another database commits. `written` is called then. In a
        handler of mode receive_only both are in the receive transaction, because a worker must find the row of its message.
        """
        message = self.compose(row, SendOptions(message_id=row.id, deliver_at=deliver_at, priority=_level_of(row.priority)))

        def write() -> None:
            with all_or_none(self._sender.alias):
                row.save(using=self._sender.alias, force_insert=True)
                self._sender.dispatcher.dispatch([message], begun=True)
            written()

        self._sender.when_possible(write)

    def again(self, row: Row, delay: timedelta) -> None:
        """Run the task again later, in the caller's transaction. By a message of its own: DEDUPLICATE_FOR knows the first one."""
        options = SendOptions(headers={TASK_RESULT: row.id}, delay=delay, priority=_level_of(row.priority))
        self._sender.dispatcher.dispatch([self.compose(row, options)], begun=True)


def _level_of(priority: int) -> Priority | None:
    return None if not priority else "high" if priority > 0 else "low"


def rows() -> QuerySet[Row]:
    """All results, in the database of the queues."""
    model: type[Row] = apps.get_model("sqlqueue_app", "TaskResult")
    return model.objects.using(get_settings().database)


def new_row(alias: str, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], enqueued_at: datetime) -> Row:
    """An unsaved row for a new result of the backend `alias`. TypeError or ValueError for arguments that JSON cannot hold."""
    run_after = task.run_after
    if run_after is not None and timezone.is_aware(run_after) and not django_settings.USE_TZ:
        run_after = timezone.make_naive(run_after)
    return rows().model(
        id=new_message_id(),
        backend=alias,
        task=task.module_path,
        queue_name=task.queue_name,
        priority=task.priority,
        run_after=run_after,
        args=json_of(list(args)),
        kwargs=json_of(dict(kwargs)),
        status=TaskResultStatus.READY.value,
        enqueued_at=enqueued_at,
        errors=[],
        worker_ids=[],
    )


def result_of(row: Row, task: Task[..., Any] | None = None) -> TaskResult[Any]:
    """The result of a row, whose task is imported if it is not given. ImportError or InvalidTask if it no longer exists."""
    result: TaskResult[Any] = TaskResult(
        task=task or task_of(row),
        id=row.id,
        status=TaskResultStatus[row.status],
        enqueued_at=row.enqueued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        last_attempted_at=row.last_attempted_at,
        args=row.args,
        kwargs=row.kwargs,
        backend=row.backend,
        errors=[TaskError(**error) for error in row.errors],
        worker_ids=list(row.worker_ids),
    )
    object.__setattr__(result, "_return_value", row.return_value)
    return result


def task_of(row: Row) -> Task[..., Any]:
    """The task as it was enqueued. ImportError if its module or name is gone, InvalidTask if the name is not a task."""
    found = import_string(row.task)
    if not isinstance(found, Task):
        raise InvalidTask(f"{row.task!r} is {type(found).__name__}, expected a task: was the decorator @task removed?")
    return found.using(priority=row.priority, queue_name=row.queue_name, run_after=row.run_after, backend=row.backend)


def json_of(value: Any) -> Any:
    """The value after a round trip through JSON; TypeError, ValueError or RecursionError if that is impossible."""
    return json.loads(json.dumps(normalize_json(value)))


__all__ = ["SqlQueueBackend"]
