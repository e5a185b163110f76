"""The outcome of a failed message: 1 + N attempts, then the error queue (docs/internals/endpoints.md#retry-policy)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.conf import settings
from sqlqueue_app.policies.recoverability import (
    FailureContext,
    MoveToError,
    RecoverabilityConfig,
    RetryLater,
    RetryNow,
    TransactionMode,
    default_policy,
)


def attempts_until_error(retries: int) -> int:
    """Return how often a handler that always fails is called."""
    config = RecoverabilityConfig(retries, "error")
    failed = 0
    while True:
        failed += 1
        if default_policy(config, FailureContext(failed, unrecoverable=False)) != RetryNow():
            return failed


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (5, 6), (100, 101)])
def test_message_gets_one_attempt_more_than_its_retries(retries: int, attempts: int) -> None:
    assert attempts_until_error(retries) == attempts


@given(retries=st.integers(0, 1000), failed=st.integers(1, 2000))
def test_unrecoverable_message_goes_to_the_error_queue_at_once(retries: int, failed: int) -> None:
    config = RecoverabilityConfig(retries, "error@[ops]")

    assert default_policy(config, FailureContext(failed, unrecoverable=True)) == MoveToError("error@[ops]")


@given(retries=st.integers(0, 1000), failed=st.integers(1, 2000))
def test_more_failures_than_retries_never_cause_a_retry(retries: int, failed: int) -> None:
    """A message that failed in a process with more retries may move to one with fewer."""
    config = RecoverabilityConfig(retries, "error")

    action = default_policy(config, FailureContext(failed, unrecoverable=False))

    assert action == (RetryNow() if failed <= retries else MoveToError("error"))


def rounds_until_error(config: RecoverabilityConfig) -> list[tuple[int, timedelta]]:
    """The delayed retries of a message that always fails: attempts per round, and the delay."""
    found: list[tuple[int, timedelta]] = []
    failed = 0
    while True:
        failed += 1
        action = default_policy(config, FailureContext(failed, unrecoverable=False, delayed_retries=len(found)))
        if isinstance(action, RetryLater):
            found.append((failed, action.delay))
            failed = 0
        elif action != RetryNow():
            assert action == MoveToError("error")
            assert failed == config.immediate_retries + 1
            return found


def test_delayed_retries_wait_longer_and_restart_the_attempts() -> None:
    config = RecoverabilityConfig(5, "error", 3, timedelta(seconds=10))

    assert rounds_until_error(config) == [(6, timedelta(seconds=10)), (6, timedelta(seconds=20)), (6, timedelta(seconds=30))]


@given(immediate=st.integers(0, 20), delayed=st.integers(0, 20))
def test_failing_message_gets_the_documented_number_of_attempts(immediate: int, delayed: int) -> None:
    rounds = rounds_until_error(RecoverabilityConfig(immediate, "error", delayed))

    assert sum(attempts for attempts, _ in rounds) + immediate + 1 == (immediate + 1) * (delayed + 1)


@pytest.mark.parametrize(("ago", "again"), [(timedelta(days=1), True), (timedelta(days=1, seconds=1), False)])
def test_no_delayed_retry_follows_a_day_after_the_last_one(ago: timedelta, again: bool) -> None:
    now = datetime(2026, 11, 20, tzinfo=UTC)
    context = FailureContext(1, unrecoverable=False, delayed_retries=1, last_delayed_retry_at=now - ago, now=now)

    assert isinstance(default_policy(RecoverabilityConfig(0, "error", 3), context), RetryLater) is again


def test_transaction_modes_match_the_settings() -> None:
    assert {mode.value for mode in TransactionMode} == set(get_args(settings.TransactionMode))
