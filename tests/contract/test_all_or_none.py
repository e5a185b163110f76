"""A send of several statements: all or none for every caller, and no savepoint or transaction for a single statement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
from django.db import transaction

from sqlqueue_app.messages.errors import ConstraintViolation, DoomedTransaction, LockTimeout
from sqlqueue_app.tables import connections as tables_connections, queue as tables_queue
from sqlqueue_app.tables.connections import transaction_of_statements
from sqlqueue_app.tables.queue import SEND_BYTES_PER_STATEMENT, QueueTable, all_or_none, chunks_by_table
from sqlqueue_app.tables.rows import NewRow
from tests.support.databases import QueueDatabase
from tests.support.tables import elsewhere, execute, fails, held_elsewhere, make_table, receive_all, row, rows, statements


@pytest.fixture
def inserting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write without COPY, so that every statement is visible and PostgreSQL writes like the others."""
    monkeypatch.setattr(tables_queue, "can_copy", lambda connection: False)


def with_a_double_at_the_end(queue: QueueTable, database: QueueDatabase) -> list[NewRow]:
    """Return more than one full statement of rows, of which the second statement fails."""
    execute(database, f"CREATE UNIQUE INDEX once ON {queue.qualified} (Id)")
    first, *others = rows(queue.rows_per_statement())
    return [first, *others, first]


def test_caught_error_in_a_transaction_keeps_no_row(queue: QueueTable, database: QueueDatabase) -> None:
    wrong = with_a_double_at_the_end(queue, database)
    with transaction.atomic(using=queue.alias):
        queue.send([row(b"before")])
        with pytest.raises(ConstraintViolation):
            queue.send(wrong)
        queue.send([row(b"after")])
    assert receive_all(queue) == [b"before", b"after"]


def test_error_outside_a_transaction_keeps_no_row(queue: QueueTable, database: QueueDatabase) -> None:
    wrong = with_a_double_at_the_end(queue, database)
    with pytest.raises(ConstraintViolation):
        queue.send(wrong)
    assert not database.connection.in_atomic_block
    assert elsewhere(queue.depth).waiting == 0


@pytest.mark.usefixtures("inserting")
def test_one_statement_in_a_transaction_takes_no_savepoint(queue: QueueTable, database: QueueDatabase) -> None:
    queue.layout()
    with transaction.atomic(using=queue.alias), statements(database) as seen:
        queue.send(rows(1))
        queue.send(rows(queue.dialect.rows_per_send))
    assert [word for word in seen if word in ("SAVEPOINT", "SAVE", "BEGIN", "SELECT")] == []
    assert len(seen) == 2


@pytest.mark.usefixtures("inserting")
def test_several_statements_in_a_transaction_take_one_savepoint(queue: QueueTable, database: QueueDatabase) -> None:
    queue.layout()
    with transaction.atomic(using=queue.alias), statements(database) as seen:
        queue.send(rows(queue.dialect.rows_per_send * 2 + 1))
    inserts = [word for word in seen if word in ("INSERT", "DECLARE")]
    assert len(inserts) == 3
    assert [word for word in seen if word.startswith("SAVE")] in (["SAVEPOINT"], ["SAVE"])


def test_one_statement_outside_a_transaction_begins_none(database: QueueDatabase, queue: QueueTable) -> None:
    queue.layout()
    with statements(database) as seen:
        queue.send(rows(1))
    assert seen == (["DECLARE"] if database.vendor == "sqlserver" else ["INSERT"])


def test_error_of_the_begin_has_a_kind(sqlite_database: QueueDatabase) -> None:
    queue = make_table(sqlite_database)
    execute(sqlite_database, "PRAGMA busy_timeout = 20")
    with held_elsewhere(queue, f"DELETE FROM {queue.qualified}"):
        error = fails(LockTimeout, lambda: queue.send(rows(queue.rows_per_statement() + 1)))
    assert "failed to begin a transaction" in str(error)


