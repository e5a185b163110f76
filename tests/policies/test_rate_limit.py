"""The rate limit begins after consecutive failures and ends with one success (docs/internals/endpoints.md#rate-limit)."""

from __future__ import annotations

from hypothesis import given, strategies as st

from sqlqueue_app.policies.polling import ConsecutiveFailures


def test_limit_begins_with_the_last_failure_and_reports_it_once() -> None:
    failures = ConsecutiveFailures(3)

    assert [failures.failed() for _ in range(5)] == [False, False, True, False, False]
    assert failures.limited
    assert failures.succeeded()
    assert not failures.limited
    assert not failures.succeeded()


def test_success_in_between_restarts_the_count() -> None:
    failures = ConsecutiveFailures(2)
    failures.failed()
    failures.succeeded()

    assert not failures.failed()
    assert failures.failed()


@given(st.lists(st.booleans()))
def test_no_number_means_no_limit(worked: list[bool]) -> None:
    failures = ConsecutiveFailures(None)

    for each in worked:
        assert not (failures.succeeded() if each else failures.failed())
        assert not failures.limited
