"""Formatted values for pages: numbers, sizes, durations and instants in the language and time zone of the request."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from django.utils.functional import Promise
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from sqlqueue_app.status.texts import (
    Unit,
    duration,
    in_site_zone,
    in_units,
    in_utc,
    iso_utc,
    number,
    precise_duration,
    rounded,
    size_of,
    two_units,
)
from sqlqueue_app.tables.queue import Depth

__all__ = ["duration", "iso_utc", "number", "precise_duration", "size_of"]


class Number(NamedTuple):
    """A formatted number: `value` for machines, `text` for people, and an optional `note`."""

    value: int
    text: str
    note: str = ""


def rate(value: float) -> str:
    """Events per second, and other non-negative numbers of unknown size: two or three digits."""
    if 0 < value < 0.0005:
        return f"< {rounded(0.001, 3)}"
    return rounded(value, 0 if value >= 100 or value == 0 else 1 if value >= 1 else 2 if value >= 0.01 else 3)


class Scale(NamedTuple):
    """One unit for all values of an axis or of a column: the divisor, the format, the suffix."""

    unit: str
    factor: float = 1.0
    form: Callable[[float], str] = rate
    suffix: str = ""

    def label(self, value: float) -> str:
        """A value for an axis, whose title shows the unit; no more digits than needed."""
        size = round(abs(value / self.factor), 6)
        sign = "\N{MINUS SIGN}" if value < 0 else ""
        return sign + (self.form(size) if size % 1 else number(int(size)))

    def text(self, value: float | None) -> str:
        """A value with its unit; a dash for None. Minutes and hours would show short times as zero: each has units of its own."""
        if value is None or self.factor > 1:
            return precise_duration(value) or "–"
        return ("\N{MINUS SIGN}" if value < 0 else "") + self.form(abs(value) / self.factor) + self.suffix


def counts(_values: Iterable[float | None]) -> Scale:
    """Numbers of messages, rounded."""
    return Scale(_("messages"), form=lambda value: number(round(value)))


def per_second(_values: Iterable[float | None]) -> Scale:
    """Messages per second."""
    return Scale(_("per second"), suffix="/s")


def percents(_values: Iterable[float | None]) -> Scale:
    """Fractions of one."""
    return Scale("%", 0.01, suffix=" %")


def times(values: Iterable[float | None]) -> Scale:
    """Durations in seconds: in milliseconds up to a second, in seconds up to ten minutes, in minutes up to two hours, in hours."""
    highest = max((abs(value) for value in values if value is not None), default=0.0)
    units = ((7_200.0, _("h"), 3_600.0), (600.0, _("min"), 60.0), (1.0, _("s"), 1.0), (0.0, _("ms"), 0.001))
    unit, factor = next((unit, factor) for least, unit, factor in units if highest >= least)
    return Scale(unit, factor, suffix=f" {unit}")


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


# Before a break: the dots, underscores and plus signs of names, not of numbers; and words that would take half a page.
_BREAKS: Final = re.compile(r"(?<=\w)[._+](?=[^\W\d])|[^\W_]{60}(?=[^\W_])")


def breakable(text: str) -> SafeString:
    """A text that may break inside of its names, and so not in the middle of a word."""
    return SafeString(_BREAKS.sub(r"\g<0><wbr>", escape(text)))


def stamp(instant: datetime) -> str:
    """The date and the time in the current time zone."""
    return in_site_zone(instant).isoformat(" ", "seconds")[:19]


def stamp_html(instant: datetime) -> SafeString:
    """An instant as a ``time`` element, with UTC as its title."""
    parts = format_html_join(" ", '<span class="sq-nowrap">{}</span>', ((part,) for part in stamp(instant).split()))
    title = f"{in_utc(instant):%Y-%m-%d %H:%M:%S} UTC"
    return format_html('<time datetime="{}" title="{}">{}</time>', iso_utc(instant), title, parts)


def relative_html(instant: datetime, text: str) -> SafeString:
    """A text such as “5 s ago” as a ``time`` element with the instant as its title, which screen readers get too."""
    words = '<time datetime="{}" title="{}">{}</time><span class="sq-hidden"> ({})</span>'
    local = stamp(instant)
    return format_html(words, iso_utc(instant), local, text, local)


def ago_html(instant: datetime) -> SafeString:
    """The age of an instant, in its largest unit from minutes on, so that a page does not change each time."""
    is_ahead, parts = two_units(datetime.now(UTC) - in_utc(instant))
    if parts[0][1] is Unit.SECONDS:
        return relative_html(instant, _("just now"))
    return stamp_html(instant) if is_ahead else relative_html(instant, _("%(age)s ago") % {"age": in_units(parts[:1])})


class Grade(enum.StrEnum):
    """The severity of a state; also the name of its icon."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class State(NamedTuple):
    """A state as a word with its grade."""

    level: Grade
    word: str | Promise
