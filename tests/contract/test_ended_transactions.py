"""Transactions on SQL Server that a handler, the server or a cut line ends instead of our commit."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from django.db import Error as DjangoDatabaseError, connections

from sqlqueue_app.messages.errors import ConfigurationError, ConnectionLost, DatabaseError, DoomedTransaction
from sqlqueue_app.tables.queue import QueueTable, all_or_none
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction, receive_transaction
from tests.support.round_trips import line_to
from tests.support.tables import receive_all, row, rows, sqlserver_cases

pytestmark = pytest.mark.parametrize("case", sqlserver_cases(), indirect=True, ids="-".join)


def received(queue: QueueTable, count: int = 1) -> ReceiveTransaction:
    queue.send(rows(count))
    receiving = receive_transaction(queue)
    assert len(receiving.receive_many(count)) == count
    return receiving


def execute(queue: QueueTable, statement: str, *, fetch: bool = False) -> None:
    with connections[queue.alias].cursor() as cursor:
        cursor.execute(statement)
        if fetch:
            cursor.fetchall()


@pytest.mark.parametrize(
    ("extra_params", "has"),
    [
        ("MARS_Connection=yes", True),
        ("Encrypt=no; mars_connection={Yes}", True),
        ("MARS_Connection=no", False),
        ("Encrypt=no", False),
    ],
)
def test_connection_with_multiple_result_sets_is_refused(
    queue: QueueTable, monkeypatch: pytest.MonkeyPatch, extra_params: str, has: bool
) -> None:
    """SQL Server ends each transaction with its batch there. The driver of these tests cannot open such a connection."""
    given = connections[queue.alias].settings_dict
    with monkeypatch.context() as patched:
        patched.setitem(given, "OPTIONS", {**given["OPTIONS"], "extra_params": extra_params})
        with pytest.raises(ConfigurationError, match="MARS_Connection=no") if has else nullcontext():
            receive_transaction(queue)


@pytest.mark.parametrize("statement", ["COMMIT", "COMMIT; BEGIN TRANSACTION; COMMIT", "ROLLBACK"])
def test_commit_or_rollback_of_a_handler_commits_nothing(queue: QueueTable, statement: str) -> None:
    receiving = received(queue)
    queue.send([row(b"of the handler")])
    execute(queue, statement)
    queue.send([row(b"of the handler")])
    with pytest.raises(DoomedTransaction):
        receiving.commit()
    assert not receiving.connection.in_atomic_block
    receiving.abandon()
    assert receive_all(queue) == [b"0"]


def test_commit_is_detected_at_its_own_message(queue: QueueTable) -> None:
    receiving = received(queue, 3)
    execute(queue, "COMMIT")
    with pytest.raises(DoomedTransaction):
        receiving.end_message()
    with pytest.raises(DoomedTransaction):
        receiving.undo_handler()
    assert not receiving.was_ended(), "the rows are still there"
    receiving.abandon()
    assert receive_all(queue) == [b"0", b"1", b"2"]


def test_commit_of_every_level_is_detected(queue: QueueTable) -> None:
    receiving = received(queue)
    execute(queue, "WHILE @@TRANCOUNT > 0 COMMIT")
    with pytest.raises(DoomedTransaction):
        receiving.undo_handler()
    assert receiving.was_ended()
    receiving.abandon()
    assert receive_all(queue) == []


@pytest.mark.parametrize(
    "statement", ["SELECT CAST('x' AS int)", "SELECT CAST(text AS int) FROM (VALUES ('1'), ('x')) AS numbers (text)"]
)
def test_nothing_is_committed_after_an_error_that_ends_the_transaction(queue: QueueTable, statement: str) -> None:
    receiving = received(queue)
    # Error 245 ends the transaction and the batch; with several rows only when they are fetched.
    with pytest.raises(DjangoDatabaseError):
        execute(queue, statement, fetch=True)
    queue.send([row(b"of the handler")])
    with pytest.raises(DoomedTransaction):
        receiving.commit()
    assert not receiving.was_ended()
    receiving.abandon()
    assert receive_all(queue) == [b"0"]


def test_session_closed_by_a_handler_is_replaced(queue: QueueTable) -> None:
    receiving = received(queue)
    receiving.connection.unwatched.close()
    with pytest.raises(DatabaseError):
        receiving.commit()
    assert not receiving.was_ended()
    receiving.abandon()
    assert receiving.connection.unwatched is None
    assert receive_all(queue) == [b"0"]


def test_session_closed_before_a_receive_is_replaced_at_the_next(queue: QueueTable) -> None:
    receiving = received(queue)
    receiving.abandon()
    receiving.connection.unwatched.close()
    with pytest.raises(Exception, match=r"autocommit|closed"):
        receiving.receive()
    assert receive_all(queue) == [b"0"]


def test_line_cut_before_the_commit_loses_nothing(queue: QueueTable) -> None:
    with line_to(queue.alias) as line:
        receiving = received(queue)
        line.cut()
        with pytest.raises(ConnectionLost):
            receiving.commit()
        assert not receiving.was_ended()
        receiving.abandon()
        assert receiving.connection.unwatched is None
        assert receiving.receive() is not None
        receiving.commit()
    assert receive_all(queue) == []


def test_line_cut_before_an_undo_loses_nothing(queue: QueueTable) -> None:
    with line_to(queue.alias) as line:
        receiving = received(queue)
        execute(queue, "SELECT 1")
        line.cut()
        with pytest.raises(ConnectionLost):
            receiving.undo_handler()
        assert not receiving.was_ended()
        receiving.abandon()
        assert receiving.receive() is not None
        receiving.commit()


def test_line_cut_in_a_send_of_several_statements_sends_nothing(queue: QueueTable) -> None:
    with line_to(queue.alias) as line:
        queue.layout()

        def send() -> None:
            with all_or_none(queue.alias):
                line.cut()
                queue.insert([row()])

        with pytest.raises(ConnectionLost):
            send()
        queue.send([row(b"later")])
        assert receive_all(queue) == [b"later"]
