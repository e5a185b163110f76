"""Handlers that misbehave: each causes a clear failure or what the documentation states; nothing is lost, others are handled."""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from sqlqueue_app import handles, send_many
from tests.receiving.fork_app import MODULE as FORKING
from tests.support.bench import Bench, Calls
from tests.support.worker_processes import address, handled, prepare, worker_process


def send_numbers(bench: Bench, count: int = 2) -> None:
    send_many("Test.Message", [{"n": n} for n in range(count)], to=address(bench, "Sales"))


def bad_at_first(calls: Calls, bad: Callable[[Any], Any]) -> None:
    """Register a handler that calls `bad` with the context for message 0; message 1 is handled."""

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> Any:
        calls.add((message["n"], context.attempt))
        return bad(context) if message["n"] == 0 else None


def assert_message_0_failed(bench: Bench, calls: Calls, expected: str) -> None:
    """Message 0 is in the error queue with its reason, and message 1 was handled."""
    (headers,) = bench.headers("error")
    assert expected in headers["NServiceBus.ExceptionInfo.Message"]
    assert (1, 1) in calls.seen
    assert bench.rows("Sales") == []


@pytest.mark.parametrize("value", [True, False])
def test_handler_cannot_set_autocommit(bench: Bench, calls: Calls, value: bool) -> None:
    bad_at_first(calls, lambda context: transaction.set_autocommit(value, using=bench.database.alias))
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "forbidden when an 'atomic' block is active")


@pytest.mark.parametrize("statement", ["commit", "rollback"])
def test_handler_cannot_call_djangos_commit_or_rollback(bench: Bench, calls: Calls, statement: str) -> None:
    bad_at_first(calls, lambda context: getattr(transaction, statement)(using=bench.database.alias))
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "forbidden when an 'atomic' block is active")


def execute(context: Any, statement: str) -> None:
    with context.connection.cursor() as cursor:
        cursor.execute(statement)


def test_raw_rollback_returns_the_message_and_counts_the_attempt(bench: Bench, calls: Calls) -> None:
    bench.configure(IMMEDIATE_RETRIES=1)
    bad_at_first(calls, lambda context: execute(context, "ROLLBACK"))
    send_numbers(bench)
    bench.run()
    assert sorted(calls.seen) == [(0, 1), (0, 2), (1, 1)]
    assert_message_0_failed(bench, calls, "cannot be committed")


def test_raw_commit_loses_no_message(bench: Bench, calls: Calls) -> None:
    bad_at_first(calls, lambda context: execute(context, "COMMIT"))
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "cannot be committed")


def test_handler_cannot_change_isolation_level_of_transaction(postgresql_bench: Bench, calls: Calls) -> None:
    bench = postgresql_bench
    bad_at_first(calls, lambda context: execute(context, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "must be called before any query")


def test_handler_may_change_isolation_level_of_session(postgresql_bench: Bench, calls: Calls) -> None:
    bench = postgresql_bench
    bench.configure(MAX_CONCURRENCY=1)
    level = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"
    bad_at_first(calls, lambda context: execute(context, level))
    send_numbers(bench, 5)
    bench.run()
    assert sorted(calls.seen) == [(n, 1) for n in range(5)]
    assert bench.rows("error") == bench.rows("Sales") == []


def test_closed_raw_connection_returns_the_message_and_counts_the_attempt(bench: Bench, calls: Calls) -> None:
    bench.configure(IMMEDIATE_RETRIES=1)
    bad_at_first(calls, lambda context: context.connection.connection.close())
    send_numbers(bench)
    bench.run()
    assert sorted(calls.seen) == [(0, 1), (0, 2), (1, 1)]
    assert len(bench.rows("error")) == 1
    assert bench.rows("Sales") == []


def generator() -> Iterator[None]:
    raise AssertionError("its body never runs")
    yield


async def asynchronous_generator() -> AsyncIterator[None]:
    raise AssertionError("its body never runs")
    yield


@pytest.mark.parametrize(("bad", "expected"), [(generator, "a generator"), (asynchronous_generator, "an asynchronous generator")])
def test_returned_generator_is_a_failure(bench: Bench, calls: Calls, bad: Callable[[], object], expected: str) -> None:
    """The body of the generator has not run: if the message counted as handled, it would be lost."""
    bad_at_first(calls, lambda context: bad())
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, f"returned {expected}")


class Odd(BaseException):
    """Not an Exception, so only code that knows the class catches it."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, Odd])
def test_base_exception_fails_the_message(bench: Bench, calls: Calls, error: type[BaseException]) -> None:
    def bad(context: Any) -> None:
        raise error("odd")

    bad_at_first(calls, bad)
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "odd")


class Unspeakable(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        raise SystemExit("not as text")


def test_exception_that_exits_when_formatted_fails_the_message(bench: Bench, calls: Calls) -> None:
    def bad(context: Any) -> None:
        raise Unspeakable

    bad_at_first(calls, bad)
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "<SystemExit while the exception was turned into text>")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_that_exits_does_no_harm(bench: Bench, calls: Calls) -> None:
    def fork(context: Any) -> None:
        execute(context, "SELECT 1")
        with warnings.catch_warnings():
            # 3.12 and later warn about forks beside threads
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        execute(context, "SELECT 1")

    bad_at_first(calls, fork)
    send_numbers(bench)
    bench.run()
    assert sorted(calls.seen) == [(0, 1), (1, 1)]
    assert bench.rows("error") == bench.rows("Sales") == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_that_returns_is_ended(postgresql_bench: Bench) -> None:
    bench = postgresql_bench
    prepare(bench, HANDLERS=[FORKING], MAX_CONCURRENCY=1)
    send_many("Fork.Message", [{"number": number, "fork": number == 0} for number in range(20)], to=address(bench, "Sales"))
    with worker_process(bench, "--until-empty") as process:
        assert process.wait(60) == 0, process.communicate(timeout=60)
        worker = process.pid
    assert handled(bench) == [(number, worker) for number in range(20)]
    assert bench.rows("error") == bench.rows("Sales") == []
