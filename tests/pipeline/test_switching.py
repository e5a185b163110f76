"""Switching a lake between peeking and taking duplicates and loses no message."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import LakePosition, MessageFigures
from sqlqueue_app.pipeline.manifest import Step, no_step
from sqlqueue_app.pipeline.run import PipelineProgress, options_of, run_pipeline
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.tables.queue import QueueTable
from tests.pipeline.lakes import Interrupted, in_the_lake, interrupt_at
from tests.support.databases import QueueDatabase
from tests.support.filling import install, message, row, table
from tests.support.spark import CONF, MASTER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def audit(queue_database: QueueDatabase, spark: SparkSession, tmp_path: Path) -> QueueTable:
    del spark
    pipeline = {"LAKE": str(tmp_path), "MASTER": MASTER, "SPARK": CONF, "BATCH_SIZE": 3}
    install(queue_database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}}, PIPELINE=pipeline)
    return table(queue_database, "audit")


def run(step: Step = no_step, **options: Any) -> PipelineProgress:
    settings = get_settings()
    return run_pipeline(settings, options_of(settings, **options), StopSignal(), step=step)


def messages(count: int) -> list[Any]:
    return [message({"n": number}) for number in range(count)]


def processed(database: QueueDatabase) -> int:
    return sum(MessageFigures.objects.using(database.alias).filter(seconds=86_400).values_list("processed", flat=True))


@pytest.mark.parametrize("compact", [False, True])
def test_taking_after_peeking_duplicates_nothing(
    queue_database: QueueDatabase, audit: QueueTable, tmp_path: Path, caplog: pytest.LogCaptureFixture, compact: bool
) -> None:
    audit.send([*messages(7), row("not json")])
    peeked = run(peek_only=True, compact=compact)
    assert (peeked.messages, peeked.unreadable, peeked.problems, audit.depth().waiting) == (7, 1, [], 8)
    audit.send(messages(2))
    numbers = audit.row_versions(100)

    taken = run()

    assert (taken.messages, taken.unreadable) == (2, 0)
    assert audit.row_versions(100) == []
    assert in_the_lake(queue_database, tmp_path) == numbers
    assert processed(queue_database) == 9
    assert not LakePosition.objects.using(queue_database.alias).exists()
    (logged,) = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "pipeline_copied_deleted"]
    assert logged.startswith(f"deleted 8 rows of {audit.qualified} that --peek-only had copied to the lake before")


def test_peeking_after_taking_duplicates_nothing(queue_database: QueueDatabase, audit: QueueTable, tmp_path: Path) -> None:
    audit.send(messages(2))
    first = audit.row_versions(10)
    run(peek_only=True)
    audit.send(messages(2))
    second = audit.row_versions(10)[2:]
    run()
    audit.send(messages(2))

    assert run(peek_only=True).messages == 2
    assert run(peek_only=True).messages == 0
    assert in_the_lake(queue_database, tmp_path) == [*first, *second, *audit.row_versions(10)]


@pytest.mark.parametrize("interrupted_at", ["found copied", "deleted copied"])
def test_interrupted_switch_loses_nothing(
    queue_database: QueueDatabase, audit: QueueTable, tmp_path: Path, interrupted_at: str
) -> None:
    audit.send(messages(4))
    run(peek_only=True)
    audit.send(messages(1))
    numbers = audit.row_versions(10)

    with pytest.raises(Interrupted):
        run(interrupt_at(interrupted_at))
    run()

    assert audit.row_versions(10) == []
    assert in_the_lake(queue_database, tmp_path) == numbers


def test_rows_of_a_recreated_table_are_taken(queue_database: QueueDatabase, audit: QueueTable, tmp_path: Path) -> None:
    audit.send(messages(4))
    run(peek_only=True)
    with queue_database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {audit.qualified}")
    install(queue_database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    audit.send(messages(2))
    settings = get_settings()
    options = options_of(settings, lake=str(tmp_path), master=MASTER, spark=CONF)

    assert run_pipeline(settings, options, StopSignal()).messages == 2
    assert in_the_lake(queue_database, tmp_path) == [1, 1, 2, 2, 3, 4]
    assert audit.row_versions(10) == []
