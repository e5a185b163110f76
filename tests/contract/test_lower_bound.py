"""The lower bound of a PostgreSQL receive hides no row: neither a returned one nor one that was committed late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import transaction

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages import QueueAddress
from sqlqueue_app.policies.polling import LowerBound
from sqlqueue_app.tables.connections import SecondConnections
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.postgresql_receive import PostgresReceiveTransaction
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    def __init__(self, database: QueueDatabase) -> None:
        address = QueueAddress("Sales", "public", form="postgresql")
        install_tables(database.alias, [PlannedTable(TableKind.QUEUE, address)])
        self.table = QueueTable(database.alias, address)
        self.clock = Clock()
        self.second = SecondConnections(database.alias)
        self.receiver = PostgresReceiveTransaction(self.table, self.clock)
        first = self.receiver.connection
        with self.second.used():
            self.other = PostgresReceiveTransaction(self.table, self.clock)
            assert self.other.connection is not first

    def send(self, *bodies: str) -> None:
        self.table.send([NewRow(f"00000000-0000-0000-0000-{int(body):012}", "{}", body.encode()) for body in bodies])

    def take(self) -> str | None:
        row = self.receiver.receive()
        self.receiver.commit()
        return None if row is None or row.body is None else row.body.decode()


@pytest.fixture
def bench(postgresql_database: QueueDatabase) -> Iterator[Bench]:
    made = Bench(postgresql_database)
    yield made
    with made.second.used():
        made.other.abandon()
    made.second.close()


def hold_first(bench: Bench) -> None:
    """Another session receives the first row and has not committed yet."""
    with bench.second.used():
        row = bench.other.receive()
    assert row is not None
    assert row.body == b"1"


def give_back(bench: Bench) -> None:
    with bench.second.used():
        bench.other.abandon()


def test_returned_row_is_found_if_there_is_no_other(bench: Bench) -> None:
    bench.send("1", "2", "3")
    hold_first(bench)
    assert [bench.take(), bench.take()] == ["2", "3"]
    give_back(bench)
    assert [bench.take(), bench.take()] == ["1", None]


def test_returned_row_is_found_first_after_the_next_rescan(bench: Bench) -> None:
    bench.send("1", "2", "3", "4", "5")
    hold_first(bench)
    assert bench.take() == "2"
    give_back(bench)
    assert bench.take() == "3"
    bench.clock.now += 0.1
    assert [bench.take(), bench.take()] == ["1", "4"]


def test_row_committed_late_is_found(bench: Bench) -> None:
    with bench.second.used(), transaction.atomic(using=bench.table.alias):
        bench.send("1")
        # Sent later and committed earlier, on the first connection.
        connection = bench.receiver.connection
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO \"Sales\" (id, headers, body) VALUES (gen_random_uuid(), '{}', 'x')")
        row = bench.receiver.receive()
        assert row is not None
        assert row.body == b"x"
        bench.receiver.commit()
    assert [bench.take(), bench.take()] == ["1", None]


def test_row_returned_by_the_same_receiver_is_received_again_at_once(bench: Bench) -> None:
    bench.send("1", "2", "3")
    assert bench.take() == "1"
    row = bench.receiver.receive()
    assert row is not None
    assert row.body == b"2"
    bench.receiver.abandon()
    assert [bench.take(), bench.take(), bench.take()] == ["2", "3", None]


def test_bound_is_used(bench: Bench) -> None:
    bench.send("1", "2", "3")
    assert bench.take() == "1"
    with bench.receiver.connection.cursor() as cursor:
        # Only a test can create a row below the bound: it stays hidden until the next rescan.
        cursor.execute("INSERT INTO \"Sales\" (id, headers, body, seq) VALUES (gen_random_uuid(), '{}', '0', 0)")
    assert bench.take() == "2"
    bench.clock.now += 0.1
    assert bench.take() == "0"


def test_retried_message_is_found_beyond_the_bound(bench: Bench) -> None:
    bench.send("1", "2")
    assert [bench.take(), bench.take()] == ["1", "2"]
    bench.send("1")  # a retry inserts the row again
    assert [bench.take(), bench.take()] == ["1", None]


def test_returned_row_is_visible_at_once_with_a_shared_bound(bench: Bench) -> None:
    shared = LowerBound()
    bench.receiver = PostgresReceiveTransaction(bench.table, bench.clock, bound=shared)
    first = bench.receiver.connection
    with bench.second.used():
        bench.other = PostgresReceiveTransaction(bench.table, bench.clock, bound=shared)
        assert bench.other.connection is not first
    bench.send("1", "2", "3", "4")
    hold_first(bench)
    assert [bench.take(), bench.take()] == ["2", "3"]
    give_back(bench)
    assert [bench.take(), bench.take()] == ["1", "4"]
