"""`context.reply()` with return codes, to requesters of every version, and to missing addresses; golden callback replies."""

from __future__ import annotations

import base64
import enum
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from sqlqueue_app import handles, request, send
from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.sending.composer import Composer, sender_identity
from tests.support.bench import FAST, Asking, Bench, Calls

SECONDS = 60.0
GOLDEN = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "json.jsonl").read_text("utf-8").splitlines()]
CALLBACKS = [row for row in GOLDEN if row.get("table") == "Web.web-1" and '"Reply"' in row["headers"]]


class Status(enum.IntEnum):
    ON_HOLD = 7


class Colour(enum.Enum):
    RED = "red"


def send_request(bench: Bench, reply_to: str, **headers: str) -> None:
    bench.put_message("Test.Ask", **{"NServiceBus.MessageId": "asked", "NServiceBus.ReplyToAddress": reply_to, **headers})


def answer_with(value: object) -> None:
    @handles("Test.Ask")
    def handler(message: Any, context: Any) -> None:
        context.reply(value)


@pytest.mark.parametrize(("value", "code"), [(42, "42"), (-1, "-1"), (Status.ON_HOLD, "7"), (0, "0")])
def test_return_code_has_the_headers_of_a_real_one(bench: Bench, value: object, code: str) -> None:
    bench.install_queues("Asker")
    answer_with(value)
    send_request(bench, "Asker", **{"NServiceBus.ConversationId": "talk"})
    bench.run()
    (row,) = bench.rows("Asker")
    headers = json.loads(row.headers or "")
    real = json.loads(next(row for row in CALLBACKS if "ErrorCode" in row["headers"])["headers"])
    assert set(headers) == set(real) - {"NServiceBus.Metric.InstanceId"}
    assert headers["NServiceBus.ReturnMessage.ErrorCode"] == code
    assert headers["NServiceBus.ControlMessage"] == "True"
    assert headers["NServiceBus.MessageIntent"] == "Reply"
    assert headers["NServiceBus.CorrelationId"] == headers["NServiceBus.RelatedTo"] == "asked"
    assert headers["NServiceBus.ConversationId"] == "talk"
    assert bytes(row.body or b"") == b""


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (True, "a return code is an integer"),
        (Colour.RED, "whose values are integers; got <Colour.RED"),
        (2**31, "2147483648 does not fit"),
    ],
)
def test_invalid_return_code_fails_the_message(bench: Bench, value: object, error: str) -> None:
    answer_with(value)
    send_request(bench, "error")
    bench.run()
    (headers,) = bench.headers("error")
    assert error in headers["NServiceBus.ExceptionInfo.Message"]


def test_requester_of_transport_2_gets_the_reply_in_its_callback_queue(bench: Bench) -> None:
    bench.install_queues("Old", "Old.HOST-1")
    answer_with(3)
    send_request(bench, "Old", **{"NServiceBus.SqlServer.CallbackQueue": "Old.HOST-1"})
    bench.run()
    assert [headers["NServiceBus.ReturnMessage.ErrorCode"] for headers in bench.headers("Old.HOST-1")] == ["3"]
    assert bench.rows("Old") == []


@pytest.mark.parametrize(
    ("reply_to", "callback", "expected"),
    [
        ("Old@[old]", "Old.HOST", "Old.HOST@[old]"),
        ("Old", "Old.HOST@[x]", "Old.HOST@[dbo]"),
        (None, "Old.HOST", "Old.HOST@[dbo]"),
        ("Old@[old]", "Moved.HOST", "Moved.HOST@[moved]"),
        ("New@[new]", "", "New@[new]"),
        (None, "", None),
    ],
)
def test_callback_queue_has_the_schema_of_the_reply_to_address(reply_to: str | None, callback: str, expected: str | None) -> None:
    book = AddressBook("sqlserver", schema_for_queue={"Moved.HOST": "moved"})
    composer = Composer(Settings(), book, sender_identity("Sales", book))
    incoming = IncomingMessage(
        row_id=uuid.uuid4(),
        headers={"NServiceBus.SqlServer.CallbackQueue": callback},
        body=b"{}",
        reply_to=reply_to,
    )
    found = composer.reply_address(incoming)
    assert (found or "").replace("[Old.HOST]", "Old.HOST").replace("[Moved.HOST]", "Moved.HOST") == (expected or "")


def test_reply_to_missing_queue_goes_through_recoverability(bench: Bench, calls: Calls) -> None:
    bench.configure(IMMEDIATE_RETRIES=2)

    @handles("Test.Ask")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        context.reply("Test.Answer", {})

    send_request(bench, "gone")
    bench.run()
    assert calls.seen == [1, 2, 3]
    (headers,) = bench.headers("error")
    assert "gone" in headers["NServiceBus.ExceptionInfo.Message"]
    assert "does not exist" in headers["NServiceBus.ExceptionInfo.Message"]
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"].endswith("QueueNotFound")
    assert bench.rows("Sales") == []


@pytest.mark.parametrize("row", CALLBACKS, ids=lambda row: f"n{row['n']}")
def test_golden_callback_replies_complete_requests(asking: Asking, row: dict[str, Any]) -> None:
    headers = json.loads(row["headers"])
    pending = request("Test.Ask", message_id=headers["NServiceBus.CorrelationId"])
    asking.bench.put(row["headers"], base64.b64decode(row["body_base64"] or ""), queue="Web.here")
    reply = pending.result(SECONDS)
    code = headers.get("NServiceBus.ReturnMessage.ErrorCode")
    assert reply == int(code) if code else reply["OrderId"].startswith("00000000")


def test_reply_to_send_only_endpoint_is_kept_for_it(bench: Bench) -> None:
    bench.database.configure(ENDPOINTS={"Sales": FAST, "Web": {**FAST, "HANDLERS": []}}, ROUTES={"Test.*": "Sales"}, SEND_AS="Web")
    bench.install()
    handles("Test.Ask")(lambda message, context: context.reply("Test.Answer", message) and None)
    send("Test.Ask", {"n": 1})
    bench.run()

    assert ([json.loads(row.body or b"") for row in bench.rows("Web")], bench.rows("error")) == ([{"n": 1}], [])
    bench.run(endpoints=["Web"])
    assert (bench.rows("Web"), len(bench.rows("error"))) == ([], 1)


def test_send_only_endpoint_runs_if_it_is_the_only_one(bench: Bench) -> None:
    bench.database.configure(ENDPOINTS={"Sales": {**FAST, "HANDLERS": []}}, SEND_AS="Sales")
    bench.install()
    bench.put_message("Test.Unknown")
    bench.run()

    assert (bench.rows("Sales"), len(bench.rows("error"))) == ([], 1)
