"""Results of tasks that are finished are deleted when they are old enough."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.utils import timezone

from sqlqueue_app.conf import Settings, TaskBackend
from sqlqueue_app.models import TaskResult
from sqlqueue_app.scheduler import BackgroundJob

logger = logging.getLogger("sqlqueue.background")

EVERY_SECONDS = 600.0
# So many rows one statement deletes at most: locks and, on SQLite, the time of the one writer stay short.
BATCH = 1_000


def purge_task_results(alias: str, backend: str, *, before: datetime) -> int:
    """Delete the results of a backend, by its alias in TASKS, that were finished before an instant; returns how many.

    Results of tasks that wait or run are never deleted. Each batch is committed by itself; safe in several processes at once.
    """
    old = TaskResult.objects.using(alias).filter(backend=backend, finished_at__lt=before)
    deleted = 0
    while ids := list(old.values_list("pk", flat=True)[:BATCH]):
        deleted += TaskResult.objects.using(alias).filter(pk__in=ids).delete()[0]
    return deleted


def task_result_jobs(settings: Settings) -> list[BackgroundJob]:
    """A background job for each backend of TASKS; none where KEEP_RESULTS is None."""
    return [
        BackgroundJob(f"old task results of {alias}", EVERY_SECONDS, lambda backend=backend: _purge(settings.database, backend))  # type: ignore[misc]
        for alias, backend in settings.task_backends.items()
        if backend.options.keep_results_seconds is not None
    ]


def _purge(alias: str, backend: TaskBackend) -> None:
    keep = timedelta(seconds=backend.options.keep_results_seconds or 0)
    if purged := purge_task_results(alias, backend.alias, before=timezone.now() - keep):
        logger.info("%s old task results of %s deleted", purged, backend.alias, extra={"event": "task_results_purged"})
