"""Schedules in the database: one message per tick with any number of workers, over restarts, by the policy for missed ticks."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue_app import handles, message_type, schedule, unschedule
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError, MessageTypeError
from sqlqueue_app.models import Schedule, ScheduleTick
from sqlqueue_app.status import schedules
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.schedule_definitions import times_of
from sqlqueue_app.status.schedules import (
    RUNS_KEPT,
    Origin,
    Schedules,
    ScheduleStatus,
    last_runs,
    read_schedules,
    request_run,
    set_enabled,
)
from tests.support.bench import Bench, Calls, Running
from tests.support.waiting import poll_until, run_in_threads
from tests.worker.schedules import (
    HOUR,
    HOURLY,
    MINUTE,
    NOON,
    ROUTES,
    Clock,
    configure,
    scheduled_for,
    schedules_of,
    sent_by_competitors,
    ticks,
)

KEY = ("hourly", "Test.Hourly")
SECOND, DAY = timedelta(seconds=1), timedelta(days=1)


@pytest.fixture
def clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of workers, operators and of `schedule()`, a minute before noon."""
    made = Clock(NOON - MINUTE)
    monkeypatch.setattr("sqlqueue_app.status.schedules.database_now", lambda _alias: made())
    monkeypatch.setattr("sqlqueue_app.tables.connections.database_now", lambda _alias: made())
    bench.configure(routes=ROUTES)
    return made


def hourly(**more: Any) -> bool:
    return schedule(*KEY, {"n": 1}, **({"cron": "0 * * * *"} | more))


def row(name: str = "hourly") -> Schedule:
    return Schedule.objects.get(name=name)


def status(clock: Clock, name: str = "hourly") -> ScheduleStatus:
    return next(each for each in read_schedules(get_settings(), clock.now) if each.name == name)


def test_message_is_sent_at_each_tick(bench: Bench, clock: Clock) -> None:
    worker = schedules_of(clock)
    assert hourly()
    assert worker.send_due() == 0, "it is not noon yet"
    clock.now = NOON + 2 * SECOND
    assert [worker.send_due() for _ in range(3)] == [1, 0, 0]
    (headers,), (sent,) = bench.headers("Sales"), bench.rows("Sales")
    assert json.loads(sent.body or b"") == {"n": 1}
    assert (headers["SqlQueue.Schedule"], headers["SqlQueue.ScheduledFor"][:16]) == ("hourly", "2026-11-21 12:00")
    (tick,) = last_runs(KEY)
    assert (tick.tick, tick.message_id, tick.endpoint, tick.sent_at) == (NOON, headers["NServiceBus.MessageId"], "Sales", clock.now)
    assert row().next_at == NOON + HOUR
    clock.now = NOON + HOUR
    assert worker.send_due() == 1
    assert ticks(bench) == [NOON, NOON + HOUR]


def test_one_of_two_workers_sends_a_tick(bench: Bench, clock: Clock) -> None:
    rounds, workers = 6, 2
    hourly()
    schedule("also", "Test.Also", every=3600, start=NOON)
    sent = sent_by_competitors(clock, workers=workers, rounds=rounds)
    assert sum(sent) == 2 * rounds
    assert ticks(bench) == sorted([NOON + number * HOUR for number in range(rounds)] * 2)
    assert len(bench.rows("Sales")) == 2 * rounds


