"""An additional thread when all threads of a queue are busy: our extension of the algorithm of version 2.1.

See docs/internals/endpoints.md#ramp-up-controller.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from sqlqueue_app.policies.polling import BUSY_PROBE_SECONDS, BUSY_PROBES, BusyThreads
from tests.policies.simulation import Poll, Simulation

WITHIN = 50


def test_thread_is_requested_within_50_ms() -> None:
    assert BUSY_PROBE_SECONDS * BUSY_PROBES * 1000 <= WITHIN - 10


def test_thread_is_requested_at_second_probe_of_same_messages() -> None:
    busy = BusyThreads()
    busy.probes[1] = 0
    assert [busy.probe(1), busy.probe(1)] == [False, True]


def test_next_message_is_counted_from_its_begin() -> None:
    busy = BusyThreads()
    busy.probes[1] = 0
    busy.probe(1)
    busy.probes.pop(1, None)
    busy.probes[1] = 0
    assert [busy.probe(1), busy.probe(1)] == [False, True]


def test_no_thread_is_requested_while_one_is_free() -> None:
    busy = BusyThreads()
    busy.probes[1] = 0
    busy.probes[2] = 0
    assert [busy.probe(3) for _ in range(100)] == [False] * 100
    assert busy.free(3) == 1


def test_ended_thread_no_longer_counts() -> None:
    busy = BusyThreads()
    busy.probes[1] = 0
    busy.probes[2] = 0
    busy.probe(2)
    busy.probes.pop(2, None)
    assert busy.probe(1)


# --- on a clock ---------------------------------------------------------------------------------------------------------------


def test_slow_messages_are_handled_in_parallel() -> None:
    run = Simulation(4, arrivals=[0] * 8, handling=lambda _: 2_000, probes=True).run(60_000)

    begins = sorted(begin for begin, _ in run.handled.values())
    assert begins[:4] == [0, 40, 80, 120]
    assert max(begins) + 2_000 <= 4_200


def test_message_behind_a_slow_one_waits_for_a_poll_only() -> None:
    """The free thread polls as often as the only thread of an idle queue."""
    for arrival in range(100, 7_000, 100):
        run = Simulation(4, arrivals=[0, arrival], handling=lambda message: 8_000 if message == 0 else 1, probes=True).run(20_000)
        assert run.handled[1][0] - arrival <= 1_000


@pytest.mark.parametrize("takes", [1, 5, 15])
def test_quick_messages_start_no_additional_thread(takes: int) -> None:
    arrivals = [number * 20 for number in range(500)]
    with_probes = Simulation(8, arrivals=arrivals, handling=lambda _: takes, probes=True).run(20_000)
    without = Simulation(8, arrivals=arrivals, handling=lambda _: takes).run(20_000)

    assert with_probes.requests == without.requests
    assert with_probes.polls == without.polls


def test_idle_queue_is_polled_no_more_often() -> None:
    assert Simulation(8, probes=True).run(3_600_000).polls == Simulation(8).run(3_600_000).polls


def test_only_free_thread_stays_and_polls_like_an_idle_one() -> None:
    run = Simulation(8, arrivals=[0], handling=lambda _: 3_600_000, probes=True, monitored=False).run(3_599_000)

    assert run.live == [(0, 1), (40, 2)]
    probing = [poll for poll in run.polls if poll.thread == 2]
    idle = [Poll(poll.at + 40, 2, False) for poll in Simulation(8).run(3_598_960).polls]
    assert [poll.at for poll in probing] == [poll.at for poll in idle]


def test_unneeded_threads_end() -> None:
    run = Simulation(8, arrivals=[0] * 8, handling=lambda _: 5_000, probes=True).run(60_000)

    assert max(live for _, live in run.live) == 8
    assert run.threads_at(60_000) == 1


@settings(max_examples=200)
@given(
    maximum=st.integers(1, 6),
    arrivals=st.lists(st.integers(0, 20_000), max_size=30).map(sorted),
    takes=st.lists(st.sampled_from([1, 10, 30, 100, 2_000, 30_000]), min_size=30, max_size=30),
)
def test_no_message_waits_long_below_the_maximum(maximum: int, arrivals: list[int], takes: list[int]) -> None:
    """A message waits longer than at an idle queue only if the maximum number of threads is running."""
    run = Simulation(maximum, arrivals=arrivals, handling=takes.__getitem__, probes=True).run(400_000)

    assert len(run.handled) == len(arrivals)
    assert max((live for _, live in run.live), default=1) <= maximum
    for message, arrival in enumerate(arrivals):
        begin = run.handled[message][0]
        if begin - arrival > 1_000 + WITHIN:
            assert any(run.threads_at(time) == maximum for time in range(arrival, begin))
