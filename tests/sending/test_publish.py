"""`publish()`: one copy per subscribed address, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest
from django.db import transaction

from sqlqueue_app import publish, subscribe, unsubscribe
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import (
    AddressError,
    ConfigurationError,
    MessageBodyError,
    MessageTypeError,
    QueueNotFound,
    WireFormatError,
)
from sqlqueue_app.messages.types import message_type
from sqlqueue_app.sending.composer import Composer, SenderIdentity, sender_identity
from sqlqueue_app.sending.dispatcher import Dispatcher
from sqlqueue_app.sending.subscribers import MAX_EVENT_TYPES, SECONDS_REMEMBERED, Subscribers
from sqlqueue_app.tables.subscriptions import SubscriptionRow
from tests.sending.conftest import Desk, with_subscriptions
from tests.support.tables import elsewhere


@message_type("Publishing.IOrderEvent", assembly="Publishing")
@dataclass
class OrderEvent:
    """The common base of these events."""

    order_id: str


@message_type("Publishing.Outer+OrderShipped", assembly="Publishing")
@dataclass
class OrderShipped(OrderEvent):
    carrier: str = "DHL"


@dataclass
class Unnamed(OrderShipped):
    """A class between two events that is not an event itself."""


@message_type("Publishing.OrderShippedFast")
@dataclass
class OrderShippedFast(Unnamed):
    hours: int = 24


@pytest.fixture
def stand(desk: Desk) -> Desk:
    return with_subscriptions(desk)


@pytest.fixture
def sqlite_stand(sqlite_desk: Desk) -> Desk:
    return with_subscriptions(sqlite_desk)


@pytest.fixture
def postgresql_stand(postgresql_desk: Desk) -> Desk:
    return with_subscriptions(postgresql_desk)


def subscribers(desk: Desk, clock: Callable[[], float]) -> Subscribers:
    return Subscribers(desk.alias, get_settings().address_book(desk.database.vendor), clock=clock)


def lengths(desk: Desk) -> dict[str, int]:
    return {name: len(desk.rows(name)) for name in ("Sales", "Billing", "Shipping")}


def test_each_subscriber_gets_a_copy_with_the_same_id(stand: Desk) -> None:
    subscribe(OrderShipped, endpoint="Billing")
    subscribe("Publishing.Outer+OrderShipped", endpoint="Shipping")

    message_id = publish(OrderShipped("42"), headers={"Shop.Campaign": "spring"})

    assert lengths(stand) == {"Sales": 0, "Billing": 1, "Shipping": 1}
    assert stand.headers("Billing") == stand.headers("Shipping")
    (headers,) = stand.headers("Billing")
    assert headers["NServiceBus.MessageId"] == message_id
    assert headers["NServiceBus.MessageIntent"] == "Publish"
    assert headers["NServiceBus.EnclosedMessageTypes"] == (
        "Publishing.Outer+OrderShipped, Publishing;Publishing.IOrderEvent, Publishing"
    )
    assert headers["Shop.Campaign"] == "spring"
    assert stand.bodies("Billing") == stand.bodies("Shipping") == [{"order_id": "42", "carrier": "DHL"}]


def test_subscribers_of_parent_types_get_one_copy_per_address(stand: Desk) -> None:
    for event in (OrderEvent, OrderShipped):
        subscribe(event, endpoint="Billing")
    subscribe(OrderEvent, endpoint="Shipping")
    subscribe(OrderShippedFast, endpoint="Sales")

    publish(OrderShippedFast("1"))
    assert lengths(stand) == {"Sales": 1, "Billing": 1, "Shipping": 1}
    publish(OrderShipped("2"))
    assert lengths(stand) == {"Sales": 1, "Billing": 2, "Shipping": 2}
    publish(OrderEvent("3"))
    assert lengths(stand) == {"Sales": 1, "Billing": 3, "Shipping": 3}


def test_subscriber_of_system_object_gets_every_event(stand: Desk) -> None:
    subscribe("System.Object", endpoint="Billing")

    publish(OrderShippedFast("1"))
    publish("Publishing.Unregistered", {"n": 2})

    assert lengths(stand) == {"Sales": 0, "Billing": 2, "Shipping": 0}
    assert stand.headers("Billing")[1]["NServiceBus.EnclosedMessageTypes"] == "Publishing.Unregistered"


def test_address_in_several_spellings_gets_one_copy(postgresql_stand: Desk) -> None:
    table = subscribers(postgresql_stand, lambda: 0).table
    for endpoint, address in (("Billing", '"public"."Billing"'), ("Other", "Billing"), ("Third", "public.Billing")):
        table.subscribe(SubscriptionRow(endpoint, "Publishing.IOrderEvent", address))

    publish(OrderEvent("42"))

    assert lengths(postgresql_stand)["Billing"] == 1


def test_type_name_reaches_its_subscribers_and_those_of_its_class(stand: Desk) -> None:
    subscribe("Publishing.IOrderEvent", endpoint="Billing")
    subscribe("Publishing.Unknown+Inner", endpoint="Shipping")

    publish("Publishing.OrderShippedFast", {"order_id": "1"})
    publish("Publishing.Unknown+Inner", {"order_id": "2"})
    publish("Publishing.Unknown", {"order_id": "3"})
    publish("Publishing.OrderShippedFast, Shop", {"order_id": "4"})

    assert [body["order_id"] for body in stand.bodies("Billing")] == ["1", "4"]
    assert [body["order_id"] for body in stand.bodies("Shipping")] == ["2"]


def test_enclosed_types_of_the_caller_select_the_subscribers(stand: Desk) -> None:
    subscribe("Shop.IOrderEvent", endpoint="Billing")

    publish("Shop.OrderPlaced", {}, headers={"NServiceBus.EnclosedMessageTypes": "Shop.OrderPlaced, Shop;Shop.IOrderEvent, Shop"})

    assert lengths(stand)["Billing"] == 1


def test_generic_event_reaches_the_subscribers_of_each_spelling(stand: Desk) -> None:
    by_dotnet = "Publishing.Envelope`1[[Publishing.Order, Publishing, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null]]"

    @message_type(by_dotnet, assembly="Publishing")
    @dataclass
    class Envelope:
        number: int = 1

    subscribe(Envelope, endpoint="Billing")
    subscribe("Publishing.Envelope`1[[Publishing.Order]]", endpoint="Shipping")
    subscribe("Publishing.Envelope`1[[Publishing.Other]]", endpoint="Sales")
    publish(Envelope())
    publish(f"{by_dotnet}, Publishing, Version=1.0.0.0", {})
    assert lengths(stand) == {"Sales": 0, "Billing": 2, "Shipping": 2}

    assert unsubscribe(f"{by_dotnet}, Publishing", endpoint="Billing") is True
    publish(Envelope())
    assert lengths(stand) == {"Sales": 0, "Billing": 2, "Shipping": 3}


def test_assembly_is_no_part_of_a_topic(stand: Desk) -> None:
    subscribe("Publishing.Unknown, Publishing, Version=1.0.0.0", endpoint="Billing")
    publish("Publishing.Unknown", {})
    assert lengths(stand)["Billing"] == 1

    with pytest.raises(MessageTypeError, match="the event type ' , Publishing' is blank"):
        subscribe(" , Publishing", endpoint="Billing")


def test_event_without_subscribers_writes_nothing(stand: Desk) -> None:
    assert publish(OrderShipped("42"), message_id="abc") == "abc"
    assert len(publish("Publishing.Nothing")) == 36

    assert lengths(stand) == {"Sales": 0, "Billing": 0, "Shipping": 0}


def test_unsubscribed_endpoint_gets_no_more_events(stand: Desk) -> None:
    subscribe(OrderShipped, endpoint="Billing")
    publish(OrderShipped("1"))

    assert unsubscribe(OrderShipped, endpoint="Billing") is True
    publish(OrderShipped("2"))

    assert unsubscribe(OrderShipped, endpoint="Billing") is False
    assert len(stand.rows("Billing")) == 1


def test_event_commits_and_rolls_back_with_the_callers_transaction(stand: Desk) -> None:
    for endpoint in ("Billing", "Shipping"):
        subscribe(OrderShipped, endpoint=endpoint)

    with suppress(InterruptedError), transaction.atomic(using=stand.alias):
        publish(OrderShipped("1"))
        raise InterruptedError
    assert lengths(stand) == {"Sales": 0, "Billing": 0, "Shipping": 0}

    with transaction.atomic(using=stand.alias):
        publish(OrderShipped("2"))
        assert elsewhere(lambda: lengths(stand)["Billing"]) == 0
    assert lengths(stand) == {"Sales": 0, "Billing": 1, "Shipping": 1}


def test_event_waits_for_the_commit_of_another_database(postgresql_stand: Desk, warnings: Callable[[], list[str]]) -> None:
    assert postgresql_stand.alias != "default"
    subscribe(OrderShipped, endpoint="Billing")
    with transaction.atomic(using="default"):
        publish("Publishing.Nothing")
        assert warnings() == []
        publish(OrderShipped("1"))
        assert lengths(postgresql_stand)["Billing"] == 0

    assert lengths(postgresql_stand)["Billing"] == 1


def test_dropped_queue_stops_the_event_and_the_error_names_the_subscription(stand: Desk) -> None:
    for endpoint in ("Billing", "Shipping"):
        subscribe(OrderEvent, endpoint=endpoint)
    publish(OrderShipped("1"))
    stand.drop("Shipping")

    for _ in range(2):
        with pytest.raises(QueueNotFound, match="Shipping") as caught:
            publish(OrderShipped("2"))
        assert (
            "the subscription of endpoint 'Shipping' to 'Publishing.IOrderEvent' leads there: create its queue, or "
            "remove it with unsubscribe() or sqlqueue_subscriptions --remove"
        ) in str(caught.value)
    assert len(stand.rows("Billing")) == 1

    assert unsubscribe(OrderEvent, endpoint="Shipping")
    publish(OrderShipped("3"))
    assert len(stand.rows("Billing")) == 2


def test_dropped_queue_of_the_only_subscriber_is_an_error(stand: Desk) -> None:
    subscribe(OrderEvent, endpoint="Shipping")
    stand.drop("Shipping")

    with pytest.raises(QueueNotFound, match=r"'Shipping' to 'Publishing.IOrderEvent'"):
        publish(OrderEvent("1"))


def test_invalid_subscriber_address_stops_the_event_and_is_named(postgresql_stand: Desk) -> None:
    table = subscribers(postgresql_stand, lambda: 0).table
    table.subscribe(SubscriptionRow("Odd", "Publishing.IOrderEvent", '"public".""'))
    subscribe(OrderEvent, endpoint="Billing")

    with pytest.raises(AddressError, match=r"the subscription of endpoint 'Odd' to 'Publishing.IOrderEvent' names no queue"):
        publish(OrderShipped("1"))
    assert lengths(postgresql_stand)["Billing"] == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((OrderShipped,), MessageTypeError),
        ((object(),), MessageTypeError),
        (("",), MessageTypeError),
        ((OrderShipped("1"), {}), MessageTypeError),
        (("Publishing.Nothing", {"x": object()}), MessageBodyError),
    ],
)
def test_bad_input_is_refused_without_subscribers(
    sqlite_stand: Desk, arguments: tuple[object, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        publish(*arguments)


def test_message_id_of_another_type_is_refused(sqlite_stand: Desk) -> None:
    with pytest.raises(WireFormatError, match="message_id is int"):
        publish("Publishing.Nothing", message_id=1)  # type: ignore[call-overload]


def test_missing_subscription_table_is_named(desk: Desk) -> None:
    with pytest.raises(QueueNotFound, match=r"subscription table .* run sqlqueue_install"):
        publish(OrderShipped("1"))


def test_invalid_subscription_is_refused(stand: Desk) -> None:
    with pytest.raises(ConfigurationError, match="endpoint="):
        subscribe(OrderShipped)
    stand.configure(ENDPOINTS={"Billing": {}})
    what = r"endpoint 'Biling' cannot subscribe to 'Publishing.Outer.OrderShipped'"
    why = r"its queue .* does not exist: run sqlqueue_install or migrate: did you mean 'Billing'\?"
    with pytest.raises(QueueNotFound, match=f"{what}: {why}"):
        subscribe(OrderShipped, endpoint="Biling")
    with pytest.raises(MessageTypeError, match="not a message type"):
        subscribe(Unnamed, endpoint="Billing")
    with pytest.raises(MessageTypeError, match="blank"):
        subscribe(" ", endpoint="Billing")


def test_subscribe_uses_send_as_by_default(stand: Desk) -> None:
    stand.configure(SEND_AS="Billing")
    subscribe(OrderShipped)

    (row,) = subscribers(stand, lambda: 0).table.all()

    address = {"sqlite": "Billing", "postgresql": '"public"."Billing"', "sqlserver": row.address}[stand.database.vendor]
    assert row == SubscriptionRow("Billing", "Publishing.Outer+OrderShipped", address)
    assert unsubscribe(OrderShipped) is True


# --- caching ---------------------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


TOPIC = ("Publishing.IOrderEvent",)


def endpoints(known: Subscribers, topics: tuple[str, ...] = TOPIC) -> list[str]:
    return [subscription.endpoint for subscription in known.of(topics)]


def test_subscribers_are_cached_for_five_seconds(stand: Desk) -> None:
    clock = Clock()
    known, others = subscribers(stand, clock), subscribers(stand, clock)
    assert SECONDS_REMEMBERED == 5
    assert endpoints(known) == []

    others.table.subscribe(SubscriptionRow("Billing", TOPIC[0], "Billing"))
    clock.now += 4.9
    assert endpoints(known) == []
    assert endpoints(known, ("Other", *TOPIC)) == ["Billing"]
    clock.now += 0.1
    assert endpoints(known) == ["Billing"]

    others.table.unsubscribe("Billing", TOPIC[0])
    assert endpoints(known) == ["Billing"]
    clock.now += 5
    assert endpoints(known) == []


def test_own_changes_are_visible_at_once(stand: Desk) -> None:
    known = subscribers(stand, Clock())
    assert endpoints(known) == []
    known.table.subscribe(SubscriptionRow("Billing", TOPIC[0], "Billing"))
    assert endpoints(known) == ["Billing"]
    known.table.unsubscribe("Billing", TOPIC[0])
    assert endpoints(known) == []


def test_changes_of_a_transaction_are_cached_at_its_commit(stand: Desk) -> None:
    known = subscribers(stand, Clock())
    with suppress(InterruptedError), transaction.atomic(using=stand.alias):
        known.table.subscribe(SubscriptionRow("Billing", TOPIC[0], "Billing"), join=True)
        assert endpoints(known) == ["Billing"]
        assert elsewhere(lambda: endpoints(known)) == []
        raise InterruptedError
    assert endpoints(known) == []

    with transaction.atomic(using=stand.alias):
        known.table.subscribe(SubscriptionRow("Billing", TOPIC[0], "Billing"), join=True)
        assert elsewhere(lambda: endpoints(known)) == []
    assert endpoints(known) == ["Billing"]


def test_result_read_before_a_change_is_not_cached_after_it(sqlite_stand: Desk) -> None:
    known = subscribers(sqlite_stand, Clock())
    read = known.table.subscribers

    def read_slowly(topics: tuple[str, ...]) -> list[SubscriptionRow]:
        found = read(topics)
        known.table.subscribers = read  # type: ignore[method-assign]
        known.table.subscribe(SubscriptionRow("Billing", TOPIC[0], "Billing"))
        return found

    known.table.subscribers = read_slowly  # type: ignore[assignment,method-assign]
    assert endpoints(known) == []
    assert endpoints(known) == ["Billing"]


def test_number_of_cached_event_types_is_limited(sqlite_stand: Desk) -> None:
    clock = Clock()
    known, others = subscribers(sqlite_stand, clock), subscribers(sqlite_stand, clock)
    for number in range(MAX_EVENT_TYPES):
        known.of((f"Publishing.Type{number}",))
    others.table.subscribe(SubscriptionRow("Billing", "Publishing.Type0", "Billing"))
    assert endpoints(known, ("Publishing.Type0",)) == []

    known.of(("Publishing.OneMore",))

    assert endpoints(known, ("Publishing.Type0",)) == ["Billing"]
    assert len(known._remembered) == MAX_EVENT_TYPES


def test_publisher_queries_the_table_once_in_five_seconds(stand: Desk) -> None:
    clock = Clock()
    book = get_settings().address_book(stand.database.vendor)
    identity: SenderIdentity = sender_identity("Sales", book)
    composer = Composer(get_settings(), book, identity, subscribers=subscribers(stand, clock))
    dispatcher = Dispatcher(stand.alias, book)
    lookups: list[str] = []

    def count_lookups(execute: Callable[..., object], sql: str, params: object, many: bool, context: object) -> object:
        lookups.extend(["asked"] * ("SELECT" in sql and "SubscriptionRouting" in sql))
        return execute(sql, params, many, context)

    subscribe(OrderEvent, endpoint="Billing")
    with stand.database.connection.execute_wrapper(count_lookups):
        for _ in range(3):
            dispatcher.dispatch(composer.compose_event(OrderShipped("1"))[1])
        assert lookups == ["asked"]
        clock.now += 5
        dispatcher.dispatch(composer.compose_event(OrderShipped("1"))[1])

    assert lookups == ["asked"] * 2
    assert lengths(stand)["Billing"] == 4
