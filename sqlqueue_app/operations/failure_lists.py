"""Lists of failures for pages: a page of messages, the groups with their counts, by few statements over the index.

Pages follow each other by key, not by offset, and counts end at a bound: neither reads more the longer the list is. The groups are
counted in one pass over an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, Max, Min, Q, QuerySet

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import FailedMessage, FailureGroup
from sqlqueue_app.operations.failure_selection import FailureSelection

COUNTED_AT_MOST: Final = 10_000
GROUPS_PER_PAGE: Final = 50
PAGE_SIZES: Final = (50, 25, 100, 200)
# The trend of a group: the last 24 hours in pieces of two.
PIECES: Final = 12
PIECE: Final = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class Key:
    """A place in a list that is ordered by time and id, newest first; in one of pairs, by the id of the other as well."""

    at: datetime
    id: UUID
    also: UUID | None = None

    def __str__(self) -> str:
        also = "" if self.also is None else f"_{self.also}"
        return f"{self.at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}_{self.id}{also}"

    @classmethod
    def read(cls, text: str) -> Key | None:
        """From a query string; None for what is no key."""
        at, _, ids = text.partition("_")
        unique, _, also = ids.partition("_")
        try:
            instant = datetime.fromisoformat(at.replace("Z", "+00:00"))
            aware = instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
            return cls(aware, UUID(unique), UUID(also) if also else None)
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
    """A group with the messages of a selection in it. `trend` are the failures of the last 24 hours, the last piece last.

    With `also` they are those that are in this second group as well.
    """

    group: FailureGroup
    count: int
    first: datetime
    last: datetime
    trend: tuple[int, ...]
    also: FailureGroup | None = None


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Groups, the one with the newest failure first. `next` is where the next page begins, None on the last one."""

    groups: tuple[GroupRow, ...]
    next: Key | None


def read_groups(
    selection: FailureSelection, classifier: str, *, now: datetime, after: Key | None = None, also: str = ""
) -> GroupPage:
    """A page of the groups of a classifier, by its key, with the messages of the selection; three statements.

    With a second classifier `also` there is a row for each pair of groups that have messages in common. Raises KeyError for a
    classifier that there is not.
    """
    fields = _fields(classifier, also)
    counted = selection.queryset().exclude(_any_missing(fields)).order_by().values(*fields)
    counted = counted.annotate(count=Count("*"), first=Min("failed_at"), last=Max("failed_at"))
    if after is not None:
        counted = counted.filter(_behind(after, fields))
    rows = list(counted.order_by("-last", *(f"-{field}" for field in fields))[: GROUPS_PER_PAGE + 1])
    shown = rows[:GROUPS_PER_PAGE]
    ids = [tuple(row[field] for field in fields) for row in shown]
    groups = FailureGroup.objects.using(managed_alias()).in_bulk({each for pair in ids for each in pair})
    trends = read_trends(selection, fields, ids, now)
    found = tuple(
        GroupRow(
            groups[pair[0]],
            row["count"],
            row["first"],
            row["last"],
            trends.get(pair, (0,) * PIECES),
            groups[pair[1]] if len(pair) > 1 else None,
        )
        for pair, row in zip(ids, shown, strict=True)
        if all(each in groups for each in pair)
    )
    return GroupPage(found, Key(shown[-1]["last"], *ids[-1]) if len(rows) > GROUPS_PER_PAGE else None)


def _fields(classifier: str, also: str) -> list[str]:
    return [CLASSIFIERS[each].field for each in (classifier, also) if each]


def _any_missing(fields: Sequence[str]) -> Q:
    return reduce(or_, (Q(**{field: None}) for field in fields))


def _behind(after: Key, fields: Sequence[str]) -> Q:
    """What a list of groups has behind a place."""
    first, *others = fields
    condition = Q(last__lt=after.at) | Q(last=after.at, **{f"{first}__lt": after.id})
    if others and after.also is not None:
        condition |= Q(last=after.at, **{first: after.id, f"{others[0]}__lt": after.also})
    return condition


def read_trends(
    selection: FailureSelection, fields: Sequence[str], groups: Sequence[tuple[UUID, ...]], now: datetime
) -> dict[tuple[UUID, ...], tuple[int, ...]]:
    """How many messages of each group, or pair, have failed in each two of the last 24 hours; those without any are left out."""
    if not groups:
        return {}
    begin = now - PIECE * PIECES
    pieces: dict[str, Any] = {}
    for number in range(PIECES):
        since = begin + PIECE * number
        pieces[f"piece{number}"] = Count("failed_at", filter=Q(failed_at__gte=since, failed_at__lt=since + PIECE))
    wanted = {f"{field}__in": {group[place] for group in groups} for place, field in enumerate(fields)}
    recent = selection.queryset().filter(**wanted, failed_at__gte=begin)
    rows = recent.order_by().values(*fields).annotate(**pieces)
    return {tuple(row[field] for field in fields): tuple(row[name] for name in pieces) for row in rows}


def _instant(value: datetime | None) -> datetime:
    instant: datetime = value  # type: ignore[assignment]  # of a column that is never NULL
    return instant
