"""The measured kinds, which take turns, and their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True, slots=True)
class Measured:
    """One value of one round; the processor time is that of the client process for each message, all its threads."""

    value: float
    processor_microseconds: float | None = None


@dataclass(slots=True)
class Series:
    """The values of one kind, one per round; empty if it could not be measured."""

    key: str
    name: str
    unit: str
    values: list[float] = field(default_factory=list)
    processor_microseconds: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float:
        """The median of all rounds."""
        return median(self.values)

    def add(self, measured: Measured) -> None:
        """Add the value of a round."""
        self.values.append(measured.value)
        if measured.processor_microseconds is not None:
            self.processor_microseconds.append(measured.processor_microseconds)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind, measured in each round. `measure` is None if it cannot be measured, with the reason in `note`."""

    key: str
    name: str
    measure: Callable[[], Measured] | None
    unit: str = "messages/s"
    note: str = ""

    def series(self) -> Series:
        """An empty series for its values."""
        return Series(self.key, self.name, self.unit, note=self.note)


@dataclass(slots=True)
class Section:
    """Series of one part on one database, that took turns in the same run."""

    part: str
    title: str
    database: str
    series: list[Series]
    facts: dict[str, object] = field(default_factory=dict)

    def find(self, key: str) -> Series | None:
        """The series of that key if it was measured."""
        return next((series for series in self.series if series.key == key and series.values), None)


@dataclass(frozen=True, slots=True)
class Plan:
    """The kinds that a part measures on one database."""

    part: str
    title: str
    database: str
    kinds: Sequence[Kind]
    facts: dict[str, object] = field(default_factory=dict)


def take_turns(plans: Sequence[Plan], rounds: int, log_line: Callable[[str], None] = lambda _: None) -> list[Section]:
    """Measure all kinds of all plans once per round, so that values of the same round see the same load of the machine."""
    sections = [Section(plan.part, plan.title, plan.database, [kind.series() for kind in plan.kinds], plan.facts) for plan in plans]
    for number in range(1, rounds + 1):
        for plan, section in zip(plans, sections, strict=True):
            for kind, series in zip(plan.kinds, section.series, strict=True):
                if kind.measure is not None:
                    series.add(kind.measure())
                    log_line(f"{number}: {plan.database}: {kind.name}: {series.values[-1]:,.0f} {kind.unit}")
    return sections


def ratio(subject: Series, yardstick: Series) -> float:
    """The median over the rounds of subject / yardstick within the same round, so that the load of the machine cancels out."""
    return median(a / b for a, b in zip(subject.values, yardstick.values, strict=True))
