"""Managed tables that our own statements write: Django's ORM finds every row, and our statements find every row of the ORM."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from sqlqueue_app.messages.errors import ConstraintViolation
from sqlqueue_app.models import DistributedTransaction, HandledMessage, TwoPhaseCoordinator
from sqlqueue_app.tables.managed import HandledTable, TransactionLog
from tests.support.databases import QueueDatabase

KEY, OTHER = uuid.UUID("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"), uuid.UUID("ffffffff-0000-4000-8000-abcdefabcdef")


@pytest.fixture
def handled(queue_database: QueueDatabase) -> HandledTable:
    return HandledTable(queue_database.alias, HandledMessage._meta.db_table)


@pytest.fixture
def log(queue_database: QueueDatabase) -> TransactionLog:
    alias = queue_database.alias
    return TransactionLog(alias, DistributedTransaction._meta.db_table, TwoPhaseCoordinator._meta.db_table, kept_in=alias)


def test_remembered_id_is_found_by_the_orm(handled: HandledTable) -> None:
    assert handled.exists()
    with transaction.atomic(using=handled.alias):
        assert handled.remember(KEY, "Sales")
        assert not handled.remember(KEY, "Sales")
        assert handled.remember(OTHER, "Sales")

    rows = HandledMessage.objects.using(handled.alias)
    assert {row.id for row in rows.all()} == {KEY, OTHER}
    assert rows.get(pk=KEY).queue == "Sales"
    assert abs(rows.get(pk=KEY).handled_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_id_written_by_the_orm_is_found(handled: HandledTable) -> None:
    HandledMessage.objects.using(handled.alias).create(id=KEY, queue="Sales", handled_at=datetime.now(UTC))

    with transaction.atomic(using=handled.alias):
        assert not handled.remember(KEY, "Sales")


def test_old_ids_are_deleted_oldest_first(handled: HandledTable) -> None:
    rows, now = HandledMessage.objects.using(handled.alias), datetime.now(UTC)
    for key, queue, hours in ((KEY, "Sales", 3), (OTHER, "Sales", 2), (uuid.uuid4(), "Sales", 0), (uuid.uuid4(), "Billing", 3)):
        rows.create(id=key, queue=queue, handled_at=now - timedelta(hours=hours))

    assert handled.forget("Sales", 3600, 1) == 1
    assert not rows.filter(pk=KEY).exists()
    assert handled.forget("Sales", 3600, 10) == 1
    assert not rows.filter(pk=OTHER).exists()
    assert rows.count() == 2


def test_coordinator_is_the_row_that_the_orm_returns(log: TransactionLog) -> None:
    assert not log.has_coordinator()
    made = log.coordinator()

    assert TwoPhaseCoordinator.objects.using(log.alias).get().id == made
    again = TransactionLog(log.alias, DistributedTransaction._meta.db_table, TwoPhaseCoordinator._meta.db_table, kept_in=log.alias)
    assert again.has_coordinator()
    assert again.coordinator() == made


def test_recorded_transaction_is_found_by_the_orm(log: TransactionLog) -> None:
    with transaction.atomic(using=log.alias):
        log.record(KEY, "Sales", ["orders", "stock"])

    row = DistributedTransaction.objects.using(log.alias).get(pk=KEY)
    assert (row.queue, row.branches) == ("Sales", ["orders", "stock"])
    assert log.knows(KEY)
    assert not log.knows(OTHER)
    assert log.is_committed(KEY) is True
    assert log.is_committed(OTHER) is False
    assert not DistributedTransaction.objects.using(log.alias).filter(pk=OTHER).exists()
    with pytest.raises(ConstraintViolation), transaction.atomic(using=log.alias):
        log.record(KEY, "Sales", [])
