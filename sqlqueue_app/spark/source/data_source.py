"""The data source as Spark knows it: `spark.dataSource.register(SqlQueueDataSource)`, then `spark.read.format("sqlqueue")`."""

from __future__ import annotations

import sys

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.source.columns import check_schema, schema_of
from sqlqueue_app.spark.source.following import QueueFollower
from sqlqueue_app.spark.source.options import read_options, stream_options, write_options
from sqlqueue_app.spark.source.reading import FilteringQueueReader, QueueReader
from sqlqueue_app.spark.source.writing import QueueStreamWriter, QueueWriter

_HANDS_FILTERS_DOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class SqlQueueDataSource(DataSource):
    """Queue tables of SQL Server, PostgreSQL and SQLite.

    Options of a read: `url`, `queue`, `partitions`, `batch_size`, `headers` ("parsed" adds the column HeaderMap); of a streaming
    read also `max_rows_per_trigger` and `settle_seconds`. A read takes no locks that a worker would wait for, deletes nothing, and
    sees the rows that were there when it was planned and still are.

    Options of a write (append, batch or streaming): `url`, `queue`, `message_type`, `send_as`, `delayed`. Every row is sent once:
    all of them are checked and staged first, and moved into the queue by one transaction.
    """

    @classmethod
    def name(cls) -> str:
        """What `format()` is given."""
        return "sqlqueue"

    def schema(self) -> StructType:
        """The columns; also checks the options, because this is asked first."""
        return schema_of(parsed_headers=stream_options(self.options).read.parsed_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of those columns."""
        options = read_options(self.options)
        check_schema(schema, parsed_headers=options.parsed_headers)
        return FilteringQueueReader(options, schema) if _filters_are_handed_down() else QueueReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        """A streaming read of those columns."""
        options = stream_options(self.options)
        check_schema(schema, parsed_headers=options.read.parsed_headers)
        return QueueFollower(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write of messages."""
        self._refuse(overwrite)
        return QueueWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: N802
        """A streaming write of messages."""
        self._refuse(overwrite)
        return QueueStreamWriter(write_options(self.options), schema)

    def _refuse(self, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError("a queue is never overwritten, for its messages would be lost: use the mode append")


def _filters_are_handed_down() -> bool:
    """Whether this process asks for filters. Where Spark's setting for it is off, which is its default, a reader that takes them is
    refused; the module that hands them down runs only where it is on.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _HANDS_FILTERS_DOWN in sys.modules or (main is not None and main.name == _HANDS_FILTERS_DOWN)
