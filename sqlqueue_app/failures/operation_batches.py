"""Batches of bulk operations: the outcome of one batch, and the rows that it locks.

All functions work in transactions that the caller has begun.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

from django.utils import translation
from django.utils.translation import gettext, gettext_lazy

from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureStatus, managed_alias
from sqlqueue_app.tables.connections import connection_of

# Upper bound for the bodies held in memory; a larger message is a batch of its own.
BYTES_PER_BATCH: Final = 32 * 1024 * 1024

Row = TypeVar("Row")


class OperationRefused(SqlQueueError):
    """An operation cannot start or cannot continue; the message is the reason."""


@dataclass(frozen=True, slots=True)
class ProcessedBatch:
    """The outcome of one batch, the cursor behind its last message, and whether no messages are left."""

    outcome: BatchOutcome
    cursor: str
    is_last: bool


def within_memory(rows: Sequence[Row], limit: int, size_of: Callable[[Row], int]) -> list[Row]:
    """The first rows: at most `limit`, at most BYTES_PER_BATCH together, and at least one."""
    chosen: list[Row] = []
    held = 0
    for row in rows[:limit]:
        held += size_of(row)
        if chosen and held > BYTES_PER_BATCH:
            break
        chosen.append(row)
    return chosen


# Error texts can differ for each message: further reasons are counted together.
MAX_REASONS: Final = 100
_MAX_DETAIL_LENGTH: Final = 500


class Reason(enum.StrEnum):
    """The reason why a message was not processed."""

    STATUS = "status"
    NOT_THERE = "not there"
    IN_HANDS = "in hands"
    POISON = "poison"
    NO_FAILED_QUEUE = "no failed queue"
    BAD_ADDRESS = "bad address"
    NO_QUEUE = "no queue"
    ERROR_QUEUE = "error queue"
    NOT_ALLOWED = "not allowed"
    NO_REDIRECT = "no redirect"
    RECEIVED = "received"
    ERROR = "error"
    OTHER = "other"


_TEXTS: Final = {
    Reason.STATUS: gettext_lazy("Its status is: %(detail)s."),
    Reason.NOT_THERE: gettext_lazy("It is no longer in the error queue, or is being processed."),
    Reason.IN_HANDS: gettext_lazy("It was received in the meantime, or is being processed."),
    Reason.POISON: gettext_lazy("Its headers cannot be read."),
    Reason.NO_FAILED_QUEUE: gettext_lazy(
        "The queue in which it failed is unknown: it has no header NServiceBus.FailedQ, or none of its headers can be read."
    ),
    Reason.BAD_ADDRESS: gettext_lazy("The address of the queue in which it failed cannot be read: %(detail)s"),
    Reason.NO_QUEUE: gettext_lazy("The queue %(detail)s does not exist: create it, or redirect retries to another one."),
    Reason.ERROR_QUEUE: gettext_lazy("Its destination is an error queue: %(detail)s."),
    Reason.NOT_ALLOWED: gettext_lazy("The setting ALLOWED_DESTINATIONS does not allow the queue %(detail)s."),
    Reason.NO_REDIRECT: gettext_lazy("Retries to the queue %(detail)s are not redirected."),
    Reason.RECEIVED: gettext_lazy("It is no longer in the queue: if it were sent again, it might be handled twice."),
    Reason.ERROR: gettext_lazy("Error: %(detail)s"),
    Reason.OTHER: gettext_lazy("Other reasons."),
}

ReasonDetail = tuple[Reason, str]


def describe_reason(reason: str, detail: str = "") -> str:
    """A reason in the current language; an unknown reason is shown unchanged."""
    if reason == Reason.STATUS and detail:
        detail = gettext(detail)
    try:
        return str(_TEXTS[Reason(reason)]) % {"detail": detail}
    except ValueError:
        return f"{reason} {detail}".strip()


@dataclass(slots=True)
class BatchOutcome:
    """The counts of a batch: `done`, and per reason how many messages were skipped or failed.

    `changed` are the failed messages whose status it has changed.
    """

    done: int = 0
    changed: list[UUID] = field(default_factory=list)
    skipped: Counter[ReasonDetail] = field(default_factory=Counter)
    failed: Counter[ReasonDetail] = field(default_factory=Counter)

    def skip(self, reason: Reason, detail: str = "", count: int = 1) -> None:
        """Count messages that were left unchanged."""
        self.skipped[reason, detail[:_MAX_DETAIL_LENGTH]] += count

    def fail(self, reason: Reason, detail: str = "", count: int = 1) -> None:
        """Count messages that could not be processed."""
        self.failed[reason, detail[:_MAX_DETAIL_LENGTH]] += count

    @property
    def total(self) -> int:
        return self.done + self.skipped.total() + self.failed.total()


def merged_log(log: object, outcome: BatchOutcome) -> list[dict[str, Any]]:
    """The log of an operation with the reasons of one more batch added: one entry per reason, oldest first."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for entry in log if isinstance(log, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("count"), int):
            counts[str(entry.get("what")), str(entry.get("reason")), str(entry.get("detail") or "")] += entry["count"]
    for what, reasons in (("skipped", outcome.skipped), ("failed", outcome.failed)):
        for (reason, detail), count in reasons.items():
            key = (what, str(reason), detail)
            counts[key if key in counts or len(counts) < MAX_REASONS else (what, str(Reason.OTHER), "")] += count
    return [{"what": what, "reason": reason, "detail": detail, "count": count} for (what, reason, detail), count in counts.items()]


