"""Another database of the project, whose work joins the receive transaction: begun when a handler first asks it for something.

Django is told from the start of a message that its connection is inside of an outermost `atomic()`, so that nested `atomic()`,
`on_commit` and `durable` behave as on the alias of the queues; the transaction itself begins with the first use, which the watched
connection tells. An object serves one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from django.db import Error as DjangoDatabaseError
from django.db import connections
from django.db.transaction import Atomic

from sqlqueue_app.databases.two_phase import BranchId
from sqlqueue_app.messages.errors import DoomedTransaction
from sqlqueue_app.tables.branches import has_written, prepare
from sqlqueue_app.tables.watched_connection import SAVEPOINT, Hooks, WatchedConnection, watch

# libpq's PQTRANS_INERROR: a statement has failed, and a commit would roll back without an error.
_IN_ERROR: Final = 3


class JoinedAlias:
    """For each message `begin_message`, then `end_message` or `undo_message`; at last `commit_plainly`, `prepare` or `abandon`."""

    def __init__(self, alias: str, *, before_use: Callable[[str], None] | None = None) -> None:
        """`before_use` is called with the alias, before its transaction begins."""
        self.alias = alias
        self._before_use = before_use
        self.begun = False
        """Whether a transaction is open."""
        self._atomic = Atomic(alias, savepoint=True, durable=False)
        self._connection: WatchedConnection | None = None
        self._begun_before = False
        self._savepoint = False
        self._has_savepoint = False
        self._first_hook = 0

    @property
    def connection(self) -> WatchedConnection:
        """The thread's connection; only while the alias takes part."""
        if self._connection is None:
            raise RuntimeError(f"{self.alias!r} takes no part in the transaction")
        return self._connection

    def begin_message(self) -> None:
        """From here on what is asked of the database belongs to the message."""
        self._begun_before, self._savepoint = self.begun, False
        if self.begun:
            self._first_hook = len(self.connection.run_on_commit)
            self.connection.on_first_use = self._take_savepoint
            return
        connection = watch(connections[self.alias])
        if connection.in_atomic_block or not connection.settings_dict["AUTOCOMMIT"]:
            # Somebody else's transaction, or one that Django never begins nor ends: the project has taken it on itself.
            self._connection = None
            return
        self._connection = connection
        self._first_hook = 0
        self._mark(connection)
        connection.on_first_use = self._begin

    def _mark(self, connection: WatchedConnection) -> None:
        """Django's own bookkeeping of an outermost atomic()."""
        connection.commit_on_exit = True
        connection.needs_rollback = False
        connection.in_atomic_block = True
        connection.atomic_blocks[:] = [self._atomic]

    def _begin(self) -> None:
        connection = self.connection
        # Connecting forgets all of these, and neither that nor the switch is allowed in a transaction.
        kept = list(connection.atomic_blocks), list(connection.savepoint_ids), list(connection.run_on_commit)
        needs_rollback = connection.needs_rollback
        connection.in_atomic_block = False
        try:
            connection.ensure_connection()
            if self._before_use is not None:
                self._before_use(self.alias)
            connection.set_autocommit(False)
            self.begun, self._has_savepoint = True, False
        finally:
            connection.in_atomic_block, connection.needs_rollback = True, needs_rollback
            connection.atomic_blocks[:], connection.savepoint_ids[:], connection.run_on_commit[:] = kept
            if not self.begun:
                connection.on_first_use = self._begin

    def _take_savepoint(self) -> None:
        if self._has_savepoint:
            # That of a message before, to which nobody will roll back any more.
            self._execute(f"RELEASE SAVEPOINT {SAVEPOINT}")
        self._execute(f"SAVEPOINT {SAVEPOINT}")
        self._has_savepoint = self._savepoint = True

    def end_message(self) -> Hooks:
        """The message is done but for the commit. The `on_commit` hooks of an alias that was not asked for anything come back."""
        if self._connection is None:
            return []
        self._connection.on_first_use = None
        return [] if self.begun else self._leave()

    def undo_message(self) -> None:
        """Undo what the message has done here, its hooks too; what messages before it did stays. It may be tried again then."""
        connection = self._connection
        if connection is None:
            return
        connection.on_first_use = None
        if not self._begun_before:
            self.abandon()
            self.begin_message()
            return
        del connection.run_on_commit[self._first_hook :]
        connection.needs_rollback = False
        connection.savepoint_ids.clear()
        del connection.atomic_blocks[1:]
        if self._savepoint:
            self._execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
        connection.on_first_use = self._take_savepoint

    def check_usable(self) -> None:
        """DoomedTransaction if a commit would not commit."""
        connection = self._connection
        if connection is None:
            return
        if len(connection.atomic_blocks) > 1:
            raise DoomedTransaction(
                f"the handler left an atomic() on {self.alias!r} open that it had entered by hand; use it in a with statement or "
                "as a decorator"
            )
        if connection.needs_rollback or not connection.in_atomic_block or (self.begun and self._has_failed()):
            raise DoomedTransaction(
                f"the transaction on {self.alias!r} cannot be committed: a database error inside of it was caught outside of an "
                "atomic() block, set_rollback(True) was called, or its connection was closed"
            )

    def _has_failed(self) -> bool:
        raw = self.connection.unwatched
        return raw is None or self.connection.closed_in_transaction or raw.info.transaction_status == _IN_ERROR

    def has_written(self) -> bool:
        """Whether the transaction has anything to commit."""
        return has_written(self.connection)

    def commit_plainly(self) -> Hooks:
        """Commit a transaction that has written nothing; its hooks."""
        return self._leave()

    def prepare(self, branch: BranchId) -> Hooks:
        """Phase one: the transaction becomes a branch, and the connection is as if it had been committed; its hooks.

        Raises what the database says, or CannotPrepare; nothing of the transaction is left then.
        """
        connection = self.connection
        try:
            prepare(connection, branch)
        except BaseException:
            self.abandon()
            raise
        # The driver's connection has no transaction any more, and the commit asks the server for nothing.
        return self._leave()

    def _leave(self) -> Hooks:
        connection, self._connection = self.connection, None
        begun, self.begun = self.begun, False
        connection.on_first_use = None
        hooks: Hooks = [entry[1] for entry in connection.run_on_commit]
        connection.run_on_commit = []
        if begun:
            self._atomic.__exit__(None, None, None)
        else:
            _unmark(connection)
        return hooks

    def abandon(self) -> None:
        """Roll everything back. Does nothing without a transaction; never raises."""
        connection, self._connection = self._connection, None
        begun, self.begun = self.begun, False
        if connection is None:
            return
        connection.on_first_use = None
        connection.run_on_commit = []
        connection.savepoint_ids.clear()
        if not begun:
            _unmark(connection)
            return
        connection.atomic_blocks[:] = [self._atomic]
        with contextlib.suppress(DjangoDatabaseError):
            connection.needs_rollback = True
            self._atomic.__exit__(None, None, None)

    def _execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)


def _unmark(connection: WatchedConnection) -> None:
    connection.in_atomic_block = False
    connection.needs_rollback = False
    connection.atomic_blocks.clear()
    connection.savepoint_ids.clear()
