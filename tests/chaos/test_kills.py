"""`kill -9` of workers at every named step and at random, while others send: nothing is lost or done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.books import handled_more
from tests.chaos.failpoints import STEPS, STEPS_OF_TWO_PHASE
from tests.chaos.ledger_books import ledger_account, settle
from tests.chaos.load import Senders, prepare
from tests.chaos.workers import KILLED, finish_whole, worker
from tests.support.bench import Bench
from tests.support.other_databases import OtherDatabase
from tests.support.processes import children_of
from tests.support.waiting import poll_until

SIDE_BY_SIDE = 2
# Fewer than the workers handle, so that few messages wait at the end.
A_SECOND = 50.0


# Each of many steps starts and kills workers, which takes minutes on a busy machine.
@pytest.mark.timeout(600)
def test_a_kill_at_every_step(bench: Bench, ledger: OtherDatabase, tmp_path: Path) -> None:
    prepare(bench)
    log = tmp_path / "workers.log"
    with Senders(bench, limit=100_000, a_second=A_SECOND) as senders:
        command = [sys.executable, "-W", "error", "-m", "tests.chaos.kill_each", str(SIDE_BY_SIDE)]
        environment = bench.database.child_environment()
        killed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert killed.returncode == 0, killed.stderr
        assert json.loads(killed.stdout) == dict.fromkeys((*STEPS, *STEPS_OF_TWO_PHASE), KILLED)
        senders.stop()
    found = finish_whole(bench, log)
    settle(bench, ledger, log)
    in_ledger = ledger_account(bench, ledger)
    assert in_ledger.faults == {}
    assert in_ledger.in_both
    assert senders.rolled_back
    assert not senders.rolled_back & set(found.sent)


def test_kills_at_random_of_processes_and_of_their_supervisor(bench: Bench, tmp_path: Path) -> None:
    prepare(bench)
    log, chance = tmp_path / "workers.log", random.Random(1)
    with Senders(bench, limit=100_000, a_second=A_SECOND) as senders:
        with worker(bench, log, "--processes", "2") as supervisor:
            for kills in range(1, 3):
                handled_more(bench, chance.randint(1, 40))
                os.kill(chance.choice(living_children(supervisor.pid)), signal.SIGKILL)
                poll_until(lambda kills=kills: log.read_text().count(" died by ") >= kills, what="the supervisor has logged it")  # type: ignore[misc]
            handled_more(bench, chance.randint(1, 40))
            supervisor.kill()
        senders.stop()
    finish_whole(bench, log)


def living_children(pid: int) -> list[int]:
    return poll_until(lambda: children_of(pid), what="a child process")
