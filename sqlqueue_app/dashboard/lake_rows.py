"""Messages of the lake as rows of texts, and as files."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue_app.dashboard.formats import Stamp, number, precise_duration, rate, size, stamp
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.lake.columns import FAILURES
from sqlqueue_app.lake.search import FoundMessage, Results
from sqlqueue_app.operations.browse import MessageDetail, detail_of
from sqlqueue_app.tables.queue import PEEKED_BODY_BYTES
from sqlqueue_app.tables.rows import PeekedRow

COLUMNS: Final = (
    "counted_at", "kind", "queue", "row_version", "message_id", "conversation_id", "related_to", "message_type", "intent",
    "sending_endpoint", "endpoint", "sent_at", "started_at", "ended_at", "processing_seconds", "critical_seconds", "body_bytes",
    "is_retried", "exception_type", "exception_message",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LakeRow:
    """A message as the list shows it."""

    message: FoundMessage
    url: str
    conversation_url: str
    at: Stamp
    state: State
    processing: str
    critical: str
    is_negative: bool
    size: str


def lake_row(each: FoundMessage, url: str, conversation_url: str) -> LakeRow:
    """The row of a message."""
    return LakeRow(
        each,
        url,
        conversation_url,
        stamp(each.counted_at),
        state_of(each),
        _length(each.processing_seconds),
        _length(each.critical_seconds),
        each.critical_seconds is not None and each.critical_seconds < 0,
        "NULL" if each.body_bytes is None else size(each.body_bytes),
    )


def state_of(each: FoundMessage) -> State:
    """Whether it was handled, or has failed."""
    return State(Level.WARNING, _("failed")) if each.table == FAILURES.name else State(Level.OK, _("handled"))


def _length(seconds: float | None) -> str:
    return "–" if seconds is None else precise_duration(timedelta(seconds=seconds))


def results_line(results: Results) -> str:
    """How many were found, in which time, in how many files."""
    took = _("%(seconds)s s") % {"seconds": rate(results.seconds)}
    files = ngettext("%(count)s file", "%(count)s files", results.files) % {"count": number(results.files)}
    if results.count is not None:
        found = ngettext("%(count)s message", "%(count)s messages", results.count) % {"count": number(results.count)}
    elif results.is_partial and not results.messages:
        found = _("no message so far")
    elif results.next is not None:
        found = _("more than %(count)s messages") % {"count": number(len(results.messages))}
    else:
        count = len(results.messages)
        found = ngettext("%(count)s message", "%(count)s messages", count) % {"count": number(count)}
    return _("%(found)s, searched in %(took)s in %(files)s") % {"found": found, "took": took, "files": files}


def exported_messages(messages: Iterable[FoundMessage]) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, by COLUMNS."""
    for each in messages:
        kind = "failed" if each.table == FAILURES.name else "handled"
        yield (each.counted_at, kind, *(getattr(each, name) for name in COLUMNS[2:]))


def detail_of_lake(each: FoundMessage, *, as_hex: bool) -> MessageDetail:
    """The message in full, as if it were in a table; the body is its beginning."""
    body = None if each.body is None else each.body[:PEEKED_BODY_BYTES]
    row = PeekedRow(
        each.row_version, _uuid(each.native_id), None, None, each.expires, False, each.headers, body, each.body_bytes
    )  # fmt: skip
    return detail_of(row, as_hex=as_hex)


def _uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        return uuid.UUID(int=0)
