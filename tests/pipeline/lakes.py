"""What is in a lake, and a break in a batch, for tests of audit queues."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet

from sqlqueue_app.models import LakeFile
from sqlqueue_app.pipeline.manifest import Step
from tests.support.databases import QueueDatabase


class Broken(Exception):
    """The run is broken off here."""


def breaking_at(step: str) -> Step:
    """Breaks the run off at a step."""

    def break_off(name: str) -> None:
        if name == step:
            raise Broken

    return break_off


def in_the_lake(database: QueueDatabase, folder: Path) -> list[int]:
    """The row versions, by the manifest; what is no file of it is not there."""
    files = list(LakeFile.objects.using(database.alias).all())
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")} == {each.path for each in files}
    found: list[int] = []
    for each in files:
        rows = pyarrow.parquet.read_table(folder / each.path, partitioning=None)
        assert (rows.num_rows, (folder / each.path).stat().st_size) == (each.rows, each.bytes)
        if each.table in ("messages", "unreadable"):
            found += rows.column("row_version").to_pylist()
    return sorted(found)
