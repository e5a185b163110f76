"""Schedules of a worker: one look when nothing is due, and the time of each message when all are.

    python -m benchmarks.schedules --schedules 1000 --rounds 5

Without a schedule, with schedules of the settings, and with as many in the database. A cell is the median and the range of the
processor time of the worker, without that of the server.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from benchmarks.databases import Database, PostgreSQL, SQLite, install, run_child


def main() -> None:
    """Measure on each database, print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000, help="schedules (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions (default %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        makers: tuple[Callable[[], Database], ...] = (lambda: PostgreSQL(durable=False), lambda: SQLite(Path(folder)))
        for make in makers:
            with closing(make()) as database:
                install(database)
                chosen = (str(options.schedules), str(options.rounds))
                found = run_child("benchmarks.schedules_process", database.environment(), *chosen)
                print(f"\n{database.name}: {options.schedules:,} schedules; milliseconds of the processor\n")
                print("| | one look | a message |\n|---|---|---|")
                for name, each in found.items():
                    cells = (f"{median(took):.2f} ({min(took):.2f}–{max(took):.2f})" for took in each.values())
                    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
