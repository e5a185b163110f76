"""Instants and durations as text (the wire timestamp of headers, the TimeSpan text of .NET), and delivery delays.

Nothing here reads a clock. Sources: docs/internals/wire.md#timestamps and the recorded rows.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlqueue_app.messages.errors import ConfigurationError, WireFormatError

_TIME: Final = re.compile(r"([0-9]{4}).([0-9]{2}).([0-9]{2}).([0-9]{2}).([0-9]{2}).([0-9]{2}).([0-9]{6})..", re.DOTALL)

# TimeSpan counts 100 ns in 64 bits: more days do not fit. The last fraction is 0.4775807 s.
_MAX_TIMESPAN: Final = timedelta(days=10675199, hours=2, minutes=48, seconds=5, microseconds=477580)

_TIMESPAN: Final = re.compile(
    r"(?P<minus>-)?(?:(?P<days>[0-9]{1,8})\.)?(?P<hours>[0-9]{1,2}):(?P<minutes>[0-9]{1,2})"
    r"(?::(?P<seconds>[0-9]{1,2})(?:\.(?P<fraction>[0-9]{1,7}))?)?"
)

_ISO_DURATION: Final = re.compile(
    r"(?P<minus>-)?P(?:(?P<years>[0-9]{1,6})Y)?(?:(?P<months>[0-9]{1,7})M)?(?:(?P<days>[0-9]{1,8})D)?"
    r"(?P<time>T(?:(?P<hours>[0-9]{1,10})H)?(?:(?P<minutes>[0-9]{1,12})M)?(?:(?P<seconds>[0-9]{1,14})(?:\.(?P<fraction>[0-9]+))?S)?)?"
)


def format_time(instant: datetime) -> str:
    """The wire timestamp ``2026-04-29 21:56:55:590807 Z``: UTC, 28 characters. :class:`WireFormatError` for a naive datetime."""
    if instant.utcoffset() is None:
        raise WireFormatError(f"the time {instant!r} has no time zone; expected an aware datetime")
    try:
        utc = instant.astimezone(UTC)
    except OverflowError:
        raise WireFormatError(f"the time {instant!r} is outside the years 1 to 9999 in UTC") from None
    return f"{utc.year:04}-{utc.month:02}-{utc.day:02} {utc.hour:02}:{utc.minute:02}:{utc.second:02}:{utc.microsecond:06} Z"


def parse_time(text: str) -> datetime:
    """Parse a wire timestamp; returns an aware datetime in UTC.

    Follows the rule of core 8 and later: exactly 28 characters, ASCII digits by position, separators ignored. Raises
    :class:`WireFormatError` (a ``ValueError``) otherwise, and for an invalid date.
    """
    if found := _TIME.fullmatch(text):
        year, month, day, hour, minute, second, microsecond = map(int, found.groups())
        try:
            return datetime(year, month, day, hour, minute, second, microsecond, UTC)
        except ValueError as error:
            raise WireFormatError(f"the time {text!r} does not exist: {error}") from None
    raise WireFormatError(f"the time {text!r} is not like '2026-04-29 21:56:55:590807 Z'")


def time_or_none(text: str | None) -> datetime | None:
    """The instant of a header; None if it is missing or not a wire timestamp."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def format_timespan(duration: timedelta) -> str:
    """The constant form of .NET, ``[-][d.]hh:mm:ss[.fffffff]``; raises :class:`WireFormatError` beyond 10,675,199 days."""
    size, hours, minutes, seconds = _parts(duration)
    return (
        ("-" if duration < timedelta(0) else "")
        + (f"{size.days}." if size.days else "")
        + f"{hours:02}:{minutes:02}:{seconds:02}"
        + (f".{size.microseconds:06}0" if size.microseconds else "")
    )


