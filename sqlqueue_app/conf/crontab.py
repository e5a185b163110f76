"""The five fields of a crontab line, checked and read without a scheduler.

APScheduler's own reading counts weekdays from Monday as 0; crontab, and so `SCHEDULES`, counts 0 and 7 as Sunday.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.conf.cron_times import CronTimes

_ITEM: Final = re.compile(r"(?P<first>\*|[0-9]+|[a-z]{3})(?:-(?P<last>[0-9]+|[a-z]{3}))?(?:/(?P<step>[0-9]+))?")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST: Final = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}


@dataclass(frozen=True, slots=True)
class _Field:
    title: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def number(self, text: str) -> int | None:
        """The value of a number or name, None where this field has no such value."""
        if text in self.names:
            return self.names.index(text) + self.low
        if not text.isdecimal():
            return None
        value = int(text)
        return value if self.low <= value <= self.high else None

    def values(self, text: str) -> frozenset[int] | None:
        """All values that the text of the field stands for, None where it is wrong."""
        found: set[int] = set()
        for item in text.casefold().split(","):
            values = self._item(item)
            if values is None:
                return None
            found |= values
        return frozenset(found)

    def _item(self, item: str) -> set[int] | None:
        match = _ITEM.fullmatch(item)
        if match is None or (match["first"] == "*" and match["last"] is not None):
            return None
        step = int(match["step"] or 1)
        first = self.low if match["first"] == "*" else self.number(match["first"])
        open_ended = match["first"] == "*" or match["step"] is not None
        last = self.number(match["last"]) if match["last"] else (self.high if open_ended else first)
        if first is None or last is None or first > last or step < 1:
            return None
        return set(range(first, last + 1, step))


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


def cron_fault(text: str) -> str | None:
    """Say what is wrong with a crontab line, as the end of "… is '…', ": None when it is sound.

    Lists, ranges, steps and the three-letter English names of months and weekdays are known; ranges go upwards.
    """
    parts = text.split()
    if len(parts) != len(_FIELDS):
        return f"expected the five fields minute, hour, day of month, month and day of week, found {len(parts)}"
    values: list[frozenset[int]] = []
    for field, part in zip(_FIELDS, parts, strict=True):
        found = field.values(part)
        if found is None:
            names = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
            return f"expected {field.low} to {field.high}{names} for the {field.title}, not {part!r}"
        values.append(found)
    if parts[4] == "*" and all(min(values[2]) > _LONGEST.get(month, 31) for month in values[3]):
        return "expected a day that the month has; this one never comes"
    return None


def cron_times(text: str) -> CronTimes:
    """The times of a crontab line; ValueError where `cron_fault` finds a fault."""
    fault = cron_fault(text)
    if fault is not None:
        raise ValueError(f"{text!r}: {fault}")
    parts = text.split()
    minutes, hours, days, months, weekdays = (field.values(part) or frozenset() for field, part in zip(_FIELDS, parts, strict=True))
    # As cron itself tells the stars: by the first character of the field.
    stars = [part.startswith("*") for part in parts]
    return CronTimes(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        days_must_both_fit=stars[2] or stars[4],
        fixed=not (stars[0] or stars[1]),
    )