_NUMBERS_PER_STATEMENT: Final = 1_000


@dataclass(frozen=True, slots=True)
class NextMessages:
    """The ids of a batch in order; `is_last` if no messages follow."""

    ids: list[UUID]
    is_last: bool


def next_messages(selection: FailureSelection, cursor: str, limit: int) -> NextMessages:
    """The next messages of a selection behind the cursor: at most `limit`, and no more than fit in memory."""
    found = selection.queryset().order_by("pk")
    if cursor:
        found = found.filter(pk__gt=UUID(cursor))
    rows = list(found.values_list("pk", "size")[: limit + 1])
    ids = [pk for pk, _size in within_memory(rows, limit, lambda row: row[1] or 0)]
    return NextMessages(ids, len(ids) == len(rows))


def lock_failures(ids: Sequence[UUID], statuses: Iterable[FailureStatus], outcome: BatchOutcome) -> list[FailedMessage]:
    """Lock the messages that have one of the statuses until the transaction ends; count the others as skipped.

    Rows are locked in the order of their ids, so that two transactions that lock the same rows cannot deadlock.
    """
    found = FailedMessage.objects.using(managed_alias()).filter(pk__in=ids).order_by("pk").select_for_update()
    wanted = set(statuses)
    chosen = []
    for failure in found:
        if failure.status in wanted:
            chosen.append(failure)
        else:
            outcome.skip(*reason_of_status(failure.status))
    return chosen


def reason_of_status(status: int) -> ReasonDetail:
    """The reason for leaving out a message with this status, in English: it is stored, and read in other languages."""
    with translation.override(None):
        return Reason.STATUS, str(FailureStatus(status).label)


def older_rows(failures: Iterable[FailedMessage]) -> dict[UUID, list[tuple[str, int]]]:
    """Rows of earlier attempts that are still in error queues: queue names and RowVersions by message."""
    newest = {failure.pk: (failure.queue, failure.row_version) for failure in failures}
    attempts = FailedAttempt.objects.using(managed_alias()).filter(failure__in=list(newest), row_version__isnull=False)
    found: dict[UUID, list[tuple[str, int]]] = defaultdict(list)
    for failure_id, queue, row_version in attempts.values_list("failure_id", "queue", "row_version"):
        if row_version is not None and (queue, row_version) != newest[failure_id]:
            found[failure_id].append((queue, row_version))
    return dict(found)


def group_by_queue(rows: Iterable[tuple[str, int | None]]) -> dict[str, list[int]]:
    """RowVersions by queue name."""
    found: dict[str, list[int]] = defaultdict(list)
    for queue, row_version in rows:
        if row_version is not None:
            found[queue].append(row_version)
    return dict(found)


def set_status(ids: Sequence[UUID], status: FailureStatus, now: datetime, **fields: object) -> int:
    """Write a status and further columns of locked messages; returns how many rows changed."""
    return FailedMessage.objects.using(managed_alias()).filter(pk__in=ids).update(status=status, status_at=now, **fields)


def write_columns(failures: Sequence[FailedMessage], columns: Sequence[str]) -> None:
    """Write these columns of locked messages, each message with its own values."""
    alias = managed_alias()
    messages = FailedMessage.objects.using(alias)
    if connection_of(alias).features.supports_update_conflicts_with_target:
        # Four times as fast as bulk_update, which writes a CASE with a branch for each. The rows are there, so none is inserted.
        messages.bulk_create(failures, update_conflicts=True, unique_fields=["id"], update_fields=columns)
    else:
        messages.bulk_update(failures, columns)


def forget_rows(rows: Iterable[tuple[str, int]]) -> None:
    """Note that these rows, given as queue name and RowVersion, are no longer in their queues."""
    for queue, row_versions in group_by_queue(rows).items():
        attempts = FailedAttempt.objects.using(managed_alias()).filter(queue=queue)
        for begin in range(0, len(row_versions), _NUMBERS_PER_STATEMENT):
            attempts.filter(row_version__in=row_versions[begin : begin + _NUMBERS_PER_STATEMENT]).update(row_version=None)
