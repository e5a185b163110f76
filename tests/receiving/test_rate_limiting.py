"""RATE_LIMIT_AFTER: after this number of consecutive failures, one message at a time until one succeeds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.receiving import receiver
from sqlqueue_app.receiving.stopping import StopSignal
from tests.support.bench import Bench
from tests.support.waiting import done_within


class Together:
    """Counts concurrent handlers and their maximum."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self.now -= 1


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "WAIT_SECONDS", 0.0)


def test_consecutive_failures_slow_the_queue_until_a_success(bench: Bench, events: Callable[[], list[str]]) -> None:
    # The adaptive model begins with one thread and adds more after six messages: the limit starts before.
    bench.configure(RATE_LIMIT_AFTER=3, MAX_CONCURRENCY=4, CONCURRENCY_MODEL="adaptive")
    failing = 20
    together = Together()

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        with together:
            if message["fails"]:
                raise LookupError("again")

    for number in range(failing + 1):
        bench.put_message_of(number, "Test.Message", {"fails": number < failing})
    assert bench.run() == failing + 1

    assert len(bench.rows("error")) == failing
    logged = [event for event in events() if event in ("rate_limit_begins", "rate_limit_ends", "moved_to_error_queue")]
    assert logged.count("moved_to_error_queue") == failing
    assert [event for event in logged if event != "moved_to_error_queue"] == ["rate_limit_begins", "rate_limit_ends"]
    # The failure is counted before the message is moved.
    assert logged.index("rate_limit_begins") == 2
    assert together.most == 1


def test_stop_does_not_wait_for_the_pause(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "WAIT_SECONDS", 3600.0)
    bench.configure(RATE_LIMIT_AFTER=1, MAX_CONCURRENCY=2)
    stop = StopSignal()
    reached = threading.Event()

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        reached.set()
        raise LookupError("again")

    for number in range(3):
        bench.put_message_of(number, "Test.Message")

    def stop_when_reached() -> None:
        assert reached.wait(60)
        stop.set()

    stopper = threading.Thread(target=stop_when_reached)
    stopper.start()
    done_within(lambda: bench.run(stop, until_empty=False), what="the worker ends")
    stopper.join(60)
