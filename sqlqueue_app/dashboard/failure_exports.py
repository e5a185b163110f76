"""Failed messages and their groups as rows of files: all of a list, not only the page that is shown."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet

from sqlqueue_app.models import FailedMessage, FailureStatus
from sqlqueue_app.operations.failure_lists import Key, read_failures, read_groups
from sqlqueue_app.operations.failure_selection import FailureSelection

# Bodies and headers are in the error queue, and not part of it.
MESSAGE_COLUMNS: Final = (
    "id", "status", "message_id", "message_type", "endpoint", "failed_q", "queue", "exception_type", "exception_message", "poison",
    "attempts", "first_failed_at", "failed_at", "sent_at", "status_at", "conversation_id", "size", "retried_to",
)  # fmt: skip
GROUP_COLUMNS: Final = (
    "id",
    "classifier",
    "title",
    "messages",
    "first",
    "last",
    "note",
    "noted_by",
    "noted_at",
    "also_id",
    "also_classifier",
    "also_title",
)
_READ_AT_ONCE: Final = 1_000


def exported_failures(messages: QuerySet[FailedMessage]) -> Iterator[tuple[Any, ...]]:
    """A row for each message, read a thousand at a time."""
    after: Key | None = None
    while True:
        page = read_failures(messages, after=after, size=_READ_AT_ONCE)
        for each in page.messages:
            values = {name: getattr(each, name) for name in MESSAGE_COLUMNS}
            yield tuple({**values, "status": FailureStatus(each.status).name.lower()}.values())
        if (after := page.next) is None:
            return


def exported_groups(selection: FailureSelection, classifier: str, now: datetime, also: str = "") -> Iterator[tuple[Any, ...]]:
    """A row for each group of a classifier, or for each pair of groups of two."""
    after: Key | None = None
    while True:
        page = read_groups(selection, classifier, now=now, after=after, also=also)
        for each in page.groups:
            group = each.group
            note = (group.note, group.noted_by, group.noted_at)
            other = (None, None, None) if each.also is None else (each.also.pk, each.also.classifier, each.also.title)
            yield (group.pk, group.classifier, group.title, each.count, each.first, each.last, *note, *other)
        if (after := page.next) is None:
            return
