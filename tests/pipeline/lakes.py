"""The contents of a lake, and interrupted batches, for tests of audit queues."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet

from sqlqueue_app.models import LakeFile
from sqlqueue_app.pipeline.manifest import Step
from tests.support.databases import QueueDatabase


class Interrupted(Exception):
    """Interrupts the run."""


def interrupt_at(step: str) -> Step:
    """A step hook that interrupts the run at a step."""

    def interrupt(name: str) -> None:
        if name == step:
            raise Interrupted

    return interrupt


def in_the_lake(database: QueueDatabase, folder: Path) -> list[int]:
    """The row versions in the files of the manifest; asserts that there are no other files."""
    files = list(LakeFile.objects.using(database.alias).all())
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")} == {each.path for each in files}
    found: list[int] = []
    for each in files:
        rows = pyarrow.parquet.read_table(folder / each.path, partitioning=None)
        assert (rows.num_rows, (folder / each.path).stat().st_size) == (each.rows, each.bytes)
        if each.table in ("messages", "unreadable"):
            found += rows.column("row_version").to_pylist()
    return sorted(found)
