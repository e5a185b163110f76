"""The limit: pgbench runs the prepared receive of the worker in C, each in its own transaction, and does nothing with the rows.

pgbench is searched for in SQLQUEUE_BENCH_PGBENCH (a path), next to the server's programs, in /usr/lib/postgresql and in PATH. If it
is missing, nothing is installed: a loop of libpq replaces it, and the table notes that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from benchmarks.databases import QUEUE, PostgreSQL, run_child
from benchmarks.recording import LOWEST, Recording
from benchmarks.series import Measured

VARIABLE = "SQLQUEUE_BENCH_PGBENCH"
MISSING = "no pgbench (apt-get install postgresql, or name one in SQLQUEUE_BENCH_PGBENCH): libpq by psycopg's pgconn"

# A client ahead of the others skips rows that they have not received yet; this number of rows is left at the end.
_SPARE = 64
TPS = re.compile(r"tps = ([0-9.]+) \(without initial connection time\)")
"""The line in which pgbench reports the transactions per second."""


def find_pgbench(beside: Path) -> str | None:
    """The path of a pgbench that runs; RuntimeError if the variable names one that does not."""
    named = os.environ.get(VARIABLE)
    if named:
        if not _runs(named):
            raise RuntimeError(f"{VARIABLE} names {named!r}, which does not run; give the path of a pgbench")
        return named
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"), key=lambda path: -_release(path))
    candidates = [beside / "pgbench", *system, Path(shutil.which("pgbench") or "/nowhere/pgbench")]
    return next((str(path) for path in candidates if _runs(str(path))), None)


def _release(path: Path) -> int:
    digits = re.search(r"\d+", path.parent.parent.name)
    return int(digits.group()) if digits else 0


@cache
def _runs(program: str) -> bool:
    try:
        return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def script_of(recording: Recording, *, rows: int) -> str:
    """The script that each client repeats.

    Every client counts its own receives and derives from that the position of the others, less a safe distance. This replaces the
    worker's bound without fetching a number from the row, which pgbench can do only for rows whose columns all have names.
    """
    text = recording.prepared_statement.replace(LOWEST, ":lowest")
    return (
        "\\set received :received + 1\n"
        f"\\set lowest greatest(:first, :first + (:received * :clients - {_SPARE}) * {rows})\n"
        f"{text};\n"
    )


def pgbench(program: str, database: PostgreSQL, recording: Recording, *, messages: int, clients: int, rows: int) -> Measured:
    """Messages per second with this number of clients."""
    each = max(1, messages // (clients * rows))
    database.fill(each * clients * rows + 2 * _SPARE * rows)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(script_of(recording, rows=rows))
        script.flush()
        answer = subprocess.run(
            [program, "--no-vacuum", "--protocol=prepared", f"--client={clients}", f"--jobs={min(clients, os.cpu_count() or 1)}",
             f"--transactions={each}", f"--file={script.name}", "--define=received=0", f"--define=clients={clients}",
             f"--define=first={database.lowest(QUEUE)}", database.conninfo()],
            env={**os.environ, "PGOPTIONS": "-c enable_seqscan=off -c enable_sort=off"},
            check=False, capture_output=True, text=True,
        )  # fmt: skip
    match = TPS.search(answer.stdout)
    if answer.returncode != 0 or match is None:
        raise RuntimeError(f"pgbench failed with {answer.returncode}: {answer.stdout[-500:]}{answer.stderr[-500:]}")
    left = database.depth()
    if left != 2 * _SPARE * rows:
        raise RuntimeError(f"pgbench left {left} messages, expected {2 * _SPARE * rows}: it did not receive with each statement")
    return Measured(float(match.group(1)) * rows)


def libpq(database: PostgreSQL, recording: Recording, *, messages: int, clients: int) -> Measured:
    """The same without pgbench: the prepared statement below psycopg's cursors, with `clients` threads."""
    database.fill(messages)
    found = run_child(
        "benchmarks.plain_loop", database.environment(), "libpq", str(clients), database.conninfo(), recording.as_json()
    )
    if found["messages"] != messages:
        raise RuntimeError(f"the loop of libpq received {found['messages']} messages, expected {messages}")
    return Measured(found["rate"], found["processor_microseconds"])
