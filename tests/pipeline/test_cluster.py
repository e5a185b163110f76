"""The job of the other tests runs unchanged on a standalone cluster of two workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from sqlqueue_app.models import LakeFile
from sqlqueue_app.spark.java import java_home
from tests.support.databases import QueueDatabase
from tests.support.filling import install, message, row, table
from tests.support.spark_cluster import spark_cluster

MESSAGES = 500
UNREADABLE = 3
# Small executors; the driver runs on this machine.
SPARK = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "2",
}
_SECONDS = 500


# Starts four JVMs while other tests run.
@pytest.mark.timeout(600)
def test_job_runs_on_a_cluster(postgresql_database: QueueDatabase, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    endpoints = {"Sales": {"AUDIT_QUEUE": "audit"}}
    install(postgresql_database, ENDPOINTS=endpoints, PIPELINE={"LAKE": str(lake), "SPARK": SPARK})
    audit = table(postgresql_database, "audit")
    audit.send([*(message({"n": number}) for number in range(MESSAGES)), *(row("not json") for _ in range(UNREADABLE))])
    numbers = audit.row_versions(MESSAGES + UNREADABLE)
    with spark_cluster(tmp_path / "cluster", java=java_home()) as master:
        command = [sys.executable, "-m", "django", "run_sqlqueue_pipeline", "--master", master, "--format", "json"]
        environment = {**os.environ, **postgresql_database.child_environment()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{"), (done.stdout, done.stderr)
    summary = json.loads(done.stdout)
    assert (summary["messages"], summary["unreadable"], summary["batches"]) == (MESSAGES, UNREADABLE, 1)
    assert in_lake(postgresql_database, lake) == {"messages": numbers[:MESSAGES], "unreadable": numbers[MESSAGES:]}
    assert audit.row_versions(1) == []


def in_lake(database: QueueDatabase, lake: Path) -> dict[str, list[int]]:
    """The row versions in the tables of messages."""
    found: dict[str, list[int]] = {}
    for each in LakeFile.objects.using(database.alias).filter(table__in=["messages", "unreadable"]):
        rows = pyarrow.parquet.read_table(lake / each.path, columns=["row_version"], partitioning=None)
        found.setdefault(each.table, []).extend(rows.column("row_version").to_pylist())
    return {name: sorted(numbers) for name, numbers in found.items()}
