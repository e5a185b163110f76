"""The flag that ends idle waits, and the receivers of each model that wait on it; no database."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sqlqueue_app.messages.errors import ConnectionLost
from sqlqueue_app.policies import polling
from sqlqueue_app.policies.polling import BURST_WAIT_SECONDS, IDLE_WAIT_SECONDS, QUIET_SECONDS
from sqlqueue_app.receiving.concurrency import AdaptiveReceiver, FixedReceiver, MonitorReceiver
from sqlqueue_app.receiving.receiver import Receiver, ReceiverOptions
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.waiting import WakeUp, Watch
from tests.support.waiting import done_within, poll_until

NEVER = 3600.0
KINDS = [FixedReceiver, AdaptiveReceiver, MonitorReceiver]


def flag(stop: StopSignal | None = None, *, covered: bool = True, kind: type[WakeUp] = WakeUp) -> WakeUp:
    made = kind("Sales", '"public"."Sales"', stop or StopSignal(), idle_wait_seconds=NEVER)
    made.push_enabled = covered
    return made


class Waiting:
    """Threads that each wait once."""

    def __init__(self, count: int, wait: Callable[[], None]) -> None:
        self.ended: deque[int] = deque()
        self.threads = [threading.Thread(target=self._run, args=(number, wait)) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def _run(self, number: int, wait: Callable[[], None]) -> None:
        wait()
        self.ended.append(number)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


def test_earlier_wake_up_ends_the_wait() -> None:
    wake_up = flag()
    wake_up.wake()
    wake_up.wait(NEVER)
    wake_up.wake()
    wake_up.idle_wait(NEVER)


def test_wake_up_is_consumed_once() -> None:
    wake_up = flag()
    wake_up.wake()
    wake_up.wake()
    wake_up.wait(NEVER)
    wake_up.wait(0.001)  # ends by itself


def test_notification_wakes_one_thread_and_each_find_another() -> None:
    stop = StopSignal()
    wake_up = flag(stop)
    waiting = Waiting(4, lambda: wake_up.idle_wait(1.0))
    poll_until(lambda: wake_up.waiting == 4)
    wake_up.wake()
    poll_until(lambda: len(waiting.ended) == 1)
    watch = Watch(wake_up)
    received = watch.begin()
    assert received is not None
    received(False)
    assert (watch.was_empty, wake_up.waiting) == (True, 3)
    received(True)
    assert not watch.was_empty
    poll_until(lambda: len(waiting.ended) == 2)
    assert wake_up.waiting == 2
    stop.set()
    waiting.join()


def test_all_threads_wake_after_a_gap() -> None:
    wake_up = flag()
    waiting = Waiting(5, lambda: wake_up.idle_wait(1.0))
    poll_until(lambda: wake_up.waiting == 5)
    wake_up.wake_all()
    waiting.join()


def test_gap_during_polls_causes_one_more_poll() -> None:
    wake_up = flag()
    wake_up.wake_all()
    wake_up.wait(NEVER)


@pytest.mark.parametrize("covered", [True, False])
def test_stop_ends_every_wait_before_and_after(covered: bool) -> None:
    stop = StopSignal()
    wake_up = flag(stop, covered=covered)
    waiting = Waiting(3, lambda: wake_up.idle_wait(NEVER))
    poll_until(lambda: wake_up.waiting == 3)
    stop.set()
    waiting.join()
    wake_up.wait(NEVER)
    wake_up.idle_wait(NEVER)
    flag(stop).idle_wait(NEVER)


def test_stop_calls_every_subscriber() -> None:
    stop = StopSignal()
    calls: list[str] = []
    stop.subscribe(lambda: calls.append("before"))
    stop.set()
    stop.subscribe(lambda: calls.append("after"))
    assert calls == ["before", "after"]


class Recording(WakeUp):
    """Waits end at once and are recorded: the clock of these tests."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.waited: list[float | None] = []

    def _wait(self, seconds: float | None) -> None:
        self.waited.append(seconds)
        super()._wait(0.0)


def test_idle_wait_without_trigger_is_a_plain_wait() -> None:
    wake_up = flag(covered=False, kind=Recording)
    assert isinstance(wake_up, Recording)
    wake_up.idle_wait(0.4)
    wake_up.push_enabled = True
    wake_up.idle_wait(0.4)
    assert wake_up.waited == [0.4, NEVER]


def begin_burst(wake_up: WakeUp) -> None:
    """Disable push after an idle wait, as the listener does, while messages are found."""
    wake_up.push_enabled = True
    wake_up.wake()
    wake_up.idle_wait(NEVER)
    wake_up.push_enabled = False


def test_burst_shortens_idle_waits_until_polls_find_nothing() -> None:
    now = [0.0]
    wake_up = Recording("Sales", '"public"."Sales"', StopSignal(), clock=lambda: now[0])
    begin_burst(wake_up)
    del wake_up.waited[:]
    for found in (1, 100, 1):
        now[0] += 0.01
        for _ in range(found):
            wake_up.polled(True)
            wake_up.wake()
        wake_up.idle_wait(0.4)
    assert wake_up.waited == [BURST_WAIT_SECONDS, QUIET_SECONDS, BURST_WAIT_SECONDS]
    wake_up.idle_wait(0.001)
    wake_up.wait(0.4)
    assert wake_up.waited[3:] == [0.001, 0.4]
    for _ in range(2):
        wake_up.polled(False)
        now[0] += QUIET_SECONDS
    wake_up.idle_wait(0.4)
    assert wake_up.waited[5:] == [0.4]


