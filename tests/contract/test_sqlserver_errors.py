"""Errors of SQL Server have our kinds, by the server's number, with every available driver."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import Error as DjangoDatabaseError, connections, transaction

from sqlqueue_app.dialects.dialect import Rendered, dialect
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
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
)
from sqlqueue_app.tables.connections import database_errors, fetch_all
from sqlqueue_app.tables.installation import drop_queue, install_tables
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from tests.support import sqlserver
from tests.support.databases import QueueDatabase
from tests.support.provisioning import point
from tests.support.round_trips import line_to
from tests.support.tables import elsewhere, execute, fails, held_elsewhere, make_table, receive_all, rows
from tests.support.waiting import join_all, poll_until

pytestmark = pytest.mark.skipif(not sqlserver.is_named(), reason=f"{sqlserver.URL_VARIABLE} is not set")

PARENT = "CREATE TABLE parent (id int NOT NULL PRIMARY KEY)"
CHILD = "CREATE TABLE child (id int NOT NULL UNIQUE REFERENCES parent (id), short varchar(2))"
# number: preparation, failing statement, kind
ERRORS: dict[int, tuple[tuple[str, ...], str, type[DatabaseError]]] = {
    207: ((PARENT,), "SELECT no_such_column FROM parent", DatabaseError),
    208: ((), "SELECT * FROM no_such_table", QueueNotFound),
    245: ((), "SELECT CAST('x' AS int)", DatabaseError),
    515: ((PARENT,), "INSERT INTO parent (id) VALUES (NULL)", ConstraintViolation),
    547: ((PARENT, CHILD), "INSERT INTO child (id) VALUES (7)", ConstraintViolation),
    2601: ((PARENT, "CREATE UNIQUE INDEX once ON parent (id)", "INSERT INTO parent VALUES (1)"),
           "INSERT INTO parent VALUES (1)", ConstraintViolation),
    2627: ((PARENT, "INSERT INTO parent VALUES (1)"), "INSERT INTO parent VALUES (1)", ConstraintViolation),
    911: ((), "SELECT name FROM [no such database].sys.columns", QueueNotFound),
    2714: ((PARENT,), PARENT, DatabaseError),
    3902: ((), "COMMIT TRANSACTION", DatabaseError),
    6401: ((), "BEGIN TRANSACTION; ROLLBACK TRANSACTION no_such_savepoint", DatabaseError),
    8134: ((), "SELECT 1 / 0", DatabaseError),
    2628: ((PARENT, CHILD, "INSERT INTO parent VALUES (1)"), "INSERT INTO child VALUES (1, 'long')", DatabaseError),
}  # fmt: skip
# The number of a truncation depends on the compatibility level; that of a duplicate key on whether a constraint or an index
# refuses it. A statement that names a missing database may report the database or the object.
ALIKE = {911: {208}, 2628: {8152}, 2601: {2627}}


@pytest.fixture(params=["mssql_python", "pyodbc"])
def on_driver(request: pytest.FixtureRequest, sqlserver_database: QueueDatabase) -> Iterator[QueueDatabase]:
    """A clean database, opened through one of the drivers."""
    database = sqlserver_database
    options = connections.settings[database.alias]["OPTIONS"]
    if request.param == "pyodbc" and not sqlserver.has_pyodbc():
        pytest.skip("pyodbc finds no driver for SQL Server")
    point(database.alias, OPTIONS={**options, "python_driver": "" if request.param == "pyodbc" else request.param})
    try:
        yield database
    finally:
        point(database.alias, OPTIONS=options)


def refuse(database: QueueDatabase, statement: str) -> DatabaseError:
    """Return the error of the statement, as our own statements raise it."""
    try:
        with pytest.raises(DatabaseError) as caught, database_errors(dialect("sqlserver"), "ask"):
            fetch_all(database.connection, Rendered(statement, ()))
    finally:
        execute(database, "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")
    return caught.value


def number_of(database: QueueDatabase, statement: str) -> int:
    """Return the server's own number of the error."""
    database.connection.ensure_connection()
    raw: Any = database.connection.connection
    with contextlib.closing(raw.cursor()) as cursor:
        with contextlib.suppress(Exception):
            cursor.execute(statement)
            cursor.fetchall()
        cursor.execute("SELECT @@ERROR")
        number = int(cursor.fetchone()[0])
        cursor.execute("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")
    return number


@pytest.mark.parametrize("number", ERRORS)
def test_error_has_its_kind(on_driver: QueueDatabase, number: int) -> None:
    before, statement, kind = ERRORS[number]
    for each in before:
        execute(on_driver, each)
    seen = number_of(on_driver, statement)
    if seen != number and seen not in ALIKE.get(number, set()):
        pytest.skip(f"this server gives the error the number {seen}")
    assert type(refuse(on_driver, statement)) is kind


def test_lock_timeout_has_its_kind(on_driver: QueueDatabase) -> None:
    queue = make_table(on_driver)
    queue.send(rows(1))
    with held_elsewhere(queue, f"DELETE FROM {queue.qualified}"):
        execute(on_driver, "SET LOCK_TIMEOUT 20")
        fails(LockTimeout, queue.purge)
        assert receive_transaction(queue).receive() is None, "held rows are skipped"
    assert queue.purge() == 1


