"""SQLite with the standard library; the ADBC driver fails on columns that start with NULL and continue with text."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from sqlqueue_app.dialects.dialect import Dialect, Rendered, RowRange
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.source.database_url import Database
from sqlqueue_app.spark.source.staging import chunks, question_marks

_BATCH_BYTES = 4 * 1024 * 1024
_ROWS_OF_A_FETCH = 256
# The wait for another writer to commit.
_SECONDS_TO_WAIT = 60
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# As on PostgreSQL: one day at both ends of the calendar is left for time zones.
_EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
_LATEST = datetime(9999, 12, 30, tzinfo=UTC)


class OnSqlite:
    """A connection. Each batch is a separate statement, so it holds its lock only briefly."""

    def __init__(self, database: Database, known: Dialect, *, writes: bool) -> None:
        file = Path(database.name)
        if not file.is_file():
            raise ConfigurationError(
                f"the option url names the SQLite file {database.name!r}, which is not there (on this machine): expected "
                "sqlite:////path/of/the/file"
            )
        self._dialect = known
        # Not mode=ro, which cannot create the log of a file in WAL mode.
        uri = f"file:{quote(str(file))}?mode=rw"
        self._connection = sqlite3.connect(uri, uri=True, timeout=_SECONDS_TO_WAIT, isolation_level=None)
        if not writes:
            self._connection.execute("PRAGMA query_only=ON").close()

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        """The exceptions of the driver."""
        return (sqlite3.Error,)

    def fetch(self, statement: Rendered, **values: object) -> list[tuple[Any, ...]]:
        with closing(self._connection.execute(question_marks(statement.sql), statement.bind(values))) as cursor:
            return cursor.fetchall()

    def batches(self, table: str, columns: Iterable[str], rows: RowRange, batch_size: int) -> Iterator[pa.RecordBatch]:
        """Read a range in order; each batch is read after the previous one was consumed."""
        # RowVersion is needed to find the start of the next batch.
        names = list(dict.fromkeys(["RowVersion", *columns]))
        while rows.lowest <= rows.highest:
            found, is_last = self._some_rows(self._dialect.read_statement(table, names, rows, limit=batch_size), batch_size)
            if found:
                rows = replace(rows, lowest=found[-1][0] + 1)
                yield _batch(names, found)
            if is_last:
                break

    def _some_rows(self, sql: str, limit: int) -> tuple[list[tuple[Any, ...]], bool]:
        """The rows of the next batch, and whether it is the last."""
        found: list[tuple[Any, ...]] = []
        held = 0
        with closing(self._connection.execute(sql)) as cursor:
            while some := cursor.fetchmany(1 if held > _BATCH_BYTES // 4 else _ROWS_OF_A_FETCH):
                found += some
                held += sum(len(value) for row in some for value in row if isinstance(value, bytes))
                if held >= _BATCH_BYTES:
                    return found, False
        return found, len(found) < limit

    def execute(self, sql: str) -> None:
        self._connection.execute(sql).close()

    def stage(self, address: QueueAddress, qualified: str, rows: Iterable[dict[str, Any]]) -> int:
        """Insert staging rows; others may write between the chunks."""
        statement = self._dialect.statement("stage_row", table=qualified)
        sql = question_marks(statement.sql)
        count = 0
        for chunk in chunks(rows):
            with self.transaction():
                self._connection.executemany(sql, [statement.bind(row) for row in chunk]).close()
            count += len(chunk)
        return count

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A context that commits at its end; waits for other writers."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._connection.close()


def _batch(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return pa.RecordBatch.from_arrays([_column(name, values) for name, values in columns.items()], names=list(names))


def _column(name: str, values: Sequence[Any]) -> pa.Array:
    if name == "RowVersion":
        return pa.array(values, pa.int64())
    if name == "Expires":
        return pa.array([_microseconds(value) for value in values], pa.int64()).cast(pa.timestamp("us", "UTC"))
    column = pa.array(values, pa.binary())
    if name == "Body":
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        # Not UTF-8. Different ids stay different, as in `row_id_of`.
        errors = "backslashreplace" if name == "Id" else "replace"
        return pa.array([None if value is None else value.decode("utf-8", errors) for value in values], pa.string())


def _microseconds(value: bytes | None) -> int | None:
    """Microseconds since 1970; None for text that is not a time, like every other read of a queue."""
    if value is None:
        return None
    try:
        instant = datetime.fromisoformat(value.decode("ascii"))
    except ValueError:
        return None
    since = min(max(instant if instant.tzinfo else instant.replace(tzinfo=UTC), _EARLIEST), _LATEST) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
