"""A Spark session for the tests that request it, shared by the process that runs them (see side_by_side)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.databases import ROOT
from tests.support.side_by_side import SPARK_FOLDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Two cores and two partitions; only the first JIT compiler, because no test runs long enough to benefit from the second.
MASTER = "local[2]"
CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def has_spark() -> bool:
    """Whether the extra `spark` is installed."""
    return importlib.util.find_spec("pyspark") is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore the Spark folders if the extra is missing; None leaves the decision to other plugins."""
    if has_spark() or not collection_path.is_relative_to(ROOT):
        return None
    return f"{collection_path.relative_to(ROOT).as_posix()}/".startswith(SPARK_FOLDERS) or None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The SparkSession of all tests. A test restores the settings that it changes."""
    from sqlqueue_app.spark.session import spark_session, stop_spark

    yield spark_session(MASTER, CONF)
    stop_spark()
