"""Figures by Spark are those of a plain Python reference over the same messages, in one batch and in several."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sqlqueue_app.lake.columns import FIGURES, NOTABLE_ROWS
from sqlqueue_app.lake.sums import KEYS, added_up
from sqlqueue_app.spark.transforms.failures import parse_failures
from sqlqueue_app.spark.transforms.figures import figure_rows, figures
from sqlqueue_app.spark.transforms.messages import parse_messages
from tests.spark import reference
from tests.spark.random_messages import TAKEN_AT, random_rows
from tests.spark.reference import Row
from tests.spark.tables import rows_of, source_rows

Rows = list[dict[str, Any]]


def in_order(name: str, rows: Rows) -> Rows:
    """By their keys; sums exactly, but for those of more than 70 years, which no number of microseconds in a float holds."""
    keys = KEYS.get(name, ("day", "kind", "rank"))
    for row in rows:
        for column in ("processing_sum", "critical_sum"):
            if abs(row.get(column, 0)) > 2**51 / 1e6:
                row[column] = float(f"{row[column]:.9g}")
    return sorted(rows, key=lambda row: tuple(row[key] for key in keys))


class Batch:
    """Rows of both queues, parsed by Spark and by the reference."""

    def __init__(self, spark: SparkSession, audited: list[Row], failed: list[Row], taken_at: Any = TAKEN_AT) -> None:
        audit: dict[str, Any] = {"queue": "audit", "batch": "b-1", "taken_at": taken_at}
        error: dict[str, Any] = {**audit, "queue": "error"}
        # read once, as a batch is from its files
        self.messages = parse_messages(source_rows(spark, audited), **audit).localCheckpoint()
        self.failures = parse_failures(source_rows(spark, failed), **error).localCheckpoint()
        self.wanted_messages = [reference.message(row, **audit) for row in audited]
        self.wanted_failures = [reference.message(row, **error, failed=True) for row in failed]

    def found(self) -> dict[str, Rows]:
        def part(frame: DataFrame, *, is_readable: bool) -> DataFrame:
            return frame.where(f"problem IS {'' if is_readable else 'NOT '}NULL")

        bad = part(self.messages, is_readable=False).select("queue", "day", "body_bytes", "header_bytes")
        bad_failures = part(self.failures, is_readable=False).select("queue", "day", "body_bytes", "header_bytes")
        return figure_rows(
            part(self.messages, is_readable=True), part(self.failures, is_readable=True), bad.unionByName(bad_failures)
        )

    def wanted(self) -> dict[str, Rows]:
        every = [*self.wanted_messages, *self.wanted_failures]
        return reference.figures(
            [row for row in self.wanted_messages if not row["problem"]],
            [row for row in self.wanted_failures if not row["problem"]],
            [row for row in every if row["problem"]],
        )


def same(found: dict[str, Rows], wanted: dict[str, Rows]) -> None:
    assert sorted(found) == sorted(wanted) == sorted(FIGURES)
    for name in FIGURES:
        assert in_order(name, found[name]) == in_order(name, wanted[name]), name


def test_figures_are_those_of_the_reference(spark: SparkSession) -> None:
    batch = Batch(spark, random_rows(11, 1_500), random_rows(12, 300, failed=True))

    same(batch.found(), batch.wanted())


def test_batches_add_up_to_the_figures_of_all(spark: SparkSession) -> None:
    audited, failed = random_rows(13, 900), random_rows(14, 150, failed=True)
    parts = [Batch(spark, audited[start::3], failed[start::3]).found() for start in range(3)]

    wanted = Batch(spark, audited, failed).wanted()

    for name, keys in KEYS.items():
        added = added_up([row for part in parts for row in part[name]], keys)
        assert in_order(name, added) == in_order(name, wanted[name]), name


def test_no_messages_have_no_figures(spark: SparkSession) -> None:
    batch = Batch(spark, [], [])

    assert batch.found() == {name: [] for name in FIGURES}
    assert figure_rows(None, None, None) == {name: [] for name in FIGURES}


def test_one_kind_of_queue_alone_has_figures_too(spark: SparkSession) -> None:
    batch = Batch(spark, random_rows(15, 50), [])
    readable = batch.messages.where("problem IS NULL")
    wanted = reference.figures([row for row in batch.wanted_messages if not row["problem"]], [])

    same(figure_rows(readable, None), wanted)


def test_the_frames_hold_the_same_rows(spark: SparkSession) -> None:
    batch = Batch(spark, random_rows(16, 100), random_rows(17, 40, failed=True))

    frames = figures(batch.messages.where("problem IS NULL"), batch.failures.where("problem IS NULL"))
    rows = figure_rows(batch.messages.where("problem IS NULL"), batch.failures.where("problem IS NULL"))

    assert {name: frame.columns for name, frame in frames.items()} == {
        name: [*table.names, "day"] for name, table in FIGURES.items()
    }
    for name, frame in frames.items():
        found = [{key: dict(value) if key.endswith("_sketch") else value for key, value in row.items()} for row in rows_of(frame)]
        assert in_order(name, found) == in_order(name, rows[name]), name


@pytest.mark.parametrize("kind", ["slowest", "largest"])
def test_no_more_than_twenty_of_a_day_are_notable(spark: SparkSession, kind: str) -> None:
    found = Batch(spark, random_rows(18, 300), []).found()["notable"]

    of_kind = [row for row in found if row["kind"] == kind]
    for day in {row["day"] for row in of_kind}:
        ranks = [row["rank"] for row in of_kind if row["day"] == day]
        assert ranks == list(range(1, len(ranks) + 1))
    assert max(row["rank"] for row in of_kind) == NOTABLE_ROWS
