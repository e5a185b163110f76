"""What Spark says when something goes wrong, in one line, and what it means where that can be told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import PySparkException

from sqlqueue_app.messages.errors import SqlQueueError

_OURS = re.compile(r"sqlqueue_app\.messages\.errors\.(?P<kind>\w+): (?P<text>[^\n]+)")
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(?P<name>[^']+)'")
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(?P<said>[A-Za-z_][\w.]*(?:: .*)?)$", re.MULTILINE)
_MEANINGS = (
    ("No space left on device", "the disk is full: make room, and start again"),
    ("Disk quota exceeded", "the disk is full: make room, and start again"),
    ("Read-only file system", "the file system is read-only"),
    ("Permission denied", "the user of this process may not write there"),
    ("ClassNotFoundException: Class org.apache.hadoop.fs.s3a", "Spark needs the package hadoop-aws for s3a: (spark.jars.packages)"),
    ("No FileSystem for scheme", "Spark does not know this kind of store: name its package in spark.jars.packages"),
    ("OutOfMemoryError", "Java has too little memory: give it more by spark.driver.memory, or take smaller batches"),
)


class SparkFailed(SqlQueueError):
    """A job of Spark has failed; the cause is what Spark raised."""


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    """Turn what Spark raises into SparkFailed, in words; `doing` completes "failed to ..."."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise SparkFailed(f"failed to {doing}: {in_short(str(error))}") from error


def in_short(text: str) -> str:
    """What is worth knowing of a text of hundreds of lines: what our own code said, what it means, or how it begins."""
    ours = _OURS.search(text)
    if ours is not None:
        return ours["text"]
    missing = _MISSING.search(text)
    if missing is not None:
        return (
            f"the Python that Spark starts lacks the module {missing['name']}: install it on every machine of the cluster, or name "
            "another Python in the setting spark.pyspark.python"
        )
    for sign, meaning in _MEANINGS:
        if sign in text:
            return meaning
    _before, found, traceback = text.rpartition(_TRACEBACK)
    if found and (raised := _RAISED.findall(traceback)):
        return str(raised[0])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "Java has ended; what it said stands above"
