"""Make docs/explanation/peers.md from the newest run that is kept: `python -m benchmarks.peers.page`.

No number of that page is written by hand, and none of its words depends on a number.
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
# Beside other queues

sqlqueue beside the queues that a Python team would look at first, on one machine and in one run.
`make bench-peers` measures all of this on yours. This page is made by `python -m benchmarks.peers.page` from
[`benchmarks/results/{name}`](../../benchmarks/results/{name}), which holds every single number.

{facts}

What is compared:

- One PostgreSQL with its own defaults (`fsync` and `synchronous_commit` on), a database for each queue.
  The brokers of celery are those of the system's packages.
- The same message for all, a body of 1 KB of JSON, and the same handler, which notes when it was called and does nothing else.
  A real handler takes longer, and the share of the queue falls.
- Each queue's own worker and its own functions to send, with the settings that its documentation advises. They are listed below.
- Everything takes turns, round by round. Client and server share the processors. Rates move with the machine and with the hour:
  trust the ratios within a table. In brackets are the least and the most of the rounds.

## Speed

Messages a second that one worker handles from a queue that is full, and that one process sends.

{speed}

"8 at once" is threads, tasks of an event loop or processes, as the worker has it.
With `--cpu-affinity auto` each process of ours [stays on one processor](performance.md#one-processor-for-each-process), which is
not its default; the goals below are those of one such process.
Sending in bulk is one statement for {chunk} messages where there is such a thing, else one transaction around them;
celery has neither.

## At rest

A worker for 8 messages at once while nothing comes. The time is that from the call that sends to the handler, of {idle} messages;
the memory is the sum of all processes of the worker, shared pages counted for each.
All rest at the same time, and messages come by turns.

{rest}

## Killed

Two workers run. The one that takes a marked message is ended by `kill -9` with all of its processes, {kills} times for each queue:
half of the kills come before the handler has left its row in the database, half after that and before it returns.
The other worker goes on, so what a new process needs to start is in none of the times.

{killed}

*Lost* is a message without a row of its handler when the wait was over (what Redis holds would come after an hour). *Done twice*
is one with two rows: its handler's transaction was committed by the first worker, and the second did it again.
That is what handlers must be made for wherever a message and its work do not commit together.

## What each promises

{promises}

## Settings and releases

{settings}
{missing}
## Goals

{goals}
"""


def newest(directory: Path = RESULTS) -> Path:
    """The file of the last run. FileNotFoundError if none is kept."""
    found = sorted(directory.glob("*-peers.json"))
    if not found:
        raise FileNotFoundError(f"no run of make bench-peers is kept in {directory}")
    return found[-1]


def text(file: Path) -> str:
    """The page as it is made of that run."""
    run = run_of(json.loads(file.read_text("utf-8")))
    lines = {
        "speed": report.speed(run), "rest": report.rest(run), "killed": report.killed(run), "promises": report.promises(run),
        "settings": report.settings(run), "goals": report.goal_table(run), "facts": _facts(run),
    }  # fmt: skip
    missing = [f"\n## {heading}\n\n{_joined(told)}\n" for heading, told in report.missing(run)]
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
    print(f"{PAGE.relative_to(ROOT)} is made from {newest().name}")
