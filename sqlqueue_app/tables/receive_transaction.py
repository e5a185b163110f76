"""The transaction of one receive, on Django's own connection, so that the work of handlers joins it.

The transaction begins with the receive of one or more rows. A savepoint after the receive allows the work of a failed handler to
be undone while the rows stay received. It is set when a handler first uses the database, so a handler that does not use it pays
nothing. Django sees an ordinary outermost `atomic()`: nested `atomic()`, `on_commit` and `durable` behave as usual. An object
serves one thread.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import Error as DjangoDatabaseError
from django.db.transaction import Atomic

from sqlqueue_app.messages.errors import ConfigurationError, DoomedTransaction
from sqlqueue_app.policies.polling import LowerBound
from sqlqueue_app.tables.connections import SAVEPOINT, Hooks, WatchedConnection, mark_begun, mark_ended, watch
from sqlqueue_app.tables.key_window import KeyWindow
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.rows import ReceivedRow, received_rows
from sqlqueue_app.tables.two_phase import TwoPhaseParticipants

LEFT_OPEN = "the handler left an atomic() open that it had entered by hand; use it in a with statement or as a decorator"
CANNOT_COMMIT = (
    "the receive transaction cannot be committed: a database error inside of it was caught outside of an atomic() block, or "
    "set_rollback(True) was called; wrap the statement that may fail in transaction.atomic()"
)


class Savepoint(enum.Enum):
    """The position of a receive transaction's savepoint relative to the work of the current message."""

    NONE = "not taken"
    FRESH = "directly before the message's work"
    USED = "before the message's work, which has begun"
    STALE = "before the work of an earlier message"


