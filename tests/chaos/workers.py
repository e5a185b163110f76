"""Worker processes to be killed, with their output in a file, and a last one that finishes the work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.books import Account, assert_accounted, assert_no_lock, waiting
from tests.chaos.load import ENDPOINTS
from tests.support.bench import Bench
from tests.support.postgresql import ThrowAwayServer
from tests.support.proxy import Proxy
from tests.support.waiting import poll_until_zero
from tests.support.worker_processes import wait_until_released

KILLED = -signal.SIGKILL


@contextmanager
def worker(
    bench: Bench, log: Path, *arguments: str, endpoints: Sequence[str] = ENDPOINTS, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `run_sqlqueue_worker`, as a single process unless the arguments name `--processes`; kill it at the end if still alive."""
    if "--processes" not in arguments:
        arguments = ("--processes", "0", *arguments)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "django", "run_sqlqueue_worker", "--endpoint", *endpoints, *arguments],
            env=bench.database.child_environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)


def step_of(step: str, time: int = 1) -> dict[str, str]:
    """The environment of a worker that kills itself when it reaches the step for the given time."""
    return {"CHAOS_STEP": step, "CHAOS_TIME": str(time)}


def through(line: Proxy, server: ThrowAwayServer, bench: Bench) -> dict[str, str]:
    """The environment of a worker that connects to the server through this proxy."""
    return alias_with(bench, HOST="127.0.0.1", PORT=str(line.port), PASSWORD=server.password)


def alias_with(bench: Bench, **settings: Any) -> dict[str, str]:
    """The environment of a worker with changed database settings."""
    child = json.loads(bench.database.child_environment()["SQLQUEUE_TEST_CHILD"])
    child["DATABASES"][bench.database.alias].update(settings)
    return {"SQLQUEUE_TEST_CHILD": json.dumps(child)}


def finish(bench: Bench, log: Path, deadline: float = 60.0) -> None:
    """Let a worker that is not killed handle the rest, if any, and stop it in an orderly way.

    `deadline` is in seconds since the last new minimum of waiting messages, because the total time depends on the machine.
    """
    wait_until_released(bench)
    if not waiting(bench):
        return
    with worker(bench, log) as process:
        poll_until_zero(lambda: 0 if process.poll() is not None else waiting(bench), deadline, what="waiting messages")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()[-4_000:]
    wait_until_released(bench)


def finish_whole(bench: Bench, log: Path) -> Account:
    """`finish`, then assert that every message ended once and that no lock is left."""
    finish(bench, log)
    found = assert_accounted(bench)
    assert_no_lock(bench)
    return found
