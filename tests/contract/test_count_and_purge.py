"""Reading a queue takes no row; numbers are exact up to a limit; a purge deletes what its name states."""

from __future__ import annotations

import pytest
from django.db import transaction

from sqlqueue_app.tables.queue import Depth, QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from tests.support.databases import QueueDatabase
from tests.support.tables import elsewhere, execute, make_table, receive_all, row, rows, server_cases

EXPIRED = -1_000
LATER = 3_600_000


def test_peek_takes_nothing(queue: QueueTable) -> None:
    queue.send(rows(3))
    assert [peeked.body for peeked in queue.peek(2)] == [b"0", b"1"]
    assert [peeked.body for peeked in queue.peek(9)] == [b"0", b"1", b"2"]
    assert queue.depth().waiting == 3


def test_peek_continues_after_a_row(queue: QueueTable) -> None:
    queue.send(rows(5))
    first, second = queue.peek(2)
    assert first.row_version < second.row_version
    assert [peeked.body for peeked in queue.peek(2, after=second.row_version)] == [b"2", b"3"]


@pytest.mark.parametrize("name", ["estimate", "waiting", "snapshot"])
def test_length_is_estimated_without_a_scan(sqlite_database: QueueDatabase, name: str) -> None:
    queue = make_table(sqlite_database)
    parts = {"number": "0"} if name == "snapshot" else {}
    statement = queue.dialect.statement(name, table=queue.qualified, **parts)
    with sqlite_database.connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {statement.sql}", statement.bind({"limit": 100, "name": queue.address.table}))
        steps = [detail for *_ids, detail in cursor.fetchall()]
    # The head is read by the key up to the limit.
    scans = [each for each in steps if each.startswith("SCAN") and queue.address.table in each]
    assert len(scans) == 2 * (name == "snapshot"), steps


def test_peek_truncates_bodies(queue: QueueTable) -> None:
    queue.send([row(b"0123456789")])
    (peeked,) = queue.peek(1, body_limit=4)
    assert (peeked.body, peeked.body_length) == (b"0123", 10)


@pytest.mark.parametrize("case", server_cases(), indirect=True, ids="-".join)
def test_peek_and_count_do_not_wait_for_held_rows(queue: QueueTable) -> None:
    queue.send(rows(2))
    receiving = receive_transaction(queue)
    receiving.receive()
    assert b"1" in [peeked.body for peeked in elsewhere(lambda: queue.peek(9))]
    assert elsewhere(queue.depth).waiting in (1, 2)
    assert elsewhere(lambda: queue.depth(limit=1)).waiting in (1, 2)
    receiving.abandon()


def test_empty_queue_counts_zero(queue: QueueTable) -> None:
    assert queue.depth() == Depth(0, 0, 0, exact=True)
    assert queue.depth(limit=0) == Depth(0, 0, 0, exact=True)


def test_numbers_are_exact_up_to_the_limit(queue: QueueTable) -> None:
    queue.send([*rows(2), row(time_to_be_received_ms=EXPIRED), row(time_to_be_received_ms=LATER)])
    assert queue.depth(limit=4) == Depth(waiting=4, expiring=2, expired=1, exact=True)


def test_estimate_beyond_the_limit_uses_the_ends_of_the_index(queue: QueueTable, layout: str) -> None:
    expiring = [row(time_to_be_received_ms=EXPIRED), row(time_to_be_received_ms=LATER)]
    queue.send([*rows(4), *expiring])
    depth = queue.depth(limit=3)
    assert (depth.waiting, depth.exact) == (6, False)
    # without an index on Expires only the head of the queue is read
    assert (depth.expiring, depth.expired) == ((0, 0) if layout == "nservicebus" else (2, 1))


def test_numbers_of_expiring_rows_are_bounded(queue: QueueTable) -> None:
    queue.send([row(time_to_be_received_ms=EXPIRED) for _ in range(6)])
    depth = queue.depth(limit=3)
    assert (depth.expiring, depth.expired) == (4, 4)


