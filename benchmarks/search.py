"""The search of the admin: one page from the request to the last byte, over full queues and an archive.

    python -m benchmarks.search                                               # 100,000 messages, 1,000,000 archived
    python -m benchmarks.search --messages 1000000 --archived 10000000        # the full size

Half of the messages are in one queue, the others in eleven. Each search takes its turn in each round; a cell is the median and the
range. The archive is made once for each size and kept (2.9 GB for 10,000,000 messages); the cache of files is warm. Databases and
archive are in the folder of temporary files.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.databases import QUEUE, Database, PostgreSQL, SQLite, run_child

OTHERS: Final = 11


def main() -> None:
    """Make the archive, fill each database, measure, print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--archived", type=int, default=1_000_000, help="messages of the archive; 0: none")
    parser.add_argument("--days", type=int, default=30, help="of the archive")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sqlqueue-lakes")
    asked = parser.parse_args()
    os.environ["SQLQUEUE_BENCH_ENDPOINTS"] = str(OTHERS)
    if asked.archived:
        os.environ["SQLQUEUE_BENCH_LAKE"] = str(_archive(asked.folder, asked.archived, asked.days))
    with tempfile.TemporaryDirectory() as folder:
        makers: tuple[Callable[[], Database], ...] = (lambda: PostgreSQL(durable=False), lambda: SQLite(Path(folder)))
        for make in makers:
            with closing(make()) as database:
                _fill(database, asked.messages)
                found = run_child("benchmarks.search_process", database.environment(), str(asked.rounds))
                print(f"\n{database.name}: {asked.messages:,} messages, {asked.archived:,} archived; seconds\n")
                print("| search | median | range | found | statements |\n|---|---|---|---|---|")
                for name, each in found.items():
                    took = f"{median(each['seconds']):.2f} | {min(each['seconds']):.2f}–{max(each['seconds']):.2f}"
                    print(f"| {name} | {took} | {each['found']} | {each['statements']} |", flush=True)


def _archive(folder: Path, rows: int, days: int) -> Path:
    # By the name that benchmarks/lake_search.py gives to the same lake.
    lake = folder / f"as-written-{rows}-{days}"
    if not lake.exists():
        from benchmarks.lake_making import make_lake  # noqa: PLC0415 - needs pyarrow

        begun = time.monotonic()
        made = lake.with_suffix(".making")
        make_lake(made, rows, days=days)
        made.rename(lake)
        print(f"{lake.name}: made in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return lake


def _fill(database: Database, messages: int) -> None:
    each = messages // 2 // OTHERS
    for number in range(OTHERS):
        database.fill(each, f"Shop{number}")
    database.fill(messages - each * OTHERS, QUEUE)


if __name__ == "__main__":
    main()
