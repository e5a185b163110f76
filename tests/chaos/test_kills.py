"""`kill -9` of workers at every named step and at random, while others send: nothing is lost, nothing is done twice."""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.books import assert_accounted, assert_no_lock, handled_more
from tests.chaos.failpoints import STEPS
from tests.chaos.load import Senders, prepare
from tests.chaos.workers import KILLED, finish, step_of, worker
from tests.receiving.conftest import Bench
from tests.support.processes import children_of
from tests.support.waiting import poll_until

SIDE_BY_SIDE = 2
# Fewer than workers handle, so that little waits in the end.
A_SECOND = 100.0


def test_a_kill_at_every_step(bench: Bench, tmp_path: Path) -> None:
    prepare(bench)
    log = tmp_path / "workers.log"
    with Senders(bench, most=100_000, a_second=A_SECOND) as senders:
        for first in range(0, len(STEPS), SIDE_BY_SIDE):
            with ExitStack() as stack:
                steps = STEPS[first : first + SIDE_BY_SIDE]
                running = [stack.enter_context(worker(bench, log, **step_of(step, 1 + first % 3))) for step in steps]
                assert [process.wait(60) for process in running] == [KILLED] * len(steps), log.read_text()[-4_000:]
        senders.stop()
    finish(bench, log)
    found = assert_accounted(bench)
    assert senders.rolled_back
    assert not senders.rolled_back & set(found.sent)
    assert_no_lock(bench)


def test_kills_at_random_of_processes_and_of_their_supervisor(bench: Bench, tmp_path: Path) -> None:
    prepare(bench)
    log, chance = tmp_path / "workers.log", random.Random(1)
    with Senders(bench, most=100_000, a_second=A_SECOND) as senders:
        with worker(bench, log, "--processes", "2") as supervisor:
            for kills in range(1, 3):
                handled_more(bench, chance.randint(1, 40))
                os.kill(chance.choice(living_children(supervisor.pid)), signal.SIGKILL)
                poll_until(lambda kills=kills: log.read_text().count(" died by ") >= kills, what="the supervisor has seen it")  # type: ignore[misc]
            handled_more(bench, chance.randint(1, 40))
            supervisor.kill()
        senders.stop()
    finish(bench, log)
    assert_accounted(bench)
    assert_no_lock(bench)


def living_children(pid: int) -> list[int]:
    return poll_until(lambda: children_of(pid), what="there is a child")