def test_tick_claimed_by_another_is_not_sent(bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker sends after the row was read: the race at its critical point, without threads."""
    hourly()
    clock.now = NOON
    slow, fast = (Schedules(get_settings(), "Sales", now=clock) for _ in range(2))
    compose = slow._compose
    monkeypatch.setattr(slow, "_compose", lambda *given, **named: (fast.send_due(), compose(*given, **named))[1])
    assert slow.send_due() == 0
    assert scheduled_for(bench) == ["2026-11-21 12:00"]


def test_change_in_between_is_respected(bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    hourly()
    clock.now = NOON
    worker = Schedules(get_settings(), "Sales", now=clock)
    compose = worker._compose
    monkeypatch.setattr(worker, "_compose", lambda *given, **named: (unschedule("hourly"), compose(*given, **named))[1])
    assert worker.send_due() == 0
    assert bench.rows("Sales") == []


def test_unsendable_message_leaves_the_tick(bench: Bench, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    bench.database.configure(ROUTES={"Test.*": "Elsewhere"})
    hourly()
    worker = schedules_of(clock)
    clock.now = NOON + 2 * MINUTE
    assert [worker.send_due() for _ in range(3)] == [0, 0, 0]
    assert len([each for each in caplog.records if getattr(each, "event", "") == "schedule_failed"]) == 1
    assert row().next_at == NOON
    assert (status(clock).late_since, "Elsewhere" in status(clock).error) == (NOON, True)
    bench.install_queues("Elsewhere")
    assert worker.send_due() == 1
    assert (status(clock).late_since, status(clock).error) == (None, "")


def test_destination_replaces_the_route(bench: Bench, clock: Clock) -> None:
    bench.install_queues("Elsewhere")
    hourly(to="Elsewhere")
    clock.now = NOON
    schedules_of(clock)
    assert (len(bench.rows("Sales")), len(bench.rows("Elsewhere"))) == (0, 1)


# --- missed ticks, restarts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "late", "wanted"),
    [
        ("send", 5 * HOUR + 20 * MINUTE, ["2026-11-21 17:00"]),
        ("send", 5 * DAY, ["2026-11-26 12:00"]),
        ("skip", 5 * HOUR + 20 * MINUTE, []),
        ("skip", 5 * HOUR + 40 * SECOND, ["2026-11-21 17:00"]),
    ],
)
def test_restart_follows_the_policy(bench: Bench, clock: Clock, missed: str, late: timedelta, wanted: list[str]) -> None:
    hourly(missed=missed)
    clock.now = NOON + late
    schedules_of(clock)
    assert scheduled_for(bench) == wanted
    hours = int(late / HOUR) + 1
    assert row().next_at == NOON + hours * HOUR, "the next tick follows the schedule"


def test_missed_tick_is_sent_within_a_day(bench: Bench, clock: Clock) -> None:
    hourly(cron="0 12 * * 6")
    clock.now = NOON + DAY + SECOND
    schedules_of(clock)
    assert (scheduled_for(bench), row().next_at) == ([], NOON + 7 * DAY)


def test_deployment_does_not_forget_a_missed_tick(bench: Bench, clock: Clock) -> None:
    """A project calls `schedule()` when it starts, before the worker checks its schedules."""
    hourly()
    clock.now = NOON + 20 * MINUTE
    assert not hourly(), "nothing has changed"
    assert hourly(to="Sales"), "only the destination has changed"
    schedules_of(clock)
    assert scheduled_for(bench) == ["2026-11-21 12:00"]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("America/New_York", "Europe/Berlin", ["2026-11-22 01:00", "2026-11-23 01:00"]),
        ("Europe/Berlin", "America/New_York", ["2026-11-22 07:00"]),
    ],
)
def test_restart_in_another_time_zone_loses_no_tick(
    bench: Bench, clock: Clock, settings: Any, before: str, after: str, wanted: list[str]
) -> None:
    settings.TIME_ZONE = before
    hourly(cron="0 2 * * *")
    settings.TIME_ZONE = after
    worker = schedules_of(clock)
    for hours in range(40):
        clock.now = NOON + hours * HOUR
        worker.send_due()
    assert scheduled_for(bench) == wanted


def test_jumping_clock_sends_nothing_twice(bench: Bench, clock: Clock) -> None:
    hourly()
    workers = [schedules_of(clock), schedules_of(clock)]
    for jump in (NOON, NOON + HOUR, NOON - MINUTE, NOON, NOON + HOUR, NOON + 2 * HOUR):
        clock.now = jump
        for worker in workers:
            worker.send_due()
    assert scheduled_for(bench) == ["2026-11-21 12:00", "2026-11-21 13:00", "2026-11-21 14:00"]
    clock.now = NOON
    set_enabled(*KEY, enabled=False, actor=Actor("anna"))
    set_enabled(*KEY, enabled=True, actor=Actor("anna"))
    assert row().next_at == NOON + HOUR
    clock.now = NOON + HOUR
    assert workers[0].send_due() == 0, "that tick was sent"
    assert row().next_at == NOON + 2 * HOUR


# --- kinds ------------------------------------------------------------------------------------------------------------------------


def test_one_off_is_sent_once_however_late(bench: Bench, clock: Clock) -> None:
    schedule("once", "Test.Once", at=NOON)
    clock.now = NOON + 9 * DAY
    worker = schedules_of(clock)
    assert worker.send_due() == 0
    assert scheduled_for(bench) == ["2026-11-21 12:00"]
    assert (row("once").next_at, status(clock, "once").is_over, status(clock, "once").next_ticks) == (None, True, ())
    assert not schedule("once", "Test.Once", at=NOON)
    assert schedule("once", "Test.Once", at=clock.now + HOUR)
    clock.now += HOUR
    assert worker.send_due() == 1


def test_interval_counts_from_its_start(bench: Bench, clock: Clock) -> None:
    schedule("often", "Test.Often", every=timedelta(minutes=7), start=NOON, end=NOON + 20 * MINUTE)
    worker = schedules_of(clock)
    for minute in range(40):
        clock.now = NOON + minute * MINUTE + 3 * SECOND
        worker.send_due()
    assert scheduled_for(bench) == ["2026-11-21 12:00", "2026-11-21 12:07", "2026-11-21 12:14"]
    assert status(clock, "often").is_over


def test_interval_without_a_start_keeps_its_rhythm(bench: Bench, clock: Clock) -> None:
    schedule("often", "Test.Often", every=600)
    begin = clock.now
    clock.now += 3 * MINUTE
    assert not schedule("often", "Test.Often", every=600)
    assert row("often").next_at == begin + 10 * MINUTE
    assert schedule("often", "Test.Often", every=60)
    assert row("often").next_at == clock.now + MINUTE


def test_short_interval_is_followed_closely(bench: Bench, clock: Clock) -> None:
    schedule("second", "Test.Second", every=1)
    worker = Schedules(get_settings(), "Sales", now=clock)
    assert worker.seconds_to_next() is None
    clock.now += SECOND
    assert worker.send_due() == 1
    assert worker.seconds_to_next() == 0.5
    schedule("second", "Test.Second", every=4)
    clock.now += 4 * SECOND
    assert (worker.send_due(), worker.seconds_to_next()) == (1, 3.5)
    unschedule("second")
    clock.now += 4 * SECOND
    assert (worker.send_due(), worker.seconds_to_next()) == (0, None)


@pytest.mark.parametrize(
    ("zone", "line", "after", "wanted"),
    [
        # The clock goes from 2:00 to 3:00: the end of the gap.
        ("America/New_York", "30 2 * * *", datetime(2026, 3, 8, 6, tzinfo=UTC), ["03-08 07:00", "03-09 06:30"]),
        # 1:30 comes twice: the first.
        ("America/New_York", "30 1 * * *", datetime(2026, 11, 1, 0, tzinfo=UTC), ["11-01 05:30", "11-02 06:30"]),
        ("Europe/Berlin", "0 2 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), ["10-25 00:00", "10-26 01:00"]),
        ("", "0 2 * * *", datetime(2026, 10, 24, 12, tzinfo=UTC), ["10-25 02:00", "10-26 02:00"]),
    ],
)
def test_crontab_lines_follow_the_clock_of_their_zone(
    bench: Bench, clock: Clock, settings: Any, zone: str, line: str, after: datetime, wanted: list[str]
) -> None:
    settings.TIME_ZONE = "UTC"
    clock.now = after
    schedule("local", "Test.Local", cron=line, timezone=zone)
    worker = schedules_of(clock)
    found = times_of(row("local")).following(after, 2)
    for moment in found:
        clock.now = moment - SECOND
        assert worker.send_due() == 0
        clock.now = moment
        assert worker.send_due() == 1
    assert [each[5:] for each in scheduled_for(bench)] == wanted


def test_interval_ignores_daylight_saving(bench: Bench, clock: Clock) -> None:
    clock.now = datetime(2026, 3, 28, 12, tzinfo=UTC)
    schedule("daily", "Test.Daily", every=DAY, timezone="Europe/Berlin", start=clock.now)
    assert [f"{each:%d %H}" for each in times_of(row("daily")).following(clock.now, 3)] == ["29 12", "30 12", "31 12"]


# --- operators --------------------------------------------------------------------------------------------------------------------


def test_disabled_schedule_sends_neither_current_nor_missed_ticks(bench: Bench, clock: Clock) -> None:
    hourly()
    worker = schedules_of(clock)
    assert set_enabled(*KEY, enabled=False, actor=Actor("anna"))
    clock.now = NOON + 2 * HOUR + MINUTE
    assert [worker.send_due(), schedules_of(clock).send_due()] == [0, 0]
    assert (status(clock).late_since, status(clock).is_enabled) == (None, False)
    assert not hourly(to="Sales") or not row().enabled, "code does not enable what an operator has disabled"
    assert set_enabled(*KEY, enabled=True, actor=Actor("anna"))
    assert worker.send_due() == 0
    clock.now = NOON + 3 * HOUR
    assert worker.send_due() == 1
    assert scheduled_for(bench) == ["2026-11-21 15:00"]


def test_run_by_hand_is_recorded_and_leaves_the_ticks_alone(bench: Bench, clock: Clock) -> None:
    hourly()
    worker = schedules_of(clock)
    clock.now = NOON
    assert request_run(*KEY)
    assert worker.send_due() == 2, "the tick of this second and the run"
    assert [worker.send_due(), row().next_at] == [0, NOON + HOUR]
    by_hand = [bool(each.manual_run) for each in last_runs(KEY)]
    assert sorted(by_hand) == [False, True]
    assert [each.get("SqlQueue.RunByHand") for each in bench.headers("Sales")].count("True") == 1
    set_enabled(*KEY, enabled=False, actor=Actor("anna"))
    request_run(*KEY)
    clock.now += MINUTE
    assert worker.send_due() == 1, "a disabled schedule can be run"


def test_runs_are_bounded(bench: Bench, clock: Clock) -> None:
    schedule("often", "Test.Often", every=60)
    worker = schedules_of(clock)
    for _ in range(RUNS_KEPT + 3):
        clock.now += MINUTE
        assert worker.send_due() == 1
    assert ScheduleTick.objects.count() == RUNS_KEPT
    assert last_runs(("often", "Test.Often"))[0].tick == clock.now


# --- schedule(), unschedule() -----------------------------------------------------------------------------------------------------


def test_definition_is_in_the_transaction_of_the_caller(bench: Bench, clock: Clock) -> None:
    alias = bench.database.alias
    with transaction.atomic(using=alias):
        hourly()
        transaction.set_rollback(True, using=alias)
    assert not Schedule.objects.exists()
    hourly()
    with transaction.atomic(using=alias):
        assert unschedule("hourly")
        transaction.set_rollback(True, using=alias)
    assert row().kind == "cron"


def test_update_changes_what_differs(bench: Bench, clock: Clock) -> None:
    hourly()
    clock.now = NOON
    schedules_of(clock)
    assert schedule("hourly", "Test.Other", every=60, missed="skip")
    changed = row()
    assert (changed.message_type, changed.kind, changed.cron, changed.body) == ("Test.Other", "interval", "", None)
    assert [each.message_type for each in last_runs(("hourly", "Test.Other"))] == ["Test.Other"], "the schedule keeps its runs"
    assert [unschedule("hourly"), unschedule("hourly")] == [True, False]
    assert not ScheduleTick.objects.exists()


def test_two_processes_create_one_row(bench: Bench, clock: Clock) -> None:
    together = threading.Barrier(2)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            together.wait(60)
            hourly()
        except BaseException as error:  # noqa: BLE001 - the test shows it
            errors.append(error)
        finally:
            connections.close_all()

    run_in_threads(work, 2)
    assert (errors, Schedule.objects.count()) == ([], 1)


@pytest.mark.parametrize(
    "times", [{"cron": "0 0 29 2 *", "timezone": "Europe/Berlin"}, {"cron": "* * * * *"}, {"every": 366 * DAY}]
)
def test_schedule_whose_start_is_the_last_day_has_no_time_after_it(bench: Bench, clock: Clock, times: dict[str, Any]) -> None:
    last = datetime(9999, 12, 30, tzinfo=UTC)
    assert schedule(*KEY, start=last, **times)
    assert times_of(row()).next_after(datetime(9999, 12, 31, 23, 59, 30, tzinfo=UTC)) is None


def test_class_names_the_message_type(bench: Bench, clock: Clock) -> None:
    @message_type("Test.Classed")
    @dataclass
    class Classed:
        number: int

    schedule("classed", Classed, cron="0 * * * *")
    assert row("classed").message_type == "Test.Classed"
    wrong: Any = Classed(7)
    with pytest.raises(ConfigurationError, match=r"Classed: expected its class or type name; pass its members as the body"):
        schedule("lost", wrong, cron="0 * * * *")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "0 of cron, every and at"),
        ({"cron": "0 2 * * *", "every": 5}, "2 of cron, every and at"),
        ({"cron": "0 25 * * *"}, "cron: Expected 0 to 23 for the hour"),
        ({"every": 0}, "every_seconds"),
        ({"every": -5}, "every_seconds"),
        ({"every": 0.5}, "whole seconds"),
        ({"every": True}, "whole seconds"),
        ({"every": float("inf")}, "whole seconds"),
        ({"at": "2030-01-01"}, "has at='2030-01-01': expected an aware datetime"),
        ({"at": NOON.replace(tzinfo=None)}, "aware datetime"),
        (
            {"at": datetime(9999, 12, 31, 23, tzinfo=timezone(-5 * HOUR))},
            "at: Ensure this value is less than or equal to 9999",
        ),
        ({"at": datetime(1, 1, 1, tzinfo=timezone(5 * HOUR))}, "at: Ensure this value is greater than or equal to 0001-01-02"),
        ({"every": 60, "start": datetime(1, 1, 1, tzinfo=UTC)}, "starts_at: Ensure this value is greater than"),
        ({"every": 60, "end": datetime.max.replace(tzinfo=UTC)}, "ends_at: Ensure this value is less than"),
        ({"cron": "0 2 * * *", "timezone": "Europe/Atlantis"}, "no time zone Europe/Atlantis"),
        ({"cron": "0 2 * * *", "timezone": "../etc/passwd"}, "no time zone"),
        ({"cron": "0 2 * * *", "missed": "maybe"}, "missed='maybe': expected 'send' or 'skip'"),
        ({"cron": "0 2 * * *", "start": NOON, "end": NOON - DAY}, "The end is before the start"),
        ({"cron": "0 2 * * *", "body": 5}, "has body=5: expected a dictionary"),
        ({"cron": "0 2 * * *", "body": {"total": math.nan}}, "['total']: a body cannot contain the number nan"),
        ({"cron": "0 2 * * *", "body": {"total": object()}}, "['total']: object cannot be written as JSON"),
        ({"cron": "0 2 * * *", "body": {"text": "\ud800"}}, "half of a surrogate pair"),
        ({"cron": "0 2 * * *", "body": {"total": Decimal("0.1234567890123456789")}}, "more digits than a float"),
        ({"cron": "0 2 * * *", "to": ""}, "has to='': expected the address of a queue"),
        ({"cron": "0 2 * * *", "to": 5}, "has to=5: expected the address of a queue"),
        ({"cron": "0 2 * * *", "to": "x" * 401}, "destination"),
    ],
)
def test_wrong_definition_is_refused(bench: Bench, clock: Clock, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match="schedule 'wrong'") as refused:
        schedule("wrong", "Test.Message", **given)
    assert text in str(refused.value)
    assert not Schedule.objects.exists()


@pytest.mark.parametrize("name", ["", " ", "\ud800", "a\0b", 5])
def test_wrong_name_is_refused(bench: Bench, clock: Clock, name: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the schedule's name is .*: expected printable text"):
        schedule(name, "Test.Message", every=5)


@pytest.mark.parametrize("message_type", ["", "A;B", "\ud800"])
def test_wrong_type_is_refused(bench: Bench, clock: Clock, message_type: str) -> None:
    with pytest.raises(MessageTypeError, match=r"schedule 'wrong': the message type .*; expected a name such as"):
        schedule("wrong", message_type, every=5)


def test_body_is_stored_as_it_is_sent(bench: Bench, clock: Clock) -> None:
    assert hourly() is True
    assert schedule(*KEY, {"total": Decimal("9.90"), "day": date(2026, 1, 31)}, cron="0 * * * *") is True
    assert row().body == {"total": 9.9, "day": "2026-01-31"}


# --- beside the settings ----------------------------------------------------------------------------------------------------------


def test_name_of_the_settings_is_refused(bench: Bench, clock: Clock) -> None:
    configure(bench)
    with pytest.raises(ConfigurationError, match="The settings have a schedule of this name"):
        hourly()


def test_schedule_moves_from_the_settings_to_the_database_and_back(bench: Bench, clock: Clock) -> None:
    configure(bench)
    schedules_of(clock)
    request_run(*KEY)
    bench.database.configure(SCHEDULES={})
    assert hourly()
    worker = schedules_of(clock)
    clock.now = NOON
    assert worker.send_due() == 1
    configure(bench)
    clock.now = NOON + HOUR
    back = schedules_of(clock)
    assert [each.origin for each in read_schedules(get_settings(), clock.now)] == [Origin.SETTINGS]
    assert back.send_due() == 0, "the first check has sent it once"
    assert scheduled_for(bench)[1:] == ["2026-11-21 12:00", "2026-11-21 13:00"]


def test_status_lists_both(bench: Bench, clock: Clock) -> None:
    configure(bench, nightly={**HOURLY, "SEND": "Test.Nightly"})
    hourly(timezone="Europe/Berlin")
    schedule("often", "Test.Often", every=90)
    schedule("once", "Test.Once", at=NOON, timezone="Europe/Berlin")
    found = read_schedules(get_settings(), clock.now)
    assert [(each.name, each.origin.value, each.when) for each in found] == [
        ("nightly", "settings", "0 * * * *"),
        ("hourly", "database", "0 * * * *"),
        ("often", "database", "every 90 s"),
        ("once", "database", "at 2026-11-21 13:00:00"),
    ]
    assert found[1].next_ticks == (NOON, NOON + HOUR, NOON + 2 * HOUR)


def test_unused_schedules_cost_one_statement(bench: Bench, clock: Clock) -> None:
    worker = Schedules(get_settings(), "Sales", now=clock)
    worker.send_due()
    with CaptureQueriesContext(bench.database.connection) as found:
        worker.send_due()
    assert len(found) == 1
    schedule("once", "Test.Once", at=NOON)
    clock.now = NOON
    worker.send_due()
    with CaptureQueriesContext(bench.database.connection) as found:
        worker.send_due()
    assert len(found) == 1, "the schedule is over"


def test_unknown_zone_fails_only_its_schedule(bench: Bench, clock: Clock) -> None:
    """The time zones of two machines differ."""
    hourly()
    schedule("strange", "Test.Strange", cron="0 * * * *")
    Schedule.objects.filter(name="strange").update(time_zone="Mars/Olympus")
    clock.now = NOON + 2 * MINUTE
    worker = schedules_of(clock)
    assert scheduled_for(bench) == ["2026-11-21 12:00"]
    assert worker.send_due() == 0
    assert "Mars/Olympus" in status(clock, "strange").error


def test_running_workers_send_a_short_interval(bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the regular check an hour away, the second and later messages are sent because of `sooner`."""
    bench.configure(routes=ROUTES)
    monkeypatch.setattr(schedules, "EVERY_SECONDS", 3600.0)

    @handles("Test.Second")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.headers["SqlQueue.ScheduledFor"])

    schedule("second", "Test.Second", every=1, start=datetime(2026, 1, 1, tzinfo=UTC))
    Schedule.objects.update(next_at=datetime(2026, 1, 1, tzinfo=UTC))
    with Running(bench), Running(bench):
        poll_until(lambda: len(calls.seen) >= 3, what="three messages")
    assert len(set(calls.seen)) == len(calls.seen)
