"""Rollups by Spark equal those of a plain Python reference, in one batch and in several."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sqlqueue_app.lake.columns import ROLLUPS
from sqlqueue_app.lake.sketches import KEYS, add_up_rows
from sqlqueue_app.spark.rollups import rollup_rows
from sqlqueue_app.spark.transforms import parse_failures, parse_messages
from tests.spark.tables import source_rows
from tests.support import spark_reference as reference
from tests.support.random_messages import TAKEN_AT, random_rows
from tests.support.spark_reference import Row

Rows = list[dict[str, Any]]


def in_order(name: str, rows: Rows) -> Rows:
    """Sort by the keys; round sums above 70 years, whose microseconds a float cannot hold."""
    keys = KEYS.get(name, ("day", "kind", "rank"))
    for row in rows:
        for column in ("processing_sum", "critical_sum"):
            if abs(row.get(column, 0)) > 2**51 / 1e6:
                row[column] = float(f"{row[column]:.9g}")
    return sorted(rows, key=lambda row: tuple(row[key] for key in keys))


def given(queue: str) -> dict[str, Any]:
    return {"queue": queue, "batch": "b-1", "taken_at": TAKEN_AT}


class Batch:
    """Rows of both queues, parsed once by Spark like a batch."""

    def __init__(self, spark: SparkSession, audited: list[Row], failed: list[Row]) -> None:
        messages = parse_messages(source_rows(spark, audited), **given("audit")).localCheckpoint()
        failures = parse_failures(source_rows(spark, failed), **given("error")).localCheckpoint()
        self.messages, self.failures = (frame.where("problem IS NULL") for frame in (messages, failures))
        bad = [frame.where("problem IS NOT NULL").select(*BAD) for frame in (messages, failures)]
        self.unreadable = bad[0].unionByName(bad[1])

    def found(self) -> dict[str, Rows]:
        return rollup_rows(self.messages, self.failures, self.unreadable)


BAD = ("queue", "day", "body_bytes", "header_bytes")


def wanted(audited: list[Row], failed: list[Row]) -> dict[str, Rows]:
    messages = [reference.message(row, **given("audit")) for row in audited]
    failures = [reference.message(row, **given("error"), failed=True) for row in failed]
    return reference.figures(
        [row for row in messages if not row["problem"]],
        [row for row in failures if not row["problem"]],
        [row for row in (*messages, *failures) if row["problem"]],
    )


def same(found: dict[str, Rows], wanted: dict[str, Rows]) -> None:
    assert sorted(found) == sorted(wanted) == sorted(ROLLUPS)
    for name in ROLLUPS:
        assert in_order(name, found[name]) == in_order(name, wanted[name]), name


def test_rollups_match_the_reference(spark: SparkSession) -> None:
    audited, failed = random_rows(11, 1_500), random_rows(12, 300, failed=True)

    same(Batch(spark, audited, failed).found(), wanted(audited, failed))


def test_rollups_of_batches_add_up(spark: SparkSession) -> None:
    audited, failed = random_rows(13, 600), random_rows(14, 150, failed=True)

    parts = [Batch(spark, audited[start::2], failed[start::2]).found() for start in range(2)]

    whole = wanted(audited, failed)
    for name, keys in KEYS.items():
        added = add_up_rows([row for part in parts for row in part[name]], keys)
        assert in_order(name, added) == in_order(name, whole[name]), name


def test_rollups_of_one_queue_and_of_no_rows(spark: SparkSession) -> None:
    audited = random_rows(15, 100)
    batch = Batch(spark, audited, [])
    rows = rollup_rows(batch.messages, None, batch.unreadable)

    same(rows, wanted(audited, []))
    same(batch.found(), rows)
    assert rollup_rows(None, None, None) == {name: [] for name in ROLLUPS}
