"""The rate limit begins after so many failures in a row and ends with one success (docs/internals/endpoints.md#rate-limit)."""

from __future__ import annotations

from hypothesis import given, strategies as st

from sqlqueue_app.policies.polling import ConsecutiveFailures


def test_it_begins_with_the_last_failure_of_the_row_and_says_so_once() -> None:
    failures = ConsecutiveFailures(3)

    assert [failures.failed() for _ in range(5)] == [False, False, True, False, False]
    assert failures.limited
    assert failures.succeeded()
    assert not failures.limited
    assert not failures.succeeded()


def test_a_success_in_between_starts_the_count_again() -> None:
    failures = ConsecutiveFailures(2)
    failures.failed()
    failures.succeeded()

    assert not failures.failed()
    assert failures.failed()


@given(st.lists(st.booleans()))
def test_without_a_number_there_is_no_limit(worked: list[bool]) -> None:
    failures = ConsecutiveFailures(None)

    for each in worked:
        assert not (failures.succeeded() if each else failures.failed())
        assert not failures.limited
