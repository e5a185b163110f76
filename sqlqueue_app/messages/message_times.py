"""The times of a message by its headers: how long it waited, how long it was processed, both (operations reference 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.times import parse_time


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """Instants, and what lies between them; None where a header is missing or cannot be read.

    Negative times come from clocks that differ, and are not corrected. `ended` is when processing ended, or when it failed.
    """

    sent: datetime | None
    due: datetime | None
    started: datetime | None
    ended: datetime | None
    failed: bool

    @property
    def begin(self) -> datetime | None:
        """From when on it could have been handled: when it was due, else when it was sent."""
        return self.due or self.sent

    @property
    def delivery(self) -> timedelta | None:
        """From then until its processing started."""
        return _between(self.begin, self.started)

    @property
    def processing(self) -> timedelta | None:
        """How long it was processed."""
        return _between(self.started, self.ended)

    @property
    def critical(self) -> timedelta | None:
        """From when it could have been handled until it was, or had failed."""
        return _between(self.begin, self.ended)


def message_times(headers: Mapping[str, str | None]) -> MessageTimes:
    """What the headers of a message say: all of it in an audit queue, when it failed in an error queue. Never raises."""
    failed = _instant(headers.get(names.TIME_OF_FAILURE))
    ended = _instant(headers.get(names.PROCESSING_ENDED))
    return MessageTimes(
        sent=_instant(headers.get(names.TIME_SENT)),
        due=_instant(headers.get(names.DELIVER_AT)),
        started=_instant(headers.get(names.PROCESSING_STARTED)),
        ended=ended or failed,
        failed=ended is None and failed is not None,
    )


def _instant(text: str | None) -> datetime | None:
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def _between(begin: datetime | None, end: datetime | None) -> timedelta | None:
    return None if begin is None or end is None else end - begin
