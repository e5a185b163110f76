"""Batches: write private files, compute rollups, commit both with the manifest in one transaction, then publish.

A failure before the commit leaves nothing behind. A committed batch is always published, by this run or by the next one.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow
import pyarrow.compute
import pyarrow.parquet
from pyspark.sql import functions as sf

from sqlqueue_app.lake.columns import FAILURES, MESSAGES, ROLLUPS, UNREADABLE, LakeTable
from sqlqueue_app.models import BatchKind, LakeBatch
from sqlqueue_app.pipeline.manifest import Commit, count_in_run
from sqlqueue_app.pipeline.rollup_tables import add_rollups
from sqlqueue_app.pipeline.storage import NewFile, inflight, queue_folder
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.spark.lake_files import read_files, write_readable, write_unreadable
from sqlqueue_app.spark.rollups import rollup_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The rows of a batch as read back from the files in its private folder."""

    files: Sequence[NewFile]
    row_versions: Sequence[int]
    unreadable: int


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch that is ready to be committed, with its rollup rows by table name."""

    commit: Commit
    row_versions: Sequence[int]
    rollups: Mapping[str, list[dict[str, Any]]]


def make_batch(
    tools: Tools,
    kind: BatchKind,
    queue: str,
    write: Callable[[uuid.UUID], WrittenBatch],
    work: Callable[[LakeBatch, PreparedBatch], None],
) -> Commit | None:
    """Write, commit and publish a batch; None if there was nothing to write.

    `work` is called inside the transaction; an exception from it rolls the batch back. If this raises, either nothing was done, or
    the batch is committed and the next run publishes it.
    """
    batch = uuid.uuid4()
    try:
        written = write(batch)
        if not written.row_versions:
            tools.storage.delete(inflight(batch))
            return None
        rollups, rollup_files = write_rollups(tools, batch, queue, written.files)
        tools.step("computed")
        commit = Commit(
            batch,
            kind,
            queue,
            rows=len(written.row_versions),
            unreadable=written.unreadable,
            lowest=min(written.row_versions),
            highest=max(written.row_versions),
            files=(*written.files, *rollup_files),
        )
        prepared = PreparedBatch(commit, written.row_versions, rollups)
        tools.storage.sync([f"{inflight(batch)}/{each.written_as}" for each in commit.files])
        tools.step("synced")
        tools.manifest.publish(tools.committed(commit, lambda recorded: work(recorded, prepared)))
    except BaseException:
        # If the database is unavailable, the next run cleans up.
        with contextlib.suppress(Exception):
            if not LakeBatch.objects.using(tools.alias).filter(pk=batch).exists():
                tools.storage.delete(inflight(batch))
        raise
    return commit


def count_batch(tools: Tools, prepared: PreparedBatch, readable: Literal["messages", "failures"]) -> None:
    """Add a batch to the rollup tables and to the counters of the run, inside the transaction of its commit."""
    commit = prepared.commit
    add_rollups(tools.alias, prepared.rollups)
    counts = {readable: commit.rows - commit.unreadable, "unreadable": commit.unreadable, "bytes": commit.bytes}
    count_in_run(tools.alias, tools.run, batches=1, **counts)


def write_parsed(
    tools: Tools, batch: uuid.UUID, table: LakeTable, queue: str, parsed: Callable[[int | None, int], DataFrame], highest: int
) -> WrittenBatch:
    """Write the rows of a queue up to a RowVersion: parsed rows into the table, the others unchanged into `unreadable`.

    The source is read once, and a second time only if there are unreadable rows. The result is read back from the files.
    """
    folder = queue_folder(table.name, queue)
    bad = write_readable(parsed(None, highest), table, tools.inflight_url(batch, folder))
    tools.step("written")
    files, row_versions = tools.files_of(batch, table, folder)
    if not bad.count:
        return WrittenBatch(files, row_versions, 0)
    bad_folder = queue_folder(UNREADABLE.name, queue)
    write_unreadable(parsed(bad.lowest, bad.highest), UNREADABLE, tools.inflight_url(batch, bad_folder))
    tools.step("written unreadable")
    bad_files, bad_versions = tools.files_of(batch, UNREADABLE, bad_folder)
    return WrittenBatch([*files, *bad_files], [*row_versions, *bad_versions], len(bad_versions))


_ARROW: Final = {
    "STRING": pyarrow.string(),
    "BINARY": pyarrow.binary(),
    "INT": pyarrow.int32(),
    "BIGINT": pyarrow.int64(),
    "DOUBLE": pyarrow.float64(),
    "BOOLEAN": pyarrow.bool_(),
    "DATE": pyarrow.date32(),
    "TIMESTAMP": pyarrow.timestamp("us", tz="UTC"),
    "MAP<INT, BIGINT>": pyarrow.map_(pyarrow.int32(), pyarrow.int64()),
}


def write_rollups(
    tools: Tools, batch: uuid.UUID, queue: str, files: Sequence[NewFile]
) -> tuple[Mapping[str, list[dict[str, Any]]], list[NewFile]]:
    """Compute the rollups of a batch of one queue from its unpublished message files, and write them next to those.

    Returns the rows by table name, and the files that contain them.
    """
    tables = {each.table for each in files}
    # Spark decodes the name in a path byte by byte, which is wrong beyond ASCII.
    frames = [
        read_files(tools.session, table, tools.inflight_url(batch, table.name)).withColumn("queue", sf.lit(queue))
        if table.name in tables
        else None
        for table in (MESSAGES, FAILURES, UNREADABLE)
    ]
    collected = rollup_rows(*frames)
    written = [file for name, rows in collected.items() if rows for file in write_rows(tools, batch, ROLLUPS[name], rows)]
    return collected, written


def write_rows(tools: Tools, batch: uuid.UUID, table: LakeTable, rows: Sequence[Mapping[str, Any]]) -> list[NewFile]:
    """Write the rows of a computed table into the private folder of a batch, one file per `day`.

    Each is written via a local temporary file, since Arrow cannot write to every store.
    """
    schema = pyarrow.schema([(each.name, _ARROW[each.type]) for each in table.columns])
    files: list[NewFile] = []
    for day in sorted({row["day"] for row in rows}):
        of_day = [{name: row[name] for name in table.names} for row in rows if row["day"] == day]
        path = f"{table.name}/day={day.isoformat()}/rows.parquet"
        with tempfile.TemporaryDirectory(prefix="sqlqueue-") as folder:
            file = Path(folder, "rows.parquet")
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(of_day, schema=schema), file, compression="zstd")
            tools.storage.put(file, f"{inflight(batch)}/{path}")
            files.append(NewFile(table.name, path, day, len(of_day), file.stat().st_size))
    return files
