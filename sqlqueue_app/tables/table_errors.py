"""The errors of statements about one table, as our kinds."""

from __future__ import annotations

from typing import Protocol

from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.databases.dialect import Dialect
from sqlqueue_app.messages.errors import DatabaseError, QueueNotFound
from sqlqueue_app.tables.connections import database_errors


class Table(Protocol):
    """What is asked of a table when a statement about it has failed."""

    dialect: Dialect
    qualified: str

    def connection(self) -> BaseDatabaseWrapper: ...

    def exists(self) -> bool: ...

    def forget_layout(self) -> None: ...


class TableErrors:
    """`database_errors` for one table; SQLite has no code for a missing table, so there the database is asked."""

    def __init__(self, table: Table, doing: str) -> None:
        self._table = table
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, DatabaseError):
            return
        table = self._table
        # Whatever the statement ran into, the table may have been altered since its columns were looked up.
        table.forget_layout()
        if table.dialect.name == "sqlite" and table.dialect.error_kind(error) is None and self._is_missing():
            raise missing_table(table, f"failed to {self._doing}: the table does not exist; run sqlqueue_install") from error
        try:
            with database_errors(table.dialect, self._doing):
                raise error
        except QueueNotFound as missing:
            missing.table = table.qualified
            raise

    def _is_missing(self) -> bool:
        if self._table.connection().needs_rollback:
            return False  # no question can be asked in this transaction any more
        try:
            return not self._table.exists()
        except DatabaseError:
            return False


def missing_table(table: Table, text: str) -> QueueNotFound:
    """The error that says, in these words, that there is no such table."""
    error = QueueNotFound(text)
    error.table = table.qualified
    return error
