"""Instances: the lease of a callback queue, taken, refused, taken over, released.

See docs/internals/decisions.md#callback-queues.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.models import CallbackQueue, Instance, QueueSample
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.receiving.instances import InstanceLease, lease_instance
from sqlqueue_app.status import samples
from tests.support.bench import Bench, Calls, Running
from tests.support.clocks import DatabaseClock
from tests.support.waiting import poll_until, run_in_threads


def lease(bench: Bench, **endpoint: Any) -> InstanceLease:
    bench.configure(**{"CALLBACKS": True, "INSTANCE": "here", "CALLBACK_QUEUES": 2, **endpoint})
    return take(bench)


def take(bench: Bench) -> InstanceLease:
    return lease_instance(
        get_settings().endpoint("Sales"),
        alias=bench.database.alias,
        concurrency=4,
        exists=lambda name: bench.table(name).exists(),
        make=ReceivingEndpoint(get_settings(), "Sales").create_callback_queue,
    )


def rows(bench: Bench) -> list[Instance]:
    return list(Instance.objects.using(bench.database.alias).order_by("callback_queue"))


def test_each_process_leases_its_own_queue_and_releases_it(bench: Bench) -> None:
    first = lease(bench)
    second = take(bench)
    assert [first.callback_queue, second.callback_queue] == ["Sales.here", "Sales.here-2"]
    first.release()
    assert take(bench).callback_queue == "Sales.here"


def test_process_creates_a_queue_when_none_is_free(bench: Bench) -> None:
    """One for each process killed in a short time, regardless of CALLBACK_QUEUES."""
    bench.configure(CALLBACKS="on_request", INSTANCE="here", CALLBACK_QUEUES=2)
    assert not bench.table("Sales.here").exists()
    leases = [take(bench) for _ in range(12)]
    assert [each.callback_queue for each in leases] == ["Sales.here", *(f"Sales.here-{number}" for number in range(2, 13))]
    assert bench.table("Sales.here-12").exists()
    assert set(CallbackQueue.objects.using(bench.database.alias).values_list("endpoint", "name", "made")) == {
        ("Sales", "here", True)
    }


def test_lease_of_dead_process_is_taken_over(bench: Bench) -> None:
    dead = lease(bench, CALLBACK_QUEUES=1)
    silent = timezone.now() - timedelta(seconds=41)
    Instance.objects.using(bench.database.alias).update(heartbeat_at=silent, pid=os.getpid() + 1)
    assert take(bench).callback_queue == "Sales.here"
    assert len(rows(bench)) == 1
    assert InstanceLease(dead.alias, dead.row_id, "Sales", "Sales.here").heartbeat({"Sales": 1})


def test_only_one_process_takes_over_a_lease(bench: Bench) -> None:
    """The database wrote its heartbeat, on SQLite as text in its own format."""
    lease(bench, CALLBACK_QUEUES=1)
    server = DatabaseClock(bench.database)
    with server.running():
        server.jump(timedelta(seconds=39))
        assert take(bench).callback_queue == "Sales.here-2"
        server.jump(timedelta(seconds=60))
        assert take(bench).callback_queue == "Sales.here"
        assert take(bench).callback_queue == "Sales.here-2"


def test_heartbeat_stores_threads_and_detects_a_take_over(bench: Bench) -> None:
    held = lease(bench)
    assert held.heartbeat({"Sales": 3})
    (row,) = rows(bench)
    assert (row.threads, row.pid, row.concurrency, row.endpoint, row.name) == ({"Sales": 3}, os.getpid(), 4, "Sales", "here")
    assert timezone.now() - row.heartbeat_at < timedelta(minutes=1)
    Instance.objects.using(bench.database.alias).update(pid=os.getpid() + 1)
    assert not held.heartbeat({})


def test_hosts_with_the_same_instance_name_share_no_queue(bench: Bench) -> None:
    lease(bench)
    Instance.objects.using(bench.database.alias).update(host="elsewhere")
    assert take(bench).callback_queue == "Sales.here-2"


def test_too_long_name_is_refused(postgresql_bench: Bench) -> None:
    with pytest.raises(AddressError, match="66 bytes"):
        lease(postgresql_bench, CALLBACKS="on_request", INSTANCE="m" * 60)
    assert rows(postgresql_bench) == []


@pytest.mark.parametrize("callbacks", ["on_request", True])
def test_ten_threads_lease_ten_queues_at_once(postgresql_bench: Bench, callbacks: Any) -> None:
    bench = postgresql_bench
    bench.configure(CALLBACKS=callbacks, INSTANCE="here")
    taken: list[str | None] = []
    together = threading.Barrier(10)

    def work() -> None:
        together.wait(60)
        try:
            taken.append(take(bench).callback_queue)
        finally:
            connections.close_all()

    run_in_threads(work, 10)
    assert sorted(str(name) for name in taken) == sorted(["Sales.here", *(f"Sales.here-{n}" for n in range(2, 11))])


def test_worker_registers_receives_callbacks_and_unregisters(bench: Bench, counting: object, calls: Calls) -> None:
    bench.configure(CALLBACKS=True, INSTANCE="here", CALLBACK_QUEUES=1, SATELLITES={"Sales.Priority": {"MAX_CONCURRENCY": 1}})
    with Running(bench):
        poll_until(lambda: any(row.threads.get("Sales.here") for row in rows(bench)), deadline=60, what="a heartbeat")
        for queue in ("Sales", "Sales.here", "Sales.Priority"):
            bench.put('{"NServiceBus.EnclosedMessageTypes":"Test.Message"}', b"{}", queue=queue)
        poll_until(lambda: len(calls.seen) == 3, deadline=60)
        (row,) = rows(bench)
        assert row.callback_queue == "Sales.here"
    assert rows(bench) == []


def test_workers_take_samples_of_their_queues(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "SAMPLE_SECONDS", 0.1)
    bench.configure()
    with Running(bench), Running(bench):
        taken = QueueSample.objects.using(bench.database.alias)
        poll_until(lambda: taken.count() >= 3, deadline=60, what="the first samples")
        assert {"Sales", "error", "Sales.Delayed"} == set(taken.values_list("queue", flat=True))
