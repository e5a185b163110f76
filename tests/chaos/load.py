"""Mixed load: threads that send in transactions, some of which roll back. Committed messages are also in the table `sent`.

A sender survives an outage: uncommitted messages are not in `sent`, and it continues with other messages.
"""

from __future__ import annotations

import random
import time
import uuid
from datetime import timedelta

from django.db import DatabaseError as DjangoDatabaseError, connections, transaction

from sqlqueue_app import publish, send, send_many, subscribe
from sqlqueue_app.messages.errors import DatabaseError
from tests.chaos.app import EVENT, MODULE, TO_BILLING, TO_SALES
from tests.support.bench import FAST, Bench
from tests.support.senders import SendingThreads

ENDPOINTS = ("Sales", "Billing")
ROLLED_BACK = 0.1
# The relative frequency of each way. "never" fails at every attempt, "again" at the first, "later" until it was delayed.
WAYS = {"plain": 10, "chain": 4, "bill": 8, "delayed": 2, "event": 2, "again": 2, "later": 1, "never": 1}
MAX_PER_TRANSACTION = 12
MAX_DELAY_SECONDS = 0.5


def prepare(bench: Bench, *, web: dict[str, object] | None = None, **endpoint: object) -> None:
    """Set up Sales, Billing with batches, both subscribed to the event, Web as the sender, and the tables of the books."""
    shared = {**FAST, "HANDLERS": [MODULE], "IMMEDIATE_RETRIES": 1, "DELAYED_RETRIES": 1, "DELAYED_RETRY_INCREASE": 1, **endpoint}
    bench.database.configure(
        ENDPOINTS={"Sales": shared, "Billing": {**shared, "BATCH_SIZE": 20}, "Web": {**FAST, "HANDLERS": [], **(web or {})}},
        ROUTES={"Chaos.*": "Sales", "Bill.*": "Billing"},
        SEND_AS="Web",
    )
    bench.install()
    for name in ENDPOINTS:
        subscribe(EVENT, endpoint=name)
    with bench.database.connection.cursor() as cursor:
        # No keys, so that a wrong row is not refused.
        cursor.execute("CREATE TABLE effects (id varchar(60) NOT NULL, pid integer NOT NULL)")
        cursor.execute("CREATE TABLE sent (id varchar(60) NOT NULL, way varchar(20) NOT NULL)")


class Senders(SendingThreads):
    """Threads that send until `most` messages are committed."""

    def __init__(self, bench: Bench, *, limit: int, a_second: float, threads: int = 2, seed: int = 1) -> None:
        """`a_second`: the maximum number of messages per second of all threads together."""
        super().__init__((f"{seed}.{number}" for number in range(threads)), deadline=120)
        self._bench = bench
        self._limit = limit
        self._a_second = a_second
        self.committed = 0
        """How many messages were sent in a committed transaction."""
        self.refused = 0
        """How many transactions the database has refused or left unanswered."""
        self.rolled_back: set[str] = set()
        """The ids of messages whose transaction was rolled back on purpose."""

    def _send(self, chance: random.Random) -> None:
        begun = time.monotonic()
        while self.committed < self._limit and not self._stop.is_set():
            try:
                self._transaction(chance)
            except (DatabaseError, DjangoDatabaseError):
                with self._lock:
                    self.refused += 1
                connections.close_all()
                self._stop.wait(0.05)
            self._stop.wait(max(0.0, begun + self.committed / self._a_second - time.monotonic()))

    def _transaction(self, chance: random.Random) -> None:
        alias = self._bench.database.alias
        ways = chance.choices(list(WAYS), list(WAYS.values()), k=chance.randint(1, MAX_PER_TRANSACTION))
        sent = [(str(uuid.uuid4()), way) for way in ways]
        rolled_back = chance.random() < ROLLED_BACK
        with transaction.atomic(using=alias):
            for name, way in sent:
                send_one(chance, name, way)
            if chance.random() < 0.2:
                more = [(str(uuid.uuid4()), "plain") for _ in range(chance.randint(2, MAX_PER_TRANSACTION))]
                send_many(TO_SALES, [{"id": name, "way": way} for name, way in more])
                sent += more
            note(alias, sent)
            if rolled_back:
                transaction.set_rollback(True, using=alias)
        with self._lock:
            if rolled_back:
                self.rolled_back |= {name for name, _ in sent}
            else:
                self.committed += len(sent)


def send_one(chance: random.Random, name: str, way: str) -> None:
    """Send one message of this way in the caller's transaction."""
    if way == "event":
        publish(EVENT, {"id": name})
    elif way == "bill":
        send(TO_BILLING, {"id": name})
    elif way == "delayed":
        send(TO_SALES, {"id": name, "way": way}, delay=timedelta(seconds=chance.uniform(0, MAX_DELAY_SECONDS)))
    else:
        send(TO_SALES, {"id": name, "way": way})


def note(alias: str, sent: list[tuple[str, str]]) -> None:
    """Record for the books what the transaction sends."""
    with connections[alias].cursor() as cursor:
        cursor.executemany("INSERT INTO sent (id, way) VALUES (%s, %s)", sent)
