"""Operations on recurring messages: run now, once with any number of workers; disable, enable; the reason of a failed send."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from django.db import connections

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import Schedule, ScheduleTick
from sqlqueue_app.status import schedules
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.schedules import Schedules, ScheduleStatus, cancel_run, read_schedules, request_run, set_enabled
from tests.support.bench import Bench, Calls, Running
from tests.support.waiting import poll_until, run_in_threads
from tests.worker.schedules import HOUR, HOURLY, MINUTE, NOON, Clock, configure, scheduled_for, schedules_of, ticks

KEY = ("hourly", "Test.Hourly")
ANNA = Actor("anna")


def row(bench: Bench) -> Schedule:
    return Schedule.objects.using(bench.database.alias).get(name="hourly")


def status(clock: Clock) -> ScheduleStatus:
    return next(each for each in read_schedules(get_settings(), clock.now) if each.name == "hourly")


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    configure(bench)


def at(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let operators use the clock of the workers."""
    monkeypatch.setattr("sqlqueue_app.status.schedules.database_now", lambda _alias: clock())
    return clock


def test_requested_run_is_sent_at_the_next_check(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = at(Clock(NOON + MINUTE), monkeypatch)
    worker = schedules_of(clock)
    assert request_run(*KEY)
    assert not request_run(*KEY), "a run is already requested"
    clock.now += timedelta(seconds=7)
    assert [worker.send_due(), worker.send_due()] == [1, 0]
    (headers,) = bench.headers("Sales")
    assert headers["SqlQueue.Schedule"] == "hourly"
    assert headers["SqlQueue.RunByHand"] == "True"
    assert headers["SqlQueue.ScheduledFor"] == "2026-11-21 12:01:00:000000 Z"
    schedule_row = row(bench)
    assert (schedule_row.run_requested_at, schedule_row.ran_at, schedule_row.ran_endpoint) == (None, clock.now, "Sales")
    assert schedule_row.ran_message_id == headers["NServiceBus.MessageId"]
    assert ticks(bench) == [], "a manual run is no tick"
    clock.now = NOON + HOUR
    assert worker.send_due() == 1, "the ticks are unchanged"
    assert "SqlQueue.RunByHand" not in bench.headers("Sales")[1]


def test_one_of_many_workers_sends_the_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = at(Clock(NOON + MINUTE), monkeypatch)
    schedules_of(clock)
    rounds, workers = 5, 5
    sent: list[int] = []
    requests: list[bool] = []
    together = threading.Barrier(workers, action=lambda: requests.append(request_run(*KEY)))

    def work() -> None:
        mine = Schedules(get_settings(), "Sales", now=clock)
        try:
            for _ in range(rounds):
                together.wait(60)
                sent.append(mine.send_due())
                # the next request must not come before all have checked
                together_again.wait(60)
        finally:
            connections.close_all()

    together_again = threading.Barrier(workers)
    run_in_threads(work, workers)
    assert requests == [True] * rounds
    assert sum(sent) == rounds
    assert len(bench.rows("Sales")) == rounds
    assert row(bench).run_requested_at is None


def test_request_can_be_cancelled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = at(Clock(NOON + MINUTE), monkeypatch)
    worker = schedules_of(clock)
    request_run(*KEY)
    assert [cancel_run(*KEY), cancel_run(*KEY)] == [True, False]
    assert worker.send_due() == 0


def test_unsendable_run_stays_requested_with_its_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.database.configure(ROUTES={"Test.*": "Elsewhere"})
    clock = at(Clock(NOON + MINUTE), monkeypatch)
    worker = schedules_of(clock)
    request_run(*KEY)
    assert [worker.send_due(), worker.send_due()] == [0, 0]
    schedule_row = row(bench)
    assert schedule_row.run_requested_at == clock.now
    assert schedule_row.failed_at == clock.now
    assert "Elsewhere" in schedule_row.error
    bench.install_queues("Elsewhere")
    assert worker.send_due() == 1
    assert status(clock).error == ""


def test_unsendable_tick_shows_its_error_until_one_is_sent(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.database.configure(ROUTES={"Test.*": "Elsewhere"})
    clock = at(Clock(NOON - MINUTE), monkeypatch)
    worker = schedules_of(clock)
    clock.now = NOON + 2 * MINUTE
    worker.send_due()
    assert "Elsewhere" in status(clock).error
    assert status(clock).late_since == NOON
    bench.install_queues("Elsewhere")
    assert worker.send_due() == 1
    assert (status(clock).error, status(clock).late_since) == ("", None)


def test_disabled_schedule_sends_neither_current_nor_missed_ticks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = at(Clock(NOON - MINUTE), monkeypatch)
    worker = schedules_of(clock)
    assert set_enabled(*KEY, enabled=False, actor=ANNA)
    assert not set_enabled(*KEY, enabled=False, actor=ANNA), "it is already disabled"
    for hour in range(3):
        clock.now = NOON + hour * HOUR
        assert worker.send_due() == 0
        assert schedules_of(clock).send_due() == 0
    assert status(clock).late_since is None
    clock.now = NOON + 2 * HOUR + 20 * MINUTE
    assert set_enabled(*KEY, enabled=True, actor=ANNA)
    clock.now += timedelta(seconds=5)
    assert [worker.send_due(), schedules_of(clock).send_due()] == [0, 0], "neither the running nor a new worker sends missed ticks"
    clock.now = NOON + 3 * HOUR + 2 * MINUTE
    assert status(clock).late_since == NOON + 3 * HOUR
    assert worker.send_due() == 1
    assert scheduled_for(bench) == ["2026-11-21 15:00"]
    assert row(bench).changed_by == "anna"


def test_disabled_schedule_can_be_run_by_hand(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = at(Clock(NOON - MINUTE), monkeypatch)
    worker = schedules_of(clock)
    set_enabled(*KEY, enabled=False, actor=ANNA)
    request_run(*KEY)
    clock.now = NOON
    assert worker.send_due() == 1
    assert ticks(bench) == []


def test_request_does_not_hide_a_missed_tick(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = at(Clock(NOON - MINUTE), monkeypatch)
    schedules_of(clock)
    clock.now = NOON + 30 * MINUTE
    request_run(*KEY)
    schedules_of(clock)
    assert sorted(scheduled_for(bench)) == ["2026-11-21 12:00", "2026-11-21 12:30"]


def test_schedule_of_another_project_is_known_by_its_ticks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = at(Clock(NOON), monkeypatch)
    schedules_of(clock)
    ScheduleTick.objects.using(bench.database.alias).create(
        schedule="theirs", message_type="Their.Message", tick=NOON, sent_at=NOON, message_id="42", endpoint="There"
    )
    request_run("asked", "Only.Asked")
    found = read_schedules(get_settings(), clock.now, others=True)
    assert [(each.name, each.cron, each.last_message_id) for each in found] == [
        ("hourly", "0 * * * *", None),
        ("asked", None, None),
        ("theirs", None, "42"),
    ]
    assert [each.name for each in read_schedules(get_settings(), clock.now)] == ["hourly"]


def test_many_schedules_need_few_statements(bench: Bench, django_assert_max_num_queries: object) -> None:
    configure(bench, **{f"s{number}": {**HOURLY, "SEND": f"Test.S{number}"} for number in range(60)})
    clock = Clock(NOON - MINUTE)
    worker = schedules_of(clock)
    clock.now = NOON
    assert worker.send_due() == 60
    with django_assert_max_num_queries(4, connection=bench.database.connection):  # type: ignore[operator]
        found = read_schedules(get_settings(), NOON, others=True)
    assert {each.last_tick for each in found} == {NOON}


def test_running_worker_follows_requests(bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "EVERY_SECONDS", 0.05)
    configure(bench, hourly={**HOURLY, "CRON": "0 0 29 2 *"})

    @handles("Test.Hourly")
    def handler(message: object, context: object) -> None:
        calls.add("ran")

    with Running(bench), Running(bench):
        poll_until(lambda: ScheduleTick.objects.using(bench.database.alias).exists(), what="the first check")
        for wanted in (1, 2):
            assert request_run(*KEY)
            poll_until(lambda wanted=wanted: len(calls.seen) == wanted, what="the run")  # type: ignore[misc]
    assert calls.seen == ["ran", "ran"]
