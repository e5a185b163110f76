"""Queries over the index of failures: lists, groups with counts, one message, lookups by id, pending retries.

Lists use keyset pagination and counts stop at a bound, so that no query reads more rows as a list grows. Groups are counted in one
pass over an index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, Max, Min, Q, QuerySet, TextChoices
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.browsing.messages import MessageDetail, detail_of
from sqlqueue_app.conf import Settings
from sqlqueue_app.failures.index import FailureRecords, catch_up, error_queues, read_error_row
from sqlqueue_app.failures.selection import MAX_IDS, FailureSelection, has_id
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import guid_of
from sqlqueue_app.messages.errors import AddressError, DatabaseError, QueueNotFound
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureGroup, FailureStatus, Operation, managed_alias
from sqlqueue_app.status.queues import KnownQueue, address_book_of
from sqlqueue_app.tables.connections import database_now, guarded_read, optional_read
from sqlqueue_app.tables.queue import QueueTable, queue_table
from sqlqueue_app.tables.row_selection import find_ids

MAX_COUNTED: Final = 10_000
GROUPS_PER_PAGE: Final = 50
PAGE_SIZES: Final = (50, 25, 100, 200)
# The trend of a group covers 24 hours in pieces of two hours.
PIECES: Final = 12
PIECE: Final = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class PageKey:
    """A position in a list ordered by time and id, newest first; for pairs of groups with the id of the second group."""

    at: datetime
    id: UUID
    also: UUID | None = None

    def __str__(self) -> str:
        also = "" if self.also is None else f"_{self.also}"
        return f"{self.at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}_{self.id}{also}"

    @classmethod
    def read(cls, text: str) -> PageKey | None:
        """Parse a query parameter; None if the text is not a key."""
        at, _separator, ids = text.partition("_")
        unique, _separator, also = ids.partition("_")
        try:
            instant = datetime.fromisoformat(at.replace("Z", "+00:00"))
            aware = instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
            return cls(aware, UUID(unique), UUID(also) if also else None)
        except (ValueError, OverflowError):
            return None


@dataclass(frozen=True, slots=True)
class FailurePage:
    """Messages, newest failure first. `next` is the key of the next page, None on the last page."""

    messages: tuple[FailedMessage, ...]
    next: PageKey | None


def read_failures(messages: QuerySet[FailedMessage], *, after: PageKey | None, size: int) -> FailurePage:
    """One page of the messages; one statement."""
    if after is not None:
        # The first condition is redundant, but lets the database start in the middle of its index.
        behind = Q(failed_at__lt=after.at) | Q(failed_at=after.at, pk__lt=after.id)
        messages = messages.filter(Q(failed_at__lte=after.at) & behind)
    rows = list(messages.order_by("-failed_at", "-pk")[: size + 1])
    shown = rows[:size]
    last = shown[-1] if len(rows) > size else None
    return FailurePage(tuple(shown), None if last is None else PageKey(last.failed_at, last.pk))


def count_failures(messages: QuerySet[FailedMessage], first: FailurePage | None = None) -> tuple[int, bool]:
    """The number of messages and whether it is exact: counting stops at 10,000. One statement, none if the first page has all."""
    if first is not None and first.next is None:
        return len(first.messages), True
    found = messages.order_by()[: MAX_COUNTED + 1].values("pk").count()
    return min(found, MAX_COUNTED), found <= MAX_COUNTED


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group of a selection, with `also` only what is in both. `trend` counts failures of 24 hours, most recent piece last.

    `first` is the first failure of its messages, retried ones included; `last` is the newest.
    """

    group: FailureGroup
    count: int
    first: datetime
    last: datetime
    trend: tuple[int, ...]
    also: FailureGroup | None = None


@dataclass(frozen=True, slots=True)
class GroupPage:
    """Groups, newest failure first. `next` is the key of the next page, None on the last page."""

    groups: tuple[GroupRow, ...]
    next: PageKey | None


