"""Slow handlers run in parallel in the adaptive model, on real databases."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sqlqueue_app import handles, send, send_many
from sqlqueue_app.policies.polling import BUSY_PROBE_SECONDS
from tests.support.bench import Bench, Calls, Running
from tests.support.waiting import poll_until
from tests.support.worker_processes import address


@pytest.fixture
def slow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Without the monitor of version 2.1, which adds a thread for a slow message after 5 to 10 s."""
    if bench.database.vendor == "sqlite":
        pytest.skip("SQLite has one writer: its receives take turns")
    monkeypatch.setattr("sqlqueue_app.receiving.background.BUSY_PROBE_SECONDS", BUSY_PROBE_SECONDS)
    monkeypatch.setattr("sqlqueue_app.receiving.background.SLOW_TASK_TICK_SECONDS", 3600.0)
    return bench


@pytest.mark.parametrize("wake_up", [True, False])
def test_maximum_number_of_messages_is_handled_at_once(slow: Bench, wake_up: bool) -> None:
    slow.configure(MAX_CONCURRENCY=4, WAKE_UP=wake_up and slow.database.vendor == "postgresql")
    together = threading.Barrier(4)
    done = []

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        together.wait(60)
        done.append(message["n"])

    send_many("Test.Message", [{"n": n} for n in range(8)], to=address(slow, "Sales"))
    with Running(slow):
        poll_until(lambda: sorted(done) == list(range(8)), what="two times four messages were handled at once")


@pytest.mark.parametrize("wake_up", [True, False])
def test_quick_message_does_not_wait_for_a_slow_one(slow: Bench, calls: Calls, wake_up: bool) -> None:
    slow.configure(MAX_CONCURRENCY=2, WAKE_UP=wake_up and slow.database.vendor == "postgresql")
    in_handler, go_on = threading.Event(), threading.Event()

    @handles("Test.Slow")
    def wait(message: Any, context: Any) -> None:
        in_handler.set()
        assert go_on.wait(60)
        calls.add("slow")

    @handles("Test.Quick")
    def note(message: Any, context: Any) -> None:
        calls.add("quick")
        go_on.set()

    send("Test.Slow", {}, to=address(slow, "Sales"))
    with Running(slow):
        assert in_handler.wait(60)
        send("Test.Quick", {}, to=address(slow, "Sales"))
        poll_until(lambda: len(calls.seen) == 2, what="both are handled")
    assert calls.seen == ["quick", "slow"]


def test_busy_worker_stops_as_soon_as_its_threads_are_done(slow: Bench, calls: Calls) -> None:
    slow.configure(MAX_CONCURRENCY=2)
    busy, go_on = threading.Semaphore(0), threading.Event()

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        busy.release()
        assert go_on.wait(60)
        calls.add(message["n"])

    send_many("Test.Message", [{"n": n} for n in range(3)], to=address(slow, "Sales"))
    with Running(slow) as running:
        assert busy.acquire(timeout=60)
        assert busy.acquire(timeout=60)
        running.stop.set()
        go_on.set()
    assert sorted(calls.seen) == [0, 1]
    assert len(slow.rows("Sales")) == 1
