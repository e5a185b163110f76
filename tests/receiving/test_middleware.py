"""Callables around each handler, outermost first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.messages.errors import ConfigurationError
from tests.support.bench import Bench, Calls


def noting(name: str, calls: Calls, made: list[str] | None = None) -> Callable[..., Any]:
    def middleware(call: Callable[..., Any]) -> Callable[..., Any]:
        if made is not None:
            made.append(name)

        def handle(message: Any, context: Any) -> Any:
            calls.add(f"{name} in {context.handler.rpartition('.')[2]} {context.message_types}")
            try:
                return call(message, context)
            finally:
                calls.add(f"{name} out")

        return handle

    return middleware


def test_middleware_surrounds_each_handler_in_order(bench: Bench, calls: Calls) -> None:
    made: list[str] = []

    @handles("Test.Message")
    def first(message: Any, context: Any) -> None:
        calls.add("first")

    @handles("Test.Message")
    def second(message: Any, context: Any) -> None:
        calls.add("second")

    bench.configure(MIDDLEWARE=[noting("outer", calls, made), noting("inner", calls)])
    for _ in range(2):
        bench.put_message("Test.Message")
        bench.run()
        made_by_run, made[:] = list(made), []
        assert made_by_run == ["outer", "outer"]  # once for each handler, when the endpoint is built
    around = ["inner out", "outer out"]
    once = [
        f"outer in first {['Test.Message']}", f"inner in first {['Test.Message']}", "first", *around,
        f"outer in second {['Test.Message']}", f"inner in second {['Test.Message']}", "second", *around,
    ]  # fmt: skip
    assert calls.seen == [*once, *once]


def test_middleware_may_send_and_fail_the_message(bench: Bench, calls: Calls, counting: Callable[..., None]) -> None:
    """The rows and messages of the middleware belong to the attempt, and its exception fails the message."""
    bench.install_queues("out")

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def handle(message: Any, context: Any) -> Any:
            call(message, context)
            context.send("Test.Out", message, to="out")
            if message.get("bad"):
                raise ValueError("refused by the middleware")

        return handle

    bench.configure(MIDDLEWARE=[guarded], IMMEDIATE_RETRIES=1)
    bench.put_message("Test.Message", {"bad": True})
    bench.run()
    bench.put_message("Test.Message", {"good": True})
    bench.run()
    assert len(calls.seen) == 3
    assert [row.body for row in bench.rows("out")] == [b'{"good":true}']
    assert bench.headers("error")[0]["NServiceBus.ExceptionInfo.Message"] == "refused by the middleware"


def test_handler_that_has_not_run_is_detected_inside_middleware(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def generator(message: Any, context: Any) -> Any:
        return (number for number in range(3))

    def silent(call: Callable[..., Any]) -> Callable[..., Any]:
        def handle(message: Any, context: Any) -> None:
            call(message, context)

        return handle

    bench.configure(MIDDLEWARE=[silent])
    bench.put_message("Test.Message")
    bench.run()
    assert "that has not run" in bench.headers("error")[0]["NServiceBus.ExceptionInfo.Message"]


def returns_nothing(call: Any) -> None:
    pass


async def is_async(call: Any) -> Any:
    return call


def makes_async(call: Any) -> Any:
    async def handle(message: Any, context: Any) -> None:
        pass

    return handle


def takes_nothing() -> None:
    pass


HERE = __name__


@pytest.mark.parametrize(
    ("middleware", "text"),
    [
        ("no.such.middleware", r"MIDDLEWARE of endpoint 'Sales'\[0\] names 'no.such.middleware', which cannot be imported"),
        (f"{HERE}.HERE", r"MIDDLEWARE of endpoint 'Sales'\[0\] names .* which is str: expected a function"),
        (f"{HERE}.returns_nothing", r"\[0\] is .*returns_nothing, which returned None; expected `def middleware\(call\)`"),
        (f"{HERE}.is_async", r"\[0\] is .*is_async, which returned <coroutine"),
        (f"{HERE}.makes_async", r"\[0\] is .*makes_async, which returned .* is async: it could not share the transaction"),
        (f"{HERE}.takes_nothing", r"\[0\] is .*takes_nothing, which must take \(call\)"),
    ],
)
def test_invalid_middleware_is_reported_at_start(
    sqlite_bench: Bench, counting: Callable[..., None], middleware: Any, text: str
) -> None:
    sqlite_bench.configure(MIDDLEWARE=[middleware])
    with pytest.raises(ConfigurationError, match=text):
        sqlite_bench.run()
