"""A peer in the same run: procrastinate, the nearest relative in Python, installed from PyPI into an environment of its own.

It does other things than we do: a job is locked by one transaction, run, and finished by another, so a handler's rows do not commit
with it; and finished jobs stay in the table, as is its default. The numbers say what a project would see, not which code is better.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.databases import PostgreSQL
from benchmarks.messages import body
from benchmarks.receive import worker
from benchmarks.series import Kind, Measured, Plan, Section, take_turns

PROCRASTINATE = "procrastinate>=3.10,<4"


def measure(database: PostgreSQL, *, messages: int, rounds: int, say: Callable[[str], None]) -> list[Section]:
    """The worker beside procrastinate's with concurrency 8, no-op tasks, the same body, as many messages."""
    with tempfile.TemporaryDirectory(prefix="sqlq-peers-") as directory:
        python = _environment(Path(directory))
        kinds = [
            Kind("peers.worker", "worker, 8 threads", lambda: worker(database, messages=messages, threads=8)),
            Kind("peers.procrastinate", "procrastinate, concurrency 8", lambda: Measured(_run_peer(python, database, messages))),
        ]
        return take_turns([Plan("peers", "beside a peer", database.name, kinds, {"messages": messages})], rounds, say)


def _environment(directory: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python = directory / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--quiet", PROCRASTINATE, "psycopg[binary]"], check=True)
    return python


def _run_peer(python: Path, database: PostgreSQL, rows: int) -> float:
    script = Path(__file__).with_name("peer_procrastinate.py")
    answer = subprocess.run(
        [str(python), str(script), database.conninfo(), str(rows), json.dumps(body())],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    found = json.loads(answer.stdout.strip().splitlines()[-1])
    if found["messages"] != rows:
        raise RuntimeError(f"procrastinate ran {found['messages']} jobs, expected {rows}")
    return float(found["rate"])
