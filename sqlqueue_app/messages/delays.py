"""When a message shall be delivered: a delay or a time, checked before anything is written.

Nothing here asks a clock: whoever sends hands the time in.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from sqlqueue_app.messages.errors import ConfigurationError, WireFormatError
from sqlqueue_app.messages.times import format_time

LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""From here on no time can be delivered at: columns and headers end with the year 9999. A day is left for clocks that differ."""

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""What is due before is due since then: a `datetime` of SQL Server cannot hold every year, and it is delivered at once anyway."""

_NOTHING: Final = timedelta()


def check_delay(delay: object, deliver_at: object, time_to_be_received: timedelta | None) -> None:
    """Raise WireFormatError for values of another kind, ConfigurationError for values that exclude each other."""
    if delay is not None and not isinstance(delay, timedelta):
        raise WireFormatError(f"delay is {type(delay).__name__} ({delay!r}); expected a timedelta, such as timedelta(seconds=5)")
    if deliver_at is not None and not isinstance(deliver_at, datetime):
        raise WireFormatError(f"deliver_at is {type(deliver_at).__name__} ({deliver_at!r}); expected an aware datetime")
    if isinstance(deliver_at, datetime) and deliver_at.utcoffset() is None:
        raise WireFormatError(
            f"deliver_at is {deliver_at!r}, which has no time zone; expected an aware datetime, such as timezone.make_aware() gives"
        )
    if delay is not None and deliver_at is not None:
        raise ConfigurationError(f"both delay ({delay!r}) and deliver_at ({deliver_at!r}) are given: leave one of them out")
    if time_to_be_received is not None and (delay is not None or deliver_at is not None):
        raise ConfigurationError(
            f"time_to_be_received ({time_to_be_received!r}) is given with a delay: a message that waits cannot expire, and peers "
            "refuse it too; leave one of them out"
        )


def deliver_at_header(delay: timedelta | None, deliver_at: datetime | None, now: datetime) -> str:
    """The text of the header ``NServiceBus.DeliverAt``; WireFormatError for a time beyond LATEST.

    The time that was asked for, or the sender's `now` with the delay: what counts is the due time that the database computes.
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
    """Whole milliseconds, rounded up so that nothing comes too early; 0 for what is due at once."""
    return max(0, -(-delay // timedelta(milliseconds=1)))


def due_time(deliver_at: datetime) -> datetime:
    """The time as a delayed table can hold it."""
    return max(deliver_at, EARLIEST)
