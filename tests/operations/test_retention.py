"""Operations that have ended and actions are forgotten after their time; what is open, or younger, stays."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import ActionResult, Operation, OperationState, OperatorAction
from sqlqueue_app.operations import portions
from sqlqueue_app.operations.actions import Actor, record_action
from sqlqueue_app.operations.retention import ACTIONS_KEPT, OPERATIONS_KEPT, forget_what_is_old
from sqlqueue_app.tables.clock import database_now
from tests.operations.filling import install
from tests.support.databases import QueueDatabase

SECOND = timedelta(seconds=1)


def operation(state: OperationState, age: timedelta) -> Operation:
    at = database_now(managed_alias()) - age
    finished = None if state == OperationState.RUNNING else at
    return Operation.objects.create(id=uuid.uuid4(), kind="retry", state=state, requested_at=at, finished_at=finished)


def test_what_has_ended_long_ago_is_forgotten(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    install(queue_database)
    monkeypatch.setattr(portions, "DELETED_AT_ONCE", 2)
    now = database_now(managed_alias())
    old = [operation(OperationState.COMPLETED, OPERATIONS_KEPT + SECOND) for _ in range(5)]
    kept = {
        operation(OperationState.RUNNING, OPERATIONS_KEPT * 2).pk,
        operation(OperationState.FAILED, OPERATIONS_KEPT - timedelta(minutes=1)).pk,
    }
    actions = [
        record_action(Actor("anna"), "retry", "x", operation=old[0], now=lambda age=age: now - age)  # type: ignore[misc]
        for age in (ACTIONS_KEPT + SECOND, ACTIONS_KEPT + SECOND, ACTIONS_KEPT + SECOND, ACTIONS_KEPT - SECOND)
    ]

    forget_what_is_old(managed_alias(), now)

    assert set(Operation.objects.values_list("pk", flat=True)) == kept
    (action,) = OperatorAction.objects.all()
    assert (action.pk, action.operation, action.result) == (actions[-1].pk, None, ActionResult.DONE)
