"""Priorities: three queues of an endpoint, from which one pool of threads receives in weighted order."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from sqlqueue_app import handles, send, send_many
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError, QueueNotFound, WireFormatError
from sqlqueue_app.models import Instance
from sqlqueue_app.policies.priorities import PRIORITIES, PriorityTurns
from sqlqueue_app.receiving import priority_poller
from sqlqueue_app.receiving.endpoint import endpoints_of
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.status.queues import known_queues
from sqlqueue_app.testing import drain
from tests.support import counted_app, forking
from tests.support.bench import FAST, MODES, Bench, Calls, Running
from tests.support.forking import ForkedProcesses
from tests.support.waiting import poll_until
from tests.support.worker_processes import wait_until_released

MODELS = ["adaptive", "fixed", "monitor"]


@pytest.fixture(autouse=True)
def always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll an empty queue again before each message, so that the order is exact."""
    monkeypatch.setattr(priority_poller, "EMPTY_SECONDS", 0.0)


def configure(bench: Bench, **endpoint: Any) -> None:
    bench.configure(routes={"Test.*": "Sales"}, PRIORITIES=True, **endpoint)


def send_each(numbers: range, **options: Any) -> None:
    send_many("Test.Message", [{"n": number} for number in numbers], **options)


@pytest.fixture
def numbers(calls: Calls) -> Calls:
    handles("Test.Message")(lambda message, context: calls.add(message["n"]))
    return calls


# --- turns ------------------------------------------------------------


def served(turns: PriorityTurns, waiting: Counter[str]) -> str:
    """The names of the levels that are served until nothing waits."""
    taken = ""
    while sum(waiting.values()):
        level = next(level for level in turns.order() if waiting[PRIORITIES[level]])
        waiting[PRIORITIES[level]] -= 1
        turns.took(level)
        taken += PRIORITIES[level][0]
    return taken


def test_no_level_waits_forever() -> None:
    taken = served(PriorityTurns(), Counter(high=1000, normal=1000, low=1000))
    assert taken.startswith("hhnhhnhhnhhnhhlhhn")
    assert Counter(taken[:1500]) == {"h": 1000, "n": 400, "l": 100}


def test_single_high_message_is_next_whatever_waits() -> None:
    turns = PriorityTurns()
    assert served(turns, Counter(normal=7, low=3)) == "nnnnlnnnll"
    assert PRIORITIES[turns.order()[0]] == "high"


# --- sending ------------------------------------------------------------


def test_message_goes_to_the_queue_of_its_priority_with_a_header(bench: Bench) -> None:
    configure(bench)
    for priority in (None, *PRIORITIES):
        send("Test.Message", {"n": 1}, priority=priority)
    assert len(bench.rows("Sales")) == 2
    for queue, text in (("Sales.High", "high"), ("Sales.Low", "low")):
        (headers,) = bench.headers(queue)
        assert headers["SqlQueue.Priority"] == text
    assert not any("SqlQueue.Priority" in headers for headers in bench.headers("Sales"))


def test_many_messages_have_one_priority(bench: Bench, numbers: Calls) -> None:
    configure(bench)
    send_each(range(3), priority="low")
    assert [headers["SqlQueue.Priority"] for headers in bench.headers("Sales.Low")] == ["low"] * 3


def test_message_follows_its_transaction(bench: Bench) -> None:
    configure(bench)
    with transaction.atomic(using=bench.database.alias):
        send("Test.Message", {}, priority="high")
        transaction.set_rollback(True, using=bench.database.alias)
    assert bench.rows("Sales.High") == []


def test_wrong_priority_is_refused(bench: Bench) -> None:
    configure(bench)
    with pytest.raises(WireFormatError, match="priority is 'urgent'; expected 'high', 'normal' or 'low'"):
        send("Test.Message", {}, priority="urgent")  # type: ignore[call-overload]


