"""Bulk operations move or delete all messages of a queue, each once, despite kills and concurrent changes."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue_app.conf import get_settings
from sqlqueue_app.failures import operation_batches
from sqlqueue_app.failures.operation_batches import OperationRefused
from sqlqueue_app.failures.operation_kinds import QueueScope, queue_scope
from sqlqueue_app.failures.operations import OperationRunner, create_operation, request_operation
from sqlqueue_app.models import Operation, OperationState
from sqlqueue_app.status.events import Actor
from sqlqueue_app.tables.installation import drop_queue
from sqlqueue_app.tables.row_selection import take_rows
from tests.support.databases import QueueDatabase
from tests.support.filling import count, install, message, row, table
from tests.support.waiting import join_all

ACTOR = Actor("")
NO_WAIT: Callable[[float], bool] = lambda _seconds: False  # noqa: E731


@pytest.fixture
def filled(queue_database: QueueDatabase) -> QueueDatabase:
    install(queue_database)
    table(queue_database, "Sales").send([message({"n": n}) for n in range(20)])
    return queue_database


def moving(database: QueueDatabase) -> QueueScope:
    return queue_scope(table(database, "Sales"), "Sales", table(database, "error"))


def bodies(database: QueueDatabase, name: str) -> list[bytes | None]:
    return [each.body for each in table(database, name).peek(1_000)]


def start_operation(database: QueueDatabase, kind: str, scope: QueueScope) -> tuple[Operation, OperationRunner]:
    runner = OperationRunner(get_settings(), batch=4)
    return create_operation(get_settings(), kind, scope, actor=ACTOR, runner=runner), runner


def numbers(operation: Operation) -> tuple[str, int, int, int]:
    return operation.state, operation.done, operation.skipped, operation.failed


def test_messages_move_unchanged_and_in_order(filled: QueueDatabase) -> None:
    sales, error = table(filled, "Sales"), table(filled, "error")
    sales.send([message(lifetime_ms=3_600_000), row("not JSON", b"\x00\xff"), row({"a": "ü"}, b"")])
    before = [(each.id, each.headers, each.body, each.expires is None) for each in sales.peek(100)]

    operation = request_operation(get_settings(), "move_queue", moving(filled), actor=ACTOR)

    assert numbers(operation) == (OperationState.COMPLETED, 23, 0, 0)
    assert [(each.id, each.headers, each.body, each.expires is None) for each in error.peek(100)] == before
    assert count(filled, "Sales") == 0


def test_late_and_locked_messages_stay(postgresql_database: QueueDatabase) -> None:
    """Only on PostgreSQL: SQLite has one writer at a time."""
    install(postgresql_database)
    sales = table(postgresql_database, "Sales")
    sales.send([message({"n": n}) for n in range(10)])
    operation, runner = start_operation(postgresql_database, "move_queue", moving(postgresql_database))
    sales.send([message({"late": True})])
    held, done = threading.Event(), threading.Event()

    def receive() -> None:
        try:
            with transaction.atomic(using=postgresql_database.alias):
                take_rows(sales, [sales.row_versions(3)[2]])
                held.set()
                assert done.wait(60)
                transaction.set_rollback(True, using=postgresql_database.alias)
        finally:
            connections.close_all()

    receiver = threading.Thread(target=receive)
    receiver.start()
    try:
        assert held.wait(60)
        ended = runner.run(operation.pk, wait=NO_WAIT)
    finally:
        done.set()
        join_all([receiver])

    assert ended is not None
    assert numbers(ended) == (OperationState.COMPLETED, 9, 1, 0)
    assert [entry["reason"] for entry in ended.log] == ["in hands"]
    assert bodies(postgresql_database, "Sales") == [b'{"n": 2}', b'{"late": true}']


def test_another_worker_continues_after_a_kill(filled: QueueDatabase) -> None:
    ids = {each.id for each in table(filled, "Sales").peek(100)}
    operation, first = start_operation(filled, "move_queue", moving(filled))
    first.claim(operation.pk)
    assert first.advance(operation.pk).done == 4
    assert (count(filled, "Sales"), count(filled, "error")) == (16, 4)
    later = OperationRunner(get_settings(), batch=7, now=lambda: first.now() + timedelta(minutes=1))

    ended = later.run(operation.pk, wait=NO_WAIT)

    assert ended is not None
    assert numbers(ended) == (OperationState.COMPLETED, 20, 0, 0)
    moved = table(filled, "error").peek(100)
    assert len(moved) == 20
    assert {each.id for each in moved} == ids


def test_purge_deletes_the_messages_present_at_its_start(filled: QueueDatabase) -> None:
    operation, runner = start_operation(filled, "purge_queue", queue_scope(table(filled, "Sales"), "Sales"))
    table(filled, "Sales").send([message({"late": True})])
    ended = runner.run(operation.pk, wait=NO_WAIT)
    assert ended is not None
    assert (numbers(ended), ended.total) == ((OperationState.COMPLETED, 20, 0, 0), 20)
    assert bodies(filled, "Sales") == [b'{"late": true}']


def test_large_bodies_move_in_small_batches(filled: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation_batches, "BYTES_PER_BATCH", 20)
    operation, runner = start_operation(filled, "move_queue", moving(filled))
    runner.claim(operation.pk)
    assert runner.advance(operation.pk).done == 2


@pytest.mark.parametrize("dropped", ["Sales", "error"])
def test_dropped_queue_fails_the_operation_with_the_reason(filled: QueueDatabase, dropped: str) -> None:
    operation, runner = start_operation(filled, "move_queue", moving(filled))
    runner.claim(operation.pk)
    runner.advance(operation.pk)
    drop_queue(filled.alias, table(filled, dropped).address)

    ended = runner.run(operation.pk, wait=NO_WAIT)

    assert ended is not None
    assert (ended.state, ended.done) == (OperationState.FAILED, 4)
    assert ended.error == f"The queue {dropped} no longer exists."


def test_message_refused_by_the_target_stays_and_the_rest_moves(postgresql_database: QueueDatabase) -> None:
    """Only on PostgreSQL: the other databases have no unique ids."""
    install(postgresql_database)
    sales, error = table(postgresql_database, "Sales"), table(postgresql_database, "error")
    rows = [message({"n": n}) for n in range(10)]
    sales.send(rows)
    error.send([rows[3]])
    operation, runner = start_operation(postgresql_database, "move_queue", moving(postgresql_database))

    ended = runner.run(operation.pk, wait=NO_WAIT)

    assert ended is not None
    assert numbers(ended) == (OperationState.COMPLETED, 9, 0, 1)
    assert bodies(postgresql_database, "Sales") == [b'{"n": 3}']
    assert "duplicate key" in ended.log[0]["detail"]


def test_invalid_operations_are_refused(filled: QueueDatabase) -> None:
    sales, settings = table(filled, "Sales"), get_settings()
    with pytest.raises(ValueError, match="The messages are already in"):
        queue_scope(sales, "Sales", sales)
    if filled.vendor != "postgresql":  # one table, whatever the case of its name
        with pytest.raises(ValueError, match="The messages are already in"):
            queue_scope(sales, "Sales", table(filled, "sales"))
    with pytest.raises(OperationRefused, match="cannot be read"):
        request_operation(settings, "purge_queue", moving(filled), actor=ACTOR)
    with pytest.raises(OperationRefused, match="cannot be read"):
        request_operation(settings, "move_queue", queue_scope(sales, "Sales"), actor=ACTOR)
    with pytest.raises(OperationRefused, match="There is no such message: all messages of error"):
        request_operation(settings, "purge_queue", queue_scope(table(filled, "error"), "error"), actor=ACTOR)
    assert Operation.objects.count() == 0


@pytest.mark.parametrize("scope", [{}, [], {"name": "Sales", "queue": {}, "until": 1, "target": None}, {"name": 1, "queue": 1}])
def test_unreadable_scope_fails_the_operation(filled: QueueDatabase, scope: Any) -> None:
    operation, runner = start_operation(filled, "purge_queue", queue_scope(table(filled, "Sales"), "Sales"))
    Operation.objects.filter(pk=operation.pk).update(scope=scope)
    ended = runner.run(operation.pk, wait=NO_WAIT)
    assert ended is not None
    assert ended.state == OperationState.FAILED
    assert count(filled, "Sales") == 20


def test_scope_survives_json(filled: QueueDatabase) -> None:
    for scope in (moving(filled), queue_scope(table(filled, "Sales"), f"a'b {uuid.UUID(int=1)}")):
        assert QueueScope.from_json(scope.to_json()) == scope
