"""Workers start the pipeline on schedule: by one worker at a time, one run after the other."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.run import PipelineSchedule, _PipelineProcess, pipeline_jobs
from tests.support.databases import QueueDatabase
from tests.support.filling import install
from tests.support.waiting import poll_until, read_until

START = datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def go(self, **more: int) -> None:
        self.now += timedelta(**more)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "started"


def schedule(clock: Clock, script: str, mark: Path) -> PipelineSchedule:
    return PipelineSchedule("*/5 * * * *", command=[sys.executable, "-c", script, str(mark)], now=clock, zone=UTC)


@pytest.fixture
def leave() -> Iterator[list[PipelineSchedule]]:
    """Schedules whose child processes end after the test."""
    made: list[PipelineSchedule] = []
    yield made
    for each in made:
        each.end()
        if each._child is not None:
            each._child.wait(60)
            each._child._reader.join(60)


WRITE = "import sys; open(sys.argv[1], 'a').write('x')"


def test_pipeline_starts_at_each_tick(
    queue_database: QueueDatabase, clock: Clock, mark: Path, leave: list[PipelineSchedule]
) -> None:
    install(queue_database)
    worker = schedule(clock, WRITE, mark)
    leave.append(worker)

    assert not worker.poll()
    clock.go(minutes=4, seconds=29)
    assert not worker.poll()
    clock.go(seconds=1)
    assert worker.poll()
    assert not worker.poll()
    poll_until(lambda: mark.exists() and mark.read_text() == "x", what="the first run")
    poll_until(lambda: worker._child is None or worker._child.poll() is not None, what="the end of the first run")
    clock.go(minutes=11)
    assert worker.poll()
    poll_until(lambda: mark.read_text() == "xx", what="the second run, once for two ticks")


def test_only_one_worker_starts_the_pipeline(
    queue_database: QueueDatabase, clock: Clock, mark: Path, leave: list[PipelineSchedule]
) -> None:
    install(queue_database)
    workers = [schedule(clock, WRITE, mark) for _ in range(3)]
    leave.extend(workers)
    clock.go(minutes=5)

    assert sorted(worker.poll() for worker in workers) == [False, False, True]


def test_unfinished_run_is_not_started_again(
    sqlite_database: QueueDatabase, clock: Clock, mark: Path, leave: list[PipelineSchedule], caplog: pytest.LogCaptureFixture
) -> None:
    install(sqlite_database)
    caplog.set_level(logging.INFO, logger="sqlqueue")
    worker = schedule(clock, "import signal; signal.pause()", mark)
    leave.append(worker)
    clock.go(minutes=5)
    assert worker.poll()
    clock.go(minutes=5)
    assert not worker.poll()
    worker.end()
    poll_until(lambda: worker._child is not None and worker._child.poll() is not None, what="the end of the child")
    clock.go(minutes=1)
    assert not worker.poll()

    events = [record.event for record in caplog.records if hasattr(record, "event")]
    assert events == ["pipeline_started", "pipeline_late", "pipeline_failed"]


def test_run_does_not_outlive_its_killed_worker(queue_database: QueueDatabase, mark: Path) -> None:
    install(queue_database)
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.schedule_app", str(mark)],
        env=queue_database.child_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        read_until(worker, worker.stdout, "started\n".__eq__, what="the run is started")
        assert not mark.exists()
    finally:
        worker.kill()
        worker.communicate(timeout=60)
    poll_until(lambda: mark.exists() and mark.read_text() == "stopped", what="the end of the run")


def test_end_of_standard_input_stops_the_run() -> None:
    script = (
        "from sqlqueue_app.receiving.stopping import StopSignal\n"
        "from sqlqueue_app.worker.stop_signals import RunRequests\n"
        "stop = StopSignal()\n"
        "RunRequests(stop)\n"
        "print(stop.is_set(), flush=True)\n"
        "print(stop.wait(60))\n"
    )
    setup = "import django; django.setup()\n"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    with subprocess.Popen(
        [sys.executable, "-c", setup + script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        read_until(process, process.stdout, "False\n".__eq__, what="the process waits")
        output, _ = process.communicate("anything", timeout=60)

    assert (output, process.returncode) == ("True\n", 0)


def test_no_job_exists_without_a_schedule(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    assert pipeline_jobs(get_settings(), StopSignal()) == []
    install(sqlite_database, PIPELINE={"LAKE": "/srv/lake"})
    assert pipeline_jobs(get_settings(), StopSignal()) == []
    install(sqlite_database, PIPELINE={"LAKE": "/srv/lake", "CRON": "0 2 * * *"})
    assert len(pipeline_jobs(get_settings(), StopSignal())) == 1


SERVE = """
import sys
def run():
    open(sys.argv[1], "a").write("x")
    print('{"batches": 0}', flush=True)
