"""Sending the rows of a DataFrame: staged by the tasks, then moved into the queue by one transaction: all or none, each once."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sqlqueue_app.databases.ddl import create_written_statement
from sqlqueue_app.databases.dialect import Dialect, dialect
from sqlqueue_app.databases.layouts import TableShape, check_delayed, layout_of
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.source.connections import Connection, connected
from sqlqueue_app.spark.source.messages import check_columns, staged_rows
from sqlqueue_app.spark.source.options import WriteOptions
from sqlqueue_app.spark.source.tables import find_columns, find_table

STAGING_PREFIX = "sqlqueue_staging_"
WRITTEN_TABLE = "sqlqueue_spark_written"


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged: its table, None for no rows; and the streaming query that it belongs to."""

    table: str | None
    rows: int
    query: str | None


class _Writer:
    """What batch and streaming writes share."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.sending)
        self._options = options
        self._dialect: Dialect = dialect(options.database.dialect)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task; on an error nothing of them is left."""
        query = TaskContext.get()
        query_id = query.getLocalProperty("sql.streaming.queryId") if query is not None else None
        rows = (_lower(row) for batch in iterator for row in batch.to_pylist())
        first = next(rows, None)
        if first is None:
            return Staged(None, 0, query_id)
        with connected(self._options.database, self._doing("stage messages for"), writes=True) as connection:
            destination = find_table(connection, self._options.database, self._options.queue).address
            staging = self._staging(destination)
            qualified = self._dialect.qualified(staging)
            connection.execute(self._dialect.script("create_staging", table=qualified))
            try:
                staged = staged_rows(_chain(first, rows), self._options.sending, destination)
                count = connection.stage(staging, qualified, staged)
            except BaseException:
                connection.execute(self._dialect.script("drop_table", table=qualified))
                raise
        return Staged(qualified, count, query_id)

    def _staging(self, queue: QueueAddress) -> QueueAddress:
        return QueueAddress(STAGING_PREFIX + uuid.uuid4().hex, queue.schema, queue.catalog, queue.form)

    def _doing(self, doing: str) -> str:
        return f"{doing} the queue {self._options.queue!r}"

    def _move(self, messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        filled = [message.table for message in staged if message.table is not None]
        if not filled:
            return
        query = next((message.query for message in staged if message.query), None)
        with connected(self._options.database, self._doing("send messages to"), writes=True) as connection:
            table = find_table(connection, self._options.database, self._options.queue)
            layout = layout_of(self._dialect.name, table.qualified, TableShape(table.shape, ()))
            delayed = self._delayed(connection)
            written = self._written(connection, table.address) if batch is not None and query is not None else None
            with connection.transaction():
                is_new = written is None or self._claims(connection, written, query, batch)
                for staging in filled:
                    if is_new:
                        connection.execute(self._dialect.move_statement(table.qualified, layout, staging))
                        if delayed is not None:
                            connection.execute(self._dialect.script("move_staged_delayed", table=delayed, staging=staging))
                    connection.execute(self._dialect.script("drop_table", table=staging))

    def _delayed(self, connection: Connection) -> str | None:
        if self._options.delayed is None:
            return None
        address, columns = find_columns(connection, self._options.database, "delayed", self._options.delayed)
        qualified = self._dialect.qualified(address)
        check_delayed(qualified, TableShape(columns, ()))
        return qualified

    def _written(self, connection: Connection, queue: QueueAddress) -> str:
        table = self._dialect.qualified(QueueAddress(WRITTEN_TABLE, queue.schema, queue.catalog, queue.form))
        connection.execute(create_written_statement(self._dialect, table))
        return table

    def _claims(self, connection: Connection, written: str, query: str | None, batch: int | None) -> bool:
        statement = self._dialect.statement("claim_batch", table=written)
        return bool(
            connection.fetch(statement, query=f"{query}:{uuid.uuid5(uuid.NAMESPACE_OID, self._options.queue)}", batch=batch)
        )

    def _drop(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        filled = [message.table for message in messages if isinstance(message, Staged) and message.table is not None]
        if filled:
            with connected(self._options.database, self._doing("give up messages for"), writes=True) as connection:
                for staging in filled:
                    if self._is_there(connection, staging):
                        connection.execute(self._dialect.script("drop_table", table=staging))

    def _is_there(self, connection: Connection, staging: str) -> bool:
        values = {"name": staging.strip('"')} if self._dialect.name == "sqlite" else {"table": staging}
        return bool(connection.fetch(self._dialect.statement("table_exists"), **values)[0][0])


class QueueWriter(_Writer, DataSourceArrowWriter):
    """A batch write."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send all that the tasks have staged, in one transaction."""
        self._move(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up what was staged."""
        self._drop(messages)


class QueueStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write: a batch that is written again, because nobody knew that it had been, sends nothing."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Send all that the tasks have staged, in one transaction with the number of the batch."""
        if any(isinstance(message, Staged) and message.table and not message.query for message in messages):
            raise ConfigurationError("Spark did not tell the id of the streaming query, without which a batch could be sent twice")
        self._move(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give up what was staged."""
        self._drop(messages)


def _lower(row: dict[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in row.items()}


def _chain(first: dict[str, Any], others: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield first
    yield from others
