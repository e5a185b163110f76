"""The search of the admin, over full queues and an archive: the time of one page, from the request to the last byte.

    python -m benchmarks.search                                               # 100,000 messages, 1,000,000 archived
    python -m benchmarks.search --messages 1000000 --archived 10000000        # the full size

One queue holds half of the messages, eleven others the rest. The searches take turns in each round; a cell is the median and the
range. The archive of each size is created once and kept (2.9 GB for 10,000,000 messages); the file cache is warm. Databases and
archive are in the temporary directory.
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
    parser.add_argument("--messages", type=int, default=100_000, help="waiting messages (default %(default)s)")
    parser.add_argument("--archived", type=int, default=1_000_000, help="archived messages; 0: no archive (default %(default)s)")
    parser.add_argument("--days", type=int, default=30, help="days that the archive spans (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each search (default %(default)s)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "sqlqueue-lakes",
        help="directory of the archives, which are kept",
    )
    options = parser.parse_args()
    os.environ["SQLQUEUE_BENCH_ENDPOINTS"] = str(OTHERS)
    if options.archived:
        os.environ["SQLQUEUE_BENCH_LAKE"] = str(_archive(options.folder, options.archived, options.days))
    with tempfile.TemporaryDirectory() as folder:
        makers: tuple[Callable[[], Database], ...] = (lambda: PostgreSQL(durable=False), lambda: SQLite(Path(folder)))
        for make in makers:
            with closing(make()) as database:
                _fill(database, options.messages)
                found = run_child("benchmarks.search_process", database.environment(), str(options.rounds))
                print(f"\n{database.name}: {options.messages:,} messages, {options.archived:,} archived; seconds\n")
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