class ReceiveTransaction:
    """Receive; call `begin_message` before each row but the first and `end_message` after each; then `commit` or `abandon`.

    This class serves SQLite and is the base of the others.
    """

    receives_ahead = False
    """Whether a commit can receive the next rows in the same round trip."""

    def __init__(self, table: QueueTable) -> None:
        self.table = table
        self.connection: WatchedConnection = watch(table.connection())
        """Django's connection of the thread. Looked up once, because that costs as much as the parameters of a statement."""
        self.participants: TwoPhaseParticipants | None = None
        """The other databases that take part; set before the first receive."""
        self.rows_ahead: list[ReceivedRow] = []
        """Rows that the last commit has received; the next `receive_many` returns them."""
        self._atomic: Atomic | None = None
        self._savepoint = Savepoint.NONE
        self._first_hook = 0
        self._statements: dict[int, str] = {}
        self._receiving = table.errors(f"receive from {table.qualified}")
        self._committing = table.errors(f"commit a receive from {table.qualified}")
        self.prepare()

    def prepare(self) -> None:
        """Prepare whatever is possible before the first receive."""
        probe = self.table.dialect.statement("peek", table=self.table.qualified, compared=">", order="ASC")
        values = probe.bind({"limit": 1, "place": -(2**63), "body_limit": 0})
        self._probe = probe.sql % (("?",) * len(values)), values
        self._own_atomic = Atomic(self.table.alias, savepoint=True, durable=False)
        self._found_before = False
        # A deferred transaction that reads and then writes fails if another process wrote in between.
        self.connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]

    def receive(self) -> ReceivedRow | None:
        """Receive the next row and leave the transaction open; None, without a transaction, if there is none."""
        rows = self.receive_many(1)
        return rows[0] if rows else None

    def receive_many(self, limit: int) -> list[ReceivedRow]:
        """Receive at most `limit` rows in order, with the transaction open and the first message begun; [] if there are none.

        Raises database errors as our types; the transaction is then gone.
        """
        try:
            rows = self._receive(limit)
        except BaseException:  # noqa: BLE001 - raised again, as one of our types
            try:
                with self._receiving:
                    raise
            finally:
                self.abandon()
        if rows:
            self.begin_message()
        else:
            self.abandon()
        return rows

    def _receive(self, limit: int) -> list[ReceivedRow]:
        connection = self.connection
        connection.ensure_connection()
        execute = connection.unwatched.execute
        found_before, self._found_before = self._found_before, False
        with connection.wrap_database_errors:
            # An idle poll must not begin a transaction: it would block every other writer, and wait for them.
            if not found_before and not execute(*self._probe).fetchall():
                return []
            execute("BEGIN IMMEDIATE")
            self._atomic = self._own_atomic
            self._savepoint = Savepoint.NONE
            mark_begun(connection, self._own_atomic)
            found = execute(self._statements.get(limit) or self._statement_for(limit)).fetchall()
        self._found_before = bool(found)
        return received_rows(found)

    def _statement_for(self, limit: int) -> str:
        return self._statements.setdefault(limit, self.table.receive_statement(limit).sql % ())

    def begin_message(self) -> None:
        """Start the next message: its savepoint is set before its first statement."""
        connection = self.connection
        self._first_hook = len(connection.run_on_commit)
        connection.on_first_use = self._before_use
        if self.participants is not None:
            self.participants.begin_message()

    def end_message(self) -> None:
        """End the message, except for its commit: later statements are not undone with it."""
        self.connection.on_first_use = None
        if self._savepoint is Savepoint.USED:
            self._savepoint = Savepoint.STALE
        if self.participants is not None:
            self.participants.end_message()

    @contextmanager
    def before_message(self) -> Iterator[None]:
        """While open, statements belong to the receive: undoing the message does not undo them."""
        connection = self.connection
        kept, connection.on_first_use = connection.on_first_use, None
        try:
            yield
        finally:
            connection.on_first_use = kept

    def _before_use(self) -> None:
        before, self._savepoint = self._savepoint, Savepoint.USED
        if before is Savepoint.NONE:
            self._take_savepoint()
        elif before is Savepoint.STALE:
            self._renew_savepoint()

    def _take_savepoint(self) -> None:
        self._execute(f"SAVEPOINT {SAVEPOINT}")

    def _renew_savepoint(self) -> None:
        self._execute(f"RELEASE SAVEPOINT {SAVEPOINT}")
        self._execute(f"SAVEPOINT {SAVEPOINT}")

    def _rollback_to_savepoint(self) -> None:
        self._execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")

    def _execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)

    def undo_handler(self) -> None:
        """Undo the message's work: roll back to the savepoint and drop its `on_commit` hooks. The rows stay received, and the
        work of earlier messages is kept.

        Raises DoomedTransaction if the transaction can only be rolled back, or has ended; the caller then abandons it.
        """
        if self._atomic is None:
            # If the connection is lost, a rollback would open another session, and `was_ended` would mistake it for this one.
            raise DoomedTransaction("the commit of the receive transaction has failed: there is no savepoint to roll back to")
        connection = self.connection
        connection.on_first_use = None
        del connection.run_on_commit[self._first_hook :]
        connection.needs_rollback = False
        # Also undo an atomic() that the handler entered and never left.
        connection.savepoint_ids.clear()
        del connection.atomic_blocks[1:]
        if self._savepoint is Savepoint.USED:
            with self.table.errors("roll back to the savepoint behind the receive"):
                self._rollback_to_savepoint()
            self._savepoint = Savepoint.FRESH
        connection.on_first_use = self._before_use
        if self.participants is not None:
            self.participants.undo_message()

    def check_usable(self) -> None:
        """Raise DoomedTransaction if the transaction cannot commit because a handler has swallowed an error."""
        connection = self.connection
        if connection.in_atomic_block and len(connection.atomic_blocks) > 1:
            raise DoomedTransaction(LEFT_OPEN)
        if connection.needs_rollback or not connection.in_atomic_block or self._is_broken():
            raise DoomedTransaction(CANNOT_COMMIT)
        if self.participants is not None:
            self.participants.check_usable()

    def _is_broken(self) -> bool:
        return self._has_transaction() is not True

    def _has_transaction(self) -> bool | None:
        """Whether the driver's connection has an open transaction; None if the connection is gone."""
        raw = self.connection.unwatched
        try:
            return None if raw is None else bool(raw.in_transaction)
        except Exception:  # noqa: BLE001 - closed by the handler, bypassing Django; each driver raises its own error
            return None

    def was_ended(self) -> bool:
        """Whether a handler has ended the transaction with its own COMMIT or ROLLBACK, bypassing Django."""
        # After a failed commit of ours, the rows are in their queue, and another process may receive them.
        return self._atomic is not None and self._has_transaction() is False

    def commit(self, *, then_receive: Callable[[], int] | None = None) -> Hooks:
        """Commit, and return the `on_commit` hooks in order for the caller to run: an error in a hook undoes nothing.

        If there are none and the database allows it, the same round trip receives at most `then_receive()` rows for the next
        `receive_many`. A caller that passes it must receive again, or call `give_back`.
        """
        if self._atomic is None:
            return []
        participants = self.participants
        # Prepare while everything can still be undone: an error of another database is an error of the message.
        prepared = participants is not None and participants.prepare()
        atomic, self._atomic = self._atomic, None
        connection = self.connection
        connection.on_first_use = None
        hooks: Hooks = [entry[1] for entry in connection.run_on_commit]
        connection.run_on_commit = []
        try:
            if then_receive is not None and not hooks and not prepared:
                self._commit_and_receive(atomic, then_receive)
            else:
                self._commit(atomic)
        except BaseException:  # noqa: BLE001 - raised again, as one of our types
            try:
                with self._committing:
                    raise
            finally:
                self._after_failed_commit()
        return hooks if participants is None else hooks + participants.commit()

    def _after_failed_commit(self) -> None:
        is_lost = self.connection.unwatched is None
        if self.participants is not None:
            self.participants.finish_by_log()
        if is_lost:
            # Another session read the log; `was_ended` must not mistake it for the session of this transaction.
            self.connection.close()

    def _commit(self, atomic: Atomic) -> None:
        """Leave the outermost atomic() directly, as the receive entered it: with Django's code, a message took twice the time."""
        connection = self.connection
        raw = connection.unwatched
        mark_ended(connection)
        try:
            with connection.wrap_database_errors:
                raw.execute("COMMIT")
        except DjangoDatabaseError:
            with contextlib.suppress(Exception):
                raw.rollback()
            raise

    def _commit_and_receive(self, atomic: Atomic, limit: Callable[[], int]) -> None:
        self._commit(atomic)

    def give_back(self) -> None:
        """Roll back a receive whose rows will not be processed; never raises."""

    def abandon(self) -> None:
        """Roll back everything, including the receive: rows return to the queue. No-op without a transaction; never raises."""
        if self.participants is not None:
            self.participants.abandon()
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            return
        connection = self.connection
        connection.on_first_use = None
        with contextlib.suppress(DjangoDatabaseError):
            connection.needs_rollback = True
            atomic.__exit__(None, None, None)


