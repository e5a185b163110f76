"""Reading a queue table once: planned into ranges of RowVersion, each read by one task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sqlqueue_app.databases.dialect import RowRange, dialect
from sqlqueue_app.spark.source.connections import Connection, connected
from sqlqueue_app.spark.source.filters import EVERYTHING, narrowed
from sqlqueue_app.spark.source.options import ReadOptions
from sqlqueue_app.spark.source.ranges import ROWS_OF_A_LOOK, even_ranges
from sqlqueue_app.spark.source.shaping import shaped, wanted_columns
from sqlqueue_app.spark.source.tables import QueueTable, find_table

# Fewer rows are not worth a task of their own.
_ROWS_OF_A_PARTITION = 20_000


@dataclass
class RowsOfTable(InputPartition):
    """What one task reads."""

    table: QueueTable
    rows: RowRange


class QueueReader(DataSourceReader):
    """A batch read. Made and asked for its partitions where the query is planned; sent to each task, which reads one of them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._rows = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        """Ranges with about equal numbers of rows, up to the last row that is there now."""
        database, queue = self._options.database, self._options.queue
        with connected(database, f"plan the reading of the queue {queue!r}") as connection:
            table = find_table(connection, database, queue)
            return [RowsOfTable(table, rows) for rows in planned(connection, self._options, table, self._rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, as Arrow batches."""
        if not isinstance(partition, RowsOfTable):
            # what Spark makes of no partitions at all
            return iter(())
        return read_rows(self._options, self._schema, partition)


class FilteringQueueReader(QueueReader):
    """The same, for where Spark hands filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 -- Spark's name
        """Narrows what is read; Spark looks at every filter again."""
        self._rows = narrowed(self._rows, filters)
        return filters


def read_rows(options: ReadOptions, schema: StructType, partition: RowsOfTable) -> Iterator[pa.RecordBatch]:
    """The rows of a range in the shape of the schema."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    columns = wanted_columns(arrow, partition.table.columns)
    with connected(options.database, f"read the queue {options.queue!r}") as connection:
        yield from shaped(connection.batches(partition.table.qualified, columns, partition.rows, options.batch_size), arrow)


def planned(connection: Connection, options: ReadOptions, table: QueueTable, rows: RowRange) -> list[RowRange]:
    """The ranges of the tasks; none for no rows."""
    known = dialect(options.database.dialect)
    ((first, last),) = connection.fetch(known.script("row_version_bounds", table=table.qualified))
    if first is None:
        return []
    lowest, highest = max(int(first), rows.lowest), min(int(last), rows.highest)
    if lowest > highest:
        return []

    def look(start: int, end: int) -> tuple[int, int]:
        texts = {"lowest": str(start), "highest": str(end), "limit": str(ROWS_OF_A_LOOK)}
        ((count, counted),) = connection.fetch(known.script("look_at_range", table=table.qualified, **texts))
        return int(count), int(counted) if counted is not None else start

    ranges = even_ranges(lowest, highest, options.partitions, look, _default_partitions)
    return [replace(rows, lowest=start, highest=end) for start, end in ranges]


def _default_partitions(rows: float) -> int:
    return max(1, min(os.cpu_count() or 1, int(rows // _ROWS_OF_A_PARTITION)))
