"""The manifest of a lake, and the rows of pipeline runs.

A commit names the files of a batch, which are private until then. Publishing moves them to their final paths; it can be interrupted
anywhere and repeated. Files in the private folder without a commit are deleted: their rows are still in the queue.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import F, QuerySet

from sqlqueue_app.models import BatchKind, LakeBatch, LakeFile, PipelineRun, RunState
from sqlqueue_app.pipeline.storage import INFLIGHT, BatchLost, LakeStorage, NewFile, PipelineBusy, inflight
from sqlqueue_app.receiving.instances import one_at_a_time
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.row_selection import statement_chunks
from sqlqueue_app.tables.rows import cut_text

logger = logging.getLogger("sqlqueue.pipeline")

_LOCK: Final = "pipeline commits"
_WRITE_BATCH: Final = 100

Step = Callable[[str], None]
"""Called with the name of each step, so that tests can interrupt there."""


def no_step(_name: str) -> None:
    """Ignore the steps: the default."""


def hold_lock(alias: str, now: datetime) -> None:
    """Lock out other pipelines of the database until the end of the open transaction."""
    one_at_a_time(alias, _LOCK, now)


@dataclass(frozen=True, slots=True)
class Commit:
    """The manifest entry of a batch."""

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
        """The size of its files."""
        return sum(each.bytes for each in self.files)


class Manifest:
    """The manifest of one lake in the database `alias`. Used by one thread."""

    def __init__(self, alias: str, lake_id: uuid.UUID, storage: LakeStorage, run: PipelineRun | None, step: Step = no_step) -> None:
        self._alias = alias
        self.lake_id = lake_id
        self._storage = storage
        self._run = run
        self._step = step

    def files(self) -> QuerySet[LakeFile]:
        """The files of published batches that are not retired."""
        files = LakeFile.objects.using(self._alias)
        return files.filter(batch__lake_id=self.lake_id, batch__published_at__isnull=False, retired_at=None)

    def check_files(self, commit: Commit) -> None:
        """Raise BatchLost unless every file of the batch is still in the private folder. Call it with the lock held.

        Cleaning up takes the same lock, so it either runs before this check or sees the commit.
        """
        there = self._storage.sizes(inflight(commit.id))
        for each in commit.files:
            if there.get(f"{inflight(commit.id)}/{each.written_as}") != each.bytes:
                raise BatchLost(f"{each.written_as!r} of batch {commit.id} no longer exists: another pipeline has cleaned up")

    def record(self, commit: Commit, now: datetime) -> LakeBatch:
        """Write the batch and its files, in the caller's transaction."""
        batch = LakeBatch.objects.using(self._alias).create(
            pk=commit.id,
            run=self._run,
            kind=commit.kind,
            lake_id=self.lake_id,
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
        LakeFile.objects.using(self._alias).bulk_create(files, batch_size=_WRITE_BATCH)
        return batch

    def publish(self, batch: LakeBatch) -> None:
        """Move the files of a committed batch to their final paths; continues an interrupted move."""
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
        """Publish committed batches, delete files without a commit; return the number of batches published.

        Safe while another pipeline runs: if its uncommitted files are deleted, `check_files` rejects its commit.
        """
        unfinished = list(
            LakeBatch.objects.using(self._alias).filter(lake_id=self.lake_id, published_at=None).order_by("committed_at")
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

    def delete_retired(self) -> None:
        """Delete retired files, then their manifest rows."""
        retired = list(
            LakeFile.objects.using(self._alias).filter(batch__lake_id=self.lake_id, retired_at__isnull=False).order_by("pk")
        )
        for each in retired:
            self._storage.delete(each.path)
            self._step("deleted one file")
        for chosen in statement_chunks(each.pk for each in retired):
            LakeFile.objects.using(self._alias).filter(pk__in=chosen).delete()


HEARTBEAT_SECONDS: Final = 10.0
DEAD_AFTER: Final = timedelta(minutes=2)
_KILLED: Final = "the process was killed, or its machine was lost"


def begin_run(alias: str, *, master: str, lake: str, options: Mapping[str, Any]) -> PipelineRun:
    """Insert the row of a new run; mark dead runs as failed. Raises PipelineBusy if another run is alive."""
    with transaction.atomic(using=alias):
        now = database_now(alias)
        hold_lock(alias, now)
        for other in PipelineRun.objects.using(alias).filter(state=RunState.RUNNING):
            if _is_alive(other, now):
                raise PipelineBusy(
                    f"a pipeline is already running: process {other.pid} on {other.host}, "
                    f"since {other.started_at:%Y-%m-%d %H:%M} UTC, "
                    f"last heartbeat {int((now - other.heartbeat_at).total_seconds())} s ago; stop it, or wait until it ends"
                )
            other.state, other.ended_at, other.error = RunState.FAILED, now, _KILLED
            other.save(using=alias, update_fields=["state", "ended_at", "error"])
        return PipelineRun.objects.using(alias).create(
            started_at=now,
            heartbeat_at=now,
            host=_host(),
            pid=os.getpid(),
            master=cut_text(master, 255),
            lake=lake,
            options=dict(options),
        )


def end_run(alias: str, run: PipelineRun, state: RunState, error: str = "") -> None:
    """Record how the run ended."""
    now = database_now(alias)
    PipelineRun.objects.using(alias).filter(pk=run.pk).update(state=state, error=error, ended_at=now, heartbeat_at=now)


def count_in_run(alias: str, run: PipelineRun | None, **more: int) -> None:
    """Add to the counters of the run, in the same transaction as what they count."""
    if run is not None:
        PipelineRun.objects.using(alias).filter(pk=run.pk).update(**{name: F(name) + number for name, number in more.items()})


def _is_alive(run: PipelineRun, now: datetime) -> bool:
    if now - run.heartbeat_at > DEAD_AFTER:
        return False
    # A local process that no longer exists is dead before its heartbeat expires.
    return run.host != _host() or (run.pid != os.getpid() and _is_process(run.pid))


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _host() -> str:
    return platform.node()[:255]


class Heartbeats:
    """A context that updates the heartbeat of a run every ten seconds, in a thread of its own."""

    def __init__(self, alias: str, run: PipelineRun) -> None:
        self._alias = alias
        self._run = run
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="sqlqueue-pipeline-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeats:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            while not self._end.wait(HEARTBEAT_SECONDS):
                try:
                    now = database_now(self._alias)
                    PipelineRun.objects.using(self._alias).filter(pk=self._run.pk).update(heartbeat_at=now)
                except Exception:
                    logger.exception("the heartbeat of the run was not written", extra={"event": "pipeline_heartbeat_failed"})
                    connections[self._alias].close()
        finally:
            connections.close_all()
