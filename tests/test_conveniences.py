"""Conveniences that users of other queues expect, each used through the public interface; a test that cannot pass yet is marked.

Each test is the smallest use of one convenience. Its full tests, with kills and on every database, are with those of its part.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.core.management import load_command_class
from django.db import transaction

import sqlqueue_app
from sqlqueue_app import handles, send
from tests.support.bench import Bench, Calls
from tests.support.worker_processes import address

missing = pytest.mark.xfail(strict=True, reason="not built yet")


def public(name: str) -> Any:
    """A name of the package that may not exist yet."""
    return getattr(sqlqueue_app, name)


def test_coroutines_send_and_handle(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    async def handler(message: Any, context: Any) -> None:
        await public("asend")("Test.Out", {}, to=address(bench, "out"))

    bench.configure()
    bench.install_queues("out")
    bench.put_message("Test.Message")
    bench.run()
    assert len(bench.rows("out")) == 1


def test_worker_reloads_when_code_changes() -> None:
    parser = load_command_class("sqlqueue_app", "run_sqlqueue_worker").create_parser("manage.py", "run_sqlqueue_worker")
    assert parser.parse_args(["--reload"]).reload


def test_eager_setting_handles_at_once(bench: Bench, calls: Calls) -> None:
    handles("Test.Message")(lambda message, context: calls.add(message["n"]))
    bench.database.configure(ENDPOINTS={"Sales": {}}, ROUTES={"Test.*": "Sales"}, EAGER=True)
    bench.install()
    send("Test.Message", {"n": 1})
    assert calls.seen == [1]


def test_handler_has_retries_of_its_own(bench: Bench, calls: Calls) -> None:
    retry = public("Retry")(immediate=1, delays=[], on=(TimeoutError,), give_up_on=(ValueError,))
    register: Callable[..., Any] = handles

    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        raise TimeoutError

    register("Test.Message", retry=retry)(handler)
    bench.configure(IMMEDIATE_RETRIES=5)
    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == [1, 2]


def test_handler_has_time_limits() -> None:
    register: Callable[..., Any] = handles
    register("Test.Message", soft_time_limit=1, hard_time_limit=5)(lambda message, context: None)


def test_messages_of_one_key_are_handled_one_at_a_time(bench: Bench, calls: Calls) -> None:
    handles("Test.Message", key=lambda message: message["customer"])(lambda message, context: calls.add(message["n"]))
    bench.configure()
    for number in (1, 2, 3):
        bench.put_message_of(number, "Test.Message", {"customer": "anna", "n": number})
    bench.run(max_concurrency=4)
    assert calls.seen == [1, 2, 3]


def test_message_is_enqueued_once_for_its_key(bench: Bench) -> None:
    bench.configure(routes={"Test.*": "Sales"})
    call: Callable[..., str] = send
    first = call("Test.Message", {}, unique_key="invoice-42", unique_for=timedelta(hours=1))
    assert call("Test.Message", {}, unique_key="invoice-42", unique_for=timedelta(hours=1)) == first
    assert len(bench.rows("Sales")) == 1


def test_message_has_a_priority(bench: Bench, calls: Calls) -> None:
    handles("Test.Message")(lambda message, context: calls.add(message["n"]))
    bench.configure(routes={"Test.*": "Sales"}, PRIORITIES=True)
    call: Callable[..., str] = send
    call("Test.Message", {"n": 1})
    call("Test.Message", {"n": 2}, priority="high")
    bench.run(max_concurrency=1)
    assert calls.seen == [2, 1]


def test_schedule_is_a_row_of_the_database(bench: Bench) -> None:
    assert public("schedule")("nightly", "Test.Message", cron="0 2 * * *")
    assert public("unschedule")("nightly")


def test_signal_is_sent_when_a_message_is_handled(bench: Bench, calls: Calls) -> None:
    def receiver(**arguments: Any) -> None:
        calls.add(arguments["message_type"])

    handles("Test.Message")(lambda message, context: None)
    message_handled = import_module("sqlqueue_app.signals").message_handled
    message_handled.connect(receiver)
    bench.put_message("Test.Message")
    bench.run()
    message_handled.disconnect(receiver)
    assert calls.seen == ["Test.Message"]


def test_waiting_message_is_revoked(bench: Bench) -> None:
    bench.configure(routes={"Test.*": "Sales"})
    message_id = send("Test.Message", {})
    assert public("revoke")(message_id)
    assert bench.rows("Sales") == []


def test_body_above_the_limit_is_refused(bench: Bench) -> None:
    bench.configure(routes={"Test.*": "Sales"})
    with transaction.atomic(using=bench.database.alias), pytest.raises(sqlqueue_app.SqlQueueError, match="16 MiB"):
        send("Test.Message", {"text": "x" * (17 << 20)})


def test_saga_is_a_model() -> None:
    assert inspect.isclass(public("Saga"))
