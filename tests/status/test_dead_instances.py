"""Killed processes: replaced ones are no problem, and all their rows expire."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from sqlqueue_app.models import Instance
from sqlqueue_app.receiving import instances
from sqlqueue_app.receiving.instances import forget_gone
from sqlqueue_app.status.instances import read_instances
from tests.support.bench import Bench, Running
from tests.support.waiting import poll_until


def process(bench: Bench, pid: int, *, started: float, last_heartbeat: float, endpoint: str = "Sales") -> None:
    """A row of an instance; the times are seconds ago."""
    now = timezone.now()
    Instance.objects.using(bench.database.alias).create(
        endpoint=endpoint,
        name="here",
        host="here",
        pid=pid,
        started_at=now - timedelta(seconds=started),
        heartbeat_at=now - timedelta(seconds=last_heartbeat),
        concurrency=1,
        threads={endpoint: 1},
    )


def replaced(bench: Bench) -> set[int]:
    return {each.pid for each in read_instances()[0] if each.replaced}


def pids(bench: Bench) -> set[int]:
    return set(Instance.objects.using(bench.database.alias).values_list("pid", flat=True))


def test_process_started_later_replaces_a_dead_one(bench: Bench) -> None:
    bench.configure()
    process(bench, 1, started=1000, last_heartbeat=60)
    assert replaced(bench) == set()
    process(bench, 2, started=50, last_heartbeat=1)
    assert replaced(bench) == {1}


@pytest.mark.parametrize("started", [70, 1000])
def test_process_that_ran_concurrently_is_no_successor(bench: Bench, started: float) -> None:
    bench.configure()
    process(bench, 1, started=1000, last_heartbeat=60)
    process(bench, 2, started=started, last_heartbeat=1)
    assert replaced(bench) == set()


def test_each_dead_process_needs_a_successor_of_its_own_endpoint(bench: Bench) -> None:
    bench.configure()
    process(bench, 1, started=1000, last_heartbeat=100)
    process(bench, 2, started=1000, last_heartbeat=60)
    process(bench, 3, started=30, last_heartbeat=1)
    process(bench, 4, started=30, last_heartbeat=1, endpoint="Billing")
    assert replaced(bench) == {1}
    process(bench, 5, started=20, last_heartbeat=1)
    assert replaced(bench) == {1, 2}


def test_rows_of_long_dead_processes_are_deleted(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.configure()
    process(bench, 1, started=10_000, last_heartbeat=601)
    process(bench, 2, started=10_000, last_heartbeat=599)
    process(bench, 3, started=10_000, last_heartbeat=1)
    assert [each.pid for each in read_instances()[0]] == [2, 3], "without a worker the row stays and is ignored"
    assert forget_gone() == 1
    assert pids(bench) == {2, 3}
    assert "process 1 of Sales on here ended without signing off, its row was deleted" in caplog.text
    assert forget_gone() == 0


def test_any_worker_deletes_rows_after_the_configured_expiry(bench: Bench) -> None:
    bench.configure()
    bench.database.configure(**{**bench.database.settings.SQLQUEUE, "INSTANCE_EXPIRY": 100})
    process(bench, 1, started=1000, last_heartbeat=200, endpoint="Other")
    process(bench, 2, started=1000, last_heartbeat=80, endpoint="Other")
    with Running(bench):
        poll_until(lambda: 1 not in pids(bench), what="the row of the dead process is deleted")
        assert 2 in pids(bench)


def test_worker_without_a_row_registers_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other workers delete the row while the machine is suspended."""
    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", 0.1)
    bench.configure()
    rows = Instance.objects.using(bench.database.alias)
    with Running(bench):
        poll_until(lambda: rows.exclude(threads={}).exists(), what="the worker has reported its threads")
        before = rows.get().pk
        rows.all().delete()
        poll_until(lambda: rows.exclude(threads={}).exists(), what="the worker has a new row")
        assert rows.get().pk != before
    assert not rows.exists(), "an orderly end leaves no row"
    assert [getattr(record, "event", "") for record in caplog.records].count("lease_lost") == 1
