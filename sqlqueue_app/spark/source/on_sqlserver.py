"""SQL Server by mssql-python, which gives Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa

from sqlqueue_app.databases.dialect import Dialect, RowRange
from sqlqueue_app.databases.statements import Rendered
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.source.staging import portions
from sqlqueue_app.spark.source.urls import Database

_DEFAULT_PORT = 1433


def connect(database: Database, known: Dialect, *, writes: bool) -> OnSqlServer:  # noqa: ARG001 -- it has no way to forbid writes
    """A new connection."""
    return OnSqlServer(database, known)


def errors() -> tuple[type[Exception], ...]:
    """What the driver raises."""
    return (_driver().Error,)


def _driver() -> Any:
    try:
        import mssql_python  # noqa: PLC0415 -- only workers that read SQL Server need it
    except ImportError:
        raise ConfigurationError(
            "reading SQL Server needs the package mssql-python where Spark's Python workers run: pip install "
            "'django-sqlqueue[mssql]' there"
        ) from None
    return mssql_python


def connection_string(database: Database) -> str:
    """The url as the driver wants it; values in braces, so that a semicolon in a password ends nothing."""
    pairs = {"Server": f"{database.host},{database.port or _DEFAULT_PORT}", "Database": database.name}
    if database.user:
        pairs |= {"UID": database.user, "PWD": database.password}
    pairs |= dict(database.options)
    return "".join(f"{key}={_braced(value)};" for key, value in pairs.items())


def _braced(value: str) -> str:
    return "{" + value.replace("}", "}}") + "}"


class OnSqlServer:
    """One connection in autocommit mode, at the server's READ COMMITTED."""

    def __init__(self, database: Database, known: Dialect) -> None:
        self._dialect = known
        self._connection = _driver().connect(connection_string(database), autocommit=True)

    def fetch(self, statement: Rendered | str, **values: object) -> list[tuple[Any, ...]]:
        """All rows of a small answer."""
        sql, parameters = (statement, ()) if isinstance(statement, str) else (_marked(statement.sql), statement.bind(values))
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(sql, *([list(parameters)] if parameters else []))
            return [tuple(row) for row in cursor.fetchall()]

    def batches(self, table: str, columns: Iterable[str], rows: RowRange, batch_size: int) -> Iterator[pa.RecordBatch]:
        """The rows of a range, as they come over the line."""
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(self._dialect.read_statement(table, columns, rows))
            with cursor.arrow_reader(batch_size) as reader:
                yield from reader

    def execute(self, sql: str) -> None:
        """A statement without an answer."""
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(sql)

    def stage(self, address: QueueAddress, qualified: str, rows: Iterable[dict[str, Any]]) -> int:
        """Fill a table of staged messages."""
        statement = self._dialect.statement("stage_row", table=qualified)
        sql = _marked(statement.sql)
        count = 0
        for portion in portions(rows):
            with self.transaction(), closing(self._connection.cursor()) as cursor:
                cursor.executemany(sql, [list(statement.bind(row)) for row in portion])
            count += len(portion)
        return count

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Statements that are committed together."""
        self._connection.setautocommit(False)
        try:
            yield
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        finally:
            self._connection.setautocommit(True)

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def _marked(sql: str) -> str:
    return sql.replace("%s", "?").replace("%%", "%")
