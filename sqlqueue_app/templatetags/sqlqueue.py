"""Template filters of the dashboard: numbers, sizes, durations and instants in the language and time zone of the request."""

from __future__ import annotations

from datetime import datetime, timedelta

from django import template
from django.template.defaultfilters import stringfilter
from django.utils import timezone
from django.utils.safestring import SafeString

from sqlqueue_app.dashboard import formats
from sqlqueue_app.dashboard.page import path_of

register = template.Library()


@register.filter
def number(value: int | None) -> str:
    """A number with thousands separators; a dash for None."""
    return "–" if value is None else formats.number(value)


@register.filter(name="bytes")
def size(value: int | None) -> str:
    """A number of bytes with a suitable unit."""
    return formats.size_of(value)


@register.filter
def duration(value: timedelta | float | None) -> str:
    """A duration, or a number of seconds, in its two largest units; a dash for None."""
    if value is None:
        return "–"
    return formats.duration(value if isinstance(value, timedelta) else timedelta(seconds=value))


@register.filter
def seconds(value: timedelta | float | None) -> str:
    """A measured duration, or a number of seconds, with its digits; a dash for None."""
    return formats.precise_duration(value) or "–"


@register.filter
def in_unit(value: float | None, scale: formats.Scale) -> str:
    """A value in the unit of a scale, which all values of a table share; a dash for None."""
    return scale.text(value)


@register.filter
def rate(value: float | None) -> str:
    """Events per second; a dash for None."""
    return "–" if value is None else formats.rate(value)


@register.filter
def percent(part: float | None) -> str:
    """A part of one as a percentage; a dash for None."""
    return formats.percents([]).text(part)


@register.filter
@stringfilter
def breakable(text: str) -> SafeString:
    """A text that may break after the dots and underscores of its names, and so not in the middle of a word."""
    return formats.breakable(text)


@register.filter
def url_part(name: str) -> str:
    """A name as a part of a URL."""
    return path_of(name)


@register.filter
def timestamp(instant: datetime | None) -> SafeString | str:
    """An instant as a ``time`` element in the current time zone, with UTC as its title; a dash for None."""
    return "–" if instant is None else formats.stamp_html(instant)


@register.filter
def ago(instant: datetime | None) -> SafeString | str:
    """The time since an instant, with the instant as its title and for screen readers; a dash for None."""
    return "–" if instant is None else formats.ago_html(instant)


@register.filter
def before(instant: datetime, other: datetime) -> timedelta:
    """The time from an instant to a later one; empty if it is not later."""
    return max(other - instant, timedelta())


@register.simple_tag
def zone_offset() -> int:
    """The offset of the current time zone from UTC in seconds, for the clock of live.js."""
    offset = datetime.now(timezone.get_current_timezone()).utcoffset()
    return 0 if offset is None else round(offset.total_seconds())
