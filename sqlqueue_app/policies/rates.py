"""Rate limits of message types: how often their handlers are called, and when a message that arrives too early is due.

The arithmetic is that of the generic cell rate algorithm, in whole microseconds since 1970.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_RATE: Final = re.compile(r"([1-9][0-9]{0,5})/([smhd])")
SECOND: Final = 1_000_000
EXPECTED: Final = "a number of messages per second, minute, hour or day, such as '10/s', '100/m', '5/h' or '1/d'"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` messages in each `unit`, evenly spread: one in each interval."""

    count: int
    unit: str

    @classmethod
    def parse(cls, text: object) -> Rate:
        """The rate of a text such as "10/m". Raises ValueError for anything else."""
        found = _RATE.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(f"{text!r} is not a rate: expected {EXPECTED}")
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"{self.count}/{self.unit}"

    @property
    def interval(self) -> int:
        """The time between two messages, rounded up."""
        return -(-_UNITS[self.unit] * SECOND // self.count)

    @property
    def tolerance(self) -> int:
        """How early a message with a reservation may begin: queues and threads are late by a different time for each message."""
        return max(self.interval, SECOND)


@dataclass(frozen=True, slots=True)
class RateState:
    """What the processes of an endpoint share about a type."""

    reserved_until: int = 0
    """The first time that nothing is reserved for."""
    handled_until: int = 0
    """The end of the interval of the last message that began."""


def admit(rate: Rate, state: RateState, now: int, *, reserved: bool) -> tuple[int | None, RateState]:
    """When a message is due that arrives now, None for now; and the state after that. `reserved`: it comes back at its time.

    A message that comes back may begin, unless others that came back late have just begun: after a pause of the endpoint, all
    reservations of that time are over, and its messages would begin at once. Those get other times.
    """
    begins_from = state.handled_until - rate.tolerance if reserved else max(state.reserved_until, state.handled_until)
    if begins_from <= now:
        end = max(state.handled_until, now) + rate.interval
        # Nothing is reserved for a message that comes back, and it took its place when it was.
        taken = state.reserved_until if reserved else now + rate.interval
        return None, RateState(max(state.reserved_until, taken), end)
    due = max(state.reserved_until, state.handled_until, now)
    return due, RateState(due + rate.interval, state.handled_until)
