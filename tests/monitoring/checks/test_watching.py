"""Checks in a cluster run once for all workers and keep their results in a table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.history import text_of_event
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.models import CheckResult, Claim, EndpointExpectation, Event, Instance, QueueSample
from sqlqueue_app.monitoring.check_results import PASSED_KEPT, UNSEEN
from sqlqueue_app.monitoring.checks import BUILT_IN, MOVER, describe_advice, describe_finding
from sqlqueue_app.monitoring.snapshot import Snapshot
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.worker.run import RunOptions, run_worker
from tests.monitoring.checks.watchers import MINUTE, SECOND, Bench, recorded_events
from tests.support.databases import QueueDatabase
from tests.support.filling import install, instance
from tests.support.waiting import join_all, poll_until, run_in_threads


def test_only_one_of_many_workers_runs_a_check(bench: Bench) -> None:
    instance(silent=timedelta(minutes=5))
    instance(pid=2, endpoint="Other", callback_queue=None, threads={"Other": 1})
    bench.samples("Sales.Delayed", waiting=5, overdue=4)
    begin, workers = threading.Barrier(5), 5
    found: list[list[str]] = []

    def work() -> None:
        mine = bench.worker()
        try:
            begin.wait(60)
            try:
                found.append(mine.run_due())
            except DatabaseError:  # SQLite: another process holds the lock
                found.append([])
        finally:
            connections.close_all()

    run_in_threads(work, workers)

    checked = [name for names in found for name in names]
    assert len(checked) == len(set(checked))
    assert len(recorded_events()) == len(set(recorded_events()))
    if bench.database.vendor == "postgresql":
        assert sorted(recorded_events()) == [("check_failed", "Sales"), ("instance_lost", "Sales on here (4711)")]


def test_killed_worker_loses_no_event(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    instance(silent=timedelta(minutes=5))
    with monkeypatch.context() as patch:
        patch.setattr("sqlqueue_app.monitoring.check_results.record_events", _killed)
        with pytest.raises(KeyboardInterrupt):
            bench.first.run_due()
    assert CheckResult.objects.filter(failing=True).count() == 0
    bench.now += 20 * SECOND
    bench.worker().run_due()
    assert recorded_events() == [("instance_lost", "Sales on here (4711)")]


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_idle_run_takes_few_statements(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database)
    instance()
    bench = Bench(postgresql_database)
    bench.now = datetime.fromtimestamp(bench.now.timestamp() // 300 * 300, UTC)
    bench.first.run_due()

    def statements(after: timedelta, work: Callable[[], object]) -> list[str]:
        bench.now += after
        with CaptureQueriesContext(postgresql_database.connection) as queries:
            work()
        return [each["sql"] for each in queries.captured_queries]

    # A worker with no due checks, one with the frequent checks, and one with more.
    loser = bench.worker()
    assert len(statements(timedelta(), loser.run_due)) == 4  # the first run of a process reads the stored results of its machine
    assert len(statements(timedelta(), loser.run_due)) == 3  # BEGIN, SELECT, COMMIT
    quick = statements(20 * SECOND, bench.first.run_due)
    assert [sql for sql in quick if sql.startswith("BEGIN")] == ["BEGIN"] * 2
    assert len(quick) <= 22
    assert len(statements(40 * SECOND, bench.first.run_due)) <= 40
    assert len(statements(300 * SECOND, bench.first.run_due)) <= 60


def test_passed_results_are_kept_for_a_day_and_longer_when_muted(bench: Bench) -> None:
    row = instance()
    bench.samples("Sales.Delayed", waiting=5, overdue=4)
    bench.first.run_due()
    Instance.objects.filter(pk=row.pk).delete()
    QueueSample.objects.all().delete()
    bench.samples("Sales.Delayed")
    CheckResult.objects.filter(subject="Sales").update(muted_until=bench.now + 3 * PASSED_KEPT, muted_by="anna")
    bench.pass_time(10 * SECOND)
    QueueSample.objects.all().delete()
    for days in (0, 2, 4):
        bench.now += timedelta(days=days) + MINUTE
        bench.samples("Sales.Delayed")
        bench.first.run_due()
        left = set(CheckResult.objects.filter(name="sqlqueue.mover").values_list("subject", flat=True))
        assert left == ({"", "Sales"} if days < 4 else {""})


def test_outage_of_all_workers_ends_no_alert(bench: Bench) -> None:
    instance(threads={"Sales": 1})
    bench.samples("Sales.Priority", waiting=3)
    bench.first.run_due()
    CheckResult.objects.filter(name="sqlqueue.receivers").update(muted_until=bench.now + PASSED_KEPT)
    before = CheckResult.objects.get(name="sqlqueue.receivers")
    bench.pass_time(UNSEEN + 5 * MINUTE)
    # The first runs have no samples yet.
    for seconds in (0, 20, 60):
        bench.pass_time(seconds * SECOND)
        if seconds == 60:
            bench.samples("Sales.Priority", waiting=3)
        bench.first.run_due()
        after = CheckResult.objects.get(name="sqlqueue.receivers")
        assert (after.pk, after.failing, after.since, after.muted_until) == (before.pk, True, before.since, before.muted_until)
    assert recorded_events() == [("check_failed", "Sales.Priority")]
    QueueSample.objects.all().delete()
    for _ in range(UNSEEN // MINUTE + 1):
        bench.pass_time(MINUTE)
        bench.first.run_due()
    assert bench.failing("receivers") == {}, "workers have not seen it for long enough"


def test_muted_result_stays_muted_while_another_check_explains_it(bench: Bench) -> None:
    EndpointExpectation.objects.create(endpoint="Sales", minimum=2, changed_at=bench.now)
    instance(started_at=bench.now - PASSED_KEPT)
    bench.first.run_due()
    muted_until = bench.now + 10 * MINUTE
    CheckResult.objects.filter(name="sqlqueue.minimums").update(muted_until=muted_until)
    lost = instance(pid=1, callback_queue=None, silent=timedelta(minutes=5), started_at=bench.now - PASSED_KEPT)
    bench.pass_time(MINUTE)
    bench.first.run_due()
    lost.delete()
    bench.pass_time(MINUTE)
    bench.first.run_due()
    assert CheckResult.objects.get(name="sqlqueue.minimums", failing=True).muted_until == muted_until
    assert [each for each in recorded_events() if each[1] == "Sales"] == [("endpoint_below_minimum", "Sales")]


def test_results_of_unknown_checks_expire(bench: Bench) -> None:
    old = bench.now - timedelta(days=2)
    CheckResult.objects.create(name="payment gateway", failing=True, since=old, checked_at=old)
    CheckResult.objects.create(name="another", since=old, checked_at=bench.now - timedelta(hours=2))
    bench.first.run_due()
    assert not CheckResult.objects.filter(name="payment gateway").exists()
    assert CheckResult.objects.filter(name="another").exists()


def test_check_that_cannot_run_does_not_stop_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(snapshot: Snapshot) -> Any:
        snapshot.settings.endpoint("Sales")
        with bench.database.connection.cursor() as cursor:
            cursor.execute("SELECT nothing FROM nowhere")
        yield "", None

    monkeypatch.setitem(BUILT_IN, MOVER.name, replace(MOVER, probe=broken))
    instance(silent=timedelta(minutes=5))
    bench.first.run_due()

    assert recorded_events() == [("instance_lost", "Sales on here (4711)")]
    assert not CheckResult.objects.filter(name="sqlqueue.mover").exists()
    assert [getattr(each, "event", "") for each in caplog.records].count("check_not_run") == 1


def test_worker_runs_all_checks(queue_database: QueueDatabase, registered: Callable[..., None]) -> None:
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
def test_every_check_has_a_text_for_any_details(details: object) -> None:
    for name in (*BUILT_IN, "payment gateway"):
        assert describe_finding(name, "it", details)
        assert describe_advice(name, "it", details)
        for kind in ("check_failed", "check_passed", "instance_lost"):
            row = {**(details if isinstance(details, dict) else {}), "check": name}
            assert text_of_event(Event(kind=kind, subject="it", details=row))
