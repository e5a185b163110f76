"""Carrying out a bulk operation: one transaction for each batch and its numbers, by whoever holds the lease (design 6.14).

The row of the operation is locked while a batch is worked on, and says how far it came when that commits. So a process that is
killed has done whole batches, and whoever takes over when its lease has run out goes on behind them.
"""

from __future__ import annotations

import logging
import os
import platform
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import SqlQueueError, TransientError
from sqlqueue_app.models import ActionResult, Operation, OperationState
from sqlqueue_app.operations.actions import Actor, record_action
from sqlqueue_app.operations.bulk.batches import OperationKind, OperationRefused
from sqlqueue_app.operations.bulk.kinds import kind_of
from sqlqueue_app.operations.bulk.outcome import Outcome, Reason, merged_log
from sqlqueue_app.operations.bulk.permission import still_may
from sqlqueue_app.operations.events import EventKind, record_event
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.operations")

BATCH: Final = 1_000
# The first is smaller, so that somebody who looks sees soon that it goes on.
FIRST_BATCH: Final = 250
_GROWTH: Final = 4
# A batch takes a second or so; somebody who is silent for so long has been killed, or his database is away.
LEASE_SECONDS: Final = 20.0
OPEN: Final = (OperationState.WAITING, OperationState.RUNNING)
# Other writers get their turn between two batches, also where there is one at a time.
PAUSE_SECONDS: Final = 0.02
_ASK_AGAIN_SECONDS: Final = 1.0
_LONGEST_ERROR: Final = 1_000
_EVENTS: Final = {
    OperationState.COMPLETED: EventKind.OPERATION_COMPLETED,
    OperationState.FAILED: EventKind.OPERATION_FAILED,
    OperationState.CANCELLED: EventKind.OPERATION_CANCELLED,
}


class LeaseLost(SqlQueueError):
    """Somebody else works on the operation, or it has ended."""


