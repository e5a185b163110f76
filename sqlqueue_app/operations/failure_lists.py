"""Lists of failures for pages: a page of messages, the groups with their counts, by few statements over the index.

Pages follow each other by key, not by offset, and counts end at a bound: neither reads more the longer the list is. The groups are
counted in one pass over an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, Max, Min, Q, QuerySet

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import FailedMessage, FailureGroup
from sqlqueue_app.operations.failure_groups import CLASSIFIERS
from sqlqueue_app.operations.failure_selection import FailureSelection

COUNTED_AT_MOST: Final = 10_000
GROUPS_PER_PAGE: Final = 50
PAGE_SIZES: Final = (50, 25, 100, 200)
# The trend of a group: the last 24 hours in pieces of two.
PIECES: Final = 12
PIECE: Final = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class Key:
    """A place in a list that is ordered by time and id, newest first."""

    at: datetime
    id: UUID

    def __str__(self) -> str:
        return f"{self.at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}_{self.id}"

    @classmethod
    def read(cls, text: str) -> Key | None:
        """From a query string; None for what is no key."""
        at, _, unique = text.partition("_")
        try:
            instant = datetime.fromisoformat(at.replace("Z", "+00:00"))
            return cls(instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC), UUID(unique))
        except (ValueError, OverflowError):
            return None


@dataclass(frozen=True, slots=True)
class FailurePage:
    """Messages, the newest failure first. `next` is where the next page begins, None on the last one."""

    messages: tuple[FailedMessage, ...]
    next: Key | None


def read_failures(messages: QuerySet[FailedMessage], *, after: Key | None, size: int) -> FailurePage:
    """A page of the messages; one statement."""
    if after is not None:
        # The first condition says nothing more, but lets the database begin in the middle of its index.
        behind = Q(failed_at__lt=after.at) | Q(failed_at=after.at, pk__lt=after.id)
        messages = messages.filter(Q(failed_at__lte=after.at) & behind)
    rows = list(messages.order_by("-failed_at", "-pk")[: size + 1])
    shown = rows[:size]
    last = shown[-1] if len(rows) > size else None
    return FailurePage(tuple(shown), None if last is None else Key(_instant(last.failed_at), last.pk))


def count_failures(messages: QuerySet[FailedMessage]) -> tuple[int, bool]:
    """How many there are, and whether that is exact: counting ends at 10,000. One statement."""
    found = messages.order_by()[: COUNTED_AT_MOST + 1].values("pk").count()
    return min(found, COUNTED_AT_MOST), found <= COUNTED_AT_MOST


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group with the messages of a selection in it. `trend` are the failures of the last 24 hours, the last piece last."""

    group: FailureGroup
    count: int
    first: datetime
    last: datetime
    trend: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Groups, the one with the newest failure first. `next` is where the next page begins, None on the last one."""

    groups: tuple[GroupRow, ...]
    next: Key | None


def read_groups(selection: FailureSelection, classifier: str, *, now: datetime, after: Key | None = None) -> GroupPage:
    """A page of the groups of a classifier, by its key, with the messages of the selection; three statements.

    Raises KeyError for a classifier that there is not.
    """
    field = CLASSIFIERS[classifier].field
    counted = selection.queryset().exclude(**{field: None}).order_by().values(field)
    counted = counted.annotate(count=Count("*"), first=Min("failed_at"), last=Max("failed_at"))
    if after is not None:
        counted = counted.filter(Q(last__lt=after.at) | Q(last=after.at, **{f"{field}__lt": after.id}))
    rows = list(counted.order_by("-last", f"-{field}")[: GROUPS_PER_PAGE + 1])
    shown = rows[:GROUPS_PER_PAGE]
    ids = [row[field] for row in shown]
    groups = FailureGroup.objects.using(managed_alias()).in_bulk(ids)
    trends = read_trends(selection, classifier, ids, now)
    found = tuple(
        GroupRow(groups[row[field]], row["count"], row["first"], row["last"], trends.get(row[field], (0,) * PIECES))
        for row in shown
        if row[field] in groups
    )
    last = shown[-1] if len(rows) > GROUPS_PER_PAGE else None
    return GroupPage(found, None if last is None else Key(last["last"], last[field]))


def read_trends(selection: FailureSelection, classifier: str, groups: Sequence[UUID], now: datetime) -> dict[UUID, tuple[int, ...]]:
    """How many messages of each group have failed in each two of the last 24 hours; groups without any are left out."""
    if not groups:
        return {}
    field = CLASSIFIERS[classifier].field
    begin = now - PIECE * PIECES
    pieces: dict[str, Any] = {}
    for number in range(PIECES):
        since = begin + PIECE * number
        pieces[f"piece{number}"] = Count("failed_at", filter=Q(failed_at__gte=since, failed_at__lt=since + PIECE))
    recent = selection.queryset().filter(**{f"{field}__in": groups}, failed_at__gte=begin)
    rows = recent.order_by().values(field).annotate(**pieces)
    return {row[field]: tuple(row[name] for name in pieces) for row in rows}


def _instant(value: datetime | None) -> datetime:
    instant: datetime = value  # type: ignore[assignment]  # of a column that is never NULL
    return instant
