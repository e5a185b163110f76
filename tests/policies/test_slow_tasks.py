"""The slow-task monitor of transports 2.1.5 and later: an additional thread for a slow message.

See docs/internals/endpoints.md#ramp-up-controller.
"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.policies.polling import SLOW_TASK_TICK_SECONDS, SlowTaskMonitor
from tests.policies.simulation import Simulation

TICK = 5000


def test_monitor_ticks_every_five_seconds() -> None:
    assert SLOW_TASK_TICK_SECONDS * 1000 == TICK


def test_one_thread_is_requested_at_exactly_the_second_tick() -> None:
    monitor = SlowTaskMonitor()
    monitor.loop_began(1)

    assert [monitor.tick() for _ in range(100)] == [0, 1] + [0] * 98


def test_next_message_restarts_the_count() -> None:
    monitor = SlowTaskMonitor()
    monitor.loop_began(1)
    monitor.tick()
    monitor.tick()

    monitor.loop_began(1)

    assert [monitor.tick() for _ in range(3)] == [0, 1, 0]


def test_each_slow_thread_requests_one() -> None:
    monitor = SlowTaskMonitor()
    for thread in range(5):
        monitor.loop_began(thread)
    monitor.tick()
    monitor.loop_began(3)
    monitor.ended(4)

    assert monitor.tick() == 3


def test_unknown_thread_may_end() -> None:
    monitor = SlowTaskMonitor()

    monitor.ended(7)

    assert monitor.tick() == 0


@given(st.lists(st.sampled_from(["tick", "loop"]), max_size=200))
def test_thread_requests_once_per_two_ticks_of_one_loop(events: list[str]) -> None:
    monitor = SlowTaskMonitor()
    monitor.loop_began(1)
    started = 0
    for event in events:
        if event == "loop":
            monitor.loop_began(1)
        else:
            started += monitor.tick()

    loops = "".join(event[0] for event in events).split("l")
    assert started == sum(1 for ticks in loops if len(ticks) >= 2)


# --- on a clock ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("takes", "started"), [(4_999, []), (5_001, [(5_000, 1)])])
def test_first_tick_is_immediate_and_counts(takes: int, started: list[tuple[int, int]]) -> None:
    # the thread begins its loop at 0, before the tick: it is seen at 0 and again at 5 s
    run = Simulation(8, arrivals=[0], handling=lambda _: takes).run(20_000)

    assert run.extra == started


@pytest.mark.parametrize(
    ("begins", "takes", "started"),
    [
        (50, 9_949, []),  # ends before the tick at 10 s
        (50, 9_951, [(10_000, 1)]),
        (4_950, 5_049, []),
        (4_950, 5_051, [(10_000, 1)]),  # a little more than 5 s is enough at the right moment
        (5_050, 9_949, []),
        (5_050, 9_951, [(15_000, 1)]),
        (50, 600_000, [(10_000, 1)]),  # once per message, for any duration
    ],
)
def test_handler_seen_at_two_ticks_adds_one_thread(begins: int, takes: int, started: list[tuple[int, int]]) -> None:
    """The message arrives so that a poll (every 50 ms at first, here) finds it at `begins`."""
    keep_awake = list(range(0, begins, 50))
    run = Simulation(8, arrivals=[*keep_awake, begins], handling=lambda message: takes if message == len(keep_awake) else 50).run(
        begins + takes + 1
    )

    assert run.handled[len(keep_awake)][0] == begins
    assert run.extra == started


def test_slow_messages_reach_the_maximum_without_six_successes() -> None:
    run = Simulation(4, arrivals=[0] * 10, handling=lambda _: 60_000).run(59_000)

    # no thread succeeds six times; each tick after the first finds the threads of the tick before slow
    assert [why for _, why, _ in run.requests if why == "ramp-up"] == []
    assert max(live for _, live in run.live) == 4
    assert run.threads_at(59_000) == 4
    assert len(run.handled) == 4


def test_empty_queue_is_never_slow() -> None:
    assert Simulation(8).run(3_600_000).extra == []
