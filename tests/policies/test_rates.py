"""Rates of message types: messages begin at even intervals, whatever arrives, returns or is late."""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest

from sqlqueue_app.policies.rates import SECOND, Rate, RateState, admit

TEN = Rate.parse("10/m")


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("1/s", SECOND),
        ("100/s", SECOND // 100),
        ("10/m", 6 * SECOND),
        ("7/m", 8_571_429),
        ("5/h", 720 * SECOND),
        ("1/d", 86_400 * SECOND),
    ],
)
def test_rate_is_one_message_in_each_interval(text: str, interval: int) -> None:
    rate = Rate.parse(text)
    assert (str(rate), rate.interval) == (text, interval)


@pytest.mark.parametrize("value", ["", "10", "10/x", "0/m", "-1/m", "1.5/m", " 10/m", "10 / m", "1000000/s", "١/m", 10, None, True])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a rate: expected a number of messages per second, minute, hour or day, such as"):
        Rate.parse(value)


def test_messages_that_arrive_together_are_spread_evenly() -> None:
    state, dues = RateState(), []
    for _ in range(5):
        due, state = admit(TEN, state, 1_000, reserved=False)
        dues.append(due)
    assert dues == [None, *(1_000 + 6 * number * SECOND for number in range(1, 5))]


def test_message_that_returns_at_its_time_begins() -> None:
    state = RateState()
    _, state = admit(TEN, state, 0, reserved=False)
    due, state = admit(TEN, state, 0, reserved=False)
    assert due == 6 * SECOND
    assert admit(TEN, state, due, reserved=True)[0] is None


def test_unused_time_does_not_accumulate() -> None:
    _, state = admit(TEN, RateState(), 0, reserved=False)
    first, state = admit(TEN, state, 3_600 * SECOND, reserved=False)
    second, state = admit(TEN, state, 3_600 * SECOND, reserved=False)
    assert (first, second) == (None, 3_606 * SECOND)


def begun(rate: Rate, arrivals: list[int], lateness: Any) -> list[int]:
    """The times at which messages begin; `lateness(due)` is how late one returns."""
    state = RateState()
    starts: list[int] = []
    events = [(at, number, False) for number, at in enumerate(arrivals)]
    heapq.heapify(events)
    for _ in range(100_000):
        if not events:
            return sorted(starts)
        now, number, reserved = heapq.heappop(events)
        due, state = admit(rate, state, now, reserved=reserved)
        if due is None:
            starts.append(now)
        else:
            assert due >= now
            heapq.heappush(events, (due + lateness(due), number, True))
    raise AssertionError("messages go round and round")


def greatest_excess(rate: Rate, starts: list[int]) -> float:
    """The largest number of messages beyond the rate that began in any period."""
    return max(
        (last - first + 1) - (starts[last] - starts[first]) / rate.interval
        for first in range(len(starts))
        for last in range(first, len(starts))
    )


@pytest.mark.parametrize("text", ["10/m", "2/s", "50/s"])
def test_rate_holds_in_every_period_however_late_messages_return(text: str) -> None:
    rate, chosen = Rate.parse(text), random.Random(7)
    for latest in (0, SECOND // 10, SECOND, 10 * SECOND, 100 * SECOND):
        arrivals = [chosen.randrange(200 * SECOND) for _ in range(150)]
        starts = begun(rate, arrivals, lambda due, latest=latest: chosen.randint(0, latest))
        assert len(starts) == 150
        assert greatest_excess(rate, starts) <= 1 + rate.tolerance / rate.interval + 1e-6


def test_reservations_that_passed_while_the_endpoint_was_down_do_not_begin_at_once() -> None:
    """All messages return when the endpoint is up again."""
    up = 3_600 * SECOND
    starts = begun(TEN, [0] * 100, lambda due: max(0, up - due))
    assert starts[1] >= up
    assert greatest_excess(TEN, starts) <= 2
    # The limit is fully used: one message begins in each interval.
    assert starts[-1] - up <= 100 * TEN.interval


def test_messages_on_time_lose_no_time() -> None:
    starts = begun(TEN, [0] * 50, lambda due: 20_000)
    assert starts[-1] == 49 * TEN.interval + 20_000
