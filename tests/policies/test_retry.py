"""`Retry`: which errors are tried again, and when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError
from hypothesis import given, strategies as st

from sqlqueue_app.policies.recoverability import (
    FailureContext,
    MoveToError,
    RecoverabilityConfig,
    Retry,
    RetryLater,
    RetryNow,
    default_policy,
    path_of_class,
)

ENDPOINT = RecoverabilityConfig(5, "error", 3, timedelta(seconds=10))


class CardExpired(LookupError):
    """An error of the project."""


def failure(error: BaseException | None = None, kind: str = "", **facts: Any) -> FailureContext:
    return FailureContext(**{"failed_attempts": 1, "unrecoverable": False, **facts}, exception=error, exception_type=kind)


def decisions(retry: Retry) -> list[Any]:
    """The decisions on a message that always fails, until the error queue."""
    found: list[Any] = []
    config, failed, rounds = ENDPOINT.with_retry(retry), 0, 0
    while not found or not isinstance(found[-1], MoveToError):
        failed += 1
        found.append(default_policy(config, failure(failed_attempts=failed, delayed_retries=rounds)))
        if isinstance(found[-1], RetryLater):
            failed, rounds = 0, rounds + 1
    return found


def test_retries_of_the_handler_replace_those_of_the_endpoint() -> None:
    first, second = timedelta(seconds=60), timedelta(minutes=10)
    assert decisions(Retry(immediate=1, delays=[60, second])) == [
        *(RetryNow(), RetryLater(first)),
        *(RetryNow(), RetryLater(second)),
        *(RetryNow(), MoveToError("error")),
    ]
    assert decisions(Retry(immediate=0, delays=[])) == [MoveToError("error")]


def test_omitted_values_are_those_of_the_endpoint() -> None:
    delays = [action.delay.total_seconds() for action in decisions(Retry(immediate=0)) if isinstance(action, RetryLater)]
    assert delays == [10, 20, 30]
    assert decisions(Retry(delays=[]))[:6] == [RetryNow()] * 5 + [MoveToError("error")]


@pytest.mark.parametrize(
    ("retry", "error", "covered"),
    [
        (Retry(), ValueError(), True),
        (Retry(on=(TimeoutError,)), TimeoutError(), True),
        (Retry(on=(OSError,)), TimeoutError(), True),
        (Retry(on=(TimeoutError,)), ValueError(), False),
        (Retry(on=TimeoutError), TimeoutError(), True),  # type: ignore[arg-type]
        (Retry(on="TimeoutError"), TimeoutError(), True),
        (Retry(on=(f"{__name__}.CardExpired",)), CardExpired(), True),
        (Retry(give_up_on=("LookupError",)), CardExpired(), False),
        (Retry(give_up_on=("builtins.LookupError",)), CardExpired(), False),
        (Retry(on=("django.db.DatabaseError",)), IntegrityError(), True),
        (Retry(on=(LookupError,), give_up_on=(CardExpired,)), CardExpired(), False),
        (Retry(on=(LookupError,), give_up_on=(CardExpired,)), KeyError(), True),
    ],
)
def test_errors_are_chosen_by_class_and_by_path(retry: Retry, error: Exception, covered: bool) -> None:
    assert retry.covers(error, "") is covered
    # After a lost transaction only the name of the class is known.
    assert retry.covers(None, path_of_class(type(error))) is covered


def test_error_of_a_module_that_is_not_loaded_goes_by_its_name() -> None:
    assert Retry(on=("gone.Error",)).covers(None, "gone.Error")
    assert not Retry(on=("gone.Error",)).covers(None, "gone.Other")


def test_error_that_is_not_retried_goes_to_the_error_queue_at_once() -> None:
    config = ENDPOINT.with_retry(Retry(give_up_on=(ValueError,)))
    assert default_policy(config, failure(ValueError())) == MoveToError("error")
    assert default_policy(config, failure(KeyError())) == RetryNow()


@given(jitter=st.floats(0, 1), delay=st.integers(0, 100_000))
def test_jitter_stays_in_its_part_of_the_delay(jitter: float, delay: int) -> None:
    action = default_policy(ENDPOINT.with_retry(Retry(0, [delay], jitter)), failure())
    assert isinstance(action, RetryLater)
    assert abs(action.delay.total_seconds() - delay) <= delay * jitter + 1e-5


def test_jitter_differs_from_message_to_message() -> None:
    config = ENDPOINT.with_retry(Retry(0, [1000], 0.5))
    assert len({str(default_policy(config, failure())) for _ in range(20)}) > 1


def test_exponential_delays_grow_to_their_cap() -> None:
    assert Retry.exponential(6, first=1, factor=3, cap=60).delays == tuple(
        timedelta(seconds=each) for each in (1, 3, 9, 27, 60, 60)
    )
    huge = Retry.exponential(5_000, first=timedelta(seconds=1), cap=timedelta(hours=1)).delays
    assert huge is not None
    assert huge[-1] == timedelta(hours=1)
    assert Retry.exponential(2).immediate == 0


def test_delays_of_days_are_not_too_old() -> None:
    """The limit of a day applies to the default delays, not to delays that are set explicitly."""
    now = datetime(2026, 1, 5, tzinfo=UTC)
    facts: dict[str, Any] = {"delayed_retries": 1, "last_delayed_retry_at": now - timedelta(days=3), "now": now}
    two, one = Retry(0, [timedelta(days=3), timedelta(days=3)]), Retry(0)
    assert default_policy(ENDPOINT.with_retry(two), failure(**facts)) == RetryLater(timedelta(days=3))
    assert default_policy(ENDPOINT.with_retry(one), failure(**facts)) == MoveToError("error")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"immediate": -1}, r"Retry\(immediate=-1\): expected a whole number of zero or more"),
        ({"immediate": True}, r"Retry\(immediate=True\)"),
        ({"delays": [1, -2]}, r"delays\[1\] is -2, expected seconds or a timedelta"),
        ({"delays": ["10"]}, r"delays\[0\] is '10'"),
        ({"delays": 10}, r"Retry\(delays=10\): expected a list of seconds or timedeltas, as in delays=\[10, 60\]"),
        ({"delays": "10"}, r"Retry\(delays='10'\): expected a list"),
        ({"delays": [10**12]}, r"delays\[0\] is 1000000000000, expected seconds or a timedelta, from zero to ten years"),
        ({"jitter": 1.5}, r"Retry\(jitter=1.5\): expected a number from 0 to 1"),
        ({"on": [ValueError()]}, r"Retry\(on=…\) has ValueError\(\): expected classes of exceptions"),
        ({"give_up_on": [int]}, r"Retry\(give_up_on=…\) has <class 'int'>"),
    ],
)
def test_unusable_values_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        Retry(**options)


@pytest.mark.parametrize(
    ("retry", "text"),
    [
        (Retry(), "as the endpoint"),
        (Retry(immediate=0, delays=[]), "immediate: 0; delayed: none"),
        (
            Retry(2, [10, timedelta(minutes=10)], 0.2, (TimeoutError,), (CardExpired,)),
            f"immediate: 2; delayed: 10 s, 600 s ± 20%; on: TimeoutError; give up on: {__name__}.CardExpired",
        ),
    ],
)
def test_text_names_the_values_that_are_set(retry: Retry, text: str) -> None:
    assert str(retry) == text
