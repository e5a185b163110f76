"""The goals of receiving as ratios within one run on a durable PostgreSQL, and whether they are met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.series import Section, Series, ratio

MEMORY_MEGABYTES = 80.0
FLAT_MEGABYTES = 2.0
"""Growth up to this from the second quarter of a run to the last counts as flat: it is the noise of an allocator."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One goal; `met` is None if it was not measured."""

    goal: str
    measured: str
    met: bool | None

    @property
    def word(self) -> str:
        """The verdict as a word for the table."""
        return {True: "yes", False: "NO", None: "–"}[self.met]


Find = Callable[[str, str], Series | None]


def verdicts(sections: Sequence[Section], database: str) -> list[Verdict]:
    """A row for each goal, measured on the named database."""

    def find(part: str, key: str) -> Series | None:
        there = (section.find(key) for section in sections if section.part == part and section.database == database)
        return next((series for series in there if series is not None), None)

    return [
        _ratio(find, "8 threads, batch 1: ≥ 0.9 of the plain driver loop", "receive", "worker.8.1", "plain.8", 0.9),
        _ratio(find, "8 threads, batch 1: ≥ 0.6 of the limit, 1 row, 8 clients", "receive", "worker.8.1", "limit.8.1", 0.6),
        _ratio(find, "batch auto, 8 threads: ≥ 4 × the limit, 1 row, 8 clients", "receive", "worker.8.auto", "limit.8.1", 4.0),
        _ratio(find, "2 processes of 4 threads: ≥ 1.0 of 1 process of 8", "processes", "processes.2", "processes.1", 1.0),
        _ratio(find, "the defaults, 8 threads: ≥ 0.55 of the limit, 1 row, 8 clients", "affinity", "worker.8", "limit.8.1", 0.55),
        _ratio(find, "bound from the start: ≥ 0.6 of the limit, 1 row, 8 clients", "affinity", "worker.8.bound", "limit.8.1", 0.6),
        _ratio(find, "the defaults, 8 threads: ≥ 0.85 of bound from the start", "affinity", "worker.8", "worker.8.bound", 0.85),
        _ratio(find, "the defaults, 8 threads: ≥ 1.3 × never bound", "affinity", "worker.8", "worker.8.any", 1.3),
        _ratio(find, "the defaults, batch auto: ≥ 6 × the limit, 1 row, 8 clients", "affinity", "worker.8.auto", "limit.8.1", 6.0),
        _ratio(find, "1,000,000 waiting: ≥ 0.95 of 1,000 waiting", "backlog", "depth.1000000", "depth.1000", 0.95),
        _ratio(find, "200,000 dead rows: ≥ 0.9 of none", "backlog", "dead.some", "dead.none", 0.9),
        _ratio(find, "100,000 delayed messages: ≥ 0.9 of none", "delayed", "waiting.100000", "waiting.0", 0.9),
        _ratio(
            find, "8 processes send() to a worker that is woken: ≥ 0.95 of polled", "announcing", "send.woken", "send.polled", 0.95
        ),
        _ratio(find, "the same with commits of 10 ms: ≥ 0.95 of polled", "announcing", "slow.woken", "slow.polled", 0.95),
        _below(find, "commit to handler when idle, p50: < 10 ms", "idle", "idle.p50", 10.0),
        _below(find, "commit to handler when idle, p99: < 50 ms", "idle", "idle.p99", 50.0),
        _below(find, "commit to handler, one after the other, p50: < 10 ms", "idle", "idle.in_a_row", 10.0),
        _below(find, "statements of an idle endpoint: ≤ 2 a second", "idle", "idle.statements", 2.0, inclusive=True),
        _below(find, f"memory of a worker: < {MEMORY_MEGABYTES:.0f} MB", "memory", "memory.peak", MEMORY_MEGABYTES),
        _below(find, f"memory flat: grows < {FLAT_MEGABYTES:.0f} MB", "memory", "memory.growth", FLAT_MEGABYTES),
    ]


def _ratio(find: Find, goal: str, part: str, subject: str, yardstick: str, least: float) -> Verdict:
    above, below = find(part, subject), find(part, yardstick)
    if above is None or below is None:
        return Verdict(goal, "not measured", None)
    each = [a / b for a, b in zip(above.values, below.values, strict=True)]
    found = ratio(above, below)
    return Verdict(goal, f"{found:.2f} ({min(each):.2f}–{max(each):.2f})", found >= least)


def _below(find: Find, goal: str, part: str, key: str, maximum: float, *, inclusive: bool = False) -> Verdict:
    series = find(part, key)
    if series is None:
        return Verdict(goal, "not measured", None)
    found = median(series.values)
    return Verdict(goal, f"{found:.2f} {series.unit}", found <= maximum if inclusive else found < maximum)
