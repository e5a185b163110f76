"""Measure speed and memory: `make bench`, or `python benchmarks/run.py --help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# When started as a file, Python searches the folder of the file instead of this one.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import (
    affinity,
    announcing,
    backlog,
    claim_checks,
    coroutines,
    delayed,
    hooks,
    idle,
    keys,
    memory,
    priorities,
    processes,
    receive,
    sagas,
    sending,
    several,
    stages,
)
from benchmarks.databases import Database, PostgreSQL, SQLite
from benchmarks.goals import verdicts
from benchmarks.report import as_json, machine, markdown
from benchmarks.series import Plan, Section, take_turns

RESULTS = Path(__file__).resolve().parent / "results"
PARTS = (
    "receive", "processes", "affinity", "backlog", "several", "priorities", "sagas", "claim-checks", "hooks", "async",
    "idle", "announcing", "memory", "send", "delayed", "keys", "profile",
)  # fmt: skip
PROCESSES_FACTOR = 3
"""Factor for the number of messages if two processes do not start at the same moment."""
_DURABILITIES = {"durable": [True], "not-durable": [False], "both": [True, False]}

_EPILOG = """\
examples:
  benchmarks/run.py                                      all parts, like make bench
  benchmarks/run.py --part receive --rounds 7 --messages 20000
  benchmarks/run.py --part memory --memory-messages 1000000
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options; a wrong one exits with code 2 and one line."""
    parser = argparse.ArgumentParser(
        description="Measure receiving, sending and memory on a temporary PostgreSQL server and a SQLite file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="measure only this part; may be repeated")
    parser.add_argument(
        "--durability",
        choices=tuple(_DURABILITIES),
        default="both",
        help="whether commits of PostgreSQL wait for the disk; parts with one database use the durable one (default both)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each variant, which take turns (default 3)")
    parser.add_argument(
        "--messages", type=int, default=6_000, metavar="N", help="messages per turn, more for batches (default 6000)"
    )
    parser.add_argument(
        "--memory-messages", type=int, default=60_000, metavar="N", help="messages of the memory part (default 60000)"
    )
    parser.add_argument(
        "--idle-messages", type=int, default=100, metavar="N", help="messages of the idle part (default %(default)s)"
    )
    parser.add_argument(
        "--depth",
        type=int,
        action="append",
        metavar="N",
        help="waiting messages of the backlog part (default 1000, 100000, 1000000)",
    )
    parser.add_argument(
        "--dead-rows", type=int, default=backlog.DEAD_ROWS, metavar="N", help="dead rows of the backlog part (default %(default)s)"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="directory of the results (default: benchmarks/results)"
    )
    options = parser.parse_args(arguments)
    if min(options.rounds, options.dead_rows, options.idle_messages, *(options.depth or [1])) < 1:
        parser.error("--rounds, --depth, --dead-rows and --idle-messages must be 1 or more")
    if options.messages < 100 or options.memory_messages < memory.SAMPLES:
        parser.error(f"--messages must be 100 or more, --memory-messages {memory.SAMPLES} or more")
    return options


@dataclass(slots=True)
class Bench:
    """One run: the databases and the results so far."""

    options: argparse.Namespace
    servers: list[PostgreSQL]
    file: SQLite
    minutes: dict[str, float]
    """What each part took."""

    def sections(self) -> Iterable[Section]:
        """Run part after part; within a part all kinds take turns on all of its databases."""
        parts = self.options.part or PARTS
        for part in PARTS:
            if part in parts:
                begin = time.monotonic()
                yield from self._sections(part)
                self.minutes[part] = round((time.monotonic() - begin) / 60, 1)
                log_line(f"{part} took {self.minutes[part]} minutes")

    def _sections(self, part: str) -> list[Section]:
        options, main = self.options, self.servers[0]
        messages, rounds = options.messages, options.rounds
        if part == "idle":
            return [idle.measure(main, count_messages=options.idle_messages, log_line=log_line)]
        if part == "memory":
            return [memory.measure(main, messages=options.memory_messages, log_line=log_line)]
        if part == "profile":
            return [stages.measure(each, messages=messages, rounds=rounds, log_line=log_line) for each in self.servers]
        everywhere: list[Database] = [*self.servers, self.file]
        depths = tuple(options.depth or backlog.DEPTHS)
        plans: dict[str, Callable[[], list[Plan]]] = {
            "receive": lambda: [receive.plan(each, messages=messages) for each in everywhere],
            "send": lambda: [sending.plan(each, messages=messages) for each in everywhere],
            "delayed": lambda: [delayed.plan(each, due=messages) for each in everywhere],
            "keys": lambda: [keys.plan(main, count_messages=messages)],
            "announcing": lambda: [announcing.plan(main, rows=messages)],
            "processes": lambda: [processes.plan(main, messages=messages * PROCESSES_FACTOR)],
            "affinity": lambda: [affinity.plan(main, messages=messages * PROCESSES_FACTOR)],
            "priorities": lambda: [priorities.plan(each, messages=messages) for each in everywhere],
            "claim-checks": lambda: [claim_checks.plan(each) for each in everywhere],
            "several": lambda: [several.plan(main, messages=messages)],
            "sagas": lambda: [sagas.plan(main, messages=messages)],
            "hooks": lambda: [hooks.plan(main, messages=messages)],
            "async": lambda: [coroutines.plan(main, messages=messages)],
            "backlog": lambda: [backlog.plan(main, messages=messages, depths=depths, dead_rows=options.dead_rows)],
        }
        return take_turns(plans[part](), rounds, log_line)


def log_line(line: str) -> None:
    """Print the progress: the whole run takes minutes."""
    print(f"  {line}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> tuple[list[Section], dict[str, Any]]:
    """Measure all requested parts and the facts of the machine."""
    facts = machine()
    begin = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sqlq-bench-")))
        servers = [stack.enter_context(closing(PostgreSQL(durable=each))) for each in _DURABILITIES[options.durability]]
        facts["postgresql"] = servers[0].version
        file = stack.enter_context(closing(SQLite(directory)))
        minutes: dict[str, float] = {}
        sections = list(Bench(options, servers, file, minutes).sections())
    facts["load after"] = os.getloadavg()
    facts["minutes"] = f"{(time.monotonic() - begin) / 60:.1f}: " + ", ".join(f"{part} {each}" for part, each in minutes.items())
    return sections, facts


def write(options: argparse.Namespace, sections: Sequence[Section], facts: dict[str, Any]) -> str:
    """Write the two files of a run, named after its day and part; returns the text of the report."""
    database = "PostgreSQL, not durable" if options.durability == "not-durable" else "PostgreSQL, durable"
    found = verdicts(sections, database)
    text = markdown(sections, found, facts)
    options.results.mkdir(parents=True, exist_ok=True)
    name = f"{datetime.now(UTC):%Y-%m-%d}-{'-'.join(options.part) if options.part else 'all'}"
    (options.results / f"{name}.md").write_text(text, encoding="utf-8")
    document = json.dumps(as_json(sections, found, facts), indent=2, ensure_ascii=False) + "\n"
    (options.results / f"{name}.json").write_text(document, encoding="utf-8")
    log_line(f"written to {options.results / name}.md and .json")
    return text


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write the files; returns 0 even if a goal is missed, because a benchmark is not a test."""
    options = parse(arguments)
    sections, facts = measure(options)
    print(write(options, sections, facts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
