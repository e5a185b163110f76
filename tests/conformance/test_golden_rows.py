"""How our receiver handles rows written by hand, which a real endpoint was also given, and rows that real endpoints wrote.

It must get past every row. Where it differs from the recorded outcome, the table below gives the reason.
"""

from __future__ import annotations

import base64
import json
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sqlqueue_app import handles, message_type
from sqlqueue_app.messages.types import registry
from tests.support import play
from tests.support.bench import Bench, Calls
from tests.support.databases import ROOT

GOLDEN = Path(__file__).parents[1] / "golden"
HANDWRITTEN = [json.loads(line) for line in (GOLDEN / "handwritten.jsonl").read_text(encoding="utf-8").splitlines()]

# case -> our outcome, and the reason
DIFFERS = {
    "no types, $type in body": "handled",  # as Newtonsoft does
    "xml body to json endpoint": "handled",  # the content type says what it is
    "enum by name": "handled",  # our handler takes a dict, and checks the types of members itself
    "number as text": "handled",
    "date with space": "handled",
    "timespan ISO": "handled",
    "uuid hex": "handled",
    "body array of one": "handled",  # core 4 wrote this
    "null body": "error",  # blocks a real endpoint forever
    "null body, order": "error",
    "headers null": "error",
    "reply sql server form": "handled",  # our handler does not reply
    "reply unknown queue": "handled",
    "time sent broken": "handled",  # only the critical time is lost
    "time sent ISO": "handled",
}

# With a handler that takes a class and replies, these end as with a real endpoint.
LIKE_REAL_WHEN_TYPED = {"number as text", "timespan ISO", "reply sql server form", "reply unknown queue"}

# The table "Deliberate differences in reading" of docs/reference/compatibility.md, and the rows that show it.
DOCUMENTED = {
    "a NULL body, or headers that are the text `null`": {"null body", "null body, order", "headers null"},
    "a type that only the body names": {"no types, $type in body"},
    "enums by name in JSON, GUIDs without dashes, dates with a space, an array of one message": {
        "enum by name", "uuid hex", "date with space", "body array of one",
    },
    "XML for an endpoint that writes JSON": {"xml body to json endpoint"},
    "`TimeSent` in another form": {"time sent broken", "time sent ISO"},
    "camelCase members": {"camelCase"},
    "members of another type": {"number as text", "timespan ISO"},
}  # fmt: skip


