"""Count the modules and functions of the package that one message passes through: `python benchmarks/hops.py --help`.

With `sys.setprofile`, it counts what a developer has to read to follow one message:

- receive: from one call of a handler that does nothing to its next call in the same thread. The worker is a real
  `run_sqlqueue_worker` with the default settings, one thread and a full queue; the body arrives as a dict.
- send: one `send()` of a message type with a route, outside a transaction, in a process that has already sent 40 messages.

The handler itself switches the profile on and off, so the script depends on public names and commands only.
`Recorder` in `hops_process.py` defines what counts as a function and a call.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

# When started as a file, Python searches the folder of the file instead of this one.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.databases import QUEUE, Database, PostgreSQL, SQLite
from benchmarks.hops_process import RECORDED, RESULT, WARM_UP, Crossing, Function
from tests.support.processes import end
from tests.support.waiting import poll_until

STEADY = 5
"""How many crossings in a row must be equal to count as the steady state."""

_MODULE = "benchmarks.hops_process"
_PATIENCE_SECONDS = 60.0


def receive(database: Database) -> Crossing:
    """The steady state of receiving a message. RuntimeError if the worker ends early or reaches no steady state."""
    database.fill(WARM_UP + RECORDED + 10)
    with tempfile.TemporaryDirectory(prefix="sqlq-hops-") as directory:
        result, log = Path(directory) / "hops.json", Path(directory) / "log"
        environment = database.environment(QUEUE, HANDLERS=[_MODULE]) | {RESULT: str(result)}
        command = [sys.executable, "-m", "django", "run_sqlqueue_worker", "--max-concurrency", "1"]
        with log.open("wb") as output, subprocess.Popen(command, env=environment, stderr=output) as worker:

            def is_recorded() -> bool:
                if worker.poll() is not None:
                    raise RuntimeError(f"the worker ended with {worker.returncode}: {log.read_text()[-2000:]}")
                return result.exists()

            try:
                poll_until(is_recorded, _PATIENCE_SECONDS, what=f"{RECORDED} messages are recorded")
            finally:
                end(worker)
        return steady(_crossings(result.read_text(encoding="utf-8")))


def send(database: Database) -> Crossing:
    """The steady state of sending a message. RuntimeError if there is none, CalledProcessError if the sender fails."""
    command = [sys.executable, "-m", _MODULE]
    sent = subprocess.run(command, env=database.environment(), check=True, stdout=subprocess.PIPE, text=True)
    return steady(_crossings(sent.stdout))


def steady(crossings: Sequence[Crossing]) -> Crossing:
    """The first crossing that occurs STEADY times in a row; RuntimeError if none does."""
    for number, first in enumerate(crossings):
        row = crossings[number : number + STEADY]
        if len(row) == STEADY and all(each == first for each in row):
            return first
    numbers = [(len(each.modules), len(each.functions), each.calls) for each in crossings]
    raise RuntimeError(f"no {STEADY} messages in a row crossed the same functions: modules, functions and calls were {numbers}")


def _crossings(text: str) -> list[Crossing]:
    return [_crossing(each) for each in json.loads(text)]


def _crossing(found: dict[str, Any]) -> Crossing:
    called, outer = ([Function(**each) for each in found[key]] for key in ("called", "outer"))
    return Crossing(called, outer, found["calls"])


def report(name: str, crossing: Crossing) -> str:
    """The numbers, then each function in the order of its first call. Outer functions come first, marked with `*`."""
    lines = [f"{name}: {len(crossing.modules)} modules, {len(crossing.functions)} functions, {crossing.calls} calls"]
    width = max(len(each.module) for each in crossing.functions)
    for number, each in enumerate(crossing.functions, start=1):
        mark = "*" if each in crossing.outer else " "
        lines.append(f"{number:4} {mark} {each.module:{width}}  {each.name}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--database", choices=("sqlite", "postgresql"), default="sqlite", help="database of the queue (default: %(default)s)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sqlq-bench-") as directory:
        opened = SQLite(Path(directory)) if options.database == "sqlite" else PostgreSQL(durable=False)
        with closing(opened) as database:
            print(report(f"receive, {database.name}", receive(database)), end="\n\n")
            print(report(f"send, {database.name}", send(database)))


if __name__ == "__main__":
    main()
