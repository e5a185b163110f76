"""A lake and what works on it, for tests of single parts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlqueue_app.pipeline.manifest import Manifest, Step, begin_run, no_step
from sqlqueue_app.pipeline.storage import HadoopStorage, open_lake, open_storage
from sqlqueue_app.pipeline.tools import Tools, reader_of
from tests.support.databases import QueueDatabase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tools_of(database: QueueDatabase, spark: SparkSession, lake: Path, step: Step = no_step, *, in_hadoop: bool = False) -> Tools:
    """The parts of a run, which has begun; with `in_hadoop` its files go the way of those of an object store."""
    storage = HadoopStorage(spark, f"file://{lake}") if in_hadoop else open_storage(str(lake), spark)
    run = begin_run(database.alias, master="local[2]", lake=str(lake), options={})
    manifest = Manifest(database.alias, open_lake(storage), storage, run, step)
    return Tools(spark, database.alias, storage, manifest, run, reader_of(spark, database.alias), step)
