"""What becomes of a failed message: 1 + N attempts, then the error queue (transport reference 5.3, 9)."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue_app.conf import values
from sqlqueue_app.policies.recoverability import (
    FailureContext,
    MoveToError,
    RecoverabilityConfig,
    RetryNow,
    default_policy,
)
from sqlqueue_app.policies.transaction_mode import TransactionMode


def attempts_until_error(retries: int) -> int:
    """How often a handler that always fails is called."""
    config = RecoverabilityConfig(retries, "error")
    failed = 0
    while True:
        failed += 1
        if default_policy(config, FailureContext(failed, unrecoverable=False)) != RetryNow():
            return failed


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (5, 6), (100, 101)])
def test_a_message_gets_one_attempt_more_than_its_retries(retries: int, attempts: int) -> None:
    assert attempts_until_error(retries) == attempts


@given(retries=st.integers(0, 1000), failed=st.integers(1, 2000))
def test_what_cannot_be_helped_goes_to_the_error_queue_at_once(retries: int, failed: int) -> None:
    config = RecoverabilityConfig(retries, "error@[ops]")

    assert default_policy(config, FailureContext(failed, unrecoverable=True)) == MoveToError("error@[ops]")


@given(retries=st.integers(0, 1000), failed=st.integers(1, 2000))
def test_more_failures_never_bring_a_retry_back(retries: int, failed: int) -> None:
    """A message that failed in a process with more retries may come to one with fewer."""
    config = RecoverabilityConfig(retries, "error")

    action = default_policy(config, FailureContext(failed, unrecoverable=False))

    assert action == (RetryNow() if failed <= retries else MoveToError("error"))


def test_the_modes_are_the_words_of_the_settings() -> None:
    assert {mode.value for mode in TransactionMode} == set(get_args(values.TransactionMode))
