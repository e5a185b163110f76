"""The circuit breaker: armed by the first failure, triggered once, reset by a success."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from sqlqueue_app.policies.polling import CircuitBreaker


def test_breaker_triggers_once_after_long_enough_failures() -> None:
    breaker = CircuitBreaker(30)
    assert [breaker.failed(now) for now in (100, 110, 129.9, 130, 131, 500)] == [False, False, False, True, False, False]
    assert breaker.triggered


def test_success_disarms_and_resets() -> None:
    breaker = CircuitBreaker(30)
    breaker.failed(100)
    breaker.succeeded()
    assert not breaker.failed(131)
    assert breaker.failed(161)
    breaker.succeeded()
    assert not breaker.triggered
    assert not breaker.failed(1000)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=60))
def test_breaker_triggers_exactly_when_failures_span_the_wait(steps: list[tuple[float, bool]]) -> None:
    breaker, now, first = CircuitBreaker(30), 0.0, None
    for passed, failed in steps:
        now += passed
        if failed:
            first = now if first is None else first
            breaker.failed(now)
        else:
            first = None
            breaker.succeeded()
        if first is not None and failed:
            assert breaker.triggered == (now - first >= 30)
