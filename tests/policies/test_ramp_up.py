"""The ramp-up controller of transport 2.1, alone and in a simulation of thousands of polls.

See docs/internals/endpoints.md#ramp-up-controller.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from sqlqueue_app.policies.polling import RampUpController, Step, ThreadBudget
from tests.policies.simulation import Simulation

HOUR = 3_600_000
# after 50, 100, 200, 400, 800 and 1000 ms; the seventh wait of 1000 ms follows the last poll
IDLE_POLLS = [0, 50, 150, 350, 750, 1550, 2550]
IDLE_ROUND = 3550


def drive(controller: RampUpController, *, successes: int) -> list[Step]:
    """Make this number of successful polls; returns the controller's step before each."""
    steps = []
    for _ in range(successes):
        steps.append(controller.next_step())
        controller.polled(succeeded=True)
    return steps


def test_sixth_success_requests_a_thread_before_the_next_poll() -> None:
    controller = RampUpController()

    assert drive(controller, successes=6) == [Step.POLL] * 6
    assert controller.next_step() is Step.RAMP_UP_AND_POLL


def test_request_resets_both_counters() -> None:
    controller = RampUpController()
    drive(controller, successes=6)

    controller.next_step()

    assert (controller.successes, controller.failures) == (0, 0)
    # six more are needed, not one
    assert drive(controller, successes=7) == [Step.POLL] * 6 + [Step.RAMP_UP_AND_POLL]


def test_next_step_alone_changes_nothing() -> None:
    controller = RampUpController()
    drive(controller, successes=5)

    assert [controller.next_step() for _ in range(10)] == [Step.POLL] * 10


def test_success_resets_failures_and_back_off() -> None:
    controller = RampUpController()
    waits = [controller.polled(succeeded=False) for _ in range(6)]

    assert controller.polled(succeeded=True) == 0
    assert (controller.successes, controller.failures) == (1, 0)
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert controller.polled(succeeded=False) == 0.05


def test_failure_resets_successes() -> None:
    controller = RampUpController()
    drive(controller, successes=5)

    controller.polled(succeeded=False)

    assert (controller.successes, controller.failures) == (0, 1)


def test_seventh_failure_ends_the_thread() -> None:
    controller = RampUpController()
    waits = []
    while controller.next_step() is Step.POLL:
        waits.append(controller.polled(succeeded=False))

    assert controller.next_step() is Step.END
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@given(st.lists(st.booleans(), max_size=400))
def test_each_step_follows_from_the_preceding_equal_results(results: list[bool]) -> None:
    """A second implementation: only the length of the run since the last request counts."""
    controller = RampUpController()
    since_request: list[bool] = []
    for result in results:
        run = 0
        while run < len(since_request) and since_request[-1 - run] == since_request[-1]:
            run += 1
        succeeding = bool(since_request) and since_request[-1]
        step = controller.next_step()
        if run >= 7 and not succeeding:
            assert step is Step.END
            return
        if run > 5 and succeeding:
            assert step is Step.RAMP_UP_AND_POLL
            since_request.clear()
        else:
            assert step is Step.POLL
        controller.polled(succeeded=result)
        since_request.append(result)


@pytest.mark.parametrize("maximum", [1, 2, 8, 40])
def test_budget_hands_out_its_maximum_and_takes_threads_back(maximum: int) -> None:
    budget = ThreadBudget(maximum)

    assert [budget.may_start() for _ in range(maximum + 3)] == [True] * maximum + [False] * 3
    assert [budget.ended() for _ in range(maximum)] == [False] * (maximum - 1) + [True]
    assert budget.live == 0
    assert budget.may_start()


# --- on a clock ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maximum", [1, 8])
def test_idle_queue_is_polled_seven_times_per_round(maximum: int) -> None:
    run = Simulation(maximum).run(HOUR)

    times = [poll.at for poll in run.polls]
    rounds = len(times) // 7
    assert rounds == HOUR // IDLE_ROUND
    assert times[: rounds * 7] == [IDLE_ROUND * number + offset for number in range(rounds) for offset in IDLE_POLLS]
    # it never settles at 1 s, and every round is a new thread
    assert len({poll.thread for poll in run.polls[: rounds * 7]}) == rounds
    assert {live for _, live in run.live} == {0, 1}
    assert all(run.threads_at(time) == 1 for time in range(0, HOUR, 997))