@pytest.mark.parametrize("headers", [5, ["a"]])
def test_headers_that_are_no_dictionary_are_refused(bench: Bench, headers: Any) -> None:
    configure(bench)
    with pytest.raises(WireFormatError, match=r"headers is (int|list) .*; expected a dictionary of text"):
        send("Test.Message", {}, priority="high", headers=headers)


def test_endpoint_without_priorities_is_refused_with_the_remedy(bench: Bench) -> None:
    bench.configure(routes={"Test.*": "Billing"})
    bench.install_queues("Billing")
    with pytest.raises(ConfigurationError, match=r"'Billing', which has no queues.*PRIORITIES.*PRIORITY_ENDPOINTS"):
        send("Test.Message", {}, priority="high")
    with pytest.raises(ConfigurationError, match=r"messages\[0\]: .*PRIORITY_ENDPOINTS"):
        send_many([("Test.Message", {})], priority="low")
    send("Test.Message", {}, priority="normal")
    assert len(bench.rows("Billing")) == 1


def test_address_of_a_queue_of_priorities_needs_quotes_on_postgresql(postgresql_bench: Bench) -> None:
    configure(postgresql_bench)
    hint = "did you mean '\"Sales.High\"'\\? Without the quotes, the text before the dot is a schema$"
    with pytest.raises(QueueNotFound, match=hint):
        send("Test.Message", {}, to="Sales.High")
    with pytest.raises(QueueNotFound, match=hint):
        send_many([("Test.Message", {})], to="Sales.High")
    send("Test.Message", {}, to='"Sales.High"')
    assert len(postgresql_bench.rows("Sales.High")) == 1


def test_settings_name_other_endpoints_with_priorities(bench: Bench) -> None:
    bench.database.configure(ENDPOINTS={"Sales": {}}, ROUTES={"Test.*": "Billing"}, PRIORITY_ENDPOINTS=["Billing"])
    bench.install()
    bench.install_queues("Billing", "Billing.High")
    send("Test.Message", {}, priority="high")
    assert len(bench.rows("Billing.High")) == 1


def test_key_belongs_to_all_priorities(bench: Bench) -> None:
    configure(bench)
    first = send("Test.Message", {}, unique_key="42", unique_for=0)
    assert send("Test.Message", {}, priority="high", unique_key="42", unique_for=0) == first
    assert bench.rows("Sales.High") == []


# --- receiving ------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_one_thread_takes_turns(bench: Bench, numbers: Calls, model: str) -> None:
    configure(bench)
    send_each(range(200, 203), priority="low")
    send_each(range(100, 106))
    send_each(range(8), priority="high")
    bench.run(max_concurrency=1, model=model)
    assert numbers.seen == [0, 1, 100, 2, 3, 101, 4, 5, 102, 6, 7, 103, 200, 104, 105, 201, 202]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_receives_every_priority(bench: Bench, numbers: Calls, mode: str) -> None:
    configure(bench, TRANSACTION_MODE=mode)
    for start, priority in enumerate(PRIORITIES):
        send_each(range(start * 100, start * 100 + 20), priority=priority)
    bench.run(max_concurrency=3)
    assert sorted(numbers.seen) == [*range(20), *range(100, 120), *range(200, 220)]


@pytest.mark.parametrize("batch_size", [5, "auto"])
def test_batches_take_turns(bench: Bench, numbers: Calls, batch_size: Any) -> None:
    configure(bench)
    send_each(range(100, 120))
    send_each(range(20), priority="high")
    bench.run(max_concurrency=1, batch_size=batch_size)
    assert numbers.seen[0] == 0
    assert sorted(numbers.seen) == [*range(20), *range(100, 120)]


def test_message_sent_by_a_handler_overtakes_those_that_wait(bench: Bench, calls: Calls) -> None:
    configure(bench)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])
        if message["n"] == 1:
            context.send_local("Test.Message", {"n": 9}, priority="high")

    send_each(range(1, 4))
    bench.run(max_concurrency=1)
    assert calls.seen == [1, 9, 2, 3]


