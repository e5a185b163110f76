"""A lake and the parts of a run on it, for tests of single parts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet

from sqlqueue_app.models import LakeFile
from sqlqueue_app.pipeline.manifest import Manifest, Step, begin_run, no_step
from sqlqueue_app.pipeline.storage import HadoopStorage, open_lake, open_storage
from sqlqueue_app.pipeline.tools import Tools, reader_of
from tests.support.databases import QueueDatabase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tools_of(database: QueueDatabase, spark: SparkSession, lake: Path, step: Step = no_step, *, in_hadoop: bool = False) -> Tools:
    """The parts of a started run; with `in_hadoop` its files are written as to an object store."""
    storage = HadoopStorage(lambda: spark, f"file://{lake}") if in_hadoop else open_storage(str(lake), lambda: spark)
    run = begin_run(database.alias, master="local[2]", lake=str(lake), options={})
    manifest = Manifest(database.alias, open_lake(storage), storage, run, step)
    return Tools(lambda: spark, database.alias, storage, manifest, run, reader_of(lambda: spark, database.alias), step)


def run(database: QueueDatabase, lake: Path, step: str = "-", size: int = 400, *flags: str) -> int:
    """The exit code of a run, negative if it was killed."""
    command = [sys.executable, "-m", "tests.pipeline.kill_app", str(lake), step, str(size), *flags]
    ended = subprocess.run(command, env=database.child_environment(), capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode in (0, -9), ended.stderr
    if ended.returncode == 0:
        assert json.loads(ended.stdout.splitlines()[-1])["state"] == "ended"
    return ended.returncode


def ids_in_the_lake(database: QueueDatabase, lake: Path) -> Counter[str]:
    """The number of copies of each message; asserts that the manifest names exactly the existing files."""
    files = list(LakeFile.objects.using(database.alias).filter(retired_at=None, batch__published_at__isnull=False))
    assert {path.relative_to(lake).as_posix() for path in lake.rglob("*.parquet")} == {each.path for each in files}
    found: Counter[str] = Counter()
    for each in files:
        if each.table == "messages":
            found.update(pyarrow.parquet.read_table(lake / each.path, partitioning=None, columns=["message_id"])[0].to_pylist())
    return found
