"""Asking for a bulk operation, and cancelling one."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Final

from django.utils.translation import gettext as _

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.models import Operation, OperationState
from sqlqueue_app.operations.actions import Actor
from sqlqueue_app.operations.bulk.batches import OperationRefused, Scope
from sqlqueue_app.operations.bulk.engine import BATCH, OPEN, LeaseLost, OperationRunner
from sqlqueue_app.operations.bulk.kinds import kind_of
from sqlqueue_app.operations.instance_status import read_instances
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

# Servers end a request that takes half a minute.
REQUEST_SECONDS: Final = 10.0


def create_operation(
    settings: Settings,
    kind: str,
    asked: Scope,
    *,
    actor: Actor,
    runner: OperationRunner,
    now: Callable[[], datetime] | None = None,
) -> Operation:
    """Write the row of an operation, leased to the runner; nothing is done yet.

    OperationRefused if there is nothing in what is asked for, if it cannot be read, and if the error queue is not ours;
    DatabaseErrors.
    """
    chosen = kind_of(kind)
    chosen.check(settings)
    scope = chosen.scope(asked)
    alias = managed_alias()
    with database_errors(dialect_of_connection(connection_of(alias)), "begin an operation"):
        words = scope.in_words()
        total = chosen.total(settings, scope.to_json())
        if not total:
            raise OperationRefused(_("There is no such message: %(selection)s.") % {"selection": words})
        lease_until = runner.lease_until()
        return Operation.objects.using(alias).create(
            id=uuid.uuid4(),
            kind=kind,
            scope=scope.to_json(),
            description=words,
            state=OperationState.WAITING,
            total=total,
            user_key=actor.key,
            user_name=actor.name[:255],
            requested_at=now() if now is not None else lease_until - runner.lease,
            lease_until=lease_until,
            worker=runner.worker,
        )


def request_operation(
    settings: Settings,
    kind: str,
    asked: Scope,
    *,
    actor: Actor,
    batch: int = BATCH,
    now: Callable[[], datetime] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Operation:
    """Start an operation: one of a batch is done on return, of a larger one the first batch; any live worker goes on with it.

    So it does with a small one that takes longer than a request may (`clock` in seconds), as with bodies of many MiB, and if the
    database is away meanwhile. Raises as `create_operation`.
    """
    runner = OperationRunner(settings, now=now, batch=batch)
    operation = create_operation(settings, kind, asked, actor=actor, runner=runner, now=now)
    try:
        runner.claim(operation.pk)
        end = clock() + REQUEST_SECONDS
        while (operation := runner.advance(operation.pk)).state in OPEN and operation.total <= batch and clock() < end:
            pass
        if operation.state in OPEN:
            runner.release(operation.pk)
    except (TransientError, LeaseLost):
        pass  # somebody goes on with it, once the lease has run out
    return operation


def run_operation(
    settings: Settings,
    kind: str,
    asked: Scope,
    *,
    actor: Actor,
    progress: Callable[[Operation], None] | None = None,
    now: Callable[[], datetime] | None = None,
) -> Operation:
    """Start an operation and carry it out here to its end; Control-C cancels it. Raises as `create_operation`."""
    runner = OperationRunner(settings, now=now)
    operation = create_operation(settings, kind, asked, actor=actor, runner=runner, now=now)
    pause = threading.Event()
    try:
        return runner.run(operation.pk, wait=pause.wait, progress=progress, follow=True) or operation
    except KeyboardInterrupt:
        cancel_operation(operation.pk)
        return runner.run(operation.pk, wait=pause.wait, follow=True) or operation


def cancel_operation(operation_id: uuid.UUID) -> bool:
    """Have an operation end before its next batch; False if it has ended. Waits for the batch that is being worked on."""
    asked = Operation.objects.using(managed_alias()).filter(pk=operation_id, state__in=OPEN)
    return asked.update(cancel_requested=True) == 1


def is_worker_alive() -> bool:
    """Whether a process lives that receives from more than its callback queue: it goes on with operations. One statement."""
    instances, _rows, _problem = read_instances()
    return any(each.works_for_all for each in instances)
