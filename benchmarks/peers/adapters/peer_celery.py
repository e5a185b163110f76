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
# for many short tasks its guide recommends a prefetch of 64 or more, and late acknowledgement if nothing may be lost
app.conf.worker_prefetch_multiplier = 64
app.conf.task_ignore_result = True
app.conf.task_acks_late = app.conf.task_reject_on_worker_lost = os.environ["BENCH_ACKS"] == "late"


@app.task(name="handle")
def on_message(body: dict[str, Any]) -> None:
    handle(body)


class Sending(serving.Sender):
    """`delay()`; many calls share a producer, because there is no bulk function."""

    def send(self, body: serving.Body) -> None:
        """One message."""
        on_message.delay(body)

    def send_many(self, bodies: Sequence[serving.Body]) -> None:
        """One after the other."""
        with app.producer_pool.acquire(block=True) as producer:
            for body in bodies:
                on_message.apply_async((body,), producer=producer)

    def clear(self) -> None:
        """Also clears messages of a killed worker: RabbitMQ returns them when the connection ends, Redis keeps them separately."""
        with app.connection() as connection:
            if connection.transport.driver_type == "redis":
                connection.default_channel.client.flushdb()
        app.control.purge()
        threading.Event().wait(0.3)
        app.control.purge()


if __name__ == "__main__":
    serving.main(lambda: None, Sending)
