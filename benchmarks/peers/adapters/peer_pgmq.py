"""pgmq: functions in the database. It has no worker, so ours reads, handles and deletes as its documentation shows."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

import psycopg
from pgmq import PGMQueue
from pgmq.install import get_embedded_install_sql
from psycopg_pool import ConnectionPool

from benchmarks.peers.adapters import serving
from benchmarks.peers.adapters.handling import DATABASE, handle

QUEUE = "bench"
VISIBILITY_SECONDS = 30


def connect(connections: int) -> PGMQueue:
    """Connect the client; the functions are already installed."""
    pool = ConnectionPool(os.environ[DATABASE], min_size=1, max_size=connections, open=True)
    return PGMQueue(pool=pool, vt=VISIBILITY_SECONDS, init_extension=False)


class Pgmq(serving.Sender):
    """`send()` and `send_batch()`."""

    def __init__(self) -> None:
        self._queue = connect(1)

    def send(self, body: serving.Body) -> None:
        """One statement."""
        self._queue.send(QUEUE, body)

    def send_many(self, bodies: Sequence[serving.Body]) -> None:
        """One statement too."""
        self._queue.send_batch(QUEUE, list(bodies))


def receive(queue: PGMQueue, quantity: int) -> None:
    """Receive by long polling in batches, which are deleted together after handling."""
    while True:
        found = queue.read_with_poll(QUEUE, qty=quantity, max_poll_seconds=5, poll_interval_ms=100)
        for message in found:
            handle(message.message)
        if len(found) == 1:
            queue.delete(QUEUE, found[0].msg_id)
        elif found:
            queue.delete_batch(QUEUE, [message.msg_id for message in found])


def install() -> None:
    """Create its functions, from the SQL of its Python client, and one queue."""
    with psycopg.connect(os.environ[DATABASE], autocommit=True) as connection:
        connection.execute(get_embedded_install_sql())
    connect(1).create_queue(QUEUE)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        threads, quantity = int(sys.argv[2]), int(sys.argv[3])
        shared = connect(threads)
        for _ in range(threads):
            threading.Thread(target=receive, args=(shared, quantity)).start()
    else:
        serving.main(install, Pgmq)
