"""The row of a run: one pipeline at a time, its heartbeat, what it has done, and how it ended."""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import F

from sqlqueue_app.models import PipelineRun, RunState
from sqlqueue_app.pipeline.errors import PipelineBusy
from sqlqueue_app.pipeline.manifest import hold_lock
from sqlqueue_app.tables.clock import database_now

logger = logging.getLogger("sqlqueue.pipeline")

HEARTBEAT_SECONDS: Final = 10.0
DEAD_AFTER: Final = timedelta(minutes=2)
_KILLED: Final = "the process was killed, or its machine was lost"


def begin_run(alias: str, *, master: str, lake: str, options: Mapping[str, Any]) -> PipelineRun:
    """The row of a new run. PipelineBusy if another one is alive; those that are dead are marked as failed."""
    with transaction.atomic(using=alias):
        now = database_now(alias)
        hold_lock(alias, now)
        for other in PipelineRun.objects.using(alias).filter(state=RunState.RUNNING):
            if _is_alive(other, now):
                raise PipelineBusy(
                    f"a pipeline runs already: process {other.pid} on {other.host}, since {other.started_at:%Y-%m-%d %H:%M} UTC, "
                    f"heard of {_seconds_since(other.heartbeat_at, now)} s ago; stop it, or wait for its end"
                )
            other.state, other.ended_at, other.error = RunState.FAILED, now, _KILLED
            other.save(using=alias, update_fields=["state", "ended_at", "error"])
        return PipelineRun.objects.using(alias).create(
            started_at=now,
            heartbeat_at=now,
            host=_host(),
            pid=os.getpid(),
            master=master,
            lake=lake,
            options=dict(options),
        )


def end_run(alias: str, run: PipelineRun, state: RunState, error: str = "") -> None:
    """Note how the run ended."""
    now = database_now(alias)
    PipelineRun.objects.using(alias).filter(pk=run.pk).update(state=state, error=error, ended_at=now, heartbeat_at=now)


def count_in_run(alias: str, run: PipelineRun | None, **more: int) -> None:
    """Add to the numbers of the run, in the transaction of what they count."""
    if run is not None:
        PipelineRun.objects.using(alias).filter(pk=run.pk).update(**{name: F(name) + number for name, number in more.items()})


def _is_alive(run: PipelineRun, now: datetime) -> bool:
    if run.heartbeat_at is None or now - run.heartbeat_at > DEAD_AFTER:
        return False
    # A process of this machine that is gone need not be waited for.
    return run.host != _host() or (run.pid != os.getpid() and _is_process(run.pid))


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _host() -> str:
    return platform.node()[:255]


def _seconds_since(at: datetime | None, now: datetime) -> int:
    return 0 if at is None else int((now - at).total_seconds())


class Heartbeats:
    """Says every ten seconds that the run lives, in a thread of its own; a context."""

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
