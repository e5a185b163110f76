"""The data source `sqlqueue`: queue tables read, followed and written to by Spark. Runs on executors, so without Django."""

from __future__ import annotations

from sqlqueue_app.spark.source.data_source import SqlQueueDataSource
from sqlqueue_app.spark.source.urls import source_url

__all__ = ["SqlQueueDataSource", "source_url"]
