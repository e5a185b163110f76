"""Worker processes are killed while they handle messages of sagas: nothing is lost, done twice or left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter

from tests.support.bench import Bench
from tests.support.saga_app import MODULE, PRINTS, OrderSagas
from tests.support.waiting import poll_until
from tests.support.worker_processes import wait_until_released

KILLS = 30
WORKERS = 3
ORDERS = 10

# Forks a worker for each line that it reads: a process with Django costs seconds, a fork does not.
FORKING = r"""
import os, signal, sys
import django
django.setup()
from sqlqueue_app.conf import get_settings
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.run import RunOptions, run_worker
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in sys.stdin:
    if (pid := os.fork()) == 0:
        run_worker(get_settings(), RunOptions(max_concurrency=4), StopSignal())
        os._exit(0)
    os.write(1, f"worker {pid}\n".encode())
"""


class Workers:
    """Processes that receive until they are killed, and print a line for each call of a method."""

    def __init__(self, bench: Bench) -> None:
        environment = bench.database.child_environment(**{PRINTS: "1"})
        command = [sys.executable, "-c", FORKING]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.alive: list[int] = []

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        count = len(self.alive)
        while len(self.alive) == count:
            self.read()

    def read(self) -> None:
        """Read the next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        if line.startswith("worker"):
            self.alive.append(int(line.split()[1]))

    def kill(self, pid: int) -> None:
        self.alive.remove(pid)
        os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        while self.alive:
            self.kill(self.alive[0])
        self._process.kill()
        self._process.communicate(timeout=60)


def test_kills_lose_and_repeat_nothing(bench: Bench, orders: OrderSagas) -> None:
    bench.configure(HANDLERS=[MODULE], IMMEDIATE_RETRIES=5)
    chosen = random.Random()
    placed = 0
    workers = Workers(bench)
    try:
        for _ in range(WORKERS):
            workers.begin()
        for _ in range(KILLS):
            for _ in range(ORDERS):
                # Every other one expires at once, so that its timeout races with its other messages.
                orders.place(str(placed), chain=True, **({"expires": 0} if placed % 2 else {}))
                placed += 1
            for _ in range(chosen.randint(1, ORDERS)):
                workers.read()
            workers.kill(chosen.choice(workers.alive))
            workers.begin()
    finally:
        workers.end()
    wait_until_released(bench)

    def is_idle() -> bool:
        bench.run()
        return not orders.delayed() and not bench.rows("Sales")

    poll_until(is_idle, 120, what="all messages are handled")
    check(bench, orders, placed)


def check(bench: Bench, orders: OrderSagas, placed: int) -> None:
    """Each order has one saga, which has ended; each of its messages was sent once."""
    rows = orders.rows()
    assert bench.rows("error") == []
    assert sorted(int(each.order_id) for each in rows) == list(range(placed))
    bodies = [json.loads(row.body or b"") for row in bench.rows("out")]
    sent = Counter((body["OrderId"], kind) for body, kind in zip(bodies, orders.sent(), strict=True))
    for saga in rows:
        what = [each["what"] for each in saga.history]
        expired = "timeout" in what
        assert saga.completed_at is not None
        assert (saga.total, saga.timeouts) == (1, [])
        assert what[0] == "started"
        assert expired or what == ["started", "continued", "continued"]
        assert not expired or int(saga.order_id) % 2
        assert sent.pop((saga.order_id, "Test.Bill")) == 1
        assert sent.pop((saga.order_id, "Test.Cancelled"), 0) == int(expired)
    assert not sent
