"""Compatibility matrix for transports 1.x to 3.1: messages, replies, events, callbacks.

See docs/internals/endpoints.md#historical-tests.

The rows have the form that those versions write (docs/internals/wire.md#rows-by-writer), and our rows must have the form and the
place that they read. Those versions support only SQL Server. SQLite has the same eight columns; PostgreSQL has no columns for the
reply-to address and the correlation id.
"""

from __future__ import annotations

import enum
import json
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from sqlqueue_app import handles, publish, request
from sqlqueue_app.tables.rows import NewRow
from tests.support.bench import Asking, Bench, Calls
from tests.support.worker_processes import address

MESSAGE_ID = "aaaaaaaa-0000-0000-0000-000000000001"
EVENT = "Shop.Messages.OrderPlaced"
SECONDS = 60.0


class Status(enum.Enum):
    ON_HOLD = 7


@dataclass(frozen=True)
class Peer:
    """An endpoint `Peer` on the machine `HOST`, by the version of its transport."""

    transport: str
    core: str
    address: str
    reply_to_in_header: bool
    callback_queue: str | None = None

    @property
    def listens_at(self) -> str:
        """The queue where it waits for replies."""
        return self.callback_queue or "Peer"

    def own_address(self, bench: Bench) -> str:
        """Its address in the form it writes; on SQL Server, in the catalog of the test."""
        return self.address.replace("[nsb]", f"[{bench.database.catalog()}]") if bench.database.catalog() else self.address

    def put(
        self, bench: Bench, headers: dict[str, str], body: bytes, *, queue: str = "Sales", correlation: str = MESSAGE_ID
    ) -> None:
        """Insert a row in the form it writes."""
        all_headers = {
            "NServiceBus.MessageId": MESSAGE_ID,
            "NServiceBus.CorrelationId": correlation,
            "NServiceBus.ConversationId": "aaaaaaaa-0000-0000-0000-00000000000c",
            "NServiceBus.OriginatingEndpoint": "Peer",
            "NServiceBus.TimeSent": "2026-11-20 10:11:12:123456 Z",
            "NServiceBus.Version": self.core,
            **({"NServiceBus.SqlServer.CallbackQueue": self.callback_queue} if self.callback_queue else {}),
            **headers,
        }
        on_postgresql = bench.database.vendor == "postgresql"
        reply_to = address(bench, "Peer") if on_postgresql else self.own_address(bench)
        if self.reply_to_in_header or on_postgresql:
            all_headers["NServiceBus.ReplyToAddress"] = reply_to
        row_id = all_headers["NServiceBus.MessageId"]
        bench.table(queue).send([NewRow(row_id, json.dumps(all_headers), body, correlation, reply_to)])


PEERS = [
    Peer("1.2", "4.7.12", "Peer", reply_to_in_header=False),
    Peer("2.2", "5.2.26", "Peer", reply_to_in_header=False, callback_queue="Peer.HOST"),
    Peer("3.0", "6.0.0", "Peer@[dbo]", reply_to_in_header=True),
    Peer("3.1", "6.5.10", "Peer@[dbo]@[nsb]", reply_to_in_header=True),
]
EVERY_PEER = pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.transport)


@pytest.fixture
def shop(bench: Bench) -> Bench:
    bench.install_queues("Peer", "Peer.HOST")
    return bench


def sent(bench: Bench, queue: str) -> tuple[dict[str, str], bytes]:
    """The only message in a queue; 1.x and 2.x read its id, correlation id and sender from the columns."""
    (row,) = bench.rows(queue)
    headers = json.loads(row.headers or "")
    if bench.database.vendor != "postgresql":
        assert str(row.id) == headers["NServiceBus.MessageId"]
        assert row.correlation_id == headers["NServiceBus.CorrelationId"]
        assert row.reply_to_address == headers["NServiceBus.ReplyToAddress"]
    return headers, bytes(row.body or b"")


@EVERY_PEER
def test_command_is_handled(shop: Bench, calls: Calls, peer: Peer) -> None:
    handles("Shop.Messages.PlaceOrder")(lambda message, context: calls.add((message, context.message_id)) and None)
    types = "Shop.Messages.PlaceOrder, Shop.Messages, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null"
    headers = {"NServiceBus.EnclosedMessageTypes": types, "NServiceBus.ContentType": "application/json"}
    peer.put(shop, headers, b'\xef\xbb\xbf{"OrderId": 42}')
    shop.run()
    assert calls.seen == [({"OrderId": 42}, MESSAGE_ID)]
    assert shop.rows("error") == []


