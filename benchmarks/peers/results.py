"""The stored results of a run: all single values and the conditions of the measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.goals import Verdict
from benchmarks.peers.catalogue import OURS, Peer

COLUMNS = ("one", "eight", "batch")


@dataclass(slots=True)
class Found:
    """The results of one peer. Empty values were not measured; `missing` gives the reason if none was."""

    key: str
    name: str
    settings: str
    promise: dict[str, str]
    in_django: bool
    versions: dict[str, str] = field(default_factory=dict)
    broker: str = ""
    missing: str = ""
    problems: list[str] = field(default_factory=list)
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By the row of the table and the column: messages a second, a value for each round."""
    sending: dict[str, list[float]] = field(default_factory=dict)
    """`one` and `bulk`: messages a second, a value for each round."""
    rest: dict[str, Any] = field(default_factory=dict)
    killed: dict[str, Any] = field(default_factory=dict)

    def values(self, column: str, row: str = "") -> list[float]:
        """The rates of a cell, one value per round."""
        return self.rates.get(row or self.name, {}).get(column, [])


@dataclass(slots=True)
class Run:
    """A whole run."""

    machine: dict[str, Any]
    run: dict[str, Any]
    peers: list[Found]

    def as_json(self) -> dict[str, Any]:
        """The run as JSON; the goals are included for readers and not read back."""
        return {**asdict(self), "goals": [asdict(each) for each in goals(self.peers)]}


def run_of(text: Mapping[str, Any]) -> Run:
    """The run that `as_json` wrote."""
    return Run(text["machine"], text["run"], [Found(**each) for each in text["peers"]])


def start(peer: Peer) -> Found:
    """An empty result."""
    return Found(peer.key, peer.name, peer.settings, asdict(peer.promise), peer.in_django)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(len(ordered) * percent) // 100) - 1)]


def goals(peers: Sequence[Found]) -> list[Verdict]:
    """The goals, each with its measurement."""
    ours = next((each for each in peers if each.key == OURS), None)
    others = [each for each in peers if each is not ours]
    django = [each for each in others if each.in_django]
    rabbitmq = [each for each in others if each.key.startswith("celery-rabbitmq")]
    return [
        _beside("8 threads, batch 1, durable: ≥ 5 × the best Django peer", ours, django, "eight", 5.0),
        _beside("8 threads, batch 1, durable: ≥ celery with RabbitMQ at the same concurrency", ours, rabbitmq, "eight", 1.0),
        _beside("batch auto: ≥ the fastest peer's batch rate", ours, others, "batch", 1.0),
        _again(ours),
        _whole(ours),
    ]


def _beside(goal: str, ours: Found | None, others: Sequence[Found], column: str, least: float) -> Verdict:
    """The ratio of our defaults to the best peer in the same rounds, with our other variants and the other peers."""
    there = sorted((each for each in others if each.values(column)), key=lambda each: -median(each.values(column)))
    if ours is None or not ours.values(column) or not there:
        return Verdict(goal, "not measured", None)
    best, *more = there
    each_round = ratios(ours.values(column), best.values(column))
    found = median(each_round)
    text = f"{found:.2f} × {best.name} ({min(each_round):.2f}–{max(each_round):.2f})"
    for row, columns in ours.rates.items():
        if row != ours.name and column in columns:
            text += f"; {row}: {median(ratios(columns[column], best.values(column))):.2f}"
    for each in more:
        text += f"; {median(ratios(ours.values(column), each.values(column))):.2f} × {each.name}"
    return Verdict(goal, text, found >= least)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratios round by round."""
    return [a / b for a, b in zip(ours, theirs, strict=False)]


def _again(ours: Found | None) -> Verdict:
    goal = "message visible again after `kill -9` of its worker: < 1 s"
    if ours is None or not ours.killed:
        return Verdict(goal, "not measured", None)
    again, never = ours.killed["again"], ours.killed["never"]
    if never or not again:
        return Verdict(goal, f"{never} of {ours.killed['kills']} not at all", False if never else None)
    return Verdict(goal, f"{max(again):.2f} s at most of {len(again)}", max(again) < 1.0)


def _whole(ours: Found | None) -> Verdict:
    goal = "kills: 0 messages lost, 0 done twice in the database"
    if ours is None or not ours.killed:
        return Verdict(goal, "not measured", None)
    lost, twice = ours.killed["lost"], ours.killed["twice"]
    return Verdict(goal, f"{lost} lost, {twice} twice, {ours.killed['kills']} kills", lost == twice == 0)
