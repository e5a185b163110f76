"""Conditions that a running worker finds appear once on the overview, in badges, in `sqlqueue_health` and as a notification.

The worker runs in a thread of the test, and its database has a clock that the test advances.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.models import CheckResult, Instance, QueueSample
from sqlqueue_app.receiving import instances
from sqlqueue_app.receiving.background import BackgroundJob, Worker
from sqlqueue_app.status.samples import FINEST, Sampling
from sqlqueue_app.tables.connections import database_now
from tests.monitoring.notifications.rules import rule, sent_changes
from tests.support.alerts import alerts, badge, one_alert
from tests.support.bench import Bench, Running
from tests.support.clocks import DatabaseClock
from tests.support.filling import message
from tests.support.pages import client_of
from tests.support.waiting import poll_until

# Jobs of a worker that follow the clock of the database: they run often and check themselves whether they are due.
FOLLOWING = ("queue samples", "checks", "notifications", "recurring messages", "index of failures")
OFTEN_SECONDS = 0.1
# A test has many steps that each wait for the worker.
DEADLINE = 200.0


class Clocked:
    """A running worker and the clock of its database."""

    def __init__(self, bench: Bench, clock: DatabaseClock) -> None:
        self._alias = bench.database.alias
        self._clock = clock

    def step(self, seconds: int) -> None:
        """Advance the clock and wait until the worker has sampled the queues and sent a heartbeat."""
        self._clock.jump(timedelta(seconds=seconds))
        now = database_now(self._alias)
        samples = QueueSample.objects.filter(seconds=FINEST.seconds, taken_at__gte=FINEST.start_of(now))
        poll_until(samples.exists, deadline=DEADLINE, what="a sample of this time")
        poll_until(Instance.objects.filter(heartbeat_at__gte=now).exists, deadline=DEADLINE, what="a heartbeat")

    def until(self, condition: Callable[[], Any], *, what: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Advance the clock until the condition is true, without skipping a sample."""

        def is_met() -> bool:
            meanwhile()
            self.step(10)
            return bool(condition())

        poll_until(is_met, deadline=DEADLINE, what=what)

    def until_notified(self, change: str, check: str) -> None:
        """Advance the clock until the newest notification reports this change of the check."""
        self.until(lambda: sent_changes()[-1:] == [[(change, check)]], what=f"{check} is {change}")


@pytest.fixture
def go_on() -> threading.Event:
    """Blocked handlers continue when this is set."""
    return threading.Event()


