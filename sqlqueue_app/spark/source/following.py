"""Following a queue table: every row once, by the order of their numbers, however late it was committed. Nothing is deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sqlqueue_app.databases.dialect import RowRange, dialect
from sqlqueue_app.messages.errors import LockTimeout
from sqlqueue_app.spark.source.connections import Connection, connected
from sqlqueue_app.spark.source.looks import LooksAtTable
from sqlqueue_app.spark.source.options import StreamOptions
from sqlqueue_app.spark.source.reading import RowsOfTable, planned, read_rows
from sqlqueue_app.spark.source.settling import Watermark
from sqlqueue_app.spark.source.tables import QueueTable, find_table

# One above the lowest bigint, whose digits alone would be none.
_BEFORE_ALL = -(2**63) + 1
# Spark asks a hundred times in a second whether there is something new. Each look is a connection: fewer, the longer nothing comes.
_LEAST_SECONDS_BETWEEN_LOOKS = 0.2
_MOST_SECONDS_BETWEEN_LOOKS = 2.0
_SECONDS_BETWEEN_TRIES = 0.05
Offset = dict[str, int]


class QueueFollower(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Lives in a process of its own beside the driver while the query runs; its copies read the partitions."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._watermark = Watermark()
        self._last_row: int | None = None
        self._look_again_at = 0.0
        self._seconds_between_looks = _LEAST_SECONDS_BETWEEN_LOOKS

    def initialOffset(self) -> Offset:  # noqa: N802 -- Spark's names, here and below
        """Before the first row that is there."""
        return _offset(_BEFORE_ALL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option max_rows_per_trigger."""
        most = self._options.max_rows_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The last row of the run is the last that is there now. LockTimeout if others keep it from being settled for too long."""
        deadline = time.monotonic() + self._options.settle_seconds
        with self._connected("look for the last row") as (connection, table):
            looks = self._looks(connection, table)
            self._last_row = looks.newest()
            if self._last_row is None:
                self._last_row = _BEFORE_ALL
                return
            while (self._watermark.look(looks) or _BEFORE_ALL) < self._last_row:
                if time.monotonic() > deadline:
                    raise LockTimeout(
                        f"{len(looks.writers())} transaction(s) have been writing to {table.qualified} for more than "
                        f"{self._options.settle_seconds} seconds, and rows of theirs may belong before those that are there: end "
                        "them, or wait longer by the option settle_seconds"
                    )
                threading.Event().wait(_SECONDS_BETWEEN_TRIES)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The last settled row, or the one that is as many rows after the start as the limit allows."""
        before = _row_version(start)
        if time.monotonic() < self._look_again_at and self._last_row is None:
            return start
        with self._connected("look for new rows") as (connection, table):
            settled = self._settled(connection, table)
            if settled is None or settled <= before:
                self._look_again_at = time.monotonic() + self._seconds_between_looks
                self._seconds_between_looks = min(self._seconds_between_looks * 2, _MOST_SECONDS_BETWEEN_LOOKS)
                return start
            self._seconds_between_looks = _LEAST_SECONDS_BETWEEN_LOOKS
            if isinstance(limit, ReadMaxRows):
                settled = self._limited(connection, table, before, settled, limit.max_rows)
            return _offset(settled)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The rows after the one and up to the other, as ranges of about equal numbers of rows."""
        rows = RowRange(_row_version(start) + 1, _row_version(end))
        with self._connected("plan the reading") as (connection, table):
            return [RowsOfTable(table, each) for each in planned(connection, self._options.read, table, rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, as Arrow batches."""
        if not isinstance(partition, RowsOfTable):
            return iter(())
        return read_rows(self._options.read, self._schema, partition)

    def _settled(self, connection: Connection, table: QueueTable) -> int | None:
        if self._last_row is not None:
            return self._last_row
        return self._watermark.look(self._looks(connection, table))

    def _looks(self, connection: Connection, table: QueueTable) -> LooksAtTable:
        return LooksAtTable(connection.fetch, dialect(self._options.read.database.dialect), table.qualified)

    def _limited(self, connection: Connection, table: QueueTable, after: int, highest: int, most: int) -> int:
        known = dialect(self._options.read.database.dialect)
        texts = {"after": str(after), "highest": str(highest), "places": str(most - 1)}
        found = connection.fetch(known.script("row_version_after", table=table.qualified, **texts))
        return int(found[0][0]) if found else highest

    def _connected(self, doing: str) -> _Connected:
        return _Connected(self._options, doing)


class _Connected:
    """A context with a connection and the table of the queue, whose columns are looked up each time: others may change them."""

    def __init__(self, options: StreamOptions, doing: str) -> None:
        self._options = options
        self._doing = f"{doing} of the queue {options.read.queue!r}"
        self._stack = ExitStack()

    def __enter__(self) -> tuple[Connection, QueueTable]:
        with ExitStack() as stack:
            database = self._options.read.database
            connection = stack.enter_context(connected(database, self._doing))
            table = find_table(connection, database, self._options.read.queue)
            self._stack = stack.pop_all()
        return connection, table

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)


def _offset(row_version: int) -> Offset:
    return {"RowVersion": row_version}


def _row_version(offset: Offset) -> int:
    return int(offset["RowVersion"])
