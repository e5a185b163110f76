"""SLOW_HANDLER: a handler that exceeds this number of seconds is logged with its stack, once per call."""

from __future__ import annotations

import gc
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.receiving.handlers import Handler
from sqlqueue_app.receiving.measures import CallSlot, SlowHandlers
from tests.support.bench import Bench, Calls
from tests.support.waiting import poll_until


def handler_in_trouble(message: Any, context: Any) -> None:
    """A handler that these tests never call."""


HANDLER = Handler("Test.Message", handler_in_trouble, None)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def message(message_id: str) -> IncomingMessage:
    return IncomingMessage(uuid.uuid4(), {"NServiceBus.MessageId": message_id}, b"{}")


def begin(slot: CallSlot, incoming: IncomingMessage) -> None:
    """Register a call as a thread does before it calls a handler."""
    slot.running = HANDLER, incoming, slot.clock(), threading.get_ident()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[Any]]:
    caplog.set_level(logging.DEBUG, logger="sqlqueue")
    return lambda: [record for record in caplog.records if getattr(record, "event", "") == "slow_handler"]


def test_slow_call_is_logged_once(logged: Callable[[], list[Any]]) -> None:
    clock = Clock()
    watcher = SlowHandlers("Sales", 10.0, clock=clock)
    slot = watcher.slot("Sales")
    assert slot is not None
    begin(slot, message("m-1"))
    clock.now += 9.9
    watcher.probe()
    assert logged() == []
    clock.now += 0.1
    watcher.probe()
    watcher.probe()
    (record,) = logged()
    assert (record.endpoint, record.queue, record.message_id, record.levelname) == ("Sales", "Sales", "m-1", "WARNING")
    assert "handler_in_trouble has been running for 10.0 s" in record.getMessage()
    assert "test_slow_call_is_logged_once" in record.getMessage()  # the stack of the thread in the slot: this one
    # the next call of the same handler counts separately
    begin(slot, message("m-2"))
    clock.now += 11
    watcher.probe()
    slot.running = None
    clock.now += 11
    watcher.probe()
    assert [record.message_id for record in logged()] == ["m-1", "m-2"]


def test_zero_disables_the_watcher() -> None:
    watcher = SlowHandlers("Sales", 0)
    assert (watcher.slot("Sales"), watcher.jobs()) == (None, [])


@pytest.mark.parametrize(("seconds", "every"), [(10, 1.0), (1, 0.5), (0.01, 0.1)])
def test_probe_interval_follows_the_limit(seconds: float, every: float) -> None:
    assert [job.every_seconds for job in SlowHandlers("Sales", seconds).jobs()] == [every]


def test_slots_of_ended_threads_are_forgotten() -> None:
    clock = Clock()
    watcher = SlowHandlers("Sales", 1.0, clock=clock)
    slot = watcher.slot("Sales")
    assert slot is not None
    begin(slot, message("m-1"))
    del slot
    gc.collect()
    assert len(watcher._slots) == 0


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_worker_logs_a_stuck_handler(
    bench: Bench, calls: Calls, logged: Callable[[], list[Any]], released: threading.Event
) -> None:
    """The handler may have middleware; the stack begins at the call of the handler or of its middleware."""

    def around(call: Callable[..., Any]) -> Callable[..., Any]:
        def in_the_middle(message: Any, context: Any) -> Any:
            return call(message, context)

        return in_the_middle

    @handles("Test.Message")
    def stuck(message: Any, context: Any) -> None:
        assert released.wait(60)
        calls.add(message)

    # Long enough for the handler to reach its wait, also on a busy machine.
    bench.configure(SLOW_HANDLER=0.3, MIDDLEWARE=[around])
    bench.put_message("Test.Message")

    def release_when_logged() -> None:
        poll_until(lambda: bool(logged()))
        released.set()

    helper = threading.Thread(target=release_when_logged)
    helper.start()
    try:
        bench.run()
    finally:
        helper.join()
    assert len(calls.seen) == 1
    (record,) = logged()
    text = record.getMessage()
    assert "stuck has been running for" in text
    assert text.index("in_the_middle") < text.index("released.wait")
    assert "invoking.py" not in text
