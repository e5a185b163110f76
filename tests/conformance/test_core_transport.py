"""The core transport tests of NServiceBus (docs/internals/endpoints.md#core-transport-tests), in every transaction mode.

Their onError is the recoverability policy here. docs/reference/conformance.md maps their tests to these.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sqlqueue_app import MoveToError, RetryNow, default_policy, handles, send
from sqlqueue_app.receiving.stopping import StopSignal
from tests.conformance.modes import in_modes, in_transactions
from tests.support.bench import Bench, Calls
from tests.support.waiting import SECONDS_TO_END
from tests.support.worker_processes import address

UNICODE = {"Überschrift": "Größe 📐", "ключ": "значение \u2028 \x7f", "emoji 🚀": "👩‍🚀"}

policies: list[Callable[[Any, Any], Any]] = []


def policy(config: Any, context: Any) -> Any:
    """The policy that the current test registered, else the default."""
    return (policies[-1] if policies else default_policy)(config, context)


@pytest.fixture(autouse=True)
def no_policy_is_left() -> Any:
    yield
    policies.clear()


def watch(inspect: Callable[[Any], object]) -> None:
    """Pass each failure to `look`; the default policy decides."""

    def policy_that_inspects(config: Any, context: Any) -> Any:
        inspect(context)
        return default_policy(config, context)

    policies.append(policy_that_inspects)


def configure(bench: Bench, mode: str, **endpoint: Any) -> None:
    configured = endpoint.pop("IMMEDIATE_RETRIES", 0)
    retries = 0 if mode == "none" else configured
    bench.configure(TRANSACTION_MODE=mode, IMMEDIATE_RETRIES=retries, RECOVERABILITY=f"{__name__}.policy", **endpoint)


@in_modes
def test_message_is_handled_with_its_id_headers_and_body(bench: Bench, calls: Calls, mode: str) -> None:
    configure(bench, mode)
    handles("Test.Message")(lambda message, context: calls.add((context.message_id, context.headers["x"], message)) and None)
    message_id = send("Test.Message", {"a": 1}, to=address(bench, "Sales"), headers={"x": "y"})
    bench.run()

    assert calls.seen == [(message_id, "y", {"a": 1})]
    assert bench.rows("Sales") == bench.rows("error") == []


@in_modes
def test_context_has_the_endpoint_and_policy_has_the_queue(bench: Bench, calls: Calls, mode: str) -> None:
    configure(bench, mode)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.endpoint)
        raise LookupError

    watch(lambda context: calls.add((context.endpoint, context.queue)))
    bench.put_message("Test.Message")
    bench.run()

    assert calls.seen == ["Sales", ("Sales", "Sales")]


@in_modes
@pytest.mark.parametrize("model", ["adaptive", "fixed", "monitor"])
def test_several_messages_are_handled_concurrently(postgresql_bench: Bench, mode: str, model: str) -> None:
    bench = postgresql_bench
    configure(bench, mode, MAX_CONCURRENCY=3, CONCURRENCY_MODEL=model)
    together = threading.Barrier(3, timeout=SECONDS_TO_END)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        # The adaptive model starts its second thread after at most six messages and the third after at most twelve.
        if message["number"] >= 30:
            together.wait()

    for number in range(33):
        bench.put_message_of(number, "Test.Message", {"number": number})
    assert bench.run() == 33
    assert bench.rows("error") == []


@in_modes
def test_policy_gets_the_exception_the_attempt_and_the_message(bench: Bench, mode: str) -> None:
    configure(bench, mode)
    seen: list[Any] = []
    failure = LookupError("no")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        failure.args = ("no", "but with context")
        raise failure

    watch(seen.append)
    bench.put_message("Test.Message", {"a": 1}, x="y")
    bench.run()

    (reported,) = seen
    # The policy gets the same exception object, with what the handler added to it.
    assert reported.exception is failure
    assert (reported.failed_attempts, reported.headers["x"]) == (1, "y")
    (row,) = bench.rows("error")
    assert json.loads(row.body or b"") == {"a": 1}


@in_transactions
def test_attempt_number_grows_with_each_immediate_retry(bench: Bench, calls: Calls, mode: str) -> None:
    configure(bench, mode, IMMEDIATE_RETRIES=3)
    reported: list[int] = []

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        raise LookupError

    watch(lambda context: reported.append(context.failed_attempts))
    bench.put_message("Test.Message")
    bench.run()

    assert calls.seen == reported == [1, 2, 3, 4]


@in_transactions
def test_immediate_retry_follows_immediately(bench: Bench, calls: Calls, mode: str) -> None:
    configure(bench, mode)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        if calls.add(message["number"]) == 1:
            raise LookupError

    policies.append(lambda config, context: RetryNow())
    bench.put_message_of(1, "Test.Message", {"number": 1})
    bench.put_message_of(2, "Test.Message", {"number": 2})
    bench.run(max_concurrency=1)

    assert calls.seen == [1, 1, 2]


@in_transactions
def test_failing_policy_is_critical_and_replaced_by_the_default(
    bench: Bench, calls: Calls, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    configure(bench, mode, IMMEDIATE_RETRIES=1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        if calls.add(context.attempt) == 1:
            raise LookupError("once")

    def broken(config: Any, context: Any) -> Any:
        raise RuntimeError("the policy")

    policies.append(broken)
    bench.put_message("Test.Message")
    bench.run()

    assert calls.seen == [1, 2]
    assert [record.levelname for record in caplog.records if getattr(record, "event", "") == "recoverability_failed"] == [
        "CRITICAL"
    ]


@in_modes
def test_message_moved_by_the_policy_arrives(bench: Bench, calls: Calls, mode: str) -> None:
    configure(bench, mode)
    bench.install_queues("elsewhere")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        raise LookupError

    policies.append(lambda config, context: MoveToError(address(bench, "elsewhere")))
    bench.put_message("Test.Message")
    bench.run()

    assert len(bench.rows("elsewhere")) == 1
    assert bench.rows("error") == []


@in_modes
def test_changed_headers_reach_neither_policy_nor_retry_nor_error_queue(bench: Bench, calls: Calls, mode: str) -> None:
    configure(bench, mode, IMMEDIATE_RETRIES=1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.headers["x"])
        context.headers["x"] = "changed by the handler"
        raise LookupError

    def change(config: Any, context: Any) -> Any:
        calls.add(context.headers["x"])
        context.headers["x"] = "changed by the policy"
        return default_policy(config, context)

    policies.append(change)
    bench.put_message("Test.Message", x="y")
    bench.run()

    assert set(calls.seen) == {"y"}
    assert len(calls.seen) == (2 if mode == "none" else 4)
    assert [headers["x"] for headers in bench.headers("error")] == ["y"]


@in_modes
def test_failure_rolls_back_all_but_immediate_sends(bench: Bench, mode: str) -> None:
    configure(bench, mode)
    bench.install_queues("out", "immediate")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send("Test.Out", {}, to=address(bench, "out"))
        context.send("Test.Out", {}, to=address(bench, "immediate"), immediate=True)
        raise LookupError

    bench.put_message("Test.Message")
    bench.run()

    assert [len(bench.rows(queue)) for queue in ("out", "immediate", "error")] == [0, 1, 1]


@in_modes
def test_transaction_is_open_if_the_mode_has_one(bench: Bench, calls: Calls, mode: str) -> None:
    configure(bench, mode)
    handles("Test.Message")(
        lambda message, context: calls.add((context.connection is not None, bench.database.connection.in_atomic_block)) and None
    )
    bench.put_message("Test.Message")
    bench.run()

    assert calls.seen == [(mode != "none", mode != "none")]


@in_transactions
def test_failed_commit_is_a_failed_attempt(postgresql_bench: Bench, calls: Calls, mode: str) -> None:
    bench = postgresql_bench
    configure(bench, mode, IMMEDIATE_RETRIES=1)
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE once (number integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        cursor.execute("INSERT INTO once VALUES (1)")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        with context.connection.cursor() as cursor:
            cursor.execute("INSERT INTO once VALUES (1)")

    bench.put_message("Test.Message")
    bench.run()

    assert calls.seen == [1, 2]
    (headers,) = bench.headers("error")
    assert "once_number_key" in headers["NServiceBus.ExceptionInfo.Message"]


@in_modes
def test_stopped_worker_can_be_started_again(bench: Bench, counting: Callable[..., None], calls: Calls, mode: str) -> None:
    configure(bench, mode)
    for number in range(2):
        bench.put_message_of(number, "Test.Message")
        assert bench.run() == 1

    assert len(calls.seen) == 2


@in_modes
@pytest.mark.parametrize("where", ["handler", "policy"])
def test_stop_waits_for_messages_in_progress(bench: Bench, calls: Calls, mode: str, where: str) -> None:
    configure(bench, mode)
    stop = StopSignal()

    def stop_here(of: str) -> None:
        if of == where:
            stop.set()
            calls.add("went on")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        stop_here("handler")
        raise LookupError

    watch(lambda context: stop_here("policy"))
    bench.put_message_of(1, "Test.Message")
    bench.put_message_of(2, "Test.Message")
    assert bench.run(stop, until_empty=False, max_concurrency=1) == 1

    assert calls.seen == ["went on"]
    assert (len(bench.rows("Sales")), len(bench.rows("error"))) == (1, 1)


def test_unicode_in_headers_is_kept(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add({name: context.headers[name] for name in UNICODE})
        context.forward(address(bench, "error"))

    send("Test.Message", {}, to=address(bench, "Sales"), headers=UNICODE)
    bench.run()

    assert calls.seen == [UNICODE]
    (headers,) = bench.headers("error")
    assert {name: headers[name] for name in UNICODE} == UNICODE


def test_process_that_only_sends_needs_no_receiver(bench: Bench) -> None:
    bench.database.configure(ENDPOINTS={}, SEND_AS="Web")
    bench.install_queues("Web")
    send("Test.Message", {}, to=address(bench, "Sales"))

    (headers,) = bench.headers("Sales")
    assert headers["NServiceBus.OriginatingEndpoint"] == "Web"
