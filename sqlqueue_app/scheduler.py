"""Background jobs of a worker, on APScheduler: each in a thread of its own pool; short ones hand on their connections."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from django.db import connections

from sqlqueue_app.tables.kept_connections import KEPT_SECONDS, KeptConnections

logger = logging.getLogger("sqlqueue.background")

# Less than this is how clocks are kept right; a job that comes so much earlier or later harms nobody.
JUMP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """A function that is called at once and then every so many seconds; an exception is logged and the next time comes.

    What `uses_database` may have to wait for it, and share few threads. The rest is never kept waiting by that.
    """

    name: str
    every_seconds: float
    call: Callable[[], None]
    uses_database: bool = True


class _SteadyScheduler(BackgroundScheduler):  # type: ignore[misc]
    """A scheduler whose jobs keep their distances when the clock of the machine is put forward or back.

    APScheduler keeps the times of jobs by that clock, and would do nothing for an hour after it was put back by one: an instance
    would be silent for so long and lose its callback queue.
    """

    def __init__(self, died: Callable[[], None], **options: Any) -> None:
        self._ahead = _ahead_of_monotonic()
        self._died = died
        super().__init__(**options)

    def _main_loop(self) -> None:
        try:
            super()._main_loop()
        except BaseException:
            # A process that beats no more and purges nothing must not look alive.
            logger.critical("the timer of the background jobs died", extra={"event": "thread_died"}, exc_info=True)
            self._died()
            raise

    def _process_jobs(self) -> float | None:
        # Its waits are measured by the monotonic clock, so it is here when a job is due by that.
        self._follow_clock()
        seconds: float | None = super()._process_jobs()
        # The clock may have been put meanwhile, and the wait be reckoned with both.
        return 0.0 if self._follow_clock() else seconds

    def _follow_clock(self) -> bool:
        """Shift the times of all jobs as the clock was; whether it was."""
        now = _ahead_of_monotonic()
        jump, self._ahead = now - self._ahead, now
        if abs(jump) < JUMP_SECONDS:
            return False
        for job in self.get_jobs():
            job.modify(next_run_time=job.next_run_time + timedelta(seconds=jump))
        text = "the clock of this machine was put %s by %.0f s: background jobs go on as they did"
        logger.warning(text, "forward" if jump > 0 else "back", abs(jump), extra={"event": "clock_jumped"})
        return True


def _ahead_of_monotonic() -> float:
    return datetime.now(UTC).timestamp() - time.monotonic()


class BackgroundJobs:
    """Runs jobs side by side. A job that is still running when its time comes again is left to finish first."""

    def __init__(self, jobs: Sequence[BackgroundJob], *, died: Callable[[], None] = lambda: None) -> None:
        """`died` is called if the timer itself breaks, and no job is called any more."""
        self._jobs = list(jobs)
        self._died = died
        self._scheduler: BackgroundScheduler | None = None
        self._kept = KeptConnections()

    def start(self) -> None:
        """Start the timer thread and call every job for the first time."""
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        executors = {"database": ThreadPoolExecutor(max(1, min(4, len(self._jobs)))), "memory": ThreadPoolExecutor(1)}
        scheduler = _SteadyScheduler(self._died, timezone=UTC, executors=executors, daemon=True)
        for job in self._jobs:
            scheduler.add_job(
                _run,
                "interval",
                args=[job, self._kept],
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
            self._kept.close()


def _run(job: BackgroundJob, kept: KeptConnections) -> None:
    # A connection that waits longer for the next time may have been cut meanwhile, and would cost a job that comes seldom its turn.
    with kept.lent() if job.every_seconds < KEPT_SECONDS else _new_connections():
        try:
            job.call()
        except Exception:
            logger.exception("background job %s failed", job.name, extra={"event": "background_job_failed", "job": job.name})


@contextmanager
def _new_connections() -> Iterator[None]:
    try:
        yield
    finally:
        connections.close_all()
