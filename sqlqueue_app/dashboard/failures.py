"""Failed messages as rows of texts: groups, lists, one message, retries that nobody has acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.dashboard.formats import Number, Stamp, bounded_number, duration, number, size, stamp
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureGroup, FailureStatus
from sqlqueue_app.operations.failure_lists import PIECE, PIECES, GroupRow
from sqlqueue_app.operations.pending_retries import Found, Whereabouts

# The classifiers by their keys, in the words of the links that choose one.
CLASSIFIER_WORDS: Mapping[str, object] = {
    "exception": gettext_lazy("Exception and stack trace"),
    "type": gettext_lazy("Message type"),
    "address": gettext_lazy("Queue"),
    "instance": gettext_lazy("Instance"),
    "endpoint": gettext_lazy("Endpoint"),
}
STATUS_WORDS: Mapping[int, tuple[Level, object]] = {
    FailureStatus.UNRESOLVED: (Level.ERROR, gettext_lazy("Unresolved")),
    FailureStatus.RESOLVED: (Level.OK, gettext_lazy("Resolved")),
    FailureStatus.RETRY_ISSUED: (Level.INFO, gettext_lazy("Retry issued")),
    FailureStatus.ARCHIVED: (Level.INFO, gettext_lazy("Archived")),
    FailureStatus.DELETED: (Level.INFO, gettext_lazy("Deleted")),
    FailureStatus.GONE: (Level.WARNING, gettext_lazy("Gone from the error queue")),
}
_LONGEST_BAR = 20


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a trend, as a rectangle."""

    x: int
    y: int
    height: int


@dataclass(frozen=True, slots=True)
class Trend:
    """The failures of the last 24 hours as bars, and in words."""

    bars: tuple[Bar, ...]
    text: str


@dataclass(frozen=True, slots=True)
class GroupText:
    """A group as the table shows it."""

    id: UUID
    title: str
    url: str
    count: Number
    first: Stamp
    last: Stamp
    trend: Trend
    note: Note | None
    also: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """What somebody has said of a group."""

    text: str
    by: str
    at: Stamp | None


@dataclass(frozen=True, slots=True)
class ListedFailure:
    """A failed message as a table shows it; `why` is for retries that are pending."""

    id: UUID
    url: str
    name: str
    message_id: str
    endpoint: str
    exception_type: str
    exception_message: str
    failed_at: Stamp
    attempts: str
    state: State
    why: State | None = None
    since: str = ""
    target: str = ""


def group_text(row: GroupRow, url: str) -> GroupText:
    """The row of a group."""
    return GroupText(
        id=row.group.pk,
        title=row.group.title,
        url=url,
        count=Number(row.count, number(row.count)),
        first=stamp(row.first),
        last=stamp(row.last),
        trend=trend_of(row.trend),
        note=note_of(row.group),
        also=row.also.title if row.also is not None else "",
    )


def note_of(group: FailureGroup) -> Note | None:
    """The note of a group, with who wrote it and when."""
    if not group.note:
        return None
    return Note(group.note, group.noted_by, stamp(group.noted_at) if group.noted_at else None)


def trend_of(pieces: tuple[int, ...]) -> Trend:
    """Bars whose tallest is 20 high, and the same in words."""
    most = max(pieces, default=0) or 1
    heights = [max(round(each * _LONGEST_BAR / most), 1) if each else 0 for each in pieces]
    bars = tuple(Bar(place * 5, _LONGEST_BAR - height, height) for place, height in enumerate(heights) if height)
    failures, recent = sum(pieces), pieces[-1] if pieces else 0
    text = ngettext("%(count)s failure in 24 hours", "%(count)s failures in 24 hours", failures) % {"count": number(failures)}
    if failures:
        hours = PIECE // timedelta(hours=1)
        text += _("; in the last %(hours)d of them %(recent)s") % {"hours": hours, "recent": number(recent)}
    return Trend(bars, text)


TREND_WIDTH = PIECES * 5
TREND_HEIGHT = _LONGEST_BAR


