"""Filters that Spark pushes down reduce the rows read and never change the result."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, IsNull, LessThanOrEqual, Not

from sqlqueue_app.dialects.dialect import RowRange, dialect
from sqlqueue_app.spark.source.batch_reader import EVERYTHING, FilteringQueueReader, narrow_range, schema_of
from sqlqueue_app.spark.source.options import read_options
from tests.spark.conftest import Queue, url_of

NOON = datetime(2030, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
SECOND = NOON.replace(microsecond=0, tzinfo=None)

NARROWED: list[tuple[list[Filter], RowRange]] = [
    ([GreaterThan(("RowVersion",), 5)], RowRange(6, EVERYTHING.highest)),
    ([EqualTo(("RowVersion",), 5), LessThanOrEqual(("RowVersion",), 3)], RowRange(5, 3)),
    ([In(("RowVersion",), (9, 4, 7))], RowRange(4, 9)),
    ([In(("RowVersion",), (9, None))], EVERYTHING),
    ([EqualTo(("RowVersion",), True)], EVERYTHING),
    ([Not(EqualTo(("RowVersion",), 5)), EqualTo(("Id",), "x"), IsNull(("Expires",))], EVERYTHING),
    ([IsNotNull(("Expires",))], RowRange(EVERYTHING.lowest, EVERYTHING.highest, only_expiring=True)),
    ([GreaterThan(("Expires",), NOON)], RowRange(EVERYTHING.lowest, EVERYTHING.highest, expires_from=SECOND)),
    (
        [LessThanOrEqual(("Expires",), NOON)],
        RowRange(EVERYTHING.lowest, EVERYTHING.highest, expires_before=SECOND + timedelta(seconds=1)),
    ),
    ([GreaterThan(("Expires",), NOON.replace(tzinfo=None)), GreaterThan(("Expires",), NOON.replace(year=9999))], EVERYTHING),
]


@pytest.mark.parametrize(("filters", "expected"), NARROWED)
def test_filters_narrow_the_range(filters: list[Filter], expected: RowRange) -> None:
    assert narrow_range(EVERYTHING, filters) == expected


CONDITIONS = [
    "RowVersion > 3", "RowVersion >= 3 AND RowVersion < 6", "RowVersion = 4", "RowVersion IN (2, 5, 99)", "RowVersion <=> 4",
    "RowVersion <> 4", "RowVersion = 1 OR RowVersion = 6", "RowVersion < 0", "NOT RowVersion > 3", "RowVersion IS NULL",
    "Expires IS NULL", "Expires IS NOT NULL", "Expires > TIMESTAMP '2030-01-01 12:00:00.250Z'",
    "Expires >= TIMESTAMP '2030-01-01 12:00:00.250Z'", "Expires < TIMESTAMP '2030-01-01 12:00:00.250Z'",
    "Expires <= TIMESTAMP '2030-01-01 12:00:00.250Z'", "Expires = TIMESTAMP '2030-01-01 12:00:00.250Z'",
    "Expires = TIMESTAMP '2030-01-01 14:00:00.250+02:00'", "Expires <> TIMESTAMP '2030-01-01 12:00:00.250Z'",
    "Expires < TIMESTAMP '9999-12-31 00:00:00Z'", "Expires > TIMESTAMP '0001-01-01 00:00:00Z'", "Expires < now()",
    "Expires BETWEEN TIMESTAMP '2030-01-01 00:00:00Z' AND TIMESTAMP '2030-01-01 12:00:00.3Z'", "Body = X'33'",
]  # fmt: skip
TIMES = {
    "sqlite": [
        None, "2030-01-01 12:00:00.250", "2030-01-01 12:00:00", "2030-01-01 12:00:00.251000", "2030-01-01T12:00:00.250000+00:00",
        "2030-01-01 14:00:00.250-02:00", "2001-02-03", "0001-01-01", "9999-12-31 23:59:59.999", "tomorrow", "",
    ],
    "postgresql": [
        None, "2030-01-01 12:00:00.25", "2030-01-01 12:00:00", "2030-01-01 12:00:00.250001", "2001-02-03", "infinity", "-infinity",
        "0044-03-15 BC", "294000-01-01", "0001-01-01", "9999-12-31 23:59:59.999999",
    ],
    # a datetime: from the year 1753, 300 steps per second
    "sqlserver": [
        None, "2030-01-01T12:00:00.250", "2030-01-01T12:00:00", "2030-01-01T12:00:00.253", "2030-01-01T12:00:00.247",
        "2001-02-03T00:00:00", "1900-01-01T00:00:00", "1753-01-01T00:00:00", "1753-01-01T00:00:00.003", "9999-12-30T23:59:59.997",
        "9999-12-31T23:59:59.997",
    ],
}  # fmt: skip


@pytest.fixture
def times(queue: Queue) -> Queue:
    """A queue with rows of all kinds of expiry."""
    for number, expires in enumerate(TIMES[queue.database.vendor]):
        queue.add(expires=expires, body=b"%d" % number)
    return queue


def test_pushed_filters_give_the_same_result_as_spark(times: Queue) -> None:
    everything = times.read().cache()
    try:
        expected = {text: found(everything.where(text)) for text in CONDITIONS}
    finally:
        everything.unpersist(blocking=True)

    assert {text: found(times.read(partitions=2).where(text)) for text in CONDITIONS} == expected
    assert len({str(rows) for rows in expected.values()}) > len(CONDITIONS) // 2


def found(frame: Any) -> list[bytes]:
    return sorted(bytes(row.Body) for row in frame.collect())


def test_filters_reduce_the_rows_read(times: Queue) -> None:
    def read(*filters: Filter) -> int:
        options = read_options({"url": url_of(times.database), "queue": "Sales"})
        reader = FilteringQueueReader(options, schema_of(parsed_headers=False))
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return sum(batch.num_rows for partition in reader.partitions() for batch in reader.read(partition))

    assert read() == 11
    assert read(GreaterThan(("RowVersion",), 8)) == 3
    assert read(EqualTo(("RowVersion",), 8)) == 1
    assert read(GreaterThan(("RowVersion",), 5), LessThanOrEqual(("RowVersion",), 2)) == 0
    assert read(IsNotNull(("Expires",))) == 10
    assert read(GreaterThan(("Expires",), NOON + timedelta(days=1))) < 9
    assert read(LessThanOrEqual(("Expires",), NOON - timedelta(days=1))) < 9


def test_extreme_expiries_stay_in_order(times: Queue) -> None:
    rows = times.read().where("Expires IS NOT NULL").sort("Expires", "Body").collect()

    assert rows[-1].Expires.year == 9999
    assert rows[0].Expires.year == (1753 if times.database.vendor == "sqlserver" else 1)


@pytest.mark.parametrize("name", ["sqlserver", "postgresql", "sqlite"])
def test_statement_contains_only_literals_of_the_range(name: str) -> None:
    rows = RowRange(-5, 7, SECOND, SECOND, only_expiring=True)

    statement = dialect(name).read_statement("t", ["RowVersion"], rows, limit=3)

    assert "'2030-01-01 12:00:00'" in statement
    assert statement.count("-5") == 1
