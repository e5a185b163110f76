"""Background jobs on APScheduler, and the worker that starts and stops them together with its receivers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.base import BaseScheduler
from django.db import InterfaceError, OperationalError, connections

from sqlqueue_app.messages.errors import DatabaseError, TransientError
from sqlqueue_app.policies.polling import BUSY_PROBE_SECONDS, SLOW_TASK_TICK_SECONDS
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.tables.connections import POOL_IDLE_SECONDS, ConnectionPool, is_database_unavailable

if TYPE_CHECKING:
    from sqlqueue_app.receiving.receiver import Receiver

background_logger = logging.getLogger("sqlqueue.background")
logger = logging.getLogger("sqlqueue.worker")

# Smaller jumps are normal clock corrections, and harmless for jobs.
JUMP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """A function that is called at once and then periodically; an exception does not end the job, and is logged.

    Jobs with `uses_database` may have to wait for it, and share a few threads, so that they never delay the others. `sooner`
    returns after each call in how many seconds the next one is due, None for the regular time. With `retries_silently` a
    TransientError is not logged: the receivers log an unavailable database, and the next run does what this one has left.
    """

    name: str
    every_seconds: float
    call: Callable[[], object]
    uses_database: bool = True
    sooner: Callable[[], float | None] | None = None
    retries_silently: bool = False


class _SteadyScheduler(BaseScheduler):  # type: ignore[misc]
    """A scheduler whose jobs keep their intervals when the clock of the machine is changed.

    APScheduler schedules jobs by that clock, and would do nothing for an hour after it is set back by an hour: an instance would
    send no heartbeats and lose its callback queue. Its schedulers cannot detect that, because they wait inside their loop. So
    this one has its own loop, as APScheduler's documentation describes for custom schedulers.
    """

    def __init__(self, died: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._died = died
        self._ahead = _ahead_of_monotonic()
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sqlqueue-background", daemon=True)

    def start(self, paused: bool = False) -> None:
        super().start(paused)
        self._thread.start()

    def wakeup(self) -> None:
        self._woken.set()

    def shutdown(self, wait: bool = True) -> None:
        # The timer thread first: APScheduler removes all jobs when it stops, even while the thread shifts their times.
        self._stopping.set()
        self.wakeup()
        self._thread.join()
        # Then the threads of the jobs: APScheduler waits for them with a lock that `modify_job` needs in such a thread.
        for executor in self._executors.values():
            executor.shutdown(wait)
        super().shutdown(wait)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._follow_clock()
                seconds = self._process_jobs()
                # If the clock has changed in the meantime, the wait was computed from both times.
                if not self._follow_clock():
                    self._woken.wait(seconds)
                self._woken.clear()
        except BaseException:
            # A process without heartbeats and purges must not look alive.
            background_logger.critical("the timer of the background jobs died", extra={"event": "thread_died"}, exc_info=True)
            self._died()
            raise

    def _follow_clock(self) -> bool:
        """Shift the times of all jobs by the change of the clock. Returns whether it changed."""
        now = _ahead_of_monotonic()
        jump, self._ahead = now - self._ahead, now
        if abs(jump) < JUMP_SECONDS:
            return False
        for job in self.get_jobs():
            job.modify(next_run_time=job.next_run_time + timedelta(seconds=jump))
        text = "the clock of this machine jumped %s by %.0f s: background jobs keep their intervals"
        background_logger.warning(text, "forward" if jump > 0 else "back", abs(jump), extra={"event": "clock_jumped"})
        return True


def _ahead_of_monotonic() -> float:
    return datetime.now(UTC).timestamp() - time.monotonic()


class BackgroundJobs:
    """Runs jobs concurrently. A job that is still running at its next time finishes first."""

    def __init__(self, jobs: Sequence[BackgroundJob], *, died: Callable[[], None] = lambda: None) -> None:
        """`died` is called if the timer itself fails, so that no job runs any more."""
        self._jobs = list(jobs)
        self._died = died
        self._scheduler: _SteadyScheduler | None = None
        self._kept = ConnectionPool()
        self._failing: dict[str, str] = {}

    def start(self) -> None:
        """Start the timer thread and call every job for the first time."""
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        executors = {"database": ThreadPoolExecutor(max(1, min(4, len(self._jobs)))), "memory": ThreadPoolExecutor(1)}
        scheduler = _SteadyScheduler(self._died, timezone=UTC, executors=executors)
        for number, job in enumerate(self._jobs):
            scheduler.add_job(
                self._run,
                "interval",
                id=str(number),
                args=[job, partial(scheduler.modify_job, str(number))],
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

    def _run(self, job: BackgroundJob, modify: Callable[..., object]) -> None:
        """Call the job, and bring its next call forward if it asks for that."""
        try:
            with ExitStack() as connected:
                if job.every_seconds < POOL_IDLE_SECONDS:
                    connected.enter_context(self._kept.checkout())
                else:
                    # A connection that idles longer may have been cut, which would make a rare job fail.
                    connected.callback(connections.close_all)
                job.call()
        except Exception as error:  # noqa: BLE001 - the job runs again at its next time
            self._log_failure(job, error)
        else:
            self._failing.pop(job.name, None)
        if job.sooner is not None and (seconds := job.sooner()) is not None:
            # The scheduler has forgotten the job if it stops.
            with suppress(JobLookupError):
                modify(next_run_time=datetime.now(UTC) + timedelta(seconds=seconds))

    def _log_failure(self, job: BackgroundJob, error: Exception) -> None:
        """Log the same error once until the job succeeds, and so an outage."""
        is_outage = is_database_unavailable(error)
        cause = "outage" if is_outage else str(error)
        is_silent = job.retries_silently and (is_outage or isinstance(error, TransientError))
        if is_silent or self._failing.get(job.name) == cause:
            return
        self._failing[job.name] = cause
        extra = {"event": "background_job_failed", "job": job.name}
        # A database error needs only its text, a bug its traceback.
        trace = None if isinstance(error, (DatabaseError, OperationalError, InterfaceError)) else error
        level = logging.WARNING if is_outage else logging.ERROR
        background_logger.log(level, "background job %s failed: %s", job.name, error, extra=extra, exc_info=trace)


class BusyWatch:
    """Probes the receivers while all threads of one are busy, in one thread, which sleeps otherwise. `join` after the stop."""

    def __init__(self, receivers: Sequence[Receiver], stop: StopSignal) -> None:
        self._receivers = receivers
        self._stop = stop
        self._message = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sqlqueue-busy")
        stop.subscribe(self._message.set)
        for receiver in receivers:
            receiver.message = self._message

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        with self._stop.failing_with(logger, "the thread that watches for busy receivers died"):
            while not self._stop.is_set():
                self._message.wait()
                self._message.clear()
                while not self._stop.wait(BUSY_PROBE_SECONDS):
                    # Call every receiver, whatever the first one returns.
                    if not sum(receiver.probe() for receiver in self._receivers):
                        break


class Worker:
    """Runs receivers until the stop signal is set, then drains. Started once, in one thread; `stop` may be set from anywhere.

    The order of a stop: no new polls, messages in progress are finished, background jobs end, connections close.
    """

    def __init__(self, receivers: Sequence[Receiver], jobs: Sequence[BackgroundJob], stop: StopSignal) -> None:
        self.receivers = list(receivers)
        self._jobs = list(jobs)
        self._stop = stop

    def run(self, *, on_started: Callable[[], None] = lambda: None) -> None:
        """Start everything, wait for the stop signal, drain, and return when every thread has ended."""
        ticks = [
            BackgroundJob(f"slow messages of {each.queue}", SLOW_TASK_TICK_SECONDS, each.tick, uses_database=False)
            for each in self.receivers
        ]
        background = BackgroundJobs([*ticks, *self._jobs], died=self._stop.fail)
        watch = BusyWatch(self.receivers, self._stop)
        watch.start()
        try:
            for receiver in self.receivers:
                receiver.start()
            background.start()
            on_started()
            self._stop.wait()
            logger.info("stopping: finishing the messages that are being handled", extra={"event": "worker_draining"})
        finally:
            self._stop.set()
            for receiver in self.receivers:
                receiver.join()
            watch.join()
            background.stop()
