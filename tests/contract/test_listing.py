"""Finding all tables and reading snapshots of them, on every database and in every layout."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.listing import TABLES_PER_STATEMENT, count_expiries, list_tables, snapshot_delayed, snapshot_queues
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.tables import address_of, execute, in_catalog, make_table, row, rows

EXPIRED, LATER = -1_000, 3_600_000
ODD = "a\"b'c]d%e"


def test_snapshot_agrees_with_count_and_peek(queue: QueueTable, layout: str) -> None:
    queue.send([*rows(3), row(time_to_be_received_ms=EXPIRED), row(time_to_be_received_ms=LATER)])
    (found,) = snapshot_queues(queue.alias, [queue.address], 100)
    assert (found.waiting, found.expiring, found.expired, found.span) == (5, 2, 1, 5)
    (head,) = queue.peek(1)
    assert found.head == head.headers
    assert found.written == 5
    queue.purge()
    (empty,) = snapshot_queues(queue.alias, [queue.address], 100)
    assert (empty.waiting, empty.span, empty.head, empty.written) == (0, 0, None, 5)


def test_snapshot_stops_at_its_limit(queue: QueueTable) -> None:
    queue.send(rows(7))
    (found,) = snapshot_queues(queue.alias, [queue.address], 4)
    assert (found.waiting, found.span) == (4, 7)


def test_expiries_are_counted_beyond_the_limit(queue: QueueTable, layout: str) -> None:
    queue.send([*rows(5), row(time_to_be_received_ms=EXPIRED), row(time_to_be_received_ms=LATER)])
    assert count_expiries(queue.alias, [queue.address], 3) == [(2, 1)]


def test_tables_are_listed_with_their_layouts(queue: QueueTable, database: QueueDatabase) -> None:
    found = {table.address: table for table in list_tables(queue.alias)}
    listed = found[in_catalog(database, queue.address)]
    assert listed.layout == queue.layout()
    assert not listed.is_delayed


def test_many_tables_need_few_statements(queue_database: QueueDatabase) -> None:
    made = [make_table(queue_database, name=name) for name in ("Sales", "Bills", ODD, "umsätze", "SALES 2")]
    for number, table in enumerate(made):
        table.send(rows(number))
    addresses = [table.address for table in made]
    with CaptureQueriesContext(queue_database.connection) as statements:
        snapshots = snapshot_queues(queue_database.alias, addresses, 100)
        listed = {table.address for table in list_tables(queue_database.alias)}
    assert {in_catalog(queue_database, address) for address in addresses} <= listed
    assert [each.waiting for each in snapshots] == [0, 1, 2, 3, 4]
    assert len(statements) == 2
    assert [each.waiting for each in snapshot_queues(queue_database.alias, addresses * (TABLES_PER_STATEMENT // 4), 100)] == [
        0, 1, 2, 3, 4
    ] * (TABLES_PER_STATEMENT // 4)  # fmt: skip


def test_delayed_tables_are_recognised_and_counted(queue_database: QueueDatabase) -> None:
    address = address_of(queue_database, "Sales.Delayed")
    install_tables(queue_database.alias, [PlannedTable(TableKind.DELAYED, address)])
    early = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    DelayedTable(queue_database.alias, address).insert(
        [NewRow("1", "{}", b"", due=early), NewRow("2", "{}", b"", delay_ms=LATER), NewRow("3", "{}", b"", delay_ms=LATER)]
    )
    (found,) = [table for table in list_tables(queue_database.alias) if table.address == in_catalog(queue_database, address)]
    assert found.is_delayed
    assert found.layout is None
    (snapshot,) = snapshot_delayed(queue_database.alias, [address], 100)
    assert (snapshot.waiting, snapshot.overdue) == (3, 1)
    assert snapshot.first_due == pytest.approx(early.timestamp(), abs=0.01)
    assert [(each.waiting, each.overdue) for each in snapshot_delayed(queue_database.alias, [address], 2)] == [(2, 1)]


def test_other_tables_are_not_listed(queue_database: QueueDatabase) -> None:
    execute(queue_database, "CREATE TABLE letters (headers varchar(10), body varchar(10))")
    execute(queue_database, "CREATE TABLE notes (id int, text varchar(10))")
    try:
        assert not {"letters", "notes"} & {table.address.table for table in list_tables(queue_database.alias)}
    finally:
        execute(queue_database, "DROP TABLE letters")
        execute(queue_database, "DROP TABLE notes")


def test_missing_table_is_an_error(queue_database: QueueDatabase) -> None:
    there = make_table(queue_database)
    with pytest.raises(DatabaseError):
        snapshot_queues(queue_database.alias, [there.address, address_of(queue_database, "gone")], 10)
