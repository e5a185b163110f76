"""The way of a batch: private files, what is computed of them, one transaction with the manifest, then where readers look.

What fails before the commit leaves nothing behind; what is committed is finished, here or by the next run.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sqlqueue_app.lake.columns import UNREADABLE, LakeTable
from sqlqueue_app.models import BatchKind, LakeBatch
from sqlqueue_app.pipeline.computing import Figures, compute_figures
from sqlqueue_app.pipeline.figures import add_figures
from sqlqueue_app.pipeline.manifest import Commit
from sqlqueue_app.pipeline.places import NewFile, inflight, queue_folder
from sqlqueue_app.pipeline.runs import count_in_run
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.spark.lake_files import write_readable, write_unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Written:
    """The rows of a batch in its private folder, by the files themselves."""

    files: Sequence[NewFile]
    row_versions: Sequence[int]
    unreadable: int


@dataclass(frozen=True, slots=True)
class Made:
    """A batch that is about to be committed."""

    commit: Commit
    written: Written
    figures: Figures


def make_batch(
    tools: Tools,
    kind: BatchKind,
    queue: str,
    write: Callable[[uuid.UUID], Written],
    work: Callable[[LakeBatch, Made], None],
) -> Commit | None:
    """Write a batch, commit it with its work, publish it; None where there was nothing to write.

    `work` is called in the transaction, and raises to roll it back; then, and wherever else this raises, nothing was done.
    """
    batch = uuid.uuid4()
    try:
        return _make(tools, batch, kind, queue, write, work)
    except BaseException:
        # Where the database cannot be asked, the next run cleans up.
        with contextlib.suppress(Exception):
            if not LakeBatch.objects.using(tools.alias).filter(pk=batch).exists():
                tools.storage.delete(inflight(batch))
        raise


def _make(
    tools: Tools,
    batch: uuid.UUID,
    kind: BatchKind,
    queue: str,
    write: Callable[[uuid.UUID], Written],
    work: Callable[[LakeBatch, Made], None],
) -> Commit | None:
    written = write(batch)
    if not written.row_versions:
        tools.storage.delete(inflight(batch))
        return None
    figures = compute_figures(tools, batch, written.files)
    tools.step("computed")
    commit = Commit(
        batch,
        kind,
        queue,
        rows=len(written.row_versions),
        unreadable=written.unreadable,
        lowest=min(written.row_versions),
        highest=max(written.row_versions),
        files=(*written.files, *figures.files),
    )
    made = Made(commit, written, figures)
    tools.storage.sync([f"{inflight(batch)}/{each.written_as}" for each in commit.files])
    tools.step("synced")
    tools.manifest.publish(tools.committed(commit, lambda recorded: work(recorded, made)))
    return commit


def count_batch(tools: Tools, made: Made, readable: Literal["messages", "failures"]) -> None:
    """Add a batch to the figures and to the run, which counts what can be read as `readable`; in the transaction of its commit."""
    commit = made.commit
    add_figures(tools.alias, made.figures.collected)
    counts = {readable: commit.rows - commit.unreadable, "unreadable": commit.unreadable, "bytes": commit.bytes}
    count_in_run(tools.alias, tools.run, batches=1, **counts)


def write_parsed(
    tools: Tools, batch: uuid.UUID, table: LakeTable, queue: str, parsed: Callable[[int | None, int], DataFrame], highest: int
) -> Written:
    """Write the rows of a queue up to a RowVersion: what can be read into the table, the rest as it is into `unreadable`.

    The source is read once, and where something cannot be read once more for that. What counts is what stands in the files.
    """
    folder = queue_folder(table.name, queue)
    bad = write_readable(parsed(None, highest), table, tools.inflight_url(batch, folder))
    tools.step("written")
    files, row_versions = tools.files_of(batch, table, folder)
    if not bad.count:
        return Written(files, row_versions, 0)
    bad_folder = queue_folder(UNREADABLE.name, queue)
    write_unreadable(parsed(bad.lowest, bad.highest), UNREADABLE, tools.inflight_url(batch, bad_folder))
    tools.step("written unreadable")
    bad_files, bad_versions = tools.files_of(batch, UNREADABLE, bad_folder)
    return Written([*files, *bad_files], [*row_versions, *bad_versions], len(bad_versions))
