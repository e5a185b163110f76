"""When a crontab line ticks, where clocks are put forward and back: the rules of Debian's and Red Hat's cron.

A line is *fixed* if neither its minute nor its hour begins with `*`. A fixed line ticks once for each of its times: at the first
moment after a gap that swallows it, and at the first of two occurrences. Any other line follows the clock on the wall.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import count, takewhile
from typing import Final

MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
# The rarest line is 29 February on one weekday: the calendar repeats itself within 28 years, or 40 around a year like 2100.
_DAYS_TO_LOOK: Final = 40 * 366


@dataclass(frozen=True, slots=True)
class CronTimes:
    """The times of a crontab line; Sunday is 0.

    Where both the day of the month and the weekday are restricted, one of them must fit, as in crontab: `days_must_both_fit` is
    False then.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    days_must_both_fit: bool
    fixed: bool

    def latest(self, after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
        """The last tick later than `after` and not later than `until`, both aware, in UTC; None if there is none.

        Looks at each minute in between: for hours and days, not for years.
        """
        moment = _minute_of(until)
        while moment > after:
            if self.ticks_at(moment, zone):
                return moment
            moment -= MINUTE
        return None

    def next_after(self, after: datetime, zone: tzinfo) -> datetime | None:
        """The first tick later than `after`, aware, in UTC; None if there is none in the next 40 years."""
        begin = _minute_of(after) + MINUTE
        first_day = begin.astimezone(zone).date()
        for number in range(_DAYS_TO_LOOK):
            day = first_day + number * _DAY
            start, end = max(begin, _begin_of(day, zone)), _begin_of(day + _DAY, zone)
            # A gap may have swallowed a tick of the day before: the first moment of each day is looked at.
            wanted = _minutes(start, end) if self._fits_day(day) else iter([start])
            found = next((moment for moment in wanted if self.ticks_at(moment, zone)), None)
            if found is not None:
                return found
        return None

    def ticks_at(self, moment: datetime, zone: tzinfo) -> bool:
        """Whether the line ticks at this aware moment, which is a whole minute."""
        local = moment.astimezone(zone)
        if not self.fixed:
            return self._fits(local)
        if local.fold:
            return False
        wall = local.replace(tzinfo=None)
        before = (moment - MINUTE).astimezone(zone).replace(tzinfo=None)
        # One minute; more where clocks are put forward just now.
        passed = takewhile(lambda each: each <= wall, (before + number * MINUTE for number in count(1)))
        return any(map(self._fits, passed)) if wall > before else self._fits(wall)

    def _fits(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self._fits_day(wall.date())

    def _fits_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        fits = (day.day in self.days, day.isoweekday() % 7 in self.weekdays)
        return all(fits) if self.days_must_both_fit else any(fits)


def _minute_of(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(second=0, microsecond=0)


def _begin_of(day: date, zone: tzinfo) -> datetime:
    """Midnight, or the first moment after it where a gap swallows it."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _minutes(start: datetime, end: datetime) -> Iterator[datetime]:
    return takewhile(lambda moment: moment < end, (start + number * MINUTE for number in count()))
