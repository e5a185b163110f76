"""Measure the speed of the admin pages: `python benchmarks/dashboard.py --help`.

A temporary PostgreSQL is filled with queues and failed messages in groups, which the index reads as a worker does. Every page is
then requested repeatedly through Django's test client, which covers all the work of the site except for the network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

# When started as a file, Python searches the folder of the file instead of this one.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.dashboard_beside import measure_beside
from benchmarks.dashboard_retry import RETRIED, measure_retry
from benchmarks.databases import ROOT, PostgreSQL
from benchmarks.report import machine

GOAL_MS = 250
GOAL_STATEMENTS = 15
GOAL_RATIO = 0.97
GOAL_FIRST_SECONDS = 1.0
# Keyed by whether site and browsers run on other processors than worker and server.
_PLACES = {"all on the same processors": False, "worker and server on one processor, site and browsers on the others": True}


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure the pages of the admin on a temporary PostgreSQL server.")
    parser.add_argument("--tables", type=int, default=200, help="queue tables (default %(default)s)")
    parser.add_argument("--messages", type=int, default=1_000_000, help="waiting messages (default %(default)s)")
    parser.add_argument("--failures", type=int, default=100_000, help="failed messages (default %(default)s)")
    parser.add_argument("--groups", type=int, default=10_000, help="failure groups (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="requests of each page (default %(default)s)")
    parser.add_argument(
        "--browsers", type=int, default=10, help="browsers that refresh pages while a worker runs (default %(default)s)"
    )
    parser.add_argument(
        "--received", type=int, default=60_000, help="messages that the worker receives in each turn (default %(default)s)"
    )
    parser.add_argument("--turns", type=int, default=6, help="turns with and without browsers (default %(default)s)")
    options = parser.parse_args()
    # Each has a queue and a delayed table; the remaining tables belong to other projects.
    endpoints = {"SQLQUEUE_BENCH_ENDPOINTS": str(options.tables // 3)}
    with closing(PostgreSQL(durable=True)) as database:
        environment = {**os.environ, **database.environment(), **endpoints}
        found = measure(environment, options)
        load = {"browsers": options.browsers, "messages": options.received, "threads": 8, "rounds": options.turns}
        beside = {name: measure_beside(database, environment, apart=apart, **load) for name, apart in _PLACES.items()}
        retried = measure_retry(database, environment, [f"Shop{number}" for number in range(RETRIED)])
    facts = "; ".join(f"{name}: {value}" for name, value in machine().items())
    what = f"{found['tables']} queue tables, {options.messages} messages, {options.failures} failed ones in {options.groups} groups"
    print(f"{facts}\n\n{what}\n")
    print(f"indexed at {found['rate']:,.0f} rows a second; a scan that finds nothing: {found['scan_ms']:.1f} ms\n")
    print("| Page | median ms | p95 ms | statements | scans of queue tables | slowest statement ms |")
    print("|---|---|---|---|---|---|")
    for page in found["pages"]:
        figures = (page["median"], page["p95"], page["statements"], page["scans"], page["slowest"])
        print(f"| {page['path']} | {' | '.join(f'{figure:.0f}' for figure in figures)} |")
    missed = [each["path"] for each in found["pages"] if is_missed(each)]
    goal = f"slower than {GOAL_MS} ms, more than {GOAL_STATEMENTS} statements, or a scan of a queue table"
    print(f"\n{goal}: {', '.join(missed) or 'none'}\n")
    for name, measured in beside.items():
        print(f"{name}: {in_words(options.browsers, measured)}\n")
    print(describe_retry(retried))
    return 0


def in_words(browsers: int, beside: dict[str, Any]) -> str:
    """Describe the cost of the browsers for the worker."""
    turns = ", ".join(f"{ratio:.3f}" for ratio in beside["ratios"])
    return (
        f"{browsers} browsers that refresh each second leave a worker {beside['ratio']:.3f} of its rate (goal: {GOAL_RATIO}; "
        f"turns: {turns}; {beside['alone']:,.0f} messages a second alone)\n"
        f"they got {beside['requests']} answers, {beside['unchanged']:.0%} of them 304, median {beside['median_ms']:.0f} ms"
    )


def describe_retry(retried: dict[str, Any]) -> str:
    """Describe the duration of the retry of everything."""
    rate = retried["done"] / retried["seconds"]
    return (
        f"retry of {retried['total']}: the first {retried['first']} after {retried['first_seconds']:.2f} s "
        f"(goal: {GOAL_FIRST_SECONDS} s), "
        f"{rate:,.0f} a second with a kill -9 of the worker at {retried['killed_at']} and the time until another took over; "
        f"each of {retried['done']} moved once, {retried['skipped']} skipped, {retried['failed']} failed"
    )


def is_missed(page: dict[str, Any]) -> bool:
    """Whether a page misses a goal."""
    return bool(page["p95"] > GOAL_MS or page["statements"] > GOAL_STATEMENTS or page["scans"])


def measure(environment: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Measure in a separate process."""
    arguments = [str(value) for value in (options.tables, options.messages, options.failures, options.groups, options.rounds)]
    command = [sys.executable, "-m", "benchmarks.dashboard_process", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    sys.exit(main())
