"""The findings of each built-in check."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import (
    CheckResult,
    EndpointExpectation,
    Event,
    Instance,
    PipelineRun,
    QueueSample,
    RunState,
    Schedule,
    ScheduleTick,
    managed_alias,
)
from sqlqueue_app.monitoring.check_results import UNSEEN, connections_needed, pool_size
from sqlqueue_app.monitoring.checks import BUILT_IN, EXPIRED_LIMIT
from sqlqueue_app.monitoring.snapshot import MINUTES, Snapshot
from sqlqueue_app.status.overview import read_status
from sqlqueue_app.status.traffic import read_traffic, traffic_of
from sqlqueue_app.tables.listing import list_tables
from tests.monitoring.checks.watchers import MINUTE, SECOND, Bench, recorded_events
from tests.support.databases import QueueDatabase
from tests.support.filling import install, instance, message, table


def test_each_passing_check_has_one_row(bench: Bench) -> None:
    instance()
    bench.first.run_due()

    rows = CheckResult.objects.all()
    assert {each.name for each in rows} == set(BUILT_IN)
    assert {(each.subject, each.failing, each.since, each.checked_at) for each in rows} == {("", False, bench.now, bench.now)}
    assert recorded_events() == []
    since = bench.now
    bench.pass_time()
    bench.first.run_due()
    assert {(each.since, each.checked_at) for each in CheckResult.objects.all()} == {(since, bench.now)}


def test_lost_process_that_returns_is_reported(bench: Bench) -> None:
    row = instance(silent=timedelta(minutes=5))
    for _ in range(3):
        bench.first.run_due()
        bench.now += 20 * SECOND

    name = "Sales on here (4711)"
    assert bench.failing("instances") == {name: f"No heartbeat from the process {name} for more than 40 seconds."}
    Instance.objects.filter(pk=row.pk).update(heartbeat_at=datetime.now(UTC))
    bench.first.run_due()
    assert recorded_events() == [("instance_lost", name), ("instance_back", name)]
    assert bench.failing("instances") == {}


def test_event_of_a_check_has_the_severity_of_its_alert(bench: Bench) -> None:
    instance(silent=timedelta(minutes=5))
    bench.first.run_due()
    assert [(each.kind, each.severity) for each in Event.objects.all()] == [("instance_lost", "warning")]
    bench.samples("Sales", waiting=1)
    instance(name="there", callback_queue=None, host="there", silent=timedelta(minutes=5))
    bench.pass_time(20 * SECOND)
    bench.first.run_due()
    assert Event.objects.latest("id").severity == "error", "messages wait for the lost process"


def test_processes_have_time_for_a_heartbeat_after_an_outage(bench: Bench) -> None:
    row = instance()
    bench.first.run_due()
    Instance.objects.filter(pk=row.pk).update(heartbeat_at=datetime.now(UTC) - MINUTE)
    bench.now += MINUTE
    bench.first.run_due()
    assert recorded_events() == []
    bench.now += 20 * SECOND
    bench.first.run_due()
    assert recorded_events() == [("instance_lost", "Sales on here (4711)")]


def test_lost_process_with_a_successor_is_reported_gone(bench: Bench) -> None:
    row = instance(silent=timedelta(minutes=5))
    bench.first.run_due()
    Instance.objects.filter(pk=row.pk).update(heartbeat_at=datetime.now(UTC), pid=4712)
    bench.pass_time()
    bench.first.run_due()

    assert recorded_events() == [("instance_lost", "Sales on here (4711)"), ("instance_gone", "Sales on here (4711)")]
    assert [each.subject for each in CheckResult.objects.filter(name="sqlqueue.instances")] == [""]


def test_endpoint_below_its_minimum_is_reported(bench: Bench) -> None:
    EndpointExpectation.objects.create(endpoint="Sales", minimum=2, changed_at=bench.now)
    instance()
    instance(pid=1, callback_queue=None, silent=timedelta(minutes=5))
    bench.first.run_due()
    assert bench.failing("minimums") == {"Sales": "Live instances of Sales: 1, expected at least 2."}
    instance(pid=2, callback_queue=None)
    bench.pass_time()
    bench.first.run_due()

    assert bench.failing("minimums") == {}
    assert [each for each in recorded_events() if "instance" not in each[0]] == [
        ("endpoint_below_minimum", "Sales"),
        ("endpoint_above_minimum", "Sales"),
    ]


def test_queue_without_a_receiver_is_reported(bench: Bench) -> None:
    bench.samples("Sales", waiting=7)
    bench.samples("Sales.Priority", waiting=3)
    instance(threads={"Sales": 1})
    bench.first.run_due()
    assert set(bench.failing("receivers")) == {"Sales.Priority"}
    text = "No live worker. Messages that have been waiting for Sales.Priority for a minute: 3."
    assert bench.failing("receivers")["Sales.Priority"] == text
    bench.pass_time()
    bench.samples("Sales.Priority", waiting=3)
    instance(pid=3, callback_queue=None, threads={})
    bench.first.run_due()
    assert bench.failing("receivers") == {}
    assert recorded_events() == [("check_failed", "Sales.Priority"), ("check_passed", "Sales.Priority")]


def test_single_sample_with_waiting_messages_is_no_failure(bench: Bench) -> None:
    bench.samples("Sales", waiting=7)
    QueueSample.objects.filter(queue="Sales", taken_at=bench.now).update(waiting=0)
    bench.first.run_due()
    assert bench.failing("receivers") == {}


def test_queue_without_recent_samples_does_not_fail(bench: Bench) -> None:
    bench.samples("Sales", waiting=7)
    bench.now += MINUTE
    bench.first.run_due()
    assert bench.failing("receivers") == {}


def test_queue_without_a_receiver_does_not_recover_while_it_is_not_sampled(bench: Bench) -> None:
    bench.samples("Sales", waiting=7)
    bench.first.run_due()
    bench.pass_time()
    bench.first.run_due()
    assert set(bench.failing("receivers")) == {"Sales"}
    bench.pass_time()
    bench.samples("Sales", waiting=0)
    bench.first.run_due()
    assert bench.failing("receivers") == {}
    assert recorded_events() == [("check_failed", "Sales"), ("check_passed", "Sales")]


def test_growth_is_that_of_the_overview(bench: Bench) -> None:
    """Both compare with the same minute, ten minutes ago; the means only decide whether the queue grows steadily."""
    instance()
    now = MINUTES.start_of(bench.now) + 20 * SECOND
    for number in range(1, 11):
        at = MINUTES.start_of(now) - number * MINUTE
        QueueSample.objects.create(queue="Sales", seconds=60, taken_at=at, waiting=700 - 50 * number, most_waiting=0)
    for number in range(6):
        at = now - number * 10 * SECOND
        QueueSample.objects.create(queue="Sales", seconds=10, taken_at=at, waiting=700, most_waiting=0)
    table(bench.database, "Sales").send([message() for _ in range(700)])
    alias, status = managed_alias(), read_status()
    traffic = read_traffic(alias, ["Sales"], [["Sales"], ["error"]], timedelta(hours=1), ["Sales"], now)
    queues = [each for each in status.queues if each.name == "Sales"]
    assert Snapshot(get_settings(), now).growth["Sales"] == traffic_of("Sales", queues, traffic, now).grown == 500


def test_overdue_delayed_messages_are_reported(bench: Bench) -> None:
    bench.samples("Sales.Delayed", waiting=5, overdue=4)
    bench.first.run_due()
    assert bench.failing("mover") == {"Sales": "Delayed messages of Sales that are due and were not moved for a minute: 4."}


@pytest.mark.parametrize(("minutes", "expired", "is_late"), [(16, 2_000, True), (9, 2_000, False), (16, EXPIRED_LIMIT, False)])
def test_long_expired_messages_are_reported(bench: Bench, minutes: int, expired: int, is_late: bool) -> None:
    bench.samples("Sales", minutes=minutes, seconds=60, expired=expired)
    bench.first.run_due()
    assert bool(bench.failing("purging")) == is_late
    if is_late:
        assert bench.failing("purging") == {"Sales": "More than 1,000 expired messages have been waiting for 15 minutes."}


def test_expired_messages_are_ignored_without_purging(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {"PURGE_EXPIRED_EVERY": 0, "CALLBACKS": False}})
    bench = Bench(queue_database)
    bench.samples("Sales", minutes=20, seconds=60, expired=5_000)
    bench.first.run_due()
    assert bench.failing("purging") == {}


def test_late_recurring_message_is_reported(bench: Bench) -> None:
    bench.now = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
    ticks = {"schedule": "hourly", "message_type": "Shop.Count", "sent_at": bench.now}
    ScheduleTick.objects.create(tick=bench.now - timedelta(minutes=90), **ticks)
    bench.first.run_due()
    (text,) = bench.failing("schedules").values()
    assert text.startswith("The recurring message hourly that was due at 2026-11-21 ")
    ScheduleTick.objects.create(tick=bench.now - timedelta(minutes=30), **ticks)
    bench.pass_time()
    bench.first.run_due()
    assert recorded_events() == [("schedule_failed", "hourly"), ("schedule_sends", "hourly")]


@pytest.mark.parametrize(("enabled", "changed"), [(False, timedelta(days=9)), (True, timedelta(minutes=5))])
def test_disabled_or_changed_schedule_is_not_late(bench: Bench, enabled: bool, changed: timedelta) -> None:
    bench.now = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
    ScheduleTick.objects.create(
        schedule="hourly", message_type="Shop.Count", sent_at=bench.now, tick=bench.now - timedelta(minutes=90)
    )
    Schedule.objects.create(name="hourly", message_type="Shop.Count", enabled=enabled, changed_at=bench.now - changed)
    bench.first.run_due()
    assert bench.failing("schedules") == {}


@pytest.fixture
def nightly(bench: Bench) -> Bench:
    """Workers that run the pipeline every night at two, at half past one; one of them has started at midnight."""
    install(bench.database, PIPELINE={"LAKE": "/srv/lake", "CRON": "0 2 * * *"})
    bench.now = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
    bench.first = bench.worker()
    instance(callback_queue=None, started_at=bench.now - 90 * MINUTE)
    return bench


def run_of_pipeline(started_at: datetime, state: RunState = RunState.ENDED, *, alive: timedelta = MINUTE, error: str = "") -> None:
    """A run that ended, or sent its last heartbeat, after the time `alive`."""
    end = started_at + alive
    ended_at = None if state is RunState.RUNNING else end
    PipelineRun.objects.create(started_at=started_at, heartbeat_at=end, ended_at=ended_at, state=state, error=error, pid=1)


def test_failed_run_of_the_pipeline_is_reported_until_another_succeeds(nightly: Bench) -> None:
    run_of_pipeline(nightly.now - 10 * MINUTE, RunState.FAILED, error="No space left on device")
    nightly.first.run_due()
    failing = {"pipeline": "The last run of the pipeline failed: No space left on device"}
    assert nightly.failing("pipeline") == failing
    assert CheckResult.objects.get(subject="pipeline").since == nightly.now - 9 * MINUTE
    # The next run has just started, and may fail as well.
    run_of_pipeline(nightly.now + 4 * MINUTE, RunState.RUNNING)
    nightly.pass_time()
    nightly.first.run_due()
    assert nightly.failing("pipeline") == failing
    PipelineRun.objects.filter(state=RunState.RUNNING).update(heartbeat_at=nightly.now + 5 * MINUTE)
    nightly.pass_time()
    nightly.first.run_due()
    assert nightly.failing("pipeline") == {}
    assert recorded_events() == [("check_failed", "pipeline"), ("check_passed", "pipeline")]


def test_killed_run_of_the_pipeline_is_reported(nightly: Bench) -> None:
    run_of_pipeline(nightly.now - 10 * MINUTE, RunState.RUNNING)
    nightly.first.run_due()
    assert nightly.failing("pipeline") == {"pipeline": "The last run of the pipeline was killed, or its machine was lost."}


@pytest.mark.parametrize("has_run", [True, False])
def test_run_of_the_pipeline_that_no_worker_has_started_is_reported(nightly: Bench, has_run: bool) -> None:
    if has_run:
        run_of_pipeline(nightly.now - timedelta(days=1))
    nightly.pass_time(31 * MINUTE)
    nightly.first.run_due()
    assert nightly.failing("pipeline") == {}, "a worker may still start it"
    nightly.pass_time()
    nightly.first.run_due()
    (text,) = nightly.failing("pipeline").values()
    assert text.startswith("The last run of the pipeline was due at 2026-11-21 ")
    assert text.endswith(" and did not start.")


@pytest.mark.parametrize("has_run", [True, False])
def test_run_of_the_pipeline_is_missed_only_while_a_worker_is_alive(nightly: Bench, has_run: bool) -> None:
    """Missed starts are not repeated, so a worker that has started later has missed none."""
    if has_run:
        run_of_pipeline(nightly.now - timedelta(days=1))
    Instance.objects.update(started_at=nightly.now + 31 * MINUTE)
    nightly.pass_time(60 * MINUTE)
    nightly.first.run_due()
    assert nightly.failing("pipeline") == {}


@pytest.mark.parametrize(
    ("started", "state"),
    [(29 * MINUTE + 59 * SECOND, RunState.ENDED), (-timedelta(days=1), RunState.RUNNING)],
    ids=["clocks", "running"],
)
def test_run_of_the_pipeline_that_has_started_is_not_missed(nightly: Bench, started: timedelta, state: RunState) -> None:
    """Clocks differ: the start may be recorded a second before the time of the schedule."""
    run_of_pipeline(nightly.now + started, state, alive=60 * MINUTE - started)
    nightly.pass_time(60 * MINUTE)
    nightly.first.run_due()
    assert nightly.failing("pipeline") == {}


def test_runs_of_a_pipeline_that_the_settings_do_not_name_are_not_checked(bench: Bench) -> None:
    run_of_pipeline(bench.now - 10 * MINUTE, RunState.FAILED, error="No space left on device")
    bench.first.run_due()
    assert bench.failing("pipeline") == {}


def test_missing_tables_and_indexes_are_reported(bench: Bench) -> None:
    sales, priority = table(bench.database, "Sales"), table(bench.database, "Sales.Priority")
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {priority.qualified}")
        index = next(each for each in _indexes(bench.database, "Sales") if "xpires" in each)
        cursor.execute(f'DROP INDEX "{index}"' + (" ON [dbo].[Sales]" if bench.database.vendor == "sqlserver" else ""))
    assert not next(each for each in list_tables(bench.database.alias) if each.address == sales.address).layout.expires_index  # type: ignore[union-attr]
    bench.first.run_due()

    index = "has no index on Expires: adding it speeds up purging and counting of expired messages"
    assert bench.failing("tables") == {
        priority.qualified: f"table {priority.qualified} does not exist",
        sales.qualified: f"table {sales.qualified} {index}",
    }
    assert "CREATE" in CheckResult.objects.get(subject=sales.qualified).details["sql"]


def _indexes(database: QueueDatabase, name: str) -> list[str]:
    sql = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = %s",
        "postgresql": "SELECT indexname FROM pg_indexes WHERE tablename = %s",
        "sqlserver": "SELECT name FROM sys.indexes WHERE object_id = OBJECT_ID(%s) AND name IS NOT NULL",
    }
    with database.connection.cursor() as cursor:
        cursor.execute(sql[database.vendor], [name])
        return [str(found) for (found,) in cursor.fetchall()]


def test_wrong_clock_of_a_machine_is_reported(bench: Bench) -> None:
    bench.ahead = -7 * SECOND
    bench.first.run_due()
    if bench.database.vendor == "sqlite":
        assert bench.failing("clocks") == {}  # the database has the clock of the machine
        return
    text = "The clock of the machine mill differs from that of the database by -7 seconds."
    assert bench.failing("clocks") == {"mill": text}
    # The process of another machine does not change the result.
    bench.pass_time()
    bench.ahead = timedelta()
    bench.worker(host="elsewhere").run_due()
    assert bench.failing("clocks") == {"mill": text}
    # A restarted process replaces the result of its predecessor.
    bench.worker().run_due()
    assert bench.failing("clocks") == {}
    assert recorded_events() == [("check_failed", "mill"), ("check_passed", "mill")]
    bench.pass_time(UNSEEN + MINUTE)
    bench.worker(host="elsewhere").run_due()
    assert [each.subject for each in CheckResult.objects.filter(name="sqlqueue.clocks")] == [""]


@pytest.mark.parametrize(
    ("pool", "size"), [(None, None), (True, 4), ({"max_size": 9}, 9), ({"min_size": 2}, 2), ({"max_size": None}, 4), ({}, None)]
)
def test_pool_size_is_read_from_the_settings(pool: object, size: int | None) -> None:
    entry = {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"pool": pool}}
    assert pool_size(entry) == size
    assert pool_size({**entry, "ENGINE": "django.db.backends.sqlite3"}) is None


def test_too_small_pool_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue_app.monitoring.check_results.pool_size", lambda entry: 20)
    assert connections_needed([(8, False), (4, True)]) == 21
    bench.worker(connections_needed=21).run_due()
    assert bench.failing("pools") == {"mill": "The connection pool of mill has at most 20 connections, and the worker needs 21."}
    bench.worker(connections_needed=20).run_due()
    assert bench.failing("pools") == {}