def listed_failure(message: FailedMessage, url: str) -> ListedFailure:
    """The row of a message."""
    return ListedFailure(
        id=message.pk,
        url=url,
        name=message.message_type or _("without a type"),
        message_id=message.message_id,
        endpoint=message.endpoint,
        exception_type=message.exception_type,
        exception_message=message.poison or message.exception_message,
        failed_at=stamp(instant(message.failed_at)),
        attempts=number(message.attempts),
        state=state_of(message),
    )


def state_of(message: FailedMessage) -> State:
    """What has become of the message, in words."""
    if message.poison and message.status == FailureStatus.UNRESOLVED:
        return State(Level.ERROR, _("Cannot be read"))
    if message.attempts > 1 and message.status == FailureStatus.UNRESOLVED:
        return State(Level.ERROR, _("Failed again"))
    level, word = STATUS_WORDS[message.status]
    return State(level, str(word))


def pending_text(message: FailedMessage, found: Found, url: str, now: datetime) -> ListedFailure:
    """The row of a retry that is pending, with the reason."""
    row = listed_failure(message, url)
    return ListedFailure(
        **{name: getattr(row, name) for name in ListedFailure.__slots__ if name not in ("why", "since", "target")},
        why=_reason(message, found),
        since=duration(now - instant(message.status_at)),
        target=message.retried_to,
    )


def _reason(message: FailedMessage, found: Found) -> State:
    queue = message.retried_to or _("its queue")
    reasons: Mapping[Whereabouts, tuple[Level, Callable[[], str]]] = {
        Whereabouts.WAITING: (
            Level.INFO,
            lambda: (
                _("It waits in “%(queue)s” as number %(number)s: nobody has received it yet.")
                % {"queue": queue, "number": found.row_version}
            ),
        ),
        Whereabouts.TAKEN: (
            Level.WARNING,
            lambda: (
                _(
                    "It was received from “%(queue)s”, but not acknowledged: it is being handled, waits for a delayed retry, "
                    "or its endpoint does not acknowledge retries."
                )
                % {"queue": queue}
            ),
        ),
        Whereabouts.NOT_FOUND: (
            Level.INFO,
            lambda: (
                _("It is not among the first messages of “%(queue)s”: it was received, or waits further back.") % {"queue": queue}
            ),
        ),
        Whereabouts.NO_QUEUE: (Level.ERROR, lambda: _("The queue “%(queue)s” does not exist any more.") % {"queue": queue}),
        Whereabouts.UNREADABLE: (
            Level.ERROR,
            lambda: _("The queue “%(queue)s” cannot be read: %(error)s") % {"queue": queue, "error": found.detail},
        ),
        Whereabouts.UNKNOWN: (Level.INFO, lambda: _("It was not looked for in “%(queue)s”.") % {"queue": queue}),
    }
    level, text = reasons[found.where]
    return State(level, text())


@dataclass(frozen=True, slots=True)
class AttemptText:
    """A failure of a message as the table of its history shows it."""

    failed_at: Stamp
    exception_type: str
    exception_message: str
    failed_q: str
    lies_there: bool


def attempt_text(attempt: FailedAttempt) -> AttemptText:
    """The row of one failure."""
    return AttemptText(
        failed_at=stamp(instant(attempt.failed_at)),
        exception_type=attempt.exception_type,
        exception_message=attempt.exception_message,
        failed_q=attempt.failed_q,
        lies_there=attempt.row_version is not None,
    )


def scope_in_words(count: int, scope: str, *, exact: bool) -> str:
    """A number of messages, never without what it counts."""
    text = bounded_number(count, exact=exact).text
    return ngettext("%(count)s message: %(scope)s", "%(count)s messages: %(scope)s", count) % {"count": text, "scope": scope}


def size_text(value: int | None) -> str:
    """The size of a body."""
    return _("NULL") if value is None else size(value)


def instant(value: datetime | None) -> datetime:
    """The value of a column of instants that is never NULL."""
    at: datetime = value  # type: ignore[assignment]
    return at
