"""Real worker processes: killed, stopped, competing."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from sqlqueue_app import send, send_many
from tests.support.bench import Bench
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


def test_kill_9_inside_a_handler_loses_nothing_and_repeats_no_row(bench: Bench, tmp_path: Path) -> None:
    prepare(bench)
    released = tmp_path / "released"
    send("Worker.Hang", {"number": 1, "released": str(released)}, to=address(bench, "Sales"))
    with worker_process(bench) as process:
        in_handler(process)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    wait_until_released(bench)
    assert handled(bench) == []
    assert len(bench.rows("Sales")) == 1, "the message has returned to its queue"
    released.touch()
    with worker_process(bench, "--until-empty") as process:
        assert process.wait(60) == 0, process.communicate()
    assert [number for number, _ in handled(bench)] == [1]
    assert bench.rows("Sales") == bench.rows("error") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_finishes_the_current_message_and_takes_no_more(bench: Bench, tmp_path: Path, number: signal.Signals) -> None:
    prepare(bench, MAX_CONCURRENCY=1)
    released = tmp_path / "released"
    send("Worker.Hang", {"number": 1, "released": str(released)}, to=address(bench, "Sales"))
    send("Worker.Count", {"number": 2}, to=address(bench, "Sales"))
    with worker_process(bench, "--log-format", "json") as process:
        in_handler(process)
        process.send_signal(number)
        wait_for_event(process, "worker_draining")
        released.touch()
        assert process.wait(60) == 0
    assert [found for found, _ in handled(bench)] == [1]
    assert len(bench.rows("Sales")) == 1


def test_second_signal_aborts_and_returns_the_message(bench: Bench, tmp_path: Path) -> None:
    prepare(bench)
    send("Worker.Hang", {"number": 1, "released": str(tmp_path / "never")}, to=address(bench, "Sales"))
    with worker_process(bench, "--log-format", "json") as process:
        in_handler(process)
        process.send_signal(signal.SIGTERM)
        wait_for_event(process, "worker_draining")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
    wait_until_released(bench)
    assert handled(bench) == []
    assert len(bench.rows("Sales")) == 1, "the message has returned to its queue"


def test_two_processes_share_20_000_messages_exactly_once(postgresql_bench: Bench, tmp_path: Path) -> None:
    bench = postgresql_bench
    prepare(bench, MAX_CONCURRENCY=8)
    released = tmp_path / "released"
    with worker_process(bench, "--log-format", "json") as one, worker_process(bench, "--log-format", "json") as two:
        for process in (one, two):
            wait_for_event(process, "worker_started")
        # Each handles eight at once: the system decides which process gets more of quick messages.
        waiting = [{"number": number, "released": str(released)} for number in range(16)]
        send_many("Worker.Hang", waiting, to=address(bench, "Sales"))
        for process in (one, two) * 8:
            in_handler(process)
        released.touch()
        send_many("Worker.Count", [{"number": number} for number in range(16, 20_000)], to=address(bench, "Sales"))
        poll_until(lambda: bench.table("Sales").depth(20_000).waiting == 0, deadline=150, what="the queue is empty")
        for process in (one, two):
            process.send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in (one, two)] == [0, 0]
    rows = handled(bench)
    assert [number for number, _ in rows] == list(range(20_000))
    assert Counter(pid for _, pid in rows[:16]) == {one.pid: 8, two.pid: 8}
    assert {pid for _, pid in rows[16:]} == {one.pid, two.pid}
    assert bench.rows("error") == []