def test_queue_that_was_empty_is_looked_at_again_after_a_while(bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_poller, "EMPTY_SECONDS", 3600.0)
    configure(bench)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])
        if message["n"] == 1:
            send("Test.Message", {"n": 9}, priority="high")

    send_each(range(1, 4))
    bench.run(max_concurrency=1)
    assert calls.seen == [1, 2, 3, 9]


def test_idle_worker_is_woken_for_every_priority(bench: Bench, calls: Calls) -> None:
    configure(bench)
    handled = threading.Event()

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])
        handled.set()

    with Running(bench):
        for number, priority in enumerate(PRIORITIES):
            send("Test.Message", {"n": number}, priority=priority)
            assert handled.wait(60)
            handled.clear()
    assert calls.seen == [0, 1, 2]


def test_threads_are_reported_where_they_are_busy(bench: Bench, calls: Calls) -> None:
    configure(bench, WAKE_UP=False)
    stop, entered, may_end = StopSignal(), threading.Event(), threading.Event()

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        entered.set()
        may_end.wait(60)

    (endpoint,) = endpoints_of(get_settings(), None, model="fixed", max_concurrency=2)
    receiver = endpoint.receiver(endpoint.receiving_queues(None)[0], stop)
    send("Test.Message", {"n": 1}, priority="low")
    receiver.start()
    try:
        assert entered.wait(60)
        threads, busy = receiver.threads_by_queue()
    finally:
        may_end.set()
        stop.set()
        receiver.join()
    assert busy == {"Sales": 0, "Sales.High": 0, "Sales.Low": 1}
    assert threads == {"Sales": 1, "Sales.High": 0, "Sales.Low": 1}


def test_worker_reports_that_it_receives_from_all(bench: Bench) -> None:
    configure(bench)
    instances = Instance.objects.using(bench.database.alias).filter(endpoint="Sales")
    with Running(bench):
        poll_until(lambda: any({"Sales", "Sales.High", "Sales.Low"} <= set(each.threads or {}) for each in instances.all()))


def test_failure_is_retried_in_its_queue(bench: Bench, failing: Calls) -> None:
    configure(bench, DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=0)
    send("Test.Message", {}, priority="high")
    bench.run()
    (headers,) = bench.headers("error")
    assert headers["SqlQueue.Priority"] == "high"
    assert "Sales.High" in headers["NServiceBus.FailedQ"]
    assert len(failing.seen) == 2


@pytest.mark.parametrize("allowed", [None, ["error"]])
def test_delayed_message_returns_to_its_priority(bench: Bench, numbers: Calls, allowed: list[str] | None) -> None:
    endpoints = {"Sales": {**FAST, "PRIORITIES": True}}
    bench.database.configure(ENDPOINTS=endpoints, ROUTES={"Test.*": "Sales"}, ALLOWED_DESTINATIONS=allowed)
    bench.install()
    send("Test.Message", {"n": 1}, priority="high", delay=0.01)
    send("Test.Message", {"n": 2}, priority="low", delay=0.01)
    assert bench.rows("Sales.High") == []
    drained = drain(with_delayed=True)
    assert [message.headers["SqlQueue.Priority"] for message in drained.messages] == ["high", "low"]
    assert [message.queue for message in drained.messages] == ["Sales.High", "Sales.Low"]


def test_drain_takes_turns(bench: Bench, numbers: Calls) -> None:
    configure(bench)
    send_each(range(100, 103))
    send_each(range(3), priority="high")
    drain()
    assert numbers.seen == [0, 1, 100, 2, 101, 102]


