"""Copy failed messages from error queues into the lake, and record their outcomes.

Nothing is removed from an error queue, because operators retry its rows. A row is new if the lake has no copy of it, so rows that
were committed late or put back by hand are copied too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from django.db.models import Q, QuerySet

from sqlqueue_app.lake.columns import FAILURES, FATES, TABLES
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import guid_of
from sqlqueue_app.models import BatchKind, CopyOutcome, FailedMessage, FailureStatus, LakeBatch, LakeCopy
from sqlqueue_app.pipeline.lake_batches import PreparedBatch, WrittenBatch, count_batch, make_batch, write_parsed, write_rows
from sqlqueue_app.pipeline.manifest import Commit, count_in_run
from sqlqueue_app.pipeline.storage import inflight, queue_folder
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.spark.lake_files import CopiedRow, copied_rows, only_rows, without_text
from sqlqueue_app.spark.transforms import parse_failures
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.row_selection import row_ids, statement_chunks
from sqlqueue_app.tables.rows import cut_text, row_id_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_BATCH: Final = 500
Key = tuple[int, str]
"""RowVersion and id of a row. A recreated table reuses RowVersions, but with other ids."""


class ErrorQueueCopier:
    """Copies one error queue. `queue` is its name in the lake and in the index of failures."""

    def __init__(self, tools: Tools, table: QueueTable, queue: str) -> None:
        self._tools = tools
        self._table = table
        self._queue = queue

    def copy(self, limit: int) -> Commit | None:
        """Copy the first new rows, at most `limit`, and record which rows have left the queue; None if none is new.

        Acknowledgements of retries are not failures and are skipped.
        """
        there = set(row_ids(self._table))
        in_queue = self._copies().filter(left_at=None)
        known = {(number, native) for number, native in in_queue.values_list("row_version", "native_id")}
        self._mark(in_queue, known - there, database_now(self._tools.alias))
        # On SQL Server a row that was locked seemed to have left; rows of a restored table did leave.
        returned = self._mark(self._copies().exclude(left_at=None), there - known, None)
        new = sorted(there - known - returned)[:limit]
        if not new:
            return None
        self._tools.step("chosen to copy")
        copied: list[CopiedRow] = []

        def write(batch: uuid.UUID) -> WrittenBatch:
            written = self._write(batch, new)
            copied.extend(self._copied(batch, written))
            return written

        return make_batch(
            self._tools, BatchKind.FAILURES, self._queue, write, lambda batch, prepared: self._record(batch, prepared, copied)
        )

    def _copies(self) -> QuerySet[LakeCopy]:
        return LakeCopy.objects.using(self._tools.alias).filter(lake_id=self._tools.manifest.lake_id, queue=self._queue)

    def _mark(self, copies: QuerySet[LakeCopy], keys: set[Key], left_at: datetime | None) -> set[Key]:
        """Record when the rows with these keys left, None: they are in the queue; return those that have a copy among `copies`."""
        marked: set[Key] = set()
        for chunk in statement_chunks(sorted(keys)):
            found = copies.filter(row_version__in=[number for number, _ in chunk])
            chosen = {each.pk: key for each in found if (key := (each.row_version, each.native_id)) in keys}
            copies.filter(pk__in=list(chosen)).update(left_at=left_at)
            marked.update(chosen.values())
        return marked

    def _write(self, batch: uuid.UUID, new: Sequence[Key]) -> WrittenBatch:
        tools, taken_at = self._tools, database_now(self._tools.alias)
        numbers = [number for number, _ in new]

        def parsed(lowest: int | None, highest: int) -> DataFrame:
            rows = tools.read(self._table, numbers[0] if lowest is None else lowest, highest)
            chosen = only_rows(tools.session, without_text(rows, names.RETRY_SUCCESSFUL), numbers)
            return parse_failures(chosen, queue=self._queue, batch=str(batch), taken_at=taken_at)

        return write_parsed(tools, batch, FAILURES, self._queue, parsed, numbers[-1])

    def _copied(self, batch: uuid.UUID, written: WrittenBatch) -> list[CopiedRow]:
        """The copied rows, as read back from the files."""
        return [
            row
            for table in sorted({each.table for each in written.files})
            for row in copied_rows(
                self._tools.session,
                TABLES[table],
                self._tools.inflight_url(batch, table),
                self._tools.inflight_url(batch, queue_folder(table, self._queue)),
            )
        ]

    def _record(self, batch: LakeBatch, prepared: PreparedBatch, copied: Sequence[CopiedRow]) -> None:
        tools = self._tools
        copies = [
            LakeCopy(
                lake_id=tools.manifest.lake_id,
                queue=self._queue,
                row_version=each.row_version,
                native_id="" if each.native_id is None else str(row_id_of(each.native_id)),
                message_id=cut_text(each.message_id or "", 255),
                unique_message_id=(each.unique_message_id or "")[:64],
                copied_at=batch.committed_at,
                batch=batch,
            )
            for each in copied
        ]
        LakeCopy.objects.using(tools.alias).bulk_create(copies, batch_size=_BATCH)
        tools.step("copied")
        count_batch(tools, prepared, "failures")


# The index of failures forgets finished messages after this time.
_TRACKED_FOR: Final = timedelta(days=30)
# The index and the copies are written in different transactions.
_MARGIN: Final = timedelta(minutes=2)
_FINAL: Final = (CopyOutcome.RESOLVED, CopyOutcome.DELETED, CopyOutcome.GONE)
_OUTCOME_OF_STATUS: Final = {
    FailureStatus.RESOLVED: CopyOutcome.RESOLVED,
    FailureStatus.RETRY_ISSUED: CopyOutcome.RETRIED,
    FailureStatus.DELETED: CopyOutcome.DELETED,
    FailureStatus.GONE: CopyOutcome.GONE,
}


class OutcomeTracker:
    """Tracks the outcomes of the copies of one lake. Kept for a whole run; used by one thread."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._since: datetime | None = None

    def update(self) -> int:
        """Record the outcomes that changed since the last call (the first call checks all open copies); return their number."""
        now = database_now(self._tools.alias)
        candidates = self._candidates(now)
        changed = after = 0
        while chunk := list(candidates.filter(pk__gt=after)[:_BATCH]):
            changed += self._write(list(self._changes(chunk, now)))
            after = chunk[-1].pk
        self._since = now
        return changed

    def _candidates(self, now: datetime) -> QuerySet[LakeCopy]:
        copies = LakeCopy.objects.using(self._tools.alias).filter(lake_id=self._tools.manifest.lake_id)
        # One that is in the queue has returned.
        copies = copies.exclude(fate__in=_FINAL, left_at__isnull=False)
        copies = copies.filter(Q(left_at=None) | Q(left_at__gte=now - _TRACKED_FOR))
        if self._since is None:
            return copies.order_by("pk")
        since = self._since - _MARGIN
        failures = FailedMessage.objects.using(self._tools.alias).filter(status_at__gte=since)
        ids = [str(each) for each in failures.values_list("pk", flat=True)[: _BATCH + 1]]
        if len(ids) > _BATCH:
            return copies.order_by("pk")
        recent = Q(left_at__gte=since) | Q(left_at__isnull=False, fate=CopyOutcome.WAITING)
        return copies.filter(recent | Q(unique_message_id__in=ids)).order_by("pk")

    def _changes(self, copies: Sequence[LakeCopy], now: datetime) -> Iterator[LakeCopy]:
        """Set the new outcome of each copy that has one, without saving."""
        ids = {each.pk: guid_of(each.unique_message_id) for each in copies}
        failures = FailedMessage.objects.using(self._tools.alias).in_bulk([each for each in ids.values() if each is not None])
        for each in copies:
            key = ids[each.pk]
            failure = None if key is None else failures.get(key)
            outcome = outcome_of(each, failure)
            if outcome != each.fate:
                each.fate = outcome
                each.fate_at = now if failure is None or failure.status_at is None else failure.status_at
                yield each

    def _write(self, changes: Sequence[LakeCopy]) -> int:
        if not changes:
            return 0
        tools, batch = self._tools, uuid.uuid4()
        rows = [
            {
                "queue": each.queue,
                "row_version": each.row_version,
                "native_id": each.native_id,
                "message_id": each.message_id,
                "unique_message_id": each.unique_message_id,
                "fate": str(each.fate),
                "fate_at": each.fate_at,
                "copied_at": each.copied_at,
                "batch": str(batch),
                "day": each.fate_at.date(),
            }
            for each in changes
            if each.fate_at is not None  # which `_changes` has set
        ]
        commit = Commit(batch, BatchKind.FATES, rows=len(rows), files=write_rows(tools, batch, FATES, rows))
        tools.storage.sync([f"{inflight(batch)}/{each.written_as}" for each in commit.files])
        tools.manifest.publish(tools.committed(commit, lambda _: self._record(commit, changes)))
        return len(changes)

    def _record(self, commit: Commit, changes: Sequence[LakeCopy]) -> None:
        LakeCopy.objects.using(self._tools.alias).bulk_update(changes, ["fate", "fate_at"], batch_size=_BATCH // 5)
        self._tools.step("fates recorded")
        count_in_run(self._tools.alias, self._tools.run, batches=1, bytes=commit.bytes)


def outcome_of(copy: LakeCopy, failure: FailedMessage | None) -> CopyOutcome:
    """The outcome of a copied row according to the index of failures; unchanged if the index does not know it yet."""
    is_there = copy.left_at is None
    before = CopyOutcome(copy.fate)
    if failure is None:
        return before if is_there or before is not CopyOutcome.WAITING else CopyOutcome.GONE
    status = FailureStatus(failure.status)
    if is_there:
        return CopyOutcome.ARCHIVED if status is FailureStatus.ARCHIVED else CopyOutcome.WAITING
    if status in _OUTCOME_OF_STATUS:
        return _OUTCOME_OF_STATUS[status]
    is_same_row = (failure.queue, failure.row_version) == (copy.queue, copy.row_version)
    # The message waits in another row: it was retried and failed again.
    return before if failure.row_version is None or is_same_row else CopyOutcome.RETRIED
