"""Move audit queues into the lake: take rows, copy them while another consumer takes them, or switch from copying to taking.

Taking remembers nothing between batches. It reads from the first row up to a RowVersion, so a row committed late is part of a later
batch, and it deletes exactly the rows in the files, or none if one of them is gone.

Copying leaves the rows for their consumer, such as ServiceControl. A position per queue moves in the transaction of each batch, and
only settled rows are read: no lower RowVersion can still be committed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from django.db import transaction
from django.db.models import QuerySet

from sqlqueue_app.lake.columns import MESSAGES, UNREADABLE, LakeTable
from sqlqueue_app.messages.errors import counted
from sqlqueue_app.models import BatchKind, LakeBatch, LakePosition
from sqlqueue_app.pipeline.lake_batches import PreparedBatch, WrittenBatch, count_batch, make_batch, write_parsed
from sqlqueue_app.pipeline.manifest import Commit
from sqlqueue_app.pipeline.storage import BatchLost, queue_folder
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.spark.lake_files import read_files, row_versions_in
from sqlqueue_app.spark.source.stream_reader import TableProbe, Watermark
from sqlqueue_app.spark.transforms import parse_messages
from sqlqueue_app.tables.connections import database_now, fetch_all
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.row_selection import BEFORE_ALL, drawn_row_version, ranges_of, remove_ranges, row_id_at, row_version_after

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("sqlqueue.pipeline")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The counts of a batch. `was_full`: there are probably more rows."""

    rows: int
    unreadable: int
    bytes: int
    was_full: bool


class AuditQueueTaker:
    """Takes the rows of one audit queue. `queue` is its name in the lake."""

    def __init__(self, tools: Tools, table: QueueTable, queue: str) -> None:
        self._tools = tools
        self._table = table
        self._queue = queue

    def take(self, limit: int) -> BatchResult | None:
        """Take the first rows, at most `limit`; None if the queue is empty.

        Raises BatchLost if another consumer took some of them, QueueNotFound if the table is gone; nothing is taken then.
        """
        highest, was_full = batch_boundary(self._table, limit)
        if highest is None:
            return None
        self._tools.step("chosen")

        def write(batch: uuid.UUID) -> WrittenBatch:
            return write_messages(self._tools, self._table, self._queue, batch, None, highest)

        return batch_result(make_batch(self._tools, BatchKind.AUDIT, self._queue, write, self._remove), was_full=was_full)

    def _remove(self, _: LakeBatch, prepared: PreparedBatch) -> None:
        commit = prepared.commit
        removed = remove_ranges(self._table, ranges_of(prepared.row_versions))
        if removed != commit.rows:
            raise BatchLost(
                f"another program took {commit.rows - removed:,} of {counted(commit.rows, 'row')} of {self._table.qualified}: "
                "the batch is rolled back"
            )
        self._tools.step("deleted")
        count_batch(self._tools, prepared, "messages")


def write_messages(tools: Tools, table: QueueTable, queue: str, batch: uuid.UUID, first: int | None, highest: int) -> WrittenBatch:
    """Write the rows of an audit queue between two RowVersions; `first` None: from the first row."""
    taken_at = database_now(tools.alias)

    def parsed(lowest: int | None, highest: int) -> DataFrame:
        rows = tools.read(table, first if lowest is None else lowest, highest)
        return parse_messages(rows, queue=queue, batch=str(batch), taken_at=taken_at)

    return write_parsed(tools, batch, MESSAGES, queue, parsed, highest)


def batch_result(commit: Commit | None, *, was_full: bool) -> BatchResult:
    """The counts of a commit; None counts zero rows."""
    return BatchResult(0, 0, 0, was_full) if commit is None else BatchResult(commit.rows, commit.unreadable, commit.bytes, was_full)


def batch_boundary(table: QueueTable, limit: int) -> tuple[int | None, bool]:
    """The RowVersion of the n-th row, or of the last row if there are fewer; and whether there are n rows."""
    found = table.row_version_at(limit - 1)
    if found is not None:
        return found, True
    last = table.peek_back(1)
    return (last[0].row_version, False) if last else (None, False)


SETTLE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05


