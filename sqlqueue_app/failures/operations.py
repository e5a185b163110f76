"""Bulk operations: previewed, requested, and run by any live process, one transaction per batch with its numbers.

The row of an operation is locked while a batch runs and holds the cursor of the last committed batch. A process that is killed has
done whole batches; once its lease has expired, another process continues behind them. The permission of the user is checked before
each batch.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Case, Count, IntegerField, Q, QuerySet, Value, When
from django.utils import translation
from django.utils.translation import gettext as _

from sqlqueue_app.conf import Settings
from sqlqueue_app.failures.operation_batches import (
    BatchOutcome,
    OperationRefused,
    Reason,
    ReasonDetail,
    describe_reason,
    merged_log,
    reason_of_status,
)
from sqlqueue_app.failures.operation_kinds import FAILURE_KINDS, KINDS, OperationKind, Scope, kind_of
from sqlqueue_app.failures.retrying import RetryTargets, Target
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.errors import SqlQueueError, TransientError, counted
from sqlqueue_app.models import ActionResult, FailedAttempt, FailedMessage, Operation, OperationState, managed_alias
from sqlqueue_app.models.operations import OPEN
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.status.events import Actor, EventKind, record_action, record_event
from sqlqueue_app.status.instances import read_instances
from sqlqueue_app.tables.connections import database_now, errors_of_alias

# Further queues are not checked; their messages count as eligible.
_MAX_QUEUES: Final = 50


@dataclass(slots=True)
class Preview:
    """The numbers of a dry run. `targets` are the queues that retries would go to."""

    eligible: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    reasons: Counter[ReasonDetail] = field(default_factory=Counter)

    @property
    def not_eligible(self) -> int:
        """Messages that would stay unchanged."""
        return self.reasons.total()

    @property
    def total(self) -> int:
        return self.eligible + self.not_eligible

    def in_words(self) -> list[tuple[str, int]]:
        """The reasons in the current language with the number of messages, most frequent first."""
        return [(describe_reason(*why), count) for why, count in self.reasons.most_common()]


def preview(settings: Settings, kind: str, selection: FailureSelection) -> Preview:
    """The effect of one of FAILURE_KINDS now, from the index. Changes and locks nothing. Raises OperationRefused like a request."""
    chosen = FAILURE_KINDS[kind]
    scope = chosen.scope(selection)
    found = Preview()
    sends = chosen.name in ("retry", "redirect")
    flags = {
        "is_gone": Case(When(row_version__isnull=True, then=Value(1)), default=Value(0), output_field=IntegerField()),
        "is_poison": Case(When(poison="", then=Value(0)), default=Value(1), output_field=IntegerField()),
    }
    by = {"retry": ("status", "failed_q", *flags), "redirect": ("status", "retried_to")}.get(chosen.name, ("status",))
    rows = scope.queryset().annotate(**flags).values_list(*by).annotate(count=Count("pk")).order_by("-count")
    targets = RetryTargets(settings) if sends else None
    queues: set[str] = set()
    for status, *more, count in rows:
        if status not in chosen.statuses:
            found.reasons[reason_of_status(status)] += count
        elif targets is None:
            found.eligible += count
        else:
            queues.add(more[0])
            known = targets if len(queues) <= _MAX_QUEUES else None
            add = _add_moves if chosen.name == "redirect" else _add_retries
            add(found, known, *more, count=count)
    return found


def _add_retries(
    found: Preview, targets: RetryTargets | None, queue: str, is_gone: int = 0, is_poison: int = 0, *, count: int
) -> None:
    if is_gone or is_poison:
        found.reasons[Reason.NOT_THERE if is_gone else Reason.NO_FAILED_QUEUE, ""] += count
        return
    target = targets.of(queue) if targets is not None else None
    if target is None or isinstance(target, Target):
        found.eligible += count
        found.targets[queue if target is None else target.text] += count
    else:
        found.reasons[target] += count


def _add_moves(found: Preview, targets: RetryTargets | None, queue: str, *, count: int) -> None:
    target = targets.of(queue) if targets is not None else None
    if isinstance(target, Target) and target.redirect is None:
        found.reasons[Reason.NO_REDIRECT, queue] += count
    else:
        _add_retries(found, targets, queue, count=count)


VIEW = "view_queue"


def is_still_permitted(user_key: str, permission: str) -> bool:
    """Whether the user (empty: a command) is active and may view and do this. Raises errors of the users' database."""
    if not user_key or not apps.is_installed("django.contrib.auth"):
        return True
    from django.contrib.auth import get_user_model  # noqa: PLC0415 - needs django.contrib.auth in INSTALLED_APPS

    try:
        user = get_user_model()._default_manager.filter(pk=user_key).first()
    except (ValueError, TypeError, ValidationError):  # the key of another user model
        return False
    # The admin needs has_perm() of a user model; has_perms() is only in PermissionsMixin.
    return user is not None and user.is_active and all(user.has_perm(f"sqlqueue_app.{each}") for each in (VIEW, permission))


