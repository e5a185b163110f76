"""Changing the concurrency while a worker runs, in every mode.

See docs/internals/endpoints.md#core-transport-tests.

Runs on PostgreSQL, because SQLite has one writer and handles one message at a time. For the concurrency models, see
test_change_concurrency.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sqlqueue_app import handles, set_concurrency
from sqlqueue_app.models import Instance
from sqlqueue_app.receiving import instances
from tests.conformance.modes import in_modes
from tests.support.bench import Bench, Running
from tests.support.waiting import poll_until

MESSAGES = 200


class Gate:
    """Handlers that block until released; counts how many run at once (`busy`) and the maximum (`most`)."""

    def __init__(self) -> None:
        self._go_on = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._let_go = self._finished = self.busy = self.most = 0

    def handle(self, message: Any, context: Any) -> None:
        with self._lock:
            self.busy += 1
            self.most = max(self.most, self.busy)
        self._go_on.acquire()
        with self._lock:
            self.busy -= 1
            self._finished += 1

    def let_go(self, messages: int = 1) -> None:
        self._let_go += messages
        self._go_on.release(messages)

    def at_rest_with(self, number: int) -> bool:
        """Whether exactly `number` messages are being handled and none is finishing. Releases one if there are more."""
        with self._lock:
            at_rest, busy = self._finished == self._let_go, self.busy
        if at_rest and busy > number:
            self.let_go()
        return at_rest and busy == number


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    handles("Test.Message")(made.handle)
    yield made
    made.let_go(MESSAGES)


@pytest.fixture
def busy_bench(postgresql_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(instances, "HEARTBEAT_SECONDS", 0.05)
    for number in range(MESSAGES):
        postgresql_bench.put_message_of(number, "Test.Message")
    return postgresql_bench


def run(bench: Bench, gate: Gate, mode: str, *numbers: int) -> None:
    """Start a worker with the first concurrency, then request the others one after the other."""
    first, *more = numbers
    last = numbers[-1]
    rows = Instance.objects.using(bench.database.alias)

    def reached(number: int) -> bool:
        # The gap between two messages looks like fewer threads, so the worker must also have reported its number.
        return gate.at_rest_with(number) and [row.threads.get("Sales") for row in rows.all()] == [number]

    bench.configure(TRANSACTION_MODE=mode, MAX_CONCURRENCY=first, CONCURRENCY_MODEL="fixed")
    with Running(bench):
        try:
            poll_until(lambda: reached(first), what=f"{first} messages are handled at once")
            for number in more:
                set_concurrency("Sales", number)
            poll_until(lambda: reached(last), what=f"{last} messages are handled at once")
            gate.most = 0
            for _ in range(10):
                gate.let_go()
                poll_until(lambda: gate.at_rest_with(last), what="the next message")
            assert gate.most == last
        finally:
            gate.let_go(MESSAGES)
    assert bench.rows("error") == []


@in_modes
def test_raised_number_lets_more_messages_be_handled_at_once(busy_bench: Bench, gate: Gate, mode: str) -> None:
    run(busy_bench, gate, mode, 2, 5)


@in_modes
def test_lowered_number_lets_fewer_messages_be_handled_at_once(busy_bench: Bench, gate: Gate, mode: str) -> None:
    run(busy_bench, gate, mode, 5, 2)


@in_modes
def test_last_of_many_numbers_counts(busy_bench: Bench, gate: Gate, mode: str) -> None:
    run(busy_bench, gate, mode, 4, 1, 6, 2, 3)
