"""Taking a batch out of an audit queue: into files first, then, in one transaction, out of the queue and into the manifest.

Nothing is remembered between batches. Rows are read up to a number, from the first one on: what was committed late is simply there
the next time. Exactly the rows that stand in the files are deleted, and none if one of them is gone.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlqueue_app.lake.columns import MESSAGES
from sqlqueue_app.models import BatchKind, LakeBatch
from sqlqueue_app.pipeline.batches import Made, Written, count_batch, make_batch, write_parsed
from sqlqueue_app.pipeline.errors import BatchLost
from sqlqueue_app.pipeline.manifest import Commit
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.spark.transforms.messages import parse_messages
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.row_ranges import ranges_of, remove_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Taken:
    """What a batch has brought; `was_full` says that there is probably more."""

    rows: int
    unreadable: int
    bytes: int
    was_full: bool


class AuditQueue:
    """One audit queue. `queue` is its name in the lake."""

    def __init__(self, tools: Tools, table: QueueTable, queue: str) -> None:
        self._tools = tools
        self._table = table
        self._queue = queue

    def take(self, most: int) -> Taken | None:
        """Take the first rows, `most` at most; None if the queue is empty.

        BatchLost if somebody else has taken some of them, QueueNotFound if the table is gone: then nothing was taken.
        """
        highest, was_full = boundary(self._table, most)
        if highest is None:
            return None
        self._tools.step("chosen")

        def write(batch: uuid.UUID) -> Written:
            return write_messages(self._tools, self._table, self._queue, batch, None, highest)

        return brought(make_batch(self._tools, BatchKind.AUDIT, self._queue, write, self._remove), was_full=was_full)

    def _remove(self, _: LakeBatch, made: Made) -> None:
        commit = made.commit
        removed = remove_ranges(self._table, ranges_of(made.written.row_versions))
        if removed != commit.rows:
            raise BatchLost(
                f"{commit.rows - removed:,} of {commit.rows:,} rows of {self._table.qualified} were taken by somebody else: "
                "the batch is rolled back"
            )
        self._tools.step("deleted")
        count_batch(self._tools, made, "messages")


def write_messages(tools: Tools, table: QueueTable, queue: str, batch: uuid.UUID, first: int | None, highest: int) -> Written:
    """Write the rows of an audit queue from a RowVersion on, None for the first there is, up to another."""
    taken_at = database_now(tools.alias)

    def parsed(lowest: int | None, highest: int) -> DataFrame:
        rows = tools.read(table, first if lowest is None else lowest, highest)
        return parse_messages(rows, queue=queue, batch=str(batch), taken_at=taken_at)

    return write_parsed(tools, batch, MESSAGES, queue, parsed, highest)


def brought(commit: Commit | None, *, was_full: bool) -> Taken:
    """What a batch has brought; None stands for one of no rows."""
    return Taken(0, 0, 0, was_full) if commit is None else Taken(commit.rows, commit.unreadable, commit.bytes, was_full)


def boundary(table: QueueTable, most: int) -> tuple[int | None, bool]:
    """The RowVersion of the n-th row, or of the last one where there are fewer; and whether there are so many."""
    found = table.row_version_at(most - 1)
    if found is not None:
        return found, True
    last = table.peek_back(1, body_limit=0)
    return (last[0].row_version, False) if last else (None, False)
