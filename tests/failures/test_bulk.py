"""Bulk operations process each message once, despite kills, concurrent workers and failing messages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import Permission, User
from django.db import connections, models
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils import translation

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures import operation_batches
from sqlqueue_app.failures.operation_batches import describe_reason, next_messages
from sqlqueue_app.failures.operations import (
    FIRST_BATCH,
    LeaseLost,
    OperationRunner,
    cancel_operation,
    create_operation,
    is_still_permitted,
    is_worker_alive,
    request_operation,
    run_open_operations,
)
from sqlqueue_app.failures.retrying import RetryBatch
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import ActionResult, FailedMessage, FailureStatus, Operation, OperationState, OperatorAction, managed_alias
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.status.events import Actor
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.worker.run import RunOptions, run_worker
from tests.support.databases import ROOT, QueueDatabase
from tests.support.failing import fail, failed_row, install_sales
from tests.support.filling import count, instance, table
from tests.support.waiting import join_all, poll_until, run_in_threads

ANNA = Actor("anna")
MINUTE = timedelta(minutes=1)


@pytest.fixture
def shop(queue_database: QueueDatabase) -> QueueDatabase:
    install_sales(queue_database)
    return queue_database


def never(_seconds: float) -> bool:
    return False


def created(kind: str = "retry", *, actor: Actor = ANNA, **criteria: Any) -> Operation:
    """An operation that no runner has claimed."""
    runner = OperationRunner(get_settings())
    operation = create_operation(get_settings(), kind, FailureSelection(**criteria), actor=actor, runner=runner)
    runner.release(operation.pk)
    return operation


def moved(shop: QueueDatabase) -> list[str]:
    """The message ids in the queue `Sales`, sorted."""
    return sorted(json.loads(row.headers or "")[names.MESSAGE_ID] for row in table(shop, "Sales").peek(100_000, body_limit=0))


def ids_of(failures: list[FailedMessage]) -> list[str]:
    return sorted(each.message_id for each in failures)


def numbers(operation: Operation | None) -> tuple[str, int, int, int]:
    assert operation is not None
    operation.refresh_from_db()
    return str(operation.state), operation.done, operation.skipped, operation.failed


def later() -> Callable[[], datetime]:
    """A clock that is ahead by more than the lease."""
    return lambda: database_now(managed_alias()) + MINUTE


def test_large_operation_starts_at_once_and_a_worker_finishes_it(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row() for _ in range(250)])

    operation = request_operation(get_settings(), "retry", FailureSelection(), actor=ANNA, batch=100)

    assert numbers(operation) == ("running", 100, 0, 0)
    assert operation.total == 250
    assert run_open_operations(OperationRunner(get_settings()), StopSignal()) == 1
    assert numbers(operation) == ("completed", 250, 0, 0)
    assert operation.started_at is not None
    assert operation.finished_at is not None
    assert moved(shop) == ids_of(failures)


def test_slow_small_operation_is_finished_by_a_worker(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row() for _ in range(400)])
    times = iter([0.0, 11.0])

    operation = request_operation(get_settings(), "retry", FailureSelection(), actor=ANNA, clock=lambda: next(times))

    assert numbers(operation) == ("running", FIRST_BATCH, 0, 0)
    assert run_open_operations(OperationRunner(get_settings()), StopSignal()) == 1
    assert numbers(operation) == ("completed", 400, 0, 0)
    assert moved(shop) == ids_of(failures)


def test_killed_worker_leaves_whole_batches_and_another_continues(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row() for _ in range(2000)])
    operation = created()
    command = [sys.executable, "-W", "error", "-m", "tests.failures.bulk_app", str(operation.pk), "250"]
    killed = subprocess.run(command, cwd=ROOT, env=shop.child_environment(), capture_output=True, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert numbers(operation) == ("running", 500, 0, 0)

    assert run_open_operations(OperationRunner(get_settings()), StopSignal()) == 0  # its lease has not expired
    assert run_open_operations(OperationRunner(get_settings(), now=later()), StopSignal()) == 1

    assert numbers(operation) == ("completed", 2000, 0, 0)
    assert moved(shop) == ids_of(failures)
    assert count(shop, "error") == 0
    assert FailedMessage.objects.filter(status=FailureStatus.RETRY_ISSUED).count() == 2000


def test_worker_runs_operations(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row(failed_q="Parked") for _ in range(50)])
    install_sales(shop, ENDPOINTS={"Sales": {"CALLBACKS": False, "AUDIT_QUEUE": "Parked"}})
    operation = created()
    stop = StopSignal()
    worker = threading.Thread(target=lambda: run_worker(get_settings(), RunOptions(), stop), name="worker")
    worker.start()
    try:
        poll_until(lambda: numbers(operation)[0] == "completed", what="the worker has completed the operation")
        poll_until(is_worker_alive)
    finally:
        stop.set()
        join_all([worker])
    assert numbers(operation) == ("completed", 50, 0, 0)
    assert count(shop, "Parked") == len(failures)
    assert not is_worker_alive()


def test_concurrent_retries_move_each_message_once(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row() for _ in range(400)])
    operations: list[Operation] = []
    together = threading.Barrier(2)

    def retry_everything() -> None:
        try:
            operation = created()
            together.wait(60)
            runner = OperationRunner(get_settings(), batch=50)
            operations.append(runner.run(operation.pk, wait=never) or operation)
        finally:
            connections.close_all()

    run_in_threads(retry_everything, 2)

    assert moved(shop) == ids_of(failures)
    assert count(shop, "error") == 0
    assert {numbers(each)[0] for each in operations} == {"completed"}
    assert sum(numbers(each)[1] for each in operations) == 400
    assert sum(numbers(each)[3] for each in operations) == 0


def test_two_workers_run_each_batch_of_an_operation_once(shop: QueueDatabase) -> None:
    failures = fail(shop, [failed_row() for _ in range(60)])
    operation = created()
    first = OperationRunner(get_settings(), batch=20)
    second = OperationRunner(get_settings(), batch=20, now=later())
    assert first.claim(operation.pk)
    first.advance(operation.pk)

    assert second.claim(operation.pk)  # by its clock the lease of the first has expired
    with pytest.raises(LeaseLost):
        first.advance(operation.pk)
    assert first.run(operation.pk, wait=never) is None
    second.run(operation.pk, wait=never)

    assert numbers(operation) == ("completed", 60, 0, 0)
    assert moved(shop) == ids_of(failures)


def test_operation_is_cancelled_between_batches(shop: QueueDatabase) -> None:
    fail(shop, [failed_row() for _ in range(60)])
    operation = created()
    runner = OperationRunner(get_settings(), batch=20)
    runner.claim(operation.pk)
    runner.advance(operation.pk)

    assert cancel_operation(operation.pk)
    assert runner.advance(operation.pk).state == OperationState.CANCELLED

    assert numbers(operation) == ("cancelled", 20, 0, 0)
    assert (count(shop, "Sales"), count(shop, "error")) == (20, 40)
    assert not cancel_operation(operation.pk)
    assert run_open_operations(OperationRunner(get_settings(), now=later()), StopSignal()) == 0


def test_operation_leaves_out_what_fails_after_its_request(shop: QueueDatabase) -> None:
    fail(shop, [failed_row() for _ in range(4)])
    operation = created("delete")
    runner = OperationRunner(get_settings(), batch=2)
    runner.claim(operation.pk)
    runner.advance(operation.pk)
    # Some of these ids come after the cursor, whatever it is.
    fail(shop, [failed_row() for _ in range(20)])

    runner.run(operation.pk, wait=never)

    assert numbers(operation) == ("completed", 4, 0, 0)
    assert count(shop, "error") == 20


def test_reasons_are_stored_once_and_read_in_any_language(shop: QueueDatabase) -> None:
    """A request begins an operation in the language of its user, and a worker continues it in that of the site."""
    failures = fail(shop, [failed_row(), failed_row()])
    request_operation(get_settings(), "archive", FailureSelection(), actor=ANNA)
    operation = created("retry", ids=tuple(each.pk for each in failures))
    runner = OperationRunner(get_settings(), batch=1)
    runner.claim(operation.pk)

    for language in ("de", "en"):
        with translation.override(language):
            runner.advance(operation.pk)

    operation.refresh_from_db()
    assert operation.log == [{"what": "skipped", "reason": "status", "detail": "archived", "count": 2}]
    with translation.override("de"):
        assert "archiviert" in describe_reason("status", "archived")


@pytest.mark.parametrize("kind", ["archive", "retry", "delete"])
def test_message_belongs_to_the_operation_that_changed_it(shop: QueueDatabase, kind: str) -> None:
    """An operation that comes too late in the same second does not get it, although the clock has no smaller unit."""
    now = database_now(managed_alias())
    wanted = FailureSelection(ids=tuple(each.pk for each in fail(shop, [failed_row()])))

    first, second = (request_operation(get_settings(), kind, wanted, actor=ANNA, now=lambda: now) for _ in range(2))

    assert (numbers(first), numbers(second)) == (("completed", 1, 0, 0), ("completed", 0, 1, 0))
    assert FailedMessage.objects.get().operation == first.pk


def test_next_worker_cancels_an_operation_that_has_not_started(shop: QueueDatabase) -> None:
    fail(shop, [failed_row()])
    operation = created()
    cancel_operation(operation.pk)

    run_open_operations(OperationRunner(get_settings()), StopSignal())

    assert numbers(operation) == ("cancelled", 0, 0, 0)


def test_stopped_worker_releases_the_operation(shop: QueueDatabase) -> None:
    fail(shop, [failed_row() for _ in range(60)])
    operation = created()
    stop = StopSignal()
    stop.set()

    OperationRunner(get_settings(), batch=20).run(operation.pk, wait=stop.wait)

    assert numbers(operation) == ("running", 20, 0, 0)
    assert run_open_operations(OperationRunner(get_settings()), StopSignal()) == 1
    assert numbers(operation) == ("completed", 60, 0, 0)


def test_failing_message_does_not_stop_the_others(shop: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = fail(shop, [failed_row() for _ in range(30)])
    broken = failures[17].pk
    run = RetryBatch.run

    def refused(self: RetryBatch, ids: Any) -> Any:
        outcome = run(self, ids)
        if broken in ids:
            raise DatabaseError("too large")
        return outcome

    monkeypatch.setattr(RetryBatch, "run", refused)
    operation = created()

    OperationRunner(get_settings(), batch=20).run(operation.pk, wait=never)

    assert numbers(operation) == ("completed", 29, 0, 1)
    assert operation.log == [{"what": "failed", "reason": "error", "detail": "too large", "count": 1}]
    assert moved(shop) == ids_of([each for each in failures if each.pk != broken])
    assert count(shop, "error") == 1


def test_operation_waits_for_an_unavailable_database(shop: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = fail(shop, [failed_row() for _ in range(5)])
    answers: Iterator[bool] = iter([True, False])
    run = RetryBatch.run

    def away(self: RetryBatch, ids: Any) -> Any:
        outcome = run(self, ids)
        if next(answers, False):
            raise ConnectionLost("gone")
        return outcome

    monkeypatch.setattr(RetryBatch, "run", away)

    operation = request_operation(get_settings(), "retry", FailureSelection(), actor=ANNA)

    assert numbers(operation) == ("running", 0, 0, 0)
    assert count(shop, "error") == 5
    run_open_operations(OperationRunner(get_settings(), now=later()), StopSignal())
    assert numbers(operation) == ("completed", 5, 0, 0)
    assert moved(shop) == ids_of(failures)


@pytest.mark.parametrize("taken", ["retry", "view_queue", "active", "deleted"])
def test_operation_fails_when_its_user_loses_the_permission(sqlite_database: QueueDatabase, taken: str) -> None:
    install_sales(sqlite_database)
    user = User.objects.create_user("anna", is_staff=True)
    powers = Permission.objects.filter(content_type__app_label="sqlqueue_app", codename__in=["view_queue", "retry"])
    user.user_permissions.set(powers)
    fail(sqlite_database, [failed_row() for _ in range(40)])
    operation = created(actor=Actor("anna", str(user.pk)))
    runner = OperationRunner(get_settings(), batch=10)
    runner.claim(operation.pk)
    runner.advance(operation.pk)
    if taken == "deleted":
        user.delete()
    elif taken == "active":
        User.objects.update(is_active=False)
    else:
        user.user_permissions.remove(powers.get(codename=taken))

    runner.run(operation.pk, wait=never)

    assert numbers(operation) == ("failed", 10, 0, 0)
    assert operation.error == "anna no longer has the permission “retry”."
    denied = OperatorAction.objects.get()
    assert (denied.result, denied.permission, denied.count, denied.user_name) == (ActionResult.DENIED, "retry", 30, "anna")
    assert denied.operation_id == operation.pk
    assert count(sqlite_database, "error") == 30


@isolate_apps("django.contrib.auth")
def test_users_need_no_more_than_in_the_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    class Colleague(AbstractBaseUser):  # without PermissionsMixin
        id = models.UUIDField(primary_key=True, default=uuid.uuid4)

        class Meta:
            app_label = "auth"

        def has_perm(self, permission: str) -> bool:
            return permission in ("sqlqueue_app.view_queue", "sqlqueue_app.retry")

    colleague = Colleague()
    found = Mock(**{"filter.return_value.first.return_value": colleague})
    with monkeypatch.context() as patched:
        patched.setattr("django.contrib.auth.get_user_model", lambda: Mock(_default_manager=found))
        assert is_still_permitted(str(colleague.pk), "retry")
        assert not is_still_permitted(str(colleague.pk), "purge")
    monkeypatch.setattr("django.contrib.auth.get_user_model", lambda: Colleague)
    assert not is_still_permitted("5", "retry")  # the key in a former user model


def test_operation_of_an_unknown_user_fails(sqlite_database: QueueDatabase) -> None:
    install_sales(sqlite_database)
    fail(sqlite_database, [failed_row()])

    operation = request_operation(get_settings(), "retry", FailureSelection(), actor=Actor("x", str(uuid.uuid4())))

    assert numbers(operation) == ("failed", 0, 0, 0)


def test_unreadable_operation_fails(shop: QueueDatabase) -> None:
    fail(shop, [failed_row()])
    operation = created()
    Operation.objects.filter(pk=operation.pk).update(scope={"nonsense": 1})

    run_open_operations(OperationRunner(get_settings()), StopSignal())

    assert numbers(operation) == ("failed", 0, 0, 0)
    assert "nonsense" in operation.error


def test_operation_of_an_unknown_kind_stays_waiting(shop: QueueDatabase) -> None:
    fail(shop, [failed_row()])
    operation = created()
    Operation.objects.filter(pk=operation.pk).update(kind="teleport")

    assert run_open_operations(OperationRunner(get_settings()), StopSignal()) == 0
    assert numbers(operation) == ("waiting", 0, 0, 0)


def test_idle_worker_runs_one_query(shop: QueueDatabase) -> None:
    runner = OperationRunner(get_settings())

    with CaptureQueriesContext(shop.connection) as queries:
        run_open_operations(runner, StopSignal())

    assert len(queries) == 1


def test_process_that_only_receives_replies_is_no_worker(shop: QueueDatabase) -> None:
    instance(threads={"Sales.here": 1})
    assert not is_worker_alive()
    instance(threads={"Sales": 2, "Sales.other": 1}, callback_queue="Sales.other")
    assert is_worker_alive()


def test_large_bodies_make_small_batches(shop: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_batches, "BYTES_PER_BATCH", 1_000)
    sizes = [900, 90, 20, 5_000, 1, 1]
    failures = fail(shop, [failed_row(body=b"x" * size) for size in sizes])
    found = []
    chosen = next_messages(FailureSelection(), "", 100)
    while not chosen.is_last:
        found.append(chosen.ids)
        chosen = next_messages(FailureSelection(), str(chosen.ids[-1]), 100)
    found.append(chosen.ids)

    assert [each for ids in found for each in ids] == sorted(each.pk for each in failures)
    sizes_of = {each.pk: each.size or 0 for each in failures}
    assert all(len(ids) == 1 or sum(sizes_of[each] for each in ids) <= 1_000 for ids in found)
    assert numbers(request_operation(get_settings(), "retry", FailureSelection(), actor=ANNA)) == ("completed", 6, 0, 0)
    assert moved(shop) == ids_of(failures)
