"""Endpoints of transports 1.x to 3.x, simulated: the rows that only they write, and the rows that our worker writes back.

`test_compatibility.py` has the matrix of what all versions do.

Written from the descriptions of the wire format (docs/internals/wire.md), not from our code. PostgreSQL never had such an endpoint,
but tables migrated from SQL Server have such rows, with the values of the missing columns in the headers.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from sqlqueue_app import handles, publish, request
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.sending.composer import utc_now
from tests.support.bench import Asking, Bench, Calls
from tests.support.raw_rows import RawRow, has_correlation_columns, insert_row, read_rows
from tests.support.worker_processes import address

BOM = b"\xef\xbb\xbf"
MESSAGE_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
TYPE = "Shop.Messages.PlaceOrder, Shop.Messages, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null"
SECONDS = 60.0


@dataclass
class Peer:
    """An old endpoint on the tables of the test."""

    bench: Bench

    def write(
        self,
        queue: str,
        headers: dict[str, str | None],
        body: bytes | None,
        *,
        row_id: str = MESSAGE_ID,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        recoverable: bool = True,
    ) -> None:
        """Insert a row with all columns of that time; on PostgreSQL, values of missing columns go into the headers."""
        connection = self.bench.database.connection
        if has_correlation_columns(connection):
            columns = {"CorrelationId": correlation_id, "ReplyToAddress": reply_to, "Recoverable": recoverable}
            insert_row(connection, queue, row_id, headers, body, columns)
            return
        all_headers = dict(headers)
        all_headers |= {"NServiceBus.CorrelationId": correlation_id} if correlation_id else {}
        all_headers |= {"NServiceBus.ReplyToAddress": reply_to} if reply_to else {}
        insert_row(connection, queue, row_id, all_headers, body, {})

    def read(self, queue: str) -> list[RawRow]:
        return read_rows(self.bench.database.connection, queue)


@pytest.fixture
def peer(bench: Bench) -> Peer:
    bench.configure(LEGACY_SATELLITES=True, LEGACY_ADDRESSES=True)
    bench.install_queues("Web", "Web.OLDBOX")
    return Peer(bench)


def has_columns(peer: Peer) -> bool:
    return has_correlation_columns(peer.bench.database.connection)


def core_4(**more: str | None) -> dict[str, str | None]:
    return {
        "NServiceBus.MessageId": MESSAGE_ID,
        "NServiceBus.CorrelationId": None,
        "NServiceBus.OriginatingMachine": "OLDBOX",
        "NServiceBus.Version": "4.0.0",
        "NServiceBus.TimeSent": "2013-11-20 10:11:12:123456 Z",
        "NServiceBus.OriginatingEndpoint": "Web",
        "NServiceBus.EnclosedMessageTypes": TYPE,
        "NServiceBus.ContentType": "application/json",
        "NServiceBus.ConversationId": "6d8ebd1b-9f4c-4f3f-9d55-1f5b7d5e9d7e",
        "NServiceBus.MessageIntent": "Send",
        "WinIdName": "SHOP\\Jürgen",
        **more,
    }


def core_5(**more: str | None) -> dict[str, str | None]:
    return core_4(**{"NServiceBus.Version": "5.2.26", "NServiceBus.SqlServer.CallbackQueue": "Web.OLDBOX", **more})


def answering(calls: Calls, answer: Any = None) -> None:
    @handles("Shop.Messages.PlaceOrder")
    def place(message: Any, context: Any) -> None:
        calls.add((message, context.headers.get("WinIdName")))
        context.reply(*answer) if isinstance(answer, tuple) else context.reply(answer)


def test_reply_to_1_x_fills_the_columns_that_it_reads(peer: Peer, calls: Calls) -> None:
    answering(calls, ("Shop.Messages.OrderPlaced", {"OrderId": "42"}))
    # Core 4 wraps the message in an array; an express message is not recoverable.
    body = BOM + b'[{"OrderId":"42"}]'
    peer.write("Sales", core_4(), body, correlation_id=MESSAGE_ID, reply_to="Web@OLDBOX", recoverable=False)
    peer.bench.run()

    assert [(dict(message), name) for message, name in calls.seen] == [({"OrderId": "42"}, "SHOP\\Jürgen")]
    (reply,) = peer.read("Web")
    assert reply.headers["NServiceBus.MessageIntent"] == "Reply"
    assert reply.headers["NServiceBus.CorrelationId"] == MESSAGE_ID
    assert reply.headers["NServiceBus.ConversationId"] == core_4()["NServiceBus.ConversationId"]
    assert json.loads(reply.body) == {"OrderId": "42"}
    if has_columns(peer):
        assert reply.id == uuid.UUID(reply.headers["NServiceBus.MessageId"])
        assert (reply.correlation_id, reply.reply_to_address) == (MESSAGE_ID, address(peer.bench, "Sales"))
        assert reply.recoverable


def test_correlation_id_is_read_from_the_column(peer: Peer, calls: Calls) -> None:
    answering(calls, ("Shop.Messages.OrderPlaced", {}))
    peer.write("Sales", core_4(), b"{}", correlation_id="an older question", reply_to="Web")
    peer.bench.run()
    (reply,) = peer.read("Web")
    assert reply.headers["NServiceBus.CorrelationId"] == "an older question"


def test_failed_message_of_2_x_is_unchanged_in_the_error_queue(peer: Peer, calls: Calls) -> None:
    @handles("Shop.Messages.PlaceOrder")
    def fail(message: Any, context: Any) -> None:
        raise LookupError("no such order")

    body = BOM + b'{"OrderId":"42"}'
    peer.write("Sales", core_5(**{"NServiceBus.FLRetries": "4"}), body, correlation_id=MESSAGE_ID, reply_to="Web@OLDBOX")
    peer.bench.run()

    (row,) = peer.read("error")
    kept = {name: value for name, value in core_5().items() if value is not None}
    assert {name: row.headers.get(name) for name in kept} == kept
    assert "NServiceBus.FLRetries" not in row.headers
    assert row.body == body
    if has_columns(peer):
        assert row.id == uuid.UUID(MESSAGE_ID)
        assert (row.correlation_id, row.reply_to_address) == (MESSAGE_ID, "Web@OLDBOX")


def test_1_x_subscribes_by_messages_without_a_body(peer: Peer) -> None:
    event = "Shop.Messages.IOrderPlaced, Shop.Messages, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null"
    subscribe: dict[str, str | None] = {
        "NServiceBus.MessageId": MESSAGE_ID,
        "NServiceBus.Version": "4.0.0",
        "NServiceBus.ControlMessage": "True",
        "NServiceBus.MessageIntent": "Subscribe",
        "SubscriptionMessageType": event,
    }
    peer.write("Sales", subscribe, None, reply_to="Web@OLDBOX")
    peer.bench.run()
    assert peer.read("error") == []

    publish("Shop.Messages.IOrderPlaced", {"OrderId": "42"})
    (row,) = peer.read("Web")
    assert row.headers["NServiceBus.MessageIntent"] == "Publish"
    assert row.headers["NServiceBus.EnclosedMessageTypes"] == "Shop.Messages.IOrderPlaced"

    unsubscribe = {**subscribe, "NServiceBus.MessageIntent": "Unsubscribe"}
    peer.write("Sales", unsubscribe, None, reply_to="Web@OLDBOX", row_id=str(uuid.uuid4()))
    peer.bench.run()
    publish("Shop.Messages.IOrderPlaced", {"OrderId": "43"})
    assert len(peer.read("Web")) == 1


def test_saga_timeout_returns_to_its_endpoint(peer: Peer, calls: Calls) -> None:
    @handles("Shop.Messages.OrderIsLate")
    def late(message: Any, context: Any) -> None:
        calls.add(
            {name: context.headers.get(f"NServiceBus.{name}") for name in ("SagaId", "IsSagaTimeoutMessage", "ReplyToAddress")}
        )

    saga = {
        "NServiceBus.EnclosedMessageTypes": "Shop.Messages.OrderIsLate, Shop.Messages",
        "NServiceBus.SagaId": "11112222-3333-4444-5555-666677778888",
        "NServiceBus.SagaType": "Shop.OrderSaga, Shop",
        "NServiceBus.IsSagaTimeoutMessage": "True",
        "NServiceBus.IsDeferredMessage": "True",
        "NServiceBus.Timeout.Expire": format_time(utc_now()),
        "NServiceBus.Timeout.RouteExpiredTimeoutTo": "Sales@OLDBOX",
        "NServiceBus.Timeout.ReplyToAddress": "Web@OLDBOX",
    }
    peer.write("Sales.Timeouts", core_5(**saga), b"{}", reply_to="Sales")
    peer.bench.run()
    expected = {"SagaId": saga["NServiceBus.SagaId"], "IsSagaTimeoutMessage": "True", "ReplyToAddress": "Web@OLDBOX"}
    assert calls.seen == [expected]


def test_return_code_of_1_x_without_a_body_completes_a_request(asking: Asking) -> None:
    asking.configure(LEGACY_CALLBACK_HEADER=True, LEGACY_ADDRESSES=True)
    peer = Peer(asking.bench)
    pending = request("Test.Ask", {"n": 1})
    (row,) = peer.read("Sales")
    # 2.x replies to the queue in that header, in the schema of the reply-to queue, whose name it cuts at the @.
    queue = row.headers["NServiceBus.SqlServer.CallbackQueue"] or ""
    if has_columns(peer):
        assert (row.reply_to_address or "").partition("@")[0] == queue
        assert row.id == uuid.UUID(row.headers["NServiceBus.MessageId"])
    reply: dict[str, str | None] = {
        "NServiceBus.MessageId": str(uuid.uuid4()),
        "NServiceBus.CorrelationId": None if has_columns(peer) else pending.message_id,
        "NServiceBus.Version": "4.0.0",
        "NServiceBus.ControlMessage": "True",
        "NServiceBus.MessageIntent": "Send",
        "NServiceBus.ReturnMessage.ErrorCode": "5",
    }
    peer.write(queue, reply, None, correlation_id=pending.message_id, reply_to="Sales")
    assert pending.result(SECONDS) == 5


def test_message_of_3_x_with_a_random_row_id_keeps_its_message_id(peer: Peer, calls: Calls) -> None:
    answering(calls, ("Shop.Messages.OrderPlaced", {}))
    all_headers = {
        **core_4(),
        "NServiceBus.Version": "6.5.10",
        "NServiceBus.MessageId": "any text",
        "NServiceBus.CorrelationId": "any text",
    }
    all_headers["NServiceBus.ReplyToAddress"] = "Web@[dbo]"
    peer.write("Sales", all_headers, BOM + b"{}", row_id=str(uuid.uuid4()), correlation_id="any text", reply_to="Web@[dbo]")
    peer.bench.run()
    (reply,) = peer.read("Web")
    assert reply.headers["NServiceBus.RelatedTo"] == reply.headers["NServiceBus.CorrelationId"] == "any text"


def test_message_without_a_body_keeps_its_columns_in_the_error_queue(peer: Peer) -> None:
    all_headers = {name: value for name, value in core_4().items() if name != "NServiceBus.MessageId"}
    peer.write("Sales", all_headers, None, correlation_id="an older question", reply_to="Web@OLDBOX")
    peer.bench.run()
    (row,) = peer.read("error")
    assert row.headers["NServiceBus.ExceptionInfo.Message"] == "the column Body is NULL"
    assert row.headers["NServiceBus.MessageId"] == MESSAGE_ID
    if has_columns(peer):
        assert (row.correlation_id, row.reply_to_address) == ("an older question", "Web@OLDBOX")