@pytest.fixture
def clocked(sqlite_bench: Bench, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    def often(receivers: Any, jobs: list[BackgroundJob], stop: Any) -> Worker:
        return Worker(
            receivers, [replace(each, every_seconds=OFTEN_SECONDS) if each.name in FOLLOWING else each for each in jobs], stop
        )

    @contextmanager
    def running() -> Iterator[Clocked]:
        clock = DatabaseClock(sqlite_bench.database)
        with clock.running():
            rule(partial(database_now, sqlite_bench.database.alias), kind="check_failed", threshold=None, throttle_seconds=0)  # type: ignore[arg-type]
            with Running(sqlite_bench):
                poll_until(Instance.objects.exclude(threads={}).exists, what="a worker")
                try:
                    yield Clocked(sqlite_bench, clock)
                finally:
                    go_on.set()

    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", OFTEN_SECONDS)
    monkeypatch.setattr("sqlqueue_app.worker.run.Worker", often)
    # With this clock each call is late enough for the next sample.
    monkeypatch.setattr("sqlqueue_app.worker.run.Sampling", partial(Sampling, clock=count(0, 3600).__next__))
    return running


@pytest.fixture
def blocked(sqlite_bench: Bench, go_on: threading.Event) -> threading.Event:
    """The only thread of the endpoint is in a handler until this is set."""
    # The transaction of a message would block all other writers of SQLite.
    sqlite_bench.configure(TRANSACTION_MODE="none", MAX_CONCURRENCY=1, PURGE_EXPIRED_EVERY=300)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        go_on.wait()

    return go_on


def fails(check: str) -> bool:
    return CheckResult.objects.filter(name=f"sqlqueue.{check}", failing=True).exists()


def put(bench: Bench, number: int, **fields: Any) -> None:
    headers = {"NServiceBus.EnclosedMessageTypes": "Test.Message"}
    bench.table("Sales").send([message(headers=headers, **fields) for _ in range(number)])


def test_growing_queue_is_reported_until_drained(sqlite_bench: Bench, clocked: Callable[[], Any], blocked: threading.Event) -> None:
    with clocked() as worker:
        for _ in range(30):
            put(sqlite_bench, 10)
            worker.step(20)
        worker.until(lambda: fails("growing"), what="the queue grows", meanwhile=lambda: put(sqlite_bench, 10))
        one_alert("growing", "Queue Sales : Growing: messages waiting: ", "more than 10 minutes ago; receiving threads: 1.")
        assert badge("queue") == 1
        worker.until_notified("raised", "sqlqueue.growing: Sales")
        blocked.set()
        poll_until(lambda: not sqlite_bench.rows("Sales"), deadline=DEADLINE, what="the worker handles all messages")
        worker.until(lambda: alerts().are_none, what="nothing needs attention")
        assert badge("queue") == 0
        worker.until_notified("resolved", "sqlqueue.growing: Sales")
        assert len(sent_changes()) == 2


def test_unpurged_expired_messages_are_reported_until_purged(
    sqlite_bench: Bench, clocked: Callable[[], Any], blocked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each counted row reads the clock of the test, so a low limit keeps the test short.
    monkeypatch.setattr("sqlqueue_app.monitoring.checks.EXPIRED_LIMIT", 10)

    def keep_expired() -> None:
        # The worker purges at its start and five minutes later.
        if sqlite_bench.table("Sales").depth().expired <= 10:
            put(sqlite_bench, 11, lifetime_ms=-1000)

    with clocked() as worker:
        put(sqlite_bench, 1)
        for _ in range(40):
            keep_expired()
            worker.step(20)
        worker.until(lambda: fails("purging"), what="messages expired long ago", meanwhile=keep_expired)
        one_alert("expired", "Queue Sales : More than 10 expired messages have been waiting for 15 minutes.")
        assert badge("queue") == 1
        worker.until_notified("raised", "sqlqueue.purging: Sales")
        client_of("superuser").post("/admin/sqlqueue_app/queue/Sales/purge-expired/", {"confirmed": "1"})
        worker.until(lambda: alerts().are_none, what="nothing needs attention")
        worker.until_notified("resolved", "sqlqueue.purging: Sales")
        assert len(sent_changes()) == 2


def test_unsendable_recurring_message_is_reported_until_sent(sqlite_bench: Bench, clocked: Callable[[], Any]) -> None:
    schedules = {"minutely": {"CRON": "* * * * *", "SEND": "Test.Message"}}
    sqlite_bench.database.configure(ENDPOINTS={"Sales": {"CALLBACKS": False}}, ROUTES={"Test.*": "Elsewhere"}, SCHEDULES=schedules)
    sqlite_bench.install()
    with clocked() as worker:
        worker.until(lambda: fails("schedules"), what="a tick is late")
        one_alert("late_schedule", "Schedule minutely : The recurring message minutely that was due at ", "Elsewhere")
        assert badge("queue") == 1
        worker.until_notified("raised", "sqlqueue.schedules: minutely")
        sqlite_bench.install_queues("Elsewhere")
        poll_until(lambda: sqlite_bench.rows("Elsewhere"), deadline=DEADLINE, what="the worker sends the message")
        worker.until(lambda: alerts().are_none, what="nothing needs attention")
        worker.until_notified("resolved", "sqlqueue.schedules: minutely")
        assert len(sent_changes()) == 2
