"""The headers that count the delayed retries of a message (transport reference 9)."""

from __future__ import annotations

from datetime import datetime

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.headers import Headers, whole_number
from sqlqueue_app.messages.times import format_time, parse_time


def retries_so_far(headers: Headers) -> int:
    """How many delayed retries a message has had; 0 where the header holds no number."""
    return whole_number(headers.get(names.DELAYED_RETRIES))


def last_retry_at(headers: Headers) -> datetime | None:
    """When the last one was stored, aware (cores 4 and 5 write when the first one was); None where the header holds no time."""
    text = headers.get(names.DELAYED_RETRIES_TIMESTAMP)
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None


def with_next_retry(headers: Headers, now: datetime) -> Headers:
    """The headers for one delayed retry more, which is stored at `now`; its immediate retries are counted anew."""
    counted = {name: value for name, value in headers.items() if name != names.IMMEDIATE_RETRIES}
    counted[names.DELAYED_RETRIES] = str(retries_so_far(headers) + 1)
    counted[names.DELAYED_RETRIES_TIMESTAMP] = format_time(now)
    return counted
