"""Finished operations and actions expire; open and recent ones stay."""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timedelta

import pytest
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import (
    ActionResult,
    ConversationEdge,
    FailedMessage,
    FailureGroup,
    FailureStatus,
    GroupFigures,
    MessageFigures,
    Operation,
    OperationState,
    OperatorAction,
    managed_alias,
)
from sqlqueue_app.status import retention
from sqlqueue_app.status.events import Actor, record_action
from sqlqueue_app.status.retention import (
    ACTIONS_KEPT,
    FAILURES_KEPT,
    OPERATIONS_KEPT,
    delete_old_failures,
    delete_old_rollups,
    delete_old_rows,
)
from sqlqueue_app.tables.connections import database_now
from tests.support.databases import QueueDatabase
from tests.support.filling import install

SECOND = timedelta(seconds=1)


def operation(state: OperationState, at: datetime) -> Operation:
    finished = None if state == OperationState.RUNNING else at
    return Operation.objects.create(id=uuid.uuid4(), kind="retry", state=state, requested_at=at, finished_at=finished)


def test_old_finished_operations_and_actions_are_deleted(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    install(queue_database)
    monkeypatch.setattr(retention, "DELETE_BATCH", 2)
    now = database_now(managed_alias())
    old = [operation(OperationState.COMPLETED, now - OPERATIONS_KEPT - SECOND) for _ in range(5)]
    kept = {
        operation(OperationState.RUNNING, now - OPERATIONS_KEPT * 2).pk,
        operation(OperationState.FAILED, now - OPERATIONS_KEPT + timedelta(minutes=1)).pk,
    }
    actions = [
        record_action(Actor("anna"), "retry", "x", operation=old[0], now=lambda age=age: now - age)  # type: ignore[misc]
        for age in (ACTIONS_KEPT + SECOND, ACTIONS_KEPT + SECOND, ACTIONS_KEPT + SECOND, ACTIONS_KEPT - SECOND)
    ]

    delete_old_rows(managed_alias(), now)

    assert set(Operation.objects.values_list("pk", flat=True)) == kept
    (action,) = OperatorAction.objects.all()
    assert (action.pk, action.operation, action.result) == (actions[-1].pk, None, ActionResult.DONE)


def test_fine_rollups_expire_and_daily_rollups_stay(queue_database: QueueDatabase) -> None:
    install(queue_database)
    now = database_now(managed_alias())
    ages = [timedelta(hours=47), timedelta(hours=49), timedelta(days=91), timedelta(days=93), timedelta(days=4000)]
    for age in ages:
        for seconds in (60, 3600, 86400):
            MessageFigures.objects.create(seconds=seconds, at=now - age)
        for seconds in (3600, 86400):
            ConversationEdge.objects.create(seconds=seconds, at=now - age)
            seen = {"first_seen": now, "last_seen": now}
            GroupFigures.objects.create(group_id=uuid.UUID(int=1), seconds=seconds, at=now - age, **seen)

    assert delete_old_rollups(managed_alias(), now) == 4 + 3 * 2

    for model in (MessageFigures, ConversationEdge, GroupFigures):
        left = list(model._default_manager.order_by("seconds").values_list("seconds", flat=True))
        assert left == ([60] if model is MessageFigures else []) + [3600] * 3 + [86400] * 5


def test_messages_that_stay_are_not_read(postgresql_database: QueueDatabase) -> None:
    """Neither to find old messages nor to find out whether their groups are empty."""
    install(postgresql_database)
    now = database_now(managed_alias())
    fields = [each.field for each in CLASSIFIERS.values()]
    shared, own = uuid.UUID(int=1), uuid.UUID(int=2)

    def failure(status: FailureStatus, group: uuid.UUID, at: datetime) -> FailedMessage:
        times = dict.fromkeys(("status_at", "failed_at", "first_failed_at"), at)
        return FailedMessage(pk=uuid.uuid4(), status=status, queue="error", **times, **dict.fromkeys(fields, group))

    FailureGroup.objects.bulk_create([FailureGroup(pk=each, classifier="Message Type") for each in (shared, own)])
    old = now - FAILURES_KEPT - SECOND
    kept = [failure(FailureStatus.UNRESOLVED, shared, old) for _ in range(3_000)]
    gone = [failure(FailureStatus.RESOLVED, each, old) for each in (shared, own)]
    FailedMessage.objects.bulk_create([*kept, *gone])
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute("ANALYZE sqlqueue_app_failedmessage")

    with CaptureQueriesContext(postgresql_database.connection) as statements:
        assert delete_old_failures(managed_alias(), now) == 2

    assert FailedMessage.objects.count() == 3_000
    assert list(FailureGroup.objects.values_list("pk", flat=True)) == [shared]
    asked = [each["sql"] for each in statements if "status" in each["sql"] and "FOR UPDATE" not in each["sql"]]
    with postgresql_database.connection.cursor() as cursor:
        for statement in asked:
            cursor.execute("EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF, SUMMARY OFF) " + statement)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            numbers = re.findall(r"actual rows=([\d.]+)|Rows Removed by Filter: (\d+)", plan)
            assert sum(float(rows or removed) for rows, removed in numbers) <= 100, plan
