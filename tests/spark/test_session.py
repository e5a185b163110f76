"""The session: its settings, one per process, and no files left after its end or a kill."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.spark.session import Scratch, pack, spark_running, spark_session
from tests.support.databases import ROOT
from tests.support.spark import MASTER
from tests.support.waiting import poll_until


def test_session_has_suitable_settings(spark: SparkSession) -> None:
    def conf_of(key: str) -> str | None:
        return spark.conf.get(key)

    assert conf_of("spark.sql.session.timeZone") == "UTC"
    assert conf_of("spark.sql.python.filterPushdown.enabled") == "true"
    assert conf_of("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert conf_of("spark.ui.enabled") == "false"
    assert conf_of("spark.python.sql.dataFrameDebugging.enabled") == "false"
    assert conf_of("spark.sql.dataFrameQueryContext.enabled") == "false"
    assert conf_of("spark.sql.ui.explainMode") == "simple"
    assert conf_of("spark.sql.shuffle.partitions") == "2"
    assert conf_of("spark.sql.ansi.enabled") == "true"


def test_running_session_is_reused(spark: SparkSession) -> None:
    assert spark_session(MASTER) is spark
    with spark_running(MASTER) as again:
        assert again is spark
    assert spark.range(3).count() == 3


def test_changeable_settings_are_applied_to_a_running_session(spark: SparkSession) -> None:
    try:
        spark_session(MASTER, {"spark.sql.shuffle.partitions": "3"})
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_second_session_in_a_process_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"on 'local\[2\]', and cannot also run on 'spark://elsewhere:7077'"):
        spark_session("spark://elsewhere:7077")
    with pytest.raises(ConfigurationError, match=r"spark\.driver\.memory.*'3g'.*end that session first"):
        spark_session(MASTER, {"spark.driver.memory": "3g"})


def test_refused_master_is_explained() -> None:
    command = [sys.executable, "-c", "from sqlqueue_app.spark.session import spark_session; spark_session('local[0]')"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert "Spark did not start on 'local[0]': org.apache.spark.SparkException: Asked to run locally with 0 threads" in ended.stderr


def test_python_workers_find_the_package(spark: SparkSession) -> None:
    def where(_: object) -> str:
        import sqlqueue_app.messages.headers

        return sqlqueue_app.messages.headers.__file__

    assert spark.sparkContext.parallelize([1], 1).map(where).collect() == [str(ROOT / "sqlqueue_app/messages/headers.py")]


def test_python_workers_import_the_installed_spark(spark: SparkSession) -> None:
    """They do not import the archive of its sources, which each process would compile."""

    def where(_: object) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([1], 1).map(where).collect() == [pyspark.__file__]


CHILD = """
import sys
from sqlqueue_app.spark.session import spark_session, stop_spark
spark = spark_session("local[1]", {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
assert spark.range(5).repartition(2).count() == 5
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["in order", "killed"])
def test_session_leaves_no_files(end: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        (root,) = tmp_path.glob("sqlqueue-spark-*")
        (folder,) = (path for path in root.iterdir() if path.is_dir())
        if end == "killed":
            child.kill()
        child.stdin.close()
        child.wait(60)

    if end == "killed":
        # simulates the files of a killed JVM; the next start removes them once no process owns them
        folder.mkdir(exist_ok=True)
        (folder / "blockmgr-1").mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path))
            poll_until(lambda: _swept(folder), 60)
    assert [path.name for path in root.iterdir()] == ["starting"]
    assert [path.name for path in tmp_path.iterdir()] == [root.name]


def _swept(folder: Path) -> bool:
    Scratch().remove()
    return not folder.exists()


def test_folder_in_use_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = Scratch()
    (first.folder / "spark-1").mkdir()

    second = Scratch()

    assert first.folder.exists()
    first.remove()
    second.remove()
    second.remove()
    assert [path.name for path in first.folder.parent.iterdir()] == ["starting"]


def test_archive_for_executors_has_the_required_modules(tmp_path: Path) -> None:
    archive = pack(tmp_path)

    with zipfile.ZipFile(archive) as packed:
        names = set(packed.namelist())
    assert {"sqlqueue_app/__init__.py", "sqlqueue_app/dialects/sql/postgresql/queue.sql"} <= names
    parts = {name.split("/")[1] for name in names}
    assert parts <= {"__init__.py", "messages", "policies", "dialects", "lake", "spark"}
    script = f"""
import sys
sys.path.insert(0, {str(archive)!r})
from sqlqueue_app.dialects.dialect import dialect
print(dialect("sqlite").statement("send", table="x", columns="y", rows="z").sql)
"""
    command = [sys.executable, "-I", "-c", script]
    conf_of = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert conf_of == "INSERT INTO x (y)\nVALUES z\n"
