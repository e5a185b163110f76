"""The three concurrency models on real databases, and the fixed and the monitor model with running threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sqlqueue_app import handles, send_many
from sqlqueue_app.messages.errors import ConnectionLost
from sqlqueue_app.receiving.concurrency import AdaptiveReceiver, FixedReceiver, MonitorReceiver
from sqlqueue_app.receiving.receiver import Outage, Receiver
from sqlqueue_app.receiving.stopping import StopSignal
from tests.support.bench import Bench, Calls
from tests.support.receivers import Script, running
from tests.support.waiting import poll_until
from tests.support.worker_processes import address

MODELS = ["fixed", "adaptive", "monitor"]


@pytest.mark.parametrize("model", MODELS)
def test_every_model_handles_each_message_once_and_ends_when_empty(bench: Bench, calls: Calls, model: str) -> None:
    bench.configure(MAX_CONCURRENCY=4, SATELLITES={"Sales.Priority": {"MAX_CONCURRENCY": 2}})

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(message["n"])
        if message["n"] < 50:
            context.send("Test.Message", {"n": message["n"] + 1000}, to=address(bench, "Sales.Priority"))

    send_many("Test.Message", [{"n": n} for n in range(300)], to=address(bench, "Sales"))
    bench.run(model=model)
    assert sorted(calls.seen) == [*range(300), *range(1000, 1050)]
    assert bench.rows("Sales") == bench.rows("Sales.Priority") == bench.rows("error") == []


@pytest.mark.parametrize("model", MODELS)
def test_failures_are_retried_and_moved_in_every_model(bench: Bench, calls: Calls, model: str) -> None:
    bench.configure(IMMEDIATE_RETRIES=2, CONCURRENCY_MODEL=model, PEEK_DELAY=0.1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add((message["n"], context.attempt))
        raise ValueError("always")

    send_many("Test.Message", [{"n": n} for n in range(5)], to=address(bench, "Sales"))
    bench.run()
    assert sorted(calls.seen) == [(n, attempt) for n in range(5) for attempt in (1, 2, 3)]
    assert len(bench.rows("error")) == 5


def test_fixed_model_always_runs_all_its_threads() -> None:
    with running(FixedReceiver, Script(), maximum=10) as (receiver, stop):
        assert receiver.live_threads == 10
        poll_until(lambda: len(stop.waited) > 100)
        assert receiver.live_threads == 10
        assert set(stop.waited) <= {0.05, 0.1, 0.2, 0.4, 0.8, 1.0}


def test_fixed_model_starts_refused_threads_later(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def start_three(thread: threading.Thread) -> None:
        if thread.name.startswith("sqlqueue-test") and int(thread.name.rpartition("-")[2]) > 3 and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_three)
    with running(FixedReceiver, Script(), maximum=5) as (receiver, _):
        seen = [receiver.live_threads]
        for _ in range(2):
            receiver.tick()
            seen.append(receiver.live_threads)
    assert seen == [3, 3, 5]


def test_fixed_threads_retry_every_ten_seconds_in_an_outage() -> None:
    script = Script()
    with running(FixedReceiver, script, maximum=3) as (receiver, stop):
        script.away.set()
        poll_until(lambda: stop.waited.count(10.0) >= 6)
        script.away.clear()
        assert receiver.live_threads == 3


def test_monitor_starts_at_most_one_thread_per_message() -> None:
    release = threading.Event()
    script = Script(20, work=lambda: wait_for(release))
    with running(MonitorReceiver, script, maximum=4, peek_delay_seconds=1.0) as (receiver, _):
        poll_until(lambda: receiver.live_threads == 4)
        poll_until(lambda: script.messages == 16)
        release.set()
        poll_until(lambda: script.messages == 0)
        assert receiver.live_threads == 4


def test_first_empty_receive_ends_the_batch() -> None:
    script = Script(3, seen=1000)
    with running(MonitorReceiver, script, maximum=4, peek_delay_seconds=1.0) as (_, stop):
        poll_until(lambda: 1.0 in stop.waited)
    # Three messages, and at most one empty receive per thread.
    assert script.empty_polls <= 4
    assert script.peeks[0] == 1000


def test_idle_monitor_waits_the_peek_delay_without_receive_threads() -> None:
    script = Script()
    with running(MonitorReceiver, script, maximum=4, peek_delay_seconds=2.5) as (receiver, stop):
        poll_until(lambda: len(script.peeks) > 10)
        assert receiver.live_threads == 0
        assert set(stop.waited) == {2.5}


def test_message_is_received_when_last_idle_thread_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue_app.receiving.concurrency.IDLE_SECONDS", 0.05)
    script = Script(1)
    gave_up, requested_another = threading.Event(), threading.Event()

    class Slow(MonitorReceiver):
        """Keeps its finished thread alive until the monitor has requested another one in vain."""

        def _next_task(self) -> Any:
            task = super()._next_task()
            if task is None and not self._stop.is_set() and not gave_up.is_set():
                gave_up.set()
                assert requested_another.wait(60)
            return task

        def _start_thread(self, reason: str) -> bool:
            started = super()._start_thread(reason)
            if gave_up.is_set() and not requested_another.is_set():
                requested_another.set()
                poll_until(lambda: not self.live_threads or not script.messages, 60, what="the thread ends, or takes the message")
            return started

    with running(Slow, script, maximum=1, peek_delay_seconds=1.0):
        assert gave_up.wait(60)
        script.put(1)
        poll_until(lambda: script.messages == 0, what="the message is received")


def test_monitor_survives_an_outage() -> None:
    script = Script()
    script.away.set()
    with running(MonitorReceiver, script, maximum=2, peek_delay_seconds=2.5) as (_, stop):
        poll_until(lambda: stop.waited.count(1.0) >= 3)
        script.put(5)
        script.away.clear()
        poll_until(lambda: script.messages == 0)


@pytest.mark.parametrize("messages", [1, 2, 5])
def test_stop_during_hand_out_ends_the_monitor(messages: int) -> None:
    """No thread starts any more, and the only slot is taken for a message that no thread will receive."""

    class Late(MonitorReceiver):
        def _start_thread(self, reason: str) -> bool:
            self._stop.set()
            return super()._start_thread(reason)

    script = Script(messages)
    with running(Late, script, maximum=1, peek_delay_seconds=1.0) as (_, stop):
        assert StopSignal.wait(stop, 60)
    assert script.messages == messages


def wait_for(event: threading.Event) -> None:
    assert event.wait(60)


@pytest.mark.parametrize("kind", [AdaptiveReceiver, FixedReceiver, MonitorReceiver])
def test_continuing_failures_are_one_critical_error(kind: type[Receiver], caplog: pytest.LogCaptureFixture) -> None:
    script = Script()
    script.away.set()
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    more: dict[str, Any] = {"peek_delay_seconds": 1.0} if kind is MonitorReceiver else {}
    # One thread, because one of two may detect the outage after the other has detected its end.
    with running(kind, script, maximum=1, circuit_breaker_seconds=5.0, clock=clock, **more) as (_, stop):
        poll_until(lambda: now[0] > 20)
        if kind is MonitorReceiver:
            poll_until(lambda: 10.0 in stop.waited, what="the longer pause of a triggered breaker")
        script.put(3)
        script.away.clear()
        poll_until(lambda: script.messages == 0)
    events = [getattr(record, "event", None) for record in caplog.records]
    assert events.count("receive_failed") == 1
    assert events.count("critical_error") == 1


def test_poll_across_begin_or_end_of_outage_starts_no_second_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="sqlqueue")
    outage = Outage("Sales", circuit_breaker_seconds=60.0, clock=lambda: 0.0)
    slow, failing = outage.mark, outage.mark
    outage.poll_failed(ConnectionLost("gone"), failing)
    outage.poll_succeeded(slow)  # it worked, but before the other one failed
    first, late = outage.mark, outage.mark
    outage.poll_failed(ConnectionLost("gone"), first)
    outage.poll_succeeded(outage.mark)
    outage.poll_failed(ConnectionLost("gone"), late)  # it failed, but before the other one worked
    assert [record.event for record in caplog.records] == ["receive_failed", "receive_recovered"]  # type: ignore[attr-defined]
    outage.poll_failed(ConnectionLost("gone again"), outage.mark)
    assert [record.event for record in caplog.records][2:] == ["receive_failed"]  # type: ignore[attr-defined]
