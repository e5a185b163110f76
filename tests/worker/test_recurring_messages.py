"""Recurring messages: one per tick with any number of workers, and the handling of ticks without a worker."""

from __future__ import annotations

import gc
import json
import threading
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connections, transaction

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.models import ScheduleTick
from sqlqueue_app.status import schedules
from sqlqueue_app.status.schedule_definitions import has_route, schedules_without_route
from sqlqueue_app.status.schedules import KEPT, MAX_DELAY, read_schedules
from sqlqueue_app.tables.connections import ConnectionPool, database_now
from tests.support.bench import Bench, Calls, Running
from tests.support.waiting import join_all, poll_until
from tests.worker.schedules import (
    HOUR,
    HOURLY,
    MINUTE,
    NOON,
    Clock,
    configure,
    scheduled_for,
    schedules_of,
    sent_by_competitors,
    ticks,
)


def test_message_is_sent_at_each_tick_as_the_workers_endpoint(bench: Bench) -> None:
    configure(bench)
    clock = Clock(NOON - MINUTE)
    worker = schedules_of(clock)
    assert worker.send_due() == 0, "it is not noon yet"
    clock.now = NOON + timedelta(seconds=2)
    assert [worker.send_due() for _ in range(3)] == [1, 0, 0]

    (headers,), (row,) = bench.headers("Sales"), bench.rows("Sales")
    assert json.loads(row.body or b"") == {"n": 1}
    assert headers["NServiceBus.EnclosedMessageTypes"] == "Test.Hourly"
    assert headers["NServiceBus.OriginatingEndpoint"] == "Sales"
    assert headers["SqlQueue.Schedule"] == "hourly"
    assert headers["SqlQueue.ScheduledFor"] == "2026-11-21 12:00:00:000000 Z"
    (tick,) = ScheduleTick.objects.using(bench.database.alias).filter(tick=NOON)
    assert (tick.message_id, tick.endpoint, tick.sent_at) == (headers["NServiceBus.MessageId"], "Sales", clock.now)
    clock.now = NOON + HOUR
    assert worker.send_due() == 1
    assert ticks(bench) == [NOON, NOON + HOUR]


def test_one_of_many_competing_workers_sends_a_tick(bench: Bench) -> None:
    configure(bench, hourly=HOURLY, also={**HOURLY, "SEND": "Test.Also"})
    rounds, workers = 5, 6
    clock = Clock(NOON)
    schedules_of(clock)
    sent = sent_by_competitors(clock, workers=workers, rounds=rounds)
    wanted = [NOON + number * HOUR for number in range(1, rounds + 1)]
    assert sum(sent) == 2 * rounds
    assert ticks(bench) == sorted(wanted * 2)
    found = [(each["SqlQueue.Schedule"], each["SqlQueue.ScheduledFor"][:16]) for each in bench.headers("Sales")]
    assert sorted(found) == sorted((name, f"{each:%Y-%m-%d %H:%M}") for name in ("hourly", "also") for each in wanted)


