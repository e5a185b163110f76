"""Changes of the number of receive threads at run time, with the guarantees of the pumps of NServiceBus.

See docs/internals/endpoints.md#core-transport-tests.
"""

from __future__ import annotations

import threading

import pytest

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.policies.polling import ThreadBudget
from sqlqueue_app.receiving.concurrency import AdaptiveReceiver, FixedReceiver, MonitorReceiver, ResizableSemaphore
from sqlqueue_app.receiving.receiver import Receiver, ReceiverOptions
from sqlqueue_app.receiving.stopping import StopSignal
from tests.support.receivers import ENDLESS, Handlers, Script, more, ramp_up, running, settled
from tests.support.waiting import done_within, join_all, poll_until

MODELS = [AdaptiveReceiver, FixedReceiver, MonitorReceiver]


@pytest.mark.parametrize("kind", MODELS)
def test_raised_number_lets_more_messages_be_handled_at_once(kind: type[Receiver]) -> None:
    handlers = Handlers()
    with running(kind, Script(ENDLESS, work=handlers.work), maximum=2, **more(kind)) as (receiver, _):
        try:
            ramp_up(handlers, receiver, 2)
            receiver.change_concurrency(5)
            ramp_up(handlers, receiver, 5)
            assert receiver.maximum == 5
        finally:
            handlers.finish_all()


@pytest.mark.parametrize("kind", MODELS)
def test_lowered_number_interrupts_no_message(kind: type[Receiver]) -> None:
    handlers = Handlers()
    with running(kind, Script(ENDLESS, work=handlers.work), maximum=6, **more(kind)) as (receiver, _):
        try:
            ramp_up(handlers, receiver, 6)
            finished = handlers.finished
            receiver.change_concurrency(2)
            assert (handlers.busy, receiver.live_threads) == (6, 6), "all six messages are still in progress"
            handlers.finish(4)
            poll_until(settled(handlers, receiver, 2), deadline=60, what="the surplus threads have ended")
            assert handlers.finished == finished + 4
            handlers.most = 0
            handlers.finish(50)
            poll_until(lambda: handlers.finished == finished + 54 and handlers.busy == 2, deadline=60)
            assert handlers.most == 2
        finally:
            handlers.finish_all()


@pytest.mark.parametrize("kind", MODELS)
def test_last_of_many_values_counts(kind: type[Receiver]) -> None:
    handlers = Handlers()
    with running(kind, Script(ENDLESS, work=handlers.work), maximum=4, **more(kind)) as (receiver, _):
        try:
            threads = [threading.Thread(target=receiver.change_concurrency, args=(number,)) for number in (1, 9, 2, 7, 5, 1, 8)]
            for thread in threads:
                thread.start()
            join_all(threads)
            receiver.change_concurrency(3)
            handlers.finish(20)
            ramp_up(handlers, receiver, 3)
            assert receiver.maximum == 3
        finally:
            handlers.finish_all()


@pytest.mark.parametrize("kind", MODELS)
def test_one_thread_continues_and_idle_ones_end(kind: type[Receiver]) -> None:
    script = Script()
    with running(kind, script, maximum=8, **more(kind)) as (receiver, _):
        receiver.change_concurrency(1)
        poll_until(lambda: receiver.live_threads <= 1, deadline=60)
        script.put(30)
        poll_until(lambda: script.messages == 0, deadline=60)
        assert receiver.live_threads == 1


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("number", [0, -1, True])
def test_invalid_number_is_refused_and_changes_nothing(kind: type[Receiver], number: int) -> None:
    with running(kind, Script(), maximum=2, **more(kind)) as (receiver, _):
        with pytest.raises(ConfigurationError, match=rf"the concurrency of 'Sales' cannot be {number}: expected an integer"):
            receiver.change_concurrency(number)
        assert receiver.maximum == 2


@pytest.mark.parametrize("kind", MODELS)
def test_number_given_before_start_or_after_stop_starts_no_thread(kind: type[Receiver]) -> None:
    stop = StopSignal()
    options = ReceiverOptions(maximum=2, new_poller=Script(), stop=stop, name="sqlqueue-test")
    receiver: Receiver = kind("Sales", options, **more(kind))
    receiver.change_concurrency(3)
    assert (receiver.live_threads, receiver.maximum) == (0, 3)
    receiver.start()
    stop.set()
    done_within(receiver.join, what="the receiver ends")
    receiver.change_concurrency(5)
    assert receiver.live_threads == 0


def test_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="sqlqueue")
    with running(FixedReceiver, Script(), maximum=2) as (receiver, _):
        receiver.change_concurrency(4)
        receiver.change_concurrency(4)
    events = [(record.message, record.queue) for record in caplog.records if getattr(record, "event", "") == "concurrency_changed"]  # type: ignore[attr-defined]
    assert events == [("concurrency of Sales changed from 2 to 4", "Sales")]


def test_budget_detects_a_surplus_of_threads() -> None:
    budget = ThreadBudget(3, live=3)
    assert not budget.has_surplus
    budget.maximum = 2
    assert budget.has_surplus
    assert not budget.may_start()
    assert not budget.ended()
    assert not budget.has_surplus


def test_surplus_slots_return_before_one_is_given_out() -> None:
    slots = ResizableSemaphore(3)
    for _ in range(3):
        slots.acquire()
    slots.resize(1)
    taken = threading.Event()

    def take() -> None:
        slots.acquire()
        taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    slots.release()
    slots.release()
    assert not taken.wait(0.05)
    slots.release()
    assert taken.wait(60)
    join_all([thread])
