"""Spark follows a queue: every row once, including late commits, without deleting any."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sqlqueue_app.messages.errors import ConfigurationError, LockTimeout
from sqlqueue_app.spark.source.batch_reader import schema_of
from sqlqueue_app.spark.source.options import stream_options
from sqlqueue_app.spark.source.stream_reader import QueueFollower
from tests.spark.conftest import Queue, url_of
from tests.support.waiting import join_all, poll_until

EVERYTHING = ReadAllAvailable()


def follower(queue: Queue, **options: str) -> QueueFollower:
    given = {"url": url_of(queue.database), "queue": queue.name, **options}
    return QueueFollower(stream_options(given), schema_of(parsed_headers=False))


def offset(reader: QueueFollower, start: dict[str, int], limit: Any = EVERYTHING) -> dict[str, int]:
    """The next offset, without the pause between polls."""
    reader._poll_again_at = 0.0
    return reader.latestOffset(start, limit)


def rows(reader: QueueFollower, start: dict[str, int], end: dict[str, int]) -> list[int]:
    found = [batch.column("RowVersion").to_pylist() for part in reader.partitions(start, end) for batch in reader.read(part)]
    return sorted(number for numbers in found for number in numbers)


def test_batches_follow_each_other(queue: Queue) -> None:
    reader = follower(queue)
    start = reader.initialOffset()
    assert offset(reader, start) == start
    queue.fill(3)

    first = offset(reader, start)
    assert rows(reader, start, first) == queue.row_versions()
    assert offset(reader, first) == first
    queue.fill(2)
    second = offset(reader, first)
    assert rows(reader, first, second) == queue.row_versions()[3:]
    assert rows(reader, second, second) == []
    reader.commit(second)
    reader.stop()
    assert len(queue.row_versions()) == 5


def test_name_with_a_percent_sign_is_followed(make_queue: Callable[[str], Queue]) -> None:
    queue = make_queue("50%sales")
    queue.fill(2)
    reader = follower(queue)

    end = offset(reader, reader.initialOffset())

    assert rows(reader, reader.initialOffset(), end) == queue.row_versions()


def test_row_limit_applies_to_each_batch(queue: Queue) -> None:
    queue.fill(7)
    reader = follower(queue, max_rows_per_trigger="3")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(3)
    offsets = [reader.initialOffset()]
    for _ in range(3):
        offsets.append(offset(reader, offsets[-1], limit))

    found = [rows(reader, start, end) for start, end in pairwise(offsets)]

    assert [len(each) for each in found] == [3, 3, 1]
    assert [number for each in found for number in each] == queue.row_versions()


@pytest.fixture
def other_sessions(postgresql_database: Any) -> Iterator[list[psycopg.Connection[Any]]]:
    settings = postgresql_database.connection.settings_dict
    names = {"host": settings["HOST"], "port": settings["PORT"], "user": settings["USER"], "password": settings["PASSWORD"] or None}
    sessions = [psycopg.connect(dbname=settings["NAME"], **names) for _ in range(2)]
    yield sessions
    for session in sessions:
        session.close()


INSERT = """INSERT INTO "Sales" (id, headers, body) VALUES (gen_random_uuid(), '{}', '')"""
INSERTS = {
    "postgresql": INSERT,
    "sqlserver": "INSERT INTO Sales (Id, Headers, Body, Recoverable) VALUES (NEWID(), '{}', 0x, 1)",
}


@pytest.fixture
def postgresql_queue(postgresql_database: Any, spark: SparkSession) -> Queue:
    queue = Queue(postgresql_database, spark, "Sales")
    queue.execute('CREATE TABLE "Sales" (id uuid, expires timestamp, headers text, body bytea, seq bigserial)')
    return queue


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_stream_waits_for_rows_committed_late(queue: Queue, end: str) -> None:
    if queue.database.vendor not in INSERTS:
        pytest.skip("SQLite has one writer at a time")
    reader = follower(queue)
    start = reader.initialOffset()
    with closing(connections.create_connection(queue.database.alias)) as late:
        late.set_autocommit(False)
        with late.cursor() as cursor:
            cursor.execute(INSERTS[queue.database.vendor])
        queue.fill(1)
        assert offset(reader, start) == start

        late.commit() if end == "commit" else late.rollback()
    reached = offset(reader, start)

    assert reached == {"RowVersion": 2}
    assert rows(reader, start, reached) == ([1, 2] if end == "commit" else [2])


@pytest.mark.parametrize("end", ["committed", "rolled back"])
def test_stream_waits_for_prepared_transactions(
    postgresql_queue: Queue, other_sessions: list[psycopg.Connection[Any]], end: str
) -> None:
    reader = follower(postgresql_queue)
    start = reader.initialOffset()
    late, quick = other_sessions
    late.execute(INSERT)
    quick.execute(INSERT)
    quick.commit()
    assert offset(reader, start) == start

    late.execute("PREPARE TRANSACTION 'late'")
    late.rollback()
    assert offset(reader, start) == start
    late.autocommit = True
    late.execute("COMMIT PREPARED 'late'" if end == "committed" else "ROLLBACK PREPARED 'late'")
    quick.execute(INSERT)
    reached = offset(reader, start)

    assert reached == {"RowVersion": 2}
    assert rows(reader, start, reached) == ([1, 2] if end == "committed" else [2])
    quick.rollback()


def test_available_now_waits_for_late_commits_until_a_limit(
    postgresql_queue: Queue, other_sessions: list[psycopg.Connection[Any]]
) -> None:
    late, quick = other_sessions
    late.execute(INSERT)
    quick.execute(INSERT)
    quick.commit()
    with pytest.raises(LockTimeout, match=r'1 transaction still writing to "public"."Sales" after 1 s'):
        follower(postgresql_queue, settle_seconds="1").prepareForTriggerAvailableNow()

    reader = follower(postgresql_queue)
    thread = threading.Thread(target=reader.prepareForTriggerAvailableNow)
    thread.start()
    late.commit()
    join_all([thread])
    postgresql_queue.execute(INSERT)

    assert offset(reader, reader.initialOffset()) == {"RowVersion": 2}


def test_sequence_with_a_cache_is_refused(postgresql_queue: Queue) -> None:
    postgresql_queue.execute('ALTER SEQUENCE "Sales_seq_seq" CACHE 20')

    with pytest.raises(ConfigurationError, match="reserves 20 numbers at once"):
        offset(follower(postgresql_queue), {"RowVersion": 0})


def stream(queue: Queue, folder: Path, **options: Any) -> Any:
    """A query that writes the rows that it reads."""
    given = {"url": url_of(queue.database), "queue": queue.name, **options}
    frame = queue.spark.readStream.format("sqlqueue").options(**given).load()
    return frame.select("RowVersion", "Body").writeStream.format("parquet").option(
        "checkpointLocation", str(folder / "checkpoint")
    ), str(folder / "rows")


def numbers(queue: Queue, path: str) -> list[int]:
    return sorted(row.RowVersion for row in queue.spark.read.schema("RowVersion BIGINT").parquet(path).collect())


def test_available_rows_are_read_run_by_run(queue: Queue, tmp_path: Path) -> None:
    queue.fill(10)
    for _ in range(2):
        writer, path = stream(queue, tmp_path, max_rows_per_trigger=4)
        query = writer.trigger(availableNow=True).start(path)
        query.awaitTermination()
        assert numbers(queue, path) == queue.row_versions()
        assert all(progress["numInputRows"] <= 4 for progress in query.recentProgress)
        queue.fill(3)


def test_stream_misses_no_row_committed_out_of_order(queue: Queue, tmp_path: Path) -> None:
    writer, path = stream(queue, tmp_path)
    Path(path).mkdir()
    query = writer.start(path)
    sent: list[str] = []

    def send(commit_every: int) -> None:
        connection = connections[queue.database.alias]
        try:
            for round_ in range(25):
                connection.set_autocommit(False)
                try:
                    for _ in range(commit_every):
                        queue.add()
                    connection.rollback() if round_ % 10 == 7 else connection.commit()
                finally:
                    connection.set_autocommit(True)
            sent.append("done")
        finally:
            connection.close()

    try:
        threads = [threading.Thread(target=send, args=(number,)) for number in (1, 3, 7)]
        for thread in threads:
            thread.start()
        join_all(threads)
        assert len(sent) == 3
        wanted = queue.row_versions()
        poll_until(lambda: len(numbers(queue, path)) >= len(wanted), 60)
    finally:
        query.stop()
    assert numbers(queue, path) == wanted == queue.row_versions()


def test_wrong_options_are_named(queue: Queue) -> None:
    with pytest.raises(PySparkException, match="the option max_rows_per_trigger is '0'"):
        queue.spark.readStream.format("sqlqueue").options(url=url_of(queue.database), queue="Sales", max_rows_per_trigger=0).load()
    with pytest.raises(PySparkException, match="has no option 'settle_seconds'"):
        queue.read(settle_seconds=3).collect()