def read_groups(
    selection: FailureSelection,
    classifier: str,
    *,
    now: datetime,
    after: PageKey | None = None,
    also: str = "",
    whole: bool = False,
) -> GroupPage:
    """One page of the groups of a classifier (by key) over a selection; three statements. `whole`: all groups, without trends.

    With a second classifier `also` there is one row per pair of groups with common messages. KeyError for an unknown classifier.
    """
    fields = [CLASSIFIERS[each].field for each in (classifier, also) if each]
    any_missing = reduce(or_, (Q(**{field: None}) for field in fields))
    counted = selection.queryset().exclude(any_missing).order_by().values(*fields)
    counted = counted.annotate(count=Count("*"), first=Min("first_failed_at"), last=Max("failed_at"))
    if after is not None:
        counted = counted.filter(_behind(after, fields))
    counted = counted.order_by("-last", *(f"-{field}" for field in fields))
    rows = list(counted if whole else counted[: GROUPS_PER_PAGE + 1])
    shown = rows if whole else rows[:GROUPS_PER_PAGE]
    ids = [tuple(row[field] for field in fields) for row in shown]
    groups = FailureGroup.objects.using(managed_alias()).in_bulk({each for pair in ids for each in pair})
    trends = defaultdict(lambda: (0,) * PIECES, {} if whole else read_trends(selection, fields, ids, now))
    found = tuple(
        GroupRow(groups[pair[0]], row["count"], row["first"], row["last"], trends[pair], groups[pair[1]] if len(pair) > 1 else None)
        for pair, row in zip(ids, shown, strict=True)
        if all(each in groups for each in pair)
    )
    return GroupPage(found, PageKey(shown[-1]["last"], *ids[-1]) if len(rows) > len(shown) else None)


def read_group(group: FailureGroup, selection: FailureSelection, *, now: datetime) -> GroupRow | None:
    """The group as a row of the groups of a selection that names it; None without a message. Two statements."""
    numbers = selection.queryset().aggregate(count=Count("*"), first=Min("first_failed_at"), last=Max("failed_at"))
    if not numbers["count"]:
        return None
    fields = [each.field for each in CLASSIFIERS.values() if each.name == group.classifier]
    trends = read_trends(selection, fields, [(group.pk,)], now) if fields else {}
    return GroupRow(group, **numbers, trend=trends.get((group.pk,), (0,) * PIECES))


def _behind(after: PageKey, fields: Sequence[str]) -> Q:
    first, *others = fields
    condition = Q(last__lt=after.at) | Q(last=after.at, **{f"{first}__lt": after.id})
    if others and after.also is not None:
        condition |= Q(last=after.at, **{first: after.id, f"{others[0]}__lt": after.also})
    return condition


def read_trends(
    selection: FailureSelection, fields: Sequence[str], groups: Sequence[tuple[UUID, ...]], now: datetime
) -> dict[tuple[UUID, ...], tuple[int, ...]]:
    """Failures per two-hour piece of the last 24 hours, by group or pair of groups; groups without failures are left out."""
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


MAX_ATTEMPTS: Final = 100
_PYTHON: Final = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class FailureDetail:
    """A failed message. `row` is its row in the error queue or None; `problem` is the error if the row cannot be read.

    `attempts` are the newest first, `operations` those that retried them by id, `copies` the failures of edited copies by message
    id. `location` is where a pending retry is.
    """

    message: FailedMessage
    attempts: tuple[FailedAttempt, ...]
    operations: Mapping[UUID, Operation]
    copies: Mapping[str, FailedMessage]
    location: RetryLocation | None
    groups: tuple[tuple[str, FailureGroup], ...]
    queue: KnownQueue | None
    table: QueueTable | None
    row: MessageDetail | None
    problem: str


