"""Formatted values for pages: numbers, sizes, durations and instants in the language and time zone of the request."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue_app.status.texts import Unit, two_units
from sqlqueue_app.tables.queue import Depth


@dataclass(frozen=True, slots=True)
class Number:
    """A formatted number: `value` for machines, `text` for people, and an optional `note`."""

    value: int
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A formatted instant in the current time zone, and in UTC."""

    iso: str
    date: str
    time: str
    utc: str

    def __str__(self) -> str:
        """The date and the time in the current time zone."""
        return f"{self.date} {self.time}"


def number(value: int) -> str:
    """A number with thousands separators."""
    return str(number_format(value, decimal_pos=0, force_grouping=True))


def _rounded(value: float, places: int) -> str:
    """Rounded and formatted; Django alone truncates digits."""
    return str(number_format(round(value, places) if places else round(value), decimal_pos=places, force_grouping=True))


def whole(value: float) -> str:
    """A mean of counts, rounded."""
    return number(round(value))


def rate(value: float) -> str:
    """Events per second."""
    places = 0 if value >= 100 or value == 0 else 1 if value >= 1 else 2
    return _rounded(value, places)


def depth_number(depth: Depth) -> Number:
    """The depth of a queue; an estimate is marked."""
    if depth.exact:
        return Number(depth.waiting, number(depth.waiting))
    return Number(depth.waiting, f"≈ {number(depth.waiting)}", _("estimated from the first and the last message"))


def bounded_number(value: int, *, exact: bool) -> Number:
    """A count; a lower bound is marked."""
    if exact:
        return Number(value, number(value))
    return Number(value, f"≥ {number(value)}", _("counting stopped here"))


def size(value: int) -> str:
    """A number of bytes with a suitable unit."""
    if value < 1024:
        return ngettext("%(count)s byte", "%(count)s bytes", value) % {"count": number(value)}
    for unit, factor in ((_("KiB"), 1024), (_("MiB"), 1024**2)):
        if value < factor * 1024:
            return f"{_rounded(value / factor, 1)} {unit}"
    return _rounded(value / 1024**3, 1) + " " + _("GiB")


def size_of(value: int | None) -> str:
    """Like `size`, for a column that may be NULL."""
    return _("NULL") if value is None else size(value)


def duration(value: timedelta) -> str:
    """The two largest units; negative durations with a minus sign."""
    names = {Unit.DAYS: _("%(n)s d"), Unit.HOURS: _("%(n)s h"), Unit.MINUTES: _("%(n)s min"), Unit.SECONDS: _("%(n)s s")}
    negative, parts = two_units(value)
    text = " ".join(names[unit] % {"n": number(amount)} for amount, unit in parts)
    return f"\N{MINUS SIGN}{text}" if negative else text


def precise_duration(value: timedelta) -> str:
    """Like `duration`, with milliseconds below ten seconds."""
    if abs(value) >= timedelta(seconds=10):
        return duration(value)
    milliseconds = value / timedelta(milliseconds=1)
    text = _rounded(abs(milliseconds), 0 if abs(milliseconds) >= 10 else 1)
    sign = "\N{MINUS SIGN}" if milliseconds < 0 else ""
    return sign + text + " " + _("ms")


def stamp(instant: datetime) -> Stamp:
    """Format an instant; a naive one, as Django returns with USE_TZ off, is in the default time zone."""
    aware = timezone.make_aware(instant, timezone.get_default_timezone()) if timezone.is_naive(instant) else instant
    utc = aware.astimezone(UTC)
    local = timezone.localtime(aware)
    return Stamp(
        iso=utc.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        date=date_format(local, "Y-m-d"),
        time=date_format(local, "H:i:s"),
        utc=f"{utc:%Y-%m-%d %H:%M:%S} UTC",
    )


def stamp_of(instant: datetime | None) -> Stamp | None:
    """Like `stamp`, for a column that may be empty."""
    return None if instant is None else stamp(instant)


def stamp_html(instant: datetime) -> SafeString:
    """An instant as a ``time`` element, with UTC as its title."""
    found = stamp(instant)
    parts = format_html_join(" ", '<span class="sq-nowrap">{}</span>', ((found.date,), (found.time,)))
    return format_html('<time datetime="{}" title="{}">{}</time>', found.iso, found.utc, parts)


WORKER_COMMAND = "python manage.py run_sqlqueue_worker"


class Grade(enum.StrEnum):
    """How good a state is; also the name of its icon."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class State:
    """A state as a word with its grade."""

    level: Grade
    word: str
