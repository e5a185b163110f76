"""PostgreSQL by ADBC: COPY delivers rows directly as Arrow, without Python in between."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa

from sqlqueue_app.dialects.dialect import Dialect, Rendered, RowRange
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.source.database_url import Database
from sqlqueue_app.spark.source.staging import COLUMNS, chunks

# Measured: larger batches cost memory and gain nothing.
_BATCH_BYTES = 4 * 1024 * 1024
_SECONDS_TO_CONNECT = 30
_NUMBERS = ("position", "time_to_be_received_ms", "delay_ms")
_STAGED = pa.schema(
    [(name, pa.int64() if name in _NUMBERS else pa.binary() if name == "body" else pa.string()) for name in COLUMNS]
)


def _driver() -> Any:
    try:
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415 -- only workers that read PostgreSQL need it
    except ImportError:
        raise ConfigurationError(
            "reading PostgreSQL needs the package adbc-driver-postgresql where Spark's Python workers run: pip install "
            "'django-sqlqueue[spark]' there"
        ) from None
    return dbapi


class OnPostgresql:
    """An ADBC connection in autocommit mode."""

    def __init__(self, database: Database, known: Dialect, *, writes: bool) -> None:
        url = database.url
        if "connect_timeout" not in dict(database.options):
            url += ("&" if "?" in url else "?") + f"connect_timeout={_SECONDS_TO_CONNECT}"
        self._dialect = known
        self._connection = _driver().connect(url, autocommit=True)
        if not writes:
            self.execute("SET default_transaction_read_only = on")

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        """The exceptions of the driver. Raises ConfigurationError if it is not installed."""
        return (_driver().Error,)

    def fetch(self, statement: Rendered, **values: object) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(_numbered(statement.sql), statement.bind(values) or None)
            return [tuple(row) for row in cursor.fetchall()]

    def batches(self, table: str, columns: Iterable[str], rows: RowRange, batch_size: int) -> Iterator[pa.RecordBatch]:
        with closing(self._connection.cursor()) as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
            cursor.execute(self._dialect.read_statement(table, columns, rows))
            reader = cursor.fetch_record_batch()
            try:
                for batch in reader:
                    for start in range(0, batch.num_rows, batch_size):
                        yield batch.slice(start, batch_size)
            finally:
                reader.close()

    def execute(self, sql: str) -> None:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(sql)

    def stage(self, address: QueueAddress, qualified: str, rows: Iterable[dict[str, Any]]) -> int:
        """Insert staging rows by COPY."""
        count = 0
        with closing(self._connection.cursor()) as cursor:
            for chunk in chunks(rows):
                batch = pa.RecordBatch.from_pylist(chunk, schema=_STAGED)
                cursor.adbc_ingest(address.table, batch, mode="append", db_schema_name=address.schema)
                count += len(chunk)
        return count

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.adbc_connection.set_autocommit(False)
        try:
            yield
            self._connection.adbc_connection.commit()
        except BaseException:
            self._connection.adbc_connection.rollback()
            raise
        finally:
            self._connection.adbc_connection.set_autocommit(True)

    def close(self) -> None:
        self._connection.close()


def _numbered(sql: str) -> str:
    """Replace `%s` by PostgreSQL's own placeholders."""
    numbers = iter(range(1, sql.count("%s") + 1))
    return re.sub(r"%s|%%", lambda mark: f"${next(numbers)}" if mark[0] == "%s" else "%", sql)
