"""What a real database refuses comes as our kind, by its code; the driver's error is the cause."""

from __future__ import annotations

import threading

import pytest
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.messages.errors import (
    CannotConnect,
    ConnectionLost,
    ConstraintViolation,
    DatabaseError,
    Deadlock,
    DoomedTransaction,
    LockTimeout,
    QueueNotFound,
    SerializationFailure,
    TransientError,
)
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.tables import address_of, elsewhere, execute, fails, held_elsewhere, make_table, receive_all, row, rows
from tests.support.waiting import join_all, poll_until


def run(connection: BaseDatabaseWrapper, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_a_missing_table(queue: QueueTable, database: QueueDatabase) -> None:
    queue.send(rows(1))
    execute(database, f"DROP TABLE {queue.qualified}")
    for work in (lambda: queue.send(rows(1)), queue.purge, lambda: queue.purge_expired(1)):
        error = fails(QueueNotFound, work)
        assert "Sales" in str(error)


def test_a_missing_table_inside_of_a_transaction(queue: QueueTable, database: QueueDatabase) -> None:
    queue.send(rows(1))
    execute(database, f"DROP TABLE {queue.qualified}")
    with pytest.raises(QueueNotFound, match="Sales"), transaction.atomic(using=queue.alias):
        queue.send(rows(1))


def test_a_missing_schema(postgresql_database: QueueDatabase) -> None:
    queue = QueueTable(postgresql_database.alias, address_of(postgresql_database, "Sales", "nowhere"))
    with pytest.raises(QueueNotFound, match="nowhere"):
        queue.send(rows(1))
    fails(QueueNotFound, queue.purge)


def test_a_constraint(queue: QueueTable, database: QueueDatabase) -> None:
    execute(database, f"CREATE UNIQUE INDEX once ON {queue.qualified} (Id)")
    sent = row()
    queue.send([sent])
    fails(ConstraintViolation, lambda: queue.send([sent]))
    # outside of a transaction an error leaves nothing behind
    queue.send(rows(1))
    assert queue.depth().waiting == 2


def test_a_transaction_that_django_gave_up(queue: QueueTable) -> None:
    """The error that broke it says nothing of the statement that comes after: a missing table there is no missing queue."""
    with transaction.atomic(using=queue.alias):
        with pytest.raises(Exception, match="no_such_table"), transaction.atomic(using=queue.alias, savepoint=False):
            run(connections[queue.alias], "SELECT * FROM no_such_table")
        fails(DoomedTransaction, lambda: queue.send(rows(1)))


def test_a_failed_transaction(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    queue.send(rows(1))
    with transaction.atomic(using=queue.alias):
        with pytest.raises(Exception, match="no_such_table"):
            run(connections[queue.alias], "SELECT * FROM no_such_table")
        fails(DoomedTransaction, lambda: queue.send(rows(1)))
        transaction.set_rollback(True, using=queue.alias)


def test_a_lock_timeout(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    queue.send(rows(1))
    with held_elsewhere(queue, f"LOCK TABLE {queue.qualified}"):
        execute(postgresql_database, "SET lock_timeout = '20ms'")
        error = fails(LockTimeout, queue.purge)
        fails(LockTimeout, receive_transaction(queue).receive)
        assert not connections[queue.alias].in_atomic_block
    assert isinstance(error, TransientError)
    assert queue.purge() == 1


def test_a_lock_timeout_on_sqlite(sqlite_database: QueueDatabase) -> None:
    queue = make_table(sqlite_database)
    queue.send(rows(1))
    with held_elsewhere(queue, f"DELETE FROM {queue.qualified}"):
        execute(sqlite_database, "PRAGMA busy_timeout = 20")
        fails(LockTimeout, lambda: queue.send(rows(1)))
        fails(LockTimeout, receive_transaction(queue).receive)
        # reading goes on beside a writer
        assert queue.depth().waiting == 1
    assert receive_all(queue) == [b"0"]


def test_a_deadlock(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    queue.send(rows(1))
    execute(postgresql_database, "CREATE TABLE other (id int)")
    holding = threading.Event()

    def take_queue_then_other() -> None:
        try:
            with transaction.atomic(using=queue.alias):
                run(connections[queue.alias], "SET LOCAL deadlock_timeout = '60s'")
                queue.purge()
                holding.set()
                run(connections[queue.alias], "LOCK TABLE other")
                transaction.set_rollback(True, using=queue.alias)
        finally:
            connections.close_all()

    thread = threading.Thread(target=take_queue_then_other, name="opponent")
    with transaction.atomic(using=queue.alias):
        # who looks for deadlocks first is the victim
        execute(postgresql_database, "SET LOCAL deadlock_timeout = '20ms'")
        execute(postgresql_database, "LOCK TABLE other")
        thread.start()
        assert holding.wait(60)
        # a session looks once in each wait: before its opponent waits too there is no deadlock to be found, and none later
        waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'other'::regclass AND NOT granted"
        poll_until(lambda: execute(postgresql_database, waiting) == [(1,)], 60, what="the opponent waits for our lock")
        fails(Deadlock, queue.purge)
        transaction.set_rollback(True, using=queue.alias)
    join_all([thread])
    assert receive_all(queue) == [b"0"]


def test_a_serialization_failure(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    queue.send(rows(1))
    with transaction.atomic(using=queue.alias):
        execute(postgresql_database, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        execute(postgresql_database, f"SELECT * FROM {queue.qualified}")
        elsewhere(queue.purge)
        fails(SerializationFailure, queue.purge)
        transaction.set_rollback(True, using=queue.alias)


def cut(database: QueueDatabase) -> None:
    """End the session of the calling thread's connection, as a restart of the server does."""
    ((pid,),) = execute(database, "SELECT pg_backend_pid()")
    elsewhere(lambda: execute(database, f"SELECT pg_terminate_backend({pid}, 10000)"))


def test_a_connection_that_was_cut(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    queue.send(rows(1))
    for work in (lambda: queue.send(rows(1)), queue.purge, queue.depth, lambda: queue.peek(1), receive_transaction(queue).receive):
        cut(postgresql_database)
        error = fails(ConnectionLost, work)
        assert isinstance(error, TransientError)
        connections[queue.alias].close()
    assert receive_all(queue) == [b"0"]


def test_a_connection_that_was_cut_in_the_middle_of_a_receive(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    queue.send(rows(1))
    receiving = receive_transaction(queue)
    for finish in (receiving.undo_handler, receiving.commit, lambda: queue.send(rows(1))):
        assert receiving.receive() is not None
        cut(postgresql_database)
        fails(ConnectionLost, finish)
        receiving.abandon()
        connections[queue.alias].close()
        assert not connections[queue.alias].in_atomic_block
    assert receive_all(queue) == [b"0"]


def test_a_server_that_is_not_there(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    connections[queue.alias].close()
    good = connections.settings[queue.alias]["HOST"]
    connections.settings[queue.alias]["HOST"] = "/nonexistent"
    try:
        fails(ConnectionLost, lambda: queue.send(rows(1)))
        fails(ConnectionLost, receive_transaction(queue).receive)
    finally:
        connections.settings[queue.alias]["HOST"] = good


def test_a_file_that_cannot_be_opened(sqlite_database: QueueDatabase) -> None:
    queue = make_table(sqlite_database)
    connections[queue.alias].close()
    good = connections.settings[queue.alias]["NAME"]
    connections.settings[queue.alias]["NAME"] = "/nonexistent/queues.sqlite3"
    try:
        fails(CannotConnect, lambda: queue.send(rows(1)))
        fails(CannotConnect, receive_transaction(queue).receive)
    finally:
        connections.settings[queue.alias]["NAME"] = good


def test_an_error_without_a_kind_is_ours_too(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    execute(postgresql_database, f"ALTER TABLE {queue.qualified} ADD CHECK (1 / length(headers) > 0)")
    error = fails(DatabaseError, lambda: queue.send([row(headers="")]))
    assert "Sales" in str(error)


def test_the_id_of_a_row_is_checked_by_the_database(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    bad = NewRow("no uuid", "{}", b"")
    fails(DatabaseError, lambda: queue.send([bad]))
