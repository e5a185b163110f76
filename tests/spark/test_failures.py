"""Errors of Spark are summarized."""

from __future__ import annotations

import pytest

from sqlqueue_app.spark.session import SparkFailed, spark_errors, summarize

_FRAMES = """
  File "/srv/sqlqueue_app/spark/source/reading.py", line 9, in <module>
    rows = read()
           ^^^^^^
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"[PYTHON_DATA_SOURCE_ERROR] Failed to create: Traceback (most recent call last):{_FRAMES}"
            "ModuleNotFoundError: No module named 'pyarrow'\n SQLSTATE: 38000",
            "the Python that Spark starts lacks the module pyarrow: install it on every machine of the cluster",
        ),
        (
            f"Job aborted: Traceback (most recent call last):{_FRAMES}KeyError: 'x'\n\nThe above was the cause\n\n"
            f"Traceback (most recent call last):{_FRAMES}some.module.Broken: no: really\n\tat org.apache.spark.Task",
            "some.module.Broken: no: really",
        ),
        (
            f"Traceback (most recent call last):{_FRAMES}sqlqueue_app.messages.errors.QueueNotFound: queue Sales is gone\n",
            "queue Sales is gone",
        ),
        ("java.io.IOException: No space left on device\n\tat java.base", "the disk is full"),
        ("Something else\n\tat java.base", "Something else"),
        ("An error occurred while calling o1.parquet.\n: a.Fault: broken\n\tat a.B", "a.Fault: broken"),
        ("", "Java has ended"),
    ],
)
def test_spark_error_is_summarized_in_one_line(text: str, expected: str) -> None:
    assert summarize(text).startswith(expected)


def test_error_names_the_failed_step() -> None:
    with pytest.raises(SparkFailed, match="failed to write: the file system is read-only"), spark_errors("write"):
        raise ConnectionError("Read-only file system")
