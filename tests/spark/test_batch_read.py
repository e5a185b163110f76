"""Spark reads a queue: every row once, with any content and during concurrent changes."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from django.db import connections
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Queue, url_of
from tests.support.databases import QueueDatabase
from tests.support.waiting import join_all

COLUMNS = ["RowVersion", "Id", "CorrelationId", "ReplyToAddress", "Expires", "Headers", "Body"]


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row.RowVersion for row in frame.select("RowVersion").collect())


@pytest.mark.parametrize("partitions", [None, 1, 3, 7])
def test_every_row_is_read_once(queue: Queue, partitions: int | None) -> None:
    queue.fill(500)

    frame = queue.read() if partitions is None else queue.read(partitions=partitions)

    assert frame.columns == COLUMNS
    assert numbers(frame) == queue.row_versions()
    assert frame.rdd.getNumPartitions() == (partitions or 1)


def test_row_has_all_columns(queue: Queue) -> None:
    headers = {"NServiceBus.MessageId": "a", "ä/ö": "\U0001f600", "empty": "", "null": None}
    row_id = queue.add(headers=headers, body=b"\0\xff{}\0", expires="2031-05-06 07:08:09.120")

    (row,) = queue.read(headers="parsed").collect()

    assert row.Id == row_id
    assert row.RowVersion == queue.row_versions()[0]
    assert (row.CorrelationId, row.ReplyToAddress) == (None, None)
    assert row.Expires == datetime(2031, 5, 6, 7, 8, 9, 120_000)  # noqa: DTZ001 -- of a session in UTC
    assert json.loads(row.Headers) == headers
    assert bytes(row.Body) == b"\0\xff{}\0"
    assert row.HeaderMap == headers


def test_reply_columns_are_read_if_the_table_has_them(make_queue: Callable[[str], Queue]) -> None:
    queue = make_queue("Sales")
    if queue.database.vendor == "postgresql":
        pytest.skip("the tables of PostgreSQL have no such columns")
    queue.fill(2)
    queue.execute("UPDATE \"Sales\" SET CorrelationId = 'c', ReplyToAddress = 'r@[dbo]' WHERE RowVersion = 2")

    rows = queue.read().sort("RowVersion").collect()

    assert [(row.CorrelationId, row.ReplyToAddress) for row in rows] == [(None, None), ("c", "r@[dbo]")]


def test_only_requested_columns_are_read(queue: Queue) -> None:
    queue.fill(3)

    frame = queue.read("Headers STRING, RowVersion BIGINT")
    assert frame.columns == ["Headers", "RowVersion"]
    assert numbers(frame) == queue.row_versions()
    assert [row.HeaderMap for row in queue.read("HeaderMap MAP<STRING, STRING>", headers="parsed").collect()] == [
        {"NServiceBus.MessageId": row.Id} for row in queue.read().sort("RowVersion").collect()
    ]
    assert queue.read("CorrelationId STRING").count() == 3


def test_empty_queue_is_read(queue: Queue) -> None:
    assert queue.read().collect() == []
    assert queue.read(partitions=4, headers="parsed").count() == 0


BROKEN = [
    "", "null", "[]", "{", "\ufeff{}", '{"a":"1","a":"2"}', '{"a":{"b":"c"}}', "x" * 100,
    '{"a":1,"b":true,"c":{}}', '{"a":"\\ud800"}',
]  # fmt: skip
READ = [{}, None, {}, None, None, None, None, None, {"a": "1", "b": "true", "c": ""}, {"a": "\ufffd"}]


def test_unreadable_headers_are_null_and_kept_as_text(queue: Queue) -> None:
    for text in BROKEN:
        queue.add(headers=text)

    rows = queue.read(headers="parsed").sort("RowVersion").collect()

    assert [row.Headers for row in rows] == BROKEN
    assert [row.HeaderMap for row in rows] == READ


def test_headers_of_every_size_are_read(queue: Queue) -> None:
    # nvarchar(max) is read differently beyond 4,000 UTF-16 code units and 8,000 bytes
    texts = ["", *("x" * size for size in (3_999, 4_000, 4_001, 8_001)), "\U0001f600" * 2_000, "\U0001f600" * 2_001]
    texts += ["ä" * 65_536, "", "\U0001f600" * 1_000_000, " \t ", "end"]
    for text in texts:
        queue.add(headers=text, body=None)

    rows = queue.read(batch_size=5).sort("RowVersion").collect()

    assert [row.Headers == text for row, text in zip(rows, texts, strict=True)] == [True] * len(texts)


def test_bodies_of_every_size_are_read(queue: Queue) -> None:
    bodies = [None, b"", b"\0", b"x" * (64 * 1024 * 1024), b"end", None]
    for body in bodies:
        queue.add(body=body)

    rows = queue.read().selectExpr("RowVersion", "length(Body) AS size", "md5(Body) AS sum").sort("RowVersion").collect()

    expected = [(None, None) if body is None else (len(body), hashlib.md5(body).hexdigest()) for body in bodies]
    assert [(row["size"], row["sum"]) for row in rows] == expected


def test_large_bodies_are_read_in_small_batches(queue: Queue) -> None:
    for _ in range(12):
        queue.add(body=b"y" * 1_500_000)

    frame = queue.read(batch_size=5)

    assert numbers(frame) == queue.row_versions()


@pytest.mark.parametrize("batch_size", [1, 2, 3, 1000])
def test_batches_of_every_size_are_read(queue: Queue, batch_size: int) -> None:
    queue.fill(7)

    assert numbers(queue.read(batch_size=batch_size, partitions=2)) == queue.row_versions()


def test_gaps_in_row_versions_are_balanced(queue: Queue) -> None:
    for row_version in (1, 2, 3, 1_000_000, 1_000_001, 2**40, 2**62, 2**63 - 1):
        queue.add(row_version=row_version)
    queue.fill(300, first=2**50)

    frame = queue.read(partitions=4)

    assert numbers(frame) == queue.row_versions()
    sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    assert max(sizes) < 150


def test_queue_names_of_all_kinds_are_read(make_queue: Callable[[str], Queue]) -> None:
    for name in ("Sales.Web", 'od"d', "Größe", "a b;--", "x@y", "100%", " Sales "):
        queue = make_queue(name) if '"' not in name else None
        if queue is not None:
            queue.add(body=name.encode())
            assert [bytes(row.Body) for row in queue.read().collect()] == [name.encode()]


def test_addresses_with_a_schema_are_read(postgresql_database: QueueDatabase, spark: SparkSession) -> None:
    queue = Queue(postgresql_database, spark, "Sales")
    queue.execute('CREATE SCHEMA "a.b"')
    queue.execute('CREATE TABLE "a.b"."Sales" (id uuid, expires timestamp, headers text, body bytea, seq serial)')
    queue.execute("""INSERT INTO "a.b"."Sales" (id, headers, body) VALUES (gen_random_uuid(), '{}', '')""")

    for address in ('"a.b"."Sales"', '"a.b".Sales', "Sales@[a.b]", "Sales@[a.b]@[other]"):
        assert queue.read(queue=address).count() == 1


def test_table_with_other_columns_is_read(sqlite_database: QueueDatabase, spark: SparkSession) -> None:
    queue = Queue(sqlite_database, spark, "Odd")
    queue.execute(
        "CREATE TABLE Odd (extra int, headers text, BODY blob, id text, expires text, correlationid text, replytoaddress text,"
        " ROWVERSION integer primary key)"
    )
    queue.execute("INSERT INTO Odd (id, headers, correlationid) VALUES ('no guid', CAST(x'7bff7d' AS text), 'c')")

    (row,) = queue.read(queue="odd", headers="parsed").collect()

    assert (row.Id, row.Headers, row.CorrelationId, row.Body, row.HeaderMap) == ("no guid", "{\ufffd}", "c", None, None)


def test_no_row_is_read_twice_during_sends_and_receives(queue: Queue) -> None:
    queue.fill(400)
    before = set(queue.row_versions())
    stop = threading.Event()

    def churn() -> None:
        try:
            while not stop.is_set():
                queue.fill(5)
                queue.execute(f'DELETE FROM "Sales" WHERE {queue.number} IN (SELECT min({queue.number}) FROM "Sales")')
        finally:
            connections.close_all()

    threads = [threading.Thread(target=churn, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    found = [numbers(queue.read(partitions=3)) for _ in range(4)]
    stop.set()
    join_all(threads)

    left = set(queue.row_versions())
    for rows in found:
        assert len(rows) == len(set(rows))
        # rows present before and after were present all the time
        assert before & left <= set(rows)


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"queue": "Nowhere"}, r"QueueNotFound: the option queue is 'Nowhere', and there is no table .*Nowhere"),
    ({"queue": " "}, r"ConfigurationError: the option queue is missing: expected the name of a queue"),
    ({"url": "mysql://u:geheim@h/d"}, r"the option url begins with the scheme 'mysql': expected postgresql://"),
    ({"url": "postgresql://u:geheim@h"}, r"the option url names no database"),
    ({"url": "postgresql://u:geheim@h:port/d"}, r"the option url is not a URL"),
    ({"url": "sqlite://tmp/x"}, r"the option url names a host, and SQLite has none"),
    ({"url": "sqlite:////nowhere/x.db"}, r"names the SQLite file '/nowhere/x.db', which is not there"),
    ({"url": "postgresql://u:geheim@127.0.0.1:1/d"}, r"failed to plan the reading of the queue 'Sales' \(postgresql://u@127.0.0.1:1/d\)"),
    ({"partitions": "0"}, r"the option partitions is '0': expected a whole number from 1 to 10,000"),
    ({"partitions": "two"}, r"the option partitions is 'two'"),
    ({"batch_size": "-1"}, r"the option batch_size is '-1'"),
    ({"headers": "yes"}, r"the option headers is 'yes': expected 'raw', or 'parsed'"),
    ({"batchsize": "1"}, r"no option 'batchsize': did you mean 'batch_size'\?"),
    ({"schema": "RowVersion STRING"}, r"the column RowVersion as string: expected bigint"),
    ({"schema": "seq BIGINT"}, r"the schema asks for the column 'seq': a queue has RowVersion, Id"),
    ({"schema": "HeaderMap MAP<STRING,STRING>"}, r"'HeaderMap' \(the option headers=parsed gives it\)"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), ERRORS, ids=lambda value: str(value)[:40])
def test_wrong_option_is_one_clear_error(queue: Queue, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PySparkException, match=message) as raised:
        queue.read(**options).collect()
    assert "geheim" not in str(raised.value)


def test_table_dropped_during_the_read_is_an_error(queue: Queue) -> None:
    queue.fill(3)
    frame = queue.read()
    assert frame.count() == 3
    plan_ranges = frame.rdd
    assert plan_ranges.getNumPartitions() == 1
    queue.execute('DROP TABLE "Sales"')

    with pytest.raises(Exception, match=r"failed to read the queue 'Sales' \((postgresql|sqlite|mssql)://.*[Ss]ales"):
        plan_ranges.count()


def test_password_is_not_shown(postgresql_database: QueueDatabase, spark: SparkSession) -> None:
    role = postgresql_database.create_role("reader")
    with postgresql_database.as_role(role):
        url = url_of(postgresql_database).replace(":", ":ge%40heim", 2).replace("ge%40heim//", "//")
    with pytest.raises(PySparkException) as raised:
        spark.read.format("sqlqueue").option("url", url).option("queue", "Sales").load().collect()
    assert "heim" not in str(raised.value)
    assert role in str(raised.value)


def test_session_without_filter_pushdown_is_supported(queue: Queue) -> None:
    queue.fill(5)
    queue.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert queue.read().where("RowVersion > 3").count() == 2
    finally:
        queue.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_id_of_another_program_is_normalized(queue: Queue) -> None:
    row_id = str(uuid.uuid4()).upper()
    queue.add(row_id=row_id)

    (row,) = queue.read().collect()

    assert row.Id == row_id.lower()