def test_error_of_the_commit_has_a_kind(postgresql_database: QueueDatabase) -> None:
    queue = make_table(postgresql_database)
    execute(postgresql_database, f"ALTER TABLE {queue.qualified} ADD COLUMN same integer DEFAULT 1")
    execute(postgresql_database, f"ALTER TABLE {queue.qualified} ADD UNIQUE (same) DEFERRABLE INITIALLY DEFERRED")
    error = fails(ConstraintViolation, lambda: queue.send(rows(queue.rows_per_statement() + 1)))
    assert "failed to commit the messages" in str(error)
    assert queue.depth().waiting == 0


def check_hooks(alias: str, block: Callable[[], AbstractContextManager[None]]) -> None:
    """The `on_commit` hooks of the block run when it has committed, and those of one that is rolled back never do."""
    seen: list[str] = []
    with block():
        transaction.on_commit(lambda: seen.append("committed"), using=alias)
        assert seen == []
    assert seen == ["committed"]
    with suppress(InterruptedError), block():
        transaction.on_commit(lambda: seen.append("rolled back"), using=alias)
        raise InterruptedError
    with transaction.atomic(using=alias):
        pass
    assert seen == ["committed"]


def test_hooks_run_after_the_commit(queue: QueueTable) -> None:
    check_hooks(queue.alias, lambda: all_or_none(queue.alias))


def test_hooks_run_after_the_commit_of_a_transaction_of_statements(
    sqlite_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transactions of SQL Server, on a connection to SQLite."""
    texts = {"begin": "BEGIN", "commit": "COMMIT", "roll_back": "ROLLBACK"}

    def run(connection: Any, name: str) -> list[tuple[int]]:
        connection.connection.execute(texts[name])
        return [(2,)]

    monkeypatch.setattr(tables_connections, "run_on_transaction", run)
    connection = sqlite_database.connection
    connection.ensure_connection()
    check_hooks(connection.alias, lambda: transaction_of_statements(connection))


def test_transaction_of_a_caller_without_autocommit_stays_open(
    sqlite_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = sqlite_database.connection
    monkeypatch.setattr(connection, "vendor", "microsoft")
    transaction.set_autocommit(False, using=connection.alias)
    try:
        with all_or_none(connection.alias):
            assert connection.in_atomic_block
        assert not connection.get_autocommit()
    finally:
        transaction.rollback(using=connection.alias)
        transaction.set_autocommit(True, using=connection.alias)


def send_and_roll_back(queue: QueueTable) -> None:
    with all_or_none(queue.alias):
        queue.send([row()])
        transaction.set_rollback(True, using=queue.alias)


def test_rollback_that_raises_no_error_is_an_error(queue: QueueTable) -> None:
    with pytest.raises(DoomedTransaction, match="nothing was written"):
        send_and_roll_back(queue)
    with transaction.atomic(using=queue.alias):
        with pytest.raises(DoomedTransaction, match="nothing was written"):
            send_and_roll_back(queue)
        queue.send([row(b"after")])
    assert receive_all(queue) == [b"after"]


# --- chunks -------------------------------------------------------------------------------------------------------------------


class Table:
    """A table of which only the statement size matters."""

    def __init__(self, room: int) -> None:
        self.room = room

    def rows_per_statement(self) -> int:
        return self.room

    def insert(self, rows: list[NewRow]) -> None:
        raise NotImplementedError


def test_chunks_are_full_for_each_table_and_keep_its_order() -> None:
    one, two = Table(3), Table(2)
    mixed = [(table, row(b"%d" % number)) for number, table in enumerate([one, two, one, one, two, one, two])]

    found = [(table, [each.body for each in chunk]) for table, chunk in chunks_by_table(mixed)]

    assert found == [(one, [b"0", b"2", b"3"]), (two, [b"1", b"4"]), (one, [b"5"]), (two, [b"6"])]


def test_chunks_of_large_messages_leave_together() -> None:
    one, two = Table(100), Table(100)
    half = b"x" * (SEND_BYTES_PER_STATEMENT // 2)
    mixed = [(one, row(half)), (two, row(b"small")), (one, row(half)), (two, row(half * 4)), (one, row(b"last"))]

    found = [(table, [len(each.body) for each in chunk]) for table, chunk in chunks_by_table(mixed)]

    size = len(half)
    assert found == [(one, [size]), (two, [5]), (one, [size]), (two, [size * 4]), (one, [4])]


def test_empty_input_has_no_chunks() -> None:
    assert list(chunks_by_table([])) == []
