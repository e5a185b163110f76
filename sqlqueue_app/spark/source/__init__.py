"""The Spark data source `sqlqueue`: batch and streaming reads and writes of queue tables. Runs on executors, so without Django.

`spark.dataSource.register(SqlQueueDataSource)`, then `spark.read.format("sqlqueue")`.
"""

from __future__ import annotations

import sys

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.source.batch_reader import FilteringQueueReader, QueueReader, check_schema, schema_of
from sqlqueue_app.spark.source.database_url import source_url
from sqlqueue_app.spark.source.options import read_options, stream_options, write_options
from sqlqueue_app.spark.source.stream_reader import QueueFollower
from sqlqueue_app.spark.source.writer import QueueStreamWriter, QueueWriter

__all__ = ["SqlQueueDataSource", "source_url"]

_HANDS_FILTERS_DOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class SqlQueueDataSource(DataSource):
    """Queue tables of SQL Server, PostgreSQL and SQLite.

    Read options: `url`, `queue`, `partitions`, `batch_size`, `headers` ("parsed" adds the column HeaderMap); for streaming also
    `max_rows_per_trigger` and `settle_seconds`. A read blocks no worker, deletes nothing, and returns the rows that existed when it
    was planned and still exist.

    Write options (append, batch or streaming): `url`, `queue`, `message_type`, `send_as`, `delayed`. Rows are checked and staged
    first, then one transaction moves all of them into the queue, so each is sent exactly once.
    """

    @classmethod
    def name(cls) -> str:
        return "sqlqueue"

    def schema(self) -> StructType:
        """The columns. Also validates the options, because Spark calls this first."""
        return schema_of(parsed_headers=stream_options(self.options).read.parsed_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        check_schema(schema, parsed_headers=options.parsed_headers)
        return FilteringQueueReader(options, schema) if _filters_are_handed_down() else QueueReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        options = stream_options(self.options)
        check_schema(schema, parsed_headers=options.read.parsed_headers)
        return QueueFollower(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        self._refuse(overwrite)
        return QueueWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: N802
        self._refuse(overwrite)
        return QueueStreamWriter(write_options(self.options), schema)

    def _refuse(self, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError("a queue cannot be overwritten, because its messages would be lost: use the mode append")


def _filters_are_handed_down() -> bool:
    """Whether Spark pushes filters down in this process.

    It rejects a reader with `pushFilters` if its setting is off, the default; the module that pushes filters only runs if it is on.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _HANDS_FILTERS_DOWN in sys.modules or (main is not None and main.name == _HANDS_FILTERS_DOWN)
