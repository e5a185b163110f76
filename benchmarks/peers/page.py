"""Generate docs/explanation/peers.md from the newest stored run: `python -m benchmarks.peers.page`.

The numbers of the page come from that run, and its text does not depend on them.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.databases import ROOT
from benchmarks.peers import report
from benchmarks.peers.results import Run, run_of
from benchmarks.run import RESULTS

PAGE = ROOT / "docs" / "explanation" / "peers.md"

_TEXT = """\
# Comparison with other queues

This page compares sqlqueue with the queues that a Python team is likely to consider, measured on one machine in one run.
Run `make bench-peers` to repeat it on yours. `python -m benchmarks.peers.page` generates the page from
[`benchmarks/results/{name}`](../../benchmarks/results/{name}), which contains every measured value.

{facts}

How it was measured:

- All queues use one PostgreSQL server with its default settings (`fsync` and `synchronous_commit` on), each in its own database.
  Celery's brokers come from the packages of the system.
- All queues process the same message, a JSON body of 1 KB, with the same handler, which only records when it was called.
  With a real handler, the queue accounts for a smaller share of the time.
- Each queue uses its own worker and its own functions for sending, with the settings that its documentation recommends
  ([listed below](#settings-and-releases)).
- The queues take turns, round by round. Client and server share the processors. Rates vary with the machine and the time of day:
  compare ratios within a table. The range in brackets covers all rounds.

## Speed

Messages per second that one worker handles from a full queue, and that one process sends.

{speed}

"8 at once" means threads, tasks of an event loop or processes, depending on the worker.
By default, a sqlqueue process with many quick messages [stays on one processor](performance.md#one-processor-for-each-process);
with `--cpu-affinity none` it does not. The goals below refer to one process with the defaults.
Bulk sending uses one statement for {chunk} messages where the queue supports it, otherwise one transaction around them.
Celery has neither.

## Idle workers

One worker for 8 messages at once, while no messages arrive. The latency is the time from the call that sends to the handler,
for {idle} messages.
Memory is the sum over all processes of the worker; shared pages count for each of them.
All workers are idle at the same time, and messages are sent to one after the other.

{rest}

## Killed workers

Two workers run. `kill -9` ends the one that has received a marked message, with all of its processes, {kills} times for each
queue: half of the kills before the handler has written its row to the database, half between that and its return.
The other worker continues, so the times do not include the start of a new process.

{killed}

*Lost* messages had no row of their handler at the end of the wait. (Redis would redeliver its messages after an hour.)
Messages *done twice* have two rows: the first worker committed the handler's transaction, and the second handled the message again.
If a queue does not commit a message together with its work, handlers must be prepared for this.

## Guarantees

{promises}

## Settings and releases

{settings}
{missing}
## Goals

{goals}
"""


def newest(directory: Path = RESULTS) -> Path:
    """The file of the last run. FileNotFoundError if there is none."""
    found = sorted(directory.glob("*-peers.json"))
    if not found:
        raise FileNotFoundError(f"{directory} contains no results of make bench-peers: run it first")
    return found[-1]


def text(file: Path) -> str:
    """The page of that run."""
    run = run_of(json.loads(file.read_text("utf-8")))
    lines = {
        "speed": report.speed(run), "rest": report.rest(run), "killed": report.killed(run), "promises": report.promises(run),
        "settings": report.settings(run), "goals": report.goal_table(run), "facts": _facts(run),
    }  # fmt: skip
    missing = [f"\n## {heading}\n\n{_joined(lines)}\n" for heading, lines in report.missing(run)]
    return _TEXT.format(
        name=file.name, chunk=report.CHUNK, idle=run.run["idle_messages"], kills=run.run["kills"], missing="".join(missing),
        **{name: _joined(each) for name, each in lines.items()},
    )  # fmt: skip


def _facts(run: Run) -> list[str]:
    machine = run.machine
    where = f"{machine['cores']} cores ({machine['processor']}), {machine['memory']}, PostgreSQL {machine['postgresql']}"
    how = f"{run.run['rounds']} rounds in {run.run['minutes']:.0f} minutes"
    remark = f" {run.run['remark'][0].upper()}{run.run['remark'][1:]}." if run.run["remark"] else ""
    return [f"Measured on {machine['at'][:10]}: {where}; {how}.{remark}"]


def _joined(lines: list[str]) -> str:
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(text(newest()), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} was generated from {newest().name}")
