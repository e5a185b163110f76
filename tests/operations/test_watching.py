"""The checks that sqlqueue brings: what each finds, once for the whole cluster, and what becomes of it in the table of results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.models import CheckResult, Claim, EndpointExpectation, Event, Instance, QueueSample, Schedule, ScheduleTick
from sqlqueue_app.operations.event_texts import text_of_event
from sqlqueue_app.operations.run import RunOptions, run_worker
from sqlqueue_app.operations.watching import looks
from sqlqueue_app.operations.watching.catalogue import BUILT_IN, advice_in_words, finding_in_words
from sqlqueue_app.operations.watching.job import Watching
from sqlqueue_app.operations.watching.looks import EXPIRED_LIMIT
from sqlqueue_app.operations.watching.own import OwnChecks, connections_needed, pool_size
from sqlqueue_app.operations.watching.results import PASSED_KEPT, UNSEEN
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.tables.listing import list_tables
from tests.operations.filling import install, instance, table
from tests.support.databases import QueueDatabase
from tests.support.waiting import join_all, poll_until

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SCHEDULES = {"hourly": {"CRON": "0 * * * *", "SEND": "Shop.Count"}}


class Bench:
    """Workers that look, each at a time that the test says."""

    def __init__(self, database: QueueDatabase) -> None:
        self.database = database
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.ahead = timedelta()
        self.first = self.worker()

    def worker(self, **own: Any) -> Watching:
        known = OwnChecks(**{"alias": self.database.alias, "host": "mill", **own})
        return Watching(get_settings(), known, now=lambda: self.now, local=lambda: self.now + self.ahead)

    def pass_time(self, time: timedelta = 5 * MINUTE) -> None:
        """All is looked at anew then; processes that live have told so."""
        self.now += time
        # One that was not away so long.
        self.first = self.worker()
        for each in Instance.objects.filter(heartbeat_at__gte=self.now - time - 40 * SECOND):
            Instance.objects.filter(pk=each.pk).update(heartbeat_at=datetime.now(UTC))

    def samples(self, queue: str, minutes: int = 1, seconds: int = 10, **fields: Any) -> None:
        """The queue was so for so long."""
        QueueSample.objects.filter(queue=queue).delete()
        for number in range(minutes * 60 // seconds):
            at = self.now - timedelta(seconds=number * seconds)
            known = {"queue": queue, "seconds": seconds, "taken_at": at, "waiting": 0, "most_waiting": 0}
            QueueSample.objects.create(**{**known, **fields})

    def failing(self, name: str) -> dict[str, str]:
        rows = CheckResult.objects.filter(name=f"sqlqueue.{name}", failing=True)
        return {each.subject: finding_in_words(each.name, each.subject, each.details) for each in rows}


@pytest.fixture
def bench(queue_database: QueueDatabase) -> Bench:
    install(queue_database, SCHEDULES=SCHEDULES)
    return Bench(queue_database)


def told() -> list[tuple[str, str]]:
    return [(each.kind, each.subject) for each in Event.objects.order_by("id")]


def test_where_all_is_well_each_check_has_one_row(bench: Bench) -> None:
    instance()
    bench.first.look()

    rows = CheckResult.objects.all()
    assert {each.name for each in rows} == set(BUILT_IN)
    assert {(each.subject, each.failing, each.since, each.checked_at) for each in rows} == {("", False, bench.now, bench.now)}
    assert told() == []
    since = bench.now
    bench.pass_time()
    bench.first.look()
    assert {(each.since, each.checked_at) for each in CheckResult.objects.all()} == {(since, bench.now)}


def test_a_process_that_is_lost_and_comes_back(bench: Bench) -> None:
    row = instance(silent=timedelta(hours=1))
    for _ in range(3):
        bench.first.look()
        bench.now += 20 * SECOND

    name = "Sales on here (4711)"
    assert bench.failing("instances") == {name: f"Nothing was heard of the process {name} for 40 seconds."}
    Instance.objects.filter(pk=row.pk).update(heartbeat_at=datetime.now(UTC))
    bench.first.look()
    assert told() == [("instance_lost", name), ("instance_back", name)]
    assert bench.failing("instances") == {}


def test_after_an_outage_processes_have_time_to_tell_that_they_live(bench: Bench) -> None:
    row = instance()
    bench.first.look()
    Instance.objects.filter(pk=row.pk).update(heartbeat_at=datetime.now(UTC) - MINUTE)
    bench.now += MINUTE
    bench.first.look()
    assert told() == []
    bench.now += 20 * SECOND
    bench.first.look()
    assert told() == [("instance_lost", "Sales on here (4711)")]


def test_a_lost_process_whose_place_another_has_taken(bench: Bench) -> None:
    row = instance(silent=timedelta(hours=1))
    bench.first.look()
    Instance.objects.filter(pk=row.pk).update(heartbeat_at=datetime.now(UTC), pid=4712)
    bench.pass_time()
    bench.first.look()

    assert told() == [("instance_lost", "Sales on here (4711)"), ("instance_gone", "Sales on here (4711)")]
    assert [each.subject for each in CheckResult.objects.filter(name="sqlqueue.instances")] == [""]


def test_an_endpoint_below_its_minimum(bench: Bench) -> None:
    EndpointExpectation.objects.create(endpoint="Sales", minimum=2, changed_at=bench.now)
    instance()
    instance(pid=1, callback_queue=None, silent=timedelta(hours=1))
    bench.first.look()
    assert bench.failing("minimums") == {"Sales": "Live instances of Sales: 1, expected at least 2."}
    instance(pid=2, callback_queue=None)
    bench.pass_time()
    bench.first.look()

    assert bench.failing("minimums") == {}
    assert [each for each in told() if "instance" not in each[0]] == [
        ("endpoint_below_minimum", "Sales"),
        ("endpoint_above_minimum", "Sales"),
    ]


def test_a_queue_from_which_nobody_receives(bench: Bench) -> None:
    bench.samples("Sales", waiting=7)
    bench.samples("Sales.Priority", waiting=3)
    instance(threads={"Sales": 1})
    bench.first.look()
    assert set(bench.failing("receivers")) == {"Sales.Priority"}
    assert "3, and no live process" in bench.failing("receivers")["Sales.Priority"]
    bench.pass_time()
    bench.samples("Sales.Priority", waiting=3)
    instance(pid=3, callback_queue=None, threads={})
    bench.first.look()
    assert bench.failing("receivers") == {}
    assert told() == [("check_failed", "Sales.Priority"), ("check_passed", "Sales.Priority")]


def test_one_sample_in_which_messages_wait_is_no_failure(bench: Bench) -> None:
    bench.samples("Sales", waiting=7)
    QueueSample.objects.filter(queue="Sales", taken_at=bench.now).update(waiting=0)
    bench.first.look()
    assert bench.failing("receivers") == {}


def test_what_was_not_counted_has_not_failed(bench: Bench) -> None:
    bench.samples("Sales", waiting=7)
    bench.now += MINUTE
    bench.first.look()
    assert bench.failing("receivers") == {}


def test_delayed_messages_that_nobody_moves(bench: Bench) -> None:
    bench.samples("Sales.Delayed", waiting=5, overdue=4)
    bench.first.look()
    assert bench.failing("mover") == {"Sales": "Delayed messages of Sales that are due and were not moved for a minute: 4."}


@pytest.mark.parametrize(("minutes", "expired", "is_late"), [(16, 2_000, True), (9, 2_000, False), (16, EXPIRED_LIMIT, False)])
def test_expired_messages_that_nobody_purges(bench: Bench, minutes: int, expired: int, is_late: bool) -> None:
    bench.samples("Sales", minutes=minutes, seconds=60, expired=expired)
    bench.first.look()
    assert bool(bench.failing("purging")) == is_late
    if is_late:
        assert bench.failing("purging") == {"Sales": "More than 1,000 expired messages have been lying in Sales for 15 minutes."}


def test_who_does_not_purge_is_not_late(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {"PURGE_EXPIRED_EVERY": 0, "CALLBACKS": False}})
    bench = Bench(queue_database)
    bench.samples("Sales", minutes=20, seconds=60, expired=5_000)
    bench.first.look()
    assert bench.failing("purging") == {}


def test_a_recurring_message_that_is_not_sent(bench: Bench) -> None:
    bench.now = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
    ticks = {"schedule": "hourly", "message_type": "Shop.Count", "sent_at": bench.now}
    ScheduleTick.objects.create(tick=bench.now - timedelta(minutes=90), **ticks)
    bench.first.look()
    (text,) = bench.failing("schedules").values()
    assert text.startswith("The recurring message hourly that was due at 2026-11-21 ")
    ScheduleTick.objects.create(tick=bench.now - timedelta(minutes=30), **ticks)
    bench.pass_time()
    bench.first.look()
    assert told() == [("schedule_failed", "hourly"), ("schedule_sends", "hourly")]


@pytest.mark.parametrize(("enabled", "changed"), [(False, timedelta(days=9)), (True, timedelta(minutes=5))])
def test_a_recurring_message_that_rests_is_not_late(bench: Bench, enabled: bool, changed: timedelta) -> None:
    bench.now = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
    ScheduleTick.objects.create(
        schedule="hourly", message_type="Shop.Count", sent_at=bench.now, tick=bench.now - timedelta(minutes=90)
    )
    Schedule.objects.create(name="hourly", message_type="Shop.Count", enabled=enabled, changed_at=bench.now - changed)
    bench.first.look()
    assert bench.failing("schedules") == {}


def test_tables_that_are_missing_or_lack_an_index(bench: Bench) -> None:
    sales, priority = table(bench.database, "Sales"), table(bench.database, "Sales.Priority")
    with bench.database.connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {priority.qualified}")
        index = next(each for each in _indexes(bench.database, "Sales") if "xpires" in each)
        cursor.execute(f'DROP INDEX "{index}"')
    assert not next(each for each in list_tables(bench.database.alias) if each.address == sales.address).layout.expires_index  # type: ignore[union-attr]
    bench.first.look()

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
    }
    with database.connection.cursor() as cursor:
        cursor.execute(sql[database.vendor], [name])
        return [str(found) for (found,) in cursor.fetchall()]


def test_a_machine_whose_clock_is_wrong(bench: Bench) -> None:
    bench.ahead = -7 * SECOND
    bench.first.look()
    if bench.database.vendor == "sqlite":
        assert bench.failing("clocks") == {}  # the database has the clock of the machine
        return
    text = "The clock of the machine mill differs from that of the database by -7 seconds."
    assert bench.failing("clocks") == {"mill": text}
    # Of another machine nothing is known.
    bench.pass_time()
    bench.ahead = timedelta()
    bench.worker(host="elsewhere").look()
    assert bench.failing("clocks") == {"mill": text}
    # A process that is started anew knows nothing of the one before.
    bench.worker().look()
    assert bench.failing("clocks") == {}
    assert told() == [("check_failed", "mill"), ("check_passed", "mill")]
    bench.pass_time(UNSEEN + MINUTE)
    bench.worker(host="elsewhere").look()
    assert [each.subject for each in CheckResult.objects.filter(name="sqlqueue.clocks")] == [""]


@pytest.mark.parametrize(
    ("pool", "size"), [(None, None), (True, 4), ({"max_size": 9}, 9), ({"min_size": 2}, 2), ({"max_size": None}, 4), ({}, None)]
)
def test_the_size_of_a_pool(pool: object, size: int | None) -> None:
    entry = {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"pool": pool}}
    assert pool_size(entry) == size
    assert pool_size({**entry, "ENGINE": "django.db.backends.sqlite3"}) is None


def test_a_pool_that_is_too_small(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue_app.operations.watching.own.pool_size", lambda entry: 20)
    assert connections_needed([(8, False), (4, True)]) == 21
    bench.worker(connections_needed=21).look()
    assert bench.failing("pools") == {"mill": "The connection pool of mill has at most 20 connections, and the worker needs 21."}
    bench.worker(connections_needed=20).look()
    assert bench.failing("pools") == {}


def test_of_many_workers_one_looks(bench: Bench) -> None:
    instance(silent=timedelta(hours=1))
    bench.samples("Sales.Delayed", waiting=5, overdue=4)
    begin, workers = threading.Barrier(5), 5
    found: list[list[str]] = []

    def work() -> None:
        mine = bench.worker()
        try:
            begin.wait(60)
            try:
                found.append(mine.look())
            except DatabaseError:  # SQLite: another one is at it
                found.append([])
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    join_all(threads)

    looked = [name for names in found for name in names]
    assert len(looked) == len(set(looked))
    assert len(told()) == len(set(told()))
    if bench.database.vendor == "postgresql":
        assert sorted(told()) == [("check_failed", "Sales"), ("instance_lost", "Sales on here (4711)")]


def test_who_is_killed_in_between_loses_no_event(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    instance(silent=timedelta(hours=1))
    with monkeypatch.context() as patch:
        patch.setattr("sqlqueue_app.operations.watching.results.record_events", _killed)
        with pytest.raises(KeyboardInterrupt):
            bench.first.look()
    assert CheckResult.objects.filter(failing=True).count() == 0
    bench.now += 20 * SECOND
    bench.worker().look()
    assert told() == [("instance_lost", "Sales on here (4711)")]


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_idle_look_costs_little(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    instance()
    bench = Bench(postgresql_database)
    bench.now = datetime.fromtimestamp(bench.now.timestamp() // 300 * 300, UTC)
    bench.first.look()

    def statements(after: timedelta, work: Callable[[], object]) -> list[str]:
        bench.now += after
        with CaptureQueriesContext(postgresql_database.connection) as queries:
            work()
        return [each["sql"] for each in queries.captured_queries]

    # Who looks for nothing, who looks for what must be noticed soon, and who looks at more.
    loser = bench.worker()
    assert len(statements(timedelta(), loser.look)) == 4  # the first look of a process asks what stands there of its machine
    assert len(statements(timedelta(), loser.look)) == 3  # BEGIN, SELECT, COMMIT
    quick = statements(20 * SECOND, bench.first.look)
    assert [sql for sql in quick if sql.startswith("BEGIN")] == ["BEGIN"] * 2
    assert len(quick) <= 20
    assert len(statements(40 * SECOND, bench.first.look)) <= 40
    assert len(statements(300 * SECOND, bench.first.look)) <= 60


def test_what_has_failed_stays_for_a_day_and_longer_if_it_is_muted(bench: Bench) -> None:
    row = instance(silent=timedelta(hours=1))
    bench.samples("Sales.Delayed", waiting=5, overdue=4)
    bench.first.look()
    Instance.objects.filter(pk=row.pk).delete()
    QueueSample.objects.all().delete()
    bench.samples("Sales.Delayed")
    CheckResult.objects.filter(subject="Sales").update(muted_until=bench.now + 3 * PASSED_KEPT, muted_by="anna")
    bench.pass_time(10 * SECOND)
    QueueSample.objects.all().delete()
    for days in (0, 2, 4):
        bench.now += timedelta(days=days) + MINUTE
        bench.samples("Sales.Delayed")
        bench.first.look()
        left = set(CheckResult.objects.filter(name="sqlqueue.mover").values_list("subject", flat=True))
        assert left == ({"", "Sales"} if days < 4 else {""})


def test_results_of_unknown_checks_are_forgotten(bench: Bench) -> None:
    old = bench.now - timedelta(days=2)
    CheckResult.objects.create(name="payment gateway", failing=True, since=old, checked_at=old)
    CheckResult.objects.create(name="another", since=old, checked_at=bench.now - timedelta(hours=2))
    bench.first.look()
    assert not CheckResult.objects.filter(name="payment gateway").exists()
    assert CheckResult.objects.filter(name="another").exists()


def test_a_check_that_cannot_be_run_does_not_stop_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(look: looks.Look) -> Any:
        look.settings.endpoint("Sales")
        with bench.database.connection.cursor() as cursor:
            cursor.execute("SELECT nothing FROM nowhere")
        yield "", None

    monkeypatch.setitem(looks.CHECKS, "sqlqueue.mover", broken)
    instance(silent=timedelta(hours=1))
    bench.first.look()

    assert told() == [("instance_lost", "Sales on here (4711)")]
    assert not CheckResult.objects.filter(name="sqlqueue.mover").exists()
    assert [getattr(each, "event", "") for each in caplog.records].count("check_not_run") == 1


def test_a_worker_checks(queue_database: QueueDatabase, registered: Callable[..., None]) -> None:
    registered("of a test")
    install(queue_database)
    stop = StopSignal()

    def work() -> None:
        try:
            run_worker(get_settings(), RunOptions(), stop)
        finally:
            connections.close_all()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        names = CheckResult.objects.values_list("name", flat=True)
        poll_until(lambda: set(names.all()) == {*BUILT_IN, "of a test"}, what="all checks have been run")
    finally:
        stop.set()
        join_all([worker])
    assert Claim.objects.filter(name__startswith="checks every ").exists()


@pytest.mark.parametrize("details", [None, [], {}, {"alive": "%s", "text": None}])
def test_every_check_has_words_whatever_its_details_are(details: object) -> None:
    for name in (*BUILT_IN, "payment gateway"):
        assert finding_in_words(name, "it", details)
        assert advice_in_words(name, "it", details)
        for kind in ("check_failed", "check_passed", "instance_lost"):
            row = {**(details if isinstance(details, dict) else {}), "check": name}
            assert text_of_event(Event(kind=kind, subject="it", details=row))
