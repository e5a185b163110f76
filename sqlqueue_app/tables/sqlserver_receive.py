"""Receiving from SQL Server: begin, receive and set the savepoint in one round trip, and commit in a second.

The driver stays in its autocommit mode, and the transaction is begun and ended by statements. Django's own `atomic()` needs five
round trips to begin and commit on mssql-django, three of them to switch the driver's mode back.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any, Final

from django.db import Error as DjangoDatabaseError
from django.db.transaction import Atomic, TransactionManagementError

from sqlqueue_app.dialects import sqlserver
from sqlqueue_app.messages.errors import ConfigurationError, DoomedTransaction
from sqlqueue_app.tables.connections import (
    WatchedConnection,
    execute_on_sqlserver,
    mark_begun,
    mark_ended,
    note_number,
    roll_back,
    run_on_transaction,
)
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction, Savepoint
from sqlqueue_app.tables.rows import ReceivedRow, received_rows

# Statements of a handler's own SQL that may end a transaction; Django ends none by a statement.
_MAY_END: Final = re.compile(r"\b(?:COMMIT|ROLLBACK|EXEC|EXECUTE)\b", re.IGNORECASE)


class TransactionGuard:
    """Watches the statements of handlers, because an error can end the transaction on the server without Django's knowledge.

    A conversion error (245), a deadlock (1205) and, under XACT_ABORT, any error do so; later statements would commit one by one.
    They are refused, also where the handler has swallowed the error.
    """

    def __init__(self) -> None:
        self.ended: str | None = None
        """What ended the transaction."""
        self.was_rolled_back = False
        """Whether it was the server, so that the rows are in their queue again."""
        self._connection: WatchedConnection | None = None
        self._raw: Any = None

    def begin(self, connection: WatchedConnection) -> None:
        """Watch from here on."""
        self.ended, self.was_rolled_back = None, False
        self._connection, self._raw = connection, connection.unwatched
        connection.execute_wrappers.append(self)

    def end(self) -> None:
        """Watch no more."""
        connection, self._connection = self._connection, None
        if connection is not None and self in connection.execute_wrappers:
            connection.execute_wrappers.remove(self)

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
        """Run a statement of a handler; TransactionManagementError if the transaction has ended."""
        connection: WatchedConnection = context["connection"]
        if connection.unwatched is not self._raw:
            return execute(sql, params, many, context)  # another session, which has no part in the transaction
        if self.ended is not None:
            raise TransactionManagementError(
                f"the receive transaction has ended ({self.ended}): nothing can be done in it any more"
            )
        try:
            result = execute(sql, params, many, context)
        except DjangoDatabaseError as error:
            note_number(connection, error)
            if _has_ended(connection):
                self.ended, self.was_rolled_back = f"the server rolled it back: {str(error).strip()}", True
            raise
        if _MAY_END.search(str(sql)) and _has_ended(connection, context["cursor"]):
            self.ended = "the handler ended it by a COMMIT or ROLLBACK of its own"
        return result


def _has_ended(connection: WatchedConnection, cursor: Any = None) -> bool:
    """Whether the server has no transaction any more; False where it cannot be asked, or the handler has rows to read first."""
    raw = connection.unwatched
    if raw is None or (cursor is not None and cursor.description):
        return False
    try:
        with contextlib.closing(raw.cursor()) as own:
            own.execute("SELECT @@TRANCOUNT")
            return int(own.fetchone()[0]) == 0
    except Exception:  # noqa: BLE001 - a lost connection says so at the next statement
        return False


class SqlServerReceiveTransaction(ReceiveTransaction):
    """SQL Server has no release of a savepoint; setting it again under its name moves it."""

    def prepare(self) -> None:
        if sqlserver.has_mars(self.connection.settings_dict["OPTIONS"]):
            raise ConfigurationError(
                f"DATABASES[{self.table.alias!r}] has multiple active result sets, where no transaction outlives its batch: "
                "put MARS_Connection=no into extra_params of its OPTIONS"
            )
        self._own_atomic = Atomic(self.table.alias, savepoint=True, durable=False)
        self._guard = TransactionGuard()
        self._begun = self._several = False

    def _statement_for(self, limit: int) -> str:
        return self._statements.setdefault(limit, self.table.receive_statement(limit, begins=True).sql)

    def _receive(self, limit: int) -> list[ReceivedRow]:
        connection = self.connection
        connection.ensure_connection()
        self._begun = True
        raw: Any = connection.unwatched
        if not raw.autocommit:
            raw.autocommit = True
        cursor = execute_on_sqlserver(connection, self._statements.get(limit) or self._statement_for(limit))
        found = cursor.fetchall()
        # The reader is drained to the end, so that late errors surface and the savepoint is surely set.
        while cursor.nextset():
            pass
        if not found:
            self._begun = False
            return []
        self._several = len(found) > 1
        self._atomic = self._own_atomic
        mark_begun(connection, self._own_atomic)
        self._guard.begin(connection)
        self._savepoint = Savepoint.FRESH
        return received_rows(found)

    def end_message(self) -> None:
        # Of several messages, the next must not find out that this one has ended the transaction: its savepoint is set here.
        if self._several and self._savepoint is Savepoint.USED:
            self.connection.on_first_use = None
            self._take_savepoint()
            self._savepoint = Savepoint.FRESH
        super().end_message()

    def _take_savepoint(self) -> None:
        run_on_transaction(self.connection, "save_transaction")

    _renew_savepoint = _take_savepoint

    def _rollback_to_savepoint(self) -> None:
        if self._guard.ended is not None:
            raise DoomedTransaction(f"the receive transaction has ended: {self._guard.ended}")
        if (state := int(run_on_transaction(self.connection, "rollback_to_saved")[0][0])) != 1:
            raise DoomedTransaction(f"the receive transaction can only be rolled back (XACT_STATE() = {state})")

    def _is_broken(self) -> bool:
        # The commit of a doomed transaction fails with an error of its own (3930): no round trip to ask for it.
        return self.connection.unwatched is None or self._guard.ended is not None

    def was_ended(self) -> bool:
        if self._guard.was_rolled_back:
            return False
        try:
            if self.connection.unwatched is None:
                return False
            return int(run_on_transaction(self.connection, "transaction_state")[0][0]) == 0
        except DjangoDatabaseError:
            return False

    def _commit(self, atomic: Atomic) -> None:
        self._guard.end()
        try:
            run_on_transaction(self.connection, "commit")
        except DjangoDatabaseError:
            self._guard.was_rolled_back = roll_back(self.connection)
            raise
        finally:
            self._begun = False
            mark_ended(self.connection)

    def abandon(self) -> None:
        if self.participants is not None:
            self.participants.abandon()
        if not self._begun:
            return
        self._begun = False
        self._atomic = None
        self._guard.end()
        connection = self.connection
        connection.on_first_use = None
        connection.run_on_commit = []
        connection.savepoint_ids.clear()
        connection.needs_rollback = False
        mark_ended(connection)
        roll_back(connection)
