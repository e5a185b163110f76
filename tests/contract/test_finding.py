"""Finding rows by what their headers say, in many tables at once, on every database and in every layout."""

from __future__ import annotations

from django.test.utils import CaptureQueriesContext

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.listing import EVERY, TableScan, find_rows
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.filling import row
from tests.support.tables import address_of, make_table


def talk(number: int, of: str = "c-1") -> NewRow:
    return row({"NServiceBus.MessageId": str(number), "NServiceBus.ConversationId": of})


def test_the_first_and_the_last_rows_are_looked_at(queue: QueueTable, layout: str) -> None:
    queue.send([talk(number, "c-1" if number in (0, 5, 9) else "c-2") for number in range(10)])
    first = find_rows(queue.alias, [TableScan(queue.address, 6)], "c-1", most=10)
    last = find_rows(queue.alias, [TableScan(queue.address, 6, from_end=True)], "c-1", most=10)
    whole = find_rows(queue.alias, [TableScan(queue.address, 10)], "c-1", most=10)
    assert [each.row_version for each in first.rows] == [1, 6]
    assert [each.row_version for each in last.rows] == [6, 10]
    assert [set(each.longer) for each in (first, last, whole)] == [{0}, {0}, set()]
    (peeked, *_) = queue.peek(1)
    assert (first.rows[0].id, first.rows[0].headers) == (peeked.id, peeked.headers)


def test_no_more_than_so_many_are_returned_and_every_row_can_be_asked_for(queue: QueueTable) -> None:
    queue.send([talk(number) for number in range(7)])
    assert len(find_rows(queue.alias, [TableScan(queue.address, 100)], "c-1", most=3).rows) == 3
    assert len(find_rows(queue.alias, [TableScan(queue.address, 100)], EVERY, most=100).rows) == 7
    assert find_rows(queue.alias, [TableScan(queue.address, 100)], "%'\"", most=100).rows == ()


def test_many_tables_of_both_kinds_with_one_statement(queue_database: QueueDatabase) -> None:
    delayed = address_of(queue_database, "Sales.Delayed")
    install_tables(queue_database.alias, [PlannedTable(TableKind.DELAYED, delayed)])
    waiting = talk(1)
    DelayedTable(queue_database.alias, delayed).insert([NewRow("1", waiting.headers, b"", delay_ms=9_000) for _ in range(3)])
    made = [make_table(queue_database, name=name) for name in ("Sales", "a\"b'c]d%e", "umsätze")]
    for table in made:
        table.send([talk(2)])
    places = [TableScan(delayed, 2, is_delayed=True), *(TableScan(table.address, 10) for table in made)]
    with CaptureQueriesContext(queue_database.connection) as statements:
        found = find_rows(queue_database.alias, places, "c-1", most=10)
    assert [each.scan for each in found.rows] == [0, 0, 1, 2, 3]
    assert found.longer == {0}
    assert len(statements) == 1
    assert len(find_rows(queue_database.alias, places[1:] * 50, "c-1", most=10).rows) == 150
