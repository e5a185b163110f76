"""Subscribe and unsubscribe messages, in the forms of core 4, 5 and 6 (docs/internals/wire.md#control-messages)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from sqlqueue_app import handles, publish
from sqlqueue_app.conf import get_settings
from sqlqueue_app.tables.installation import subscription_address
from sqlqueue_app.tables.rows import NewRow
from sqlqueue_app.tables.subscriptions import SubscriptionRow, SubscriptionTable
from tests.support.bench import FAST, Bench, Calls
from tests.support.worker_processes import address

TYPE = "Shop.Messages.Outer+OrderPlaced, Shop.Messages, Version=1.2.3.4, Culture=neutral, PublicKeyToken=null"
TOPIC = "Shop.Messages.Outer+OrderPlaced"
MODES = pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"])


@pytest.fixture
def publisher(bench: Bench) -> Bench:
    configure(bench)
    return bench


def configure(bench: Bench, *, allowed: list[str] | None = None, **endpoint: Any) -> None:
    bench.database.configure(
        ENDPOINTS={"Sales": {**FAST, **endpoint}, "Billing": {**FAST, "HANDLERS": []}}, ALLOWED_DESTINATIONS=allowed
    )
    bench.install()


def table(bench: Bench) -> SubscriptionTable:
    book = get_settings().address_book(bench.database.vendor)
    return SubscriptionTable(bench.database.alias, subscription_address(book))


def control(bench: Bench, intent: str | None = "Subscribe", event: str | None = TYPE, *, body: str = "", **more: str) -> None:
    """Write a row as an old endpoint does; `more`: header names in snake case, and `column` for the column ReplyToAddress."""
    column = more.pop("column", None)
    headers = {
        "NServiceBus.MessageId": str(uuid.uuid4()),
        "NServiceBus.ControlMessage": "True",
        **({"NServiceBus.MessageIntent": intent} if intent else {}),
        **({"SubscriptionMessageType": event} if event else {}),
        **{f"NServiceBus.{name}": value for name, value in more.items()},
        "NServiceBus.TimeSent": "2026-11-20 10:11:12:123456 Z",
        "NServiceBus.Version": "5.2.26",
    }
    bench.table("Sales").send([NewRow(str(uuid.uuid4()), json.dumps(headers), body.encode(), reply_to_address=column)])


def core_6(bench: Bench, intent: str = "Subscribe", *, endpoint: str = "Billing", **more: str) -> None:
    control(
        bench,
        intent,
        **{
            "ReplyToAddress": address(bench, "Billing"),
            "SubscriberAddress": address(bench, "Billing"),
            "SubscriberEndpoint": endpoint,
            **more,
        },
    )


def core_5(bench: Bench, intent: str = "Subscribe") -> None:
    # Core 4 and 5 fill the column; PostgreSQL, which they do not support, has none.
    if bench.database.vendor == "postgresql":
        control(bench, intent, ReplyToAddress="Billing")
    else:
        control(bench, intent, column="Billing")


FORMS = pytest.mark.parametrize("form", [core_5, core_6])
Form = Callable[..., None]


@FORMS
@MODES
def test_old_endpoint_subscribes_gets_events_and_unsubscribes(publisher: Bench, mode: str, form: Form) -> None:
    configure(publisher, TRANSACTION_MODE=mode)
    publish(TOPIC, {"n": 1})
    form(publisher)
    publisher.run(endpoints=["Sales"])

    assert table(publisher).all() == [SubscriptionRow("Billing", TOPIC, address(publisher, "Billing"))]
    # the worker, in this process, has changed the table: the cached subscribers are invalid
    publish(TOPIC, {"n": 2})
    assert [json.loads(row.body or b"") for row in publisher.rows("Billing")] == [{"n": 2}]

    form(publisher, "Unsubscribe")
    publisher.run(endpoints=["Sales"])
    assert table(publisher).all() == []
    publish(TOPIC, {"n": 3})
    assert len(publisher.rows("Billing")) == 1
    assert publisher.rows("error") == []


def test_old_endpoint_subscribes_to_a_generic_event(publisher: Bench) -> None:
    topic = "Shop.Envelope`1[[Shop.Order, Shop, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null]]"
    event = f"{topic}, Shop.Messages, Version=1.2.3.4, Culture=neutral, PublicKeyToken=null"
    core_6(publisher)
    control(publisher, event=event, ReplyToAddress="Billing")
    publisher.run(endpoints=["Sales"])
    publish(event, {"n": 1})

    assert [row.topic for row in table(publisher).all()] == [topic, TOPIC]
    assert [json.loads(row.body or b"") for row in publisher.rows("Billing")] == [{"n": 1}]

    control(publisher, "Unsubscribe", event, ReplyToAddress="Billing")
    publisher.run(endpoints=["Sales"])
    assert [row.topic for row in table(publisher).all()] == [TOPIC]


def test_logical_endpoint_may_differ_from_its_queue(publisher: Bench, events: Callable[[], list[str]]) -> None:
    core_6(publisher, endpoint="Billing.Logical")
    core_6(publisher, "unsubscribe", endpoint="Nobody")
    publisher.run(endpoints=["Sales"])

    assert [row.endpoint for row in table(publisher).all()] == ["Billing.Logical"]
    assert "subscribed" in events()
    assert "unsubscribed" in events()


def test_machine_is_cut_off_addresses_of_transport_1_and_2(sqlserver_or_postgresql: Bench) -> None:
    control(sqlserver_or_postgresql, ReplyToAddress="Billing@WEB01")
    sqlserver_or_postgresql.run(endpoints=["Sales"])

    assert [row.address for row in table(sqlserver_or_postgresql).all()] == [address(sqlserver_or_postgresql, "Billing")]


@pytest.fixture
def sqlserver_or_postgresql(postgresql_bench: Bench) -> Bench:
    configure(postgresql_bench)
    return postgresql_bench


def test_callback_queue_of_transport_2_is_not_the_subscriber(publisher: Bench) -> None:
    control(publisher, ReplyToAddress="Billing", **{"SqlServer.CallbackQueue": "Billing.WEB01"})
    publisher.run(endpoints=["Sales"])

    assert [row.endpoint for row in table(publisher).all()] == ["Billing"]


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_message_that_names_an_event_need_not_be_marked_as_control_message(publisher: Bench, body: bytes) -> None:
    headers = {
        "NServiceBus.MessageIntent": "Subscribe",
        "NServiceBus.EnclosedMessageTypes": "Test.Message",
        "NServiceBus.ReplyToAddress": "Billing",
        "SubscriptionMessageType": TYPE,
    }
    publisher.put(json.dumps(headers), body)
    publisher.run(endpoints=["Sales"])

    assert [row.topic for row in table(publisher).all()] == [TOPIC]
    assert publisher.rows("error") == []


def test_other_message_may_have_a_header_of_that_name(publisher: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message)

    publisher.put_message("Test.Message", {"number": 1}, SubscriptionMessageType=TYPE)
    publisher.run(endpoints=["Sales"])

    assert calls.seen == [{"number": 1}]
    assert TOPIC not in [row.topic for row in table(publisher).all()]
    assert publisher.rows("error") == []


def test_body_makes_no_difference(publisher: Bench) -> None:
    control(publisher, ReplyToAddress="Billing", body="\0")
    publisher.run(endpoints=["Sales"])

    assert [row.topic for row in table(publisher).all()] == [TOPIC]


def test_control_messages_and_others_share_a_batch(publisher: Bench, calls: Calls) -> None:
    configure(publisher, BATCH_SIZE=10, MAX_CONCURRENCY=1)
    handles("Test.Message")(lambda message, context: calls.add(context.publish(TOPIC)))
    core_6(publisher)
    publisher.put_message("Test.Message")
    core_6(publisher, "Unsubscribe")
    publisher.run(endpoints=["Sales"])

    assert len(publisher.rows("Billing")) == 1
    assert [row for row in table(publisher).all() if row.endpoint == "Billing"] == []


Message = dict[str, Any]
BAD: dict[str, tuple[Message, str]] = {
    "no event": ({"event": None, "ReplyToAddress": "Billing"}, "SubscriptionMessageType names no event"),
    "blank event": ({"event": " , Shop", "ReplyToAddress": "Billing"}, "SubscriptionMessageType names no event"),
    "intent send": ({"intent": "Send", "ReplyToAddress": "Billing"}, "its intent is 'Send': expected Subscribe or Unsubscribe"),
    "no intent": ({"intent": None, "ReplyToAddress": "Billing"}, "its intent is None: expected Subscribe or Unsubscribe"),
    "nobody": ({}, "no reply-to address"),
    "no endpoint": ({"SubscriberAddress": "Billing"}, "but no NServiceBus.SubscriberEndpoint"),
    "no such queue": ({"ReplyToAddress": "Gone"}, "endpoint 'Gone' cannot subscribe to 'Shop.Messages.Outer+OrderPlaced'"),
    "too long": ({"event": "x" * 201, "ReplyToAddress": "Billing"}, "has 201 characters; expected 1 to 200"),
}


@pytest.mark.parametrize(("message", "reason"), BAD.values(), ids=BAD)
def test_invalid_control_message_is_in_error_queue_with_reason(publisher: Bench, message: Message, reason: str) -> None:
    configure(publisher, IMMEDIATE_RETRIES=2)
    control(publisher, **message)
    publisher.run(endpoints=["Sales"])

    (headers,) = publisher.headers("error")
    assert reason in headers["NServiceBus.ExceptionInfo.Message"]
    assert table(publisher).all() == []


def test_disallowed_subscriber_is_refused(publisher: Bench) -> None:
    configure(publisher, allowed=["Shipping*"])
    core_6(publisher)
    publisher.run(endpoints=["Sales"])

    (headers,) = publisher.headers("error")
    assert "ALLOWED_DESTINATIONS" in headers["NServiceBus.ExceptionInfo.Message"]
    assert table(publisher).all() == []


def test_other_control_messages_are_consumed(publisher: Bench, events: Callable[[], list[str]]) -> None:
    control(publisher, "Reply", None, CorrelationId="1")
    publisher.run(endpoints=["Sales"])

    assert "message_empty" in events()
    assert publisher.rows("error") == []
    assert table(publisher).all() == []


def test_handlers_do_not_see_control_messages(publisher: Bench, calls: Calls) -> None:
    handles(TOPIC)(lambda message, context: calls.add(message))
    configure(publisher, SUBSCRIBE=False)
    core_6(publisher, EnclosedMessageTypes=TYPE)
    publisher.run(endpoints=["Sales"])

    assert calls.seen == []
    assert len(table(publisher).all()) == 1
