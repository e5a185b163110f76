"""How long the first message of a queue has been waiting.

There is no column for it, so the headers say: DeliverAt, else TimeSent.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import PoisonMessage
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.messages.times import parse_time


class NoAge(enum.StrEnum):
    """Why a head has no age."""

    UNREADABLE_HEADERS = "its headers cannot be read"
    NO_TIME = "its headers hold no time"
    UNREADABLE_TIME = "its time cannot be read"


@dataclass(frozen=True, slots=True)
class HeadAge:
    """The age of a head by `header`; negative where the sender's clock is ahead of ours. None for the reason `unknown`."""

    age: timedelta | None
    header: str | None = None
    unknown: NoAge | None = None


def head_age(text: str | None, now: datetime) -> HeadAge:
    """The time since the row with these headers was due (DeliverAt), or else sent (TimeSent). Never raises."""
    try:
        headers = read_headers(text)
    except PoisonMessage:
        return HeadAge(None, unknown=NoAge.UNREADABLE_HEADERS)
    for name in (names.DELIVER_AT, names.TIME_SENT):
        value = headers.get(name)
        if value:
            try:
                return HeadAge(now - parse_time(value), name)
            except ValueError:
                return HeadAge(None, name, NoAge.UNREADABLE_TIME)
    return HeadAge(None, unknown=NoAge.NO_TIME)
