"""One process compared with two with the same total number of threads, started by the command for users."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import handlers
from benchmarks.databases import Database
from benchmarks.measures import rate
from benchmarks.series import Kind, Measured, Plan

THREADS = 8
PROCESSES = (1, 2)


def plan(database: Database, *, messages: int) -> Plan:
    """`run_sqlqueue_worker` with one and with two processes; they begin together and empty one queue."""
    kinds = [_kind(database, messages, processes) for processes in PROCESSES]
    return Plan("processes", "one process and two", database.name, kinds, {"messages": messages})


def _kind(database: Database, messages: int, processes: int) -> Kind:
    each = THREADS // processes
    name = f"worker, {processes} process{'es' if processes > 1 else ''} of {each} threads"
    return Kind(f"processes.{processes}", name, lambda: run(database, messages, processes, each))


def run(database: Database, messages: int, processes: int, threads: int, *arguments: str, work: str | None = None) -> Measured:
    """Empty the queue with this number of processes and threads in each; `arguments` are passed to the command. The handler does
    the `work`, if any."""
    database.fill(messages)
    command = ["run_sqlqueue_worker", "--until-empty", "--processes", str(processes), "--max-concurrency", str(threads), *arguments]
    environment = database.environment() | ({} if work is None else {handlers.WORK: work})
    with tempfile.TemporaryDirectory(prefix="sqlq-times-") as directory:
        answer = subprocess.run(
            [sys.executable, "-m", "django", *command],
            env=environment | {handlers.DIRECTORY: directory, handlers.TOGETHER: str(processes)},
            check=False,
            capture_output=True,
            text=True,
        )
        if answer.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {answer.returncode}: {answer.stderr[-2000:]}")
        times: list[list[float]] = [json.loads(file.read_text()) for file in Path(directory).glob("*.json")]
    received = sum(map(len, times))
    if received != messages:
        raise RuntimeError(f"{processes} processes received {received} messages, expected {messages}: {answer.stderr[-2000:]}")
    return Measured(rate(*times))
