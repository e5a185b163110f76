"""Handlers that do what no handler should: a clear failure, or what the documentation says; nothing is lost, others are handled."""

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
    """Message 0 meets `bad`, which gets the context; message 1 is handled."""

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> Any:
        calls.add((message["n"], context.attempt))
        return bad(context) if message["n"] == 0 else None


def assert_message_0_failed(bench: Bench, calls: Calls, said: str) -> None:
    """It is in the error queue with its reason, and message 1 was handled."""
    (headers,) = bench.headers("error")
    assert said in headers["NServiceBus.ExceptionInfo.Message"]
    assert (1, 1) in calls.seen
    assert bench.rows("Sales") == []


@pytest.mark.parametrize("value", [True, False])
def test_autocommit_set_by_hand(bench: Bench, calls: Calls, value: bool) -> None:
    bad_at_first(calls, lambda context: transaction.set_autocommit(value, using=bench.database.alias))
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "forbidden when an 'atomic' block is active")


@pytest.mark.parametrize("statement", ["commit", "rollback"])
def test_djangos_own_commit_and_rollback(bench: Bench, calls: Calls, statement: str) -> None:
    bad_at_first(calls, lambda context: getattr(transaction, statement)(using=bench.database.alias))
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "forbidden when an 'atomic' block is active")


def execute(context: Any, statement: str) -> None:
    with context.connection.cursor() as cursor:
        cursor.execute(statement)


def test_a_rollback_past_django_gives_the_message_back_and_counts_the_attempt(bench: Bench, calls: Calls) -> None:
    bench.configure(IMMEDIATE_RETRIES=1)
    bad_at_first(calls, lambda context: execute(context, "ROLLBACK"))
    send_numbers(bench)
    bench.run()
    assert sorted(calls.seen) == [(0, 1), (0, 2), (1, 1)]
    assert_message_0_failed(bench, calls, "cannot be committed")


def test_a_commit_past_django_loses_no_message(bench: Bench, calls: Calls) -> None:
    bad_at_first(calls, lambda context: execute(context, "COMMIT"))
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "cannot be committed")


def test_the_isolation_level_of_the_transaction_cannot_be_changed_any_more(postgresql_bench: Bench, calls: Calls) -> None:
    bench = postgresql_bench
    bad_at_first(calls, lambda context: execute(context, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "must be called before any query")


def test_the_isolation_level_of_the_session_may_change_and_receiving_goes_on(postgresql_bench: Bench, calls: Calls) -> None:
    bench = postgresql_bench
    bench.configure(MAX_CONCURRENCY=1)
    level = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"
    bad_at_first(calls, lambda context: execute(context, level))
    send_numbers(bench, 5)
    bench.run()
    assert sorted(calls.seen) == [(n, 1) for n in range(5)]
    assert bench.rows("error") == bench.rows("Sales") == []


def test_a_raw_connection_that_is_closed_gives_the_message_back_and_counts_the_attempt(bench: Bench, calls: Calls) -> None:
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


@pytest.mark.parametrize(("bad", "said"), [(generator, "a generator"), (asynchronous_generator, "an asynchronous generator")])
def test_a_generator_that_is_returned_is_a_failure(bench: Bench, calls: Calls, bad: Callable[[], object], said: str) -> None:
    """Nothing of it has run: a message that is taken for handled would be lost."""
    bad_at_first(calls, lambda context: bad())
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, f"returned {said}")


class Odd(BaseException):
    """No Exception: nobody but its own author expects it."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, Odd])
def test_a_base_exception_is_its_messages_failure(bench: Bench, calls: Calls, error: type[BaseException]) -> None:
    def bad(context: Any) -> None:
        raise error("odd")

    bad_at_first(calls, bad)
    send_numbers(bench)
    bench.run()
    assert_message_0_failed(bench, calls, "odd")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_a_handler_forks_and_ends_harms_nobody(bench: Bench, calls: Calls) -> None:
    def fork(context: Any) -> None:
        execute(context, "SELECT 1")
        with warnings.catch_warnings():
            # 3.12 and later warn of forks beside threads, and they are right
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
def test_a_child_that_comes_back_from_a_handler_is_ended_and_is_no_second_worker(postgresql_bench: Bench) -> None:
    bench = postgresql_bench
    prepare(bench, HANDLERS=[FORKING], MAX_CONCURRENCY=1)
    send_many("Fork.Message", [{"number": number, "fork": number == 0} for number in range(20)], to=address(bench, "Sales"))
    with worker_process(bench, "--until-empty") as process:
        assert process.wait(60) == 0, process.communicate(timeout=60)
        worker = process.pid
    assert handled(bench) == [(number, worker) for number in range(20)]
    assert bench.rows("error") == bench.rows("Sales") == []
