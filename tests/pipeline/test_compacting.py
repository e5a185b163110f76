"""Small files are compacted and old ones retired; every row stays in the manifest once despite interruptions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest

from sqlqueue_app.lake.columns import MESSAGES
from sqlqueue_app.models import BatchKind, LakeBatch, LakeCopy, LakeFile
from sqlqueue_app.pipeline.compacting import compact, retire_old
from sqlqueue_app.pipeline.copying import ErrorQueueCopier
from sqlqueue_app.pipeline.storage import BatchLost, PipelineError
from sqlqueue_app.pipeline.taking import AuditQueueTaker
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.spark.lake_files import combine_files, read_files, rows_by_file
from sqlqueue_app.tables.queue import QueueTable
from tests.pipeline.lakes import Interrupted, interrupt_at
from tests.pipeline.workshop import tools_of
from tests.support.databases import QueueDatabase
from tests.support.error_rows import failed
from tests.support.filling import install, message, row, table
from tests.support.lakes import START, files_of, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def tools(sqlite_database: QueueDatabase, spark: SparkSession, tmp_path: Path) -> Tools:
    install(sqlite_database, ENDPOINTS={"Sales": {"AUDIT_QUEUE": "audit"}})
    return tools_of(sqlite_database, spark, tmp_path)


@dataclass
class Kept:
    """Three batches that the pipeline takes once for all tests; each test copies them into its lake."""

    folder: Path
    batches: list[LakeBatch] = field(default_factory=list)
    files: list[LakeFile] = field(default_factory=list)

    def take(self, audit: QueueTable, tools: Tools, lake: Path) -> None:
        for number in range(3):
            audit.send([message({"n": number}), message({"n": -number}), row("unreadable")])
            AuditQueueTaker(tools, audit, "audit").take(100)
        # two of the eight tables, which are all compacted in the same way
        self.batches, self.files = (
            list(LakeBatch.objects.all()),
            list(LakeFile.objects.filter(table__in=["messages", "unreadable"])),
        )
        for each in self.files:
            copy_file(lake / each.path, self.folder / each.path)

    def put(self, tools: Tools, lake: Path) -> None:
        for batch in self.batches:
            batch.lake_id, batch.run = tools.manifest.lake_id, tools.run
        LakeBatch.objects.bulk_create(self.batches)
        LakeFile.objects.bulk_create(self.files)
        for each in self.files:
            copy_file(self.folder / each.path, lake / each.path)


def copy_file(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def filled(sqlite_database: QueueDatabase, tools: Tools, tmp_path: Path, kept: Kept) -> list[int]:
    """A lake of three small files of messages and three of unreadable rows; the row versions of the messages."""
    if not kept.batches:
        kept.take(table(sqlite_database, "audit"), tools, tmp_path)
        LakeBatch.objects.all().delete()
        for path in tmp_path.rglob("*.parquet"):
            path.unlink()
    kept.put(tools, tmp_path)
    return rows_of(tmp_path)


def rows_of(folder: Path, name: str = "messages") -> list[int]:
    """The row versions by the manifest, as readers use it; asserts the size of each file."""
    found = []
    for each in LakeFile.objects.filter(table=name, retired_at=None, batch__published_at__isnull=False):
        rows = pyarrow.parquet.read_table(folder / each.path, partitioning=None)
        assert (rows.num_rows, (folder / each.path).stat().st_size) == (each.rows, each.bytes)
        found += rows.column("row_version").to_pylist()
    return sorted(found)


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")}


def messages_in(folder: Path) -> set[str]:
    return {path for path in files_in(folder) if path.startswith("messages/")}


def test_small_files_become_one(tools: Tools, filled: list[int], tmp_path: Path) -> None:
    before, bad = filled, rows_of(tmp_path, "unreadable")
    assert (len(before), len(bad)) == (6, 3)

    assert compact(tools) > 0
    assert compact(tools) == 0

    assert (rows_of(tmp_path), rows_of(tmp_path, "unreadable")) == (before, bad)
    assert files_in(tmp_path) == set(LakeFile.objects.values_list("path", flat=True))
    assert LakeFile.objects.filter(table="messages").count() == 1


def test_path_of_a_lake_may_contain_wildcards(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "l[1]ke" / "{a,b}*?"
    for name in ("first", "second", "third"):
        write(lake, [{"at": START}, {"at": START}], name=name)
    urls = [f"file://{lake}/{each.path}" for each in files_of(lake)]

    combine_files(spark, MESSAGES, urls, f"file://{lake}/together")

    assert list(rows_by_file(spark, MESSAGES, f"file://{lake}/together").values()) == [6]
    assert read_files(spark, MESSAGES, f"file://{lake}/messages", urls).count() == 6


@pytest.mark.parametrize("interrupted_at", ["written together", "retired", "recorded", "committed", "published one file", "moved",
                                       "published", "deleted one file"])  # fmt: skip
def test_interrupted_compaction_loses_nothing(
    sqlite_database: QueueDatabase, tools: Tools, filled: list[int], tmp_path: Path, spark: SparkSession, interrupted_at: str
) -> None:
    other = tools_of(sqlite_database, spark, tmp_path, step=interrupt_at(interrupted_at))
    with pytest.raises(Interrupted):
        compact(other)
    tools.manifest.recover()

    assert rows_of(tmp_path) == filled
    assert files_in(tmp_path) == set(LakeFile.objects.values_list("path", flat=True))
    compact(tools)
    assert rows_of(tmp_path) == filled
    assert LakeFile.objects.filter(table="messages").count() == 1


def test_concurrent_compaction_of_the_same_files_is_rolled_back(
    sqlite_database: QueueDatabase, tools: Tools, filled: list[int], tmp_path: Path, spark: SparkSession
) -> None:
    steps: list[str] = []

    def first_another(name: str) -> None:
        steps.append(name)
        if name == "written together" and steps.count(name) == 1:
            compact(tools)

    with pytest.raises(BatchLost, match="another pipeline retired 3 of 3 files"):
        compact(tools_of(sqlite_database, spark, tmp_path, step=first_another))
    tools.manifest.recover()

    assert rows_of(tmp_path) == filled


def test_changed_files_are_not_compacted(tools: Tools, filled: list[int], tmp_path: Path) -> None:
    LakeFile.objects.filter(table="messages").update(rows=77)
    paths = messages_in(tmp_path)

    with pytest.raises(PipelineError, match=r"rows, and [\d,]+ by the manifest: another program has changed them"):
        compact(tools)
    assert messages_in(tmp_path) == paths


@pytest.fixture
def aged(sqlite_database: QueueDatabase, tools: Tools) -> Callable[[int], None]:
    def age(days: int) -> None:
        for each in LakeFile.objects.all():
            each.day = (each.day or date.max) - timedelta(days=days)
            each.save()

    table(sqlite_database, "audit").send([message(), row("unreadable")])
    AuditQueueTaker(tools, table(sqlite_database, "audit"), "audit").take(10)
    errors = table(sqlite_database, "error")
    errors.send([failed("m-1", at=datetime.now(UTC))])
    ErrorQueueCopier(tools, errors, "error").copy(10)
    return age


def test_old_messages_are_retired(tools: Tools, tmp_path: Path, aged: Callable[[int], None]) -> None:
    assert retire_old(tools, 1) == 0
    aged(10)

    assert retire_old(tools, 11) == 0
    assert retire_old(tools, sys.maxsize) == 0
    assert retire_old(tools, 9) == 3
    assert retire_old(tools, 9) == 0

    assert files_in(tmp_path) == set(LakeFile.objects.values_list("path", flat=True))
    assert not LakeFile.objects.filter(table__in=["messages", "failures", "unreadable"]).exists()
    assert LakeBatch.objects.get(kind=BatchKind.RETENTION).rows == 3
    # the row is still in the error queue and must not be copied again
    assert LakeCopy.objects.count() == 1
