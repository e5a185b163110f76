"""Texts shared by pages, notifications and commands: placeholders of translations, durations, names in addresses."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.admin.utils import quote
from django.utils import timezone
from django.utils.formats import number_format


class Words(dict[str, str]):
    """Values by the names of placeholders; a question mark for missing ones. Whole numbers follow the active language."""

    def __init__(self, subject: str, details: object) -> None:
        known: Mapping[str, Any] = details if isinstance(details, dict) else {}
        super().__init__({str(name): _as_text(value) for name, value in known.items()})
        self["subject"] = subject

    def __missing__(self, name: str) -> str:
        return "?"


def _as_text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(number_format(value, decimal_pos=0, force_grouping=True))
    return str(value)


class Unit(enum.Enum):
    """A unit with its seconds."""

    DAYS = 86_400
    HOURS = 3_600
    MINUTES = 60
    SECONDS = 1


def two_units(value: timedelta) -> tuple[bool, tuple[tuple[int, Unit], ...]]:
    """Whether the duration is negative, and its size in the largest fitting unit and the next one; rounded to seconds."""
    left = round(abs(value.total_seconds()))
    negative = value < timedelta() and left > 0
    units = list(Unit)
    first = next((unit for unit in units if left >= unit.value), Unit.SECONDS)
    amount, left = divmod(left, first.value)
    if first is Unit.SECONDS:
        return negative, ((amount, first),)
    second = units[units.index(first) + 1]
    return negative, ((amount, first), (left // second.value, second))


_DOTS = re.compile(r"\.{1,2}\Z")
_QUOTED = re.compile("_[0-9A-F]{2}")
# Characters that would end the segment of a path, or be changed on the way.
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")


def path_of(name: str) -> str:
    """The name as one segment of a path: unchanged where possible, else quoted as the admin quotes keys. It is unique."""
    if _DOTS.match(name):
        return name.replace(".", "_2E")
    return quote(name) if _UNSAFE.search(name) or _QUOTED.search(name) else name


def text_of_path(path: str) -> str:
    """The name of a segment of a path, if the names are not known: the reverse of `path_of`."""
    return _QUOTED.sub(lambda found: chr(int(found[0][1:], 16)), path)


def in_utc(instant: datetime) -> datetime:
    """The instant in UTC; a naive one, as Django returns with USE_TZ off, is in the default time zone."""
    aware = timezone.make_aware(instant, timezone.get_default_timezone()) if timezone.is_naive(instant) else instant
    return aware.astimezone(UTC)


def iso_utc(instant: datetime) -> str:
    """An instant for machines."""
    return in_utc(instant).isoformat(timespec="milliseconds").replace("+00:00", "Z")