def read_failure(settings: Settings, unique: UUID, *, as_hex: bool = False) -> FailureDetail | None:
    """The message with this unique id, or None. If its row is gone, that is written to the index.

    Four statements; one more each if it was retried, if it was edited, and two for a pending retry.

    The body is cut at 64 KiB and shown as bytes with `as_hex`. Raises errors of the managed database.
    """
    alias = managed_alias()
    message = FailedMessage.objects.using(alias).filter(pk=unique).first()
    if message is None:
        return None
    attempts = tuple(message.history.order_by("-failed_at", "-pk")[:MAX_ATTEMPTS])
    named = {getattr(message, each.field): key for key, each in CLASSIFIERS.items()}
    groups = FailureGroup.objects.using(alias).filter(pk__in=[each for each in named if each is not None])
    queue = next((each for each in error_queues(settings) if each.name == message.queue), None)
    table = None
    # A queue that has left the settings still holds the row.
    with suppress(AddressError):
        table = queue_table(settings.database, queue.address if queue else address_book_of(settings).parse(message.queue))
    row, problem = (None, "") if table is None else _read_row(table, message, as_hex)
    if table is not None and row is None and not problem and message.row_version is not None:
        # The row was removed. The scan of the whole queue would find this only later.
        FailureRecords(alias, table, message.queue).gone([message.row_version], database_now(alias))
        message.refresh_from_db(using=alias)
    ordered = sorted(((named[each.pk], each) for each in groups), key=lambda each: list(CLASSIFIERS).index(each[0]))
    operations = Operation.objects.using(alias).in_bulk({each.operation for each in attempts if each.operation})
    edited = [each.copy_id for each in attempts if each.copy_id]
    copies = {each.message_id: each for each in FailedMessage.objects.using(alias).filter(message_id__in=edited, edit_of=unique)}
    pending = [message] if message.status == FailureStatus.RETRY_ISSUED else []
    location = find_retries(settings, pending).get(unique)
    return FailureDetail(message, attempts, operations, copies, location, tuple(ordered), queue, table, row, problem)


def _read_row(table: QueueTable, message: FailedMessage, as_hex: bool) -> tuple[MessageDetail | None, str]:
    if message.row_version is None:
        return None, ""
    try:
        with guarded_read(table.alias, f"read {table.qualified}"):
            row = table.peek_row(message.row_version)
    except DatabaseError as error:
        return None, str(error)
    # If the table was recreated, another message can have this RowVersion.
    if row is None or read_error_row(message.queue, row, timezone.now())[1].id != message.pk:
        return None, ""
    return detail_of(row, as_hex=as_hex), ""


def traces_of(row: MessageDetail) -> tuple[str, str]:
    """The .NET-style stack trace and the Python traceback below it; either may be empty."""
    trace = (row.headers or {}).get(names.EXCEPTION_STACK_TRACE) or ""
    dotnet, found, python = trace.partition(_PYTHON)
    return dotnet.rstrip(), found + python


_BATCH: Final = 10_000


def read_all_failures(settings: Settings) -> tuple[str, ...]:
    """Index everything, which takes minutes for a long queue; returns the problems of unreadable queues. Raises DatabaseError."""
    while True:
        state = catch_up(settings, limit=_BATCH, now=database_now(managed_alias()))
        if not state.is_behind:
            return state.problems


def read_operations(selection: FailureSelection, *, limit: int) -> list[Operation]:
    """The last operations on messages of a selection, whatever their outcome. One statement."""
    changed = replace(selection, statuses=tuple(FailureStatus)).queryset().exclude(operation=None).values("operation")
    found = Operation.objects.using(managed_alias()).filter(pk__in=changed)
    return list(found.order_by("-requested_at", "-pk")[:limit])


def find_messages(text: str) -> list[UUID]:
    """The unique ids of failed messages with this message id or unique id. One statement."""
    found = FailedMessage.objects.using(managed_alias()).filter(has_id(text.strip())).order_by("-failed_at", "-pk")
    return list(found.values_list("pk", flat=True)[:MAX_IDS])


