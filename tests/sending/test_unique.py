"""`send(…, unique_key=…)`: one message per key, in the transaction of the sender, while it waits and for a time."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue_app import handles, send
from sqlqueue_app.messages.errors import ConfigurationError, WireFormatError
from sqlqueue_app.models import UniqueMessage
from sqlqueue_app.sending import unique
from sqlqueue_app.status.retention import UNIQUE_KEPT, delete_old_rows
from sqlqueue_app.tables.connections import database_now
from tests.support import counted_app
from tests.support.bench import FAST, Bench, Calls
from tests.support.databases import QueueDatabase
from tests.support.forking import ForkedProcesses
from tests.support.worker_processes import wait_until_released

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def routes(request: pytest.FixtureRequest) -> None:
    if "bench" in request.fixturenames:
        bench: Bench = request.getfixturevalue("bench")
        bench.configure(routes={"Test.*": "Sales"})


def once(key: str = "invoice-42", **options: Any) -> str:
    return send("Test.Message", {}, unique_key=key, unique_for=HOUR, **options)


def expire(bench: Bench) -> None:
    """End the time of every key."""
    records = UniqueMessage.objects.using(bench.database.alias)
    assert records.update(unique_until=database_now(bench.database.alias) - timedelta(seconds=1))


def test_message_is_sent_once_for_its_key(bench: Bench) -> None:
    first = once()
    assert once() == first
    assert once("invoice-43") != first
    assert len(bench.rows("Sales")) == 2


def test_handled_message_counts_until_its_time_is_over(bench: Bench, counting: Callable[..., None], calls: Calls) -> None:
    first = once()
    bench.run()
    assert once() == first
    expire(bench)
    second = once()
    assert second != first
    assert once() == second
    bench.run()
    assert len(calls.seen) == 2


def test_key_of_no_time_counts_only_while_its_message_waits(bench: Bench, counting: Callable[..., None]) -> None:
    def now() -> str:
        return send("Test.Message", {}, unique_key="now", unique_for=0)

    first = now()
    assert now() == first
    bench.run()
    # in the same second as the first, or soon after
    assert now() != first


@pytest.mark.parametrize("kept_for", [timedelta(milliseconds=1), timedelta(seconds=1.5), timedelta(days=3650)])
def test_key_holds_for_its_time_by_the_clock_of_the_database(bench: Bench, kept_for: timedelta) -> None:
    before = database_now(bench.database.alias)
    send("Test.Message", {}, unique_key="kept", unique_for=kept_for)
    record = UniqueMessage.objects.using(bench.database.alias).get()

    assert before <= record.sent_at <= database_now(bench.database.alias)
    assert kept_for <= record.unique_until - record.sent_at < kept_for + timedelta(seconds=1)


def test_key_holds_to_the_end_of_its_last_second(
    bench: Bench, counting: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def quick() -> str:
        return send("Test.Message", {}, unique_key="quick", unique_for=0.5)

    for _ in range(2):
        first = quick()
        bench.run()
        ends = UniqueMessage.objects.using(bench.database.alias).get().unique_until
        # The clock is rounded down, so the message may have been sent a moment before this second.
        monkeypatch.setattr(unique, "database_now", lambda _, now=ends: now)
        assert quick() == first
        monkeypatch.setattr(unique, "database_now", lambda _, now=ends: now + timedelta(seconds=1))
        assert quick() != first
        bench.run()


def test_message_related_to_the_handled_one_does_not_count_as_it(bench: Bench) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send_local("Test.Later", {}, delay=3600)

    first = once()
    bench.run()
    expire(bench)
    assert once() != first, "the waiting message only names it in RelatedTo"


def test_waiting_message_counts_after_its_time_too(bench: Bench) -> None:
    first = once()
    expire(bench)
    assert once() == first
    assert len(bench.rows("Sales")) == 1


def test_delayed_message_waits(bench: Bench) -> None:
    bench.configure(routes={"Test.*": "Sales"}, DELAYED_RETRIES=1)
    first = once(delay=3600)
    expire(bench)
    assert once() == first
    assert bench.rows("Sales") == []


def test_message_that_is_retried_later_waits(bench: Bench, failing: Calls) -> None:
    bench.configure(routes={"Test.*": "Sales"}, DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=3600)
    first = once()
    bench.run()
    expire(bench)
    assert once() == first
    assert bench.rows("Sales") == []


def test_message_of_a_satellite_that_is_retried_later_waits(bench: Bench, failing: Calls) -> None:
    sales = {"DELAYED_RETRIES": 1, "DELAYED_RETRY_INCREASE": 3600, "SATELLITES": {"Sales.Urgent": {}}}
    # Without SEND_AS, the delayed messages of this process are those of the first endpoint.
    bench.database.configure(ENDPOINTS={"Other": {**FAST, "HANDLERS": []}, "Sales": {**FAST, **sales}})
    bench.install()
    urgent = bench.table("Sales.Urgent").address.full(None)
    first = once(to=urgent)
    bench.run()
    expire(bench)
    assert once(to=urgent) == first
    assert bench.rows("Sales.Urgent") == bench.rows("error") == []


def test_message_that_another_endpoint_delays_waits(bench: Bench) -> None:
    settings: dict[str, Any] = {"ENDPOINTS": {"Sales": FAST, "Web": {**FAST, "HANDLERS": []}}}
    bench.database.configure(**settings, SEND_AS="Web")
    bench.install()
    first = once(delay=3600)
    expire(bench)
    bench.database.configure(SEND_AS="Sales")
    assert once() == first
    assert bench.rows("Sales") == []


def test_message_in_the_error_queue_does_not_wait(bench: Bench, failing: Calls) -> None:
    first = once()
    bench.run()
    assert once() == first, "its time is not over"
    expire(bench)
    assert once() != first
    assert len(bench.rows("Sales")) == 1


def test_long_queue_counts_as_still_containing_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = once()
    bench.table("Sales").purge()
    for _ in range(3):
        send("Test.Other", {})
    expire(bench)
    monkeypatch.setattr(unique, "SEARCHED_ROWS", 2)
    assert once() == first
    monkeypatch.setattr(unique, "SEARCHED_ROWS", 100)
    assert once() != first


def test_rollback_takes_the_key_with_it(bench: Bench) -> None:
    alias = bench.database.alias
    with transaction.atomic(using=alias):
        lost = once()
        transaction.set_rollback(True, using=alias)
    assert bench.rows("Sales") == []
    with transaction.atomic(using=alias):
        first = once()
        assert once() == first
    assert first != lost
    assert len(bench.rows("Sales")) == 1


def test_key_belongs_to_a_queue(bench: Bench) -> None:
    bench.install_queues("Other")
    assert once() != once(to=bench.table("Other").address.full(None))
    assert len(bench.rows("Sales")) == len(bench.rows("Other")) == 1


def test_handler_that_fails_and_is_retried_sends_once(bench: Bench, calls: Calls) -> None:
    bench.configure(routes={"Test.Next": "out"}, IMMEDIATE_RETRIES=2)
    bench.install_queues("out")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        send("Test.Next", {}, unique_key="next", unique_for=HOUR)
        if calls.add(context.attempt) < 3:
            raise LookupError

    bench.put_message_of(1, "Test.Message")
    bench.put_message_of(2, "Test.Message")
    bench.run()
    assert calls.seen == [1, 2, 3, 1]
    assert len(bench.rows("out")) == 1


def test_concurrent_senders_send_one(bench: Bench) -> None:
    alias, ids, barrier = bench.database.alias, [], threading.Barrier(8)

    def work() -> None:
        try:
            barrier.wait(60)
            ids.extend([(number, once(f"key-{number}")) for number in range(10)])
        finally:
            connections[alias].close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 80
    assert len(set(ids)) == 10
    assert len(bench.rows("Sales")) == 10


def test_killed_senders_send_each_key_once(bench: Bench) -> None:
    """Three processes at a time send messages with the same keys and are killed one by one."""
    chosen, senders, longest = random.Random(), 3, 20
    bench.configure(routes={"Counted.*": "Sales"})
    with ForkedProcesses(bench) as forked:
        for first in range(0, 1000, 100):
            for _ in range(senders):
                # Even the last one alone prints enough lines to read.
                forked.begin(counted_app.SEND_ONCE, bench.database.alias, first, senders * longest)
            while forked.alive:
                for _ in range(chosen.randint(1, longest)):
                    forked.read()
                forked.kill(chosen.choice(forked.alive))
        committed = {int(line.split()[1]) for line in forked.printed}
    wait_until_released(bench)
    sent = [json.loads(row.body or b"")["number"] for row in bench.rows("Sales")]
    assert sorted(sent) == sorted(set(sent)), "a key was sent twice"
    assert committed
    assert committed <= set(sent)


@pytest.mark.parametrize(
    ("key", "kept_for", "text"),
    [
        ("", HOUR, "unique_key is ''; expected a text of 1 to 1,000 characters"),
        (42, HOUR, "unique_key is 42; expected a text"),
        (None, HOUR, "unique_key is None; expected a text"),
        ("x" * 1001, HOUR, "expected a text of 1 to 1,000 characters"),
        ("k\ud800", HOUR, "unique_key is 'k\\ud800', which contains half of a surrogate pair; write valid Unicode"),
        ("a", None, "unique_for is None; expected how long the key 'a' holds: seconds or a timedelta"),
        ("a", -1, "unique_for is -1; expected how long"),
        ("a", True, "unique_for is True; expected how long"),
        ("a", float("nan"), "unique_for is nan; expected how long"),
        ("a", 1e12, "unique_for is 1000000000000.0; expected how long"),
    ],
)
def test_wrong_argument_is_refused(bench: Bench, key: Any, kept_for: Any, text: str) -> None:
    with pytest.raises(WireFormatError) as refused:
        send("Test.Message", {}, unique_key=key, unique_for=kept_for)
    assert text in str(refused.value)
    assert bench.rows("Sales") == []


@pytest.mark.parametrize("message_id", ["a\0b", "a\ud800b"])
def test_id_that_no_record_can_hold_is_refused(bench: Bench, message_id: str) -> None:
    with pytest.raises(WireFormatError, match=r"the message id 'a\\(x00|ud800)b' contains NUL or half of a surrogate pair"):
        once(message_id=message_id)
    assert bench.rows("Sales") == []


def test_key_may_contain_any_other_character(bench: Bench) -> None:
    first = once("a\0\N{PILE OF POO}")
    assert once("a\0\N{PILE OF POO}") == first
    assert once("a\N{REPLACEMENT CHARACTER}\N{PILE OF POO}") != first


def test_recorded_key_fits_a_column_that_counts_utf_16(bench: Bench) -> None:
    first = once("\N{PILE OF POO}" * 200)
    assert once("\N{PILE OF POO}" * 200) == first
    record = UniqueMessage.objects.using(bench.database.alias).get()
    assert record.key == "\N{PILE OF POO}" * 127


def test_key_in_mode_receive_only_is_refused(bench: Bench, calls: Calls) -> None:
    bench.configure(routes={"Test.Next": "Sales"}, TRANSACTION_MODE="receive_only")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        with pytest.raises(ConfigurationError, match="in a handler of mode 'receive_only'"):
            once_to("Test.Next")
        calls.add("refused")

    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == ["refused"]


def once_to(message_type: str) -> str:
    return send(message_type, {}, unique_key="a", unique_for=HOUR)


@pytest.fixture
def records(queue_database: QueueDatabase) -> Any:
    return UniqueMessage.objects.using(queue_database.alias)


def test_record_is_deleted_two_weeks_after_its_time(bench: Bench, records: Any) -> None:
    once("old")
    once("new")
    alias = bench.database.alias
    now = database_now(alias)
    records.filter(key="old").update(unique_until=now - UNIQUE_KEPT - timedelta(seconds=1))
    delete_old_rows(alias, now)
    assert list(records.values_list("key", flat=True)) == ["new"]
