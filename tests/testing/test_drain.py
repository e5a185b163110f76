"""drain(): the worker's processing, in the thread and the transaction of a test."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connections, transaction
from pytest_django import Settings

from sqlqueue_app import Discard, Unrecoverable, handles, publish, send
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import DoomedTransaction, MessageTypeError, PoisonMessage
from sqlqueue_app.policies.recoverability import Action, FailureContext, RecoverabilityConfig, default_policy
from sqlqueue_app.testing import assert_not_sent, assert_sent, drain, sent, subscribed
from tests.support.bench import Bench, Calls
from tests.testing.conftest import as_in_testcase


def group_names(bench: Bench) -> list[str]:
    return sorted(Group.objects.using(bench.database.alias).values_list("name", flat=True))


def test_messages_are_handled_until_nothing_is_left(bench: Bench, calls: Calls) -> None:
    @handles("Test.First")
    def first(message: Any, context: Any) -> None:
        calls.add(message["number"])
        context.send("Billing.Second", {"number": message["number"] + 10})

    @handles("Billing.Second")
    def second(message: Any, context: Any) -> None:
        calls.add(message["number"])

    send("Test.First", {"number": 1})
    send("Test.First", {"number": 2})
    drained = drain()

    assert sorted(calls.seen) == [1, 2, 11, 12]
    assert (drained.handled, drained.failed, len(drained.messages)) == (4, 0, 4)
    assert drain().handled == 0


def test_one_endpoint_and_a_limit(bench: Bench, calls: Calls) -> None:
    handles("Test.Message", "Billing.Message")(lambda message, context: calls.add(context.endpoint))
    for kind in ("Test.Message", "Test.Message", "Billing.Message"):
        send(kind, {})

    assert drain("Sales", limit=0).handled == 0
    assert drain("Sales", limit=1).handled == 1
    assert drain("Billing").handled == 1
    assert calls.seen == ["Sales", "Billing"]
    assert drain().handled == 1


def test_everything_is_rolled_back_with_the_test(queue_database: Any, handler_registry: None, calls: Calls) -> None:
    bench = Bench(queue_database)
    bench.configure(routes={"Test.*": "Sales"})

    @handles("Test.Message")
    def make(message: Any, context: Any) -> None:
        Group.objects.using(bench.database.alias).create(name="made")

    with as_in_testcase(bench.database.alias):
        send("Test.Message", {})
        assert drain().handled == 1
        assert group_names(bench) == ["made"]
    assert group_names(bench) == []
    assert bench.rows("Sales") == []
    assert sent() == []


def test_the_exception_of_a_handler_fails_the_test(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def fail(message: Any, context: Any) -> None:
        calls.add("called")
        Group.objects.using(bench.database.alias).create(name="undone")
        raise LookupError("no such order")

    send("Test.Message", {}, message_id="abc")
    with pytest.raises(LookupError, match="no such order") as caught:
        drain()

    assert caught.traceback[-1].name == "fail"
    assert any("message abc (Test.Message) of queue 'Sales'" in note for note in caught.value.__notes__)
    assert caught.value.__context__ is None
    assert (group_names(bench), calls.seen, len(bench.rows("Sales"))) == ([], ["called"], 1)
    assert bench.rows("error") == []


def test_a_message_without_a_handler_fails_the_test(bench: Bench) -> None:
    send("Test.Nobody", {})
    with pytest.raises(MessageTypeError, match="no handler"):
        drain()


def with_delayed_retries(config: RecoverabilityConfig, context: FailureContext) -> Action:
    return default_policy(replace(config, delayed_retries=2), context)


def test_failures_are_retried_and_moved_to_the_error_queue(bench: Bench, calls: Calls) -> None:
    endpoint = {"CALLBACKS": False, "IMMEDIATE_RETRIES": 1, "RECOVERABILITY": f"{__name__}.with_delayed_retries"}
    bench.database.configure(ENDPOINTS={"Sales": endpoint, "Billing": {"CALLBACKS": False}})

    @handles("Test.Message")
    def fail(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        Group.objects.using(bench.database.alias).create(name="undone")
        context.send("Billing.Never", {})
        raise LookupError("no such order")

    send("Test.Message", {})
    drained = drain(raise_errors=False)
    assert (drained.delayed, drained.retried, drained.failed, len(drained.errors)) == (1, 1, 0, 2)
    assert bench.rows("error") == []

    # (immediate + 1) x (delayed + 1) attempts, without waiting for any of them
    drained = drain(raise_errors=False, with_delayed=True)
    assert (drained.delayed, drained.retried, drained.failed) == (1, 2, 1)
    assert calls.seen == [1, 2, 1, 2, 1, 2]
    assert "Sales" in bench.headers("error")[0]["NServiceBus.FailedQ"]
    assert (group_names(bench), bench.rows("Billing")) == ([], [])
    assert assert_sent("Test.Message", count=1).queue == "Sales"


def test_a_database_error_of_a_handler_leaves_the_test_its_transaction(bench: Bench) -> None:
    @handles("Test.Message")
    def twice(message: Any, context: Any) -> None:
        for _ in range(2):
            Group.objects.using(bench.database.alias).create(name="same")

    @handles("Test.Fine")
    def fine(message: Any, context: Any) -> None:
        Group.objects.using(bench.database.alias).create(name="fine")

    send("Test.Message", {})
    send("Test.Fine", {})
    with pytest.raises(IntegrityError):
        drain()
    drained = drain(raise_errors=False, with_delayed=True)
    assert (drained.handled, drained.failed) == (1, 1)
    assert group_names(bench) == ["fine"]


def test_a_swallowed_database_error_dooms_the_attempt(bench: Bench) -> None:
    @handles("Test.Message")
    def swallow(message: Any, context: Any) -> None:
        Group.objects.using(bench.database.alias).create(name="same")
        with pytest.raises(IntegrityError), transaction.atomic(using=bench.database.alias, savepoint=False):
            Group.objects.using(bench.database.alias).create(name="same")

    send("Test.Message", {})
    with pytest.raises(DoomedTransaction, match=r"transaction\.atomic"):
        drain()
    assert group_names(bench) == []


def test_an_atomic_that_a_handler_left_open_is_undone(bench: Bench) -> None:
    @handles("Test.Message")
    def leave_open(message: Any, context: Any) -> None:
        transaction.atomic(using=bench.database.alias).__enter__()
        Group.objects.using(bench.database.alias).create(name="undone")

    send("Test.Message", {})
    with pytest.raises(DoomedTransaction, match="left an atomic"):
        drain()
    assert len(connections[bench.database.alias].atomic_blocks) == 1
    assert group_names(bench) == []


def test_hooks_run_when_the_message_is_done_and_others_wait(bench: Bench, calls: Calls) -> None:
    alias = bench.database.alias

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        transaction.on_commit(lambda: calls.add(f"of attempt {context.attempt}"), using=alias)
        if context.attempt == 1:
            raise LookupError

    transaction.on_commit(lambda: calls.add("of the test"), using=alias)
    send("Test.Message", {})
    drain(raise_errors=False)
    assert calls.seen == ["of attempt 2"]
    assert len(connections[alias].run_on_commit) == 1


def test_a_hook_that_fails_fails_the_test(bench: Bench) -> None:
    def fail() -> None:
        raise LookupError("in the hook")

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        transaction.on_commit(fail, using=bench.database.alias)

    send("Test.Message", {})
    with pytest.raises(LookupError, match="in the hook"):
        drain()


@pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only", "none"])
def test_every_mode_stays_in_the_transaction(bench: Bench, calls: Calls, mode: str) -> None:
    retries = {"IMMEDIATE_RETRIES": 0, "DELAYED_RETRIES": 0}
    endpoint = {"CALLBACKS": False, "TRANSACTION_MODE": mode, **retries}
    bench.database.configure(ENDPOINTS={"Sales": endpoint, "Billing": {"CALLBACKS": False}})

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        calls.add(context.connection is not None)
        context.send("Billing.At", {"once": True}, immediate=True)
        context.send("Billing.With", {"it": 1})
        send("Billing.Plain", {})
        if message["fails"]:
            raise LookupError("no")

    send("Test.Message", {"fails": False})
    assert drain("Sales").handled == 1
    assert calls.seen == [mode != "none"]
    assert {each.message_type for each in sent(to="Billing")} == {"Billing.At", "Billing.With", "Billing.Plain"}

    send("Test.Message", {"fails": True})
    with pytest.raises(LookupError):
        drain("Sales")
    # in mode none the message is gone, in the other modes it is back
    drained = drain("Sales", raise_errors=False)
    assert drained.failed == (0 if mode == "none" else 1)
    assert len(bench.rows("error")) == drained.failed


def test_a_policy_may_drop_a_message(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False, "RECOVERABILITY": f"{__name__}.drop"}})

    @handles("Test.Message")
    def fail(message: Any, context: Any) -> None:
        raise Unrecoverable("no")

    send("Test.Message", {})
    drained = drain(raise_errors=False)
    assert (drained.discarded, drained.failed) == (1, 0)


def drop(config: Any, context: Any) -> Discard:
    return Discard("not needed")


def test_a_row_that_cannot_be_read(bench: Bench) -> None:
    bench.put("no headers", b"{}")
    with pytest.raises(PoisonMessage):
        drain()
    drained = drain(raise_errors=False)
    assert (drained.failed, len(drained.errors)) == (1, 1)
    assert len(bench.rows("error")) == 1


def test_expired_message_is_counted_separately(bench: Bench) -> None:
    send("Test.Nobody", {}, time_to_be_received=timedelta(seconds=-1))
    assert drain().expired == 1


def test_delayed_messages_wait_until_the_test_advances_time(bench: Bench, calls: Calls) -> None:
    handles("Test.Message")(lambda message, context: calls.add(message["n"]))
    send("Test.Message", {"n": "year"}, delay=timedelta(days=365))
    send("Test.Message", {"n": "hour"}, delay=timedelta(hours=1))
    send("Test.Message", {"n": "now"})

    drain()
    assert calls.seen == ["now"]
    drain(after=timedelta(minutes=59))
    assert calls.seen == ["now"]
    drain(after=timedelta(minutes=2))
    assert calls.seen == ["now", "hour"]
    assert drain(with_delayed=True).handled == 1
    assert calls.seen == ["now", "hour", "year"]


def test_delayed_messages_are_handled_in_order(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def again(message: Any, context: Any) -> None:
        calls.add(message["n"])
        if message["n"] == "one":
            context.send("Test.Message", {"n": "two"}, delay=timedelta(minutes=1))

    send("Test.Message", {"n": "one"}, delay=timedelta(minutes=1))
    send("Test.Message", {"n": "three"}, delay=timedelta(minutes=3))
    drain(with_delayed=True)
    assert calls.seen == ["one", "two", "three"]


def test_events_reach_the_handlers_of_the_project(bench: Bench, calls: Calls) -> None:
    @handles("Billing.Placed")
    def placed(message: Any, context: Any) -> None:
        calls.add(context.endpoint)
        context.publish("Billing.Unheard", {})

    with subscribed():
        publish("Billing.Placed", {})
        assert drain().handled == 1
        assert_sent("Billing.Placed", to="Sales", count=1)
        assert_not_sent("Billing.Unheard")
    publish("Billing.Placed", {})
    assert drain().handled == 0
    assert calls.seen == ["Sales"]


def test_two_handlers_that_never_end_are_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue_app.testing.draining.MAX_MESSAGES", 20)
    handles("Test.Ping")(lambda message, context: context.send("Test.Ping", {}) and None)
    send("Test.Ping", {})
    with pytest.raises(AssertionError, match="20 messages are handled"):
        drain()


def test_outside_of_a_transaction_it_commits(queue_database: Any, handler_registry: None, calls: Calls) -> None:
    bench = Bench(queue_database)
    bench.configure(routes={"Test.*": "Sales"})

    @handles("Test.Message")
    def handle(message: Any, context: Any) -> None:
        Group.objects.using(bench.database.alias).create(name=message["name"])
        if message["name"] == "bad":
            raise LookupError("bad")

    send("Test.Message", {"name": "good"})
    assert drain().handled == 1
    assert group_names(bench) == ["good"]
    send("Test.Message", {"name": "bad"})
    with pytest.raises(LookupError):
        drain()
    assert len(bench.rows("Sales")) == 1
    assert drain(raise_errors=False).failed == 1
    assert (group_names(bench), len(bench.rows("error"))) == (["good"], 1)


def test_subscriptions_of_handlers_need_no_setting(settings: Settings) -> None:
    del settings.SQLQUEUE
    with subscribed():
        assert get_settings().endpoints == {}
