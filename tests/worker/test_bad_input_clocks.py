"""Clocks that are wrong by an hour, or jump by one: that of a process and that of the database (docs: What happens when …)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sqlqueue_app import handles, request, send
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ReplyLost
from sqlqueue_app.models import Instance, QueueSample
from sqlqueue_app.receiving import instances
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.receiving.reply_listeners import _of_this_process
from sqlqueue_app.status.samples import Sampling
from sqlqueue_app.status.schedules import Schedules
from tests.support.bench import Asking, Bench, Calls, Running, take
from tests.support.clocks import DatabaseClock, ProcessClock
from tests.support.waiting import poll_until

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
ENOUGH = 60.0
ELSEWHERE = 999_999_999
BOTH_WAYS = pytest.mark.parametrize("hours", [-1, 1])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> ProcessClock:
    """The clock of the machine that sends and receives."""
    clock = ProcessClock()
    clock.put(monkeypatch)
    return clock


@pytest.fixture
def server(bench: Bench) -> Iterator[DatabaseClock]:
    """The clock of the database."""
    clock = DatabaseClock(bench.database)
    with clock.running():
        yield clock


@pytest.fixture
def office(bench: Bench, server: DatabaseClock, calls: Calls) -> Bench:
    """This process sends as Web; Sales records the numbers of its messages."""
    bench.database.configure(SEND_AS="Web")
    bench.configure(routes={"Test.*": "Sales"})
    handles("Test.Message")(lambda message, context: calls.add(message["n"]) and None)
    return bench


# --- the clock of a machine that sends or works is wrong --------------------------------------------------------------------------


@BOTH_WAYS
def test_database_clock_measures_delays_and_lifetimes(
    office: Bench, machine: ProcessClock, server: DatabaseClock, calls: Calls, hours: int
) -> None:
    machine.ahead = hours * HOUR
    in_half_an_hour = datetime.now(UTC) + 30 * MINUTE
    send("Test.Message", {"n": 1}, delay=timedelta())
    send("Test.Message", {"n": 2}, delay=30 * MINUTE)
    send("Test.Message", {"n": 3}, deliver_at=in_half_an_hour)
    send("Test.Message", {"n": 4}, time_to_be_received=10 * MINUTE)
    office.run()
    assert sorted(calls.seen) == [1, 4]

    server.jump(31 * MINUTE)
    office.run()
    assert sorted(calls.seen) == [1, 2, 3, 4]


@BOTH_WAYS
def test_database_clock_measures_delayed_retries(
    office: Bench, machine: ProcessClock, server: DatabaseClock, calls: Calls, hours: int
) -> None:
    office.configure(DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=60)

    @handles("Test.Fail")
    def fail(message: Any, context: Any) -> None:
        if calls.add("failed") == 1:
            machine.ahead = hours * HOUR
            raise ValueError("not yet")

    office.put_message("Test.Fail")
    for passed, attempts in ((0, 1), (30, 1), (31, 2)):
        server.jump(passed * SECOND)
        office.run()
        assert len(calls.seen) == attempts
    assert office.rows("error") == office.rows("Sales") == []


@BOTH_WAYS
def test_worker_stays_alive_when_its_clock_jumps(
    bench: Bench, machine: ProcessClock, counting: object, calls: Calls, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", 0.05)
    bench.configure(CALLBACKS=True, INSTANCE="here", CALLBACK_QUEUES=1)
    rows = Instance.objects.using(bench.database.alias)

    def heartbeats() -> bool:
        if row := rows.first():
            seen.add(row.heartbeat_at)
        return len(seen) > 3

    with Running(bench):
        for ahead in (timedelta(), hours * HOUR, timedelta()):
            machine.ahead = ahead
            seen: set[datetime] = set()
            poll_until(heartbeats, what="four heartbeats")
        bench.put_message("Test.Message")
        poll_until(lambda: len(calls.seen) == 1)


@BOTH_WAYS
def test_requests_and_time_outs_ignore_the_wall_clock(asking: Asking, machine: ProcessClock, hours: int) -> None:
    @handles("Test.Ask")
    def answer(message: Any, context: Any) -> None:
        context.reply(1)

    with Running(asking.bench, endpoints=["Sales"]):
        pending = request("Test.Ask")
        machine.ahead = hours * HOUR
        assert pending.result(ENOUGH) == 1
        assert request("Test.Ask").result(ENOUGH) == 1
    late = request("Test.Ask")
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        late.result(0.01)


# --- the clock of the database jumps ----------------------------------------------------------------------------------------------


def test_jump_shifts_delayed_messages_and_the_mover_continues(office: Bench, server: DatabaseClock, calls: Calls) -> None:
    send("Test.Message", {"n": 1}, delay=30 * MINUTE)
    with Running(office):
        server.jump(HOUR)
        poll_until(lambda: calls.seen == [1], what="the message that came half an hour early")
        server.jump(-HOUR)
        send("Test.Message", {"n": 2}, delay=timedelta(milliseconds=1))
        poll_until(lambda: calls.seen == [1, 2], what="the message whose delay began after the jump")
    send("Test.Message", {"n": 3}, delay=MINUTE)
    for jump, seen in ((-HOUR, 2), (HOUR, 2), (61 * SECOND, 3)):
        server.jump(jump)
        office.run()
        assert len(calls.seen) == seen


def test_jump_shifts_the_end_of_a_lifetime(
    office: Bench, server: DatabaseClock, calls: Calls, events: Callable[[], list[str]]
) -> None:
    send("Test.Message", {"n": 1}, time_to_be_received=30 * MINUTE)
    server.jump(HOUR)
    office.run()
    assert (calls.seen, events().count("message_expired"), office.rows("Sales")) == ([], 1, [])

    send("Test.Message", {"n": 2}, time_to_be_received=30 * MINUTE)
    server.jump(-HOUR)
    office.run()
    assert calls.seen == [2]


@BOTH_WAYS
def test_process_keeps_its_callback_queue_over_a_jump(asking: Asking, server: DatabaseClock, hours: int) -> None:
    pending = request("Test.Ask")
    server.jump(hours * HOUR)
    _of_this_process._receivers["Web"].heartbeat.beat()
    assert [row.callback_queue for row in asking.instances()] == ["Web.here"]
    assert take(asking).callback_queue == "Web.here-2"
    asking.answer(pending.message_id)
    assert pending.result(ENOUGH) == {}
    Instance.objects.using(asking.bench.database.alias).filter(callback_queue="Web.here-2").delete()


def test_new_process_may_take_over_a_queue_after_a_jump(asking: Asking, server: DatabaseClock) -> None:
    pending = request("Test.Ask")
    beat = _of_this_process._receivers["Web"].heartbeat.beat
    rows = Instance.objects.using(asking.bench.database.alias)
    # the first heartbeat of the process may come at any time
    poll_until(lambda: rows.filter(threads={"Web.here": 1}).exists(), what="the first heartbeat")
    server.jump(HOUR)
    assert take(asking).callback_queue == "Web.here"
    rows.update(pid=ELSEWHERE)
    beat()
    with pytest.raises(ReplyLost, match="another process has the queue now"):
        pending.result(ENOUGH)
    again = request("Test.Ask")
    assert again.queue == "Web.here-2"
    rows.filter(pid=ELSEWHERE).delete()


def test_queue_of_dead_process_is_free_an_hour_after_clock_went_back(asking: Asking, server: DatabaseClock) -> None:
    rows = Instance.objects.using(asking.bench.database.alias)
    assert take(asking).callback_queue == "Web.here"
    rows.update(pid=ELSEWHERE)
    server.jump(-HOUR)
    other = take(asking)
    assert other.callback_queue == "Web.here-2"
    other.release()
    server.jump(HOUR + 41 * SECOND)
    assert take(asking).callback_queue == "Web.here"
    rows.all().delete()


@BOTH_WAYS
def test_handled_messages_are_remembered_over_a_jump(office: Bench, server: DatabaseClock, calls: Calls, hours: int) -> None:
    office.configure(DEDUPLICATE_FOR=2 * HOUR)
    headers = json.dumps({"NServiceBus.EnclosedMessageTypes": "Test.Message", "NServiceBus.MessageId": "a"})
    for _ in range(2):
        office.put(headers, b'{"n": 1}')
        office.run()
        server.jump(hours * HOUR)
        endpoint = ReceivingEndpoint(get_settings(), "Sales")
        endpoint.check_tables(endpoint.receiving_queues(None))
        (forget,) = [job for job in endpoint.watching_jobs() if job.name.startswith("forget")]
        forget.call()
        server.jump(-hours * HOUR)
    assert calls.seen == [1]


def test_recurring_messages_are_sent_once_per_tick(office: Bench, server: DatabaseClock) -> None:
    office.database.configure(SCHEDULES={"hourly": {"CRON": "0 * * * *", "SEND": "Test.Message", "BODY": {"n": 1}}})
    worker = Schedules(get_settings(), "Sales")
    assert worker.send_due() == 0
    sent = []
    for jump in (HOUR, -HOUR, HOUR, HOUR):
        server.jump(jump)
        sent.append(worker.send_due())
    assert sent == [1, 0, 0, 1]
    assert len(office.rows("Sales")) == 2


def test_sampling_continues_after_a_jump(office: Bench, server: DatabaseClock) -> None:
    sampling = Sampling(get_settings())
    for jump in (timedelta(), HOUR, -HOUR - 10 * MINUTE, HOUR):
        server.jump(jump)
        assert sampling.sample() > 0
    assert QueueSample.objects.using(office.database.alias).filter(queue="Sales", seconds=10).exists()