def check_driver(table: QueueTable) -> None:
    """Raise ConfigurationError if the driver of the table's database cannot receive."""
    if table.dialect.name == "postgresql":
        # Imported here: without PostgreSQL there may be no psycopg at all.
        from django.db.backends.postgresql.psycopg_any import is_psycopg3  # type: ignore[import-untyped]  # noqa: PLC0415

        if not is_psycopg3:
            raise ConfigurationError(
                "psycopg 2 is installed, but receiving from PostgreSQL needs psycopg 3: pip install 'psycopg[binary]'"
            )


def receive_transaction(table: QueueTable, bound: LowerBound | None = None, keys: KeyWindow | None = None) -> ReceiveTransaction:
    """The receive transaction for the table's database. ConfigurationError for an unsuitable driver.

    The threads that receive from the table share `bound`, which only PostgreSQL uses, and `keys`, if messages with the same key
    are handled one at a time. On SQLite they always are: it has one writer at a time, and the rows leave in their order.
    """
    if table.dialect.name == "sqlserver":
        from sqlqueue_app.tables.sqlserver_receive import KeyedSqlServerReceiveTransaction, SqlServerReceiveTransaction  # noqa: PLC0415

        return SqlServerReceiveTransaction(table) if keys is None else KeyedSqlServerReceiveTransaction(table, keys)
    if table.dialect.name == "postgresql":
        check_driver(table)
        from sqlqueue_app.tables.postgresql_receive import KeyedPostgresReceiveTransaction, PostgresReceiveTransaction  # noqa: PLC0415

        return PostgresReceiveTransaction(table, bound=bound) if keys is None else KeyedPostgresReceiveTransaction(table, keys)
    return ReceiveTransaction(table)
