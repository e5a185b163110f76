"""`async def` handlers: their database work joins the receive transaction; they fail, retry and run concurrently."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from sqlqueue_app import apublish, asend, asend_many, handles, send, subscribe
from sqlqueue_app.messages.errors import HandlerError
from sqlqueue_app.testing import FakeContext, InMemoryEndpoint, assert_sent
from tests.support.bench import Bench, Calls
from tests.support.worker_processes import address

MODES = ("transaction_scope", "sends_atomic_with_receive", "receive_only", "none")


def groups(bench: Bench) -> list[str]:
    return sorted(Group.objects.using(bench.database.alias).values_list("name", flat=True))


@pytest.mark.parametrize("fails", [False, True])
def test_rows_and_messages_commit_with_the_receive(bench: Bench, *, fails: bool) -> None:
    bench.configure()
    bench.install_queues("out")
    seen: list[bool] = []

    @handles("Test.Message")
    async def handler(message: Any, context: Any) -> None:
        await Group.objects.using(bench.database.alias).acreate(name="by the handler")
        seen.append(await sync_to_async(lambda: context.connection is connections[bench.database.alias])())
        await asend("Test.Out", {}, to=address(bench, "out"))
        await asend_many([("Test.Out", {})], to=address(bench, "out"))
        context.send("Test.Out", {}, to=address(bench, "out"))
        if fails:
            raise ValueError("of the handler")

    bench.put_message("Test.Message")
    bench.run()
    assert seen == [True]
    assert (groups(bench), len(bench.rows("out")), len(bench.rows("error"))) == (
        ([], 0, 1) if fails else (["by the handler"], 3, 0)
    )


@pytest.mark.parametrize("mode", MODES)
def test_messages_are_sent_in_every_mode(bench: Bench, mode: str) -> None:
    bench.configure(TRANSACTION_MODE=mode)
    bench.install_queues("out")

    @handles("Test.Message")
    async def handler(message: Any, context: Any) -> None:
        await asend("Test.Out", {}, to=address(bench, "out"))

    bench.put_message("Test.Message")
    bench.run()
    (sent,) = bench.headers("out")
    assert "NServiceBus.RelatedTo" in sent


def test_failure_is_retried_and_its_traceback_begins_in_the_handler(bench: Bench, calls: Calls) -> None:
    bench.configure(IMMEDIATE_RETRIES=2)

    @handles("Test.Message")
    async def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        await asyncio.sleep(0)
        raise ValueError("of the handler")

    bench.put_message("Test.Message")
    bench.run()
    (headers,) = bench.headers("error")
    assert calls.seen == [1, 2, 3]
    trace = headers["NServiceBus.ExceptionInfo.StackTrace"]
    python = trace.partition("Traceback (most recent call last):\n")[2]
    assert python.lstrip().startswith(f'File "{__file__}"'), trace


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_base_exception_fails_the_message(bench: Bench, error: type[BaseException]) -> None:
    bench.configure()

    @handles("Test.Message")
    async def handler(message: Any, context: Any) -> None:
        raise error("odd")

    bench.put_message("Test.Message")
    bench.run()
    assert (len(bench.rows("error")), bench.rows("Sales")) == (1, [])


def test_several_handlers_and_middleware_run_in_their_order(bench: Bench, calls: Calls) -> None:
    def middleware(call: Callable[..., Any]) -> Callable[..., Any]:
        def handle(message: Any, context: Any) -> Any:
            calls.add("before")
            result = call(message, context)
            calls.add("after")
            return result

        return handle

    @handles("Test.Message")
    async def first(message: Any, context: Any) -> None:
        calls.add(context.handler.rpartition(".")[2])

    @handles("Test.Message")
    def second(message: Any, context: Any) -> None:
        calls.add("second")

    class Third:
        async def __call__(self, message: Any, context: Any) -> None:
            calls.add(f"third {message}")

    handles("Test.Message")(Third())
    bench.configure(MIDDLEWARE=[middleware])
    bench.put_message("Test.Message", {"n": 1})
    bench.run()
    assert calls.seen == ["before", "first", "after", "before", "second", "after", "before", "third {'n': 1}", "after"]


def test_messages_are_handled_beside_each_other(postgresql_bench: Bench) -> None:
    """Each thread has its own event loop: a waiting handler does not delay the others."""
    together = threading.Barrier(4)

    @handles("Test.Message")
    async def handler(message: Any, context: Any) -> None:
        await asyncio.to_thread(together.wait, 60)
        await Group.objects.using(postgresql_bench.database.alias).acreate(name=str(message["n"]))

    postgresql_bench.configure()
    for number in range(4):
        postgresql_bench.put_message_of(number, "Test.Message", {"n": number})
    # The adaptive model would start one thread after the other, each only after messages have waited for seconds.
    postgresql_bench.run(max_concurrency=4, model="fixed")
    assert groups(postgresql_bench) == ["0", "1", "2", "3"]


def test_events_are_published_by_apublish_alone(bench: Bench) -> None:
    bench.configure()
    subscribe("Test.Event", endpoint="Sales")
    errors: list[str] = []

    @handles("Test.Event")
    def ignore(message: Any, context: Any) -> None: ...

    @handles("Test.Message")
    async def handler(message: Any, context: Any) -> None:
        await apublish("Test.Event", {})
        for call in (lambda: context.publish("Test.Event", {}), lambda: send("Test.Message", {}, to=address(bench, "error"))):
            try:
                call()
            except SynchronousOnlyOperation as error:
                errors.append(str(error))

    bench.put_message("Test.Message")
    bench.run()
    assert (len(errors), "await apublish()" in errors[0], bench.rows("error")) == (2, True, [])


def test_task_that_is_not_awaited_ends_with_the_handler(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    async def handler(message: Any, context: Any) -> None:
        context.task = asyncio.ensure_future(asyncio.Event().wait())
        context.task.add_done_callback(lambda task: calls.add(task.cancelled()))

    bench.configure()
    bench.put_message("Test.Message")
    bench.run()
    assert (calls.seen, bench.rows("error")) == ([True], [])


def test_handlers_run_in_tests_of_projects(handler_registry: None, settings: Any) -> None:
    settings.SQLQUEUE = {"ENDPOINTS": {"Sales": {}}, "ROUTES": {"Test.*": "Sales"}}

    @handles("Test.Message")
    async def handler(message: Any, context: Any) -> None:
        context.send("Test.Out", {"n": message["n"] + 1})

    @handles("Test.Out")
    def ignore(message: Any, context: Any) -> None: ...

    with InMemoryEndpoint("Sales") as sales:
        sales.handle("Test.Message", {"n": 1})
        assert_sent("Test.Out", {"n": 2})
    context = FakeContext()
    async_to_sync(handler)({"n": 1}, context)
    assert [each.body for each in context.sent] == [{"n": 2}]


def test_asynchronous_generator_is_refused(handler_registry: None) -> None:
    with pytest.raises(HandlerError, match="async generator"):

        @handles("Test.Message")
        async def handler(message: Any, context: Any) -> AsyncIterator[None]:
            yield


def test_generator_is_refused(handler_registry: None) -> None:
    with pytest.raises(HandlerError, match=r"handler is a generator, whose body would not run: write it without yield"):

        @handles("Test.Message")
        def handler(message: Any, context: Any) -> Iterator[None]:
            yield