def test_estimate_is_never_less_than_the_counted_rows(queue: QueueTable, database: QueueDatabase) -> None:
    queue.send(rows(8))
    seven = [peeked.row_version for peeked in queue.peek(8)][1:-1]
    key = "seq" if database.vendor == "postgresql" else "RowVersion"
    execute(database, f"DELETE FROM {queue.qualified} WHERE {key} IN ({', '.join(map(str, seven))})")
    depth = queue.depth(limit=1)
    # two rows are left; gaps make the estimate larger, so it is marked as inexact
    assert (depth.waiting, depth.exact) == (8, False)
    assert queue.depth(limit=2) == Depth(2, 0, 0, exact=True)


def test_purge_deletes_everything(queue: QueueTable) -> None:
    queue.send(rows(5))
    assert queue.purge() == 5
    assert queue.purge() == 0
    assert elsewhere(queue.depth).waiting == 0


def test_expired_rows_are_purged_in_batches(queue: QueueTable) -> None:
    queue.send([*rows(2), *(row(time_to_be_received_ms=EXPIRED) for _ in range(5)), row(time_to_be_received_ms=LATER)])
    assert [queue.purge_expired(2) for _ in range(4)] == [2, 2, 1, 0]
    assert queue.depth() == Depth(waiting=3, expiring=1, expired=0, exact=True)


@pytest.mark.parametrize("case", server_cases(), indirect=True, ids="-".join)
def test_purge_of_expired_rows_skips_held_ones(queue: QueueTable) -> None:
    queue.send([row(b"held", time_to_be_received_ms=EXPIRED), row(time_to_be_received_ms=EXPIRED)])
    receiving = receive_transaction(queue)
    receiving.receive()
    assert elsewhere(lambda: queue.purge_expired(10)) == 1
    receiving.abandon()
    assert receive_all(queue) == [b"held"]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles", "UTC"])
@pytest.mark.parametrize("layout", ["ours", "nservicebus"])
def test_expiry_is_independent_of_the_session_time_zone(postgresql_database: QueueDatabase, layout: str, zone: str) -> None:
    queue = make_table(postgresql_database, layout)
    execute(postgresql_database, f"SET TIME ZONE '{zone}'")
    queue.send([row(b"late", time_to_be_received_ms=-1), row(b"fresh", time_to_be_received_ms=60_000)])
    late, fresh = queue.peek(2)
    assert (late.expired, fresh.expired) == (True, False)
    assert late.expires is not None
    assert fresh.expires is not None
    assert 60 <= (fresh.expires - late.expires).total_seconds() < 61
    # another session sees the same instants
    assert [peeked.expires for peeked in elsewhere(lambda: queue.peek(2))] == [late.expires, fresh.expires]
    assert queue.depth() == Depth(2, 2, 1, exact=True)
    assert queue.purge_expired(10) == 1
    assert execute(postgresql_database, "SHOW TIME ZONE") == [(zone,)]


def test_expiry_uses_the_current_time_in_a_long_transaction(postgresql_database: QueueDatabase) -> None:
    """now() is constant in a transaction; a message that expires during it must count as expired."""
    queue = make_table(postgresql_database)
    with transaction.atomic(using=queue.alias):
        execute(postgresql_database, "SELECT 1")
        elsewhere(lambda: queue.send([row(time_to_be_received_ms=0)]))
        assert queue.peek(1)[0].expired is True


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("name", ["purge_expired", "count_expiring"])
def test_index_on_expires_is_used_if_nothing_expires(postgresql_database: QueueDatabase, name: str, analyzed: bool) -> None:
    """The planner used to assume that a third of the rows had expired, and read a million waiting messages every five minutes."""
    queue = make_table(postgresql_database)
    queue.send(rows(3000))
    if analyzed:
        execute(postgresql_database, f"ANALYZE {queue.qualified}")
    statement = queue.dialect.statement(name, table=queue.qualified)
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement.sql}", statement.bind({"limit": 100}))
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Seq Scan" not in plan
    assert "_Expires" in plan
