"""The readable tables of a run."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.peers.adapters.serving import CHUNK as CHUNK
from benchmarks.peers.results import COLUMNS, Found, Run, goals, percentile

_NOTHING = "–"


def markdown(run: Run) -> str:
    """The whole report."""
    facts = [f"- {name}: {_fact(value)}" for name, value in (run.machine | run.run).items() if value != ""]
    parts = [
        "# Comparison with other queues", facts, "## Speed", speed(run), "## Idle workers", rest(run),
        "## Killed workers", killed(run),
        "## Guarantees", promises(run), "## Settings", settings(run),
        *(part for heading, lines in missing(run) for part in (f"## {heading}", lines)), "## Goals", goal_table(run),
    ]  # fmt: skip
    return "\n\n".join(part if isinstance(part, str) else "\n".join(part) for part in parts) + "\n"


def speed(run: Run) -> list[str]:
    """A row for each variant of a worker: messages per second, median and range of the rounds."""
    rows = [["queue, messages/s", "1 at once", "8 at once", "in batches", "sending, one by one", "sending in bulk"]]
    for peer in _measured(run):
        for number, row in enumerate(peer.rates):
            sending = [peer.sending.get(way, []) if number == 0 else [] for way in ("one", "bulk")]
            rows.append([row, *(_rates(peer.values(column, row)) for column in COLUMNS), *map(_rates, sending)])
    return _table(rows)


def rest(run: Run) -> list[str]:
    """An idle worker for 8 concurrent messages."""
    rows = [["queue", "latency, p50 ms", "p99 ms", "transactions/s", "memory of the worker, MB", "processes"]]
    for peer in _measured(run):
        if found := peer.rest:
            milliseconds = found["milliseconds"]
            transactions = _NOTHING if peer.broker else f"{found['transactions']:.1f}"
            times = [f"{percentile(milliseconds, percent):,.1f}" for percent in (50, 99)]
            rows.append([peer.name, *times, transactions, f"{found['megabytes']:.0f}", str(found["processes"])])
    return _table(rows)


def killed(run: Run) -> list[str]:
    """The outcomes of messages whose worker was killed."""
    rows = [["queue", "kills", "messages", "lost", "done twice", "handled again after, s: median (max)", "never handled again"]]
    for peer in _measured(run):
        if found := peer.killed:
            again = found["again"]
            seconds = f"{_seconds(median(again))} ({_seconds(max(again))})" if again else _NOTHING
            counts = [str(found[name]) for name in ("kills", "messages", "lost", "twice")]
            rows.append([peer.name, *counts, seconds, f"{found['never']} in {found['waited']:.0f} s" if found["never"] else "0"])
    return _table(rows)


def promises(run: Run) -> list[str]:
    """The documented guarantees of each peer."""
    rows = [
        ["queue", "send commits with the sender's rows", "receive commits with the handler's rows", "after its worker is killed"]
    ]
    rows += [[peer.name, peer.promise["sending"], peer.promise["work"], peer.promise["killed"]] for peer in run.peers]
    return _table(rows)


def settings(run: Run) -> list[str]:
    """The settings and releases of each peer."""
    lines = []
    for peer in _measured(run):
        releases = [f"{name} {version}" for name, version in peer.versions.items()] + ([peer.broker] if peer.broker else [])
        lines.append(f"- {peer.name}: {peer.settings} ({', '.join(releases)})")
    return lines


def goal_table(run: Run) -> list[str]:
    """The goals and the results."""
    return _table([["goal", "measured", "met"], *([each.goal, each.measured, each.word] for each in goals(run.peers))])


def missing(run: Run) -> list[tuple[str, list[str]]]:
    """The section about missing measurements, if any."""
    lines = [f"- {peer.name}: {peer.missing}" for peer in run.peers if peer.missing]
    for peer in run.peers:
        lines += [f"- {peer.name}: {problem}" for problem in (*peer.problems, peer.killed.get("problem")) if problem]
    return [("What could not be measured", lines)] if lines else []


def _measured(run: Run) -> list[Found]:
    return [peer for peer in run.peers if not peer.missing]


def _rates(values: Sequence[float]) -> str:
    if not values:
        return _NOTHING
    middle = f"{median(values):,.0f}"
    return f"{middle} ({min(values):,.0f}–{max(values):,.0f})" if len(values) > 1 else middle


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _fact(value: object) -> str:
    return ", ".join(f"{each:.2f}" for each in value) if isinstance(value, list | tuple) else str(value)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *others = [f"| {' | '.join(row)} |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *others]
