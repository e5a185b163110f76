"""Compaction and retention of a lake.

Each compaction and each deletion is a batch of its own, so a reader of the manifest sees every row exactly once at any time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Final

from sqlqueue_app.lake.columns import MESSAGE_TABLES, TABLES
from sqlqueue_app.messages.errors import counted
from sqlqueue_app.models import BatchKind, LakeBatch, LakeCopy, LakeFile
from sqlqueue_app.pipeline.manifest import Commit, count_in_run
from sqlqueue_app.pipeline.storage import BatchLost, NewFile, PipelineError, inflight
from sqlqueue_app.pipeline.tools import Tools
from sqlqueue_app.spark.lake_files import combine_files, rows_by_file
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.row_selection import statement_chunks

SMALL: Final = 64 * 2**20
"""Files below this size in bytes are compacted."""
LARGE: Final = 256 * 2**20
"""The approximate maximum size of a compacted file in bytes."""

_COPIES_KEPT_DAYS: Final = 30


def compact(tools: Tools) -> int:
    """Compact the small files of each folder; return by how many files the lake shrank.

    Raises BatchLost if another pipeline retired one of the files.
    """
    return sum(_compact_group(tools, files) for files in _groups(tools))


def _groups(tools: Tools) -> Iterator[list[LakeFile]]:
    in_order = sorted(tools.manifest.files().filter(bytes__lt=SMALL), key=lambda file: (_folder(file), file.pk))
    for _, of_folder in groupby(in_order, _folder):
        group: list[LakeFile] = []
        size = 0
        for each in of_folder:
            if group and size + each.bytes > LARGE:
                yield group
                group, size = [], 0
            group.append(each)
            size += each.bytes
        yield group


def _folder(file: LakeFile) -> str:
    return file.path.rpartition("/")[0]


def _compact_group(tools: Tools, old: Sequence[LakeFile]) -> int:
    if len(old) < 2:
        return 0
    batch, table, folder = uuid.uuid4(), TABLES[old[0].table], _folder(old[0])
    url = tools.inflight_url(batch, folder)
    combine_files(tools.session, table, [tools.storage.url(each.path) for each in old], url)
    tools.step("written together")
    sizes = tools.storage.sizes(inflight(batch))
    files = [
        NewFile(table.name, f"{folder}/{name}", old[0].day, rows, sizes[f"{inflight(batch)}/{folder}/{name}"])
        for name, rows in sorted(rows_by_file(tools.session, table, url).items())
    ]
    rows, expected = sum(each.rows for each in files), sum(each.rows for each in old)
    if rows != expected:
        tools.storage.delete(inflight(batch))
        raise PipelineError(
            f"the files of {folder!r} in the lake {tools.storage.name} have {counted(rows, 'row')}, and {expected:,} by the "
            "manifest: another program has changed them; they are left as they are"
        )
    commit = Commit(batch, BatchKind.COMPACTION, rows=rows, files=files)
    tools.storage.sync([f"{inflight(batch)}/{each.written_as}" for each in files])
    tools.manifest.publish(tools.committed(commit, lambda batch: _retire(tools, batch, old)))
    tools.manifest.delete_retired()
    return len(old) - len(files)


def _retire(tools: Tools, batch: LakeBatch, files: Sequence[LakeFile]) -> None:
    retired = 0
    for chosen in statement_chunks(each.pk for each in files):
        alive = LakeFile.objects.using(tools.alias).filter(pk__in=chosen, retired_at=None)
        retired += alive.update(retired_at=batch.committed_at)
    if retired != len(files):
        raise BatchLost(
            f"another pipeline retired {len(files) - retired} of {counted(len(files), 'file')}: the batch is rolled back"
        )
    tools.step("retired")
    count_in_run(tools.alias, tools.run, batches=1)


def retire_old(tools: Tools, keep_days: int) -> int:
    """Delete message files older than `keep_days`; rollups stay. Returns the number of deleted files."""
    now = database_now(tools.alias)
    # The calendar begins with the year 1.
    keep_days = min(keep_days, now.toordinal() - 1)
    before = now.date() - timedelta(days=keep_days)
    old = list(tools.manifest.files().filter(table__in=list(MESSAGE_TABLES), day__lt=before))
    if old:
        commit = Commit(uuid.uuid4(), BatchKind.RETENTION, rows=sum(each.rows for each in old))
        tools.manifest.publish(tools.committed(commit, lambda batch: _retire(tools, batch, old)))
        tools.manifest.delete_retired()
    # The index of failures remembers nothing about messages that left their queue earlier.
    left_before = now - timedelta(days=max(keep_days, _COPIES_KEPT_DAYS))
    LakeCopy.objects.using(tools.alias).filter(lake_id=tools.manifest.lake_id, left_at__lt=left_before).delete()
    return len(old)
