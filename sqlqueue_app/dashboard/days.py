"""Days in query strings, in the current time zone."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta

from django.db.models import Q
from django.utils import timezone
from django.utils.dateparse import parse_date


def day_of(text: str) -> date | None:
    """The day that a text is; None for any other text."""
    try:
        return parse_date(text)
    except ValueError:
        return None


def within(column: str, since: date | None, until: date | None) -> Q:
    """The rows whose instant is on one of these days, both included; None: no end."""
    found = Q()
    if since is not None:
        found &= Q(**{f"{column}__gte": _begin(since)})
    if until is not None and until < date.max:
        found &= Q(**{f"{column}__lt": _begin(until + timedelta(days=1))})
    return found


def _begin(day: date) -> datetime:
    begin = datetime.combine(day, time())
    try:
        return timezone.make_aware(begin)
    except OverflowError:  # at the ends of time
        return begin.replace(tzinfo=timezone.get_default_timezone())