class AuditQueueCopier:
    """Copies one audit queue and leaves its rows. `queue` is its name in the lake.

    Kept for a whole run and used by one thread, because it learns from call to call which rows are settled.
    """

    def __init__(
        self, tools: Tools, table: QueueTable, queue: str, stop: StopSignal, settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        self._tools = tools
        self._table = table
        self._queue = queue
        self._stop = stop
        self._settle_seconds = settle_seconds
        self._watermark = Watermark()
        self.left: str | None = None
        """The reason for leaving rows for the next run; None if none were left."""

    def take(self, limit: int) -> BatchResult | None:
        """Copy the next settled rows, at most `limit`; None if there are none.

        Waits up to `settle_seconds` for open transactions that may insert among them. Raises BatchLost if another pipeline copied
        them, QueueNotFound if the table is gone; nothing is copied then.
        """
        position = self._position()
        after = BEFORE_ALL if position is None else position.row_version
        settled = self._settled(after, limit)
        if settled is None or settled <= after:
            return None
        last = row_version_after(self._table, after, settled, limit)
        highest = settled if last is None else last
        native_id = row_id_at(self._table, highest) or ""
        self._tools.step("chosen")

        def write(batch: uuid.UUID) -> WrittenBatch:
            return write_messages(self._tools, self._table, self._queue, batch, after + 1, highest)

        def work(batch: LakeBatch, prepared: PreparedBatch) -> None:
            self._move(batch, position, highest, native_id)
            count_batch(self._tools, prepared, "messages")

        prepared = make_batch(self._tools, BatchKind.PEEK, self._queue, write, work)
        return batch_result(prepared, was_full=last is not None)

    def _position(self) -> LakePosition | None:
        """The position of the copies; that of a table that was recreated since is dropped."""
        position = positions(self._tools, self._queue).first()
        if position is None or not self._is_recreated(position):
            return position
        logger.warning(
            "%s was recreated since it was copied up to row %s: copying restarts at its first row",
            self._table.qualified,
            position.row_version,
            extra={"event": "pipeline_table_anew", "queue": self._queue},
        )
        position.delete(using=self._tools.alias)
        self._watermark = Watermark()
        return None

    def _is_recreated(self, position: LakePosition) -> bool:
        """Whether RowVersions started over: not yet at the position, or with another row at it."""
        drawn = drawn_row_version(self._table)
        if drawn is not None and drawn < position.row_version:
            return True
        return row_id_at(self._table, position.row_version) not in (None, position.native_id) and bool(position.native_id)

    def _settled(self, after: int, limit: int) -> int | None:
        """Wait until a full batch or all present rows are settled, or time is up; return the settled RowVersion.

        None if no row is after the position.
        """
        self.left = None
        with self._table.errors(f"look for rows of {self._table.qualified}"):
            probe = TableProbe(partial(fetch_all, self._table.connection()), self._table.dialect, self._table.qualified)
            newest = probe.newest()
            if newest is None or newest <= after:
                return None
            for _ in range(int(self._settle_seconds / _POLL_SECONDS)):
                settled = self._watermark.advance(probe)
                if (settled is not None and settled >= newest) or self._is_full(after, settled, limit):
                    return settled
                if self._stop.wait(_POLL_SECONDS):
                    return settled
            settled = self._watermark.advance(probe)
            if settled is None or settled < newest:
                self.left = (
                    f"{counted(len(probe.writers()), 'transaction')} still writing to {self._table.qualified} after "
                    f"{self._settle_seconds:g} s may still commit rows below the existing ones: these are left for the next run"
                )
            return settled

    def _is_full(self, after: int, settled: int | None, limit: int) -> bool:
        return settled is not None and row_version_after(self._table, after, settled, limit) is not None

    def _move(self, batch: LakeBatch, before: LakePosition | None, row_version: int, native_id: str) -> None:
        """Move the position; the commit lock is held, so no other pipeline can move it."""
        found = positions(self._tools, self._queue).first()
        if (found and (found.pk, found.row_version)) != (before and (before.pk, before.row_version)):
            raise BatchLost(f"another pipeline has already copied rows of {self._table.qualified}: this batch is rolled back")
        moved = found or LakePosition(lake_id=self._tools.manifest.lake_id, queue=self._queue)
        moved.row_version, moved.native_id = row_version, native_id
        moved.moved_at = batch.committed_at
        moved.save(using=self._tools.alias)
        self._tools.step("moved on")


def positions(tools: Tools, queue: str) -> QuerySet[LakePosition]:
    """The position of a copied queue: at most one row, none if the queue is taken from."""
    return LakePosition.objects.using(tools.alias).filter(lake_id=tools.manifest.lake_id, queue=queue)


def delete_copied(tools: Tools, table: QueueTable, queue: str, limit: int, stop: StopSignal) -> int:
    """Delete the rows that were already copied into the lake, `limit` per transaction; return their number.

    The files of the lake identify the rows, by RowVersion and id. Then the position is deleted; without one this does nothing. Ends
    early when `stop` is set; an interrupted run is simply repeated.
    """
    position = positions(tools, queue).first()
    if position is None:
        return 0
    files = [each for of in (MESSAGES, UNREADABLE) for each in _files(tools, of, queue)]
    deleted, after, found = 0, BEFORE_ALL, True
    while found:
        if stop.is_set():
            return deleted
        full = row_version_after(table, after, position.row_version, limit)
        found = full is not None
        highest = position.row_version if full is None else full
        between = f"row_version > {after} AND row_version <= {highest}"
        copied = row_versions_in([each.where(between) for each in files], tools.read(table, after + 1, highest))
        tools.step("found copied")
        with transaction.atomic(using=tools.alias):
            deleted += remove_ranges(table, ranges_of(copied))
        tools.step("deleted copied")
        after = highest
    positions(tools, queue).delete()
    logger.warning(
        "deleted %s of %s that --peek-only had copied to the lake before; nothing was written twice",
        counted(deleted, "row"),
        table.qualified,
        extra={"event": "pipeline_copied_deleted", "queue": queue},
    )
    return deleted


def _files(tools: Tools, table: LakeTable, queue: str) -> Iterator[DataFrame]:
    """The rows of a queue in a table of the lake, according to the manifest."""
    folder = f"{queue_folder(table.name, queue)}/"
    files = tools.manifest.files().filter(table=table.name, path__startswith=folder)
    # the database may compare without regard to case
    paths = [path for path in files.values_list("path", flat=True) if path.startswith(folder)]
    if paths:
        yield read_files(tools.session, table, tools.storage.url(table.name), [tools.storage.url(path) for path in paths])
