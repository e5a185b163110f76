"""The handler that runs tasks: called by the worker for each message of a task, inside of the receive transaction.

The task's work stands behind a savepoint: where it fails, its work is undone, and its result says FAILED in the transaction that
takes the message from its queue. What takes the whole transaction along (a lost connection, a killed process) leaves no trace, and
the message is received again.
"""

from __future__ import annotations

import logging
import os
import platform
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import DoomedTransaction, Unrecoverable
from sqlqueue_app.receiving.context import MessageContext
from sqlqueue_app.tasks.backend import settings_of
from sqlqueue_app.tasks.framework import TaskContext, TaskResult, TaskResultStatus, task_backends, task_finished, task_started
from sqlqueue_app.tasks.messages import TaskPost
from sqlqueue_app.tasks.results import json_of, result_of, rows

if TYPE_CHECKING:
    from sqlqueue_app.models import TaskResult as Row

logger = logging.getLogger("sqlqueue.tasks")

_OUTCOME = ("status", "started_at", "last_attempted_at", "finished_at", "errors", "worker_ids", "return_value")
_FINISHED = (TaskResultStatus.SUCCESSFUL.value, TaskResultStatus.FAILED.value)


def handle_task(message: dict[str, Any], context: MessageContext) -> None:
    """Run the task of a message and keep its result.

    Raises Unrecoverable if there is no such result, and the errors that have taken the receive transaction along.
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
        # Two messages of one task, such as one that an operator sent again: the second waits, and finds it finished.
        found = found.select_for_update()
    row = found.filter(pk=str(message.get("result_id"))).first()
    if row is None:
        raise Unrecoverable(
            f"the task {message.get('task')!r} cannot be run: its result {message.get('result_id')!r}, which holds its arguments, "
            "was deleted"
        )
    return row


class Attempt:
    """One attempt to run a task."""

    def __init__(self, row: Row, context: MessageContext) -> None:
        self._row = row
        self._context = context
        self._alias = get_settings().database
        self._options = settings_of(row.backend).options
        self._backend = type(task_backends[row.backend])

    def run(self) -> None:
        """Run it, and write what became of it. Raises what has taken the receive transaction along."""
        row, now = self._row, timezone.now()
        row.status = TaskResultStatus.RUNNING.value
        row.started_at = row.started_at or now
        row.last_attempted_at = now
        row.worker_ids = [*row.worker_ids, f"{platform.node() or 'unknown'}:{os.getpid()}"]
        if self._context.connection is None:
            # In mode none the others see it at once; in a transaction nobody would.
            self._save()
        try:
            result = result_of(row)
        except Exception as error:  # noqa: BLE001 - its module may raise anything
            self._failed(error, None)
            return
        task_started.send(self._backend, task_result=result)
        try:
            with self._undone_on_failure():
                row.return_value = self._call(result)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # As Django's own backends: whatever it raises, the task has failed.
            if self._context.connection is not None and transaction.get_rollback(using=self._alias):
                raise
            self._failed(error, result)
        else:
            self._finish(TaskResultStatus.SUCCESSFUL)
            self._say_finished(result)

    def _undone_on_failure(self) -> AbstractContextManager[None]:
        return nullcontext() if self._context.connection is None else transaction.atomic(using=self._alias)

    def _call(self, result: TaskResult[Any]) -> Any:
        first = [TaskContext(task_result=result)] if result.task.takes_context else []
        value = json_of(result.task.call(*first, *result.args, **result.kwargs))
        if self._context.connection is not None and transaction.get_rollback(using=self._alias):
            raise DoomedTransaction(
                "the task's work cannot be committed: a database error inside of it was caught outside of an atomic() block, "
                "or set_rollback(True) was called; wrap the statement that may fail in transaction.atomic()"
            )
        return value

    def _failed(self, error: BaseException, result: TaskResult[Any] | None) -> None:
        row, kind = self._row, type(error)
        path, text = f"{kind.__module__}.{kind.__qualname__}", "".join(format_exception(error))
        row.errors = [*row.errors, {"exception_class_path": path, "traceback": text}]
        if len(row.errors) <= self._options.retries:
            self._again(error)
            return
        self._finish(TaskResultStatus.FAILED)
        if result is not None:
            self._say_finished(result)
            return
        logger.error("task %s cannot be started: %s", row.task, error, extra=self._extra("task_not_started"), exc_info=error)

    def _again(self, error: BaseException) -> None:
        row = self._row
        delay = timedelta(seconds=self._options.retry_delay_seconds * len(row.errors))
        row.status = TaskResultStatus.READY.value
        place = settings_of(row.backend).place_of(row.queue_name, get_settings().endpoints)
        with transaction.atomic(using=self._alias, savepoint=False):
            self._save()
            TaskPost(place).again(row, delay)
        logger.warning(
            "task %s failed, it is run again in %s: %s",
            row.task,
            delay,
            error,
            extra={**self._extra("task_retry"), "attempt": len(row.worker_ids), "delay_seconds": delay.total_seconds()},
            exc_info=error,
        )

    def _finish(self, status: TaskResultStatus) -> None:
        self._row.status = status.value
        self._row.finished_at = timezone.now()
        self._save()

    def _save(self) -> None:
        """Only the outcome, and only if the row is still there."""
        self._row.save(using=self._alias, update_fields=_OUTCOME)

    def _say_finished(self, result: TaskResult[Any]) -> None:
        """Signal the result as it is now. Called while an error is being handled, so that receivers may log it."""
        fresh = result_of(self._row)
        for name in ("status", "errors", "finished_at", "_return_value"):
            object.__setattr__(result, name, getattr(fresh, name))
        task_finished.send(self._backend, task_result=result)

    def _extra(self, event: str) -> dict[str, object]:
        return {"event": event, "endpoint": self._context.endpoint, "message_id": self._context.message_id}
