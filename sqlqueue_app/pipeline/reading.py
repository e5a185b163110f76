"""Reading queues by the data source `sqlqueue`, as the settings of Django describe their database; and what Spark says in short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import connections

from sqlqueue_app.pipeline.tools import Reader
from sqlqueue_app.spark.source import source_url
from sqlqueue_app.tables.queue import QueueTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def reader_of(session: SparkSession, alias: str) -> Reader:
    """Reads the queues of a database. ConfigurationError for one that only this process sees, such as SQLite in memory."""
    connection = connections[alias]
    settings = connection.settings_dict
    url = source_url(
        connection.vendor,
        str(settings["NAME"]),
        host=settings["HOST"],
        port=settings["PORT"],
        user=settings["USER"],
        password=settings["PASSWORD"],
        options=settings["OPTIONS"],
    )

    def read(table: QueueTable, lowest: int | None, highest: int) -> DataFrame:
        rows = session.read.format("sqlqueue").option("url", url).option("queue", str(table.address)).load()
        up_to = rows.where(f"RowVersion <= {int(highest)}")
        return up_to if lowest is None else up_to.where(f"RowVersion >= {int(lowest)}")

    return read