run()
while sys.stdin.readline():
    run()
"""
# Reads one request and exits normally without running it, like a process whose session has just been idle for too long.
END_EARLY = """
import sys
open(sys.argv[1], "a").write("x")
print('{"batches": 0}', flush=True)
sys.stdin.readline()
"""


def first_run(worker: PipelineSchedule, clock: Clock) -> _PipelineProcess:
    """Let the worker start the pipeline at a tick, wait for the end of the run, and return its process."""
    clock.go(minutes=5)
    assert worker.poll()
    child = worker._child
    assert child is not None
    poll_until(lambda: not child.is_busy(), what="the end of the first run")
    return child


def test_warm_process_runs_again_at_the_next_tick(
    sqlite_database: QueueDatabase, clock: Clock, mark: Path, leave: list[PipelineSchedule]
) -> None:
    install(sqlite_database)
    worker = schedule(clock, SERVE, mark)
    leave.append(worker)
    for runs in range(1, 4):
        clock.go(minutes=5)
        assert worker.poll()
        poll_until(lambda: worker._child is not None and not worker._child.is_busy(), what="the end of the run")
        assert mark.read_text() == "x" * runs
    child = worker._child

    assert child is not None
    worker.end()
    assert child.wait(60) == -signal.SIGTERM


def test_killed_warm_process_is_replaced_at_the_next_tick(
    sqlite_database: QueueDatabase, clock: Clock, mark: Path, leave: list[PipelineSchedule], caplog: pytest.LogCaptureFixture
) -> None:
    install(sqlite_database)
    worker = schedule(clock, SERVE, mark)
    leave.append(worker)
    first = first_run(worker, clock)
    first.kill()
    first.wait(60)
    clock.go(minutes=5)
    assert worker.poll()

    poll_until(lambda: mark.read_text() == "xx", what="the second run")
    assert worker._child is not first
    assert [record.event for record in caplog.records if record.levelname == "ERROR"] == ["pipeline_failed"]  # type: ignore[attr-defined]


def test_request_to_an_ending_process_is_repeated(
    sqlite_database: QueueDatabase, clock: Clock, mark: Path, leave: list[PipelineSchedule]
) -> None:
    install(sqlite_database)
    worker = schedule(clock, END_EARLY, mark)
    leave.append(worker)
    first = first_run(worker, clock)
    clock.go(minutes=5)
    assert worker.poll()
    first.wait(60)

    assert worker.poll()
    poll_until(lambda: mark.read_text() == "xx", what="the run of the second tick")
    assert worker._child is not first


def test_worker_that_loses_a_tick_ends_its_warm_process(
    sqlite_database: QueueDatabase, clock: Clock, mark: Path, leave: list[PipelineSchedule]
) -> None:
    install(sqlite_database)
    first, second = schedule(clock, SERVE, mark), schedule(clock, WRITE, mark)
    leave.extend([first, second])
    clock.go(minutes=5)
    assert [each.poll() for each in (first, second)] == [True, False]
    child = first._child
    assert child is not None
    poll_until(lambda: not child.is_busy(), what="the end of the run")
    clock.go(minutes=5)
    assert [each.poll() for each in (second, first)] == [True, False]

    assert child.wait(60) == 0


def test_requests_wake_a_waiting_process_and_the_stop_ends_the_wait() -> None:
    script = (
        "import django; django.setup()\n"
        "from sqlqueue_app.receiving.stopping import StopSignal\n"
        "from sqlqueue_app.worker.stop_signals import RunRequests\n"
        "stop = StopSignal()\n"
        "requests = RunRequests(stop)\n"
        "print(requests.wait(0), flush=True)\n"
        "print(requests.wait(60), flush=True)\n"
        "print(requests.wait(60), stop.is_set())\n"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        read_until(process, process.stdout, "False\n".__eq__, what="the first wait ends without a request")
        process.stdin.write("\n")
        read_until(process, process.stdout, "True\n".__eq__, what="a request")
        output, _ = process.communicate(timeout=60)

    assert (output, process.returncode) == ("False True\n", 0)
