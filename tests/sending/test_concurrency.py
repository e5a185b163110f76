"""Many threads at once, and asynchronous callers."""

from __future__ import annotations

import asyncio
import threading

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction

from sqlqueue_app import send, send_many
from sqlqueue_app.tables.queue import forget_tables
from tests.sending.conftest import Desk
from tests.sending.types import PlaceOrder
from tests.support.waiting import join_all

THREADS = 10
EACH = 30


def test_ten_threads_send_at_once(desk: Desk) -> None:
    """No thread has sent before: all read settings, table and columns at once. Every third transaction is rolled back."""
    forget_tables()
    together = threading.Barrier(THREADS)
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            together.wait(60)
            for number in range(EACH):
                try:
                    with transaction.atomic(using=desk.alias):
                        send(PlaceOrder(f"{thread}/{number}"))
                        send_many([PlaceOrder(f"{thread}/{number}/a"), PlaceOrder(f"{thread}/{number}/b")])
                        if number % 3 == 2:
                            raise InterruptedError
                except InterruptedError:
                    pass
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    join_all(threads)

    assert errors == []
    sent = [body["order_id"] for body in desk.bodies()]
    kept = [number for number in range(EACH) if number % 3 != 2]
    assert sorted(sent) == sorted(f"{t}/{n}{end}" for t in range(THREADS) for n in kept for end in ("", "/a", "/b"))
    for own in range(THREADS):
        in_order = [order_id for order_id in sent if order_id.startswith(f"{own}/")]
        assert in_order == [f"{own}/{n}{end}" for n in kept for end in ("", "/a", "/b")]


@pytest.mark.parametrize("warm", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("many", [False, True], ids=["send", "send_many"])
def test_asynchronous_caller_gets_djangos_error_and_sends_nothing(desk: Desk, warm: bool, many: bool) -> None:
    if warm:
        send(PlaceOrder("before"))

    async def call() -> None:
        if many:
            send_many([PlaceOrder("42")])
        else:
            send(PlaceOrder("42"))

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(call())

    assert len(desk.rows()) == warm


def test_asynchronous_caller_may_send_in_a_thread(desk: Desk) -> None:
    def work() -> str:
        try:
            return send(PlaceOrder("42"))
        finally:
            connections.close_all()

    async def call() -> str:
        return await sync_to_async(work, thread_sensitive=False)()

    message_id = asyncio.run(call())

    assert [headers["NServiceBus.MessageId"] for headers in desk.headers()] == [message_id]