@EVERY_PEER
def test_reply_goes_to_the_queue_of_the_peer(shop: Bench, peer: Peer) -> None:
    handles("Shop.Messages.Ask")(lambda message, context: context.reply("Shop.Messages.Answer", {"Number": 42}) and None)
    peer.put(shop, {"NServiceBus.EnclosedMessageTypes": "Shop.Messages.Ask"}, b"{}")
    shop.run()
    headers, body = sent(shop, peer.listens_at)
    assert body == b'{"Number":42}'
    assert headers["NServiceBus.MessageIntent"] == "Reply"
    assert (headers["NServiceBus.CorrelationId"], headers["NServiceBus.RelatedTo"]) == (MESSAGE_ID, MESSAGE_ID)
    assert headers["NServiceBus.ConversationId"] == "aaaaaaaa-0000-0000-0000-00000000000c"
    assert [queue for queue in ("Peer", "Peer.HOST", "error") if shop.rows(queue)] == [peer.listens_at]


@pytest.mark.parametrize("answer", [3, Status.ON_HOLD])
@EVERY_PEER
def test_return_code_goes_to_the_queue_of_the_peer(shop: Bench, peer: Peer, answer: Any) -> None:
    handles("Shop.Messages.Ask")(lambda message, context: context.reply(answer) and None)
    peer.put(shop, {"NServiceBus.EnclosedMessageTypes": "Shop.Messages.Ask"}, b"{}")
    shop.run()
    headers, body = sent(shop, peer.listens_at)
    assert headers["NServiceBus.ReturnMessage.ErrorCode"] == ("3" if answer == 3 else "7")
    assert (headers["NServiceBus.ControlMessage"], body) == ("True", b"")
    assert headers["NServiceBus.CorrelationId"] == MESSAGE_ID


@EVERY_PEER
def test_peer_subscribes_by_message_and_gets_one_copy_in_its_main_queue(shop: Bench, peer: Peer) -> None:
    headers = {
        "NServiceBus.ControlMessage": "True",
        "NServiceBus.MessageIntent": "Subscribe",
        "SubscriptionMessageType": f"{EVENT}, Shop.Messages, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null",
    }
    if peer.reply_to_in_header:
        headers |= {"NServiceBus.SubscriberAddress": peer.own_address(shop), "NServiceBus.SubscriberEndpoint": "Peer"}
        if shop.database.vendor == "postgresql":
            headers["NServiceBus.SubscriberAddress"] = address(shop, "Peer")
    for _ in range(2):
        peer.put(shop, {**headers, "NServiceBus.MessageId": str(uuid.uuid4())}, b"")
    shop.database.configure(SEND_AS="Sales")
    shop.run()
    event_id = publish(EVENT, {"Number": 42})
    all_headers, body = sent(shop, "Peer")
    assert (all_headers["NServiceBus.MessageId"], all_headers["NServiceBus.MessageIntent"]) == (event_id, "Publish")
    assert all_headers["NServiceBus.EnclosedMessageTypes"].startswith(EVENT)
    assert body == b'{"Number":42}'
    assert shop.rows("Peer.HOST") == shop.rows("error") == []


REPLIES: dict[str, tuple[dict[str, str], bytes, Any, Any]] = {
    "object": ({"NServiceBus.EnclosedMessageTypes": "Shop.Messages.Answer"}, b'{"Number": 42}', None, {"Number": 42}),
    "int": ({"NServiceBus.ControlMessage": "True", "NServiceBus.ReturnMessage.ErrorCode": "3"}, b"", None, 3),
    "enum": ({"NServiceBus.ControlMessage": "True", "NServiceBus.ReturnMessage.ErrorCode": "7"}, b"", Status, Status.ON_HOLD),
}


@pytest.mark.parametrize("kind", REPLIES)
@EVERY_PEER
def test_reply_of_the_peer_completes_our_request(asking: Asking, peer: Peer, kind: str) -> None:
    headers, body, returns, expected = REPLIES[kind]
    asking.configure(LEGACY_CALLBACK_HEADER=True)
    asking.bench.install_queues("Peer")
    pending = request("Test.Ask", {"Number": 1}, to=address(asking.bench, "Peer"), returns=returns)
    all_headers, _ = sent(asking.bench, "Peer")
    # 1.x replies to the column or header ReplyToAddress, 2.x to its own header, 3.x to ReplyToAddress: all name one queue
    assert all_headers["NServiceBus.SqlServer.CallbackQueue"] == "Web.here"
    assert all_headers["NServiceBus.ReplyToAddress"] == address(asking.bench, "Web.here")
    intent = {} if peer.core.startswith("4.") else {"NServiceBus.MessageIntent": "Reply"}
    reply_id = {"NServiceBus.MessageId": str(uuid.uuid4())}
    peer.put(asking.bench, {**headers, **intent, **reply_id}, body, queue="Web.here", correlation=pending.message_id)
    assert pending.result(SECONDS) == expected
