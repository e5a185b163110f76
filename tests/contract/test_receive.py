"""Receiving: the lowest row that is not held, in a transaction that takes or returns it."""

from __future__ import annotations

import uuid

import pytest
from django.db import DatabaseError, connections, transaction

from sqlqueue_app.messages.errors import DoomedTransaction, QueueNotFound
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from tests.support.databases import QueueDatabase
from tests.support.tables import elsewhere, execute, make_table, receive_all, row, rows, server_cases


def test_empty_queue_returns_no_row_and_no_transaction(queue: QueueTable) -> None:
    assert receive_transaction(queue).receive() is None
    assert not connections[queue.alias].in_atomic_block


def test_rollback_returns_the_row_to_its_place(queue: QueueTable) -> None:
    queue.send(rows(2))
    receiving = receive_transaction(queue)
    first = receiving.receive()
    receiving.abandon()
    again = receiving.receive()
    receiving.abandon()
    assert first is not None
    assert first == again
    assert receive_all(queue) == [b"0", b"1"]


def test_work_of_the_handler_commits_with_the_receive(queue: QueueTable) -> None:
    queue.send([row(b"first")])
    receiving = receive_transaction(queue)
    receiving.receive()
    queue.send([row(b"by the handler")])
    assert elsewhere(lambda: [peeked.body for peeked in queue.peek(9)]) in ([b"first"], [])
    receiving.check_usable()
    receiving.commit()
    assert receive_all(queue) == [b"by the handler"]


def test_work_of_a_failed_handler_is_undone_and_the_row_stays_ours(queue: QueueTable) -> None:
    queue.send([row(b"first")])
    receiving = receive_transaction(queue)
    receiving.receive()
    queue.send([row(b"by the handler")])
    receiving.undo_handler()
    queue.send([row(b"by the second attempt")])
    receiving.undo_handler()
    queue.send([row(b"failed")])
    receiving.commit()
    assert receive_all(queue) == [b"failed"]


def test_work_of_the_handler_is_rolled_back_with_the_receive(queue: QueueTable) -> None:
    queue.send([row(b"first")])
    receiving = receive_transaction(queue)
    receiving.receive()
    queue.send([row(b"by the handler")])
    receiving.abandon()
    assert receive_all(queue) == [b"first"]


def test_hooks_of_a_committed_handler_run_in_order(queue: QueueTable) -> None:
    queue.send(rows(1))
    receiving = receive_transaction(queue)
    receiving.receive()
    transaction.on_commit(lambda: "undone", using=queue.alias)
    receiving.undo_handler()
    transaction.on_commit(lambda: "one", using=queue.alias)
    with transaction.atomic(using=queue.alias):
        transaction.on_commit(lambda: "two", using=queue.alias)
    assert [hook() for hook in receiving.commit()] == ["one", "two"]


def test_swallowed_database_error_does_not_lose_the_row(queue: QueueTable) -> None:
    queue.send(rows(1))
    receiving = receive_transaction(queue)
    receiving.receive()
    alias = queue.alias
    with pytest.raises(DatabaseError), transaction.atomic(using=alias, savepoint=False), connections[alias].cursor() as cursor:
        # an error that leaves SQL Server's transaction intact
        cursor.execute(f"INSERT INTO {queue.qualified} (Id) VALUES (NULL)")
    with pytest.raises(DoomedTransaction):
        receiving.check_usable()
    receiving.undo_handler()
    receiving.check_usable()
    receiving.abandon()
    assert receive_all(queue) == [b"0"]


@pytest.mark.parametrize("case", server_cases(), indirect=True, ids="-".join)
def test_held_rows_are_skipped(queue: QueueTable) -> None:
    queue.send(rows(3))
    receiving = receive_transaction(queue)
    held = receiving.receive()
    assert held is not None
    # another connection does not wait and gets the others
    assert elsewhere(lambda: receive_all(queue)) == [b"1", b"2"]
    assert elsewhere(lambda: receive_transaction(queue).receive()) is None
    receiving.abandon()
    assert receive_all(queue) == [b"0"]


def test_expired_rows_are_marked(queue: QueueTable) -> None:
    queue.send([row(b"late", time_to_be_received_ms=-1), row(b"fresh", time_to_be_received_ms=3_600_000), row(b"plain")])
    receiving = receive_transaction(queue)
    found = []
    while (received := receiving.receive()) is not None:
        receiving.commit()
        found.append((received.body, received.expired))
    assert found == [(b"late", True), (b"fresh", False), (b"plain", False)]


def test_rows_that_block_a_real_endpoint_are_received(queue: QueueTable, database: QueueDatabase) -> None:
    """A NULL body and headers `null`, as hand-written scripts insert them (docs/internals/wire.md#rows-written-by-hand)."""
    more = ("", "") if database.vendor == "postgresql" else (", Recoverable", ", 1")
    execute(
        database,
        f"INSERT INTO {queue.qualified} (id, headers, body{more[0]}) VALUES (%s, 'null', NULL{more[1]})",
        uuid.uuid4().hex if database.vendor == "sqlite" else str(uuid.uuid4()),
    )
    queue.send([row(b"behind")])

    (first, second) = queue.peek(2)
    assert (first.headers, first.body, first.body_length) == ("null", None, None)
    receiving = receive_transaction(queue)
    received = receiving.receive()
    receiving.commit()
    assert received is not None
    assert (received.headers, received.body) == ("null", None)
    assert receive_all(queue) == [second.body]


