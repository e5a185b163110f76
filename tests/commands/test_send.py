"""`sqlqueue_send` sends all requested messages or none."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from sqlqueue_app.browsing.messages import Flag, MessageDetail, read_details
from sqlqueue_app.conf import get_settings
from sqlqueue_app.status.delayed import read_delayed
from tests.commands.running import refused, run
from tests.support.databases import QueueDatabase
from tests.support.filling import count, install, table


def send(*arguments: str) -> str:
    out = io.StringIO()
    call_command("sqlqueue_send", *arguments, stdout=out)
    return out.getvalue()


def sent(database: QueueDatabase, name: str) -> list[MessageDetail]:
    return read_details(table(database, name), limit=100)


def test_message_is_sent_unchanged(queue_database: QueueDatabase) -> None:
    install(queue_database)
    body = '{"order_id": "ü", "total": 9.90, "big": 12345678901234567890}'

    output = send("Sales", "--type", "Sales.PlaceOrder", "--body", body, "--header", "tenant=a=b", "--header", "empty=")

    (found,) = sent(queue_database, "Sales")
    assert found.headers is not None
    assert output.strip() == found.summary.message_id
    assert found.summary.types == ("Sales.PlaceOrder",)
    assert '"total": 9.90' in found.body.text
    assert json.loads(found.body.text)["big"] == 12345678901234567890
    assert (found.headers["tenant"], found.headers["empty"]) == ("a=b", "")
    assert found.headers["NServiceBus.ContentType"] == "application/json"


def test_header_may_be_the_id_of_one_message(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)
    named = ("Sales", "--type", "T", "--body", "{}", "--header", "NServiceBus.MessageId=mine")

    assert send(*named).strip() == "mine"
    with pytest.raises(CommandError, match=r"--header NServiceBus\.MessageId is for a single message"):
        send(*named, "--count", "2")

    assert [each.summary.message_id for each in sent(sqlite_database, "Sales")] == ["mine"]


def test_body_is_read_from_file_or_stdin(sqlite_database: QueueDatabase, tmp_path: Path) -> None:
    install(sqlite_database)
    file = tmp_path / "body.json"
    file.write_bytes(b'\xef\xbb\xbf{"from": "file"}')

    send("Sales", "--type", "T", "--file", str(file))
    ran = run(sqlite_database, "sqlqueue_send", "Sales", "--type", "T", "--file", "-", stdin=b'{"from": "stdin"}')

    assert ran.code == 0, ran.err
    assert [json.loads(each.body.text)["from"] for each in sent(sqlite_database, "Sales")] == ["file", "stdin"]


def test_priority_chooses_the_queue(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {"PRIORITIES": True}, "Billing": {}})

    send("Sales", "--type", "T", "--body", "{}", "--priority", "high")
    output = send("Sales", "--type", "T", "--body", "{}", "--priority", "low", "--count", "11")
    send("Sales", "--type", "T", "--body", "{}", "--priority", "normal")

    assert [count(queue_database, name) for name in ("Sales.High", "Sales", "Sales.Low")] == [1, 1, 11]
    (urgent,) = sent(queue_database, "Sales.High")
    assert urgent.headers is not None
    assert urgent.headers["SqlQueue.Priority"] == "high"
    assert output.strip() == f"sent 11 messages to {table(queue_database, 'Sales').qualified} with priority low"
    with pytest.raises(CommandError, match="'Billing', which has no queues for priorities in these settings"):
        send("Billing", "--type", "T", "--body", "{}", "--priority", "high")


def test_copies_have_different_ids(queue_database: QueueDatabase) -> None:
    install(queue_database)

    found = json.loads(send("Sales", "--type", "T", "--body", "{}", "--count", "2500", "--format", "json"))

    assert found["sent"] == len(set(found["message_ids"])) == count(queue_database, "Sales") == 2_500
    assert send("Sales", "--type", "T", "--body", "{}", "--count", "11").startswith("sent 11 messages to ")
    assert len(send("Sales", "--type", "T", "--body", "{}", "--count", "10").split()) == 10


def test_copies_are_sent_all_or_none(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    with postgresql_database.connection.cursor() as cursor:
        cursor.execute('SELECT max(seq) FROM "Sales"')
        cursor.execute('ALTER TABLE "Sales" ADD CONSTRAINT full_up CHECK (seq < 1500)')

    with pytest.raises(CommandError):
        send("Sales", "--type", "T", "--body", "{}", "--count", "2000")

    assert count(postgresql_database, "Sales") == 0


def test_a_time_to_be_received_makes_it_expire(queue_database: QueueDatabase) -> None:
    install(queue_database)

    send("Sales", "--type", "T", "--body", "{}", "--ttbr", "90.5")

    (found,) = sent(queue_database, "Sales")
    assert found.summary.expires is not None
    assert found.summary.time_sent is not None
    assert abs(found.summary.expires - found.summary.time_sent - timedelta(seconds=90.5)) < timedelta(seconds=5)
    assert Flag.EXPIRED not in found.summary.flags


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--type", "T", "--body", '{"a": '), "the body is not JSON"),
        (("--type", "T", "--body", ""), "the body is empty"),
        (("--type", "T", "--body", "null"), "the body is null"),
        (("--type", "T", "--body", "[1]"), "the body does not fit"),
        (("--type", "T", "--body", '{"a": NaN}'), "NaN"),
        (("--type", "T", "--file", "/nonexistent/body.json"), "cannot be read: No such file"),
        (("--type", "T"), "--body --file is required"),
        (("--body", "{}"), "--type"),
        (("--type", " ", "--body", "{}"), "is blank"),
        (("--type", "", "--body", "{}"), "the message type '' is blank: expected a name such as"),
        (("--type", "T", "--body", "{}", "--file", "x"), "not allowed with"),
        (("--type", "T", "--body", "{}", "--header", "x"), "expected NAME=VALUE, got 'x'"),
        (("--type", "T", "--body", "{}", "--header", "=x"), "expected NAME=VALUE, got '=x'"),
        (("--type", "T", "--body", "{}", "--count", "0"), "expected at least 1 and at most 10000000, got 0"),
        (("--type", "T", "--body", "{}", "--count", "2147483647"), "expected at least 1 and at most 10000000, got 2147483647"),
        (("--type", "T", "--body", "{}", "--ttbr", "-1"), "expected seconds of 0 or more"),
        (("--type", "T", "--body", "{}", "--ttbr", "soon"), "expected a number of seconds"),
    ],
)
def test_wrong_argument_is_reported_and_nothing_is_sent(
    sqlite_database: QueueDatabase, arguments: tuple[str, ...], expected: str
) -> None:
    install(sqlite_database)

    with pytest.raises(CommandError) as refusal:
        send("Sales", *arguments)

    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "bodies[0]" not in str(refusal.value)
    assert refusal.value.returncode == 2
    assert count(sqlite_database, "Sales") == 0


def test_an_unknown_queue_is_one_line(sqlite_database: QueueDatabase) -> None:
    install(sqlite_database)

    line = refused(run(sqlite_database, "sqlqueue_send", "Sale", "--type", "T", "--body", "{}"))

    assert "did you mean 'Sales'?" in line


@pytest.mark.parametrize("queue", ["", " "])
def test_a_blank_queue_is_refused(sqlite_database: QueueDatabase, queue: str) -> None:
    install(sqlite_database)

    with pytest.raises(CommandError, match=rf"the name of the queue is '{queue}': expected the name of a queue or its address"):
        send(queue, "--type", "T", "--body", "{}")


def test_a_delayed_message_waits_in_the_table_of_send_as(queue_database: QueueDatabase) -> None:
    install(queue_database)
    queue_database.configure(SEND_AS="Sales")

    found = json.loads(send("Sales", "--type", "T", "--body", "{}", "--delay", "3600", "--count", "3", "--format", "json"))

    assert found["sent"] == len(found["message_ids"]) == 3
    (delayed,) = read_delayed(get_settings())
    assert (delayed.waiting, delayed.overdue, count(queue_database, "Sales")) == (3, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--delay", "5", "--ttbr", "5"), "time_to_be_received"),
        (("--delay", "soon"), "expected a number of seconds, got 'soon'"),
        (("--delay", "-1"), "expected seconds of 0 or more"),
        (("--delay", "1e12"), "year 9999"),
    ],
)
def test_invalid_delay_is_refused(sqlite_database: QueueDatabase, arguments: tuple[str, ...], expected: str) -> None:
    install(sqlite_database)
    with pytest.raises(CommandError, match=expected) as refusal:
        send("Sales", "--type", "T", "--body", "{}", *arguments)
    assert refusal.value.returncode == 2
    assert count(sqlite_database, "Sales") == 0
