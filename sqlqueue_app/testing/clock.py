"""A clock that a test sets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FakeClock:
    """Stands still until it is told to go on. For one thread."""

    def __init__(self, now: datetime | None = None) -> None:
        """`now` is aware; without it the clock begins with the present. ValueError for a time without a zone."""
        if now is not None and now.utcoffset() is None:
            raise ValueError(f"FakeClock({now!r}) has no time zone: expected an aware datetime, such as datetime(…, tzinfo=UTC)")
        self._now = (now or datetime.now(UTC)).astimezone(UTC)

    def now(self) -> datetime:
        """What the clock says, in UTC."""
        return self._now

    def advance(self, time: timedelta) -> datetime:
        """Go on by this time and return the new one; ValueError for a time below zero."""
        if time < timedelta():
            raise ValueError(f"FakeClock.advance({time!r}): a clock does not go back")
        self._now += time
        return self._now
