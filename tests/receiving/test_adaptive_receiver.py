"""The adaptive model with running threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sqlqueue_app.messages.errors import ConnectionLost
from sqlqueue_app.receiving.concurrency import AdaptiveReceiver
from sqlqueue_app.receiving.receiver import ReceiverOptions
from sqlqueue_app.receiving.waiting import EmptyQueues
from tests.support.receivers import ImpatientStop
from tests.support.waiting import done_within, poll_until


class Script:
    """Pollers that run the test's script; each poll is one call of `poll`."""

    handling = False
    received = 0
    queue = "Sales"

    def __init__(self, poll: Callable[[], bool], *, in_message: Callable[[], None] = lambda: None) -> None:
        self._poll = poll
        self._in_message = in_message
        self.closed = 0

    def __call__(self) -> Script:
        return self

    def poll(self, received: Callable[[bool], None] | None = None) -> bool:
        found = self._poll()
        if received is not None:
            received(found)
        if found:
            self._in_message()
        return found

    def peek(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1


@contextmanager
def receiver(
    poll: Callable[[], bool], *, maximum: int = 4, in_message: Callable[[], None] = lambda: None
) -> Iterator[tuple[AdaptiveReceiver, ImpatientStop, Script]]:
    stop = ImpatientStop()
    script = Script(poll, in_message=in_message)
    made = AdaptiveReceiver("Sales", ReceiverOptions(maximum=maximum, new_poller=script, stop=stop, name="sqlqueue-test"))
    try:
        yield made, stop, script
    finally:
        stop.set()
        done_within(made.join, what="the receiver ends")


def test_threads_are_added_up_to_the_maximum_and_end_at_stop() -> None:
    with receiver(lambda: True) as (made, stop, script):
        made.start()
        poll_until(lambda: made.live_threads == 4, deadline=60)
        stop.set()
        done_within(made.join, what="the receiver ends")
        assert made.live_threads == 0
        assert script.closed == 4


def test_idle_queue_keeps_one_thread_and_repeats_back_off() -> None:
    polls = []
    done = threading.Event()

    def poll() -> bool:
        polls.append(1)
        if len(polls) >= 14:
            done.set()
        return False

    with receiver(poll) as (made, stop, script):
        made.start()
        assert done.wait(60)
        stop.set()
        done_within(made.join, what="the receiver ends")
        assert script.closed == 1
    assert stop.waited[:14] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0] * 2


def test_thread_polls_last_before_it_ends() -> None:
    """A thread that ended right after its wait could consume a wake-up without polling, while the remaining thread stays asleep."""
    last: dict[int, str] = {}
    at_end: list[str] = []
    is_empty = threading.Event()

    class Stop(ImpatientStop):
        def wait(self, seconds: float | None = None) -> bool:
            last[threading.get_ident()] = "wait"
            return super().wait(seconds)

    class Noting(Script):
        def poll(self, received: Callable[[bool], None] | None = None) -> bool:
            last[threading.get_ident()] = "poll"
            return super().poll(received)

        def close(self) -> None:
            at_end.append(last[threading.get_ident()])
            super().close()

    stop, script = Stop(), Noting(lambda: not is_empty.is_set())
    made = AdaptiveReceiver("Sales", ReceiverOptions(maximum=4, new_poller=lambda: script, stop=stop, name="sqlqueue-test"))
    try:
        made.start()
        poll_until(lambda: made.live_threads == 4)
        is_empty.set()
        poll_until(lambda: made.live_threads == 1 and len(at_end) >= 3)
        assert set(at_end) == {"poll"}
    finally:
        stop.set()
        done_within(made.join, what="the receiver ends")


def test_slow_message_adds_one_thread_at_second_tick() -> None:
    release = threading.Event()
    in_poll = threading.Semaphore(0)

    def poll() -> bool:
        in_poll.release()
        release.wait(60)
        return True

    with receiver(poll) as (made, stop, _):
        made.start()
        assert in_poll.acquire(timeout=60)
        made.tick()
        assert made.live_threads == 1
        made.tick()
        assert made.live_threads == 2
        assert in_poll.acquire(timeout=60)
        for _ in range(2):
            made.tick()
        assert made.live_threads == 3  # one for the second slow thread, no second one for the first
        assert in_poll.acquire(timeout=60)
        stop.set()
        release.set()


def test_thread_is_added_when_all_are_busy_twice() -> None:
    go_on = threading.Event()
    busy = threading.Semaphore(0)

    def handle() -> None:
        busy.release()
        go_on.wait(60)

    with receiver(lambda: not go_on.is_set(), maximum=3, in_message=handle) as (made, _, _):
        made.start()
        probes = []
        for live in (1, 2, 3):
            assert busy.acquire(timeout=60)
            probes.append((made.probe(), made.live_threads == live))
            made.probe()
        # at the maximum there is nothing left to check
        assert probes == [(True, True), (True, True), (False, True)]
        assert made.live_threads == 3
        go_on.set()