def test_text_in_sqlite_columns_for_bytes_and_instants_is_read(sqlite_database: QueueDatabase) -> None:
    queue = make_table(sqlite_database)
    execute(
        sqlite_database,
        f"INSERT INTO {queue.qualified} (Id, Recoverable, Expires, Headers, Body) VALUES ('x', 1, '2026-13-45 9:00', '{{}}', 'é')",
    )
    (peeked,) = queue.peek(1)
    assert (peeked.expires, peeked.body) == (None, "é".encode())
    assert receive_all(queue) == ["é".encode()]


def test_missing_queue_is_reported_by_receive(database: QueueDatabase, layout: str) -> None:
    queue = make_table(database, layout)
    receiving = receive_transaction(queue)
    execute(database, f"DROP TABLE {queue.qualified}")
    with pytest.raises(QueueNotFound, match="Sales"):
        receiving.receive()
    assert not connections[queue.alias].in_atomic_block
    make_table(database, layout)
    queue.send(rows(1))
    received = receiving.receive()
    receiving.commit()
    assert received is not None


def test_several_rows_are_received_in_order_and_commit_together(queue: QueueTable) -> None:
    queue.send(rows(5))
    receiving = receive_transaction(queue)
    assert [received.body for received in receiving.receive_many(3)] == [b"0", b"1", b"2"]
    receiving.abandon()
    assert [received.body for received in receiving.receive_many(4)] == [b"0", b"1", b"2", b"3"]
    receiving.end_message()
    receiving.commit()
    assert [received.body for received in receiving.receive_many(4)] == [b"4"]
    receiving.commit()
    assert receiving.receive_many(4) == []
    assert not connections[queue.alias].in_atomic_block


def test_each_of_several_messages_is_undone_alone(queue: QueueTable) -> None:
    queue.send(rows(3))
    receiving = receive_transaction(queue)
    assert len(receiving.receive_many(3)) == 3
    queue.send([row(b"by the first")])
    receiving.end_message()
    receiving.begin_message()
    queue.send([row(b"by the second, failed")])
    receiving.undo_handler()
    receiving.end_message()
    receiving.begin_message()
    receiving.undo_handler()
    queue.send([row(b"by the third, second attempt")])
    receiving.end_message()
    receiving.check_usable()
    receiving.commit()
    assert receive_all(queue) == [b"by the first", b"by the third, second attempt"]


def test_next_rows_are_received_with_a_commit(queue: QueueTable) -> None:
    queue.send(rows(3))
    receiving = receive_transaction(queue)
    assert len(receiving.receive_many(1)) == 1
    receiving.commit(then_receive=lambda: 1)
    # if the database cannot do this in one round trip, the next receive does it
    assert bool(receiving.rows_ahead) == (queue.dialect.name == "postgresql")
    assert [received.body for received in receiving.receive_many(1)] == [b"1"]
    receiving.commit(then_receive=lambda: 2)
    receiving.give_back()
    assert not connections[queue.alias].in_atomic_block
    assert receive_all(queue) == [b"2"]


def test_hooks_run_before_the_next_receive(queue: QueueTable) -> None:
    queue.send(rows(2))
    receiving = receive_transaction(queue)
    receiving.receive()
    transaction.on_commit(lambda: "hook", using=queue.alias)
    (hook,) = receiving.commit(then_receive=lambda: 1)
    assert hook() == "hook"
    assert not receiving.rows_ahead
    assert receive_all(queue) == [b"1"]


def test_receive_that_was_planned_on_an_empty_table_scans_nothing_after_a_burst(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    receiving = receive_transaction(queue)
    with postgresql_database.connection.cursor() as cursor:
        # The planner then knows that the table has no pages, so that reading all of it costs nothing.
        cursor.execute(f"VACUUM ANALYZE {queue.qualified}")
        for limit in (1, 10):
            # After five executions the server keeps one plan.
            for _ in range(8):
                assert receiving.receive_many(limit) == []
        queue.send(rows(2_000))
        for limit in (1, 10):
            assert len(receiving.receive_many(limit)) == limit
            with receiving.before_message():
                cursor.execute("SELECT name FROM pg_prepared_statements WHERE name LIKE 'sqlqueue_receive_%'")
                names = [name for (name,) in cursor.fetchall()]
                plans = []
                for name in names:
                    cursor.execute(f'EXPLAIN EXECUTE "{name}" (0)')
                    plans.append("\n".join(line for (line,) in cursor.fetchall()))
            receiving.abandon()
            assert len(plans) == 2
            assert all("Tid Scan" in plan and "Seq Scan" not in plan and "Sort" not in plan for plan in plans), plans