def test_tick_and_its_message_are_written_together(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    configure(bench)
    bench.database.configure(ROUTES={"Test.*": "Elsewhere"})
    clock = Clock(NOON - MINUTE)
    worker = schedules_of(clock)
    clock.now = NOON
    assert [worker.send_due() for _ in range(3)] == [0, 0, 0]
    assert ticks(bench) == []
    failed = [record for record in caplog.records if getattr(record, "event", "") == "schedule_failed"]
    assert len(failed) == 1, "once for each tick"
    assert "schedule hourly cannot send" in failed[0].message
    assert "Elsewhere" in failed[0].message
    bench.install_queues("Elsewhere")
    clock.now = NOON + timedelta(minutes=20)
    assert worker.send_due() == 1
    assert ticks(bench) == [NOON]


def test_session_that_is_read_only_since_a_failover_is_not_kept(postgresql_bench: Bench) -> None:
    configure(postgresql_bench)
    clock, pool, sent = Clock(NOON - MINUTE), ConnectionPool(), list[int]()
    worker = schedules_of(clock)
    clock.now = NOON

    def send() -> None:
        with pool.checkout():
            with connections[postgresql_bench.database.alias].cursor() as cursor:
                cursor.execute("SET default_transaction_read_only = on")
            sent.append(worker.send_due())
        with pool.checkout():
            sent.append(worker.send_due())

    thread = threading.Thread(target=send)
    thread.start()
    join_all([thread])
    pool.close()
    assert sent == [0, 1]


def test_unsendable_schedule_does_not_block_others(bench: Bench) -> None:
    configure(bench, wrong={**HOURLY, "SEND": "Nobody.Knows"}, hourly=HOURLY)
    clock = Clock(NOON - MINUTE)
    worker = schedules_of(clock)
    clock.now = NOON
    assert worker.send_due() == 1
    assert [each.name for each in schedules_without_route(get_settings())] == ["wrong"]


def test_unrouted_message_goes_to_the_endpoint_that_handles_it(bench: Bench, calls: Calls) -> None:
    handles("Nobody.Routes")(lambda message, context: calls.add(message))
    configure(bench, unrouted={**HOURLY, "SEND": "Nobody.Routes"})
    # A future time: the worker below uses the clock of the database and must find no missed tick.
    noon = NOON.replace(year=2096)
    clock = Clock(noon - MINUTE)
    worker = schedules_of(clock, handled_by={"Nobody.Routes": "Sales"})
    clock.now = noon
    assert worker.send_due() == 1
    bench.run()

    assert calls.seen == [{"n": 1}]
    assert schedules_without_route(get_settings()) == []


def test_an_assembly_may_follow_the_type(bench: Bench) -> None:
    """As in `send()`, routes and handlers use the name alone."""
    handles("Nobody.Routes")(lambda message, context: None)
    configure(bench, routed={**HOURLY, "SEND": "Test.Routed, Shop"}, handled={**HOURLY, "SEND": "Nobody.Routes, Shop"})
    bench.database.configure(ROUTES={"Test.Routed": "Sales"})
    clock = Clock(NOON - MINUTE)
    worker = schedules_of(clock, handled_by={"Nobody.Routes": "Sales"})
    clock.now = NOON
    assert worker.send_due() == 2
    names = [each["NServiceBus.EnclosedMessageTypes"] for each in bench.headers("Sales")]
    assert names == ["Test.Routed, Shop", "Nobody.Routes, Shop"]
    assert schedules_without_route(get_settings()) == []
    assert has_route(get_settings(), "Nobody.Routes, Shop")


def test_missed_ticks_are_sent_once(bench: Bench) -> None:
    configure(bench)
    clock = Clock(NOON - MINUTE)
    schedules_of(clock)
    clock.now = NOON + 5 * HOUR + 20 * MINUTE
    assert schedules_of(clock).send_due() == 0, "the first check has sent it"
    assert scheduled_for(bench) == ["2026-11-21 17:00"], "the last of six"


def test_missed_tick_is_sent_within_a_day(bench: Bench) -> None:
    configure(bench, daily={**HOURLY, "CRON": "0 12 * * 6"})
    clock = Clock(NOON - MINUTE)
    schedules_of(clock)
    clock.now = NOON + MAX_DELAY
    schedules_of(clock)
    assert scheduled_for(bench) == []
    clock.now = NOON + MAX_DELAY - timedelta(seconds=1)
    schedules_of(clock)
    assert scheduled_for(bench) == ["2026-11-21 12:00"]


def test_new_schedule_has_no_missed_ticks(bench: Bench) -> None:
    configure(bench)
    clock = Clock(NOON + MINUTE)
    schedules_of(clock)
    schedules_of(clock)
    assert bench.rows("Sales") == []
    clock.now = NOON + HOUR
    schedules_of(clock)
    assert scheduled_for(bench) == ["2026-11-21 13:00"]


def test_delayed_worker_sends_as_soon_as_it_can(bench: Bench) -> None:
    configure(bench)
    clock = Clock(NOON - MINUTE)
    worker = schedules_of(clock)
    clock.now = NOON + 3 * HOUR
    assert worker.send_due() == 1
    assert scheduled_for(bench) == ["2026-11-21 15:00"]


def test_jumping_clock_sends_nothing_twice(bench: Bench) -> None:
    configure(bench)
    clock = Clock(NOON - MINUTE)
    workers = [schedules_of(clock), schedules_of(clock)]
    for jump in (NOON, NOON + HOUR, NOON - MINUTE, NOON, NOON + HOUR, NOON + 2 * HOUR):
        clock.now = jump
        for worker in workers:
            worker.send_due()
    assert scheduled_for(bench) == ["2026-11-21 12:00", "2026-11-21 13:00", "2026-11-21 14:00"]


class CountingZone(tzinfo):
    """UTC that counts its calls."""

    requests = 0

    def utcoffset(self, when: datetime | None) -> timedelta:
        self.requests += 1
        return timedelta()

    def dst(self, when: datetime | None) -> timedelta:
        return timedelta()

    def tzname(self, when: datetime | None) -> str:
        return "UTC"


def test_idle_worker_computes_no_minute_twice(bench: Bench) -> None:
    configure(bench, yearly={**HOURLY, "CRON": "0 0 29 2 *"})
    clock, zone = Clock(NOON), CountingZone()
    worker = schedules_of(clock, zone=zone)
    zone.requests = 0
    for _ in range(10):
        clock.now += timedelta(seconds=5)
        worker.send_due()
    assert zone.requests < 20


def test_clock_far_ahead_for_a_while_loses_no_tick(bench: Bench) -> None:
    configure(bench, weekly={**HOURLY, "CRON": "0 12 * * 6"})
    clock = Clock(NOON - HOUR)
    worker = schedules_of(clock)
    for away in (timedelta(days=10), timedelta(days=-3), timedelta(days=5)):
        clock.now = NOON - HOUR + away
        assert worker.send_due() == 0
    clock.now = NOON
    assert worker.send_due() == 1


def test_projects_on_one_database_may_use_the_same_name(bench: Bench) -> None:
    clock = Clock(NOON - MINUTE)
    configure(bench)
    ours = schedules_of(clock)
    configure(bench, hourly={**HOURLY, "SEND": "Test.Theirs"})
    theirs = schedules_of(clock)
    clock.now = NOON
    assert (ours.send_due(), theirs.send_due()) == (1, 1)


def test_times_are_in_the_time_zone_of_the_project(bench: Bench, settings: Any) -> None:
    settings.TIME_ZONE = "America/New_York"
    configure(bench, nightly={**HOURLY, "CRON": "30 2 * * *"})
    # On 8 March 2026 the clock there goes from 2:00 to 3:00.
    clock = Clock(datetime(2026, 3, 8, 6, 59, tzinfo=UTC))
    worker = schedules_of(clock)
    assert worker.send_due() == 0
    clock.now += MINUTE
    assert worker.send_due() == 1
    (status,) = read_schedules(get_settings(), clock.now)
    assert status.last_tick == clock.now
    assert status.next_tick == datetime(2026, 3, 9, 6, 30, tzinfo=UTC)
    assert status.next_tick.astimezone(ZoneInfo("America/New_York")).hour == 2


def test_old_ticks_are_deleted_except_the_last(bench: Bench) -> None:
    configure(bench)
    clock = Clock(NOON)
    worker = schedules_of(clock)
    for late in (HOUR, 2 * HOUR, KEPT + 90 * MINUTE):
        clock.now = NOON + late
        worker.send_due()
    assert ticks(bench) == [NOON + 2 * HOUR, NOON + KEPT + HOUR]


def test_ticks_in_another_database_send_one_message(bench: Bench, settings: Any) -> None:
    settings.DATABASE_ROUTERS = []
    configure(bench)
    clock = Clock(NOON - MINUTE)
    workers = [schedules_of(clock), schedules_of(clock)]
    clock.now = NOON
    assert [worker.send_due() for worker in workers] == [1, 0]
    assert ScheduleTick.objects.using("default").exclude(message_id="").count() == 1
    assert len(bench.rows("Sales")) == 1


def test_tick_waits_for_a_slow_writer_on_sqlite(sqlite_bench: Bench) -> None:
    bench = sqlite_bench
    configure(bench)
    clock = Clock(NOON - MINUTE)
    worker = schedules_of(clock)
    clock.now = NOON
    go_on, held = threading.Event(), threading.Event()

    def write() -> None:
        try:
            with transaction.atomic(using=bench.database.alias):
                held.set()
                assert go_on.wait(60)
        finally:
            connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    assert held.wait(60)
    with bench.database.connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 1")
    try:
        with pytest.raises(TransientError):
            worker.send_due()
    finally:
        go_on.set()
        join_all([writer])
    assert worker.send_due() == 1
    # The error and its frames hold each other, the cursor, and thereby the file.
    gc.collect()


def test_worker_sends_and_handles_recurring_messages(bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(NOON - MINUTE)
    monkeypatch.setattr(schedules, "database_now", lambda alias: clock())
    monkeypatch.setattr(schedules, "EVERY_SECONDS", 0.05)
    configure(bench)

    @handles("Test.Hourly")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.headers["SqlQueue.ScheduledFor"][11:16])

    seen = ScheduleTick.objects.using(bench.database.alias)
    with Running(bench), Running(bench):
        poll_until(lambda: seen.exists(), what="the first check")
        for hour in (12, 13):
            clock.now = NOON.replace(hour=hour)
            poll_until(lambda wanted=hour - 11: len(calls.seen) == wanted, what=f"the message of {hour}:00")  # type: ignore[misc]
    assert calls.seen == ["12:00", "13:00"]


def test_clock_is_that_of_the_database(bench: Bench) -> None:
    before = database_now(bench.database.alias)
    assert before.tzinfo is UTC
    assert abs(before - datetime.now(UTC)) < HOUR
    with transaction.atomic(using=bench.database.alias):
        assert database_now(bench.database.alias) >= before
