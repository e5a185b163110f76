"""How fast the pages of the failed messages are: `python benchmarks/dashboard.py --help`.

A throw-away PostgreSQL gets an error queue of so many failed messages in so many groups, which the index reads as a worker does.
Then every page is asked for again and again, through Django's test client: all that the site does for it but for the network.
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

# Started as a file, Python looks beside the file and not here.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.databases import ROOT, PostgreSQL
from benchmarks.report import machine

GOAL_MS = 300
GOAL_STATEMENTS = 15


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measures the pages of the failed messages on a throw-away PostgreSQL.")
    parser.add_argument("--failures", type=int, default=100_000, help="failed messages (default %(default)s)")
    parser.add_argument("--groups", type=int, default=10_000, help="groups by exception (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="how often each page is asked for (default %(default)s)")
    options = parser.parse_args()
    with closing(PostgreSQL(durable=True)) as database:
        found = measure(database, options)
    facts = "; ".join(f"{name}: {value}" for name, value in machine().items())
    print(f"{facts}\n\n{options.failures} failed messages in {options.groups} groups\n")
    print(f"indexed at {found['rate']:,.0f} rows a second; a look that finds nothing: {found['look_ms']:.1f} ms\n")
    print("| Page | median ms | p95 ms | statements | slowest statement ms |")
    print("|---|---|---|---|---|")
    for page in found["pages"]:
        print(f"| {page['path']} | {page['median']:.0f} | {page['p95']:.0f} | {page['statements']} | {page['slowest']:.0f} |")
    missed = [each["path"] for each in found["pages"] if each["p95"] > GOAL_MS or each["statements"] > GOAL_STATEMENTS]
    print(f"\nslower than {GOAL_MS} ms or more than {GOAL_STATEMENTS} statements: {', '.join(missed) or 'none'}")
    return 0


def measure(database: PostgreSQL, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a process of its own."""
    arguments = [str(value) for value in (options.failures, options.groups, options.rounds)]
    environment = {**os.environ, **database.environment()}
    command = [sys.executable, "-m", "benchmarks.dashboard_process", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    sys.exit(main())
