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
        """How early a message with a reservation may begin: queues and threads delay each message by a different time."""
        return max(self.interval, SECOND)


@dataclass(frozen=True, slots=True)
class RateState:
    """The state of a type, which all processes of an endpoint share."""

    reserved_until: int = 0
    """The first time that is not reserved."""
    handled_until: int = 0
    """The end of the interval of the last message that began."""


def admit(rate: Rate, state: RateState, now: int, *, reserved: bool) -> tuple[int | None, RateState]:
    """The due time of a message that arrives now (None: now), and the state after that. `reserved`: it returns at its time.

    A returning message may begin, unless others that returned late have just begun: after a pause of the endpoint, all
    reservations for that period have passed, and their messages would all begin at once. They get new times instead.
    """
    begins_from = state.handled_until - rate.tolerance if reserved else max(state.reserved_until, state.handled_until)
    if begins_from <= now:
        end = max(state.handled_until, now) + rate.interval
        # A returning message reserves no further time: it took its place when its time was reserved.
        taken = state.reserved_until if reserved else now + rate.interval
        return None, RateState(max(state.reserved_until, taken), end)
    due = max(state.reserved_until, state.handled_until, now)
    return due, RateState(due + rate.interval, state.handled_until)
