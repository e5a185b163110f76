"""Receivers in threads of the test, without a database: a script plays the queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlqueue_app.messages.errors import ConnectionLost
from sqlqueue_app.receiving.concurrency import AdaptiveReceiver, MonitorReceiver
from sqlqueue_app.receiving.receiver import Receiver, ReceiverOptions
from sqlqueue_app.receiving.stopping import StopSignal
from tests.support.waiting import done_within, poll_until


class ImpatientStop(StopSignal):
    """A stop signal whose waits return immediately and are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, seconds: float | None = None) -> bool:
        if seconds is None:
            return super().wait()
        self.waited.append(seconds)
        return self.is_set()


class Script:
    """A queue in memory: `peek` counts the messages, `poll` receives one."""

    handling = False
    received = 0
    queue = "Sales"

    def __init__(self, messages: int = 0, *, seen: int | None = None, work: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()
        self.messages = messages
        self.seen = seen
        self.work = work
        self.peeks: list[int] = []
        self.empty_polls = 0
        self.open: set[int] = set()
        self.away = threading.Event()

    def __call__(self) -> Script:
        return self

    def put(self, messages: int) -> None:
        with self._lock:
            self.messages += messages

    def peek(self) -> int:
        if self.away.is_set():
            raise ConnectionLost("gone")
        with self._lock:
            shown = self.messages if self.seen is None or not self.messages else self.seen
            self.peeks.append(shown)
            return shown

    def poll(self, received: Callable[[bool], None] | None = None) -> bool:
        if self.away.is_set():
            raise ConnectionLost("gone")
        with self._lock:
            found = self.messages > 0
            self.messages -= found
            self.empty_polls += not found
        if received is not None:
            received(found)
        if found:
            self.work()
        return found

    def close(self) -> None:
        self.open.discard(threading.get_ident())


@contextmanager
def running(
    kind: type[Receiver],
    script: Script,
    *,
    maximum: int,
    circuit_breaker_seconds: float = 30.0,
    clock: Callable[[], float] = time.monotonic,
    **more: Any,
) -> Iterator[tuple[Receiver, ImpatientStop]]:
    stop = ImpatientStop()
    options = ReceiverOptions(
        maximum=maximum,
        new_poller=script,
        stop=stop,
        name="sqlqueue-test",
        circuit_breaker_seconds=circuit_breaker_seconds,
        clock=clock,
    )
    receiver = kind("Sales", options, **more)
    receiver.start()
    try:
        yield receiver, stop
    finally:
        stop.set()
        done_within(receiver.join, what="the receiver ends")
        assert receiver.live_threads == 0


ENDLESS = 10**9


class Handlers:
    """Handlers that block until they are released, with the number of those that run concurrently."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._go_on = threading.Semaphore(0)
        self._all = threading.Event()
        self.busy = 0
        self.most = 0
        self.finished = 0
        self.let_go = 0

    def work(self) -> None:
        with self._lock:
            self.busy += 1
            self.most = max(self.most, self.busy)
        while not self._all.is_set() and not self._go_on.acquire(timeout=0.05):
            pass
        with self._lock:
            self.busy -= 1
            self.finished += 1

    @property
    def at_rest(self) -> bool:
        """Whether all released messages have finished; otherwise the numbers may still change."""
        return self.finished == self.let_go

    def finish(self, messages: int) -> None:
        self.let_go += messages
        self._go_on.release(messages)

    def finish_all(self) -> None:
        self._all.set()


def more(kind: type[Receiver]) -> dict[str, Any]:
    return {"peek_delay_seconds": 1.0} if kind is MonitorReceiver else {}


def settled(handlers: Handlers, receiver: Receiver, number: int) -> Callable[[], bool]:
    return lambda: handlers.at_rest and handlers.busy == number and receiver.live_threads == number


def ramp_up(handlers: Handlers, receiver: Receiver, number: int) -> None:
    """Wait until `number` messages are handled concurrently; the adaptive model needs some successes first."""

    def reached() -> bool:
        if isinstance(receiver, AdaptiveReceiver) and handlers.at_rest and handlers.busy < number:
            handlers.finish(1)
        return settled(handlers, receiver, number)()

    poll_until(reached, deadline=60, what=f"{number} messages are handled at once")
