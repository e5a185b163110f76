"""Delayed tables of a bench, and a mover that polls on request of the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from sqlqueue_app.conf import get_settings
from sqlqueue_app.receiving.delayed import DelayedMover, due_messages_of
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from tests.support.bench import Bench
from tests.support.waiting import join_all

FORWARD = "NServiceBus.SqlServer.ForwardDestination"
MESSAGE = {"NServiceBus.MessageId": "aaaaaaaa-0000-0000-0000-000000000001", "NServiceBus.EnclosedMessageTypes": "Test.Message"}
PAST = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
ROUTES = {"Test.*": "Sales", "Other.*": "Billing"}


def office_of(bench: Bench) -> Bench:
    """Sales with its delayed table, a queue Billing, and Web with its delayed table, as which this process sends."""
    bench.database.configure(SEND_AS="Web")
    bench.configure(routes=ROUTES)
    bench.install_queues("Billing")
    return bench


def delayed(bench: Bench, endpoint: str = "Web") -> DelayedTable:
    return DelayedTable(bench.database.alias, delayed_address(get_settings().address_book(bench.database.vendor), endpoint))


def waiting(bench: Bench, endpoint: str = "Web") -> int:
    return delayed(bench, endpoint).count(1_000_000)[0]


def put(bench: Bench, due: datetime = PAST, endpoint: str = "Web", body: bytes = b"{}", /, **headers: str) -> None:
    delayed(bench, endpoint).add(json.dumps({**MESSAGE, **headers}), body, due)


@contextmanager
def working(bench: Bench) -> Iterator[None]:
    """Run a worker in its own thread during the block."""
    stop = StopSignal()
    thread = threading.Thread(target=lambda: bench.run(stop, until_empty=False), name="worker")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        join_all([thread])


class ManualMover:
    """A mover without a thread and with its own clock; the test decides when it polls."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.stop = StopSignal()
        self.mover = DelayedMover(due_messages_of(get_settings()), self.stop, clock=lambda: self.seconds)

    def run(self, after: float = 0.0) -> float:
        self.seconds += after
        return self.mover.move_due()
