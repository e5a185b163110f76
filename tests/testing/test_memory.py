"""InMemoryEndpoint runs handlers without the project's database. No test here uses one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from pytest_django import Settings

from sqlqueue_app import handles, message_type, publish, send
from sqlqueue_app.conf.task_backends import TASK_BACKEND
from sqlqueue_app.messages.errors import QueueNotFound
from sqlqueue_app.testing import FakeClock, InMemoryEndpoint, assert_not_sent, assert_sent, drain, failed, sent
from tests.support.bench import MODES, Calls


@message_type("Test.Order")
@dataclass
class Order:
    number: int


@pytest.fixture(autouse=True)
def project(settings: Settings, handler_registry: None) -> None:
    settings.SQLQUEUE = {
        "DATABASE": "postgresql",
        "DEFAULT_SCHEMA": "queues",
        "SCHEMA_FOR_QUEUE": {"error": "ops"},
        "ENDPOINTS": {"Sales": {"WAKE_UP": True, "IMMEDIATE_RETRIES": 1, "DELAYED_RETRIES": 0}},
        "ROUTES": {"Test.*": "Sales", "Billing.*": "Billing"},
        "SEND_AS": "Web",
    }


@pytest.fixture
def sales() -> Iterator[InMemoryEndpoint]:
    with InMemoryEndpoint("Sales") as opened:
        yield opened


def test_forwarded_message_is_visible(sales: InMemoryEndpoint) -> None:
    handles(Order)(lambda message, context: context.forward("Billing"))
    sales.handle(Order(1))
    assert_sent(Order, to="Billing")
    assert_not_sent(Order, to="Sales")


def test_handler_is_called_and_its_sends_are_visible(sales: InMemoryEndpoint, calls: Calls) -> None:
    @handles(Order)
    def place(message: Order, context: Any) -> None:
        calls.add((message, context.endpoint, context.headers["Tenant"]))
        context.send("Billing.Pay", {"number": message.number})
        context.reply("Test.Answer", {"ok": True})
        send("Billing.Plain", {})

    drained = sales.handle(Order(1), headers={"Tenant": "a"}, reply_to="Web")

    assert calls.seen == [(Order(1), "Sales", "a")]
    assert drained.handled == 1
    assert_sent("Billing.Pay", {"number": 1}, to="Billing")
    assert assert_sent("Test.Answer", to="Web").intent == "Reply"
    assert_sent("Billing.Plain", count=1)
    assert_not_sent(Order)
    assert len(sales.sent()) == 3


def test_failing_handler_fails_the_test_unless_suppressed(sales: InMemoryEndpoint, calls: Calls) -> None:
    @handles(Order)
    def fail(message: Order, context: Any) -> None:
        context.send("Billing.Pay", {})
        calls.add(context.attempt)
        raise LookupError("no")

    with pytest.raises(LookupError):
        sales.handle(Order(1))
    drained = sales.handle(Order(1), raise_errors=False)
    assert (drained.failed, calls.seen) == (1, [1, 1, 2])
    (message,) = sales.failed()
    assert message.headers["NServiceBus.ExceptionInfo.Message"] == "no"
    assert message.message == Order(1)
    assert sent() == []
    assert len(failed()) == 1


@pytest.mark.parametrize("mode", MODES)
def test_message_that_failed_is_not_handled_again(settings: Settings, calls: Calls, mode: str) -> None:
    @handles(Order)
    def handle(message: Order, context: Any) -> None:
        calls.add(message.number)
        if message.number == 1:
            raise LookupError("no")
        if message.number == 2:
            context.send(Order(1))

    with InMemoryEndpoint("Sales", settings={"TRANSACTION_MODE": mode, "IMMEDIATE_RETRIES": 0}) as sales:
        for number in (1, 2):
            with pytest.raises(LookupError, match="no"):
                sales.handle(Order(number))
        sales.handle(Order(3))
        assert sales.failed() == []

    assert calls.seen == [1, 2, 1, 3]


def test_time_follows_the_clock(calls: Calls) -> None:
    clock = FakeClock(datetime(2030, 1, 1, tzinfo=UTC))
    with InMemoryEndpoint("Sales", clock=clock) as sales:
        handles(Order)(lambda message, context: calls.add(message.number) and None)
        send(Order(1), delay=timedelta(hours=1))
        send(Order(2), deliver_at=datetime(2030, 1, 1, 2, tzinfo=UTC))
        send(Order(3), time_to_be_received=timedelta(hours=3))
        send(Order(4), time_to_be_received=timedelta(minutes=1))

        clock.advance(timedelta(minutes=59, seconds=59))
        drained = sales.drain()
        assert (calls.seen, drained.expired) == ([3], 1)
        clock.advance(timedelta(seconds=1))
        sales.drain()
        assert calls.seen == [3, 1]
        clock.advance(timedelta(hours=1))
        sales.drain()
        assert calls.seen == [3, 1, 2]


def test_events_reach_the_handlers_of_the_project_or_are_kept(settings: Settings, calls: Calls) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "ENDPOINTS": {"Sales": {}, "Billing": {}}, "ROUTES": {}}
    with InMemoryEndpoint("Sales") as sales:
        handles("Test.Placed")(lambda message, context: calls.add(context.endpoint) and None)
        publish("Test.Placed", {})
        publish("Test.Unheard", {"a": 1})
        drain()
        assert sorted(calls.seen) == ["Billing", "Sales"]
        assert_sent("Test.Placed", count=2)
        assert_sent("Test.Unheard", {"a": 1}, to="Published", count=1)
        assert sales.failed() == []


def test_other_tables_are_in_memory(calls: Calls) -> None:
    handles(Order)(lambda message, context: calls.add(message.number) and None)
    with InMemoryEndpoint("Sales", settings={"DEDUPLICATE_FOR": 60, "AUDIT_QUEUE": "audit"}, queues=["audit"]) as sales:
        for number in (1, 2):
            send(Order(number), message_id="11111111-2222-3333-4444-555555555555")
        assert sales.drain().handled == 2
        assert_sent(Order, {"number": 1}, count=1)
    assert calls.seen == [1]


def test_project_without_a_router_has_them_too(settings: Settings, calls: Calls) -> None:
    settings.DATABASE_ROUTERS = []
    handles(Order)(lambda message, context: calls.add(message.number) and None)
    with InMemoryEndpoint("Sales", settings={"DEDUPLICATE_FOR": 60}) as sales:
        first = send(Order(1), unique_key="order", unique_for=60)
        assert send(Order(2), unique_key="order", unique_for=60) == first
        send(Order(3), message_id=first)
        sales.drain()
    assert calls.seen == [1]
    assert settings.DATABASE_ROUTERS == []


def test_endpoints_of_tasks_exist(settings: Settings) -> None:
    settings.SQLQUEUE = {}
    settings.TASKS = {"default": {"BACKEND": TASK_BACKEND, "QUEUES": ["default", "mail"]}}
    with InMemoryEndpoint("default", queues=["audit"]) as default:
        send("Test.Order", {}, to="mail")
        assert_sent("Test.Order", to="mail")
        assert default.drain().handled == 0


def test_memory_leaves_nothing_behind(sales: InMemoryEndpoint, settings: Settings) -> None:
    project = {**settings.SQLQUEUE}
    send(Order(1))
    assert project["DATABASE"] == "sqlqueue_memory"
    sales.__exit__(None, None, None)
    assert settings.SQLQUEUE["DATABASE"] == "postgresql"
    assert "sqlqueue_memory" not in connections.settings
    with InMemoryEndpoint("Sales"):
        assert_not_sent()
    # the fixture exits it once more
    sales.__enter__()


def test_additional_endpoints_and_queues_are_created(settings: Settings, calls: Calls) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "ENDPOINTS": {"Sales": {}, "Billing": {}}}
    with InMemoryEndpoint("Sales", queues=["Elsewhere"]):
        handles("Test.One", "Billing.Two")(lambda message, context: calls.add(context.endpoint) and None)
        send("Test.One", {})
        send("Billing.Two", {})
        send("Test.Three", {}, to="Elsewhere")
        assert drain().handled == 2
        assert calls.seen == ["Sales", "Billing"]
        assert_sent("Test.Three", to="Elsewhere")
        with pytest.raises(QueueNotFound):
            send("Test.Three", {}, to="Nowhere")
        assert_not_sent(to="Nowhere")


def test_name_in_place_of_a_list_of_queues_is_refused() -> None:
    with pytest.raises(ValueError, match=r"queues='Elsewhere'\): expected a list of names, such as \['Elsewhere'\]"):
        InMemoryEndpoint("Sales", queues="Elsewhere")


def test_unconfigured_endpoint_has_its_own_settings(settings: Settings, calls: Calls) -> None:
    del settings.SQLQUEUE

    @handles("Any")
    def fail(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        raise LookupError

    with InMemoryEndpoint("New", settings={"IMMEDIATE_RETRIES": 2, "DELAYED_RETRIES": 0}) as new:
        assert new.handle("Any", {}, raise_errors=False).failed == 1
    assert calls.seen == [1, 2, 3]


def test_only_one_at_a_time(sales: InMemoryEndpoint) -> None:
    with pytest.raises(RuntimeError, match="one at a time"), InMemoryEndpoint("Sales"):
        pass
    send(Order(1))
    assert_sent(Order(1))


def test_a_test_that_fails_inside_leaves_nothing() -> None:
    with pytest.raises(LookupError), InMemoryEndpoint("Sales"), transaction.atomic(using="sqlqueue_memory"):
        raise LookupError
    with InMemoryEndpoint("Sales"):
        pass


@pytest.mark.django_db
def test_memory_is_independent_of_the_tests_transaction(calls: Calls) -> None:
    """An ordinary send does not wait for the test's own transaction, which never commits."""
    with InMemoryEndpoint("Sales"):
        send(Order(1))
        assert_sent(Order(1))


def test_fake_clock_refuses_naive_and_backward_times() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        FakeClock(datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="does not run backwards"):
        FakeClock().advance(timedelta(seconds=-1))
    assert abs(FakeClock().now() - datetime.now(UTC)) < timedelta(minutes=5)
