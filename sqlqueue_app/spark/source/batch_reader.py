"""Batch reads of a queue table: planned as RowVersion ranges with about equal numbers of rows, one range per task.

RowVersions have gaps, from rows received, rolled back or allocated in blocks. So planning does not count the table: it probes short
stretches of the index to estimate the density and probes thin stretches that may hold many rows more closely.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructField, StructType, TimestampType

from sqlqueue_app.dialects.dialect import RowRange, dialect
from sqlqueue_app.messages.errors import ConfigurationError, WireFormatError
from sqlqueue_app.messages.headers import read_headers
from sqlqueue_app.spark.source.database import Connection, SourceTable, connected, find_table
from sqlqueue_app.spark.source.options import ReadOptions

# Fewer rows are not worth a task.
_ROWS_OF_A_PARTITION = 20_000


@dataclass
class RowsOfTable(InputPartition):
    """The rows that one task reads."""

    table: SourceTable
    rows: RowRange


class QueueReader(DataSourceReader):
    """A batch read: plans the partitions in the driver, then runs in each task for one of them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._rows = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        """Ranges with about equal numbers of rows, up to the current last row."""
        database, queue = self._options.database, self._options.queue
        with connected(database, f"plan the reading of the queue {queue!r}") as connection:
            table = find_table(connection, database, queue)
            return [RowsOfTable(table, rows) for rows in plan_ranges(connection, self._options, table, self._rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RowsOfTable):
            # Spark's substitute for an empty list of partitions
            return iter(())
        return read_rows(self._options, self._schema, partition)


class FilteringQueueReader(QueueReader):
    """A batch read with filter pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 -- Spark's name
        """Narrow the range; Spark applies every filter again."""
        self._rows = narrow_range(self._rows, filters)
        return filters


def read_rows(options: ReadOptions, schema: StructType, partition: RowsOfTable) -> Iterator[pa.RecordBatch]:
    """Read a range with the columns of the schema."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    columns = wanted_columns(arrow, partition.table.columns)
    with connected(options.database, f"read the queue {options.queue!r}") as connection:
        yield from conform_batches(
            connection.batches(partition.table.qualified, columns, partition.rows, options.batch_size), arrow
        )


def plan_ranges(connection: Connection, options: ReadOptions, table: SourceTable, rows: RowRange) -> list[RowRange]:
    """The ranges of the tasks; empty if there are no rows."""
    known = dialect(options.database.dialect)
    ((first, last),) = connection.fetch(known.statement("row_version_bounds", table=table.qualified))
    if first is None:
        return []
    lowest, highest = max(int(first), rows.lowest), min(int(last), rows.highest)
    if lowest > highest:
        return []

    def probe(start: int, end: int) -> tuple[int, int]:
        texts = {"lowest": str(start), "highest": str(end), "limit": str(ROWS_PER_PROBE)}
        ((count, counted),) = connection.fetch(known.statement("count_range", table=table.qualified, **texts))
        return int(count), int(counted) if counted is not None else start

    ranges = even_ranges(lowest, highest, options.partitions, probe, _default_partitions)
    return [replace(rows, lowest=start, highest=end) for start, end in ranges]


def _default_partitions(rows: float) -> int:
    return max(1, min(os.cpu_count() or 1, int(rows // _ROWS_OF_A_PARTITION)))


_COLUMNS: Mapping[str, DataType] = {
    "RowVersion": LongType(),
    "Id": StringType(),
    "CorrelationId": StringType(),
    "ReplyToAddress": StringType(),
    "Expires": TimestampType(),
    "Headers": StringType(),
    "Body": BinaryType(),
}
HEADER_MAP = "HeaderMap"
_PARSED: Mapping[str, DataType] = {HEADER_MAP: MapType(StringType(), StringType())}


def schema_of(*, parsed_headers: bool) -> StructType:
    """All columns, in order."""
    return StructType([StructField(name, kind) for name, kind in _known(parsed_headers).items()])


def check_schema(schema: StructType, *, parsed_headers: bool) -> None:
    """Raise ConfigurationError unless the requested schema consists of our columns, any of them in any order."""
    known = _known(parsed_headers)
    for field in schema.fields:
        kind = known.get(field.name)
        if kind is None:
            hint = " (the option headers=parsed gives it)" if field.name == HEADER_MAP else ""
            raise ConfigurationError(f"the schema asks for the column {field.name!r}{hint}: a queue has {', '.join(known)}")
        if field.dataType != kind:
            raise ConfigurationError(
                f"the schema asks for the column {field.name} as {field.dataType.simpleString()}: expected {kind.simpleString()}"
            )


def _known(parsed_headers: bool) -> dict[str, DataType]:
    return {**_COLUMNS, **(_PARSED if parsed_headers else {})}


def wanted_columns(schema: pa.Schema, there: Iterable[str]) -> list[str]:
    """The table columns that the schema needs."""
    names = set(schema.names) | ({"Headers"} if HEADER_MAP in schema.names else set())
    # at least one column, even if the schema only has columns that the table lacks
    return [name for name in there if name in names] or ["RowVersion"]


def conform_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Convert batches to the schema; columns that the table lacks are NULL."""
    for batch in batches:
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays([_column(batch, field) for field in schema], schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name == HEADER_MAP:
        return pa.array([_pairs(text) for text in batch.column("Headers").to_pylist()], field.type)
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    return column if column.type == field.type else column.cast(field.type)


def _pairs(text: str | None) -> list[tuple[str, str | None]] | None:
    """The parsed headers; None if they cannot be parsed, the column Headers has the text."""
    try:
        return list(read_headers(text).items())
    except WireFormatError:
        return None


# Without filters. Excludes the lowest bigint, whose absolute value is not a bigint.
EVERYTHING = RowRange(-(2**63) + 1, 2**63 - 1)
_SECOND = timedelta(seconds=1)
# Outside of these years the column may hold substitute values.
_FIRST_YEAR, _LAST_YEAR = 1000, 9998


def narrow_range(rows: RowRange, filters: Iterable[Filter]) -> RowRange:
    """Narrow the range by the filters. Never excludes a matching row; Spark applies the filters again."""
    for each in filters:
        column = getattr(each, "attribute", None)
        if column == ("RowVersion",):
            rows = _by_row_version(rows, each)
        elif column == ("Expires",):
            rows = _by_expires(rows, each)
    return rows


def _by_row_version(rows: RowRange, each: Filter) -> RowRange:
    value: Any = getattr(each, "value", None)
    if isinstance(each, In):
        values = [number for number in value if _is_number(number)]
        return _between(rows, min(values), max(values)) if len(values) == len(value) and values else rows
    if not _is_number(value):
        return rows
    match each:
        case EqualTo() | EqualNullSafe():
            return _between(rows, value, value)
        case GreaterThan():
            return _between(rows, value + 1, rows.highest)
        case GreaterThanOrEqual():
            return _between(rows, value, rows.highest)
        case LessThan():
            return _between(rows, rows.lowest, value - 1)
        case LessThanOrEqual():
            return _between(rows, rows.lowest, value)
    return rows


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _between(rows: RowRange, lowest: int, highest: int) -> RowRange:
    return replace(rows, lowest=max(rows.lowest, lowest), highest=min(rows.highest, highest))


def _by_expires(rows: RowRange, each: Filter) -> RowRange:
    match each:
        case IsNotNull():
            return replace(rows, only_expiring=True)
        case EqualTo(value=datetime() as value):
            return _before(_from(rows, value), value)
        case GreaterThan(value=datetime() as value) | GreaterThanOrEqual(value=datetime() as value):
            return _from(rows, value)
        case LessThan(value=datetime() as value) | LessThanOrEqual(value=datetime() as value):
            return _before(rows, value)
    return rows


def _from(rows: RowRange, value: datetime) -> RowRange:
    second = _second_of(value)
    if second is None:
        return rows
    return replace(rows, expires_from=second if rows.expires_from is None else max(rows.expires_from, second))


def _before(rows: RowRange, value: datetime) -> RowRange:
    second = _second_of(value)
    if second is None:
        return rows
    following = second + _SECOND
    return replace(rows, expires_before=following if rows.expires_before is None else min(rows.expires_before, following))


def _second_of(value: datetime) -> datetime | None:
    """The whole second of an aware time, as naive UTC: databases round fractions differently."""
    if value.tzinfo is None or not _FIRST_YEAR <= value.year <= _LAST_YEAR:
        return None
    return value.astimezone(UTC).replace(tzinfo=None, microsecond=0)


ROWS_PER_PROBE = 100
_SLICES = 64
_FINER = 8
_DENSE = 0.9
# Enough to find a few rows anywhere among all bigints; usually at most one is needed.
_ROUNDS = 16

RangeProbe = Callable[[int, int], tuple[int, int]]
"""Counts the rows between two RowVersions, at most ROWS_PER_PROBE; also returns the last one counted."""


@dataclass(frozen=True, slots=True)
class _Slice:
    lowest: int
    highest: int
    rows: float
    is_thin: bool = False
    """Whether `rows` is an uncertain estimate: many rows, and gaps at one of the ends."""

    @property
    def width(self) -> int:
        return self.highest - self.lowest + 1


def even_ranges(
    lowest: int, highest: int, partitions: int | None, probe: RangeProbe, default: Callable[[float], int]
) -> list[tuple[int, int]]:
    """Cut `lowest` to `highest` into at most `partitions` ascending ranges, with inclusive ends.

    `default` gives the number of ranges for an estimated number of rows if `partitions` is None.
    """
    if partitions == 1:
        return [(lowest, highest)]
    slices = _slice_evenly(lowest, highest, max(_SLICES, 2 * (partitions or 1)), probe)
    # First every thin slice, because its middle may be dense; then only slices with too many rows for one range.
    slices = [finer for each in slices for finer in (_refine(each, probe) if each.is_thin else [each])]
    for _ in range(_ROUNDS):
        rows = sum(each.rows for each in slices)
        limit = rows / (partitions or default(rows)) / 8
        if not any(each.is_thin and each.rows > limit for each in slices):
            break
        slices = [finer for each in slices for finer in (_refine(each, probe) if each.is_thin and each.rows > limit else [each])]
    count = partitions or default(sum(each.rows for each in slices))
    return _cut(slices, min(count, highest - lowest + 1))


def _refine(each: _Slice, probe: RangeProbe) -> list[_Slice]:
    return _slice_evenly(each.lowest, each.highest, _FINER, probe)


def _slice_evenly(lowest: int, highest: int, count: int, probe: RangeProbe) -> list[_Slice]:
    width = max(1, -(-(highest - lowest + 1) // count))
    return [_probe_slice(start, min(start + width - 1, highest), probe) for start in range(lowest, highest + 1, width)]


def _probe_slice(lowest: int, highest: int, probe: RangeProbe) -> _Slice:
    """Estimate a slice from its ends. The denser end counts: an overestimate is probed again, an underestimate is not."""
    rows, last = probe(lowest, highest)
    width = highest - lowest + 1
    if rows < ROWS_PER_PROBE:
        return _Slice(lowest, highest, rows)
    at_start = rows / (last - lowest + 1)
    stretch = min(width, ROWS_PER_PROBE)
    at_end = probe(highest - stretch + 1, highest)[0] / stretch
    return _Slice(lowest, highest, max(at_start, at_end) * width, is_thin=min(at_start, at_end) < _DENSE and width > stretch)


def _cut(slices: Iterable[_Slice], count: int) -> list[tuple[int, int]]:
    slices = list(slices)
    total = sum(each.rows for each in slices)
    ends: list[int] = []
    passed = 0.0
    for each in slices:
        while len(ends) < count - 1 and each.rows and passed + each.rows >= (wanted := total * (len(ends) + 1) / count):
            inside = max(0, round((wanted - passed) / each.rows * each.width) - 1)
            ends.append(min(each.lowest + inside, each.highest))
        passed += each.rows
    highest = slices[-1].highest
    starts = [slices[0].lowest]
    for end in ends:
        if starts[-1] <= end < highest:
            starts.append(end + 1)
    return [(start, following - 1) for start, following in zip(starts, [*starts[1:], highest + 1], strict=True)]
