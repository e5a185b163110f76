"""Tests of older transports as ours (transport reference 12.4); docs/reference/conformance.md lists which stands for which."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.messages.headers import MOST_FORWARDS
from sqlqueue_app.tables.rows import NewRow
from tests.receiving.conftest import Bench, Calls
from tests.receiving.processes import address

MODES = ["none", "receive_only", "sends_atomic_with_receive", "transaction_scope"]
ROW = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize("mode", MODES)
def test_a_poison_message_goes_to_the_error_queue_as_it_is_and_the_next_is_handled(bench: Bench, calls: Calls, mode: str) -> None:
    bench.configure(TRANSACTION_MODE=mode)
    handles("Test.Message")(lambda message, context: calls.add(message) and None)
    bench.put("{broken", b"\x00\xff")
    bench.put_message_of(1, "Test.Message", {"number": 1})
    bench.run()

    ((headers, body),) = [(row.headers, row.body) for row in bench.rows("error")]
    assert (headers, body) == ("{broken", b"\x00\xff")
    assert calls.seen == [{"number": 1}]


def test_a_reply_to_address_that_was_written_raw_is_kept_to_the_letter(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.headers.get("NServiceBus.ReplyToAddress"))
        context.forward(address(bench, "error"))

    headers = {"NServiceBus.EnclosedMessageTypes": "Test.Message", "NServiceBus.ReplyToAddress": "ReplyHere@SomeSchema"}
    bench.table("Sales").send([NewRow(ROW, json.dumps(headers), b"{}", None, "ReplyHere@SomeSchema")])
    bench.run()

    assert calls.seen == ["ReplyHere@SomeSchema"]
    assert [row["NServiceBus.ReplyToAddress"] for row in bench.headers("error")] == ["ReplyHere@SomeSchema"]


def test_a_circle_of_forwards_ends_in_the_error_queue(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(None)
        context.forward(address(bench, "Sales"))

    bench.configure(IMMEDIATE_RETRIES=2)
    bench.put_message("Test.Message")
    bench.run()

    assert len(calls.seen) == MOST_FORWARDS + 1
    (headers,) = bench.headers("error")
    assert "forwarded" in headers["NServiceBus.ExceptionInfo.Message"]
    assert bench.rows("Sales") == []
