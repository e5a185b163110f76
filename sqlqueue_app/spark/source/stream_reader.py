"""Streaming reads of a queue table: every row once, in RowVersion order, however late it was committed. Nothing is deleted.

RowVersions are drawn at the insert and become visible at the commit, so a row can appear below rows that were read long ago. The
watermark only counts a RowVersion as settled when all transactions have ended that could have drawn a lower one: those that held a
write lock on the table after that RowVersion was seen, as CREATE INDEX CONCURRENTLY finds them. It blocks nothing and never waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sqlqueue_app.dialects.dialect import Dialect, Rendered, RowRange, dialect
from sqlqueue_app.messages.errors import ConfigurationError, LockTimeout, counted
from sqlqueue_app.spark.source.batch_reader import RowsOfTable, plan_ranges, read_rows
from sqlqueue_app.spark.source.database import Connection, SourceTable, connected, find_table
from sqlqueue_app.spark.source.options import StreamOptions

# One above the lowest bigint, whose absolute value is not a bigint.
_BEFORE_ALL = -(2**63) + 1
# Spark polls a hundred times per second. Each probe opens a connection, so idle queues are probed at growing intervals.
_MIN_POLL_SECONDS = 0.2
_MAX_POLL_SECONDS = 2.0
_SETTLE_POLL_SECONDS = 0.05
Offset = dict[str, int]


class QueueFollower(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Runs in a process of its own next to the driver; copies of it read the partitions."""

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._watermark = Watermark()
        self._last_row: int | None = None
        self._poll_again_at = 0.0
        self._poll_seconds = _MIN_POLL_SECONDS

    def initialOffset(self) -> Offset:  # noqa: N802 -- Spark's names, here and below
        """The offset before the first row."""
        return _offset(_BEFORE_ALL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option max_rows_per_trigger."""
        limit = self._options.max_rows_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the run at the current last row. Raises LockTimeout if open transactions keep it unsettled for too long."""
        deadline = time.monotonic() + self._options.settle_seconds
        with self._connected("look for the last row") as (connection, table):
            probe = self._probe(connection, table)
            self._last_row = probe.newest()
            if self._last_row is None:
                self._last_row = _BEFORE_ALL
                return
            while (self._watermark.advance(probe) or _BEFORE_ALL) < self._last_row:
                if time.monotonic() > deadline:
                    raise LockTimeout(
                        f"{counted(len(probe.writers()), 'transaction')} still writing to {table.qualified} after "
                        f"{self._options.settle_seconds} s may still commit rows before the existing ones: end those transactions, "
                        "or raise the option settle_seconds"
                    )
                threading.Event().wait(_SETTLE_POLL_SECONDS)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """The last settled row, or the last one within the limit."""
        before = _row_version(start)
        if time.monotonic() < self._poll_again_at and self._last_row is None:
            return start
        with self._connected("look for new rows") as (connection, table):
            settled = self._last_row
            if settled is None:
                settled = self._watermark.advance(self._probe(connection, table))
            if settled is None or settled <= before:
                self._poll_again_at = time.monotonic() + self._poll_seconds
                self._poll_seconds = min(self._poll_seconds * 2, _MAX_POLL_SECONDS)
                return start
            self._poll_seconds = _MIN_POLL_SECONDS
            if isinstance(limit, ReadMaxRows):
                settled = self._limited(connection, table, before, settled, limit.max_rows)
            return _offset(settled)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The rows after `start` up to `end`, as ranges with about equal numbers of rows."""
        rows = RowRange(_row_version(start) + 1, _row_version(end))
        with self._connected("plan the reading") as (connection, table):
            return [RowsOfTable(table, each) for each in plan_ranges(connection, self._options.read, table, rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RowsOfTable):
            return iter(())
        return read_rows(self._options.read, self._schema, partition)

    def _probe(self, connection: Connection, table: SourceTable) -> TableProbe:
        return TableProbe(connection.fetch, dialect(self._options.read.database.dialect), table.qualified)

    def _limited(self, connection: Connection, table: SourceTable, after: int, highest: int, limit: int) -> int:
        known = dialect(self._options.read.database.dialect)
        texts = {"after": str(after), "highest": str(highest), "places": str(limit - 1)}
        found = connection.fetch(known.statement("row_version_after", table=table.qualified, **texts))
        return int(found[0][0]) if found else highest

    @contextmanager
    def _connected(self, doing: str) -> Iterator[tuple[Connection, SourceTable]]:
        """A context with a connection and the queue's table, whose columns are read each time because they may change."""
        database, queue = self._options.read.database, self._options.read.queue
        with connected(database, f"{doing} of the queue {queue!r}") as connection:
            yield connection, find_table(connection, database, queue)


def _offset(row_version: int) -> Offset:
    return {"RowVersion": row_version}


def _row_version(offset: Offset) -> int:
    return int(offset["RowVersion"])


_MAX_CANDIDATES = 100


class WritingTransaction(NamedTuple):
    """A transaction that may still insert rows."""

    name: str
    is_prepared: bool


class WatermarkProbe(Protocol):
    """Queries of the watermark."""

    def newest(self) -> int | None:
        """The highest visible RowVersion."""

    def writers(self) -> frozenset[WritingTransaction]:
        """The transactions that hold a write lock on the table."""


@dataclass(slots=True)
class _Candidate:
    row_version: int
    waits_for: frozenset[WritingTransaction]


@dataclass(slots=True)
class Watermark:
    """The settled RowVersion of one table. Used by one thread; a new watermark starts without one."""

    settled: int | None = None
    _candidates: list[_Candidate] = field(default_factory=list)

    def advance(self, probe: WatermarkProbe) -> int | None:
        """Probe the table and return the settled RowVersion."""
        newest = probe.newest()
        # Query them after the RowVersion: a transaction that drew a lower one holds its lock now or has ended.
        writers = probe.writers()
        for candidate in self._candidates:
            candidate.waits_for = _still_waited_for(candidate.waits_for, writers)
        highest = self._candidates[-1].row_version if self._candidates else self.settled
        if newest is not None and (highest is None or newest > highest) and len(self._candidates) < _MAX_CANDIDATES:
            self._candidates.append(_Candidate(newest, writers))
        for index, candidate in reversed(list(enumerate(self._candidates))):
            if not candidate.waits_for:
                self.settled = candidate.row_version
                del self._candidates[: index + 1]
                break
        return self.settled


def _still_waited_for(before: frozenset[WritingTransaction], now: frozenset[WritingTransaction]) -> frozenset[WritingTransaction]:
    left = before & now
    if any(not writer.is_prepared for writer in before - left):
        # A missing transaction has ended or was prepared under another name: wait for all prepared ones.
        left |= {writer for writer in now if writer.is_prepared}
    return left


class Fetch(Protocol):
    """Runs a statement outside of any transaction and returns all rows."""

    def __call__(self, statement: Rendered, **values: object) -> list[tuple[Any, ...]]: ...


class TableProbe:
    """The probe of one table. Raises ConfigurationError if RowVersions are not drawn in order."""

    def __init__(self, fetch: Fetch, known: Dialect, qualified: str) -> None:
        self._fetch = fetch
        self._dialect = known
        self._table = qualified
        if known.name == "postgresql":
            ((drawn,),) = fetch(known.statement("drawn_in_advance"), table=qualified)
            if int(drawn) > 1:
                raise ConfigurationError(
                    f"the sequence of {qualified} reserves {drawn} numbers at once for each session, so later rows may get lower "
                    "numbers than earlier ones and would be missed: ALTER SEQUENCE … CACHE 1"
                )

    def newest(self) -> int | None:
        """The highest visible RowVersion."""
        ((_, last),) = self._fetch(self._dialect.statement("row_version_bounds", table=self._table))
        return None if last is None else int(last)

    def writers(self) -> frozenset[WritingTransaction]:
        """Transactions that may still insert a lower RowVersion. None on SQLite, which has one writer at a time."""
        if self._dialect.name == "sqlite":
            return frozenset()
        found = self._fetch(self._dialect.statement("writers"), table=self._table)
        return frozenset(WritingTransaction(str(name), bool(is_prepared)) for name, is_prepared in found)
