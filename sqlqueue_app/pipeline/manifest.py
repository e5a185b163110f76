"""The manifest of a lake: what a batch has committed, and how its files come to where readers look.

A commit names the files, which are private until then. Publishing moves them; it may be broken off anywhere and done again. What is
in the private folder and in no commit was never taken, and is deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from django.db import transaction

from sqlqueue_app.models import BatchKind, LakeBatch, LakeFile, PipelineRun
from sqlqueue_app.operations.claims import one_at_a_time
from sqlqueue_app.pipeline.errors import BatchLost
from sqlqueue_app.pipeline.places import INFLIGHT, NewFile, inflight
from sqlqueue_app.pipeline.storage import LakeStorage
from sqlqueue_app.tables.clock import database_now

_LOCK: Final = "pipeline commits"
_WRITTEN_AT_ONCE: Final = 100

Step = Callable[[str], None]
"""Told the name of each step as it is reached: tests stop there."""


def no_step(_name: str) -> None:
    """Where nobody asks for the steps."""


def hold_lock(alias: str, now: datetime) -> None:
    """Keep other pipelines of the database waiting until the end of the transaction, which must be open."""
    one_at_a_time(alias, _LOCK, now)


@dataclass(frozen=True, slots=True)
class Commit:
    """What a batch is to write into the manifest."""

    id: uuid.UUID
    kind: BatchKind
    queue: str = ""
    rows: int = 0
    unreadable: int = 0
    lowest: int | None = None
    highest: int | None = None
    files: Sequence[NewFile] = field(default_factory=tuple)

    @property
    def bytes(self) -> int:
        """Of its files."""
        return sum(each.bytes for each in self.files)


class Manifest:
    """The manifest of one lake in the database of `alias`; used by one thread."""

    def __init__(self, alias: str, lake_id: uuid.UUID, storage: LakeStorage, run: PipelineRun | None, step: Step = no_step) -> None:
        self._alias = alias
        self._lake_id = lake_id
        self._storage = storage
        self._run = run
        self._step = step

    @property
    def lake_id(self) -> uuid.UUID:
        """The id of the lake."""
        return self._lake_id

    def check_files(self, commit: Commit) -> None:
        """BatchLost unless every file of the batch is still where it was written; to be asked with the lock held.

        Who cleans up holds the same lock: from here on it sees the commit, or the commit will not be.
        """
        there = self._storage.sizes(inflight(commit.id))
        for each in commit.files:
            if there.get(f"{inflight(commit.id)}/{each.written_as}") != each.bytes:
                raise BatchLost(f"{each.written_as!r} of batch {commit.id} is not there any more: another pipeline has cleaned up")

    def record(self, commit: Commit, now: datetime) -> LakeBatch:
        """Write the batch and its files, in the caller's transaction."""
        batch = LakeBatch.objects.using(self._alias).create(
            pk=commit.id,
            run=self._run,
            kind=commit.kind,
            lake_id=self._lake_id,
            queue=commit.queue,
            rows=commit.rows,
            unreadable=commit.unreadable,
            lowest=commit.lowest,
            highest=commit.highest,
            committed_at=now,
        )
        files = [
            LakeFile(
                batch=batch,
                table=each.table,
                path=each.path(commit.id, number),
                written_as=each.written_as,
                rows=each.rows,
                bytes=each.bytes,
                day=each.day,
            )
            for number, each in enumerate(commit.files)
        ]
        LakeFile.objects.using(self._alias).bulk_create(files, batch_size=_WRITTEN_AT_ONCE)
        return batch

    def publish(self, batch: LakeBatch) -> None:
        """Move the files of a committed batch to where readers look; whatever was done of it before is not done again."""
        files = list(batch.files.using(self._alias).order_by("pk"))
        for each in files:
            self._storage.move(f"{inflight(batch.id)}/{each.written_as}", each.path)
            self._step("published one file")
        self._storage.sync([each.path for each in files])
        self._step("moved")
        LakeBatch.objects.using(self._alias).filter(pk=batch.pk).update(published_at=database_now(self._alias))
        self._storage.delete(inflight(batch.id))
        self._step("published")

    def recover(self) -> int:
        """Finish what was committed and not published, then drop what was never committed; returns how many batches were finished.

        Safe beside another pipeline: what that one is about to commit, it will find gone, and take again.
        """
        unfinished = list(
            LakeBatch.objects.using(self._alias).filter(lake_id=self._lake_id, published_at=None).order_by("committed_at")
        )
        for batch in unfinished:
            self.publish(batch)
        self._drop_unknown()
        self.delete_retired()
        return len(unfinished)

    def _drop_unknown(self) -> None:
        if not self._storage.names(INFLIGHT):
            return
        with transaction.atomic(using=self._alias):
            hold_lock(self._alias, database_now(self._alias))
            batches = LakeBatch.objects.using(self._alias)
            unpublished = {str(each) for each in batches.filter(published_at=None).values_list("pk", flat=True)}
            for name in self._storage.names(INFLIGHT):
                if name not in unpublished:
                    self._storage.delete(f"{INFLIGHT}/{name}")

    def delete_retired(self) -> int:
        """Delete the files that do not count any more, then their rows; returns how many."""
        retired = list(
            LakeFile.objects.using(self._alias).filter(batch__lake_id=self._lake_id, retired_at__isnull=False).order_by("pk")
        )
        for each in retired:
            self._storage.delete(each.path)
            self._step("deleted one file")
        for start in range(0, len(retired), _WRITTEN_AT_ONCE):
            chosen = [each.pk for each in retired[start : start + _WRITTEN_AT_ONCE]]
            LakeFile.objects.using(self._alias).filter(pk__in=chosen).delete()
        return len(retired)
