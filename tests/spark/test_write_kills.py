"""After `kill -9` of a process that sends a stream, each row is in the queue exactly once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import transaction
from pyspark.sql import SparkSession

from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.spark.source.writer import WRITTEN_TABLE
from sqlqueue_app.tables.installation import install_tables
from tests.spark.conftest import url_of
from tests.spark.stream_app import send_files
from tests.support.databases import QueueDatabase
from tests.support.processes import children_of, is_gone
from tests.support.raw_rows import read_rows
from tests.support.waiting import poll_until

ROWS = 20
SECONDS = 120


# Three Spark processes in sequence need more than the usual four minutes on a busy machine.
@pytest.mark.timeout(600)
def test_each_row_is_sent_once_despite_two_kills(postgresql_database: QueueDatabase, spark: SparkSession, tmp_path: Path) -> None:
    database = postgresql_database
    install_tables(database.alias, [PlannedTable(TableKind.QUEUE, QueueAddress("Target", "public", form="postgresql"))])
    ids = [*write_file(tmp_path, "1"), *write_file(tmp_path, "2")]

    # during the transaction of the first batch, which waits for a lock on the queue with its rows staged
    with child(database, tmp_path) as process, transaction.atomic(using=database.alias):
        execute(database, 'LOCK TABLE "Target" IN EXCLUSIVE MODE')
        poll_until(lambda: process.poll() is not None or execute(database, WAITING), SECONDS)
        kill(process)
    assert process.returncode == -signal.SIGKILL
    assert sent(database) == []

    # after the transaction of the second batch, before Spark has recorded its completion
    with child(database, tmp_path) as process:
        poll_until(lambda: process.poll() is not None or last_batch(database) == 1, SECONDS)
        kill(process)
    assert sent(database) == sorted(ids)
    for name in ("1", ".1.crc"):
        # Spark may have recorded it before the kill
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)

    ids += write_file(tmp_path, "3")
    send_files(spark, url_of(database), "Target", tmp_path)

    assert sent(database) == sorted(ids)


WAITING = "SELECT 1 FROM pg_locks WHERE relation = '\"Target\"'::regclass AND NOT granted"


def write_file(folder: Path, name: str) -> list[str]:
    """Write a file of rows, which becomes one batch; returns their ids."""
    ids = [str(uuid.uuid4()) for _ in range(ROWS)]
    (folder / "files").mkdir(exist_ok=True)
    lines = [json.dumps({"id": each, "body": json.dumps({"order": each})}) for each in ids]
    (folder / "files" / f"{name}.json").write_text("\n".join(lines), encoding="utf-8")
    return ids


@contextmanager
def child(database: QueueDatabase, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that sends the stream."""
    command = [sys.executable, "-m", "tests.spark.stream_app", url_of(database), "Target", str(folder)]
    with subprocess.Popen(command, env=database.child_environment()) as process:
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, its JVM and that JVM's Python processes with `kill -9`, and wait for their end."""
    killed = list(descendants(process.pid))
    for pid in (process.pid, *killed):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(SECONDS)
    for pid in killed:
        poll_until(lambda pid=pid: is_gone(pid), SECONDS)  # type: ignore[misc]


def descendants(pid: int) -> Iterator[int]:
    for each in children_of(pid):
        yield each
        yield from descendants(each)


def execute(database: QueueDatabase, sql: str) -> bool:
    """Execute a statement; returns whether there is a row."""
    with database.connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.description is not None and cursor.fetchone() is not None


def last_batch(database: QueueDatabase) -> int:
    """The number of the last batch in the queue; -1 for none."""
    if WRITTEN_TABLE not in database.connection.introspection.table_names():
        return -1
    with database.connection.cursor() as cursor:
        cursor.execute(f"SELECT coalesce(max(batch), -1) FROM {WRITTEN_TABLE}")
        return int(cursor.fetchone()[0])


def sent(database: QueueDatabase) -> list[str]:
    """The ids of the messages in the queue, in order."""
    return sorted(str(each.headers["NServiceBus.MessageId"]) for each in read_rows(database.connection, "Target"))
