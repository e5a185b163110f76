"""The background job by which a worker goes on with operations that nobody works on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.models import Operation
from sqlqueue_app.operations.bulk.engine import OPEN, OperationRunner
from sqlqueue_app.operations.bulk.kinds import KINDS
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.scheduler import BackgroundJob

# What begins is worked on by whoever asked for it first; an idle worker shall ask the database little (benchmarks/idle.py).
EVERY_SECONDS: Final = 5.0
_MOST: Final = 20


def bulk_operations_job(settings: Settings, stop: StopSignal, *, now: Callable[[], datetime] | None = None) -> BackgroundJob:
    """Looks for open operations every five seconds: one statement through an index while there are none."""
    runner = OperationRunner(settings, now=now)

    def run() -> None:
        try:
            work_on_open(runner, stop)
        except TransientError:
            return  # the database is away, or (SQLite) written to by somebody who takes long: the next look comes

    return BackgroundJob("bulk operations", EVERY_SECONDS, run)


def work_on_open(runner: OperationRunner, stop: StopSignal) -> int:
    """Work on every operation that nobody holds, the oldest first, until the stop; returns how many. Raises TransientErrors.

    Kinds that this version does not know are left to others.
    """
    rows = Operation.objects.using(runner.alias).filter(state__in=OPEN, kind__in=KINDS).order_by("requested_at")
    found = list(rows.values_list("pk", "lease_until")[:_MOST])
    # Whoever asks for the lease of one that is being worked on waits for its batch.
    now = runner.now() if found else None
    free = [pk for pk, lease_until in found if lease_until is None or now is None or lease_until < now]
    worked = 0
    for operation_id in free:
        if stop.is_set():
            break
        worked += runner.run(operation_id, wait=stop.wait) is not None
    return worked
