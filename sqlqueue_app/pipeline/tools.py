"""The context that all parts of a run share: session, storage, manifest, and the reader of queues."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import connections, transaction

from sqlqueue_app.lake.columns import LakeTable
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.models import LakeBatch, PipelineRun
from sqlqueue_app.pipeline.manifest import Commit, Manifest, Step, hold_lock
from sqlqueue_app.pipeline.storage import LakeStorage, NewFile, PipelineError, Spark, inflight
from sqlqueue_app.spark.lake_files import read_files, written_files
from sqlqueue_app.spark.source import source_url
from sqlqueue_app.tables.connections import database_now, errors_of_alias
from sqlqueue_app.tables.queue import QueueTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Reader = Callable[[QueueTable, int | None, int], "DataFrame"]
"""Reads the rows of a queue between two RowVersions (None: from the first), with the columns of the data source."""

_COMMIT_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Tools:
    """The context of one run. Used by one thread. `spark` returns the session, and starts it if there is none."""

    spark: Spark
    alias: str
    storage: LakeStorage
    manifest: Manifest
    run: PipelineRun | None
    read: Reader
    step: Step

    @property
    def session(self) -> SparkSession:
        """The Spark session, started on first use."""
        return self.spark()

    def inflight_url(self, batch: uuid.UUID, path: str = "") -> str:
        """The URL of a path in the private folder of a batch."""
        return self.storage.url(f"{inflight(batch)}/{path}".rstrip("/"))

    def committed(self, commit: Commit, work: Callable[[LakeBatch], None]) -> LakeBatch:
        """Commit a batch together with `work`, in one transaction; retry transient errors.

        `work` is called inside the transaction; an exception from it rolls everything back.
        """
        for left in reversed(range(_COMMIT_ATTEMPTS)):
            try:
                batch = self._commit(commit, work)
            except TransientError:
                connections[self.alias].close()
                found = LakeBatch.objects.using(self.alias).filter(pk=commit.id).first()
                if found is not None:  # the answer to the COMMIT was lost, not the commit
                    return found
                if not left:
                    raise
            else:
                self.step("committed")
                return batch
        raise AssertionError("the last try returns or raises")

    def _commit(self, commit: Commit, work: Callable[[LakeBatch], None]) -> LakeBatch:
        with errors_of_alias(self.alias, f"commit batch {commit.id}"), transaction.atomic(using=self.alias):
            now = database_now(self.alias)
            hold_lock(self.alias, now)
            self.manifest.check_files(commit)
            batch = self.manifest.record(commit, now)
            work(batch)
            self.step("recorded")
        return batch

    def files_of(self, batch: uuid.UUID, table: LakeTable, folder: str) -> tuple[list[NewFile], list[int]]:
        """Read back what Spark wrote into a folder of a batch: the files, and their RowVersions."""
        rows = read_files(self.session, table, self.inflight_url(batch, table.name), [self.inflight_url(batch, folder)])
        written = written_files(rows)
        sizes = self.storage.sizes(f"{inflight(batch)}/{folder}")
        files: list[NewFile] = []
        for each in sorted(written, key=lambda file: (file.day, file.name)):
            path = f"{folder}/day={each.day.isoformat()}/{each.name}"
            size = sizes.get(f"{inflight(batch)}/{path}")
            if size is None:
                raise PipelineError(f"the file {path!r} of batch {batch} was written but does not exist: the batch is abandoned")
            files.append(NewFile(table.name, path, each.day, len(each.row_versions), size))
        return files, [number for each in written for number in each.row_versions]


def reader_of(spark: Spark, alias: str) -> Reader:
    """A reader for the database `alias`, configured from Django's settings.

    Raises ConfigurationError for a database that only this process can open, such as SQLite in memory.
    """
    connection = connections[alias]
    settings = connection.settings_dict
    url = source_url(
        connection.vendor,
        str(settings["NAME"]),
        host=settings["HOST"],
        port=settings["PORT"],
        user=settings["USER"],
        password=settings["PASSWORD"],
        options=settings["OPTIONS"],
    )

    def read(table: QueueTable, lowest: int | None, highest: int) -> DataFrame:
        rows = spark().read.format("sqlqueue").option("url", url).option("queue", str(table.address)).load()
        up_to = rows.where(f"RowVersion <= {int(highest)}")
        return up_to if lowest is None else up_to.where(f"RowVersion >= {int(lowest)}")

    return read
