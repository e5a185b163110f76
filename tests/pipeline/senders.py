"""Concurrent senders that commit row versions out of order and roll back a tenth of their transactions.

Each committed transaction also writes the ids of its messages to the table `truth`.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from sqlqueue_app.tables.queue import QueueTable
from tests.support.databases import QueueDatabase
from tests.support.filling import message, row
from tests.support.senders import SendingThreads
from tests.support.waiting import join_all

ROLLED_BACK = 0.1


class Senders(SendingThreads):
    """Send until there are `most` messages."""

    def __init__(self, database: QueueDatabase, queue: QueueTable, *, limit: int, threads: int = 4) -> None:
        super().__init__(range(threads), deadline=600)
        self._database = database
        self._queue = queue
        self._left = limit
        with database.connection.cursor() as cursor:
            cursor.execute("CREATE TABLE truth (id varchar(40) PRIMARY KEY)")

    def _send(self, chance: random.Random) -> None:
        while not self._stop.is_set() and (size := self._take(chance.randint(1, 40))):
            self._transaction(chance, size)

    def _take(self, wanted: int) -> int:
        with self._lock:
            size = min(wanted, self._left)
            self._left -= size
            return size

    def _transaction(self, chance: random.Random, size: int) -> None:
        ids = [str(uuid.uuid4()) for _ in range(size)]
        alias = self._database.alias
        with transaction.atomic(using=alias):
            for each in ids[: size // 2]:
                self._queue.send([row({"NServiceBus.MessageId": each})])
            if self._database.vendor == "postgresql":
                # the row versions are allocated; other transactions commit first
                self._stop.wait(chance.random() * 0.05)
            for each in ids[size // 2 :]:
                self._queue.send([row({"NServiceBus.MessageId": each})])
            with connections[alias].cursor() as cursor:
                cursor.executemany("INSERT INTO truth (id) VALUES (%s)", [(each,) for each in ids])
            if chance.random() < ROLLED_BACK:
                transaction.set_rollback(True, using=alias)


def truth(database: QueueDatabase) -> set[str]:
    """The ids of all messages that were committed."""
    with database.connection.cursor() as cursor:
        cursor.execute("SELECT id FROM truth")
        return {str(row[0]) for row in cursor.fetchall()}


@contextmanager
def slow_sender(database: QueueDatabase, audit: QueueTable) -> Iterator[None]:
    """Send a message at the start of the context and commit it at the end."""
    sent, commit = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def send_slowly() -> None:
        try:
            with transaction.atomic(using=database.alias):
                audit.send([message()])
                sent.set()
                commit.wait(60)
        except Exception as error:  # noqa: BLE001 -- asserted below
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=send_slowly)
    thread.start()
    try:
        assert sent.wait(60)
        yield
    finally:
        commit.set()
        join_all([thread])
    assert errors == []
