"""A receive transaction inside of the one that a test has open: savepoints where a worker has BEGIN, COMMIT and ROLLBACK."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from django.db import Error as DjangoDatabaseError

from sqlqueue_app.messages.errors import DoomedTransaction
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction
from sqlqueue_app.tables.rows import ReceivedRow, received_rows
from sqlqueue_app.tables.watched_connection import Hooks

# libpq's number for an open transaction that has not failed, in both versions of psycopg.
_IN_TRANSACTION = 2


class NestedReceiveTransaction(ReceiveTransaction):
    """For use in an open `atomic()` of the queue's alias, such as that of Django's TestCase. What it commits lies in that block.

    Goes by Django's own cursor on every database. Hooks that were registered before the receive stay where they are.
    """

    def __init__(self, table: QueueTable) -> None:
        super().__init__(table)
        self._blocks = 0
        self._savepoints = 0
        self._hooks = 0
        self._before_message: str | None = None

    def prepare(self) -> None:
        """Nothing is made ready: speed is not what a test is after."""

    def _receive(self, limit: int) -> list[ReceivedRow]:
        connection = self.connection
        self._hooks = len(connection.run_on_commit)
        self._enter_atomic()
        self._blocks, self._savepoints = len(connection.atomic_blocks), len(connection.savepoint_ids)
        statement = self.table.receive_statement(limit)
        with connection.cursor() as cursor:
            cursor.execute(statement.sql, statement.bind({"lowest": 0}))
            found = cursor.fetchall()
            if connection.vendor == "microsoft":
                # Late errors come with what follows the rows.
                while cursor.nextset():
                    pass
        return received_rows(found)

    def begin_message(self) -> None:
        """Take the savepoint of the next message, whether its handlers ask for the database or not."""
        connection = self.connection
        self._first_hook = len(connection.run_on_commit)
        self._before_message = connection.savepoint()

    def end_message(self) -> None:
        """The message is done but for the commit."""

    def undo_handler(self) -> None:
        """Undo the message's work, its hooks too; the rows are still ours."""
        connection = self.connection
        del connection.run_on_commit[self._first_hook :]
        self._leave_inner_blocks()
        connection.needs_rollback = False
        if self._before_message is not None:
            with self.table.errors("roll back to the savepoint behind the receive"):
                connection.savepoint_rollback(self._before_message)

    def _leave_inner_blocks(self) -> None:
        # An atomic() that the handler entered by hand and never left.
        connection = self.connection
        del connection.savepoint_ids[self._savepoints :]
        del connection.atomic_blocks[self._blocks :]

    def check_usable(self) -> None:
        """DoomedTransaction if a commit would not commit, as outside of a test."""
        connection = self.connection
        if len(connection.atomic_blocks) > self._blocks:
            raise DoomedTransaction(
                "the handler left an atomic() open that it had entered by hand; use it in a with statement or as a decorator"
            )
        if connection.needs_rollback or len(connection.atomic_blocks) < self._blocks or self._is_broken():
            raise DoomedTransaction(
                "the receive transaction cannot be committed: a database error inside of it was caught outside of an atomic() "
                "block, or set_rollback(True) was called; wrap the statement that may fail in transaction.atomic()"
            )

    def _is_broken(self) -> bool:
        # PostgreSQL refuses everything after an error that went past Django; the others go on.
        raw = self.connection.unwatched
        return raw is None or (self.connection.vendor == "postgresql" and raw.info.transaction_status != _IN_TRANSACTION)

    def was_ended(self) -> bool:
        """False: a handler that ends the transaction of a test past Django has ended the test's own, which nobody can repair."""
        return False

    def commit(self, *, then_receive: Callable[[], int] | None = None) -> Hooks:
        """Keep what was done, in the transaction around; returns the hooks of the message, which do not wait for that one."""
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            return []
        connection = self.connection
        hooks: Hooks = [entry[1] for entry in connection.run_on_commit[self._hooks :]]
        del connection.run_on_commit[self._hooks :]
        with self._committing:
            atomic.__exit__(None, None, None)
        return hooks

    def abandon(self) -> None:
        """Undo everything since the receive: the rows are there again. Never raises."""
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            return
        connection = self.connection
        del connection.run_on_commit[self._hooks :]
        self._leave_inner_blocks()
        with contextlib.suppress(DjangoDatabaseError):
            connection.needs_rollback = True
            atomic.__exit__(None, None, None)
