"""Copying what is new in an error queue. Nothing is ever taken from it: its rows are what operators retry.

New is each row that lies in the queue and of which the lake has no copy: also one that was committed late, or put back by hand.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from django.db.models import QuerySet

from sqlqueue_app.lake.columns import FAILURES, TABLES
from sqlqueue_app.messages import headers as names
from sqlqueue_app.models import BatchKind, LakeBatch, LakeCopy
from sqlqueue_app.operations.error_rows import without_nul
from sqlqueue_app.pipeline.batches import Made, Written, count_batch, make_batch, write_parsed
from sqlqueue_app.pipeline.manifest import Commit
from sqlqueue_app.pipeline.places import queue_folder
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.spark.lake_files import CopiedRow, copied_rows, only_rows, without_text
from sqlqueue_app.spark.transforms.failures import parse_failures
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.row_ranges import row_ids
from sqlqueue_app.tables.rows import row_id_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITTEN_AT_ONCE: Final = 500
Key = tuple[int, str]
"""A row of an error queue: its RowVersion and its id. A table that was made anew begins with the same numbers, and other ids."""


class ErrorQueue:
    """One error queue. `queue` is its name in the lake, and in the index of failures."""

    def __init__(self, tools: Tools, table: QueueTable, queue: str) -> None:
        self._tools = tools
        self._table = table
        self._queue = queue

    def copy(self, most: int) -> Commit | None:
        """Copy the first rows that are new, `most` at most, and note which have left the queue; None if none is new.

        Acknowledgements of retries are no failures, and are not copied.
        """
        there = set(row_ids(self._table))
        known = {(number, native) for number, native in self._in_queue().values_list("row_version", "native_id")}
        self._note_left(known - there)
        new = sorted(there - known)[:most]
        if not new:
            return None
        self._tools.step("chosen to copy")
        copied: list[CopiedRow] = []

        def write(batch: uuid.UUID) -> Written:
            written = self._write(batch, new)
            copied.extend(self._copied(batch, written))
            return written

        return make_batch(
            self._tools, BatchKind.FAILURES, self._queue, write, lambda batch, made: self._record(batch, made, copied)
        )

    def _in_queue(self) -> QuerySet[LakeCopy]:
        copies = LakeCopy.objects.using(self._tools.alias)
        return copies.filter(lake_id=self._tools.manifest.lake_id, queue=self._queue, left_at=None)

    def _note_left(self, keys: set[Key]) -> None:
        now = database_now(self._tools.alias)
        gone = sorted(keys)
        for start in range(0, len(gone), _WRITTEN_AT_ONCE):
            portion = gone[start : start + _WRITTEN_AT_ONCE]
            found = self._in_queue().filter(row_version__in=[number for number, _ in portion])
            left = [each.pk for each in found if (each.row_version, each.native_id) in keys]
            self._in_queue().filter(pk__in=left).update(left_at=now)

    def _write(self, batch: uuid.UUID, new: Sequence[Key]) -> Written:
        tools, taken_at = self._tools, database_now(self._tools.alias)
        numbers = [number for number, _ in new]

        def parsed(lowest: int | None, highest: int) -> DataFrame:
            rows = tools.read(self._table, numbers[0] if lowest is None else lowest, highest)
            chosen = only_rows(tools.session, without_text(rows, names.RETRY_SUCCESSFUL), numbers)
            return parse_failures(chosen, queue=self._queue, batch=str(batch), taken_at=taken_at)

        return write_parsed(tools, batch, FAILURES, self._queue, parsed, numbers[-1])

    def _copied(self, batch: uuid.UUID, written: Written) -> list[CopiedRow]:
        """By the files themselves."""
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

    def _record(self, batch: LakeBatch, made: Made, copied: Sequence[CopiedRow]) -> None:
        tools = self._tools
        copies = [
            LakeCopy(
                lake_id=tools.manifest.lake_id,
                queue=self._queue,
                row_version=each.row_version,
                native_id="" if each.native_id is None else str(row_id_of(each.native_id)),
                message_id=without_nul(each.message_id or "")[:255],
                unique_message_id=(each.unique_message_id or "")[:64],
                copied_at=batch.committed_at or database_now(tools.alias),
                batch=batch,
            )
            for each in copied
        ]
        LakeCopy.objects.using(tools.alias).bulk_create(copies, batch_size=_WRITTEN_AT_ONCE)
        tools.step("copied")
        count_batch(tools, made, "failures")
