"""`sqlqueue_peek` shows messages without receiving them, and none can control the terminal."""

from __future__ import annotations

import io
import json
import uuid
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app.tables.rows import NewRow
from tests.commands.running import PEEK_KEYS, refused, run
from tests.support.databases import QueueDatabase
from tests.support.filling import count, install, message, row, table


def peek(*arguments: str) -> str:
    out = io.StringIO()
    call_command("sqlqueue_peek", *arguments, stdout=out)
    return out.getvalue()


def messages(*arguments: str) -> Any:
    return json.loads(peek(*arguments, "--format", "json"))["messages"]


def test_messages_are_shown_and_kept(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message({"n": number}, headers={"x": "ü"}) for number in range(12)])

    found = messages("Sales", "--limit", "11")

    assert [json.loads(each["body"])["n"] for each in found] == list(range(11))
    assert all(set(each) == PEEK_KEYS for each in found)
    assert found[0]["headers"]["x"] == "ü"
    assert len(messages("Sales")) == 10
    assert count(queue_database, "Sales") == 12


def test_the_text_has_headers_and_body(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    trace = "boom\n   at f()"
    table(sqlite_database, "error").send(
        [message({"a": 1}, headers={"NServiceBus.ExceptionInfo.StackTrace": trace, "NServiceBus.FailedQ": "Sales"})]
    )

    output = peek("error")

    assert "[failed]" in output
    assert "  NServiceBus.ExceptionInfo.StackTrace: boom\n       at f()\n" in output
    assert '    {\n      "a": 1\n    }\n' in output


def test_poison_is_shown_with_the_reason(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([row("null", b"\x00\x01")])

    (found,) = messages("Sales")

    assert found["headers"] is None
    assert found["headers_text"] == "null"
    assert "null" in found["headers_problem"]
    assert found["flags"] == ["poison"]
    assert found["body_kind"] == "hex"
    assert "headers cannot be read" in peek("Sales")


def test_control_characters_do_not_reach_the_terminal(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\r"
    headers: dict[str, str | None] = {"NServiceBus.MessageId": evil, evil: evil, "NServiceBus.EnclosedMessageTypes": evil}
    table(sqlite_database, "Sales").send(
        [row(headers, json.dumps({"a": evil}).encode()), NewRow(str(uuid.uuid4()), evil, evil.encode())]
    )

    output = peek("Sales")

    assert not [letter for letter in output if letter != "\n" and (ord(letter) < 32 or letter in "\x7f\u202e")]


def test_long_body_is_truncated(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    table(sqlite_database, "Sales").send([row(body=b"x" * 70_000)])

    (found,) = messages("Sales")

    assert (found["body_cut"], found["body_size"], len(found["body"])) == (True, 70_000, 65_536)
    assert "body (text, 70,000 bytes, the first 65,536 shown)" in peek("Sales")


def test_empty_queue_is_reported(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)

    assert "is empty" in peek("Sales")
    assert messages("Sales") == []


def test_literal_table_wins_over_the_address(postgresql_database: QueueDatabase) -> None:
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA ops")
    install(
        postgresql_database,
        ENDPOINTS={"ops.error": {"CALLBACKS": False, "ERROR_QUEUE": '"ops"."error"'}},
    )
    table(postgresql_database, "ops.error").send([message()])

    assert len(messages("ops.error")) == 1
    assert messages('"ops"."error"') == []
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute('DROP TABLE "ops.error"')
    postgresql_database.configure(ENDPOINTS={})
    assert messages("ops.error") == [], "without a table of this name, it is an address"


@pytest.mark.parametrize(("wrong", "expected"), [("Saless", "did you mean 'Sales'?"), ("nothing at all", "known are Sales, ")])
def test_an_unknown_queue_is_one_line(sqlite_database: QueueDatabase, wrong: str, expected: str) -> None:
    install(sqlite_database)

    assert expected in refused(run(sqlite_database, "sqlqueue_peek", wrong))


def test_other_table_is_refused(queue_database: QueueDatabase) -> None:
    install(queue_database)
    with queue_database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE accounts (id int, name varchar(10))")

    with pytest.raises(CommandError, match="is not a queue table"):
        peek("accounts")


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "many"])
def test_a_wrong_limit_is_one_line(sqlite_database: QueueDatabase, limit: str) -> None:
    install(sqlite_database)

    with pytest.raises(CommandError, match="--limit"):
        peek("Sales", f"--limit={limit}")
