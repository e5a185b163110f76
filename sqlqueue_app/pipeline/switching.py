"""From peeking to taking: rows of an audit queue that the lake has already are deleted without being written once more.

Which these are the files of the lake say, row by row: one of that number and id stands there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.db import transaction

from sqlqueue_app.lake.columns import MESSAGES, UNREADABLE, LakeTable
from sqlqueue_app.models import LakeFile
from sqlqueue_app.pipeline.peeking import positions
from sqlqueue_app.pipeline.places import queue_folder
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.spark.copies import rows_that_stand_in
from sqlqueue_app.spark.lake_files import read_files
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.row_ranges import BEFORE_ALL, ranges_of, remove_ranges, row_version_after

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("sqlqueue.pipeline")


def delete_copied(tools: Tools, table: QueueTable, queue: str, most: int, stop: StopSignal) -> int:
    """Delete what was copied into the lake while the queue was peeked at, `most` rows in a transaction; returns how many.

    The queue has no position after that. Does nothing where it has none. Ends early when `stop` is set; wherever it is broken off,
    it is done again the next time.
    """
    position = positions(tools, queue).first()
    if position is None:
        return 0
    files = [each for of in (MESSAGES, UNREADABLE) for each in _files(tools, of, queue)]
    deleted, after, found = 0, BEFORE_ALL, True
    while found:
        if stop.is_set():
            return deleted
        full = row_version_after(table, after, position.row_version, most)
        found, highest = full is not None, position.row_version if full is None else full
        between = f"row_version > {after} AND row_version <= {highest}"
        copied = rows_that_stand_in([each.where(between) for each in files], tools.read(table, after + 1, highest))
        tools.step("found copied")
        with transaction.atomic(using=tools.alias):
            deleted += remove_ranges(table, ranges_of(copied))
        tools.step("deleted copied")
        after = highest
    positions(tools, queue).delete()
    logger.warning(
        "%s rows of %s were in the lake already, copied while it was peeked at: they were deleted, and not written once more",
        deleted,
        table.qualified,
        extra={"event": "pipeline_copied_deleted", "queue": queue},
    )
    return deleted


def _files(tools: Tools, table: LakeTable, queue: str) -> Iterator[DataFrame]:
    """What a table of the lake holds of a queue, by the manifest."""
    folder = f"{queue_folder(table.name, queue)}/"
    files = LakeFile.objects.using(tools.alias).filter(
        batch__lake_id=tools.manifest.lake_id, batch__published_at__isnull=False, retired_at=None, table=table.name
    )
    # the database may look at large and small letters as one
    paths = [path for path in files.filter(path__startswith=folder).values_list("path", flat=True) if path.startswith(folder)]
    if paths:
        yield read_files(tools.session, table, tools.storage.url(table.name), [tools.storage.url(path) for path in paths])