def failures_of_rows(queue: str, row_versions: Collection[int]) -> dict[int, UUID]:
    """The failed messages of indexed rows, by RowVersion; none if the index cannot be read. One statement."""
    alias = managed_alias()
    found = FailedAttempt.objects.using(alias).filter(queue=queue, row_version__in=row_versions)
    with optional_read(alias, "look up failed messages"):
        return {number: unique for number, unique in found.values_list("row_version", "failure_id") if number is not None}
    return {}  # the tables of `migrate` are missing; the overview reports it


def group_exists(group: UUID) -> bool:
    """Whether a group has this id."""
    return FailureGroup.objects.using(managed_alias()).filter(pk=group).exists()


# Bounds for one page: queues to search, and rows to read in a queue without an index of ids.
MAX_QUEUES: Final = 5
MAX_ROWS: Final = 10_000


class RetryPlace(TextChoices):
    """The place of a retried message; its label is a sentence with placeholders."""

    WAITING = "waiting", _("It waits in “%(queue)s” as number %(number)s.")
    TAKEN = (
        "taken",
        _(
            "It was received from “%(queue)s”, but not acknowledged: it is being handled, waits for a delayed retry, "
            "or its endpoint does not acknowledge retries."
        ),
    )
    NOT_FOUND = "not found", _("It is not among the first messages of “%(queue)s”: it was received, or waits further back.")
    NO_QUEUE = "no queue", _("The queue “%(queue)s” no longer exists.")
    UNREADABLE = "unreadable", _("The queue “%(queue)s” cannot be read: %(error)s")
    UNKNOWN = "unknown", _("“%(queue)s” was not searched.")


@dataclass(frozen=True, slots=True)
class RetryLocation:
    """The place of a retried message; `row_version` is its RowVersion in the queue, `detail` a database error."""

    where: RetryPlace
    row_version: int | None = None
    detail: str = ""


def find_retries(settings: Settings, messages: Iterable[FailedMessage]) -> Mapping[UUID, RetryLocation]:
    """Locate retried messages; at most two statements for each of five queues. Raises no database errors.

    A message that was received but not acknowledged is TAKEN; NOT_FOUND if the queue is too long to search it completely.
    """
    by_queue: defaultdict[str, list[FailedMessage]] = defaultdict(list)
    for message in messages:
        by_queue[message.retried_to].append(message)
    found: dict[UUID, RetryLocation] = {}
    for number, (queue, members) in enumerate(by_queue.items()):
        located = _locate(settings, queue, members) if number < MAX_QUEUES else {}
        found |= {each.pk: located.get(each.pk, RetryLocation(RetryPlace.UNKNOWN)) for each in members}
    return found


def _locate(settings: Settings, queue: str, messages: list[FailedMessage]) -> dict[UUID, RetryLocation]:
    ids = {each.pk: row_id for each in messages if (row_id := guid_of(each.retry_row_id)) is not None}
    if not queue or not ids:
        return {}
    try:
        table = queue_table(settings.database, address_book_of(settings).parse(queue))
        with guarded_read(table.alias, f"look for messages in {table.qualified}"):
            there = find_ids(table, set(ids.values()), limit=MAX_ROWS)
            missing = len(there) < len(set(ids.values()))
            # Only PostgreSQL has an index of ids.
            is_whole = table.dialect.name == "postgresql" or (missing and len(table.row_versions(MAX_ROWS + 1)) <= MAX_ROWS)
    except QueueNotFound:
        return dict.fromkeys(ids, RetryLocation(RetryPlace.NO_QUEUE))
    except (AddressError, DatabaseError) as error:
        return dict.fromkeys(ids, RetryLocation(RetryPlace.UNREADABLE, detail=str(error)))
    elsewhere = RetryLocation(RetryPlace.TAKEN if is_whole else RetryPlace.NOT_FOUND)
    return {
        unique: RetryLocation(RetryPlace.WAITING, there[row_id]) if row_id in there else elsewhere for unique, row_id in ids.items()
    }
