"""What the search of old messages is asked for, by its query string."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.dashboard.days import day_of
from sqlqueue_app.lake.asking import Asked, Cursor
from sqlqueue_app.lake.columns import FAILURES, MESSAGES
from sqlqueue_app.lake.data_files import SEARCHED

LONGEST: Final = 400
ALL: Final = "all"
RANGES: Final[tuple[tuple[str, str | Promise, timedelta | None], ...]] = (
    ("1h", _("1 hour"), timedelta(hours=1)),
    ("6h", _("6 hours"), timedelta(hours=6)),
    ("1d", _("1 day"), timedelta(days=1)),
    ("7d", _("7 days"), timedelta(days=7)),
    ("30d", _("30 days"), timedelta(days=30)),
    ("1y", _("1 year"), timedelta(days=365)),
    (ALL, _("all times"), None),
)
_DEFAULT: Final = "6h"
KINDS: Final = (("", _("handled and failed")), (MESSAGES.name, _("handled")), (FAILURES.name, _("failed")))


@dataclass(frozen=True, slots=True)
class SearchAsked:
    """The fields of the form as they are shown again; `asked` is what they mean. `is_search`: somebody looks for something."""

    conversation: str
    message_id: str
    message_type: str
    endpoint: str
    text: str
    kind: str
    period: str
    since: date | None
    until: date | None
    asked: Asked
    is_search: bool

    @classmethod
    def read(cls, request: HttpRequest, now: datetime, size: int) -> SearchAsked:
        """The last six hours where nothing else is asked for, all times for an id; what cannot be read is left out."""
        query = request.GET
        # NUL is in no header.
        texts = [
            query.get(key, "").replace("\0", "").strip()[:LONGEST] for key in ("conversation", "id", "type", "endpoint", "text")
        ]
        conversation, message_id, message_type, endpoint, text = texts
        lengths = {name: length for name, _label, length in RANGES}
        period = query.get("period", "")
        if period not in lengths:
            period = ALL if conversation or message_id else _DEFAULT
        since, until = (day_of(query.get(name, "")) for name in ("since", "until"))
        length = lengths[period]
        begin = None if length is None or since is not None or until is not None else now - length
        kind = query.get("kind", "")
        asked = Asked(
            conversation,
            message_id,
            message_type,
            endpoint,
            text,
            tables=(kind,) if kind in SEARCHED else SEARCHED,
            since=begin if since is None else _midnight(since),
            until=None if until is None or until >= date.max else _midnight(until + timedelta(days=1)),
            after=Cursor.read(query.get("after", "")),
            size=size,
        )
        return cls(
            conversation,
            message_id,
            message_type,
            endpoint,
            text,
            kind,
            period,
            since,
            until,
            asked,
            bool(query.keys() - {"format"}),
        )


def _midnight(day: date) -> datetime:
    """The begin of a day in the current time zone."""
    try:
        return timezone.make_aware(datetime.combine(day, time())).astimezone(UTC)
    except OverflowError:  # at the ends of time
        return datetime.combine(day, time(), UTC)
