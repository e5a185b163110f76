"""Convert rows of queues to DataFrames and back, for comparisons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.support.spark_reference import Row

_SOURCE = (
    "RowVersion BIGINT, Id STRING, CorrelationId STRING, ReplyToAddress STRING, Expires TIMESTAMP, Headers STRING, Body BINARY"
)


def source_rows(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """The rows as the data source returns them."""
    return spark.createDataFrame(
        [(row.row_version, row.native_id, None, None, row.expires, row.headers, row.body) for row in rows], _SOURCE
    )


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows, with aware instants."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found
