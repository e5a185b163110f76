"""Expired messages are deleted in batches while a worker runs, and all messages at its start if the settings require it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test.utils import CaptureQueriesContext

from sqlqueue_app import handles, pause, send_many
from sqlqueue_app.conf import get_settings
from sqlqueue_app.receiving import instances
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from tests.support.bench import Bench, Calls, Running
from tests.support.filling import message
from tests.support.waiting import poll_until
from tests.support.worker_processes import address
from tests.worker.instances import bench_threads, nothing_happens, states

EXPIRED, ALIVE = -60_000, 3_600_000
SATELLITES: dict[str, Any] = {"Sales.Priority": {}}


def put(bench: Bench, queue: str, *, expired: int, alive: int) -> None:
    bench.table(queue).send(
        [message(lifetime_ms=EXPIRED) for _ in range(expired)] + [message(lifetime_ms=ALIVE) for _ in range(alive)]
    )


def paused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Running:
    """A worker that receives nothing: messages that vanish from its queues were purged."""
    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", 0.1)
    return Running(bench)


def until_it_receives_nothing(bench: Bench) -> None:
    poll_until(lambda: states(bench) == ["alive"], what="a worker")
    pause("Sales")
    poll_until(lambda: states(bench) == ["paused"] and not bench_threads(bench), what="the worker has paused")


def test_worker_purges_expired_messages_of_all_its_queues(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    bench.configure(PURGE_EXPIRED_EVERY=0.1, PURGE_EXPIRED_BATCH=2, SATELLITES=SATELLITES)
    with paused(bench, monkeypatch):
        until_it_receives_nothing(bench)
        for queue in ("Sales", "Sales.Priority", "error"):
            put(bench, queue, expired=5, alive=2)
        poll_until(lambda: [len(bench.rows(queue)) for queue in ("Sales", "Sales.Priority")] == [2, 2], what="the purge")
        assert len(bench.rows("error")) == 7, "expired failed messages stay for an operator"
    assert "expired_purged" in events()


def test_zero_disables_purging(bench: Bench, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]) -> None:
    bench.configure(PURGE_EXPIRED_EVERY=0)
    endpoint = ReceivingEndpoint(get_settings(), "Sales")
    assert endpoint.purge_jobs(endpoint.receiving_queues(None)) == []
    with paused(bench, monkeypatch):
        until_it_receives_nothing(bench)
        put(bench, "Sales", expired=3, alive=0)
        assert nothing_happens(lambda: len(bench.rows("Sales")))
    assert "expired_purged" not in events()


def test_purge_runs_in_batches_and_logs_the_total(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="sqlqueue")
    bench.configure(PURGE_EXPIRED_EVERY=timedelta(minutes=7), PURGE_EXPIRED_BATCH=2, SATELLITES=SATELLITES)
    endpoint = ReceivingEndpoint(get_settings(), "Sales")
    jobs = endpoint.purge_jobs(endpoint.receiving_queues("Sales.here"))
    assert [(job.name, job.every_seconds) for job in jobs] == [
        (f"purge expired of {queue}", 420) for queue in ("Sales", "Sales.Priority", "Sales.here")
    ]
    put(bench, "Sales", expired=5, alive=1)
    with CaptureQueriesContext(bench.database.connection) as statements:
        jobs[0].call()
    assert sum("DELETE" in each["sql"] for each in statements) == 3
    assert len(bench.rows("Sales")) == 1
    assert [record.message for record in caplog.records if getattr(record, "event", "") == "expired_purged"] == [
        "5 expired messages purged from Sales"
    ]


@pytest.mark.parametrize("purged", [False, True])
def test_setting_purges_all_messages_at_start(bench: Bench, calls: Calls, events: Callable[[], list[str]], purged: bool) -> None:
    bench.configure(PURGE_ON_STARTUP=purged, SATELLITES=SATELLITES)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])

    for queue in ("Sales", "Sales.Priority"):
        send_many("Test.Message", [{"n": 1}, {"n": 2}], to=address(bench, queue))
    put(bench, "error", expired=0, alive=1)
    bench.run()
    assert calls.seen.count(1) == (0 if purged else 2)
    assert [len(bench.rows(queue)) for queue in ("Sales", "Sales.Priority", "error")] == [0, 0, 1]
    assert ("queue_purged" in events()) is purged
