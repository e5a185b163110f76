"""The clock of a database, which all processes that work on it share (design 6.3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, fetch_all

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def database_now(alias: str) -> datetime:
    """What time it is by the clock of the alias's database: aware, in UTC, in whole seconds. One statement; DatabaseError."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    with database_errors(dialect, "read the clock"):
        (seconds,) = fetch_all(connection, dialect.statement("clock"))[0]
    return _EPOCH + timedelta(seconds=int(seconds))
