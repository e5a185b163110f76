"""A batch of an audit queue: every row is in the lake once despite interruptions and concurrent programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest

from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.models import LakeBatch, LakeFile, PipelineRun, QueueFigures
from sqlqueue_app.pipeline.storage import BatchLost
from sqlqueue_app.pipeline.taking import AuditQueueTaker, BatchResult
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.row_selection import remove_rows
from tests.pipeline.lakes import Interrupted, in_the_lake, interrupt_at
from tests.pipeline.senders import slow_sender
from tests.pipeline.workshop import tools_of
from tests.support.databases import QueueDatabase
from tests.support.filling import install, message, row, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = ["chosen", "written", "written unreadable", "computed", "synced", "deleted", "recorded", "committed",
         "published one file", "moved", "published"]  # fmt: skip


@pytest.fixture
def audit(queue_database: QueueDatabase) -> QueueTable:
    install(queue_database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    return table(queue_database, "audit")


@pytest.fixture
def tools(queue_database: QueueDatabase, audit: QueueTable, spark: SparkSession, tmp_path: Path) -> Tools:
    del audit
    return tools_of(queue_database, spark, tmp_path)


@pytest.mark.parametrize("store", ["local", "hadoop"])
def test_rows_move_from_the_queue_to_the_lake(
    queue_database: QueueDatabase, audit: QueueTable, spark: SparkSession, tmp_path: Path, store: str
) -> None:
    audit.send([*(message({"n": number}) for number in range(10)), row("not json"), message(), message()])
    numbers = audit.row_versions(100)
    lake = tmp_path / "a lake"
    queue = AuditQueueTaker(tools_of(queue_database, spark, lake, in_hadoop=store == "hadoop"), audit, "audit")

    assert queue.take(5) == BatchResult(5, 0, bytes=_bytes(queue_database), was_full=True)
    last = queue.take(100)
    assert last is not None
    assert (last.rows, last.unreadable, last.was_full) == (8, 1, False)
    assert queue.take(100) is None

    assert in_the_lake(queue_database, lake) == numbers
    assert audit.row_versions(100) == []
    (run,) = PipelineRun.objects.using(queue_database.alias).all()
    assert (run.batches, run.messages, run.unreadable, run.bytes) == (2, 12, 1, _bytes(queue_database))
    first, second = LakeBatch.objects.using(queue_database.alias).order_by("lowest")
    assert (first.kind, first.queue, first.rows, first.lowest, first.highest) == ("audit", "audit", 5, numbers[0], numbers[4])
    assert (second.rows, second.unreadable, second.lowest, second.highest) == (8, 1, numbers[5], numbers[12])
    assert None not in (first.published_at, second.published_at)


def _bytes(database: QueueDatabase) -> int:
    return sum(LakeFile.objects.using(database.alias).values_list("bytes", flat=True))


@pytest.mark.parametrize("interrupted_at", STEPS)
def test_interrupted_batch_is_taken_once(
    queue_database: QueueDatabase, audit: QueueTable, tools: Tools, spark: SparkSession, tmp_path: Path, interrupted_at: str
) -> None:
    audit.send([message(), row("not json"), message()])
    numbers = audit.row_versions(10)

    with pytest.raises(Interrupted):
        AuditQueueTaker(tools_of(queue_database, spark, tmp_path, step=interrupt_at(interrupted_at)), audit, "audit").take(10)
    finished = tools.manifest.recover()
    left = audit.row_versions(10)
    is_committed = STEPS.index(interrupted_at) >= STEPS.index("committed")

    assert finished == (1 if is_committed and interrupted_at != "published" else 0)
    assert left == ([] if is_committed else numbers)
    assert in_the_lake(queue_database, tmp_path) == sorted(set(numbers) - set(left))
    AuditQueueTaker(tools, audit, "audit").take(10)
    assert in_the_lake(queue_database, tmp_path) == numbers
    assert tools.storage.names("_inflight") == []


def test_rows_taken_by_another_program_are_not_in_the_lake(
    queue_database: QueueDatabase, audit: QueueTable, spark: SparkSession, tmp_path: Path
) -> None:
    audit.send([message() for _ in range(5)])
    numbers = audit.row_versions(10)

    def take_one(name: str) -> None:
        if name == "synced" and audit.row_versions(10) == numbers:
            remove_rows(audit, [numbers[2]])

    tools = tools_of(queue_database, spark, tmp_path, step=take_one)
    queue = AuditQueueTaker(tools, audit, "audit")
    with pytest.raises(BatchLost, match=r"another program took 1 of 5 rows of .*audit.*: the batch is rolled back"):
        queue.take(10)
    assert audit.row_versions(10) == [each for each in numbers if each != numbers[2]]
    assert in_the_lake(queue_database, tmp_path) == []

    queue.take(10)
    assert in_the_lake(queue_database, tmp_path) == [each for each in numbers if each != numbers[2]]


def test_only_one_of_two_pipelines_takes_the_rows(
    queue_database: QueueDatabase, audit: QueueTable, tools: Tools, spark: SparkSession, tmp_path: Path
) -> None:
    audit.send([message() for _ in range(5)])
    numbers = audit.row_versions(10)
    steps: list[str] = []

    def another(name: str) -> None:
        steps.append(name)
        if name == "synced" and steps.count(name) == 1:
            AuditQueueTaker(tools, audit, "audit").take(3)

    queue = AuditQueueTaker(tools_of(queue_database, spark, tmp_path, step=another), audit, "audit")
    with pytest.raises(BatchLost, match="3 of 5 rows"):
        queue.take(10)
    queue.take(10)

    assert in_the_lake(queue_database, tmp_path) == numbers


def test_concurrent_cleanup_rolls_back_the_batch(
    queue_database: QueueDatabase, audit: QueueTable, tools: Tools, spark: SparkSession, tmp_path: Path
) -> None:
    audit.send([message() for _ in range(5)])
    numbers = audit.row_versions(10)
    steps: list[str] = []

    def clean_up(name: str) -> None:
        steps.append(name)
        if name == "synced" and steps.count(name) == 1:
            tools.manifest.recover()

    queue = AuditQueueTaker(tools_of(queue_database, spark, tmp_path, step=clean_up), audit, "audit")
    with pytest.raises(BatchLost, match="no longer exists: another pipeline has cleaned up"):
        queue.take(10)
    assert audit.row_versions(10) == numbers
    queue.take(10)

    assert in_the_lake(queue_database, tmp_path) == numbers


def test_rows_committed_late_are_in_the_next_batch(postgresql_database: QueueDatabase, spark: SparkSession, tmp_path: Path) -> None:
    install(postgresql_database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    audit = table(postgresql_database, "audit")
    with slow_sender(postgresql_database, audit):
        audit.send([message()])
        queue = AuditQueueTaker(tools_of(postgresql_database, spark, tmp_path), audit, "audit")
        first = queue.take(10)
    second = queue.take(10)

    assert first is not None
    assert second is not None
    assert (first.rows, second.rows) == (1, 1)
    numbers = in_the_lake(postgresql_database, tmp_path)
    batches = LakeBatch.objects.using("postgresql").order_by("committed_at", "-lowest")
    assert [each.lowest for each in batches] == numbers[::-1]


def test_missing_queue_is_named_in_the_error(queue_database: QueueDatabase, tools: Tools) -> None:
    with pytest.raises(QueueNotFound, match="nowhere"):
        AuditQueueTaker(tools, table(queue_database, "nowhere"), "nowhere").take(10)


def test_table_dropped_during_a_batch_is_an_error(
    queue_database: QueueDatabase, audit: QueueTable, spark: SparkSession, tmp_path: Path
) -> None:
    audit.send([message()])

    def drop(name: str) -> None:
        if name == "synced":
            with queue_database.connection.cursor() as cursor:
                cursor.execute(f"DROP TABLE {audit.qualified}")

    with pytest.raises(QueueNotFound):
        AuditQueueTaker(tools_of(queue_database, spark, tmp_path, step=drop), audit, "audit").take(10)
    assert in_the_lake(queue_database, tmp_path) == []


@pytest.mark.parametrize("name", ["Größe", "__HIVE_DEFAULT_PARTITION__", "a=b/100%41"])
def test_figures_have_the_name_of_the_queue(queue_database: QueueDatabase, audit: QueueTable, tools: Tools, name: str) -> None:
    audit.send([message(), row("not json")])

    AuditQueueTaker(tools, audit, name).take(10)

    figures = QueueFigures.objects.using(queue_database.alias).values_list("queue", "taken", "unreadable")
    assert list(figures) == [(name, 1, 1)]


BODIES: list[tuple[str, Any]] = [("NULL", None), ("empty", b""), ("large", b"x" * 5_000_000)]


@pytest.mark.parametrize(("name", "body"), BODIES)
def test_bodies_of_any_size_are_taken(
    queue_database: QueueDatabase, audit: QueueTable, tools: Tools, tmp_path: Path, name: str, body: Any
) -> None:
    audit.send([row({"NServiceBus.MessageId": name}, body or b"")])
    if body is None:
        with queue_database.connection.cursor() as cursor:
            cursor.execute(f"UPDATE {audit.qualified} SET body = NULL")

    AuditQueueTaker(tools, audit, "audit").take(10)

    (file,) = LakeFile.objects.using(queue_database.alias).filter(table="messages")
    (found,) = pyarrow.parquet.read_table(tmp_path / file.path, partitioning=None).to_pylist()
    assert (found["message_id"], found["body"]) == (name, body)