class OperationRunner:
    """Works on operations as one worker. For one thread. `now` is the clock of the managed tables' database unless handed in."""

    def __init__(
        self,
        settings: Settings,
        *,
        now: Callable[[], datetime] | None = None,
        batch: int = BATCH,
        lease: timedelta = timedelta(seconds=LEASE_SECONDS),
    ) -> None:
        self.alias = managed_alias()
        self.worker = f"{platform.node() or 'unknown'} {os.getpid()} {uuid.uuid4().hex[:8]}"[-255:]
        self._settings = settings
        self.now = now or partial(database_now, self.alias)
        self._most, self._size = batch, min(batch, FIRST_BATCH)
        self.lease = lease

    # --- the lease ------------------------------------------------------------------------------------------------------------

    def lease_until(self) -> datetime:
        """Until when a lease holds that is taken now."""
        return self.now() + self.lease

    def claim(self, operation_id: uuid.UUID) -> bool:
        """Take the operation on, unless it has ended or somebody else holds it. Waits while he is in a batch."""
        now = self.now()
        free = Q(lease_until=None) | Q(lease_until__lt=now) | Q(worker=self.worker)
        taken = self._rows(operation_id).filter(free, state__in=OPEN)
        with self._errors("claim an operation"):
            return taken.update(worker=self.worker, lease_until=now + self.lease, state=OperationState.RUNNING) == 1

    def release(self, operation_id: uuid.UUID) -> None:
        """Let others go on with it at once."""
        with self._errors("give an operation back"):
            self._rows(operation_id).filter(worker=self.worker, state__in=OPEN).update(lease_until=None)

    # --- the work -------------------------------------------------------------------------------------------------------------

    def run(
        self,
        operation_id: uuid.UUID,
        *,
        wait: Callable[[float], bool],
        progress: Callable[[Operation], None] | None = None,
        follow: bool = False,
    ) -> Operation | None:
        """Work on the operation to its end, or until `wait` says to stop: it is called between batches, with seconds to wait.

        None if somebody else holds it; with `follow` he is waited for. `progress` hears each step. Raises TransientErrors, after
        which the lease runs out, or the next call goes on.
        """
        while True:
            try:
                if not self.claim(operation_id):
                    raise LeaseLost
                while (row := self.advance(operation_id)).state in OPEN:
                    if progress is not None:
                        progress(row)
                    if wait(PAUSE_SECONDS):
                        self.release(operation_id)
                        return row
            except LeaseLost:
                row_now = self._rows(operation_id).first()
                if row_now is not None and row_now.state not in OPEN:
                    row = row_now
                elif row_now is None or not follow or wait(_ASK_AGAIN_SECONDS):
                    return None
                else:
                    continue
            if progress is not None:
                progress(row)
            return row

    def advance(self, operation_id: uuid.UUID) -> Operation:
        """Work on one batch, or end the operation; returns its row as it is then. LeaseLost if it is not this worker's.

        What cannot be worked on together is tried in smaller and smaller batches, and a message that alone cannot is counted as
        failed, with the error. TransientErrors are raised: nothing of the batch is done then.
        """
        try:
            row = self._batch(operation_id)
        except (TransientError, LeaseLost):
            raise
        except OperationRefused as error:
            return self._end(operation_id, OperationState.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one message, the others are worked on
            logger.warning("a batch of %s messages failed: %s", self._size, error, extra={"event": "operation_batch_failed"})
            if self._size > 1:
                self._size = max(1, self._size // 10)
                return self._rows(operation_id).get()
            return self._step_over(operation_id, error)
        self._size = min(self._most, self._size * _GROWTH)
        return row

    def _batch(self, operation_id: uuid.UUID) -> Operation:
        with self._errors("work on an operation"), transaction.atomic(using=self.alias):
            row = self._locked(operation_id)
            if row.cancel_requested:
                return self._ended(row, OperationState.CANCELLED)
            kind = kind_of(row.kind)
            kind.check(self._settings)
            if not still_may(row.user_key, kind.permission):
                return self._denied(row, kind)
            # Where the queues are in another database its transaction is committed first: nothing is sent twice then.
            with transaction.atomic(using=self._settings.database):
                done = kind.batch(self._settings, row.scope, row.cursor, self._size, self.now())
            self._add(row, done.outcome, done.cursor)
            return self._ended(row, OperationState.COMPLETED) if done.is_last else row

    def _step_over(self, operation_id: uuid.UUID, error: Exception) -> Operation:
        """Count the next message as failed; where not even that can be done, the operation ends."""
        outcome = Outcome()
        outcome.fail(Reason.ERROR, str(error) or type(error).__name__)
        try:
            with self._errors("work on an operation"), transaction.atomic(using=self.alias):
                row = self._locked(operation_id)
                cursor = kind_of(row.kind).over_first(self._settings, row.scope, row.cursor)
                if cursor != row.cursor:
                    self._add(row, outcome, cursor)
                    return row
        except (TransientError, LeaseLost):
            raise
        except Exception as another:  # noqa: BLE001 - as above
            error = another
        return self._end(operation_id, OperationState.FAILED, str(error) or type(error).__name__)

    def _end(self, operation_id: uuid.UUID, state: OperationState, error: str) -> Operation:
        with self._errors("end an operation"), transaction.atomic(using=self.alias):
            return self._ended(self._locked(operation_id), state, error)

    def _locked(self, operation_id: uuid.UUID) -> Operation:
        """The row, with the lease made longer: nobody else can take it until the transaction ends."""
        mine = self._rows(operation_id).filter(worker=self.worker, state=OperationState.RUNNING)
        if not mine.update(lease_until=self.lease_until()):
            raise LeaseLost
        row = mine.get()
        if row.started_at is None:
            row.started_at = self.now()
            row.save(using=self.alias, update_fields=["started_at"])
        return row

    def _add(self, row: Operation, outcome: Outcome, cursor: str) -> None:
        row.done += outcome.done
        row.skipped += outcome.skipped.total()
        row.failed += outcome.failed.total()
        row.log = merged_log(row.log, outcome)
        row.cursor = cursor
        row.save(using=self.alias, update_fields=["done", "skipped", "failed", "log", "cursor"])

    def _ended(self, row: Operation, state: OperationState, error: str = "") -> Operation:
        now = self.now()
        row.state, row.error, row.finished_at, row.lease_until = state, error, now, None
        row.save(using=self.alias, update_fields=["state", "error", "finished_at", "lease_until"])
        counts = {"done": row.done, "skipped": row.skipped, "failed": row.failed}
        details = {"operation": str(row.pk), "kind": row.kind, "error": error[:_LONGEST_ERROR], **counts}
        record_event(_EVENTS[state], row.description, details, now=now)
        text = "operation %s (%s) %s: %s done, %s skipped, %s failed%s"
        numbers = row.done, row.skipped, row.failed
        why = f"; {error}" if error else ""
        level = logging.WARNING if state == OperationState.FAILED else logging.INFO
        logger.log(level, text, row.pk, row, row.state, *numbers, why, extra={"event": "operation_ended"})
        return row

    def _denied(self, row: Operation, kind: OperationKind) -> Operation:
        reason = _("%(user)s does not have the permission “%(permission)s” any more.") % {
            "user": row.user_name,
            "permission": kind.permission,
        }
        left = max(0, row.total - row.done - row.skipped - row.failed)
        record_action(
            Actor(row.user_name, row.user_key),
            row.kind,
            row.description,
            result=ActionResult.DENIED,
            permission=kind.permission,
            count=left,
            reason=reason,
            operation=row,
        )
        return self._ended(row, OperationState.FAILED, reason)

    # --- small parts ----------------------------------------------------------------------------------------------------------

    def _rows(self, operation_id: uuid.UUID) -> QuerySet[Operation]:
        return Operation.objects.using(self.alias).filter(pk=operation_id)

    def _errors(self, doing: str) -> AbstractContextManager[None]:
        return database_errors(dialect_of_connection(connection_of(self.alias)), doing)
