"""Real worker processes that a test starts and ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.bench import Bench
from tests.support.waiting import poll_until, read_until
from tests.support.worker_app import MODULE

_OTHER_SESSIONS = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    ),
    "sqlserver": (
        "SELECT COUNT(*) FROM sys.dm_exec_sessions WHERE database_id = DB_ID() AND session_id <> @@SPID AND is_user_process = 1"
    ),
}


@contextmanager
def worker_process(bench: Bench, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`run_sqlqueue_worker` in a separate process, killed at the end if it still runs.

    Unless the arguments contain `--processes`, there is no supervisor, so the process is the worker itself.
    """
    if "--processes" not in arguments:
        arguments = ("--processes", "0", *arguments)
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "django", "run_sqlqueue_worker", *arguments],
        env=bench.database.child_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        if process.stdout is not None and not process.stdout.closed:
            # its children, if any, end with it, and so does their output
            process.communicate(timeout=60)


def worker_command(bench: Bench, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `run_sqlqueue_worker` until it ends. Returns its output and exit code."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "run_sqlqueue_worker", *arguments],
        env=bench.database.child_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def prepare(bench: Bench, **endpoint: Any) -> None:
    """The endpoint `Sales` with the handlers of worker_app, and the table `handled` that they write to."""
    bench.configure(**{"HANDLERS": [MODULE], **endpoint})
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE handled (number integer NOT NULL, pid integer NOT NULL)")


def wait_until_released(bench: Bench) -> None:
    """Wait until the server has rolled back the transactions of killed processes and released their rows.

    An earlier worker would skip these rows, and one with `--until-empty` would end without them. On SQLite, the operating system
    releases the locks with the end of the process.
    """
    statement = _OTHER_SESSIONS.get(bench.database.vendor)
    if statement is None:
        return

    def others() -> bool:
        with bench.database.connection.cursor() as cursor:
            cursor.execute(statement)
            return bool(cursor.fetchone()[0])

    poll_until(lambda: not others(), what="the sessions of the killed processes have ended")


def in_handler(process: subprocess.Popen[str]) -> None:
    """Wait until the handler of `Worker.Hang` prints that it was called."""
    read_until(process, process.stdout, "in the handler\n".__eq__, what="the handler is called")


def wait_for_event(process: subprocess.Popen[str], event: str, times: int = 1) -> None:
    """Wait until a worker with `--log-format json` has logged the event `times` times."""
    for _ in range(times):
        read_until(process, process.stderr, lambda line: json.loads(line).get("event") == event, what=f"the event {event}")


def handled(bench: Bench) -> list[tuple[int, int]]:
    """The rows that handlers have committed: (number, process id)."""
    with bench.database.connection.cursor() as cursor:
        cursor.execute("SELECT number, pid FROM handled ORDER BY number")
        return [(int(number), int(pid)) for number, pid in cursor.fetchall()]


def address(bench: Bench, name: str) -> str:
    """The address of a queue of the bench as endpoints write it; on SQL Server, with the catalog."""
    return bench.table(name).address.full(None)
