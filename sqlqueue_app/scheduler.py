"""Background jobs of a worker, on APScheduler: each in a thread of its own pool, its connections closed when it is done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from django.db import connections

logger = logging.getLogger("sqlqueue.background")


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """A function that is called at once and then every so many seconds; an exception is logged and the next time comes.

    What `uses_database` may have to wait for it, and share few threads. The rest is never kept waiting by that.
    """

    name: str
    every_seconds: float
    call: Callable[[], None]
    uses_database: bool = True


class BackgroundJobs:
    """Runs jobs side by side. A job that is still running when its time comes again is left to finish first."""

    def __init__(self, jobs: Sequence[BackgroundJob]) -> None:
        self._jobs = list(jobs)
        self._scheduler: BackgroundScheduler | None = None

    def start(self) -> None:
        """Start the timer thread and call every job for the first time."""
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        executors = {"database": ThreadPoolExecutor(max(1, min(4, len(self._jobs)))), "memory": ThreadPoolExecutor(1)}
        scheduler = BackgroundScheduler(timezone=UTC, executors=executors, daemon=True)
        for job in self._jobs:
            scheduler.add_job(
                _run,
                "interval",
                args=[job],
                executor="database" if job.uses_database else "memory",
                seconds=job.every_seconds,
                name=job.name,
                max_instances=1,
                coalesce=True,
                misfire_grace_time=None,
                next_run_time=datetime.now(UTC),
            )
        scheduler.start()
        self._scheduler = scheduler

    def stop(self) -> None:
        """Wait for the running jobs and end the threads; may be called without a start."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.shutdown(wait=True)


def _run(job: BackgroundJob) -> None:
    try:
        job.call()
    except Exception:
        logger.exception("background job %s failed", job.name, extra={"event": "background_job_failed", "job": job.name})
    finally:
        connections.close_all()
