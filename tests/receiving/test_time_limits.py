"""Soft time limits raise in the handler's thread and cancel its statement; hard ones end the process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue_app import SoftTimeLimitExceeded, SqlQueueError, handles, starts
from sqlqueue_app.messages.errors import ConfigurationError, HandlerError
from sqlqueue_app.receiving.handlers import Handler, with_time_limits
from sqlqueue_app.receiving.time_limits import TimeLimits
from tests.support.bench import Bench, Calls

# A statement that runs for much longer than the limit.
ENDLESS = {
    "postgresql": "SELECT pg_sleep(60)",
    "sqlserver": (
        "WITH c (n) AS (SELECT CAST(1 AS bigint) UNION ALL SELECT n + 1 FROM c WHERE n < 4000000) "
        "SELECT COUNT_BIG(*) FROM c OPTION (MAXRECURSION 0)"
    ),
    "sqlite": "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c",
}
TOO_LONG = SoftTimeLimitExceeded.__module__ + "." + SoftTimeLimitExceeded.__qualname__


def run_for_ever() -> None:
    """Compute until an exception arrives, at most a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass
    raise AssertionError("nothing has ended it")


def test_handler_above_its_soft_limit_fails(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message", soft_time_limit=0.1)
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        run_for_ever()

    bench.configure(IMMEDIATE_RETRIES=1, DELAYED_RETRIES=0)
    bench.put_message("Test.Message")
    bench.run()

    assert calls.seen == [1, 2]
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"] == TOO_LONG
    text = headers["NServiceBus.ExceptionInfo.Message"]
    assert text.endswith("handler has exceeded its soft time limit of 0.1 s")
    assert "run_for_ever" in headers["NServiceBus.ExceptionInfo.StackTrace"]


def test_running_statement_is_cancelled_and_the_handler_may_continue(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message", soft_time_limit=timedelta(seconds=0.3))
    def handler(message: Any, context: Any) -> None:
        alias, endless = bench.database.alias, ENDLESS[bench.database.vendor]
        with pytest.raises(SoftTimeLimitExceeded), transaction.atomic(using=alias), context.connection.cursor() as cursor:
            cursor.execute(endless)
        with context.connection.cursor() as cursor:
            # The limit is exceeded only once.
            cursor.execute("SELECT 1")
        calls.add("caught")

    bench.configure()
    bench.put_message("Test.Message")
    bench.run()

    assert calls.seen == ["caught"]
    assert bench.rows("error") == []
    assert bench.rows("Sales") == []


def test_limit_of_the_endpoint_holds_for_handlers_without_one(bench: Bench, calls: Calls) -> None:
    def long(message: Any, context: Any) -> None:
        calls.add("long")
        run_for_ever()

    handles("Test.Message")(long)
    handles("Test.Own", soft_time_limit=3600)(lambda message, context: calls.add("own"))
    bench.configure(SOFT_TIME_LIMIT=0.1, IMMEDIATE_RETRIES=0, DELAYED_RETRIES=0)
    bench.put_message_of(1, "Test.Message")
    bench.put_message_of(2, "Test.Own")
    bench.run()

    assert sorted(calls.seen) == ["long", "own"]
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.EnclosedMessageTypes"] == "Test.Message"


def test_coroutine_is_cancelled_at_its_soft_limit(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message", soft_time_limit=0.5)
    async def handler(message: Any, context: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            calls.add("cleaned up")

    bench.configure(IMMEDIATE_RETRIES=0, DELAYED_RETRIES=0)
    bench.put_message("Test.Message")
    bench.run()

    assert calls.seen == ["cleaned up"]
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"] == TOO_LONG
    assert headers["NServiceBus.ExceptionInfo.Message"].endswith("has exceeded its soft time limit of 0.5 s")


def test_timeout_of_a_coroutine_itself_is_not_the_limit(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message", soft_time_limit=60)
    async def handler(message: Any, context: Any) -> None:
        raise TimeoutError("of its own")

    bench.configure(IMMEDIATE_RETRIES=0, DELAYED_RETRIES=0)
    bench.put_message("Test.Message")
    bench.run()

    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.Message"] == "of its own"


def test_exception_never_arrives_after_the_call(sqlite_bench: Bench) -> None:
    """Calls that end at the moment of their limit: each returns or raises, and nothing is raised outside of it."""
    clock = iter(range(10**9))
    limits = TimeLimits("Sales", clock=lambda: float(next(clock)))
    outcomes = {"returned": 0, "raised": 0}
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            limits.probe()

    def work(message: int, context: Any) -> int:
        total = 0
        for number in range(message % 700):
            total += number
        return total

    handler = Handler("Test.Message", work, None, soft_time_limit=2.0)
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for number in range(20_000):
            try:
                limits.call(handler, number, None, None)
                outcomes["returned"] += 1
            except SoftTimeLimitExceeded:
                outcomes["raised"] += 1
    finally:
        stop.set()
        thread.join()
        connections.close_all()
    assert sum(outcomes.values()) == 20_000
    assert outcomes["raised"], "no call reached its limit"


def test_error_is_a_timeout_of_python() -> None:
    assert issubclass(SoftTimeLimitExceeded, TimeoutError)
    assert issubclass(SoftTimeLimitExceeded, SqlQueueError)


@pytest.mark.parametrize("value", [0, -1, True, "10", float("nan"), float("inf"), timedelta(0)])
@pytest.mark.parametrize("name", ["soft_time_limit", "hard_time_limit"])
def test_wrong_limit_is_refused(name: str, value: object) -> None:
    register: Callable[..., Any] = handles
    with pytest.raises(HandlerError, match=rf"{name}=.*: expected a number of seconds above 0, or a timedelta"):
        register("Test.Message", **{name: value})


def test_hard_limit_must_be_above_the_soft_one() -> None:
    handler = Handler("Test.Message", lambda message, context: None, None, soft_time_limit=10.0)
    with pytest.raises(ConfigurationError, match="soft time limit of 10 s and a hard one of 5 s, which is always first"):
        with_time_limits([handler], None, 5.0)


@pytest.mark.parametrize("decorate", [handles, starts])
@pytest.mark.parametrize(("soft", "hard"), [(5, 3), (5, 5), (timedelta(minutes=1), 59.5)])
def test_hard_limit_that_is_not_above_the_soft_one_is_refused(decorate: Any, soft: object, hard: object) -> None:
    with pytest.raises(HandlerError, match=r"@\w+\(…, soft_time_limit=.*, hard_time_limit=.*\): expected a hard limit above"):
        decorate("Test.Message", soft_time_limit=soft, hard_time_limit=hard)
