"""`LEGACY_ADDRESSES`: an endpoint reads addresses in messages as transports 1.x and 2.x do, cut at the first `@`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.dialects.schema import PlannedTable, TableKind
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.tables.installation import install_tables
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.testing import FakeContext
from tests.support.bench import FAST, Bench
from tests.support.worker_processes import address

MESSAGE_ID = "aaaaaaaa-0000-0000-0000-000000000001"


@pytest.fixture
def cutting(bench: Bench) -> Bench:
    bench.configure(LEGACY_ADDRESSES=True)
    bench.install_queues("Web", "Acme.Web", "Acme.Web.OLDBOX")
    return bench


@pytest.fixture(autouse=True)
def _answering(bench: Bench) -> None:
    @handles("Test.Ask")
    def answer_request(message: Any, context: Any) -> None:
        context.reply("Test.Answer", {"n": message["n"]})

    @handles("Test.Check")
    def check(message: Any, context: Any) -> None:
        context.reply(7)


def put(bench: Bench, reply_to: str, message_type: str = "Test.Ask", **headers: str) -> None:
    """Insert a row as transports 1.x and 2.x write it: the reply-to address only in the column, if the table has one."""
    all_headers = {"NServiceBus.EnclosedMessageTypes": message_type, "NServiceBus.MessageId": MESSAGE_ID, **headers}
    if bench.database.vendor == "postgresql":
        all_headers["NServiceBus.ReplyToAddress"] = reply_to
    bench.table("Sales").send([NewRow(MESSAGE_ID, json.dumps(all_headers), b'{"n": 1}', MESSAGE_ID, reply_to)])


@pytest.mark.parametrize("reply_to", ["Acme.Web@OLDBOX", "Acme.Web@[sales]@[nsb]", "Acme.Web"])
@pytest.mark.parametrize("message_type", ["Test.Ask", "Test.Check"])
def test_reply_goes_to_the_queue_before_the_at_sign(cutting: Bench, reply_to: str, message_type: str) -> None:
    put(cutting, reply_to, message_type)
    cutting.run()
    assert [headers["NServiceBus.CorrelationId"] for headers in cutting.headers("Acme.Web")] == [MESSAGE_ID]
    assert cutting.rows("error") == []


def test_without_the_setting_the_text_is_an_address_of_the_database(bench: Bench) -> None:
    bench.install_queues("Web")
    put(bench, "Web@OLDBOX")
    bench.run()
    arrived, failed = bench.rows("Web"), bench.headers("error")
    if bench.database.vendor == "sqlite":
        # Its tables have no schemas, so no reader uses the text after an @.
        assert (len(arrived), failed) == (1, [])
    else:
        assert arrived == []
        # SQL Server reads it as a schema
        name = "[OLDBOX].[Web]" if bench.database.vendor == "sqlserver" else "Web@OLDBOX"
        assert name in failed[0]["NServiceBus.ExceptionInfo.Message"]


def test_current_peers_still_receive_replies(cutting: Bench) -> None:
    put(cutting, address(cutting, "Acme.Web"))
    cutting.run()
    assert len(cutting.rows("Acme.Web")) == 1


def test_callback_queue_of_2_x_is_in_the_schema_of_the_reply_queue(cutting: Bench) -> None:
    put(cutting, "Acme.Web@OLDBOX", "Test.Check", **{"NServiceBus.SqlServer.CallbackQueue": "Acme.Web.OLDBOX@OLDBOX"})
    cutting.run()
    (headers,) = cutting.headers("Acme.Web.OLDBOX")
    assert headers["NServiceBus.ReturnMessage.ErrorCode"] == "7"


def test_schema_comes_from_the_settings(cutting: Bench) -> None:
    if cutting.database.vendor == "sqlite":
        pytest.skip("SQLite has no schemas")
    with cutting.database.connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA old")
    cutting.database.configure(ENDPOINTS={"Sales": {**FAST, "LEGACY_ADDRESSES": True}}, SCHEMA_FOR_QUEUE={"Web": "old"})
    moved = QueueAddress("Web", "old", form=cutting.database.vendor)
    install_tables(cutting.database.alias, [PlannedTable(TableKind.QUEUE, moved)])
    put(cutting, "Web@OLDBOX")
    cutting.run()
    assert len(queue_table(cutting.database.alias, moved).peek(10)) == 1


def test_allowed_destinations_apply_to_the_shortened_address(cutting: Bench) -> None:
    cutting.database.configure(ENDPOINTS={"Sales": {**FAST, "LEGACY_ADDRESSES": True}}, ALLOWED_DESTINATIONS=["Acme.*"])
    put(cutting, "Web@Acme.Web")
    cutting.run()
    assert cutting.rows("Web") == []
    assert "ALLOWED_DESTINATIONS" in cutting.headers("error")[0]["NServiceBus.ExceptionInfo.Message"]


def test_address_without_a_queue_is_reported(cutting: Bench) -> None:
    put(cutting, "@OLDBOX")
    cutting.run()
    (headers,) = cutting.headers("error")
    assert "'@OLDBOX' has no table" in headers["NServiceBus.ExceptionInfo.Message"]


def test_forwarded_message_goes_to_the_queue_before_the_at_sign(cutting: Bench) -> None:
    headers = {"NServiceBus.EnclosedMessageTypes": "Test.Ask", "NServiceBus.SqlServer.ForwardDestination": "Acme.Web@OLDBOX"}
    cutting.put(json.dumps(headers), b"{}")
    cutting.run()
    assert len(cutting.rows("Acme.Web")) == 1


def test_addresses_in_handlers_are_not_shortened(cutting: Bench) -> None:
    @handles("Test.Send")
    def send(message: Any, context: Any) -> None:
        context.send("Test.Other", {}, to=address(cutting, "Acme.Web"))

    cutting.put_message("Test.Send")
    cutting.run()
    assert len(cutting.rows("Acme.Web")) == 1


def test_fake_context_shortens_addresses_too(cutting: Bench) -> None:
    context = FakeContext(endpoint="Sales", reply_to="Acme.Web@OLDBOX")
    context.reply("Test.Answer", {})
    assert [reply.queue for reply in context.replies] == ["Acme.Web"]