@pytest.mark.parametrize("in_burst", [False, True])
def test_one_resting_thread_keeps_the_time(in_burst: bool) -> None:
    seen: list[float | None] = []

    class RecordingTimes(WakeUp):
        def _wait(self, seconds: float | None) -> None:
            seen.append(seconds)
            super()._wait(seconds and NEVER)

    stop = StopSignal()
    wake_up = RecordingTimes("Sales", '"public"."Sales"', stop, idle_wait_seconds=NEVER, clock=lambda: 0.0)
    wake_up.push_enabled = True
    if in_burst:
        begin_burst(wake_up)
        del seen[:]
    waiting = Waiting(4, lambda: wake_up.idle_wait(1.0))
    poll_until(lambda: wake_up.waiting == 4)
    expected: list[float | None] = [QUIET_SECONDS, 1.0, 1.0, 1.0] if in_burst else [NEVER, None, None, None]
    assert sorted(seen, key=str) == expected
    stop.set()
    waiting.join()
    stop.set()


def test_threads_without_timeout_miss_no_message() -> None:
    """Four consumers wait without a timeout for two producers: each message that is announced after its insert is found."""
    stop = StopSignal()
    wake_up = flag(stop)
    queue: deque[int] = deque()
    found: deque[int] = deque()
    total = 20_000
    emptied = threading.Event()

    def consume() -> None:
        watch = Watch(wake_up)
        while not stop.is_set():
            received = watch.begin()
            assert received is not None
            try:
                number = queue.popleft()
            except IndexError:
                emptied.set()
                received(False)
                wake_up.idle_wait(1.0)
                continue
            received(True)
            found.append(number)

    def produce(first: int) -> None:
        for number in range(first, total, 2):
            emptied.clear()
            queue.append(number)
            wake_up.wake()
            if number % 50 < 2:
                poll_until(lambda: not queue or (emptied.wait(0.05) and not queue), 60)  # idle again and again

    consumers = [threading.Thread(target=consume) for _ in range(4)]
    producers = [threading.Thread(target=produce, args=(first,)) for first in (0, 1)]
    for thread in [*consumers, *producers]:
        thread.start()
    for thread in producers:
        thread.join(120)
    try:
        poll_until(lambda: len(found) == total, 60)
    finally:
        stop.set()
        for thread in consumers:
            thread.join(60)
    assert sorted(found) == list(range(total))


class Queue:
    """An in-memory queue for one receiver."""

    handling = False
    received = 0
    queue = "Sales"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages = 0
        self.handled = 0
        self.polls = 0
        self.work: Callable[[], None] = lambda: None
        self.knows = True
        self.cut_sessions = 0

    def __call__(self) -> Queue:
        return self

    def peek(self) -> int:
        with self._lock:
            self.polls += 1
            return self.messages

    def poll(self, received: Callable[[bool], None] | None = None) -> bool:
        with self._lock:
            self.polls += 1
            if self.cut_sessions:
                self.cut_sessions -= 1
                raise ConnectionLost("the session was cut")
            found = self.messages > 0
            self.messages -= found
        if received is not None and self.knows:
            received(found)
        if found:
            self.work()
            with self._lock:
                self.handled += 1
        return found

    def close(self) -> None:
        return None


@contextmanager
def running(kind: type[Receiver], queue: Queue, *, wake_up: WakeUp, stop: StopSignal, maximum: int = 4) -> Iterator[Receiver]:
    more: dict[str, Any] = {"peek_delay_seconds": 2.5} if kind is MonitorReceiver else {}
    options = ReceiverOptions(maximum=maximum, new_poller=queue, stop=stop, name="sqlqueue-test", wake_up=wake_up)
    made = kind("Sales", options, **more)
    made.start()
    try:
        yield made
    finally:
        stop.set()
        done_within(made.join, what="the receiver ends")


@pytest.mark.parametrize("kind", KINDS)
def test_resting_receiver_finds_each_message_by_its_wake_up(kind: type[Receiver]) -> None:
    stop, queue = StopSignal(), Queue()
    wake_up = flag(stop)
    with running(kind, queue, wake_up=wake_up, stop=stop):
        at_rest = 4 if kind is FixedReceiver else 1
        for number in range(1, 6):
            poll_until(lambda: wake_up.waiting == at_rest)
            with queue._lock:
                queue.messages += 1
            wake_up.wake()
            poll_until(lambda expected=number: queue.handled == expected)  # type: ignore[misc]


