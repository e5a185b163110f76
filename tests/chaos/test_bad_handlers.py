"""Handlers that run out of memory, leak connections and threads, close the connection or hang, next to good ones.

The lack of memory may hit any thread of the process, even one that runs no handler; the supervisor then restarts the process.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.chaos.bad_messages import effects, prepare, send_bad
from tests.chaos.books import assert_no_lock, failed_units
from tests.chaos.workers import worker
from tests.support.bench import Bench
from tests.support.waiting import poll_until
from tests.support.worker_processes import wait_until_released


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of its process")
def test_bad_handlers_do_not_harm_other_messages(bench: Bench, tmp_path: Path) -> None:
    prepare(bench)
    log, released = tmp_path / "worker.log", tmp_path / "released"
    good = send_bad(bench, "Nothing", 20, released)
    with worker(bench, log, "--processes", "1", endpoints=("Sales",)) as process:
        poll_until(lambda: effects(bench) == sorted(good), what="the good messages are handled")
        failing = send_bad(bench, "Memory", 3, released) + send_bad(bench, "Close", 3, released)
        others = good + send_bad(bench, "Leak", 5, released) + send_bad(bench, "Beside", 30, released)
        poll_until(lambda: not bench.rows("Sales"), what="the bad messages have left the queue")
        failed = [unit for unit, _ in failed_units(bench)]
        # A handler that needs memory while another one uses all of it fails too, possibly twice.
        assert set(failing) <= set(failed)
        assert sorted(failed + effects(bench)) == sorted(failing + others)
        done = effects(bench)
        hanging = send_bad(bench, "Hang", 1, released)
        poll_until(lambda: "hanging\n" in log.read_text(), what="a handler hangs")
        drained = log.read_text().count("worker_draining")
        process.send_signal(signal.SIGTERM)
        poll_until(lambda: log.read_text().count("worker_draining") > drained, what="the worker is draining")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
    wait_until_released(bench)
    assert_no_lock(bench)
    assert effects(bench) == done
    released.touch()
    with worker(bench, log, "--until-empty", endpoints=("Sales",)) as process:
        assert process.wait(60) == 0, log.read_text()[-4_000:]
    assert effects(bench) == sorted(done + hanging)
    wait_until_released(bench)
    assert_no_lock(bench)