def expected(row: dict[str, Any]) -> str:
    if row["case"] in DIFFERS:
        return DIFFERS[row["case"]]
    first = row["outcome"][0]
    if first.startswith("error queue, as it was"):
        return "poison"
    return "error" if first.startswith("error queue") else first


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("row", HANDWRITTEN, ids=lambda row: row["case"].replace(" ", "_"))
def test_rows_written_by_hand(bench: Bench, calls: Calls, quiet: None, row: dict[str, Any]) -> None:
    for name in ("Shop.Messages.PlaceOrder", "Shop.Messages.Ping"):
        handles(name)(lambda message, context: calls.add(message))
    insert(bench, row)
    bench.run()
    assert bench.rows("Sales") == []
    moved = bench.rows("error")
    wanted = expected(row)
    if wanted == "poison":
        assert [(each.headers, each.body) for each in moved] == [(row["headers"], base64.b64decode(row["body_base64"]))]
    elif wanted == "error":
        (headers,) = bench.headers("error")
        assert headers["NServiceBus.FailedQ"]
        assert moved[0].body == base64.b64decode(row["body_base64"] or "")
    else:
        assert moved == []
        empty = not row["body_base64"]
        assert len(calls.seen) == (0 if wanted == "deleted unhandled" or empty else 1)


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the classes of the play for one test; other tests have none, or their own classes, for these names."""
    for name in ("_by_name", "_by_class"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    for name, cls in play.CLASSES.items():
        message_type(name, assembly="Shop.Messages", names="pascal")(cls)


@pytest.mark.parametrize("row", HANDWRITTEN, ids=lambda row: row["case"].replace(" ", "_"))
def test_rows_written_by_hand_in_handlers_of_classes(
    postgresql_bench: Bench, calls: Calls, quiet: None, classes: None, row: dict[str, Any]
) -> None:
    @handles(play.PlaceOrder, play.Ping)
    def handler(message: Any, context: Any) -> None:
        calls.add(message)
        if "NServiceBus.ReplyToAddress" in context.headers:
            context.reply(play.OrderAccepted(message.order_id, play.OrderStatus.Accepted))

    bench = postgresql_bench
    bench.install_queues("py")
    insert(bench, row)
    bench.run()

    assert bench.rows("Sales") == []
    outcome = row["outcome"][0] if row["case"] in LIKE_REAL_WHEN_TYPED else DIFFERS.get(row["case"], row["outcome"][0])
    assert bool(bench.rows("error")) == outcome.startswith("error")
    replies = [headers["NServiceBus.EnclosedMessageTypes"] for headers in bench.headers("py")]
    assert replies == ["Shop.Messages.OrderAccepted, Shop.Messages"] * ("replied" in row["outcome"])
    # a handler whose reply fails was still called
    called = (outcome == "handled" and bool(row["body_base64"])) or row["case"].startswith("reply")
    assert len(calls.seen) == called
    if called and "PlaceOrder" in f"{row['headers']}{base64.b64decode(row['body_base64'])!r}":
        assert calls.seen[0].order_id == uuid.UUID(int=1)
        # a real endpoint ignores camelCase members
        assert calls.seen[0].note == "n"


def test_rows_that_only_we_accept_are_documented() -> None:
    text = (ROOT / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
    table = text.partition("## Deliberate differences in reading")[2]
    lines = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| Input")]
    for line in lines:
        assert any(line.startswith(f"| {what}") for what in DOCUMENTED), line
    assert len(lines) == len(DOCUMENTED)
    refused = {row["case"] for row in HANDWRITTEN if row["outcome"][0].startswith(("error queue:", "never"))}
    # a real endpoint reads defaults from camelCase, and our untyped handlers do not reply
    better = (refused & set(DIFFERS) - {"reply sql server form", "reply unknown queue"}) | {"camelCase"}
    assert better == set().union(*DOCUMENTED.values())


def test_bad_rows_do_not_block_a_good_one(bench: Bench, calls: Calls, quiet: None) -> None:
    handles("Good")(lambda message, context: calls.add(message))
    for row in HANDWRITTEN:
        insert(bench, row)
    bench.put_message("Good", {"n": 1})
    bench.run()
    assert calls.seen == [{"n": 1}]
    assert bench.rows("Sales") == []


@pytest.mark.parametrize("name", ["json", "newtonsoft"])
def test_every_command_that_real_endpoints_sent_is_read(bench: Bench, calls: Calls, quiet: None, name: str) -> None:
    rows = [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    commands = [row for row in rows if row.get("table") == "Sales" and row["body_base64"]]
    types = {json.loads(row["headers"]).get("NServiceBus.EnclosedMessageTypes", "").partition(",")[0] for row in commands}
    for each in types:
        handles(each or "?")(lambda message, context: calls.add(context.headers))
    # ServiceControl retried one of them and gets an acknowledgement.
    # Its address there has the form of PostgreSQL; SQL Server reads that as the name of a table.
    quoted = ['"Particular.ServiceControl"'] if bench.database.vendor == "sqlserver" else []
    bench.install_queues("Particular.ServiceControl", *quoted)
    for number, row in enumerate(commands):
        text = row["headers"]
        if bench.database.vendor == "sqlserver":
            # The endpoints ran on PostgreSQL; SQL Server would read this address as another table.
            forward = "NServiceBus.SqlServer.ForwardDestination"
            text = json.dumps({key: value for key, value in json.loads(text).items() if key != forward})
        bench.put(text, base64.b64decode(row["body_base64"]), row_id=f"11111111-2222-3333-4444-{number:012}")
    bench.run()
    assert [moved["NServiceBus.ExceptionInfo.Message"] for moved in bench.headers("error")] == []
    seen = sorted(calls.seen, key=lambda headers: str(headers.get("NServiceBus.MessageId")))
    wanted = [json.loads(row["headers"]) for row in commands]
    for headers in wanted:
        # The delayed message has arrived; a real endpoint removes this header too.
        headers.pop("NServiceBus.SqlServer.ForwardDestination", None)
    assert seen == sorted(wanted, key=lambda headers: str(headers.get("NServiceBus.MessageId")))


def insert(bench: Bench, row: dict[str, Any]) -> None:
    bench.put(row["headers"], base64.b64decode(row["body_base64"] or ""), row_id="33333333-2222-3333-4444-555555555555")
    table, vendor = bench.table("Sales").qualified, bench.database.vendor
    with bench.database.connection.cursor() as cursor:
        if row["body_base64"] is None:
            cursor.execute(f"UPDATE {table} SET body = NULL WHERE headers = %s", [row["headers"]])
        if row.get("expires"):
            sign = "-1 second" if row["expires"].startswith("-") else "+1 hour"
            now = {
                "postgresql": f"(now() AT TIME ZONE 'UTC') + interval '{sign}'",
                "sqlite": f"strftime('%Y-%m-%d %H:%M:%f', 'now', '{sign}')",
            }.get(vendor, f"DATEADD({'second, -1' if sign[0] == '-' else 'hour, 1'}, GETUTCDATE())")
            cursor.execute(f"UPDATE {table} SET expires = {now}".replace("%", "%%") + " WHERE headers = %s", [row["headers"]])
    if vendor == "postgresql":
        renew_id(bench, table)


def renew_id(bench: Bench, table: str) -> None:
    """Change the id of the row: it is a primary key, and `insert` uses the same id for the next row."""
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET id = gen_random_uuid() WHERE id = '33333333-2222-3333-4444-555555555555'")