def parse_timespan(text: str) -> timedelta:
    """Parse a .NET TimeSpan text; digits beyond microseconds are dropped.

    Accepts the constant form and its shorter variants (``1:02``, ``1:02:03.5``). Raises :class:`WireFormatError` (a
    ``ValueError``) otherwise, and for hours above 23, minutes and seconds above 59.
    """
    match = _TIMESPAN.fullmatch(text.strip())
    if match is None:
        raise WireFormatError(f"the duration {text!r} is not like '1.02:03:04.0050000' (days, hours, minutes, seconds)")
    hours, minutes, seconds = int(match["hours"]), int(match["minutes"]), int(match["seconds"] or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise WireFormatError(f"the duration {text!r} has hours above 23, or minutes or seconds above 59")
    fraction = int((match["fraction"] or "").ljust(7, "0")) // 10
    size = timedelta(int(match["days"] or 0), seconds, fraction, minutes=minutes, hours=hours)
    if size > _MAX_TIMESPAN:
        raise WireFormatError(f"the duration {text!r} is longer than .NET can hold ({_MAX_TIMESPAN!r})")
    return -size if match["minus"] else size


def _parts(duration: timedelta) -> tuple[timedelta, int, int, int]:
    """The absolute duration, and its hours, minutes and seconds without days; WireFormatError beyond the range of .NET."""
    size = abs(duration)
    if size > _MAX_TIMESPAN:
        raise WireFormatError(f"the duration {duration!r} is longer than .NET can hold ({_MAX_TIMESPAN!r})")
    minutes, seconds = divmod(size.seconds, 60)
    return size, *divmod(minutes, 60), seconds


def format_iso_duration(duration: timedelta) -> str:
    """The duration in the form of XML, ``P1DT2H3M4.005S``; raises :class:`WireFormatError` beyond 10,675,199 days."""
    size, hours, minutes, seconds = _parts(duration)
    fraction = f".{size.microseconds:06}".rstrip("0") if size.microseconds else ""
    parts = [f"{hours}H" if hours else "", f"{minutes}M" if minutes else "", f"{seconds}{fraction}S" if seconds or fraction else ""]
    day = f"{size.days}D" if size.days else ""
    clock = "".join(parts)
    text = f"P{day}T{clock}" if clock else f"P{day or 'T0S'}"
    return f"-{text}" if duration < timedelta(0) else text


def parse_iso_duration(text: str) -> timedelta:
    """Parse an XML duration such as ``P1DT2H3M4.005S``; digits beyond microseconds are dropped.

    As in .NET, a year has 365 days and a month 30. Raises :class:`WireFormatError` (a ``ValueError``) otherwise.
    """
    match = _ISO_DURATION.fullmatch(text.strip())
    fields = ("years", "months", "days", "hours", "minutes", "seconds")
    if match is None or match["time"] == "T" or not any(match[name] for name in fields):
        raise WireFormatError(f"the duration {text!r} is not like 'P1DT2H3M4.005S'")
    years, months, days, hours, minutes, seconds = (int(match[name] or 0) for name in fields)
    fraction = int((match["fraction"] or "")[:6].ljust(6, "0"))
    try:
        size = timedelta(years * 365 + months * 30 + days, seconds, fraction, hours=hours, minutes=minutes)
    except OverflowError:
        size = timedelta.max
    if size > _MAX_TIMESPAN:
        raise WireFormatError(f"the duration {text!r} is longer than .NET can hold ({_MAX_TIMESPAN!r})")
    return -size if match["minus"] else size


LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""The end of valid delivery times: columns and headers end with the year 9999. One day is a margin for clocks that differ."""

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Earlier due times are raised to this: a `datetime` of SQL Server cannot hold all years, and delivery is immediate anyway."""

_NOTHING: Final = timedelta()


def as_delay(delay: object) -> timedelta | None:
    """Convert a timedelta or seconds to a delay. WireFormatError for another type and beyond the range of a timedelta."""
    if delay is None or isinstance(delay, timedelta):
        return delay
    if isinstance(delay, (int, float)) and not isinstance(delay, bool) and abs(delay) <= timedelta.max.total_seconds() / 2:
        return timedelta(seconds=delay)
    raise WireFormatError(f"delay is {type(delay).__name__} ({delay!r:.60}); expected seconds or a timedelta, such as 60")


def check_delay(delay: object, deliver_at: object, time_to_be_received: timedelta | None) -> None:
    """Raise WireFormatError for values of another type, ConfigurationError for values that exclude each other."""
    if deliver_at is not None and not isinstance(deliver_at, datetime):
        raise WireFormatError(f"deliver_at is {type(deliver_at).__name__} ({deliver_at!r}); expected an aware datetime")
    if isinstance(deliver_at, datetime) and deliver_at.utcoffset() is None:
        raise WireFormatError(
            f"deliver_at is {deliver_at!r}, which has no time zone; expected an aware datetime, as from timezone.make_aware()"
        )
    if delay is not None and deliver_at is not None:
        raise ConfigurationError(f"both delay ({delay!r}) and deliver_at ({deliver_at!r}) are given: leave one of them out")
    if time_to_be_received is not None and (delay is not None or deliver_at is not None):
        raise ConfigurationError(
            f"time_to_be_received ({time_to_be_received}) is given with a delay: a delayed message cannot expire; "
            "leave one of them out"
        )


def deliver_at_header(delay: timedelta | None, deliver_at: datetime | None, now: datetime) -> str:
    """The text of the header ``NServiceBus.DeliverAt``; WireFormatError for a time beyond LATEST.

    The requested time, or the sender's `now` plus the delay. Only the due time that the database computes takes effect.
    """
    if deliver_at is None:
        wait = max(delay or _NOTHING, _NOTHING)
        if wait >= LATEST - now:
            raise WireFormatError(f"the delay {delay!r} ends after the year 9999, the last that a due time can be in")
        return format_time(now + wait)
    if deliver_at >= LATEST:
        raise WireFormatError(f"deliver_at is {deliver_at!r}, after the year 9999, the last that a due time can be in")
    return format_time(deliver_at)


def delay_milliseconds(delay: timedelta) -> int:
    """Whole milliseconds, rounded up so that no delivery is early; 0 if due immediately."""
    return max(0, -(-delay // timedelta(milliseconds=1)))


def due_time(deliver_at: datetime) -> datetime:
    """The time within the range of a delayed table."""
    return max(deliver_at, EARLIEST)
