"""Copying an audit queue from which somebody else takes, such as ServiceControl: its rows are read, and left as they are.

What was copied is all up to a position, which moves in the transaction of each batch. Rows are read up to a number below which none
can appear any more, however late it is committed: the settled one.
"""

from __future__ import annotations

import logging
import uuid
from functools import partial
from typing import Final

from django.db.models import QuerySet

from sqlqueue_app.models import BatchKind, LakeBatch, LakePosition
from sqlqueue_app.pipeline.batches import Made, Written, count_batch, make_batch
from sqlqueue_app.pipeline.errors import BatchLost
from sqlqueue_app.pipeline.taking import Taken, brought, write_messages
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.spark.source.looks import LooksAtTable
from sqlqueue_app.spark.source.settling import Watermark
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import fetch_all
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.row_ranges import BEFORE_ALL, numbers_drawn, row_id_at, row_version_after

logger = logging.getLogger("sqlqueue.pipeline")

SETTLE_SECONDS: Final = 10.0
_SECONDS_BETWEEN_LOOKS: Final = 0.05


class PeekedQueue:
    """One audit queue that is left as it is. `queue` is its name in the lake. Used by one thread, and kept for the whole run:

    from look to look it learns which rows are settled.
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
        self._left: str | None = None

    @property
    def left(self) -> str | None:
        """Why some rows that were seen are left for the next time; None if there are none."""
        return self._left

    def take(self, most: int) -> Taken | None:
        """Copy the first rows after those that were copied, `most` at most; None if there is nothing that is settled.

        Waits for senders that may still commit rows among them, for so many seconds; what is not settled then comes the next time.
        BatchLost if another pipeline has copied them, QueueNotFound if the table is gone: then nothing was copied.
        """
        position = self._position()
        after = BEFORE_ALL if position is None else position.row_version
        settled = self._settled(after, most)
        if settled is None or settled <= after:
            return None
        last = row_version_after(self._table, after, settled, most)
        highest = settled if last is None else last
        native_id = row_id_at(self._table, highest) or ""
        self._tools.step("chosen")

        def write(batch: uuid.UUID) -> Written:
            return write_messages(self._tools, self._table, self._queue, batch, after + 1, highest)

        def work(batch: LakeBatch, made: Made) -> None:
            self._move(batch, position, highest, native_id)
            count_batch(self._tools, made, "messages")

        made = make_batch(self._tools, BatchKind.PEEK, self._queue, write, work)
        return brought(made, was_full=last is not None)

    def _position(self) -> LakePosition | None:
        """Up to where the rows are copied. That of a table that is no more is dropped."""
        position = positions(self._tools, self._queue).first()
        if position is None or not self._is_anew(position):
            return position
        logger.warning(
            "%s was made anew since it was copied up to row %s: it is copied from its first row on",
            self._table.qualified,
            position.row_version,
            extra={"event": "pipeline_table_anew", "queue": self._queue},
        )
        position.delete(using=self._tools.alias)
        self._watermark = Watermark()
        return None

    def _is_anew(self, position: LakePosition) -> bool:
        """Its numbers have not come so far yet, or have come there again: another row has that of the last one that was copied."""
        drawn = numbers_drawn(self._table)
        if drawn is not None and drawn < position.row_version:
            return True
        return row_id_at(self._table, position.row_version) not in (None, position.native_id) and bool(position.native_id)

    def _settled(self, after: int, most: int) -> int | None:
        """The settled number: once a full batch lies below it, or all that is there now, or when that has taken too long."""
        self._left = None
        with self._table.errors(f"look for rows of {self._table.qualified}"):
            looks = LooksAtTable(partial(fetch_all, self._table.connection()), self._table.dialect, self._table.qualified)
            newest = looks.newest()
            if newest is None:
                return None
            for _ in range(int(self._settle_seconds / _SECONDS_BETWEEN_LOOKS)):
                settled = self._watermark.look(looks)
                if (settled is not None and settled >= newest) or self._is_full(after, settled, most):
                    return settled
                if self._stop.wait(_SECONDS_BETWEEN_LOOKS):
                    return settled
            settled = self._watermark.look(looks)
            if settled is None or settled < newest:
                self._left = (
                    f"{len(looks.writers())} transaction(s) have been writing to {self._table.qualified} for more than "
                    f"{self._settle_seconds:g} seconds, and may commit rows below those that are there: they are left for the "
                    "next run"
                )
            return settled

    def _is_full(self, after: int, settled: int | None, most: int) -> bool:
        return settled is not None and row_version_after(self._table, after, settled, most) is not None

    def _move(self, batch: LakeBatch, before: LakePosition | None, row_version: int, native_id: str) -> None:
        """With the lock of commits held: nobody else moves it meanwhile."""
        found = positions(self._tools, self._queue).first()
        if (found and (found.pk, found.row_version)) != (before and (before.pk, before.row_version)):
            raise BatchLost(f"another pipeline has copied rows of {self._table.qualified} meanwhile: the batch is rolled back")
        moved = found or LakePosition(lake_id=self._tools.manifest.lake_id, queue=self._queue)
        moved.row_version, moved.native_id = row_version, native_id
        moved.moved_at = batch.committed_at or database_now(self._tools.alias)
        moved.save(using=self._tools.alias)
        self._tools.step("moved on")


def positions(tools: Tools, queue: str) -> QuerySet[LakePosition]:
    """The position of a queue in the lake: one, or none where its rows are taken."""
    return LakePosition.objects.using(tools.alias).filter(lake_id=tools.manifest.lake_id, queue=queue)
