"""Results of tasks: as the framework has them, and as rows.

The model is looked up when it is first used: a module with tasks may be imported before Django has loaded the models.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.utils.module_loading import import_string

from sqlqueue_app.conf import get_settings
from sqlqueue_app.tasks.framework import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus, normalize_json

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from sqlqueue_app.models import TaskResult as Row


def rows() -> QuerySet[Row]:
    """The rows of all results, in the database of the queues."""
    model: type[Row] = apps.get_model("sqlqueue_app", "TaskResult")
    return model.objects.using(get_settings().database)


def new_row(result: TaskResult[Any], enqueued_at: datetime) -> Row:
    """The row of a result that was just made, not saved. ValueError for arguments that JSON cannot hold."""
    return rows().model(
        id=result.id,
        backend=result.backend,
        task=result.task.module_path,
        queue_name=result.task.queue_name,
        run_after=result.task.run_after,
        args=result.args,
        kwargs=json_of(result.kwargs),
        status=result.status.value,
        enqueued_at=enqueued_at,
        errors=[],
        worker_ids=[],
    )


def result_of(row: Row) -> TaskResult[Any]:
    """The result of a row. ImportError or InvalidTask if its task is no longer there."""
    result: TaskResult[Any] = TaskResult(
        task=task_of(row),
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
    """The task as it was enqueued. ImportError if its module or its name is gone, InvalidTask if the name is no task any more."""
    found = import_string(row.task)
    if not isinstance(found, Task):
        raise InvalidTask(f"{row.task!r} is {type(found).__name__}, expected a task: was the decorator @task removed?")
    return found.using(priority=0, queue_name=row.queue_name, run_after=row.run_after, backend=row.backend)


def json_of(value: Any) -> Any:
    """The value as it comes back from JSON; TypeError, ValueError or RecursionError for one that cannot go there."""
    return json.loads(json.dumps(normalize_json(value)))
