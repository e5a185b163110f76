"""Parallel background jobs: a job that waits for the database delays no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.base import BaseScheduler
from django.db import OperationalError, ProgrammingError

from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.receiving.background import BackgroundJob, BackgroundJobs
from sqlqueue_app.receiving.stopping import StopSignal
from tests.support.clocks import ProcessClock
from tests.support.waiting import join_all


def test_job_without_database_is_not_delayed_by_database_jobs() -> None:
    go_on, checked = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        assert go_on.wait(60)

    waiting = [BackgroundJob(f"writer {number}", 0.05, wait) for number in range(10)]
    jobs = BackgroundJobs([*waiting, BackgroundJob("watcher", 0.05, lambda: checked.release(), uses_database=False)])
    jobs.start()
    try:
        for _ in range(3):
            assert checked.acquire(timeout=60)
    finally:
        go_on.set()
        jobs.stop()


@pytest.mark.parametrize("hours", [-1, 1])
def test_jobs_continue_when_the_system_clock_jumps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hours: int
) -> None:
    clock, called = ProcessClock(), threading.Semaphore(0)
    clock.put(monkeypatch)
    caplog.set_level("WARNING", logger="sqlqueue")
    jobs = BackgroundJobs([BackgroundJob("beat", 0.05, lambda: called.release())])
    jobs.start()
    try:
        assert called.acquire(timeout=60)
        clock.ahead = timedelta(hours=hours)
        for _ in range(10):
            assert called.acquire(timeout=60)
    finally:
        jobs.stop()
    warnings = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "clock_jumped"]
    assert warnings == [
        f"the clock of this machine jumped {'forward' if hours > 0 else 'back'} by 3600 s: background jobs keep their intervals"
    ]


def test_timer_ends_before_its_jobs_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[list[str]] = []
    shutdown = BaseScheduler.shutdown

    def recording(self: BaseScheduler, wait: bool = True) -> None:
        timers.append([thread.name for thread in threading.enumerate() if thread.name == "sqlqueue-background"])
        shutdown(self, wait)

    monkeypatch.setattr(BaseScheduler, "shutdown", recording)
    jobs = BackgroundJobs([BackgroundJob("beat", 0.05, lambda: None)])
    jobs.start()
    jobs.stop()
    assert timers == [[]], "the timer, which shifts the times of jobs after a jump of the clock, must end before they are removed"


def test_job_that_brings_its_next_call_forward_ends_during_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    at_work, stopping = threading.Event(), threading.Event()
    shutdown = ThreadPoolExecutor.shutdown

    def recording(self: ThreadPoolExecutor, wait: bool = True) -> None:
        stopping.set()
        shutdown(self, wait)

    def work() -> None:
        at_work.set()
        assert stopping.wait(60)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", recording)
    jobs = BackgroundJobs([BackgroundJob("soon again", 60.0, work, sooner=lambda: 0.0)])
    jobs.start()
    assert at_work.wait(60)
    stop = threading.Thread(target=jobs.stop, daemon=True)
    stop.start()
    join_all([stop])


def test_dead_timer_is_reported(monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]) -> None:
    def broken(self: object) -> None:
        raise MemoryError

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(MemoryJobStore, "get_next_run_time", broken)
    stop = StopSignal()
    jobs = BackgroundJobs([BackgroundJob("beat", 0.05, lambda: None)], died=stop.fail)
    jobs.start()
    try:
        assert stop.wait(60)
    finally:
        jobs.stop()
    assert stop.has_failed
    assert "thread_died" in events()


@pytest.mark.parametrize(
    ("error", "traced"), [(OperationalError("gone"), False), (ConnectionLost("gone"), False), (ProgrammingError("bug"), True)]
)
def test_only_a_bug_of_a_job_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture, error: Exception, traced: bool) -> None:
    called = threading.Event()

    def fail() -> None:
        called.set()
        raise error

    jobs = BackgroundJobs([BackgroundJob("operations", 60.0, fail)])
    jobs.start()
    assert called.wait(60)
    jobs.stop()

    (record,) = [record for record in caplog.records if getattr(record, "event", "") == "background_job_failed"]
    assert bool(record.exc_info) is traced


def raw_outage() -> OperationalError:
    """An outage as Django raises it."""
    error = OperationalError("connection refused")
    error.__cause__ = psycopg.OperationalError("connection refused")
    return error


@pytest.mark.parametrize("error", [ConnectionLost("gone"), raw_outage()])
def test_outage_is_not_logged_by_a_job_that_retries_silently(events: Callable[[], list[str]], error: Exception) -> None:
    called = threading.Event()

    def fail() -> None:
        called.set()
        raise error

    jobs = BackgroundJobs([BackgroundJob("operations", 60.0, fail, retries_silently=True)])
    jobs.start()
    assert called.wait(60)
    jobs.stop()

    assert "background_job_failed" not in events()


def test_lasting_error_is_logged_once_until_it_changes_or_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", logger="sqlqueue.background")
    read_only = DatabaseError("cannot execute UPDATE in a read-only transaction")
    runs: list[Exception | None] = [ConnectionLost("closed"), raw_outage(), read_only, read_only, None, None, ConnectionLost("cut")]
    finished = threading.Event()

    def run() -> None:
        if not runs:
            finished.set()
        elif (error := runs.pop(0)) is not None:
            raise error

    jobs = BackgroundJobs([BackgroundJob("beat", 0.05, run)])
    jobs.start()
    assert finished.wait(60)
    jobs.stop()

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "background job beat failed: closed"),
        ("ERROR", "background job beat failed: cannot execute UPDATE in a read-only transaction"),
        ("WARNING", "background job beat failed: cut"),
    ]
