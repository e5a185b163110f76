"""The failed messages of one batch, with the rows of the error queues in which they lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureStatus
from sqlqueue_app.operations.bulk.batches import fitting
from sqlqueue_app.operations.bulk.outcome import Outcome, Reason
from sqlqueue_app.operations.failure_selection import FailureSelection
from sqlqueue_app.tables.connections import connection_of

_NUMBERS_PER_STATEMENT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Chosen:
    """The ids of a batch in their order; `is_last` if there are no more behind them."""

    ids: list[UUID]
    is_last: bool


def choose(selection: FailureSelection, cursor: str, limit: int) -> Chosen:
    """The next messages of a selection behind the cursor, at most `limit`, and not more than a batch may hold in memory."""
    found = selection.queryset().order_by("pk")
    if cursor:
        found = found.filter(pk__gt=UUID(cursor))
    rows = list(found.values_list("pk", "size")[: limit + 1])
    ids = [pk for pk, _size in fitting(rows, limit, lambda row: row[1] or 0)]
    return Chosen(ids, len(ids) == len(rows))


def lock(ids: Sequence[UUID], statuses: Iterable[FailureStatus], outcome: Outcome) -> list[FailedMessage]:
    """The messages with one of the statuses, locked until the transaction ends; the others are skipped in the outcome.

    In the order of their ids, so that two who lock the same ones wait for each other, and no more than that.
    """
    found = FailedMessage.objects.using(managed_alias()).filter(pk__in=ids).order_by("pk").select_for_update()
    wanted = set(statuses)
    chosen = []
    for failure in found:
        if failure.status in wanted:
            chosen.append(failure)
        else:
            outcome.skip(Reason.STATUS, str(FailureStatus(failure.status).label))
    return chosen


def older_rows(failures: Iterable[FailedMessage]) -> dict[UUID, list[tuple[str, int]]]:
    """The rows of earlier attempts that lie in error queues still: for each message the queues' names and RowVersions."""
    newest = {failure.pk: (failure.queue, failure.row_version) for failure in failures}
    attempts = FailedAttempt.objects.using(managed_alias()).filter(failure__in=list(newest), row_version__isnull=False)
    found: dict[UUID, list[tuple[str, int]]] = defaultdict(list)
    for failure_id, queue, row_version in attempts.values_list("failure_id", "queue", "row_version"):
        if row_version is not None and (queue, row_version) != newest[failure_id]:
            found[failure_id].append((queue, row_version))
    return dict(found)


def by_queue(rows: Iterable[tuple[str, int | None]]) -> dict[str, list[int]]:
    """RowVersions by the names of the queues in which they are."""
    found: dict[str, list[int]] = defaultdict(list)
    for queue, row_version in rows:
        if row_version is not None:
            found[queue].append(row_version)
    return dict(found)


def set_status(ids: Sequence[UUID], status: FailureStatus, now: datetime, **fields: object) -> int:
    """Write a status, and other columns, of messages that are locked; how many there were."""
    return FailedMessage.objects.using(managed_alias()).filter(pk__in=ids).update(status=status, status_at=now, **fields)


def write_columns(failures: Sequence[FailedMessage], columns: Sequence[str]) -> None:
    """Write these columns of messages that are locked, each with its own values."""
    alias = managed_alias()
    messages = FailedMessage.objects.using(alias)
    if connection_of(alias).features.supports_update_conflicts_with_target:
        # Four times as fast as bulk_update, which writes a CASE with a branch for each. The rows are there, so none is inserted.
        messages.bulk_create(failures, update_conflicts=True, unique_fields=["id"], update_fields=columns)
    else:
        messages.bulk_update(failures, columns)


def rows_are_gone(rows: Iterable[tuple[str, int]]) -> None:
    """These rows, by the names of their queues and RowVersions, lie there no more: no attempt says that it does."""
    for queue, row_versions in by_queue(rows).items():
        attempts = FailedAttempt.objects.using(managed_alias()).filter(queue=queue)
        for begin in range(0, len(row_versions), _NUMBERS_PER_STATEMENT):
            attempts.filter(row_version__in=row_versions[begin : begin + _NUMBERS_PER_STATEMENT]).update(row_version=None)
