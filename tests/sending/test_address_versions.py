"""Addresses of three parts in both directions: how each version reads ours, and where our reply to theirs goes.

SQL Server is not available here: rows for it are composed with its address book and compared. On PostgreSQL replies are really
delivered into other schemas.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.conf import Settings
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress, quote_postgresql
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.headers import Intent
from sqlqueue_app.sending.composer import Composer, SendOptions, new_row, sender_identity
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.rows import values_of
from tests.sending.readers import SQL_SERVER_READERS, Place
from tests.support.bench import Bench
from tests.support.raw_rows import RawRow

COLUMNS = ("id", "correlation_id", "reply_to_address", "headers", "body")


def composer(book: AddressBook, endpoint: str = "Sales") -> Composer:
    return Composer(Settings(), book, sender_identity(endpoint, book))


def on_sql_server(sender: Composer, headers: dict[str, str | None] | None = None) -> RawRow:
    """Return the row of a message as it would be in a table of SQL Server."""
    row = new_row(sender.compose("Out.Message", {}, SendOptions(to="Peer", headers=headers)), keep_id=True)
    row_id, correlation_id, reply_to, sent_headers, body = values_of([row], COLUMNS, "sqlserver")
    return RawRow(uuid.UUID(row_id), correlation_id, reply_to, True, None, json.loads(sent_headers), body)


# --- ours, read by them ---------------------------------------------------------------------------------------------------------

OURS = [
    # endpoint, schema, catalog, and what 3.0 takes for the schema
    ("Sales", "dbo", "nsb", "dbo"),
    ("Sales.Orders", "my.schema", "my.catalog", "my.schema"),
    ("Sales", "it's", 'say "nsb"', "it's"),
    ("Sales", "a]b", "c]d", "a]b"),
    ("Sales", "[quoted]", "[nsb]", "[quoted]"),
    ("Sa[les", "x[y", "c[d", "x[y"),
    ("Sales", "dbo", "c@d", "dbo"),
    # 3.0 splits at every @, also inside brackets: it cannot address a schema with one.
    ("Sales", "my@schema", "nsb", "[my"),
]


@pytest.mark.parametrize(("endpoint", "schema", "catalog", "seen_by_3_0"), OURS)
def test_every_reader_understands_our_reply_to_address(endpoint: str, schema: str, catalog: str, seen_by_3_0: str) -> None:
    row = on_sql_server(composer(AddressBook("sqlserver", schema, catalog), endpoint))
    seen: dict[str, Place | None] = {versions: reader(row).reply_to for versions, reader in SQL_SERVER_READERS.items()}
    assert seen == {
        **dict.fromkeys(("1.x", "2.0-2.2.1", "2.2.2-2.2.6"), (endpoint, None, None)),
        "3.0": (endpoint, seen_by_3_0, None),
        **dict.fromkeys(("3.1-6.x", "7.0-8.0", "8.1+"), (endpoint, schema, catalog)),
    }
    assert row.reply_to_address == row.headers["NServiceBus.ReplyToAddress"]


def test_header_keeps_a_name_that_a_varchar_column_may_lose() -> None:
    row = on_sql_server(composer(AddressBook("sqlserver", "dbo", "nsb"), "Lager.注文"))
    seen = {versions: (reader(row).reply_to or [None])[0] for versions, reader in SQL_SERVER_READERS.items()}
    # 1.x reads no header
    assert seen == {versions: None if versions == "1.x" else "Lager.注文" for versions in SQL_SERVER_READERS}


def test_legacy_callback_header_hides_the_schema_from_3_0_to_8_0() -> None:
    """They replace the address by its bare name; 2.x takes the schema from the reply-to address, later versions do not."""
    book = AddressBook("sqlserver", "sales", "nsb")
    row = on_sql_server(composer(book, "Web.here"), {"NServiceBus.SqlServer.CallbackQueue": "Web.here"})
    seen = {versions: reader(row).reply_to for versions, reader in SQL_SERVER_READERS.items()}
    assert seen.pop("8.1+") == ("Web.here", "sales", "nsb")
    assert set(seen.values()) == {("Web.here", None, None)}


# --- theirs, answered by us ----------------------------------------------------------------------------------------------------

DEFAULT: Place = ("Peer", "dbo", "nsb")
THEIRS = [
    # the text of the reply-to address, where the reply goes; with LEGACY_ADDRESSES
    ("Peer", DEFAULT, DEFAULT),
    ("Peer@HOST", ("Peer", "HOST", "nsb"), DEFAULT),
    ("Peer@[dbo]", DEFAULT, DEFAULT),
    ("Peer@sales", ("Peer", "sales", "nsb"), DEFAULT),
    ("Peer@[sales]@[nsb]", ("Peer", "sales", "nsb"), DEFAULT),
    ("Peer@[sales]@[other]", ("Peer", "sales", "other"), DEFAULT),
    ("Peer@[]@[other]", ("Peer", "dbo", "other"), DEFAULT),
    ("Peer.Orders@[my.schema]@[my.catalog]", ("Peer.Orders", "my.schema", "my.catalog"), ("Peer.Orders", "dbo", "nsb")),
    ("Peer@[a]]b]@[c]]d]", ("Peer", "a]b", "c]d"), DEFAULT),
    # as printed by 3.0, which does not double the bracket
    ("Peer@[a]b]", ("Peer", "a]b", "nsb"), DEFAULT),
    ("Peer@[my@schema]@[my@catalog]", ("Peer", "my@schema", "my@catalog"), DEFAULT),
    ('Peer@[it\'s]@[say "x"]', ("Peer", "it's", 'say "x"'), DEFAULT),
    ("Peer@[x[y]@[z]", ("Peer", "x[y", "z"), DEFAULT),
    # the settings of a queue win over its address
    ("Moved@[sales]@[other]", ("Moved", "new", "far"), ("Moved", "new", "far")),
]


def answered(book: AddressBook, *, column: str | None = None, **headers: str | None) -> Place:
    """Return where the reply to a message of a peer goes."""
    sent_headers = {f"NServiceBus.{name.replace('_', '.')}": value for name, value in headers.items()}
    incoming = IncomingMessage(uuid.uuid4(), sent_headers, b"{}", None, column)
    sender = composer(book)
    to = sender.reply_address(incoming)
    sent = sender.compose("Out.Answer", {}, SendOptions(to=to), incoming=incoming, intent=Intent.REPLY)
    address = book.resolve(sent.destination)
    return address.table, address.schema, address.catalog


@pytest.mark.parametrize(("text", "expected", "cut"), THEIRS)
def test_reply_goes_to_the_expected_address(text: str, expected: Place, cut: Place) -> None:
    settings: dict[str, Any] = {"schema_for_queue": {"Moved": "new"}, "catalog_for_queue": {"Moved": "far"}}
    for cuts, place in ((False, expected), (True, cut)):
        book = AddressBook("sqlserver", "dbo", "nsb", cuts_received=cuts, **settings)
        assert answered(book, ReplyToAddress=text) == place
        assert answered(book, column=text) == place
        assert answered(book, column=text, ReplyToAddress="Another@[x]") == place


def test_callback_queue_of_2_x_has_schema_and_catalog_of_the_reply_address() -> None:
    book = AddressBook("sqlserver", "dbo", "nsb")
    place = answered(book, column="Peer@[sales]@[other]", SqlServer_CallbackQueue="Peer.HOST")
    assert place == ("Peer.HOST", "sales", "other")


@pytest.mark.parametrize(
    ("text", "qualified"),
    [
        ("Peer@[sales]@[other]", "[other].[sales].[Peer]"),
        ("Peer@[a]]b]@[c]]d]", "[c]]d].[a]]b].[Peer]"),
        ("Peer@[it's]@[x; DROP TABLE y]", "[x; DROP TABLE y].[it's].[Peer]"),
    ],
)
def test_table_name_includes_another_catalog(text: str, qualified: str) -> None:
    assert AddressBook("sqlserver", "dbo", "nsb").parse(text).qualified(None) == qualified


# --- really delivered, on PostgreSQL --------------------------------------------------------------------------------------------

SCHEMAS = ["sales", "my.schema", 'sch"ma', "[x]", "it's", "Groß", "a@b"]


@pytest.fixture
def office(postgresql_bench: Bench) -> Bench:
    @handles("Test.Ask")
    def answer(message: Any, context: Any) -> None:
        context.reply("Test.Answer", {"n": 1})

    postgresql_bench.install_queues("Peer", "Peer.Orders")
    return postgresql_bench


def queue_in(bench: Bench, schema: str, queue: str) -> QueueAddress:
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {quote_postgresql(schema)}")
    address = QueueAddress(queue, schema, form="postgresql")
    install_tables(bench.database.alias, [PlannedTable(TableKind.QUEUE, address)])
    return address


@pytest.mark.parametrize("schema", SCHEMAS)
def test_reply_arrives_in_another_schema(office: Bench, schema: str) -> None:
    elsewhere = queue_in(office, schema, "Peer.Orders")
    office.put_message("Test.Ask", **{"NServiceBus.ReplyToAddress": elsewhere.full(None)})
    office.run()
    (row,) = queue_table(office.database.alias, elsewhere).peek(10)
    assert json.loads(row.headers or "")["NServiceBus.MessageIntent"] == "Reply"
    assert office.rows("Peer.Orders") == office.rows("error") == []


def test_dot_splits_an_unquoted_address(office: Bench) -> None:
    elsewhere = queue_in(office, "sales", "Orders")
    office.put_message("Test.Ask", **{"NServiceBus.ReplyToAddress": "sales.Orders"})
    office.run()
    assert len(queue_table(office.database.alias, elsewhere).peek(10)) == 1


@pytest.mark.parametrize("way", ["forward", "send_on"])
def test_forwarded_message_keeps_its_reply_to_address(office: Bench, way: str) -> None:
    elsewhere = queue_in(office, "my.schema", "Peer")
    handles("Test.Message")(lambda message, context: context.forward(elsewhere.full(None)))
    sent_headers = {"NServiceBus.ReplyToAddress": '"their"."Peer"'}
    forward = {"NServiceBus.SqlServer.ForwardDestination": elsewhere.full(None)} if way == "send_on" else {}
    office.put_message("Test.Message", **sent_headers, **forward)
    office.run()
    (row,) = queue_table(office.database.alias, elsewhere).peek(10)
    assert json.loads(row.headers or "")["NServiceBus.ReplyToAddress"] == '"their"."Peer"'
