"""Finding rows by their headers, in many tables at once, on every database and in every layout."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.listing import EVERY, SEARCHED_BODY_BYTES, TableScan, find_rows
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.filling import row
from tests.support.tables import address_of, make_table


def message(number: int, of: str = "c-1") -> NewRow:
    return row({"NServiceBus.MessageId": str(number), "NServiceBus.ConversationId": of})


def test_first_and_last_rows_are_searched(queue: QueueTable, layout: str) -> None:
    queue.send([message(number, "c-1" if number in (0, 5, 9) else "c-2") for number in range(10)])
    first = find_rows(queue.alias, [TableScan(queue.address, 6)], "c-1", limit=10)
    last = find_rows(queue.alias, [TableScan(queue.address, 6, from_end=True)], "c-1", limit=10)
    whole = find_rows(queue.alias, [TableScan(queue.address, 10)], "c-1", limit=10)
    assert [each.row_version for each in first.rows] == [1, 6]
    assert [each.row_version for each in last.rows] == [6, 10]
    assert [set(each.longer) for each in (first, last, whole)] == [{0}, {0}, set()]
    assert [dict(each.longer) for each in (first, last)] == [{0: 7}, {0: 4}], "the first row that was not searched"
    rest = find_rows(queue.alias, [TableScan(queue.address, 6, from_end=True, before=4)], "c-1", limit=10)
    assert ([each.row_version for each in rest.rows], rest.longer) == ([1], {})
    (peeked, *_) = queue.peek(1)
    assert (first.rows[0].id, first.rows[0].headers) == (peeked.id, peeked.headers)


def test_number_of_results_is_limited_and_every_row_can_be_found(queue: QueueTable) -> None:
    queue.send([message(number) for number in range(7)])
    assert len(find_rows(queue.alias, [TableScan(queue.address, 100)], "c-1", limit=3).rows) == 3
    assert len(find_rows(queue.alias, [TableScan(queue.address, 100)], EVERY, limit=100).rows) == 7
    assert find_rows(queue.alias, [TableScan(queue.address, 100)], "%'\"", limit=100).rows == ()


def test_many_tables_are_searched_with_one_statement(queue_database: QueueDatabase) -> None:
    delayed = address_of(queue_database, "Sales.Delayed")
    install_tables(queue_database.alias, [PlannedTable(TableKind.DELAYED, delayed)])
    waiting = message(1)
    DelayedTable(queue_database.alias, delayed).insert([NewRow("1", waiting.headers, b"", delay_ms=9_000) for _ in range(3)])
    made = [make_table(queue_database, name=name) for name in ("Sales", "a\"b'c]d%e", "umsätze")]
    for table in made:
        table.send([message(2)])
    places = [TableScan(delayed, 2, is_delayed=True), *(TableScan(table.address, 10) for table in made)]
    with CaptureQueriesContext(queue_database.connection) as statements:
        found = find_rows(queue_database.alias, places, "c-1", limit=10)
    assert [each.scan for each in found.rows] == [0, 0, 1, 2, 3]
    assert found.longer == {0: 0}
    due = found.rows[0].due
    assert due is not None
    assert abs(due - time.time() - 9) < 60
    assert found.rows[2].due is None
    assert len(statements) == 1
    assert len(find_rows(queue_database.alias, places[1:] * 50, "c-1", limit=10).rows) == 150


def test_search_ignores_letter_case(queue: QueueTable) -> None:
    queue.send([row({"Order": "ABC-42 Zoë"}, b'{"note": "Blue"}'), row({"Order": "abd"}, b"null")])
    for text in ("abc-42", "ABC-42 ZO", "BC-4"):
        assert [each.row_version for each in find_rows(queue.alias, [TableScan(queue.address, 9)], text, limit=9).rows] == [1]
    several = find_rows(queue.alias, [TableScan(queue.address, 9)], "nothing", "ABD", "neither", limit=9)
    assert [each.row_version for each in several.rows] == [2]


def test_search_matches_the_letter_case_on_request(queue: QueueTable) -> None:
    queue.send([row({"Order": "ABC-42 Zoë"}, b"null"), row({"Order": "abd"}, b"null")])
    scans = [TableScan(queue.address, 9)]
    for text, found in (("ABC-42", [1]), ("abc-42", []), ("abd", [2]), ("Abd", [])):
        assert [each.row_version for each in find_rows(queue.alias, scans, text, limit=9, match_case=True).rows] == found


@pytest.mark.parametrize(
    ("body", "text", "is_found"),
    [
        (b'{"note": "Blue shoes"}', "blue SHOES", True),
        ('{"note": "Zoë"}'.encode(), "Zoë", True),
        (b"\xff\x00\xfe order 42 \\ \x80", "order 42 \\", True),
        (b"x" * (SEARCHED_BODY_BYTES - 5) + b"order", "order", True),
        (b"x" * (SEARCHED_BODY_BYTES - 4) + b"order", "order", False),
        (b"", "x", False),
        (b"%", "_", False),
    ],
)
def test_bodies_are_searched_on_request(queue: QueueTable, body: bytes, text: str, is_found: bool) -> None:
    queue.send([row({"a": "b"}, body)])
    scans = [TableScan(queue.address, 9, from_end=True)]
    assert [each.row_version for each in find_rows(queue.alias, scans, text, limit=9, bodies=True).rows] == [1] * is_found
    assert find_rows(queue.alias, scans, text, limit=9).rows == ()


def test_bodies_of_delayed_messages_are_searched(queue_database: QueueDatabase) -> None:
    address = address_of(queue_database, "Sales.Delayed")
    install_tables(queue_database.alias, [PlannedTable(TableKind.DELAYED, address)])
    DelayedTable(queue_database.alias, address).insert([NewRow("1", "{}", b"order 42", delay_ms=9_000)])
    scans = [TableScan(address, 2, is_delayed=True)]
    assert len(find_rows(queue_database.alias, scans, "ORDER 42", limit=10, bodies=True).rows) == 1
    assert find_rows(queue_database.alias, scans, "ORDER 42", limit=10).rows == ()


def test_no_table_is_read_beyond_the_limit(postgresql_database: QueueDatabase) -> None:
    """The rows come from the index on the row version, and the plan reads at most `limit` rows."""
    queue = make_table(postgresql_database)
    queue.send([message(number) for number in range(2_000)])
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {queue.qualified}")
    with CaptureQueriesContext(postgresql_database.connection) as statements:
        find_rows(queue.alias, [TableScan(queue.address, 100, from_end=True)], "no such text", limit=10, bodies=True)
    (statement,) = statements
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + statement["sql"])
        (plan,) = cursor.fetchone()
    scans = [each for each in nodes(plan[0]["Plan"]) if "Relation Name" in each]
    assert {each["Node Type"] for each in scans} <= {"Index Scan", "Index Only Scan"}
    assert max(each["Actual Rows"] + each.get("Rows Removed by Filter", 0) for each in scans) <= 101


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", []):
        yield from nodes(each)


def test_sqlite_reads_a_table_by_its_key_up_to_the_limit(sqlite_database: QueueDatabase) -> None:
    queue = make_table(sqlite_database)
    with CaptureQueriesContext(sqlite_database.connection) as statements:
        find_rows(queue.alias, [TableScan(queue.address, 100, from_end=True)], "x", limit=10, bodies=True)
    with sqlite_database.connection.cursor() as cursor:
        cursor.execute("EXPLAIN QUERY PLAN " + statements[0]["sql"])
        steps = [detail for *_ids, detail in cursor.fetchall()]
    reads = [each for each in steps if "Sales" in each]
    assert reads
    assert all("USING INTEGER PRIMARY KEY" in each or "USING INDEX" in each for each in reads), steps
