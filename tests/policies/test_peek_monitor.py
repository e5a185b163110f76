"""The peek monitor of transports 3.0 and later: the result of a peek, and the time of the next one.

See docs/internals/endpoints.md#peek-monitor.
"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.policies.polling import MONITOR_FAULT_PAUSE_SECONDS, Batch, PeekDecision, decide_after_peek


def test_each_waiting_message_gets_a_receive_without_pause() -> None:
    assert decide_after_peek(17, 1.0) == PeekDecision(receives=17, wait_seconds=0.0)


@pytest.mark.parametrize("waiting", [0, -3])
def test_empty_queue_waits_the_peek_delay(waiting: int) -> None:
    assert decide_after_peek(waiting, 2.5) == PeekDecision(receives=0, wait_seconds=2.5)


def test_peek_delay_does_not_grow() -> None:
    assert [decide_after_peek(0, 1.0).wait_seconds for _ in range(20)] == [1.0] * 20


def test_batch_is_settled_when_every_started_receive_has_its_row() -> None:
    batch = Batch()
    assert [batch.may_start() for _ in range(3)] == [True] * 3

    settled = []
    for _ in range(3):
        settled.append(batch.settled)
        batch.received_one(found=True)

    assert settled == [False] * 3
    assert batch.settled


def test_first_empty_receive_cancels_the_batch() -> None:
    batch = Batch()
    batch.may_start()
    batch.may_start()

    batch.received_one(found=False)

    assert batch.cancelled
    assert batch.settled
    assert not batch.may_start()


def test_fault_pause_is_one_second() -> None:
    assert MONITOR_FAULT_PAUSE_SECONDS == 1.0


@given(peeked=st.integers(0, 50), there=st.integers(0, 50), at_once=st.integers(1, 10))
def test_batch_takes_the_peeked_number_and_wastes_few_receives(peeked: int, there: int, at_once: int) -> None:
    """The peek is an estimate: there may be fewer (gaps in the numbers) or more (sent since then)."""
    batch = Batch()
    running = found = missed = 0
    remaining = decide_after_peek(peeked, 1.0).receives
    while remaining or running:
        while remaining and running < at_once and batch.may_start():
            remaining -= 1
            running += 1
        if not running:
            break
        running -= 1
        hit = found < there
        found, missed = found + hit, missed + (not hit)
        batch.received_one(found=hit)

    assert found == min(peeked, there)
    assert missed <= at_once
    assert batch.settled
