"""Retries of a handler, `@handles(…, retry=…)`, and of a type, by the setting RETRIES."""

from __future__ import annotations

from typing import Any

import pytest

from sqlqueue_app import Retry, default_policy, handles
from sqlqueue_app.messages.errors import ConfigurationError, HandlerError
from tests.support.bench import Bench, Calls
from tests.support.delayed_tables import delayed


def fails_with(error: type[Exception], calls: Calls, retry: Retry | None = None, kind: str = "Test.Message") -> None:
    @handles(kind, retry=retry)
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        raise error("always")


@pytest.mark.parametrize("mode", ["receive_only", "sends_atomic_with_receive", "transaction_scope"])
def test_message_is_tried_as_its_handler_says(bench: Bench, calls: Calls, mode: str) -> None:
    fails_with(LookupError, calls, Retry(immediate=1, delays=[0, 0]))
    bench.configure(TRANSACTION_MODE=mode, IMMEDIATE_RETRIES=5, DELAYED_RETRIES=0)
    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == [1, 2] * 3
    assert len(bench.rows("error")) == 1


def test_error_to_give_up_on_goes_to_the_error_queue_at_once(bench: Bench, calls: Calls) -> None:
    fails_with(ValueError, calls, Retry(give_up_on=(ValueError,)))
    bench.configure(IMMEDIATE_RETRIES=5)
    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == [1]


def test_delayed_retry_waits_for_its_delay_with_jitter(bench: Bench, calls: Calls) -> None:
    fails_with(LookupError, calls, Retry(immediate=0, delays=[1_000], jitter=0.2))
    bench.configure()
    bench.put_message("Test.Message")
    bench.run()
    wait = delayed(bench, "Sales").seconds_until_due()
    assert wait is not None
    # the lower limit allows for the time that a slow machine needs between the failure and this line
    assert 500 < wait <= 1_200


def test_setting_takes_precedence_over_the_handler_and_an_exact_type_over_a_namespace(bench: Bench, calls: Calls) -> None:
    fails_with(LookupError, calls, Retry(immediate=4, delays=[]))
    other = Calls()
    fails_with(LookupError, other, kind="Test.Other")
    retries = {"Test.*": Retry(immediate=2, delays=[]), "Test.Message": Retry(immediate=1, delays=[])}
    bench.configure(RETRIES=retries, IMMEDIATE_RETRIES=0)
    bench.put_message_of(1, "Test.Message")
    bench.put_message_of(2, "Test.Other")
    bench.run()
    assert (calls.seen, other.seen) == ([1, 2], [1, 2, 3])


def test_handler_that_fails_decides_among_several(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message", retry=Retry(immediate=9, delays=[]))
    def first(message: Any, context: Any) -> None:
        calls.add("first")

    fails_with(LookupError, calls, Retry(immediate=1, delays=[]))
    bench.configure()
    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == ["first", 1, "first", 2]


def test_policy_of_the_project_gets_the_retries_of_the_handler(bench: Bench, calls: Calls) -> None:
    seen.clear()
    retry = Retry(immediate=1, delays=[])
    fails_with(LookupError, calls, retry)
    bench.configure(RECOVERABILITY=f"{__name__}.recording", IMMEDIATE_RETRIES=5)
    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == [1, 2]
    assert [(each.immediate_retries, each.delayed_retries, each.retry) for each in seen] == [(1, 0, retry)] * 2


seen: list[Any] = []


def recording(config: Any, context: Any) -> Any:
    seen.append(config)
    return default_policy(config, context)


def test_retry_in_mode_none_is_refused(bench: Bench, calls: Calls) -> None:
    fails_with(LookupError, calls, Retry(immediate=1))
    bench.configure(TRANSACTION_MODE="none", IMMEDIATE_RETRIES=0, DELAYED_RETRIES=0)
    with pytest.raises(ConfigurationError, match="but TRANSACTION_MODE of endpoint"):
        bench.run()


@pytest.mark.parametrize("path", ["shop.errors.Missing", "TimeoutErorr"])
def test_path_of_an_error_that_does_not_exist_is_refused(bench: Bench, calls: Calls, path: str) -> None:
    fails_with(LookupError, calls, Retry(on=(path,)))
    bench.configure()
    with pytest.raises(ConfigurationError, match=f"has a Retry for 'Test.Message', which names '.*{path}'"):
        bench.run()


def test_value_that_is_no_retry_is_refused() -> None:
    with pytest.raises(HandlerError, match=r"retry=3\): expected a Retry"):
        handles("Test.Message", retry=3)  # type: ignore[arg-type]
