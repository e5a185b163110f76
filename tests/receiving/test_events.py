"""Events through the worker: subscribed at its start, published and handled in every mode, also by handlers of parent types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sqlqueue_app import handles, publish, send, subscribe
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.messages.types import message_type
from sqlqueue_app.sending.subscribers import forget_subscribers
from sqlqueue_app.tables.installation import subscription_address
from sqlqueue_app.tables.subscriptions import SubscriptionRow, SubscriptionTable
from tests.support.bench import FAST, Bench, Calls
from tests.support.tables import execute
from tests.support.worker_processes import address

MODES = pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"])


@message_type("Events.IOrderEvent")
@dataclass
class OrderEvent:
    order_id: str


@message_type("Events.OrderPlaced")
@dataclass
class OrderPlaced(OrderEvent):
    total: int = 0


@dataclass
class Shop:
    """The bench with two endpoints: Sales, whose worker runs, and Billing, which has a queue."""

    bench: Bench

    def configure(self, *, routes: dict[str, str] | None = None, **endpoint: Any) -> None:
        self.bench.database.configure(
            ENDPOINTS={"Sales": {**FAST, **endpoint}, "Billing": {**FAST, "HANDLERS": []}}, ROUTES=routes or {}
        )
        self.bench.install()

    @property
    def table(self) -> SubscriptionTable:
        book = get_settings().address_book(self.bench.database.vendor)
        return SubscriptionTable(self.bench.database.alias, subscription_address(book))

    def rows(self) -> list[SubscriptionRow]:
        return self.table.all()

    def run(self) -> None:
        self.bench.run(endpoints=["Sales"])

    def address(self, name: str) -> str:
        return address(self.bench, name)


@pytest.fixture
def shop(bench: Bench) -> Shop:
    made = Shop(bench)
    made.configure()
    return made


# --- at the start of a worker -----------------------------------------------------------------------------------------------------


def test_worker_subscribes_to_its_events_but_not_its_commands(shop: Shop, events: Callable[[], list[str]]) -> None:
    for name in ("Sales.PlaceOrder", "Billing.OrderBilled", "Shop.Outer+Inner"):
        handles(name)(lambda message, context: None)
    handles(OrderEvent)(lambda message, context: None)
    shop.configure(routes={"Sales.*": "Sales", "Billing.*": "Billing"})

    shop.run()

    # Sales.PlaceOrder is a command of this endpoint; a message routed to another endpoint can only arrive as an event
    assert shop.rows() == [
        SubscriptionRow("Sales", topic, shop.address("Sales"))
        for topic in ("Billing.OrderBilled", "Events.IOrderEvent", "Shop.Outer+Inner")
    ]
    assert events().count("subscribed") == 3


def test_worker_gets_the_generic_events_that_it_subscribes_to(shop: Shop, calls: Calls) -> None:
    name = "Events.Envelope`1[[Events.Order, Events, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null]]"

    @message_type(name, assembly="Events")
    @dataclass
    class Envelope:
        number: int

    handles(Envelope)(lambda message, context: calls.add(message.number))
    handles(f"{name}, Events")(lambda message, context: calls.add(message["number"]))
    shop.run()
    assert [row.topic for row in shop.rows()] == [name]

    publish(Envelope(7))
    shop.run()
    assert calls.seen == [7, 7]


def test_second_start_writes_nothing_and_repairs_a_wrong_address(shop: Shop, events: Callable[[], list[str]]) -> None:
    handles("Billing.OrderBilled")(lambda message, context: None)
    shop.run()
    shop.run()
    assert events().count("subscribed") == 1

    shop.table.subscribe(SubscriptionRow("Sales", "Billing.OrderBilled", shop.address("Billing")))
    shop.run()

    assert events().count("subscribed") == 2
    assert shop.rows() == [SubscriptionRow("Sales", "Billing.OrderBilled", shop.address("Sales"))]


def test_type_without_handler_stays_subscribed(shop: Shop) -> None:
    shop.table.subscribe(SubscriptionRow("Sales", "Billing.Former", shop.address("Sales")))

    shop.run()

    assert [row.topic for row in shop.rows()] == ["Billing.Former"]


def test_subscribe_false_subscribes_to_nothing(shop: Shop) -> None:
    handles("Billing.OrderBilled")(lambda message, context: None)
    shop.configure(SUBSCRIBE=False)

    shop.run()

    assert shop.rows() == []


def test_worker_with_events_needs_the_table(shop: Shop) -> None:
    execute(shop.bench.database, f"DROP TABLE {shop.table.qualified}")
    shop.run()
    handles("Billing.OrderBilled")(lambda message, context: None)

    with pytest.raises(QueueNotFound, match=r"endpoint 'Sales' cannot receive: table .*SubscriptionRouting"):
        shop.run()
    shop.configure(SUBSCRIBE=False)
    execute(shop.bench.database, f"DROP TABLE {shop.table.qualified}")
    shop.run()


# --- in handlers ------------------------------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("how", ["context", "plain", "immediate"])
def test_handlers_publish_in_every_mode(shop: Shop, calls: Calls, mode: str, how: str) -> None:
    shop.configure(TRANSACTION_MODE=mode)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        if how == "plain":
            calls.add(publish(OrderPlaced("42")))
        else:
            calls.add(context.publish(OrderPlaced("42"), immediate=how == "immediate"))
        calls.add(context.publish("Events.Nothing", {}, immediate=how == "immediate"))

    for endpoint in ("Sales", "Billing"):
        subscribe(OrderEvent, endpoint=endpoint)
    handles(OrderEvent)(lambda message, context: calls.add(message.order_id))
    shop.bench.put_message("Test.Message", **{"NServiceBus.MessageId": "abc", "NServiceBus.ConversationId": "conversation"})
    shop.run()

    (headers,) = shop.bench.headers("Billing")
    assert (headers["NServiceBus.MessageId"], "42") == (calls.seen[0], calls.seen[2])
    assert headers["NServiceBus.MessageIntent"] == "Publish"
    assert headers["NServiceBus.OriginatingEndpoint"] == "Sales"
    assert (headers["NServiceBus.RelatedTo"], headers["NServiceBus.ConversationId"]) == ("abc", "conversation")
    assert shop.bench.rows("error") == []


@MODES
def test_failed_handler_publishes_nothing(shop: Shop, mode: str) -> None:
    shop.configure(TRANSACTION_MODE=mode)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.publish(OrderPlaced("42"))
        raise ValueError("no")

    subscribe(OrderEvent, endpoint="Billing")
    shop.bench.put_message("Test.Message")
    shop.run()

    assert shop.bench.rows("Billing") == []
    assert len(shop.bench.rows("error")) == 1


@MODES
def test_failed_publish_is_in_error_queue_with_the_reason(shop: Shop, mode: str) -> None:
    shop.configure(TRANSACTION_MODE=mode)
    shop.bench.install_queues("Gone")
    handles("Test.Message")(lambda message, context: context.publish(OrderPlaced("42")))
    for endpoint in ("Billing", "Gone"):
        subscribe(OrderEvent, endpoint=endpoint)
    execute(shop.bench.database, f"DROP TABLE {shop.bench.table('Gone').qualified}")
    shop.bench.put_message("Test.Message")
    shop.run()

    (headers,) = shop.bench.headers("error")
    assert "the subscription of endpoint 'Gone' to 'Events.IOrderEvent'" in headers["NServiceBus.ExceptionInfo.Message"]
    assert shop.bench.rows("Billing") == []


@pytest.mark.parametrize("batch", [1, 10])
def test_batches_publish_many_events(shop: Shop, calls: Calls, batch: int) -> None:
    shop.configure(BATCH_SIZE=batch)
    handles("Test.Message")(lambda message, context: context.publish(OrderPlaced(str(message["n"]))))
    subscribe(OrderEvent, endpoint="Billing")
    for number in range(20):
        send("Test.Message", {"n": number}, to=shop.address("Sales"))
    shop.run()

    assert len(shop.bench.rows("Billing")) == 20


# --- parents ----------------------------------------------------------------------------------------------------------------------


def test_each_handler_gets_an_event_once(shop: Shop, calls: Calls) -> None:
    @handles(OrderEvent)
    def parent(message: OrderEvent, context: Any) -> None:
        calls.add(("parent", type(message).__name__, message.order_id))

    @handles(OrderPlaced)
    def child(message: OrderPlaced, context: Any) -> None:
        calls.add(("child", message.total))

    shop.run()
    publish(OrderPlaced("42", total=7))
    publish(OrderEvent("43"))
    shop.run()

    # one copy, although both types are subscribed
    assert sorted(calls.seen) == [("child", 7), ("parent", "OrderEvent", "42"), ("parent", "OrderEvent", "43")]


def test_event_of_a_net_publisher_reaches_the_handler_of_its_interface(shop: Shop, calls: Calls) -> None:
    handles("Shop.Messages.IOrderEvent")(lambda message, context: calls.add(message["OrderId"]))

    shop.bench.put_message(
        "Shop.Messages.OrderShippedFast, Shop.Messages, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null;"
        "Shop.Messages.OrderShipped, Shop.Messages, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null;"
        "Shop.Messages.IOrderEvent, Shop.Messages, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null",
        {"OrderId": "42"},
        **{"NServiceBus.MessageIntent": "Publish"},
    )
    shop.run()

    assert calls.seen == ["42"]


def test_cleared_cache_finds_a_manual_subscription(shop: Shop) -> None:
    publish(OrderPlaced("1"))
    shop.table.subscribe(SubscriptionRow("Billing", "Events.OrderPlaced", shop.address("Billing")))

    forget_subscribers()
    publish(OrderPlaced("2"))

    assert len(shop.bench.rows("Billing")) == 1