def test_only_free_thread_stays_while_others_are_busy() -> None:
    go_on = threading.Event()
    busy = threading.Event()
    first = threading.Lock()
    polls: list[int] = []

    def poll() -> bool:
        if first.acquire(blocking=False):
            return True
        polls.append(threading.get_ident())
        return False

    def handle() -> None:
        busy.set()
        go_on.wait(60)

    with receiver(poll, in_message=handle) as (made, _, _):
        made.start()
        assert busy.wait(60)
        made.probe()
        assert made.probe()
        poll_until(lambda: len(polls) > 21, what="the free thread has found nothing for three rounds")
        assert made.live_threads == 2
        assert len(set(polls)) == 1
        go_on.set()
        poll_until(lambda: made.live_threads == 1, what="one of two free threads ends")


def test_only_free_thread_waits_for_database_while_others_are_busy() -> None:
    go_on = threading.Event()
    busy = threading.Event()
    first = threading.Lock()

    def poll() -> bool:
        if first.acquire(blocking=False):
            return True
        raise ConnectionLost("gone")

    def handle() -> None:
        busy.set()
        go_on.wait(60)

    with receiver(poll, in_message=handle) as (made, stop, _):
        made.start()
        assert busy.wait(60)
        made.probe()
        made.probe()
        poll_until(lambda: len(stop.waited) >= 6, what="it has tried to reach the database several times")
        assert stop.waited[:6] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
        go_on.set()


def test_outage_ends_all_threads_but_one(caplog: pytest.LogCaptureFixture) -> None:
    away = threading.Event()

    def poll() -> bool:
        if away.is_set():
            raise ConnectionLost("gone")
        return True

    with receiver(poll) as (made, stop, _):
        made.start()
        poll_until(lambda: made.live_threads == 4, deadline=60)
        away.set()
        poll_until(lambda: made.live_threads == 1, deadline=60)
        poll_until(lambda: stop.waited, what="the last one tries to reach the database")
        away.clear()
        poll_until(lambda: made.live_threads == 4, deadline=60)
    assert stop.waited[0] >= 1.0
    assert [record.event for record in caplog.records if hasattr(record, "event") and record.levelname == "WARNING"] == [
        "receive_failed"
    ]


def test_programming_error_stops_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    with receiver(lambda: bool(1 / 0)) as (made, stop, script):
        with _quiet_threads():
            made.start()
            done_within(made.join, what="the receiver ends")
        assert stop.is_set()
        assert stop.has_failed
        assert script.closed == 1
    assert "thread_died" in [getattr(record, "event", None) for record in caplog.records]


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_existing_threads_continue_when_no_thread_can_be_started(
    error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads or memory have reached a limit. The receiver tries again at the next message."""
    start = threading.Thread.start
    refused: list[str] = []

    def start_one(thread: threading.Thread) -> None:
        if thread.name.startswith("sqlqueue-test") and thread.name != "sqlqueue-test-1" and len(refused) < 3:
            refused.append(thread.name)
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with receiver(lambda: True) as (made, stop, _):
        made.start()
        poll_until(lambda: made.live_threads == 4, deadline=60, what="the maximum number is reached")
        assert not stop.has_failed
    assert len(refused) == 3
    assert [getattr(record, "event", None) for record in caplog.records].count("thread_not_started") == 1


def test_start_fails_when_first_thread_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with receiver(lambda: True) as (made, _, _):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                made.start()
        assert made.live_threads == 0


@contextmanager
def _quiet_threads() -> Iterator[None]:
    kept, threading.excepthook = threading.excepthook, lambda args: None
    try:
        yield
    finally:
        threading.excepthook = kept


def test_empty_requires_every_queue_to_be_empty_and_nothing_in_progress() -> None:
    empty = EmptyQueues(["a", "b"])
    mark = empty.poll_begins()
    assert not empty.poll_ends("a", mark, empty=True)
    mark = empty.poll_begins()
    empty.message_begins()
    assert not empty.poll_ends("b", mark, empty=False)
    overlapping = empty.poll_begins()
    empty.message_ends()
    assert not empty.poll_ends("a", overlapping, empty=True)
    assert not empty.poll_ends("a", empty.poll_begins(), empty=True)
    first, second = empty.poll_begins(), empty.poll_begins()
    assert not empty.poll_ends("b", first, empty=True)  # the other poll may just have received a message
    assert empty.poll_ends("a", second, empty=True)  # it has received none


def test_received_or_failed_poll_invalidates_earlier_empty_polls() -> None:
    empty = EmptyQueues(["a", "b"])
    first, second = empty.poll_begins(), empty.poll_begins()
    assert not empty.poll_ends("a", first, empty=True)
    empty.message_begins()
    empty.message_ends()
    assert not empty.poll_ends("b", second, empty=False)
    assert not empty.poll_ends("b", empty.poll_begins(), empty=True)  # the handler may have sent to "a"
    first, second = empty.poll_begins(), empty.poll_begins()
    assert not empty.poll_ends("a", first, empty=True)
    assert not empty.poll_ends("a", second, empty=False)  # it held a row of "a", which is back in the queue
    assert not empty.poll_ends("b", empty.poll_begins(), empty=True)
    assert empty.poll_ends("a", empty.poll_begins(), empty=True)
