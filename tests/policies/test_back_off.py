"""Waits after empty polls (docs/internals/endpoints.md#concurrency), and the thread of the fixed model that uses them."""

from __future__ import annotations

from hypothesis import given, strategies as st

from sqlqueue_app.policies.polling import FIXED_FAULT_PAUSE_SECONDS, BackOff, FixedThread

TRANSPORT = [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_wait_doubles_from_50_ms_to_a_second() -> None:
    back_off = BackOff()

    assert [back_off.next_wait() for _ in TRANSPORT] == TRANSPORT


def test_reset_starts_again() -> None:
    back_off = BackOff()
    for _ in range(5):
        back_off.next_wait()

    back_off.reset()

    assert [back_off.next_wait() for _ in TRANSPORT] == TRANSPORT


def test_limits_can_be_changed() -> None:
    back_off = BackOff(1.0, 10.0)

    assert [back_off.next_wait() for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]


def test_cap_at_the_first_value_keeps_the_wait_constant() -> None:
    back_off = BackOff(1.0, 1.0)

    assert [back_off.next_wait() for _ in range(3)] == [1.0, 1.0, 1.0]


@given(st.floats(0.001, 10), st.floats(1, 100), st.lists(st.sampled_from(["wait", "reset"]), max_size=100))
def test_wait_shrinks_only_by_reset_and_stays_within_its_limits(first: float, factor: float, events: list[str]) -> None:
    back_off = BackOff(first, first * factor)
    before = 0.0
    for event in events:
        if event == "reset":
            back_off.reset()
            before = 0.0
            continue
        wait = back_off.next_wait()
        assert first <= wait <= first * factor
        assert wait >= before
        assert before == 0.0 or wait == min(before * 2, first * factor)
        before = wait


def test_two_threads_do_not_share_their_waits() -> None:
    one, other = FixedThread(), FixedThread()
    one.polled(succeeded=False)

    assert other.polled(succeeded=False) == 0.05


def test_fixed_thread_never_ends_and_settles_at_a_second() -> None:
    thread = FixedThread()

    waits = [thread.polled(succeeded=False) for _ in range(1000)]

    assert waits[: len(TRANSPORT)] == TRANSPORT
    assert set(waits[len(TRANSPORT) :]) == {1.0}


def test_fixed_thread_polls_at_once_after_a_message() -> None:
    thread = FixedThread()
    thread.polled(succeeded=False)
    thread.polled(succeeded=False)

    assert thread.polled(succeeded=True) == 0.0
    assert thread.polled(succeeded=False) == 0.05


def test_fixed_thread_waits_ten_seconds_after_a_fault() -> None:
    thread = FixedThread()
    thread.polled(succeeded=False)

    assert thread.faulted() == FIXED_FAULT_PAUSE_SECONDS == 10.0
    assert thread.polled(succeeded=False) == 0.05
