"""Rows as every version of the transports writes them, and how our worker reads them.

See docs/internals/wire.md#rows-by-writer.

`WRITERS` lists where each version writes the message id, the reply-to address, the correlation id and the expiry, and the table
layouts of its rows. A reader resolves them as follows: ReplyTo is the callback queue of 2.x, else the column if not empty, else the
header; CorrelationId is the header, else the column.

SQLite has the columns of SQL Server. PostgreSQL has neither column and is tested with the rows of its own transport.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from sqlqueue_app import handles, request
from sqlqueue_app.tables.queue import forget_tables
from tests.support.bench import Asking, Bench, Calls
from tests.support.delayed_tables import delayed
from tests.support.provisioning import configured
from tests.support.raw_rows import RawRow, insert_row, read_rows

SECONDS = 60.0
MESSAGE_ID = "aaaaaaaa-0000-0000-0000-000000000001"
ROW = "bbbbbbbb-0000-0000-0000-000000000002"
CORRELATION_ID = "cccccccc-0000-0000-0000-000000000003"
COLUMN, HEADER = "column", "header"
BOTH = (HEADER, COLUMN)


@dataclass(frozen=True)
class Writer:
    """What a version writes: one line of `WRITERS`."""

    versions: str
    core: str
    row_id: str
    """MESSAGE_ID: the id of the row is the message id. ROW: it is any."""
    reply_to: tuple[str, ...]
    correlation: tuple[str, ...]
    expires: bool
    """Whether its rows can have an expiry."""
    peer: str
    """The text of its reply-to address."""
    callback_queue: str | None = None
    layouts: tuple[str, ...] = ("classic",)
    vendors: tuple[str, ...] = ("sqlite", "sqlserver")
    message_id: bool = True
    """Whether it writes the header NServiceBus.MessageId."""

    @property
    def listens_at(self) -> str:
        return self.callback_queue or "Peer"

    def row(
        self, message_id: str = MESSAGE_ID, correlation_id: str = CORRELATION_ID, **headers: str
    ) -> tuple[str, dict[str, str | None], Any]:
        """Id, headers and further columns of a row."""
        all_headers: dict[str, str | None] = {
            **({"NServiceBus.MessageId": message_id} if self.message_id else {}),
            "NServiceBus.EnclosedMessageTypes": "Test.Ask",
            "NServiceBus.Version": self.core,
            **({"NServiceBus.CorrelationId": correlation_id} if HEADER in self.correlation else {}),
            **({"NServiceBus.ReplyToAddress": self.peer} if HEADER in self.reply_to else {}),
            **({"NServiceBus.SqlServer.CallbackQueue": self.callback_queue} if self.callback_queue else {}),
            **headers,
        }
        columns: dict[str, Any] = {
            "CorrelationId": correlation_id if COLUMN in self.correlation else None,
            "ReplyToAddress": self.peer if COLUMN in self.reply_to else None,
            "Recoverable": True,
        }
        return message_id if self.row_id == MESSAGE_ID or not self.message_id else ROW, all_headers, columns


CLASSIC, MODERN = ("classic",), ("classic", "BodyString", "no Recoverable")
PG: Any = {"vendors": ("postgresql",), "layouts": ("postgresql",)}
OLD_CALLBACK = "Peer.HOST"
WRITERS = [
    # versions, core, row id, where ReplyTo is, where CorrelationId is, expiry, address text
    Writer("1.x", "4.7.12", MESSAGE_ID, (COLUMN,), BOTH, True, "Peer"),
    Writer("1.x with a machine", "4.0.0", MESSAGE_ID, (COLUMN,), BOTH, True, "Peer@OLDBOX"),
    Writer("1.x correlation in the column", "4.0.0", MESSAGE_ID, (COLUMN,), (COLUMN,), True, "Peer"),
    Writer("2.0-2.2.1", "5.0.0", MESSAGE_ID, (COLUMN,), BOTH, True, "Peer", OLD_CALLBACK),
    Writer("2.0-2.2.1 forwarded", "5.0.0", MESSAGE_ID, BOTH, BOTH, False, "Peer", OLD_CALLBACK),
    Writer("2.2.2+", "5.2.26", MESSAGE_ID, (COLUMN,), BOTH, True, "Peer", OLD_CALLBACK),
    Writer("2.2.2+ without callbacks", "5.2.26", MESSAGE_ID, (COLUMN,), BOTH, True, "Peer"),
    Writer("3.0", "6.0.0", ROW, BOTH, BOTH, True, "Peer@[dbo]"),
    Writer("3.1-6.x", "7.8.6", ROW, BOTH, BOTH, True, "Peer@[dbo]@[nsb]", layouts=("classic", "BodyString")),
    Writer("7+", "10.2.8", ROW, (HEADER,), (HEADER,), True, "Peer@[dbo]@[nsb]", layouts=MODERN),
    Writer("moved from a delayed table", "7.8.6", ROW, (HEADER,), (HEADER,), False, "Peer@[dbo]@[nsb]", layouts=MODERN),
    Writer("native, without an id", "9.0.0", ROW, (HEADER,), (HEADER,), True, "Peer@[dbo]", layouts=MODERN, message_id=False),
    Writer("PostgreSQL 8.1", "9.2.12", ROW, (HEADER,), (HEADER,), True, '"public"."Peer"', **PG),
    Writer("PostgreSQL 9", "10.2.8", ROW, (HEADER,), (HEADER,), True, '"public"."Peer"', **PG),
    Writer("PostgreSQL moved", "10.2.8", ROW, (HEADER,), (HEADER,), False, '"public"."Peer"', **PG),
]
MATRIX = [
    pytest.param(vendor, layout, writer, id=f"{vendor}-{layout}-{writer.versions}")
    for writer in WRITERS
    for vendor in configured()
    if vendor in writer.vendors
    for layout in writer.layouts
]
EVERY_WRITER = pytest.mark.parametrize(("queue_database", "layout", "writer"), MATRIX, indirect=["queue_database"])
# Where the layout makes no difference, one case per writer is enough.
ONCE = [case for case in MATRIX if case.values[1] in ("classic", "postgresql")]
EACH_WRITER = pytest.mark.parametrize(("queue_database", "layout", "writer"), ONCE, indirect=["queue_database"])
# Writers that differ in where they put the values that a copy must keep.
PASSING = [case for case in ONCE if str(case.id).endswith(("a machine", "in the column", "2.2.2+", "forwarded", "-7+", "SQL 9"))]
PASSING_WRITER = pytest.mark.parametrize(("queue_database", "layout", "writer"), PASSING, indirect=["queue_database"])


def prepare(bench: Bench, layout: str, writer: Writer, **endpoint: Any) -> None:
    """Create Sales with a table of that layout, and a peer that may write addresses of 1.x."""
    bench.configure(**{"LEGACY_ADDRESSES": writer.core < "6" and not writer.core.startswith("1"), **endpoint})
    bench.install_queues("Peer", "Peer.HOST")
    change = {
        "no Recoverable": 'ALTER TABLE "Sales" DROP COLUMN Recoverable',
        "BodyString": 'ALTER TABLE "Sales" ADD COLUMN BodyString text GENERATED ALWAYS AS (CAST(Body AS text)) VIRTUAL',
    }.get(layout)
    if change is not None:
        if bench.database.vendor == "sqlserver" and layout == "BodyString":
            change = "ALTER TABLE Sales ADD BodyString AS cast(Body AS nvarchar(max))"
        with bench.database.connection.cursor() as cursor:
            cursor.execute(change)
        forget_tables()


def found(bench: Bench, queue: str) -> list[RawRow]:
    return read_rows(bench.database.connection, queue)


def _here(bench: Bench, text: Any) -> Any:
    """Replace the catalog in an address with that of the test, because the peer is in the same one."""
    catalog = bench.database.catalog()
    return text.replace("[nsb]", f"[{catalog}]") if catalog and isinstance(text, str) else text


def write(bench: Bench, layout: str, row: tuple[str, dict[str, str | None], Any], body: bytes = b"{}", **more: Any) -> None:
    row_id, headers, columns = row
    headers, columns = ({key: _here(bench, text) for key, text in texts.items()} for texts in (headers, columns))
    queue = more.pop("queue", "Sales")
    if layout == "postgresql":
        columns = {}
    elif layout == "no Recoverable":
        columns = {name: value for name, value in columns.items() if name != "Recoverable"}
    insert_row(bench.database.connection, queue, row_id, headers, body, columns, **more)


@EVERY_WRITER
def test_reply_uses_the_ids_and_addresses_of_the_row(bench: Bench, calls: Calls, layout: str, writer: Writer) -> None:
    prepare(bench, layout, writer)

    @handles("Test.Ask")
    def answer(message: Any, context: Any) -> None:
        calls.add(context.message_id)
        context.reply("Test.Answer", {})

    write(bench, layout, writer.row())
    bench.run()

    assert calls.seen == [MESSAGE_ID]
    (reply,) = found(bench, writer.listens_at)
    assert reply.headers["NServiceBus.CorrelationId"] == CORRELATION_ID
    assert reply.headers["NServiceBus.RelatedTo"] == MESSAGE_ID
    if layout != "postgresql":
        assert reply.correlation_id == CORRELATION_ID
    assert [queue for queue in ("Peer", "Peer.HOST", "error") if found(bench, queue)] == [writer.listens_at]


@EACH_WRITER
def test_expired_message_is_dropped(bench: Bench, calls: Calls, layout: str, writer: Writer) -> None:
    prepare(bench, layout, writer)
    handles("Test.Ask")(lambda message, context: calls.add(message["n"]) and None)
    lifetimes = {"past": -1, "future": 3600, "none": None} if writer.expires else {"none": None}
    for number, (name, seconds) in enumerate(lifetimes.items()):
        row_id, headers, columns = writer.row(f"{MESSAGE_ID[:-1]}{number}")
        write(bench, layout, (f"{row_id[:-1]}{number}", headers, columns), b'{"n": "%b"}' % name.encode(), expires_in=seconds)
    bench.run()

    assert calls.seen == [name for name in lifetimes if name != "past"]
    assert found(bench, "Sales") == found(bench, "error") == []


@EACH_WRITER
def test_reply_completes_the_request(asking: Asking, layout: str, writer: Writer) -> None:
    pending = request("Test.Ask", {"n": 1})
    intent = {} if writer.core.startswith("4.") else {"NServiceBus.MessageIntent": "Reply"}
    write(asking.bench, layout, writer.row(ROW, pending.message_id, **intent), b'{"n": 2}', queue="Web.here")
    assert pending.result(SECONDS) == {"n": 2}


# --- rows that we pass on mean the same to readers of the headers and to readers of the columns -----------------------------------


def fail(message: Any, context: Any) -> None:
    raise LookupError("always")


def send_on(message: Any, context: Any) -> None:
    context.forward("error")


def ignore(message: Any, context: Any) -> None:
    pass


PASSES = {
    "error": (fail, {}, "error"),
    "forward": (send_on, {}, "error"),
    "audit": (ignore, {"AUDIT_QUEUE": "audit"}, "audit"),
    "mover of a peer": (ignore, {}, "error"),
}


@pytest.mark.parametrize("way", PASSES)
@PASSING_WRITER
def test_forwarded_row_keeps_the_values_of_its_columns(bench: Bench, layout: str, writer: Writer, way: str) -> None:
    handler, settings, queue = PASSES[way]
    prepare(bench, layout, writer, **settings)
    handles("Test.Ask")(handler)
    forward = {"NServiceBus.SqlServer.ForwardDestination": "error"} if way == "mover of a peer" else {}
    write(bench, layout, writer.row(**forward))
    bench.run()

    (row,) = found(bench, queue)
    assert (row.headers["NServiceBus.MessageId"], row.headers["NServiceBus.CorrelationId"]) == (MESSAGE_ID, CORRELATION_ID)
    assert row.headers["NServiceBus.ReplyToAddress"] == (peer := _here(bench, writer.peer))
    assert row.headers.get("NServiceBus.SqlServer.CallbackQueue") == writer.callback_queue
    if layout != "postgresql":
        assert (row.correlation_id, row.reply_to_address) == (CORRELATION_ID, peer)


@PASSING_WRITER
def test_delayed_retry_keeps_the_values_of_its_columns(bench: Bench, calls: Calls, layout: str, writer: Writer) -> None:
    prepare(bench, layout, writer, DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=0)

    @handles("Test.Ask")
    def at_the_second_attempt(message: Any, context: Any) -> None:
        if calls.add(context.message_id) == 1:
            raise LookupError("once")
        context.reply("Test.Answer", {})

    write(bench, layout, writer.row())
    bench.run()

    assert calls.seen == [MESSAGE_ID, MESSAGE_ID]
    assert delayed(bench, "Sales").count(10) == (0, 0)
    (reply,) = found(bench, writer.listens_at)
    assert (reply.headers["NServiceBus.CorrelationId"], reply.headers["NServiceBus.RelatedTo"]) == (CORRELATION_ID, MESSAGE_ID)


# --- where column and header disagree ---------------------------------------------------------------------------------------------

REPLY_TO = [
    # column, header, callback queue of 2.x, destination of the reply
    pytest.param("Column", "Header", None, "Column", id="column and header"),
    pytest.param("Column", None, None, "Column", id="column alone"),
    pytest.param("Column", "", None, "Column", id="column and an empty header"),
    pytest.param(None, "Header", None, "Header", id="header alone"),
    pytest.param("", "Header", None, "Header", id="an empty column"),
    pytest.param("Column", "Header", "Callback", "Callback", id="the callback queue before both"),
    pytest.param("Column", None, "", "Column", id="an empty callback queue"),
    pytest.param(None, None, "Callback", "Callback", id="the callback queue alone"),
]
CORRELATION = [
    # column, header, what the reply carries
    pytest.param("column", "header", "header", id="column and header"),
    pytest.param("column", None, "column", id="column alone"),
    pytest.param("column", "", "column", id="column and an empty header"),
    pytest.param(None, "header", "header", id="header alone"),
    pytest.param("", "header", "header", id="an empty column"),
    pytest.param(None, None, MESSAGE_ID, id="neither: the message id"),
    pytest.param("", "", MESSAGE_ID, id="both empty: the message id"),
]


def answering(bench: Bench, headers: dict[str, str | None], **columns: Any) -> None:
    bench.install_queues("Column", "Header", "Callback")
    handles("Test.Ask")(lambda message, context: context.reply("Test.Answer", {}) and None)
    all_headers = {"NServiceBus.EnclosedMessageTypes": "Test.Ask", "NServiceBus.MessageId": MESSAGE_ID, **headers}
    insert_row(bench.database.connection, "Sales", MESSAGE_ID, all_headers, b"{}", {"Recoverable": True, **columns})
    bench.run()


@pytest.mark.parametrize(("column", "header", "callback", "lands"), REPLY_TO)
def test_column_of_the_reply_to_address_takes_precedence(
    sqlite_bench: Bench, column: str | None, header: str | None, callback: str | None, lands: str
) -> None:
    headers = {"NServiceBus.ReplyToAddress": header, "NServiceBus.SqlServer.CallbackQueue": callback}
    answering(sqlite_bench, headers, ReplyToAddress=column)
    assert [queue for queue in ("Column", "Header", "Callback", "error") if found(sqlite_bench, queue)] == [lands]


@pytest.mark.parametrize(("column", "header", "expected"), CORRELATION)
def test_header_of_the_correlation_id_takes_precedence(
    sqlite_bench: Bench, column: str | None, header: str | None, expected: str
) -> None:
    answering(sqlite_bench, {"NServiceBus.CorrelationId": header}, CorrelationId=column, ReplyToAddress="Column")
    (reply,) = found(sqlite_bench, "Column")
    assert reply.headers["NServiceBus.CorrelationId"] == reply.correlation_id == expected


@pytest.mark.parametrize(("column", "header", "lands"), [("Column", "Header", "Column"), ("", "Header", "Header")])
def test_copy_contains_the_values_that_took_precedence(sqlite_bench: Bench, column: str, header: str, lands: str) -> None:
    sqlite_bench.install_queues("Column", "Header")
    handles("Test.Ask")(fail)
    all_headers: dict[str, str | None] = {
        "NServiceBus.EnclosedMessageTypes": "Test.Ask",
        "NServiceBus.ReplyToAddress": header,
        "NServiceBus.CorrelationId": "header",
    }
    columns = {"Recoverable": True, "ReplyToAddress": column, "CorrelationId": "column"}
    insert_row(sqlite_bench.database.connection, "Sales", MESSAGE_ID, all_headers, b"{}", columns)
    sqlite_bench.run()
    (row,) = found(sqlite_bench, "error")
    assert row.headers["NServiceBus.ReplyToAddress"] == row.reply_to_address == lands
    assert row.headers["NServiceBus.CorrelationId"] == row.correlation_id == "header"
