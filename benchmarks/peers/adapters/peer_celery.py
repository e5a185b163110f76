"""celery on a broker; its worker is `celery worker`."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from celery import Celery

from benchmarks.peers.adapters import serving
from benchmarks.peers.adapters.handling import handle

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.task_default_queue = os.environ["BENCH_QUEUE"]
# many short tasks: its guide asks for a prefetch of 64 or more then, and for late acknowledgement where nothing may be lost
app.conf.worker_prefetch_multiplier = 64
app.conf.task_ignore_result = True
app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = os.environ["BENCH_ACKS"] == "late"


@app.task(name="handle")
def on_message(body: dict[str, Any]) -> None:
    handle(body)


class Sending(serving.Sender):
    """`delay()`; many of them share a producer, for there is nothing in bulk."""

    def send(self, body: serving.Body) -> None:
        """One message."""
        on_message.delay(body)

    def send_many(self, bodies: Sequence[serving.Body]) -> None:
        """One after the other."""
        with app.producer_pool.acquire(block=True) as producer:
            for body in bodies:
                on_message.apply_async((body,), producer=producer)

    def clear(self) -> None:
        """Also what a killed worker held: RabbitMQ puts it back when it sees the connection end, Redis keeps it aside."""
        with app.connection() as connection:
            if connection.transport.driver_type == "redis":
                connection.default_channel.client.flushdb()
        app.control.purge()
        threading.Event().wait(0.3)
        app.control.purge()


if __name__ == "__main__":
    serving.main(lambda: None, Sending)
