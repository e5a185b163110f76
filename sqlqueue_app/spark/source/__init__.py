"""The Spark data source `sqlqueue`: batch and streaming reads and writes of queue tables. Runs on executors, so without Django."""

from __future__ import annotations

from sqlqueue_app.spark.source.data_source import SqlQueueDataSource
from sqlqueue_app.spark.source.database_url import source_url

__all__ = ["SqlQueueDataSource", "source_url"]
