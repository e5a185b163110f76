"""The setting `EAGER`: `send()` handles the message before it returns, in a shell and in a test's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import transaction

from sqlqueue_app import asend, close_callbacks, handles, publish, request, send, send_many
from sqlqueue_app.checks import check_eager
from sqlqueue_app.tables.connections import connection_of
from sqlqueue_app.testing import assert_sent
from tests.support.bench import FAST, Bench, Calls
from tests.support.databases import QueueDatabase
from tests.testing.conftest import as_in_testcase

ENDPOINTS = {"Sales": {**FAST}}


def configure(database: QueueDatabase, **settings: Any) -> Bench:
    made = Bench(database)
    given = {"ENDPOINTS": ENDPOINTS, "ROUTES": {"Test.*": "Sales", "Peer.*": "Peer"}, "SEND_AS": "Web", "EAGER": True, **settings}
    database.configure(**given)
    made.install()
    made.install_queues("Peer")
    return made


@pytest.fixture(params=["outside", "in_testcase"])
def eager(request: pytest.FixtureRequest, queue_database: QueueDatabase, handler_registry: None) -> Iterator[Bench]:
    """Endpoints without a worker; called outside of transactions, and inside that of a TestCase."""
    made = configure(queue_database)
    with as_in_testcase(queue_database.alias) if request.param == "in_testcase" else nullcontext():
        yield made


@pytest.fixture
def alone(queue_database: QueueDatabase, handler_registry: None) -> Bench:
    """The same, outside of transactions only."""
    return configure(queue_database)


def remember(calls: Calls, kind: str = "Test.Message") -> None:
    handles(kind)(lambda message, context: calls.add(message))


def test_message_is_handled_before_send_returns(eager: Bench, calls: Calls) -> None:
    remember(calls)
    send("Test.Message", {"n": 1})
    assert calls.seen == [{"n": 1}]
    if connection_of(eager.database.alias).in_atomic_block:
        assert_sent("Test.Message", {"n": 1})
    send_many("Test.Message", ({"n": number} for number in (2, 3)))
    async_to_sync(asend)("Test.Message", {"n": 4})
    assert [each["n"] for each in calls.seen] == [1, 2, 3, 4]
    assert eager.rows("Sales") == []


def test_messages_of_handlers_are_handled_after_their_own(eager: Bench, calls: Calls) -> None:
    @handles("Test.First")
    def first(message: Any, context: Any) -> None:
        send("Test.Message", {"n": 2})
        context.send("Test.Message", {"n": 3})
        calls.add("first is done")

    remember(calls)
    send("Test.First")
    assert calls.seen[0] == "first is done"
    assert sorted(each["n"] for each in calls.seen[1:]) == [2, 3]


def test_error_of_a_handler_is_raised_and_nothing_was_sent(eager: Bench) -> None:
    handles("Test.Message")(lambda message, context: 1 / message["n"])
    with pytest.raises(ZeroDivisionError) as raised:
        send("Test.Message", {"n": 0})
    assert any("raised while EAGER handled message" in note for note in raised.value.__notes__)
    send("Test.Message", {"n": 1})
    assert [eager.rows(queue) for queue in ("Sales", "error")] == [[], []]


def test_handlers_join_the_transaction_of_the_caller(eager: Bench) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        send("Peer.Message", {})

    with transaction.atomic(using=eager.database.alias):
        send("Test.Message")
        assert len(eager.rows("Peer")) == 1
        transaction.set_rollback(True, using=eager.database.alias)
    assert eager.rows("Peer") == []


def test_hooks_of_a_handler_wait_for_the_commit(alone: Bench, calls: Calls) -> None:
    alias = alone.database.alias
    handles("Test.Message")(lambda message, context: transaction.on_commit(lambda: calls.add("hook"), using=alias))
    with transaction.atomic(using=alias):
        send("Test.Message")
        transaction.set_rollback(True, using=alias)
    assert calls.seen == []
    with transaction.atomic(using=alias):
        send("Test.Message")
        assert calls.seen == []
    send("Test.Message")
    assert calls.seen == ["hook", "hook"]


def test_event_reaches_the_handlers_of_endpoints_that_never_subscribed(eager: Bench, calls: Calls) -> None:
    @handles("Shop.Happened")
    def handler(message: Any, context: Any) -> None:
        calls.add(message)

    publish("Shop.Happened", {"n": 1})
    assert calls.seen == [{"n": 1}]


def test_message_of_a_peer_and_delayed_message_wait(eager: Bench, calls: Calls) -> None:
    remember(calls)
    send("Peer.Message", {})
    send("Test.Message", {}, delay=timedelta(hours=1))
    assert calls.seen == []
    assert len(eager.rows("Peer")) == 1


def test_request_gets_its_reply(alone: Bench) -> None:
    handles("Test.Question")(lambda message, context: context.reply("Test.Answer", {"double": 2 * message["n"]}))
    try:
        assert request("Test.Question", {"n": 21}).result(timeout=60) == {"double": 42}
    finally:
        close_callbacks()


def test_worker_does_not_start(alone: Bench) -> None:
    with pytest.raises(CommandError, match=r'SQLQUEUE\["EAGER"\] is on'):
        call_command("run_sqlqueue_worker", "--until-empty")


@pytest.mark.parametrize(("eager", "found"), [(True, ["sqlqueue.W008"]), (False, [])])
def test_deployment_is_warned(queue_database: QueueDatabase, handler_registry: None, eager: bool, found: list[str]) -> None:
    configure(queue_database, EAGER=eager)
    assert [each.id for each in check_eager()] == found
