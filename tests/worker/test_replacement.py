"""Processes that have handled enough messages, or hold too much memory, finish and are replaced."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app import send
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.replacement import ProcessLimits, resident_bytes
from sqlqueue_app.worker.supervisor import Supervisor
from tests.support.bench import Bench
from tests.support.waiting import poll_until
from tests.support.worker_processes import address, handled, prepare, worker_process

MIB = 1 << 20


def more_than(bench: Bench, number: int) -> bool:
    return len(handled(bench)) > number


@pytest.mark.parametrize(
    ("messages", "memory", "received", "reached"),
    [
        (10, None, 9, False),
        (10, None, 10, True),
        (None, 100 * MIB, 1, True),
        (None, 101 * MIB, 1, False),
        # Replacing a process that has handled no message would free no memory.
        (None, 1, 0, False),
        (None, None, 1_000, False),
    ],
)
def test_limit_stops_the_process(messages: int | None, memory: int | None, received: int, reached: bool) -> None:
    stop = StopSignal()
    limits = ProcessLimits(stop, messages, memory, memory_used=lambda: 100 * MIB)
    limits.check(received)
    assert (limits.is_reached, stop.is_set()) == (reached, reached)
    assert len(limits.jobs(lambda: received)) == (messages is not None or memory is not None)


def test_process_that_stops_anyway_is_not_replaced() -> None:
    stop = StopSignal()
    stop.set()
    limits = ProcessLimits(stop, messages=1)
    limits.check(5)
    assert not limits.is_reached


def test_memory_of_this_process_is_known() -> None:
    assert 5 * MIB < resident_bytes() < 50_000 * MIB


def test_supervisor_replaces_a_process_at_once(tmp_path: Path) -> None:
    """Exit code 4 is not a crash: the next process follows without a pause, and the last code counts."""
    starts = tmp_path / "starts"
    child = f"""
import os, sys
with open({str(starts)!r}, "a") as file:
    file.write("x")
os._exit(4 if os.path.getsize({str(starts)!r}) < 5 else 0)
"""
    supervisor = Supervisor([sys.executable, "-c", child], 1, StopSignal(), restart_seconds=3_600)
    assert supervisor.run() == 0
    assert starts.read_text() == "x" * 5


def test_worker_is_replaced_after_its_messages(bench: Bench) -> None:
    prepare(bench)
    arguments = ["--processes", "1", "--max-messages-per-process", "1", "--log-format", "json"]
    with worker_process(bench, *arguments) as process:
        for number in range(2):
            send("Worker.Count", {"number": number}, to=address(bench, "Sales"))
            poll_until(partial(more_than, bench, number))
            assert process.stderr is not None
            while json.loads(process.stderr.readline())["event"] != "worker_stopped":
                pass
        process.terminate()
        assert process.wait(60) == 0
    pids = [pid for _, pid in handled(bench)]
    assert len(set(pids)) == 2


def test_option_without_a_supervisor_is_refused(bench: Bench) -> None:
    for option in ("max_messages_per_process", "max_memory_per_process"):
        with pytest.raises(CommandError, match="need a supervisor, which replaces the process"):
            call_command("run_sqlqueue_worker", processes=0, until_empty=True, **{option: 5})
