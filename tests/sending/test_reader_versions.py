"""Each kind of message that we write, read by every version of the transports (docs/internals/wire.md#rows-for-every-version).

The readers are in `readers.py`. On SQLite, whose tables have the columns of SQL Server, all versions of SQL Server read; on
PostgreSQL its own transport. `SHORTFALLS` lists what a version cannot read.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue_app import handles, publish, request, send, send_many, subscribe
from sqlqueue_app.tables.listing import current_catalog
from sqlqueue_app.tables.rows import MAX_TIME_TO_BE_RECEIVED_MS
from tests.sending.conftest import Desk
from tests.sending.readers import SQL_SERVER_READERS, Place, Seen, readers_of
from tests.support.bench import Asking, Bench
from tests.support.delayed_tables import ManualMover, delayed
from tests.support.raw_rows import RawRow, has_correlation_columns, insert_row, read_rows
from tests.support.worker_processes import address

MESSAGE_ID = "aaaaaaaa-0000-0000-0000-000000000001"
CORRELATION_ID = "cccccccc-0000-0000-0000-000000000003"
HOUR = timedelta(hours=1)
ANY = "any id"
AGES = timedelta(days=60)


@pytest.fixture
def office(bench: Bench) -> Bench:
    """Sales receives; this process sends as Web; Peer is a queue of another system, and gets messages of type Out."""
    bench.database.configure(SEND_AS="Web")
    bench.configure(routes={"Out.*": "Peer", "Test.*": "Sales"})
    bench.install_queues("Peer", "Web")
    return bench


def rows(bench: Bench, queue: str = "Peer") -> list[RawRow]:
    return read_rows(bench.database.connection, queue)


def place(bench: Bench, queue: str) -> Place:
    """Return the queue as readers see its address; SQLite writes the bare name."""
    return (queue, "public", None) if bench.database.vendor == "postgresql" else (queue, None, None)


def bare(bench: Bench, seen: Place | None) -> Place | None:
    """On SQL Server, omit the default schema and the own catalog: not every version reads them, but every version assumes them."""
    if bench.database.vendor != "sqlserver" or seen is None:
        return seen
    own = seen[1] in (None, "dbo") and seen[2] in (None, current_catalog(bench.database.connection))
    return (seen[0], None, None) if own else seen


def check(bench: Bench, row: RawRow, expected: Seen) -> None:
    """Check that every reader gets these values. A lifetime may be some seconds shorter; for ANY, a GUID is enough."""
    for versions, reader in readers_of(bench.database.vendor).items():
        seen = reader(row)
        seen = replace(seen, reply_to=bare(bench, seen.reply_to))
        if expected.message_id == ANY:
            uuid.UUID(seen.message_id)
            seen = replace(seen, message_id=ANY)
        left = seen.seconds_left
        if expected.seconds_left is not None and left is not None:
            assert -0.01 < expected.seconds_left - left < 600, versions
        assert (versions, replace(seen, seconds_left=None)) == (versions, replace(expected, seconds_left=None))
        assert (left is None) is (expected.seconds_left is None), versions


# --- what a process sends --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, None),
        ({"time_to_be_received": HOUR}, 3600.0),
        ({"time_to_be_received": AGES}, MAX_TIME_TO_BE_RECEIVED_MS / 1000),
        ({"message_id": "dddddddd-0000-0000-0000-00000000000a"}, None),
    ],
    ids=["plain", "for an hour", "for ages", "with an id"],
)
def test_every_version_reads_a_message(office: Bench, options: dict[str, Any], seconds: float | None) -> None:
    sent = send("Out.Message", {}, **options)
    (row,) = rows(office)
    check(office, row, Seen(sent, sent, place(office, "Web"), seconds))


@pytest.mark.parametrize("count", [2, 60])
def test_every_version_reads_many_messages(office: Bench, count: int) -> None:
    sent = send_many([("Out.Message", {})] * count, time_to_be_received=HOUR)
    for message_id, row in zip(sent, rows(office), strict=True):
        check(office, row, Seen(message_id, message_id, place(office, "Web"), 3600.0))


def test_every_version_reads_headers_of_the_caller(office: Bench) -> None:
    headers = {"NServiceBus.CorrelationId": "order 42", "NServiceBus.ReplyToAddress": address(office, "Peer")}
    sent = send("Out.Message", {}, headers=headers)
    (row,) = rows(office)
    check(office, row, Seen(sent, "order 42", place(office, "Peer")))


def test_every_version_reads_an_event(office: Bench) -> None:
    subscribe("Out.Event", endpoint="Peer")
    sent = publish("Out.Event", {}, time_to_be_received=HOUR)
    (row,) = rows(office)
    check(office, row, Seen(sent, sent, place(office, "Web"), 3600.0))


@pytest.mark.parametrize("many", [False, True])
def test_every_version_reads_a_moved_delayed_message(office: Bench, many: bool) -> None:
    (sent,) = send_many([("Out.Message", {})], delay=timedelta()) if many else [send("Out.Message", {}, delay=timedelta())]
    assert rows(office) == []
    ManualMover().run()
    (row,) = rows(office)
    check(office, row, Seen(sent, sent, place(office, "Web")))


def test_every_version_reads_a_subscribe_message(office: Bench) -> None:
    """To a publisher of transport 1 to 4: 1.x and 2.x take the subscriber from the column, later versions from the header.

    Our publisher understands it, too.
    """
    sent_headers = {
        "NServiceBus.MessageIntent": "Subscribe",
        "NServiceBus.ControlMessage": "True",
        "SubscriptionMessageType": "Out.Event, Out",
        "NServiceBus.SubscriberAddress": address(office, "Peer"),
        "NServiceBus.SubscriberEndpoint": "Peer",
        "NServiceBus.ReplyToAddress": address(office, "Peer"),
    }
    sent = [send("Out.Event", to=address(office, queue), headers=sent_headers) for queue in ("Web", "Sales")]
    for queue, message_id in zip(("Web", "Sales"), sent, strict=True):
        (row,) = rows(office, queue)
        check(office, row, Seen(message_id, message_id, place(office, "Peer")))
        assert {name: row.headers[name] for name in sent_headers} == sent_headers
    office.run()
    publish("Out.Event", {})
    assert len(rows(office)) == 1
    assert rows(office, "error") == []


@pytest.mark.parametrize("legacy", [False, True])
def test_every_version_reads_a_request(asking: Asking, legacy: bool) -> None:
    asking.configure(LEGACY_CALLBACK_HEADER=legacy)
    pending = request("Test.Ask", {})
    (row,) = rows(asking.bench, "Sales")
    check(asking.bench, row, Seen(pending.message_id, pending.message_id, place(asking.bench, "Web.here")))
    pending.cancel()


# --- sent while handling a message of transport 2.2.2, whose reply-to address is only in the column ------------------------------


def receive(bench: Bench, handler: Callable[[Any, Any], Any], **headers: str) -> None:
    handles("Test.Ask")(handler)
    sent_headers: dict[str, str | None] = {
        "NServiceBus.MessageId": MESSAGE_ID,
        "NServiceBus.EnclosedMessageTypes": "Test.Ask",
        "NServiceBus.CorrelationId": CORRELATION_ID,
        **headers,
    }
    columns = {"CorrelationId": CORRELATION_ID, "ReplyToAddress": "Peer", "Recoverable": True}
    if not has_correlation_columns(bench.database.connection):
        columns, sent_headers["NServiceBus.ReplyToAddress"] = {}, address(bench, "Peer")
    insert_row(bench.database.connection, "Sales", MESSAGE_ID, sent_headers, b"{}", columns, expires_in=3600)
    bench.run()


def fail(message: Any, context: Any) -> None:
    raise LookupError("always")


ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "reply": lambda message, context: context.reply("Out.Answer", {}) and None,
    "return code": lambda message, context: context.reply(7) and None,
    "send": lambda message, context: context.send("Out.Message", {}) and None,
    "publish": lambda message, context: context.publish("Out.Event", {}) and None,
    "at once": lambda message, context: context.send("Out.Message", {}, immediate=True) and None,
}


@pytest.mark.parametrize("how", ANSWERS)
def test_every_version_reads_sends_of_a_handler(office: Bench, how: str) -> None:
    subscribe("Out.Event", endpoint="Peer")
    receive(office, ANSWERS[how])
    (row,) = rows(office)
    check(office, row, Seen(ANY, CORRELATION_ID, place(office, "Sales")))
    assert row.headers["NServiceBus.MessageId"] != MESSAGE_ID


def test_every_version_reads_a_failed_message(office: Bench) -> None:
    receive(office, fail)
    (row,) = rows(office, "error")
    check(office, row, Seen(MESSAGE_ID, CORRELATION_ID, place(office, "Peer")))


def test_every_version_reads_an_audit_copy(office: Bench) -> None:
    office.configure(AUDIT_QUEUE="audit")
    receive(office, lambda message, context: None)
    (row,) = rows(office, "audit")
    check(office, row, Seen(MESSAGE_ID, CORRELATION_ID, place(office, "Peer")))


def test_every_version_reads_a_forwarded_message(office: Bench) -> None:
    receive(office, lambda message, context: context.forward(address(office, "Peer")))
    (row,) = rows(office)
    check(office, row, Seen(MESSAGE_ID, CORRELATION_ID, place(office, "Peer")))


def test_every_version_reads_a_failed_message_on_its_way(office: Bench) -> None:
    receive(office, fail, **{"NServiceBus.SqlServer.ForwardDestination": address(office, "Peer")})
    (row,) = rows(office)
    check(office, row, Seen(MESSAGE_ID, CORRELATION_ID, place(office, "Peer")))


def test_every_version_reads_a_moved_delayed_retry(office: Bench) -> None:
    office.configure(DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=3600)
    receive(office, fail)
    delayed(office, "Sales").bring_nearer(2 * HOUR)
    ManualMover().run()
    (row,) = rows(office, "Sales")
    check(office, row, Seen(MESSAGE_ID, CORRELATION_ID, place(office, "Peer")))
    assert row.headers["NServiceBus.Retries"] == "1"


def test_our_row_has_every_required_value(office: Bench) -> None:
    send("Out.Message", {})
    (row,) = rows(office)
    sent_headers = row.headers
    assert all(isinstance(value, str) for value in sent_headers.values())
    if has_correlation_columns(office.database.connection):
        assert (row.recoverable, str(row.id)) == (True, sent_headers["NServiceBus.MessageId"])
        columns = (row.correlation_id, row.reply_to_address)
        assert columns == (sent_headers["NServiceBus.CorrelationId"], sent_headers["NServiceBus.ReplyToAddress"])
    assert json.loads(row.body) == {}


# --- what a version cannot read --------------------------------------------------------------------------------------------------

OLD = ("1.x", "2.0-2.2.1", "2.2.2-2.2.6")
LONG = "x" * 256
SHORTFALLS = [
    # the headers sent, and the value missing in each version
    pytest.param({"NServiceBus.CorrelationId": LONG}, dict.fromkeys(OLD, "correlation_id"), id="a long correlation id"),
    pytest.param({"NServiceBus.ReplyToAddress": LONG}, {"1.x": "reply_to"}, id="a long reply-to address"),
    pytest.param({"NServiceBus.MessageId": "order 42"}, dict.fromkeys(OLD, "message_id"), id="a message id that is no GUID"),
]


@pytest.mark.parametrize(("headers", "missing"), SHORTFALLS)
def test_old_versions_miss_long_and_unusual_values(sqlite_desk: Desk, headers: dict[str, str], missing: dict[str, str]) -> None:
    send("Sending.Message", {}, headers=headers)
    (row,) = read_rows(sqlite_desk.database.connection, "Sales")
    assert {versions: lost for versions, reader in SQL_SERVER_READERS.items() if (lost := _lost(reader, row))} == missing


def test_old_versions_miss_columns_of_a_message_moved_by_a_peer() -> None:
    """Our mover fills them; those of transports 3.1 and later write NULL (docs/internals/wire.md#delayed-messages)."""
    sent_headers: dict[str, str | None] = {
        "NServiceBus.MessageId": MESSAGE_ID,
        "NServiceBus.CorrelationId": CORRELATION_ID,
        "NServiceBus.ReplyToAddress": "Peer@[dbo]@[nsb]",
    }
    row = RawRow(uuid.uuid4(), None, None, True, None, sent_headers, b"{}")
    lost = {versions: lost for versions, reader in SQL_SERVER_READERS.items() if (lost := _lost(reader, row))}
    assert lost == {"1.x": "correlation_id, reply_to", "2.0-2.2.1": "correlation_id", "2.2.2-2.2.6": "correlation_id"}


def _lost(reader: Callable[[RawRow], Seen], row: RawRow) -> str:
    try:
        seen = reader(row)
    except ValueError:
        return "message_id"
    names = {"correlation_id": "CorrelationId", "reply_to": "ReplyToAddress"}
    present = [name for name, header in names.items() if row.headers.get(f"NServiceBus.{header}")]
    return ", ".join(name for name in present if not getattr(seen, name))
