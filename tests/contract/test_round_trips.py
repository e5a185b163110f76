"""Round trips to SQL Server, counted on the line: work per message needs as few as possible."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import transaction

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.round_trips import RoundTrips, counted
from tests.support.tables import address_of, row, rows, sqlserver_cases

pytestmark = pytest.mark.parametrize("case", sqlserver_cases(), indirect=True, ids="-".join)


@pytest.fixture
def line(database: QueueDatabase) -> Iterator[RoundTrips]:
    """The line to the server, with an open session."""
    with counted(database.alias) as line:
        database.connection.ensure_connection()
        line.clear()
        yield line
        assert not line.encrypted, "requests on an encrypted connection cannot be counted: add Encrypt=no to the URL of the server"


def test_send_needs_one_round_trip(line: RoundTrips, queue: QueueTable) -> None:
    queue.send([row()])
    line.clear()
    queue.send([row()])
    assert len(line.requests) == 1, line.requests


def test_send_with_nulls_needs_one_round_trip(line: RoundTrips, queue: QueueTable) -> None:
    queue.send([row()])
    line.clear()
    queue.send([NewRow(row().id, "{}", b"")])
    assert len(line.requests) == 1, line.requests


def test_send_in_a_transaction_needs_one_round_trip(line: RoundTrips, queue: QueueTable) -> None:
    queue.send([row()])
    with transaction.atomic(using=queue.alias):
        queue.send([row()])
        line.clear()
        queue.send([row()])
        assert len(line.requests) == 1, line.requests


def test_thousand_sends_need_few_round_trips(line: RoundTrips, queue: QueueTable) -> None:
    queue.layout()
    line.clear()
    queue.send(rows(1_000))
    assert len(line.requests) <= 5, line.requests
    assert queue.depth().waiting == 1_000


def test_empty_poll_needs_one_round_trip(line: RoundTrips, queue: QueueTable) -> None:
    receiving = receive_transaction(queue)
    assert receiving.receive() is None
    line.clear()
    assert receiving.receive() is None
    assert len(line.requests) == 1, line.requests


@pytest.mark.parametrize("count", [1, 7])
def test_receive_needs_two_round_trips(line: RoundTrips, queue: QueueTable, count: int) -> None:
    queue.send(rows(2 * count))
    receiving = receive_transaction(queue)
    assert len(receiving.receive_many(count)) == count
    receiving.commit()
    line.clear()
    assert len(receiving.receive_many(count)) == count
    receiving.commit()
    assert len(line.requests) == 2, line.requests


def test_receive_with_a_send_needs_three_round_trips(line: RoundTrips, queue: QueueTable) -> None:
    queue.send(rows(2))
    receiving = receive_transaction(queue)
    for _ in range(2):
        line.clear()
        assert receiving.receive() is not None
        queue.send([row()])
        receiving.commit()
    assert len(line.requests) == 3, line.requests


def test_delayed_messages_need_one_round_trip(line: RoundTrips, database: QueueDatabase) -> None:
    planned = PlannedTable(TableKind.DELAYED, address_of(database, "Sales.Delayed"))
    assert install_tables(database.alias, [planned]) == [planned]
    table = DelayedTable(database.alias, planned.address)
    table.insert([NewRow("", "{}", b"x", delay_ms=60_000)])
    line.clear()
    table.insert([NewRow("", "{}", b"x", delay_ms=60_000)])
    assert len(line.requests) == 1, line.requests
    table.seconds_until_due()
    line.clear()
    assert table.seconds_until_due() is not None
    assert len(line.requests) == 1, line.requests
