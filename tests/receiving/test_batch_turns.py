"""Threads that handle batches take turns, and none waits long for its turn."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from django.db import transaction

from sqlqueue_app import handles
from sqlqueue_app.receiving import waiting
from sqlqueue_app.receiving.waiting import BATCHES_WITHOUT, TURN_SECONDS, TURNS, BatchTurn
from tests.support.bench import Bench, Calls


def holds(turn: BatchTurn, lock: threading.Lock) -> bool:
    """Return whether a batch that begins and ends now has the turn."""
    with turn:
        return lock.locked()


def test_batch_waits_for_the_one_before_it() -> None:
    lock, order = threading.Lock(), []
    first, second = BatchTurn(lock), BatchTurn(lock, wait_seconds=60)

    def next_batch() -> None:
        with second:
            order.append("second")

    thread = threading.Thread(target=next_batch)
    with first:
        thread.start()
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    assert not lock.locked()


def test_thread_that_waited_in_vain_skips_turns_for_a_while() -> None:
    lock = threading.Lock()
    turn = BatchTurn(lock, wait_seconds=0.001)
    with lock:
        with turn:
            pass
        assert lock.locked()
    assert not any(holds(turn, lock) for _ in range(BATCHES_WITHOUT))
    assert holds(turn, lock)


def test_free_threaded_python_takes_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    lock = threading.Lock()
    assert not holds(BatchTurn(lock), lock)


def test_long_turn_ends_between_two_messages() -> None:
    lock, now = threading.Lock(), [100.0]
    turn = BatchTurn(lock, lambda: now[-1])
    with turn:
        now.append(now[0] + TURN_SECONDS)
        turn.between()
        assert lock.locked()
        now.append(now[0] + 2 * TURN_SECONDS)
        turn.between()
        turn.between()
        assert not lock.locked()
    assert not lock.locked()
    assert not any(holds(turn, lock) for _ in range(BATCHES_WITHOUT))
    assert holds(turn, lock)


@pytest.mark.parametrize("fails", [False, True])
def test_turn_covers_handling_but_not_the_commit(bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    monkeypatch.setattr(waiting, "TURN_SECONDS", 60.0)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(("handler", TURNS.locked()))
        transaction.on_commit(lambda: calls.add(("hook", TURNS.locked())), using=bench.database.alias)
        if fails:
            raise ValueError("always")

    bench.configure(BATCH_SIZE=3)
    for number in range(3):
        bench.put_message_of(number, "Test.Message")
    bench.run(max_concurrency=1)
    assert calls.seen == [("handler", True)] * 3 + ([] if fails else [("hook", False)] * 3)
    assert len(bench.rows("error")) == (3 if fails else 0)
    assert not TURNS.locked()
