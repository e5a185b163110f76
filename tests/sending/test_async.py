"""`asend()`, `asend_many()` and `apublish()`: the calls of coroutines, in the transactions of Django's asynchronous ORM."""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from contextlib import suppress
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction

from sqlqueue_app import apublish, asend, asend_many, publish, send, send_many, subscribe
from sqlqueue_app.messages.envelope import IncomingMessage, OutgoingMessage
from sqlqueue_app.messages.errors import MessageTypeError, QueueNotFound
from sqlqueue_app.sending.sender import Handling
from tests.sending.conftest import Desk, with_subscriptions
from tests.sending.types import PlaceOrder


def test_messages_are_sent_with_all_options(desk: Desk) -> None:
    async def work() -> list[str]:
        first = await asend(PlaceOrder("1"), headers={"Tenant": "north"}, time_to_be_received=timedelta(hours=1), message_id="one")
        second = await asend("Sending.Other", {"n": 2}, to="Billing")
        return [first, second, *await asend_many([PlaceOrder("3"), ("Sending.Other", {"n": 4})], headers={"Tenant": "south"})]

    first, second, *more = async_to_sync(work)()

    assert first == "one"
    assert [each["NServiceBus.MessageId"] for each in desk.headers()] == ["one", *more]
    assert [each["Tenant"] for each in desk.headers()] == ["north", "south", "south"]
    assert [each["NServiceBus.MessageId"] for each in desk.headers("Billing")] == [second]


def test_message_with_a_key_is_sent_once(desk: Desk) -> None:
    async def work() -> list[str]:
        return [await asend(PlaceOrder("1"), unique_key="order-1", unique_for=60) for _ in range(2)]

    first, second = async_to_sync(work)()

    assert first == second
    assert len(desk.headers()) == 1


def test_coroutines_send_beside_each_other(desk: Desk) -> None:
    async def work() -> list[str]:
        return list(await asyncio.gather(*(asend(PlaceOrder(str(number))) for number in range(20))))

    assert sorted(async_to_sync(work)()) == sorted(each["NServiceBus.MessageId"] for each in desk.headers())


def test_message_commits_with_the_rows_of_the_caller(desk: Desk) -> None:
    async def work() -> None:
        await Group.objects.using(desk.alias).acreate(name="with the message")
        await asend(PlaceOrder("42"))
        await asend_many([PlaceOrder("43")])

    with suppress(InterruptedError), transaction.atomic(using=desk.alias):
        async_to_sync(work)()
        raise InterruptedError
    assert (desk.rows(), Group.objects.using(desk.alias).exists()) == ([], False)
    with transaction.atomic(using=desk.alias):
        async_to_sync(work)()
    assert (len(desk.rows()), Group.objects.using(desk.alias).count()) == (2, 1)


def test_events_reach_their_subscribers(desk: Desk) -> None:
    with_subscriptions(desk)
    subscribe("Sending.OrderPlaced", endpoint="Billing")

    published = async_to_sync(apublish)("Sending.OrderPlaced", {"n": 1}, message_id="event")

    assert published == "event"
    assert [each["NServiceBus.MessageId"] for each in desk.headers("Billing")] == ["event"]


def test_errors_are_those_of_the_synchronous_calls(desk: Desk) -> None:
    with pytest.raises(MessageTypeError, match="no route"):
        async_to_sync(asend)("Unknown.Type", {})
    with pytest.raises(QueueNotFound, match="Nowhere"):
        async_to_sync(asend)("Unknown.Type", {}, to="Nowhere")
    with pytest.raises(TypeError, match="dealy"):
        async_to_sync(asend)(PlaceOrder("1"), dealy=3)  # type: ignore[call-arg, arg-type]
    assert desk.rows() == []


def test_thread_that_outlives_its_handler_sends_at_once(desk: Desk) -> None:
    """Like a thread of `asyncio.to_thread()` whose handler ended at its time limit; mode receive_only collects messages."""
    collected: list[OutgoingMessage] = []
    with Handling(IncomingMessage(uuid.uuid4(), {}, b"{}"), "Sales", collected.extend):
        copied = contextvars.copy_context()

    copied.run(send, PlaceOrder("1"))
    copied.run(send_many, [PlaceOrder("2")])

    assert [body["order_id"] for body in desk.bodies()] == ["1", "2"]
    assert collected == []


def test_synchronous_calls_are_refused_in_an_event_loop(desk: Desk) -> None:
    """They would write on a connection of the loop's thread, outside of the caller's transaction; Django's ORM refuses this too."""

    async def work() -> None:
        with pytest.raises(SynchronousOnlyOperation):
            send(PlaceOrder("1"))
        with pytest.raises(SynchronousOnlyOperation):
            send_many([PlaceOrder("1")])
        with pytest.raises(SynchronousOnlyOperation):
            publish("Sending.OrderPlaced", {})

    with_subscriptions(desk)
    async_to_sync(work)()
    assert desk.rows() == []
