"""Receiving from SQL Server: begin, receive and set the savepoint in one round trip, and commit in a second.

The driver stays in autocommit mode, and statements begin and end the transaction. Django's `atomic()` takes five round trips to
begin and commit on mssql-django, three of them to reset the driver's mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import Error as DjangoDatabaseError
from django.db.transaction import Atomic

from sqlqueue_app.dialects import sqlserver
from sqlqueue_app.dialects.dialect import Rendered
from sqlqueue_app.messages.errors import ConfigurationError, DoomedTransaction
from sqlqueue_app.tables.connections import ENDED, executed, fetch_all, mark_begun, mark_ended, roll_back, run_on_transaction
from sqlqueue_app.tables.key_window import Tried
from sqlqueue_app.tables.keyed_receive import KeyedReceive
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction, Savepoint
from sqlqueue_app.tables.rows import ReceivedRow, received_rows

_TRIED = "<tried>"
_LOCK_BITS = 2**64 - 1


class SqlServerReceiveTransaction(ReceiveTransaction):
    """The receive transaction of SQL Server, which cannot release savepoints; setting one again under its name moves it.

    An error can roll the transaction back on the server without Django's knowledge: a conversion error (245), a deadlock (1205),
    under XACT_ABORT any. If a handler swallows it, its later work is in a transaction begun by the server, and its own COMMIT
    commits nothing; both are detected before our commit and rolled back (`begin` in queue.sql).
    """

    def prepare(self) -> None:
        if sqlserver.has_mars(self.connection.settings_dict["OPTIONS"]):
            raise ConfigurationError(
                f"DATABASES[{self.table.alias!r}] has multiple active result sets, where no transaction outlives its batch: "
                "put MARS_Connection=no into extra_params of its OPTIONS"
            )
        self._own_atomic = Atomic(self.table.alias, savepoint=True, durable=False)
        self._begun = self._several = self._failed = False

    def _statement_for(self, limit: int) -> str:
        return self._statements.setdefault(limit, self.table.receive_statement(limit, begins=True).sql)

    def _receive(self, limit: int) -> list[ReceivedRow]:
        connection = self.connection
        connection.ensure_connection()
        self._begun = True
        raw: Any = connection.unwatched
        if not raw.autocommit:
            raw.autocommit = True
        # Reads all results, so late errors surface and the savepoint is certain to be set.
        found = fetch_all(connection, Rendered(self._statements.get(limit) or self._statement_for(limit), ()))
        if not found:
            self._begun = False
            return []
        return self._adopt(found)

    def _adopt(self, found: list[tuple[Any, ...]]) -> list[ReceivedRow]:
        """Tell Django of the transaction that the receive of these rows has begun."""
        connection = self.connection
        self._several = len(found) > 1
        self._atomic = self._own_atomic
        mark_begun(connection, self._own_atomic)
        self._failed = False
        connection.execute_wrappers.append(self._note_failure)
        self._savepoint = Savepoint.FRESH
        return received_rows(found)

    def end_message(self) -> None:
        # Set the next message's savepoint here: if this message has ended the transaction, it must fail, not the next.
        if self._several and self._savepoint is Savepoint.USED:
            self.connection.on_first_use = None
            self._take_savepoint()
            self._savepoint = Savepoint.FRESH
        super().end_message()

    def _take_savepoint(self) -> None:
        if run_on_transaction(self.connection, "save_transaction") != [(2,)]:
            raise DoomedTransaction(ENDED)

    _renew_savepoint = _take_savepoint

    def _rollback_to_savepoint(self) -> None:
        if run_on_transaction(self.connection, "rollback_to_saved") != [(1,)]:
            raise DoomedTransaction(ENDED)

    def _is_broken(self) -> bool:
        # The commit reports whether it was ours, which saves a round trip.
        return self.connection.unwatched is None

    def _note_failure(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        try:
            return execute(sql, params, many, context)
        except DjangoDatabaseError:
            self._failed = True
            raise

    def _end(self) -> None:
        """Remove the transaction from Django's connection."""
        self._begun = False
        if self._note_failure in self.connection.execute_wrappers:
            self.connection.execute_wrappers.remove(self._note_failure)
        mark_ended(self.connection)

    def was_ended(self) -> bool:
        """As in the base class, but False after a rollback: the rows are then in their queue."""
        try:
            if self.connection.unwatched is None or self._failed:
                return False
            return run_on_transaction(self.connection, "transaction_count") == [(0,)]
        except DjangoDatabaseError:
            return False

    def _commit(self, atomic: Atomic) -> None:
        try:
            open_now = int(run_on_transaction(self.connection, "commit")[0][0])
        except DjangoDatabaseError:
            roll_back(self.connection)
            raise
        finally:
            self._end()
        if open_now != 2:
            self._failed = self._failed or open_now == 1
            raise DoomedTransaction(ENDED)

    def abandon(self) -> None:
        if self.participants is not None:
            self.participants.abandon()
        if not self._begun:
            return
        self._atomic = None
        connection = self.connection
        connection.on_first_use = None
        connection.run_on_commit = []
        connection.savepoint_ids.clear()
        connection.needs_rollback = False
        self._end()
        roll_back(connection)


class KeyedSqlServerReceiveTransaction(KeyedReceive, SqlServerReceiveTransaction):
    """Receives the lowest row whose key no session has, with the lock of its key.

    What another session receives cannot be seen here. So a row that came back at that moment may be before the received one: the
    receive also returns which rows are, and is rolled back if one of them may have the same key.
    """

    def prepare(self) -> None:
        super().prepare()
        inner = self.table.dialect.script("receive_this", table=self.table.qualified, **self.table.deleted_correlation_columns())
        # As text: a batch with parameters would restore IMPLICIT_TRANSACTIONS at its end.
        self._text = self.table.dialect.statement("receive_keyed", inner=inner.replace("'", "''"), tried=_TRIED).sql.split(_TRIED)

    def _receive(self, limit: int) -> list[ReceivedRow]:
        for tried in self._tries():
            if rows := self._receive_one(tried):
                return rows
        return []

    def _receive_one(self, tried: Tried) -> list[ReceivedRow]:
        connection = self.connection
        connection.ensure_connection()
        raw: Any = connection.unwatched
        if not raw.autocommit:
            raw.autocommit = True
        self._begun, self._tried = True, tried
        text = "".join(f"{row:019}{lock & _LOCK_BITS:016x}" for row, lock in tried)
        with executed(connection, Rendered(text.join(self._text), ()), ()) as cursor:
            # A lock that is not granted may be a result without rows before them.
            results = [cursor.fetchall() if cursor.description else []]
            while cursor.nextset():
                results.append(cursor.fetchall() if cursor.description else [])
        found, below = [*filter(None, results), [], []][:2]
        if not found:
            self._begun = False
            return self.took([])
        rows = self.took(self._adopt(found))
        if not rows or self.window.is_out_of_order(rows[0].row_version, (int(row) for (row,) in below)):
            self.abandon()
            return []
        return rows
