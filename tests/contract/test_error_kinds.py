"""Errors of a real database have our kinds, by their codes; the driver's error is the cause."""

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


def test_missing_table_is_queue_not_found(queue: QueueTable, database: QueueDatabase) -> None:
    queue.send(rows(1))
    execute(database, f"DROP TABLE {queue.qualified}")
    for work in (lambda: queue.send(rows(1)), queue.purge, lambda: queue.purge_expired(1)):
        error = fails(QueueNotFound, work)
        assert "Sales" in str(error)


def test_missing_table_in_a_transaction_is_queue_not_found(queue: QueueTable, database: QueueDatabase) -> None:
    queue.send(rows(1))
    execute(database, f"DROP TABLE {queue.qualified}")
    with pytest.raises(QueueNotFound, match="Sales"), transaction.atomic(using=queue.alias):
        queue.send(rows(1))


def test_missing_schema_is_queue_not_found(postgresql_database: QueueDatabase) -> None:
    queue = QueueTable(postgresql_database.alias, address_of(postgresql_database, "Sales", "nowhere"))
    with pytest.raises(QueueNotFound, match="nowhere"):
        queue.send(rows(1))
    fails(QueueNotFound, queue.purge)


def test_violated_constraint_has_its_kind(queue: QueueTable, database: QueueDatabase) -> None:
    execute(database, f"CREATE UNIQUE INDEX once ON {queue.qualified} (Id)")
    sent = row()
    queue.send([sent])
    fails(ConstraintViolation, lambda: queue.send([sent]))
    # outside a transaction an error leaves nothing behind
    queue.send(rows(1))
    assert queue.depth().waiting == 2


def test_transaction_that_django_gave_up_is_doomed(queue: QueueTable) -> None:
    """The error that broke it is unrelated to the next statement: a missing table there is not a missing queue."""
    with transaction.atomic(using=queue.alias):
        with pytest.raises(Exception, match="no_such_table"), transaction.atomic(using=queue.alias, savepoint=False):
            run(connections[queue.alias], "SELECT * FROM no_such_table")
        fails(DoomedTransaction, lambda: queue.send(rows(1)))


def test_failed_transaction_is_doomed(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    queue.send(rows(1))
    with transaction.atomic(using=queue.alias):
        with pytest.raises(Exception, match="no_such_table"):
            run(connections[queue.alias], "SELECT * FROM no_such_table")
        fails(DoomedTransaction, lambda: queue.send(rows(1)))
        transaction.set_rollback(True, using=queue.alias)


def test_lock_timeout_has_its_kind(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    queue.send(rows(1))
    with held_elsewhere(queue, f"LOCK TABLE {queue.qualified}"):
        execute(postgresql_database, "SET lock_timeout = '20ms'")
        error = fails(LockTimeout, queue.purge)
        fails(LockTimeout, receive_transaction(queue).receive)
        assert not connections[queue.alias].in_atomic_block
    assert isinstance(error, TransientError)
    assert queue.purge() == 1


def test_lock_timeout_on_sqlite_has_its_kind(sqlite_database: QueueDatabase) -> None:
    queue = make_table(sqlite_database)
    queue.send(rows(1))
    with held_elsewhere(queue, f"DELETE FROM {queue.qualified}"):
        execute(sqlite_database, "PRAGMA busy_timeout = 20")
        fails(LockTimeout, lambda: queue.send(rows(1)))
        fails(LockTimeout, receive_transaction(queue).receive)
        # reading continues beside a writer
        assert queue.depth().waiting == 1
    assert receive_all(queue) == [b"0"]


def test_deadlock_has_its_kind(postgresql_database: QueueDatabase) -> None:
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
        # the session that checks for deadlocks first is the victim
        execute(postgresql_database, "SET LOCAL deadlock_timeout = '20ms'")
        execute(postgresql_database, "LOCK TABLE other")
        thread.start()
        assert holding.wait(60)
        # a session checks once per wait: too early there is no deadlock yet, and no later check finds it
        waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'other'::regclass AND NOT granted"
        poll_until(lambda: execute(postgresql_database, waiting) == [(1,)], 60, what="the opponent waits for our lock")
        fails(Deadlock, queue.purge)
        transaction.set_rollback(True, using=queue.alias)
    join_all([thread])
    assert receive_all(queue) == [b"0"]


def test_serialization_failure_has_its_kind(postgresql_database: QueueDatabase) -> None:
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


def test_cut_connection_is_connection_lost(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    queue.send(rows(1))
    for work in (lambda: queue.send(rows(1)), queue.purge, queue.depth, lambda: queue.peek(1), receive_transaction(queue).receive):
        cut(postgresql_database)
        error = fails(ConnectionLost, work)
        assert isinstance(error, TransientError)
        connections[queue.alias].close()
    assert receive_all(queue) == [b"0"]


def test_connection_cut_during_a_receive_is_connection_lost(postgresql_database: QueueDatabase) -> None:
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


def test_unreachable_server_is_connection_lost(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    connections[queue.alias].close()
    good = connections.settings[queue.alias]["HOST"]
    connections.settings[queue.alias]["HOST"] = "/nonexistent"
    try:
        fails(ConnectionLost, lambda: queue.send(rows(1)))
        fails(ConnectionLost, receive_transaction(queue).receive)
    finally:
        connections.settings[queue.alias]["HOST"] = good


def test_file_that_cannot_be_opened_is_cannot_connect(sqlite_database: QueueDatabase) -> None:
    queue = make_table(sqlite_database)
    connections[queue.alias].close()
    good = connections.settings[queue.alias]["NAME"]
    connections.settings[queue.alias]["NAME"] = "/nonexistent/queues.sqlite3"
    try:
        fails(CannotConnect, lambda: queue.send(rows(1)))
        fails(CannotConnect, receive_transaction(queue).receive)
    finally:
        connections.settings[queue.alias]["NAME"] = good


def test_other_error_is_a_database_error(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    execute(postgresql_database, f"ALTER TABLE {queue.qualified} ADD CHECK (1 / length(headers) > 0)")
    error = fails(DatabaseError, lambda: queue.send([row(headers="")]))
    assert "Sales" in str(error)


def test_database_checks_the_id_of_a_row(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    bad = NewRow("no uuid", "{}", b"")
    fails(DatabaseError, lambda: queue.send([bad]))
