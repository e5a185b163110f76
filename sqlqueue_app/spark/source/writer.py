"""Writes of a DataFrame: tasks stage the rows, then one transaction moves all of them into the queue, each exactly once."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sqlqueue_app.dialects.dialect import Dialect, TableShape, check_delayed, dialect, layout_of
from sqlqueue_app.dialects.schema import create_written_statement
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.source.database import Connection, connected, find_columns, find_table
from sqlqueue_app.spark.source.options import WriteOptions
from sqlqueue_app.spark.source.staging import check_columns, staged_rows

STAGING_PREFIX = "sqlqueue_staging_"
WRITTEN_TABLE = "sqlqueue_spark_written"


@dataclass
class Staged(WriterCommitMessage):
    """The staging table of a task, None without rows, and the id of its streaming query."""

    table: str | None
    rows: int
    query: str | None


class _StagingWriter:
    """Staging and moving, shared by batch and streaming writes."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.sending)
        self._options = options
        self._dialect: Dialect = dialect(options.database.dialect)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of one task; on an error the staging table is dropped."""
        query = TaskContext.get()
        query_id = query.getLocalProperty("sql.streaming.queryId") if query is not None else None
        rows = ({name.lower(): value for name, value in row.items()} for batch in iterator for row in batch.to_pylist())
        first = next(rows, None)
        if first is None:
            return Staged(None, 0, query_id)
        with connected(self._options.database, self._doing("stage messages for"), writes=True) as connection:
            destination = find_table(connection, self._options.database, self._options.queue).address
            staging = replace(destination, table=STAGING_PREFIX + uuid.uuid4().hex)
            qualified = self._dialect.qualified(staging)
            connection.execute(self._dialect.script("create_staging", table=qualified))
            try:
                staged = staged_rows(chain([first], rows), self._options.sending, destination)
                count = connection.stage(staging, qualified, staged)
            except BaseException:
                connection.execute(self._dialect.script("drop_table", table=qualified))
                raise
        return Staged(qualified, count, query_id)

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
        table = self._dialect.qualified(replace(queue, table=WRITTEN_TABLE))
        connection.execute(create_written_statement(self._dialect, table))
        return table

    def _claims(self, connection: Connection, written: str, query: str | None, batch: int | None) -> bool:
        statement = self._dialect.statement("claim_batch", table=written)
        return bool(
            connection.fetch(statement, query=f"{query}:{uuid.uuid5(uuid.NAMESPACE_OID, self._options.queue)}", batch=batch)
        )

    def _drop(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Drop the staging tables."""
        filled = [message.table for message in messages if isinstance(message, Staged) and message.table is not None]
        if filled:
            with connected(self._options.database, self._doing("discard the messages staged for"), writes=True) as connection:
                for staging in filled:
                    if self._is_there(connection, staging):
                        connection.execute(self._dialect.script("drop_table", table=staging))

    def _is_there(self, connection: Connection, staging: str) -> bool:
        values = {"name": staging.strip('"')} if self._dialect.name == "sqlite" else {"table": staging}
        return bool(connection.fetch(self._dialect.statement("table_exists"), **values)[0][0])


class QueueWriter(_StagingWriter, DataSourceArrowWriter):
    """A batch write."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send all staged rows in one transaction."""
        self._move(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._drop(messages)


class QueueStreamWriter(_StagingWriter, DataSourceStreamArrowWriter):
    """A streaming write. A batch that Spark repeats after a lost commit sends nothing."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """Send all staged rows in one transaction that also records the batch number."""
        if any(isinstance(message, Staged) and message.table and not message.query for message in messages):
            raise ConfigurationError("Spark gave no id of the streaming query; without it, a batch could be sent twice")
        self._move(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._drop(messages)
