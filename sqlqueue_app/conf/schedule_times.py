"""The times of a schedule: a crontab line, an interval or a single moment, from a start to an end.

Intervals and single moments are triggers of APScheduler. Its crontab lines are not those of cron: 0 is Monday, both days must
match, and a time that clocks skip or repeat is lost or comes twice. So crontab lines are those of the settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from typing import Any, Final

from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from sqlqueue_app.conf.crontab import CronTimes, cron_times

# A day from the ends of the calendar, so that each instant exists in every time zone.
FIRST: Final = datetime(1, 1, 2, tzinfo=UTC)
LAST: Final = datetime(9999, 12, 30, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class ScheduleTimes:
    """The times of a valid schedule in whole seconds, aware, in UTC. Exactly one of `cron`, `every` and `at` is given.

    `zone` is that of the crontab line. An interval counts from `start`, which it needs. `start` and `end` are inclusive. No instant
    is outside of FIRST and LAST.
    """

    zone: tzinfo
    cron: str = ""
    every: timedelta | None = None
    at: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """The last time after `after` and up to `until`; None if there is none. Counts crontab ticks: not for years."""
        after = max(after, self._before_start)
        until = until if self.end is None else min(until, self.end)
        if self.cron:
            return self._cron.latest(after, until, self.zone)
        following = self._trigger.get_next_fire_time(None, _next_second(until)).astimezone(UTC)
        found = following if self.every is None else following - self.every
        return found if after < found <= until else None

    def next_after(self, after: datetime) -> datetime | None:
        """The first time later than `after`; None if there is none."""
        after = max(after, self._before_start)
        cron = self._cron if self.cron else None
        try:
            if cron is not None:
                found = cron.next_after(after, self.zone)
            else:
                found = self._trigger.get_next_fire_time(None, _next_second(after)).astimezone(UTC)
        except (OverflowError, ValueError):
            return None  # it is after the year 9999
        return found if found is not None and found > after and (self.end is None or found <= self.end) else None

    def following(self, after: datetime, count: int) -> Iterator[datetime]:
        """At most `count` times later than `after`."""
        moment: datetime | None = after
        for _ in range(count):
            moment = self.next_after(moment) if moment is not None else None
            if moment is not None:
                yield moment

    @property
    def text(self) -> str:
        """The times in a few words, for tables of plain text."""
        if self.every is not None:
            return f"every {self.every.total_seconds():g} s"
        return self.cron if self.at is None else f"at {self.at.astimezone(self.zone):%Y-%m-%d %H:%M:%S}"

    @cached_property
    def _cron(self) -> CronTimes:
        return cron_times(self.cron)

    @cached_property
    def _trigger(self) -> Any:
        if self.at is not None:
            return DateTrigger(self.at)
        return IntervalTrigger(seconds=int((self.every or _SECOND).total_seconds()), start_date=self.start, timezone=UTC)

    @property
    def _before_start(self) -> datetime:
        return datetime.min.replace(tzinfo=UTC) if self.start is None else self.start - timedelta(microseconds=1)


def _next_second(after: datetime) -> datetime:
    """The first whole second after an instant. Times are whole seconds; a trigger returns the first time at or after a moment."""
    return after.astimezone(UTC).replace(microsecond=0) + _SECOND
