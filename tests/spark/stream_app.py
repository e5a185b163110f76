"""A process that sends a stream of files to a queue, and is killed: `python -m tests.spark.stream_app URL QUEUE FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from sqlqueue_app.spark.session import spark_session
from tests.support.spark import CONF, MASTER


def send_files(spark: SparkSession, url: str, queue: str, folder: Path) -> None:
    """Send each line of `folder/files`, one file per batch, continuing from the checkpoint in `folder/checkpoint`."""
    source = spark.readStream.schema("id STRING, body STRING").option("maxFilesPerTrigger", 1).json(str(folder / "files"))
    writer = source.writeStream.format("sqlqueue").options(url=url, queue=queue, message_type="Sales.Copy")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    send_files(spark_session(MASTER, CONF), sys.argv[1], sys.argv[2], Path(sys.argv[3]))
