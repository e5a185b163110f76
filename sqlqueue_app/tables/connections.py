"""Django connections as the queue tables use them: dialect, error kinds, a scope for statements outside of a transaction."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from django.db import Error as DjangoError
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.databases.dialect import Dialect, dialect_of_vendor
from sqlqueue_app.databases.statements import Rendered
from sqlqueue_app.messages.errors import DatabaseError, DoomedTransaction


def connection_of(alias: str) -> BaseDatabaseWrapper:
    """Django's connection of the calling thread for the alias."""
    return connections[alias]


def aliases_beside(alias: str) -> list[str]:
    """The other aliases of DATABASES."""
    return [other for other in connections if other != alias]


def dialect_of_connection(connection: BaseDatabaseWrapper) -> Dialect:
    """The dialect of a connection; ConfigurationError for a database that cannot hold queues. Does not connect."""
    return dialect_of_vendor(connection.vendor)


@contextmanager
def database_errors(dialect: Dialect, doing: str) -> Iterator[None]:
    """Turn an error of driver or Django that has a kind into our own error, the original kept as its cause.

    `doing` completes "failed to ...". A database error without a kind becomes a plain DatabaseError; others pass unchanged.
    """
    try:
        yield
    except Exception as error:
        kind = _kind_of(dialect, error)
        if kind is None:
            raise
        raise kind(f"failed to {doing}: {str(error).strip()}") from error


def _kind_of(dialect: Dialect, error: Exception) -> type[DatabaseError] | None:
    if isinstance(error, transaction.TransactionManagementError):
        # Its cause is the error that broke the transaction earlier, and says nothing of this statement.
        return DoomedTransaction
    return dialect.error_kind(error) or (DatabaseError if isinstance(error, DjangoError) else None)


def statement_scope(connection: BaseDatabaseWrapper) -> Any:
    """A scope for statements that must be complete on their own: none inside of a transaction, else what the database needs.

    mssql-django leaves its driver in manual commit mode after a transaction, where a bare statement would stay uncommitted.
    """
    if connection.vendor == "microsoft" and not connection.in_atomic_block:
        return transaction.atomic(using=connection.alias)
    return nullcontext()


def fetch_all(connection: BaseDatabaseWrapper, statement: Rendered, **values: object) -> list[tuple[Any, ...]]:
    """Run a statement that returns rows; in the transaction of the connection if there is one."""
    with statement_scope(connection), connection.cursor() as cursor:
        cursor.execute(statement.sql, statement.bind(values))
        return [tuple(row) for row in cursor.fetchall()]


def run(connection: BaseDatabaseWrapper, statement: Rendered, **values: object) -> int:
    """Run a statement that changes rows and return how many."""
    with statement_scope(connection), connection.cursor() as cursor:
        cursor.execute(statement.sql, statement.bind(values))
        return int(cursor.rowcount)


class SecondConnections:
    """A second connection per thread to the database of one alias, for work that must not join the thread's transaction."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._local = threading.local()

    @contextmanager
    def used(self) -> Iterator[BaseDatabaseWrapper]:
        """While open, the alias means the second connection in this thread; `connections` is a per-thread mapping."""
        second: BaseDatabaseWrapper | None = getattr(self._local, "connection", None)
        if second is None:
            second = self._local.connection = connections.create_connection(self._alias)
        first = connections[self._alias]
        connections[self._alias] = second
        try:
            yield second
        finally:
            connections[self._alias] = first

    def close(self) -> None:
        """Close the calling thread's second connection, if it has one."""
        second: BaseDatabaseWrapper | None = getattr(self._local, "connection", None)
        if second is not None:
            second.close()
