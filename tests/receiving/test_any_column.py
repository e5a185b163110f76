"""SQLite stores any value in any column, also text that is not UTF-8: receivers, commands and status pages must cope with it."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from sqlqueue_app import handles
from tests.support.bench import Bench, Calls

NOT_UTF_8 = "CAST(x'7bff7d' AS TEXT)"
READABLE = """x'7b224e536572766963654275732e456e636c6f7365644d6573736167655479706573223a22436f6c756d6e227d'"""


@pytest.fixture
def waiting(sqlite_bench: Bench, calls: Calls) -> Bench:
    """Two messages for a recording handler."""

    @handles("Column")
    def replies(message: object, context: object) -> None:
        calls.add(message)

    for number in (1, 2):
        sqlite_bench.put_message_of(number, "Column", {"n": number})
    return sqlite_bench


def change_first(bench: Bench, column: str, value: str) -> None:
    table = bench.table("Sales").qualified
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = {value} WHERE RowVersion = (SELECT min(RowVersion) FROM {table})")


def shown() -> list[dict[str, object]]:
    text, documents = StringIO(), StringIO()
    call_command("sqlqueue_peek", "Sales", stdout=text)
    call_command("sqlqueue_peek", "Sales", format="json", stdout=documents)
    call_command("sqlqueue_status", stdout=StringIO())
    return list(json.loads(documents.getvalue())["messages"])


@pytest.mark.parametrize("value", ["x'ff'", NOT_UTF_8, "5", "5.5"])
@pytest.mark.parametrize("column", ["Id", "CorrelationId", "ReplyToAddress", "Expires", "Recoverable"])
def test_bad_value_in_unused_column_is_ignored(waiting: Bench, calls: Calls, column: str, value: str) -> None:
    change_first(waiting, column, value)
    assert len(shown()) == 2
    waiting.run()
    assert [message["n"] for message in calls.seen if message] == [1, 2]
    assert (waiting.rows("Sales"), waiting.rows("error")) == ([], [])


@pytest.mark.parametrize(
    ("value", "handled"),
    [(READABLE, [1, 2]), (NOT_UTF_8, [2]), ("x'ff00'", [2]), ("5", [2]), ("5.5", [2])],
    ids=["a blob", "no UTF-8", "bytes", "5", "5.5"],
)
def test_bad_headers_are_handled_or_moved_unchanged(waiting: Bench, calls: Calls, value: str, handled: list[int]) -> None:
    change_first(waiting, "Headers", value)
    assert len(shown()) == 2
    waiting.run()
    assert [message["n"] for message in calls.seen] == handled
    assert waiting.rows("Sales") == []
    with waiting.database.connection.cursor() as cursor:
        cursor.execute(f"SELECT CAST(Headers AS blob) = CAST({value} AS blob) FROM {waiting.table('error').qualified}")
        assert cursor.fetchall() == [(1,)] * (2 - len(handled)), "poison is moved byte for byte"


@pytest.mark.parametrize(("value", "body"), [("'{}'", b"{}"), ("5", b"5"), ("5.5", b"5.5"), (NOT_UTF_8, b"{\xff}")])
def test_bad_body_is_handled_or_moved_unchanged(waiting: Bench, calls: Calls, value: str, body: bytes) -> None:
    change_first(waiting, "Body", value)
    assert shown()[0]["body_size"] == len(body)
    waiting.run()
    assert waiting.rows("Sales") == []
    assert calls.seen[-1] == {"n": 2}
    assert [row.body for row in waiting.rows("error")] == ([] if body == b"{}" else [body])


@pytest.mark.parametrize("column", ["Headers", "Body"])
def test_bad_delayed_message_does_not_block_others(waiting: Bench, calls: Calls, column: str) -> None:
    with waiting.database.connection.cursor() as cursor:
        for number in (3, 4):
            cursor.execute(
                'INSERT INTO "Sales.Delayed" (Headers, Body, Due) '
                "SELECT Headers, Body, strftime('%Y-%m-%d %H:%M:%f', 'now', %s) FROM \"Sales\" LIMIT 1",
                [f"-{10 - number} seconds"],
            )
        cursor.execute(
            f'UPDATE "Sales.Delayed" SET {column} = {NOT_UTF_8} WHERE RowVersion = (SELECT min(RowVersion) FROM "Sales.Delayed")'
        )
    waiting.run()
    assert len(calls.seen) == 3
    assert waiting.rows("Sales") == []
    assert len(waiting.rows("error")) == 1


@pytest.mark.parametrize(
    "value", ["''", "'!'", "'0'", "'1999-13-45'", "5", "-1e300", "5.5", "x'00'", "'infinity'", "'2026-01-01T00:00:00Z'"]
)
def test_invalid_due_time_does_not_block_others(sqlite_bench: Bench, calls: Calls, value: str) -> None:
    """The index sorts by text: the first value made the table seem empty, or never empty."""

    @handles("Column")
    def inspect(message: object, context: object) -> None:
        calls.add(message)

    header_text = '{"NServiceBus.EnclosedMessageTypes": "Column"}'
    with sqlite_bench.database.connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO \"Sales.Delayed\" (Headers, Body, Due) VALUES ('{header_text}', x'7b7d', {value})")
        sooner = "strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 seconds')"
        cursor.execute(f"INSERT INTO \"Sales.Delayed\" (Headers, Body, Due) VALUES ('{header_text}', x'7b226e223a317d', {sooner})")
    sqlite_bench.run()
    assert {"n": 1} in calls.seen
    with sqlite_bench.database.connection.cursor() as cursor:
        cursor.execute('SELECT count(*) FROM "Sales.Delayed"')
        (left,) = cursor.fetchone()
    assert len(calls.seen) + left == 2, "the row with the invalid time was handled too, or still waits"


def test_foreign_due_time_format_does_not_keep_worker_running(sqlite_bench: Bench) -> None:
    """Its time was a second ago, but its text sorts after all times of today."""
    with sqlite_bench.database.connection.cursor() as cursor:
        due = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds')"
        cursor.execute(f"INSERT INTO \"Sales.Delayed\" (Headers, Body, Due) VALUES ('{{}}', x'', {due})")
    sqlite_bench.run()