def test_idle_thread_takes_the_message_of_those_whose_sessions_were_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "FIXED_FAULT_PAUSE_SECONDS", NEVER)
    stop, queue = StopSignal(), Queue()
    wake_up = flag(stop)
    with running(FixedReceiver, queue, wake_up=wake_up, stop=stop):
        poll_until(lambda: wake_up.waiting == 4)
        queue.messages, queue.cut_sessions = 1, 3
        wake_up.wake()
        poll_until(lambda: queue.handled == 1)


def test_idle_thread_takes_the_remaining_messages() -> None:
    stop, queue = StopSignal(), Queue()
    wake_up = flag(stop)
    in_work, release = threading.Semaphore(0), threading.Event()

    def work() -> None:
        in_work.release()
        assert release.wait(60)

    with running(FixedReceiver, queue, wake_up=wake_up, stop=stop):
        poll_until(lambda: wake_up.waiting == 4)
        queue.work = work
        with queue._lock:
            queue.messages += 3
        wake_up.wake()  # one notification, as for one transaction
        for _ in range(3):
            assert in_work.acquire(timeout=60)
        poll_until(lambda: wake_up.waiting == 1)
        release.set()
        poll_until(lambda: queue.handled == 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("covered", [True, False])
def test_push_replaces_the_poll_intervals_of_the_model(kind: type[Receiver], covered: bool) -> None:
    stop, queue = StopSignal(), Queue()
    wake_up = Recording("Sales", '"public"."Sales"', stop)
    wake_up.push_enabled = covered
    with running(kind, queue, wake_up=wake_up, stop=stop, maximum=1):
        poll_until(lambda: len(wake_up.waited) > 20)
    model = {
        FixedReceiver: [0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 9],
        AdaptiveReceiver: [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0] * 2,
        MonitorReceiver: [2.5] * 14,
    }
    assert wake_up.waited[:14] == ([IDLE_WAIT_SECONDS] * 14 if covered else model[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_burst_shortens_the_poll_intervals_of_the_model(kind: type[Receiver]) -> None:
    stop = StopSignal()
    # Its clock stands still, so the burst does not end.
    wake_up = Recording("Sales", '"public"."Sales"', stop, clock=lambda: 0.0)
    begin_burst(wake_up)
    del wake_up.waited[:]
    with running(kind, Queue(), wake_up=wake_up, stop=stop, maximum=1):
        poll_until(lambda: len(wake_up.waited) > 20)
    # The message before the burst counts for the first wait.
    assert wake_up.waited[:14] == [QUIET_SECONDS, *[BURST_WAIT_SECONDS] * 13]


def test_adaptive_threads_end_only_after_a_burst() -> None:
    """Each new thread opens a connection, so a burst with short gaps must not end and start them again and again."""
    now = [0.0]
    stop, queue = StopSignal(), Queue()
    wake_up = Recording("Sales", '"public"."Sales"', stop, clock=lambda: now[0])
    begin_burst(wake_up)
    with running(AdaptiveReceiver, queue, wake_up=wake_up, stop=stop) as receiver:
        with queue._lock:
            queue.messages += 5000
        poll_until(lambda: queue.handled == 5000 and receiver.live_threads == 4, 60)
        polls = queue.polls
        poll_until(lambda: queue.polls > polls + 200)
        assert receiver.live_threads == 4
        now[0] = QUIET_SECONDS
        poll_until(lambda: receiver.live_threads == 1)


@pytest.mark.parametrize("kind", [FixedReceiver, AdaptiveReceiver])
def test_inconclusive_poll_does_not_cause_rest(kind: type[Receiver]) -> None:
    """The receive gave way to another session, or dropped a row: there may be more messages."""
    stop, queue = StopSignal(), Queue()
    queue.knows = False
    wake_up = Recording("Sales", '"public"."Sales"', stop)
    wake_up.push_enabled = True
    with running(kind, queue, wake_up=wake_up, stop=stop, maximum=1):
        poll_until(lambda: len(wake_up.waited) > 5)
    assert wake_up.waited[:5] == [0.05, 0.1, 0.2, 0.4, 0.8]


def test_long_rest_is_not_a_slow_message() -> None:
    stop, queue = StopSignal(), Queue()
    wake_up = flag(stop)
    with running(AdaptiveReceiver, queue, wake_up=wake_up, stop=stop) as receiver:
        poll_until(lambda: wake_up.waiting == 1)
        for _ in range(4):
            receiver.tick()
        assert receiver.live_threads == 1


def test_busy_adaptive_queue_returns_to_rest_with_one_thread() -> None:
    stop, queue = StopSignal(), Queue()
    wake_up = flag(stop)
    with running(AdaptiveReceiver, queue, wake_up=wake_up, stop=stop) as receiver:
        poll_until(lambda: wake_up.waiting == 1)
        with queue._lock:
            queue.messages += 5000
        wake_up.wake()
        poll_until(lambda: queue.handled == 5000, 60)
        # The thread is at rest, not in one of the short waits between several threads, which end by themselves.
        poll_until(lambda: receiver.live_threads == 1 and wake_up._keeps_time and wake_up.waiting == 1, 60)
        polls = queue.polls
        wake_up.wake()
        poll_until(lambda: queue.polls == polls + 1)
