"""Worker processes, one or several, under one supervisor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sqlqueue_app import send, send_many
from sqlqueue_app.models import Instance
from tests.support.bench import Bench
from tests.support.processes import children_of, is_gone
from tests.support.waiting import poll_until
from tests.support.worker_processes import (
    address,
    handled,
    in_handler,
    prepare,
    wait_for_event,
    wait_until_released,
    worker_process,
)
from tests.worker.break_app import MODULE as BREAKING

MEMORY = Path("/proc/self/smaps_rollup")


def megabytes(pid: int) -> float:
    """The memory that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def pids(bench: Bench) -> set[int]:
    return set(Instance.objects.using(bench.database.alias).values_list("pid", flat=True))


def test_several_processes_share_the_work_and_end_when_empty(bench: Bench) -> None:
    prepare(bench)
    send_many("Worker.Count", [{"number": number} for number in range(200)], to=address(bench, "Sales"))
    with worker_process(bench, "--processes", "3", "--until-empty") as process:
        assert process.wait(120) == 0, process.communicate()
    assert [number for number, _ in handled(bench)] == list(range(200))
    assert process.pid not in {pid for _, pid in handled(bench)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("processes", [1, 2])
def test_ended_process_is_restarted_and_a_signal_to_the_supervisor_stops_all(bench: Bench, processes: int, number: int) -> None:
    prepare(bench)
    with worker_process(bench, "--processes", str(processes), "--log-format", "json") as process:
        wait_for_event(process, "worker_started", processes)
        first = pids(bench)
        assert len(first) == processes
        assert process.pid not in first
        os.kill(min(first), number)
        poll_until(lambda: len(pids(bench) - first) == 1, deadline=60, what="another process was started")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    # The killed process could not delete its own row.
    assert pids(bench) <= {min(first)}


@pytest.mark.parametrize("processes", [1, 2])
def test_children_end_with_a_killed_supervisor_and_lose_nothing(bench: Bench, tmp_path: Path, processes: int) -> None:
    prepare(bench)
    released = tmp_path / "released"
    send("Worker.Hang", {"number": 1, "released": str(released)}, to=address(bench, "Sales"))
    with worker_process(bench, "--processes", str(processes)) as process:
        in_handler(process)
        # Some may not be registered: on SQLite, a process cannot register while the handler of another holds the write lock.
        children = poll_until(lambda: found if len(found := children_of(process.pid)) >= processes else [], what="all are started")
        process.kill()
        process.wait(60)
        poll_until(lambda: all(is_gone(pid) for pid in children), what="the children have ended")
    wait_until_released(bench)
    assert handled(bench) == []
    released.touch()
    with worker_process(bench, "--until-empty") as process:
        assert process.wait(60) == 0, process.communicate()
    assert [number for number, _ in handled(bench)] == [1]


@pytest.mark.parametrize("processes", [1, 2])
def test_second_signal_aborts_all(bench: Bench, tmp_path: Path, processes: int) -> None:
    prepare(bench)
    send("Worker.Hang", {"number": 1, "released": str(tmp_path / "never")}, to=address(bench, "Sales"))
    with worker_process(bench, "--processes", str(processes), "--log-format", "json") as process:
        in_handler(process)
        process.send_signal(signal.SIGTERM)
        wait_for_event(process, "worker_draining")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
    wait_until_released(bench)
    assert len(bench.rows("Sales")) == 1, "the message has returned to its queue"


def test_process_with_a_dead_thread_is_restarted(sqlite_bench: Bench, tmp_path: Path) -> None:
    """The process exits cleanly without a message in progress, but its queue is not empty."""
    bench = sqlite_bench
    prepare(bench, HANDLERS=[BREAKING])
    send("Break.Message", {"number": 1}, to=address(bench, "Sales"))
    once = tmp_path / "once"
    with worker_process(bench, "--until-empty", BREAK_ONCE=str(once)) as process:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 3
    assert "start the worker again" in errors
    once.unlink()
    with worker_process(bench, "--processes", "1", "--until-empty", BREAK_ONCE=str(once)) as process:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert "died by exit code 3" in errors
    assert [number for number, _ in handled(bench)] == [1]


@pytest.mark.parametrize("processes", [1, 2])
def test_missing_table_ends_all_with_exit_code_1(bench: Bench, processes: int) -> None:
    bench.database.configure(ENDPOINTS={"Nowhere": {"CALLBACKS": False}})
    with worker_process(bench, "--processes", str(processes)) as process:
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert "run sqlqueue_install" in process.stderr.read()


@pytest.mark.skipif(not MEMORY.exists(), reason="needs Linux")
def test_supervisor_keeps_neither_django_nor_the_project_in_memory(sqlite_bench: Bench) -> None:
    prepare(sqlite_bench)
    with worker_process(sqlite_bench, "--processes", "1", "--log-format", "json") as process:
        wait_for_event(process, "worker_started")
        (child,) = children_of(process.pid)
        assert megabytes(process.pid) < 25 < megabytes(child)


def errors_of_a_restart(bench: Bench, folder: Path, settings_module: str) -> str:
    """The error output of a worker with these settings whose only process dies once and is restarted."""
    prepare(bench, HANDLERS=[BREAKING])
    send("Break.Message", {"number": 1}, to=address(bench, "Sales"))
    own = {"DJANGO_SETTINGS_MODULE": settings_module, "BREAK_ONCE": str(folder / "once")}
    with worker_process(bench, "--processes", "1", "--until-empty", **own) as process:
        errors: str = process.communicate(timeout=120)[1]
        assert process.returncode == 0, errors
    return errors


def test_supervisor_survives_a_log_handler_that_needs_the_apps(sqlite_bench: Bench, tmp_path: Path) -> None:
    errors = errors_of_a_restart(sqlite_bench, tmp_path, "tests.worker.logging_to_a_model")
    assert "it was handling nothing (the LOGGING of the project failed here: AppRegistryNotReady(" in errors
    assert sqlite_bench.rows("Sales") == []


def test_supervisor_uses_the_logging_of_the_project(sqlite_bench: Bench, tmp_path: Path) -> None:
    errors = errors_of_a_restart(sqlite_bench, tmp_path, "tests.worker.own_logging")
    assert "OWN sqlqueue.worker worker process 1" in errors
    # Python reports the end of the thread in parts, between which a line may begin.
    assert errors.count("OWN sqlqueue.worker ") == errors.count("sqlqueue.worker ")
    assert "[event=" not in errors
