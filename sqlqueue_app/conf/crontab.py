"""Crontab lines, read by the library cronsim, which follows Debian's cron.

A line is *fixed* if neither its minute nor its hour begins with `*`. A fixed line ticks once for each of its times: at the first
moment after a gap that swallows it, and at the first of two occurrences. Any other line follows the wall clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from itertools import takewhile
from typing import Final

from cronsim import CronSim, CronSimError

_MINUTE: Final = timedelta(minutes=1)
_STEPS: Final = (timedelta(days=1), timedelta(hours=1), _MINUTE)

# Each field: its title and its values. cronsim accepts more than crontab does, such as `L` and `#`: this pattern does not.
_FIELDS: Final = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of month", "1 to 31"),
    ("month", "1 to 12 or jan to dec"),
    ("day of week", "0 to 7 or sun to sat"),
)
_VALUE: Final = r"([0-9]+|[a-z]{3})"
_ITEM: Final = rf"(\*|{_VALUE}(-{_VALUE})?)(/[0-9]+)?"
_FIELD: Final = re.compile(rf"{_ITEM}(,{_ITEM})*", re.ASCII | re.IGNORECASE)
_NUMBERS: Final = {
    name: str(number)
    for names, first in (("jan feb mar apr may jun jul aug sep oct nov dec", 1), ("sun mon tue wed thu fri sat", 0))
    for number, name in enumerate(names.split(), first)
}
_RANGE_OF_ONE: Final = re.compile(r"\b0*([0-9]+)-0*\1/[0-9]+")


def cron_fault(text: str) -> str | None:
    """The expectation that a crontab line does not meet, as the end of "expected …"; None for a valid line.

    Lists, ranges, steps and the three-letter English names of months and weekdays are known; ranges go upwards.
    """
    parts = text.split()
    if len(parts) != len(_FIELDS):
        return f"the five fields minute, hour, day of month, month and day of week, found {len(parts)}"
    for number, (title, values) in enumerate(_FIELDS):
        alone = ["*"] * len(_FIELDS)
        alone[number] = parts[number]
        if not _FIELD.fullmatch(parts[number]) or not _is_read(alone):
            return f"{values} for the {title}, not {parts[number]!r:.80}"
    return None if _is_read(parts) else "a day that the month has; this one never comes"


def cron_times(text: str) -> CronTimes:
    """The times of a crontab line; ValueError if `cron_fault` finds a fault."""
    if (fault := cron_fault(text)) is not None:
        raise ValueError(f"{text!r}: expected {fault}")
    line = re.sub("[a-z]{3}", lambda name: _NUMBERS[name[0]], " ".join(text.lower().split()))
    # cronsim reads `5-5/2` as `5/2`, which has no end; crontab reads it as 5.
    return CronTimes(_RANGE_OF_ONE.sub(r"\1", line))


@dataclass(frozen=True, slots=True)
class CronTimes:
    """The ticks of a valid crontab line."""

    line: str

    def latest(self, after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
        """The last tick after `after` and up to `until`, aware, in UTC; None if there is none. Counts ticks: not for years."""
        if until.replace(second=0, microsecond=0) <= after:
            return None  # a worker checks several times a minute
        return max(takewhile(lambda tick: tick <= until, self._ticks(after, zone)), default=None)

    def next_after(self, after: datetime, zone: tzinfo) -> datetime | None:
        """The first tick later than `after`, aware, in UTC; None if there is none in the next 50 years."""
        return next(self._ticks(after, zone), None)

    def _ticks(self, after: datetime, zone: tzinfo) -> Iterator[datetime]:
        minute, hour, *_ = self.line.split()
        is_fixed = not (minute.startswith("*") or hour.startswith("*"))
        return self._fixed_ticks(after, zone) if is_fixed else self._wall_ticks(after, zone)

    def _fixed_ticks(self, after: datetime, zone: tzinfo) -> Iterator[datetime]:
        """The ticks of cronsim, without those that it repeats in the second occurrence of an hour."""
        for local in CronSim(self.line, after.astimezone(zone)):
            tick = local.astimezone(UTC)
            if tick > after:
                yield tick
                after = tick

    def _wall_ticks(self, after: datetime, zone: tzinfo) -> Iterator[datetime]:
        """Count from one change of the clocks to the next with the offset from UTC that holds in between.

        Across a change cronsim loses ticks where clocks move by half an hour, and adds one where midnight is skipped.
        """
        begin = after.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
        while True:
            offset = timezone(begin.astimezone(zone).utcoffset() or timedelta())
            for local in CronSim(self.line, begin.astimezone(offset) - timedelta(seconds=1)):
                tick = local.astimezone(UTC)
                begin = _last_with_same_offset(begin, tick, zone)
                if begin != tick:
                    break
                yield tick
            else:
                return
            begin += _MINUTE


def _is_read(parts: list[str]) -> bool:
    try:
        CronSim(" ".join(parts), datetime(2000, 1, 1, tzinfo=UTC))
    except (CronSimError, ValueError):  # ValueError: a number of thousands of digits
        return False
    return True


def _last_with_same_offset(begin: datetime, end: datetime, zone: tzinfo) -> datetime:
    """The last minute from `begin` to `end`, both UTC, up to which the clocks of the zone are not changed."""
    offset = begin.astimezone(zone).utcoffset()
    for step in _STEPS:
        while begin + step <= end and (begin + step).astimezone(zone).utcoffset() == offset:
            begin += step
    return begin
