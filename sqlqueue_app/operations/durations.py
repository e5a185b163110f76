"""Durations cut to what a person reads: the two largest units."""

from __future__ import annotations

import enum
from datetime import timedelta


class Unit(enum.Enum):
    """A unit with its seconds."""

    DAYS = 86_400
    HOURS = 3_600
    MINUTES = 60
    SECONDS = 1


def two_units(value: timedelta) -> tuple[bool, tuple[tuple[int, Unit], ...]]:
    """Whether the duration is negative, and its size in the largest unit that fits and the next one; rounded to seconds."""
    left = round(abs(value.total_seconds()))
    negative = value < timedelta() and left > 0
    units = list(Unit)
    first = next((unit for unit in units if left >= unit.value), Unit.SECONDS)
    amount, left = divmod(left, first.value)
    if first is Unit.SECONDS:
        return negative, ((amount, first),)
    second = units[units.index(first) + 1]
    return negative, ((amount, first), (left // second.value, second))
