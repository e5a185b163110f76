"""SQL Server by mssql-python, which returns Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa

from sqlqueue_app.dialects.dialect import Dialect, Rendered, RowRange
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.source.database_url import Database
from sqlqueue_app.spark.source.staging import chunks, question_marks

_DEFAULT_PORT = 1433


def _driver() -> Any:
    try:
        import mssql_python  # noqa: PLC0415 -- only workers that read SQL Server need it
    except ImportError:
        raise ConfigurationError(
            "reading SQL Server needs the package mssql-python where Spark's Python workers run: pip install "
            "'django-sqlqueue[mssql]' there"
        ) from None
    # Spark keeps its Python workers: a pool of the driver would keep a session for each of them, for ten minutes.
    mssql_python.pooling(enabled=False)
    return mssql_python


def connection_string(database: Database) -> str:
    """The connection string of a url; values in braces, because a password may contain a semicolon."""
    pairs = {"Server": f"{database.host},{database.port or _DEFAULT_PORT}", "Database": database.name}
    if database.user:
        pairs |= {"UID": database.user, "PWD": database.password}
    pairs |= dict(database.options)
    return "".join(f"{key}={_braced(value)};" for key, value in pairs.items())


def _braced(value: str) -> str:
    return "{" + value.replace("}", "}}") + "}"


class OnSqlServer:
    """A connection in autocommit mode, at READ COMMITTED. SQL Server has no read-only sessions, so `writes` is ignored."""

    def __init__(self, database: Database, known: Dialect, *, writes: bool) -> None:
        self._dialect = known
        self._connection = _driver().connect(connection_string(database), autocommit=True)

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        """The exceptions of the driver. Raises ConfigurationError if it is not installed."""
        return (_driver().Error,)

    def fetch(self, statement: Rendered, **values: object) -> list[tuple[Any, ...]]:
        parameters = statement.bind(values)
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(question_marks(statement.sql), *([list(parameters)] if parameters else []))
            return [tuple(row) for row in cursor.fetchall()]

    def batches(self, table: str, columns: Iterable[str], rows: RowRange, batch_size: int) -> Iterator[pa.RecordBatch]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(self._dialect.read_statement(table, columns, rows))
            with cursor.arrow_reader(batch_size) as reader:
                yield from reader

    def execute(self, sql: str) -> None:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(sql)

    def stage(self, address: QueueAddress, qualified: str, rows: Iterable[dict[str, Any]]) -> int:
        statement = self._dialect.statement("stage_row", table=qualified)
        sql = question_marks(statement.sql)
        count = 0
        for chunk in chunks(rows):
            with self.transaction(), closing(self._connection.cursor()) as cursor:
                cursor.executemany(sql, [list(statement.bind(row)) for row in chunk])
            count += len(chunk)
        return count

    @contextmanager
    def transaction(self) -> Iterator[None]:
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
        self._connection.close()