def test_backlog_starts_a_thread_after_every_six_messages() -> None:
    run = Simulation(8, arrivals=[0] * 400, handling=lambda _: 10, monitored=False).run(2000)

    # the first thread asks after 6 messages, before its seventh poll; then both ask after 6 more, and so on
    started = [at for at, why, _ in run.requests if why == "ramp-up"]
    assert started[:7] == [60, 120, 120, 180, 180, 180, 180]
    assert [run.threads_at(time) for time in (0, 59, 60, 119, 120, 179, 180)] == [1, 1, 2, 2, 4, 4, 8]


def test_requests_at_the_maximum_are_refused() -> None:
    run = Simulation(3, arrivals=[0] * 600, handling=lambda _: 10).run(2500)

    refused = [at for at, why, started in run.requests if why == "ramp-up" and not started]
    assert max(live for _, live in run.live) == 3
    # a refusal resets the counters too: a thread requests another at every sixth message, not at every poll
    assert len(refused) == pytest.approx(600 / 6, abs=6)


def test_all_threads_but_one_end_after_a_burst() -> None:
    run = Simulation(8, arrivals=[0] * 2000, handling=lambda _: 20).run(HOUR // 10)

    last = max(begin for begin, _ in run.handled.values())
    assert run.threads_at(last) == 8
    assert run.threads_at(last + 20 + IDLE_ROUND) == 1
    after = [live for at, live in run.live if at > last + 20 + IDLE_ROUND]
    assert set(after) == {0, 1}


def test_five_messages_in_a_row_never_start_a_second_thread() -> None:
    bursts = [start * 10_000 for start in range(300) for _ in range(5)]
    run = Simulation(8, arrivals=bursts).run(3_000_000)

    assert len(run.handled) == 1500
    assert {live for _, live in run.live} <= {0, 1}


def test_expired_and_poison_rows_count_as_empty_polls() -> None:
    run = Simulation(8, arrivals=[0] * 100, failed=lambda _: True).run(IDLE_ROUND - 1)

    assert [poll.at for poll in run.polls] == IDLE_POLLS
    assert all(poll.found for poll in run.polls)
    assert [why for _, why, _ in run.requests] == ["start"]


def test_message_is_found_within_a_second_while_all_threads_wait() -> None:
    run = Simulation(4, arrivals=range(0, HOUR, 7919)).run(HOUR)

    waited = [begin - arrival for arrival, (begin, _) in zip(run.arrivals, run.handled.values(), strict=True)]
    assert len(waited) == 455
    assert max(waited) <= 1000


@settings(max_examples=60, deadline=None)
@given(
    maximum=st.integers(1, 12),
    gaps=st.lists(st.sampled_from([0, 0, 0, 1, 5, 40, 300, 4000, 20_000]), max_size=300),
    durations=st.lists(st.sampled_from([0, 1, 10, 80, 700, 6000, 11_000, 31_000]), min_size=1, max_size=40),
    failing=st.lists(st.booleans(), min_size=1, max_size=9),
)
def test_any_load_keeps_one_thread_within_the_maximum_and_loses_no_message(
    maximum: int, gaps: list[int], durations: list[int], failing: list[bool]
) -> None:
    arrivals = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    run = Simulation(
        maximum,
        arrivals=arrivals,
        handling=lambda message: durations[message % len(durations)],
        failed=lambda message: failing[message % len(failing)],
    ).run((arrivals[-1] if arrivals else 0) + len(gaps) * 31_000 + 60_000)

    counts = [live for _, live in run.live]
    assert min(counts) >= 0
    assert max(counts) <= maximum
    # no time passes between the end of the last thread and the start of the next
    assert all(after == (at, 1) for (at, live), after in pairwise(run.live) if live == 0)
    assert counts[-1] >= 1
    taken = [message for message in range(len(arrivals)) if not failing[message % len(failing)]]
    assert sorted(run.handled) == taken
    assert sum(poll.found for poll in run.polls) == len(arrivals)