def test_drop_of_a_used_queue_is_a_lock_timeout(on_driver: QueueDatabase) -> None:
    queue = make_table(on_driver)
    with held_elsewhere(queue, f"INSERT INTO {queue.qualified} (Id, Recoverable, Headers) VALUES (NEWID(), 1, '')"):
        fails(LockTimeout, lambda: drop_queue(on_driver.alias, queue.address, only_empty=True))
    assert drop_queue(on_driver.alias, queue.address, only_empty=True)


def test_installation_names_a_missing_schema(on_driver: QueueDatabase) -> None:
    sqlserver.needs("sqlserver", "error 2760 for a missing schema")
    address = replace(make_table(on_driver).address, schema="nowhere")
    error = fails(QueueNotFound, lambda: install_tables(on_driver.alias, [PlannedTable(TableKind.QUEUE, address)]))
    assert "schema [nowhere] does not exist: create it first (CREATE SCHEMA [nowhere])" in str(error)


def test_doomed_transaction_has_its_kind(on_driver: QueueDatabase) -> None:
    execute(on_driver, PARENT)
    doomed = (
        "SET NOCOUNT ON; SET XACT_ABORT ON; BEGIN TRANSACTION;"
        " BEGIN TRY INSERT INTO parent VALUES (NULL) END TRY BEGIN CATCH INSERT INTO parent VALUES (1) END CATCH"
    )
    try:
        if (seen := number_of(on_driver, doomed)) != 3930:
            pytest.skip(f"this server gives the error the number {seen}")
        assert type(refuse(on_driver, doomed)) is DoomedTransaction
    finally:
        execute(on_driver, "SET NOCOUNT OFF; SET XACT_ABORT OFF")


def test_deadlock_has_its_kind(on_driver: QueueDatabase) -> None:
    """Two transactions take the same two tables in opposite order: the server chooses one of them as the victim."""
    first, second = make_table(on_driver, name="First"), make_table(on_driver, name="Second")
    for queue in (first, second):
        queue.send(rows(1))
    both = threading.Barrier(2)
    lost: list[DatabaseError] = []

    def take(one: QueueTable, other: QueueTable) -> None:
        try:
            with transaction.atomic(using=on_driver.alias):
                assert one.purge() == 1
                both.wait(60)
                try:
                    other.purge()
                except DatabaseError as error:
                    lost.append(error)
                transaction.set_rollback(True, using=on_driver.alias)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=take, args=pair, name="opponent") for pair in ((first, second), (second, first))]
    for thread in threads:
        thread.start()
    join_all(threads)
    assert [type(error) for error in lost] == [Deadlock]
    assert receive_all(first) == receive_all(second) == [b"0"]


def test_snapshot_conflict_is_a_serialization_failure(on_driver: QueueDatabase) -> None:
    try:
        execute(on_driver, f"ALTER DATABASE [{connections.settings[on_driver.alias]['NAME']}] SET ALLOW_SNAPSHOT_ISOLATION ON")
    except DjangoDatabaseError as error:
        pytest.skip(f"this server does not let databases have snapshots: {error}")
    queue = make_table(on_driver)
    queue.send(rows(1))
    try:
        execute(on_driver, "SET TRANSACTION ISOLATION LEVEL SNAPSHOT")
        with transaction.atomic(using=on_driver.alias):
            execute(on_driver, f"SELECT Id FROM {queue.qualified}")
            elsewhere(queue.purge)
            fails(SerializationFailure, queue.purge)
            transaction.set_rollback(True, using=on_driver.alias)
    finally:
        execute(on_driver, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


@pytest.mark.parametrize(
    "wrong", [{"PASSWORD": "wrong"}, {"NAME": "no_such_database"}, {"PORT": "1"}], ids=["18456", "4060", "no server"]
)
def test_failed_login_has_its_kind(on_driver: QueueDatabase, wrong: dict[str, str]) -> None:
    queue = make_table(on_driver)
    good = {name: connections.settings[on_driver.alias][name] for name in wrong}
    point(on_driver.alias, **wrong)
    try:
        fails(ConnectionLost if "PORT" in wrong else CannotConnect, lambda: queue.send(rows(1)))
    finally:
        point(on_driver.alias, **good)


def test_cut_line_is_connection_lost(on_driver: QueueDatabase) -> None:
    queue = make_table(on_driver)
    queue.send(rows(1))
    with line_to(on_driver.alias) as line:
        receiving = receive_transaction(queue)
        for finish in (receiving.undo_handler, receiving.commit, lambda: queue.send(rows(1))):
            assert receiving.receive() is not None
            execute(on_driver, "SELECT 1")
            line.cut()
            fails(ConnectionLost, finish)
            assert not receiving.was_ended(), "another session knows nothing of this transaction"
            receiving.abandon()
            connections[on_driver.alias].close()
    poll_until(lambda: queue.depth().waiting == 1, what="the server has ended the cut session")
    assert receive_all(queue) == [b"0"]