logger = logging.getLogger("sqlqueue.operations")

BATCH: Final = 1_000
# A smaller first batch shows progress early.
FIRST_BATCH: Final = 250
_GROWTH: Final = 4
# A batch takes about a second; a worker that is silent for this long was killed or has lost its database.
LEASE: Final = timedelta(seconds=20)
# Gives other writers a chance between two batches, also on SQLite.
PAUSE_SECONDS: Final = 0.02
_FOLLOW_POLL_SECONDS: Final = 1.0
_MAX_ERROR_LENGTH: Final = 1_000
_EVENTS: Final = {
    OperationState.COMPLETED: EventKind.OPERATION_COMPLETED,
    OperationState.FAILED: EventKind.OPERATION_FAILED,
    OperationState.CANCELLED: EventKind.OPERATION_CANCELLED,
}


class LeaseLost(SqlQueueError):
    """Another worker holds the lease, or the operation has ended."""


class OperationRunner:
    """Runs operations as one worker. For one thread. `now` defaults to the clock of the managed tables' database."""

    def __init__(self, settings: Settings, *, now: Callable[[], datetime] | None = None, batch: int = BATCH) -> None:
        self.alias = managed_alias()
        self.worker = f"{platform.node() or 'unknown'} {os.getpid()} {uuid.uuid4().hex[:8]}"[-255:]
        self._settings = settings
        self.now = now or partial(database_now, self.alias)
        self._max_size, self._size = batch, min(batch, FIRST_BATCH)

    def lease_until(self) -> datetime:
        """The expiry of a lease taken now."""
        return self.now() + LEASE

    def claim(self, operation_id: uuid.UUID) -> bool:
        """Take the lease unless the operation has ended or another worker holds it. Waits while that worker runs a batch."""
        now = self.now()
        free = Q(lease_until=None) | Q(lease_until__lt=now) | Q(worker=self.worker)
        taken = self._rows(operation_id).filter(free, state__in=OPEN)
        with errors_of_alias(self.alias, "claim an operation"):
            return taken.update(worker=self.worker, lease_until=now + LEASE, state=OperationState.RUNNING) == 1

    def release(self, operation_id: uuid.UUID) -> None:
        """Give up the lease, so that another worker can continue."""
        with errors_of_alias(self.alias, "give an operation back"):
            self._rows(operation_id).filter(worker=self.worker, state__in=OPEN).update(lease_until=None)

    def run(
        self,
        operation_id: uuid.UUID,
        *,
        wait: Callable[[float], bool],
        progress: Callable[[Operation], None] | None = None,
        follow: bool = False,
    ) -> Operation | None:
        """Run the operation to its end, or until `wait` returns True; `wait` is called between batches with seconds to wait.

        Returns None if another worker holds it; with `follow` waits for that worker. `progress` is called after each batch. Raises
        TransientErrors; the next call continues, as does another worker after the lease has expired.
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
                elif row_now is None or not follow or wait(_FOLLOW_POLL_SECONDS):
                    return None
                else:
                    continue
            if progress is not None:
                progress(row)
            return row

    def advance(self, operation_id: uuid.UUID) -> Operation:
        """Run one batch or end the operation; returns the updated row. Raises LeaseLost and TransientErrors.

        A batch that fails is tried again with a tenth of its size; a single message that fails is counted with its error. After a
        TransientError nothing of the batch is done.
        """
        try:
            row = self._batch(operation_id)
        except (TransientError, LeaseLost):
            raise
        except OperationRefused as error:
            return self._end(operation_id, OperationState.FAILED, str(error))
        except Exception as error:  # noqa: BLE001 - one bad message must not stop the others
            logger.warning(
                "a batch of %s failed: %s", counted(self._size, "message"), error, extra={"event": "operation_batch_failed"}
            )
            if self._size > 1:
                self._size = max(1, self._size // 10)
                return self._rows(operation_id).get()
            return self._step_over(operation_id, error)
        self._size = min(self._max_size, self._size * _GROWTH)
        return row

    def _batch(self, operation_id: uuid.UUID) -> Operation:
        # In English, because the reasons are stored for readers of all languages.
        with translation.override(None), errors_of_alias(self.alias, "work on an operation"), transaction.atomic(using=self.alias):
            row = self._locked(operation_id)
            if row.cancel_requested:
                return self._ended(row, OperationState.CANCELLED)
            kind = kind_of(row.kind)
            kind.check(self._settings)
            if not is_still_permitted(row.user_key, kind.permission):
                return self._denied(row, kind)
            # If the queues are in another database, its transaction commits first: nothing is sent twice.
            with transaction.atomic(using=self._settings.database):
                now = self.now()
                done = kind.batch(self._settings, row.scope, row.cursor, self._size, now)
            changed = done.outcome.changed
            FailedMessage.objects.using(self.alias).filter(pk__in=changed).update(operation=row.pk)
            if row.kind == "retry":
                attempts = FailedAttempt.objects.using(self.alias).filter(failure__in=changed, retried_at=None)
                attempts.update(retried_at=now, operation=row.pk)
            self._add(row, done.outcome, done.cursor)
            return self._ended(row, OperationState.COMPLETED) if done.is_last else row

    def _step_over(self, operation_id: uuid.UUID, error: Exception) -> Operation:
        """Count the next message as failed; end the operation if that fails too."""
        outcome = BatchOutcome()
        outcome.fail(Reason.ERROR, str(error) or type(error).__name__)
        try:
            with errors_of_alias(self.alias, "work on an operation"), transaction.atomic(using=self.alias):
                row = self._locked(operation_id)
                cursor = kind_of(row.kind).skip_first(self._settings, row.scope, row.cursor)
                if cursor != row.cursor:
                    self._add(row, outcome, cursor)
                    return row
        except (TransientError, LeaseLost):
            raise
        except Exception as another:  # noqa: BLE001 - as above
            error = another
        return self._end(operation_id, OperationState.FAILED, str(error) or type(error).__name__)

    def _end(self, operation_id: uuid.UUID, state: OperationState, error: str) -> Operation:
        with errors_of_alias(self.alias, "end an operation"), transaction.atomic(using=self.alias):
            return self._ended(self._locked(operation_id), state, error)

    def _locked(self, operation_id: uuid.UUID) -> Operation:
        """The row with an extended lease, locked until the transaction ends."""
        mine = self._rows(operation_id).filter(worker=self.worker, state=OperationState.RUNNING)
        if not mine.update(lease_until=self.lease_until()):
            raise LeaseLost
        row = mine.get()
        if row.started_at is None:
            row.started_at = self.now()
            row.save(using=self.alias, update_fields=["started_at"])
        return row

    def _add(self, row: Operation, outcome: BatchOutcome, cursor: str) -> None:
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
        details = {"operation": str(row.pk), "kind": row.kind, "error": error[:_MAX_ERROR_LENGTH], **counts}
        record_event(_EVENTS[state], row.description, details, now=now)
        text = "operation %s (%s) %s: %s done, %s skipped, %s failed%s"
        numbers = row.done, row.skipped, row.failed
        why = f"; {error}" if error else ""
        level = logging.WARNING if state == OperationState.FAILED else logging.INFO
        logger.log(level, text, row.pk, row, row.state, *numbers, why, extra={"event": "operation_ended"})
        return row

    def _denied(self, row: Operation, kind: OperationKind) -> Operation:
        reason = _("%(user)s no longer has the permission “%(permission)s”.") % {
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

    def _rows(self, operation_id: uuid.UUID) -> QuerySet[Operation]:
        return Operation.objects.using(self.alias).filter(pk=operation_id)


# The requesting process starts an operation itself; an idle worker sends few statements (benchmarks/idle.py).
EVERY_SECONDS: Final = 5.0
_MAX_OPERATIONS: Final = 20


def bulk_operations_job(settings: Settings, stop: StopSignal) -> BackgroundJob:
    """Check for open operations every five seconds; one indexed statement while there are none."""
    run = partial(run_open_operations, OperationRunner(settings), stop)
    return BackgroundJob("bulk operations", EVERY_SECONDS, run, retries_silently=True)


def run_open_operations(runner: OperationRunner, stop: StopSignal) -> int:
    """Run operations without a live lease, oldest first, until the stop. Returns the number of operations. TransientErrors."""
    rows = Operation.objects.using(runner.alias).filter(state__in=OPEN, kind__in=KINDS).order_by("requested_at")
    found = list(rows.values_list("pk", "lease_until")[:_MAX_OPERATIONS])
    # Claiming a leased operation would wait for the batch that runs.
    now = runner.now() if found else None
    free = [pk for pk, lease_until in found if lease_until is None or now is None or lease_until < now]
    worked = 0
    for operation_id in free:
        if stop.is_set():
            break
        worked += runner.run(operation_id, wait=stop.wait) is not None
    return worked


# Web servers end a request after half a minute.
REQUEST_SECONDS: Final = 10.0


def create_operation(settings: Settings, kind: str, wanted: Scope, *, actor: Actor, runner: OperationRunner) -> Operation:
    """Write the row of an operation, leased to the runner; nothing runs yet. Messages that fail from now on are left out.

    Raises OperationRefused if the scope is empty or invalid or the error queue belongs to another system, and DatabaseErrors.
    """
    chosen = kind_of(kind)
    chosen.check(settings)
    scope = chosen.scope(wanted)
    alias = managed_alias()
    with errors_of_alias(alias, "begin an operation"):
        if isinstance(scope, FailureSelection):
            scope = scope.as_of_now()
        total = chosen.total(settings, scope.to_json())
        if not total:
            raise OperationRefused(_("There is no such message: %(selection)s.") % {"selection": scope.in_words()})
        with translation.override(None):
            words = scope.in_words()
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
            requested_at=lease_until - LEASE,
            lease_until=lease_until,
            worker=runner.worker,
        )


def request_operation(
    settings: Settings,
    kind: str,
    wanted: Scope,
    *,
    actor: Actor,
    batch: int = BATCH,
    now: Callable[[], datetime] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Operation:
    """Start an operation and run it within this request: completely if it fits in one batch, otherwise the first batch.

    A worker continues a longer one, a small one that takes more than REQUEST_SECONDS of `clock`, and one whose database became
    unavailable. Raises as `create_operation`.
    """
    runner = OperationRunner(settings, now=now, batch=batch)
    operation = create_operation(settings, kind, wanted, actor=actor, runner=runner)
    try:
        runner.claim(operation.pk)
        end = clock() + REQUEST_SECONDS
        while (operation := runner.advance(operation.pk)).state in OPEN and operation.total <= batch and clock() < end:
            pass
        if operation.state in OPEN:
            runner.release(operation.pk)
    except (TransientError, LeaseLost):
        pass  # another worker continues after the lease has expired
    return operation


def run_operation(
    settings: Settings,
    kind: str,
    wanted: Scope,
    *,
    actor: Actor,
    progress: Callable[[Operation], None],
) -> Operation:
    """Start an operation and run it here to its end; Ctrl-C cancels it. Raises as `create_operation`."""
    runner = OperationRunner(settings)
    operation = create_operation(settings, kind, wanted, actor=actor, runner=runner)
    pause = threading.Event()
    try:
        return runner.run(operation.pk, wait=pause.wait, progress=progress, follow=True) or operation
    except KeyboardInterrupt:
        cancel_operation(operation.pk)
        return runner.run(operation.pk, wait=pause.wait, follow=True) or operation


def cancel_operation(operation_id: uuid.UUID) -> bool:
    """Cancel before the next batch; False if the operation has ended. Waits for the batch that runs."""
    operations = Operation.objects.using(managed_alias()).filter(pk=operation_id, state__in=OPEN)
    return operations.update(cancel_requested=True) == 1


def is_worker_alive() -> bool:
    """Whether a live process receives from more than its callback queue, so that it runs operations. One statement."""
    instances, _rows, _problem = read_instances()
    return any(each.works_for_all for each in instances)