def test_reply_and_forwarded_message_keep_the_priority(bench: Bench) -> None:
    bench.database.configure(
        ENDPOINTS={
            "Sales": {"PRIORITIES": True, "CALLBACKS": False, "HANDLERS": []},
            "Shop": {"PRIORITIES": True, "CALLBACKS": False},
        },
        ROUTES={"Test.*": "Shop"},
        SEND_AS="Sales",
    )
    bench.install()
    bench.install_queues("Other")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.reply("Test.Reply", {})
        context.forward("Sales")
        context.forward("Other")

    send("Test.Message", {}, priority="high")
    bench.run(endpoints=["Shop"])
    assert len(bench.rows("Sales.High")) == 2
    assert [headers["SqlQueue.Priority"] for headers in bench.headers("Other")] == ["high"]
    assert bench.rows("Sales") == []


def test_pages_know_the_queues(bench: Bench) -> None:
    configure(bench)
    found = {queue.name: queue for queue in known_queues(get_settings())}
    for name in ("Sales.High", "Sales.Low"):
        assert found[name].is_receiving
        assert found[name].endpoints == ("Sales",)


def test_expired_messages_of_every_priority_are_purged(bench: Bench) -> None:
    configure(bench, PURGE_EXPIRED_EVERY=60)
    (endpoint,) = endpoints_of(get_settings(), None)
    send("Test.Message", {}, priority="low", time_to_be_received=timedelta(seconds=-1))
    jobs = endpoint.purge_jobs(endpoint.receiving_queues(None))
    assert [job.name for job in jobs] == [f"purge expired of Sales{suffix}" for suffix in ("", ".High", ".Low")]
    for job in jobs:
        job.call()
    assert bench.rows("Sales.Low") == []


# --- kills ------------------------------------------------------------

KILLS, WORKERS, THREADS, ROUND = 30, 3, 3, 12


def send_counted(bench: Bench, numbers: range) -> None:
    """Send a third of the messages with each priority."""
    alias = bench.database.alias
    with transaction.atomic(using=alias):
        for place, priority in enumerate(PRIORITIES):
            bodies = [{"alias": alias, "number": number} for number in numbers[place::3]]
            send_many(counted_app.TYPE, bodies, priority=priority)


@pytest.mark.parametrize("mode", ["transaction_scope", "none"])
def test_kills_lose_and_repeat_nothing_in_any_queue(bench: Bench, mode: str) -> None:
    """With mode `none`, a killed thread loses the message that it has received."""
    chosen = random.Random()
    bench.configure(routes={"Counted.*": "Sales"}, PRIORITIES=True, TRANSACTION_MODE=mode, HANDLERS=[counted_app.MODULE])
    counted_app.create_table(bench)
    sent = 0
    with ForkedProcesses(bench) as forked:
        for _ in range(WORKERS):
            forked.begin(forking.RECEIVE, {"max_concurrency": THREADS})
        for _ in range(KILLS):
            send_counted(bench, range(sent, sent + ROUND))
            sent += ROUND
            # A killed worker may have lost as many messages as it has threads.
            for _ in range(chosen.randint(1, ROUND - THREADS)):
                forked.read()
            forked.kill(chosen.choice(forked.alive))
            forked.begin(forking.RECEIVE, {"max_concurrency": THREADS})
        forked.kill_all()
        wait_until_released(bench)
        for point in counted_app.COMMITS:
            send_counted(bench, range(sent, sent + ROUND))
            sent += ROUND
            arguments = point, chosen.randint(1, ROUND - 1), {"max_concurrency": 1}
            assert forked.run(counted_app.RECEIVE_UNTIL, *arguments) == -signal.SIGKILL
        wait_until_released(bench)
        assert forked.run(forking.RECEIVE, {"until_empty": True}) == 0
    handled = counted_app.counted(bench)
    assert len(handled) == len(set(handled)), "a message was handled twice"
    lost = set(range(sent)) - set(handled)
    limit = 0 if mode == "transaction_scope" else (KILLS + WORKERS) * THREADS + len(counted_app.COMMITS)
    assert len(lost) <= limit
    for queue in ("Sales", "Sales.High", "Sales.Low", "error"):
        assert bench.rows(queue) == []
