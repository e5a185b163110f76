"""Rows become messages and failures of the lake as in a plain Python reference, including invalid rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sqlqueue_app.lake.columns import FAILURES, MESSAGES, LakeTable
from sqlqueue_app.spark.transforms import parse_failures, parse_messages
from tests.spark.tables import rows_of, source_rows
from tests.support import spark_reference as reference
from tests.support.databases import ROOT
from tests.support.random_messages import NOTHING, TAKEN_AT, TIMES, TYPES, UNREADABLE, random_rows
from tests.support.spark_reference import Row

AUDIT: dict[str, Any] = {"queue": "audit", "batch": "b-1", "taken_at": TAKEN_AT}
RAW = ("row_version", "native_id", "expires", "headers", "body", "body_bytes", "header_bytes", "taken_at", "batch", "queue")


def parsed(spark: SparkSession, rows: list[Row], *, failed: bool = False) -> list[dict[str, Any]]:
    parse = parse_failures if failed else parse_messages
    return sorted(rows_of(parse(source_rows(spark, rows), **AUDIT)), key=lambda row: row["row_version"])


def expected(rows: list[Row], *, failed: bool = False) -> list[dict[str, Any]]:
    return [reference.message(row, **AUDIT, failed=failed) for row in rows]


def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert bool(one["problem"]) == other["problem"], one["headers"]
        names = RAW if one["problem"] else set(other) - {"problem"}
        assert {name: one[name] for name in names} == {name: other[name] for name in names}


def test_messages_match_the_reference(spark: SparkSession) -> None:
    rows = random_rows(1, 1_200)

    same(parsed(spark, rows), expected(rows))


def test_failures_match_the_reference(spark: SparkSession) -> None:
    rows = random_rows(3, 400, failed=True)

    same(parsed(spark, rows, failed=True), expected(rows, failed=True))


def test_odd_texts_are_read_as_by_the_reference(spark: SparkSession) -> None:
    texts = [
        *NOTHING,
        *UNREADABLE,
        *(json.dumps({"NServiceBus.EnclosedMessageTypes": types}) for types in TYPES),
        *(json.dumps({"NServiceBus.TimeSent": time, "NServiceBus.ProcessingEnded": time}) for time in TIMES),
        json.dumps({"NServiceBus.MessageId": "m", "Huge": "x" * 21_000_000}),
        json.dumps({f"Header{number}": "x" for number in range(5_000)}),
    ]
    rows = [Row(number, f"n-{number}", text) for number, text in enumerate(texts)]

    same(parsed(spark, rows), expected(rows))


def test_days_are_those_of_utc_in_any_session(spark: SparkSession) -> None:
    times = ("2026-11-21 23:59:59:999999 Z", "2026-11-22 00:00:00:000000 Z")
    rows = [Row(number, f"n-{number}", json.dumps({"NServiceBus.ProcessingEnded": time})) for number, time in enumerate(times)]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        found = parsed(spark, rows)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    same(found, expected(rows))


def test_groups_match_servicecontrol(spark: SparkSession) -> None:
    golden = [json.loads(line) for line in (ROOT / "tests/golden/failure-groups.jsonl").read_text("utf-8").splitlines()]
    names = {"type": "ExceptionType", "message": "Message", "trace": "StackTrace"}
    rows = [
        Row(number, "n", json.dumps({f"NServiceBus.ExceptionInfo.{name}": case[key] for key, name in names.items()}))
        for number, case in enumerate(golden)
    ]

    found = [
        next(group for group in row["groups"] if group["classifier"] == "Exception Type and Stack Trace")
        for row in parsed(spark, rows, failed=True)
    ]

    assert [(group["title"], group["id"]) for group in found] == [(case["title"], case["group_id"]) for case in golden]


HOSTILE = (
    f'{{"Deep":{"[" * 5_000}{"]" * 5_000}}}',
    f'{{"Deep":{"[" * 5_000}',
    f'{{"{"n" * 60_000}":"a long name"}}',
    f'{{"Digits":{"1" * 5_000}}}',
    '{"NServiceBus.Retries":1e999999999}',
    '{"NServiceBus.Retries":NaN}',
    json.dumps({"NServiceBus.TimeSent": "1" * 1_000_000}),
    json.dumps({"NServiceBus.EnclosedMessageTypes": "A[" + ",b" * 500_000}),
    json.dumps({"NServiceBus.EnclosedMessageTypes": "[" * 500_000 + ";" * 500_000}),
    '{"NServiceBus.ProcessingEndpoint":"\\u0000\\ud800"}',
    "{" + " " * 500_000,
    "{" + "} " * 250_000 + "x",
)


def test_hostile_headers_do_not_affect_other_rows(spark: SparkSession) -> None:
    rows = [Row(number, f"n-{number}", text) for number, text in enumerate((*HOSTILE, '{"NServiceBus.MessageId":"well"}'))]

    for failed in (False, True):
        found = parsed(spark, rows, failed=failed)

        assert [row["headers"] for row in found] == [row.headers for row in rows]
        assert (found[-1]["message_id"], found[-1]["problem"]) == ("well", None)


@pytest.mark.parametrize(("parse", "table"), [(parse_messages, MESSAGES), (parse_failures, FAILURES)])
def test_columns_match_the_lake(spark: SparkSession, parse: Any, table: LakeTable) -> None:
    found = parse(source_rows(spark, []), **AUDIT)

    schema = spark.createDataFrame([], f"{table.full_ddl}, problem STRING").schema
    assert [(field.name, field.dataType) for field in found.schema] == [(field.name, field.dataType) for field in schema]
