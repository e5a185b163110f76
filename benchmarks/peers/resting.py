"""Idle workers: the latency of a message, the load on the server and the memory.

All peers are idle at the same time, so that they see the same machine; messages are sent to one after the other.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.databases import PostgreSQL
from benchmarks.peers.notes import Notes
from benchmarks.peers.plays import Play
from benchmarks.peers.workers import Worker

CONCURRENCY = 8
# An idle session reports its last transactions ten seconds later (PGSTAT_IDLE_INTERVAL).
_SETTLED_SECONDS = 12.0
_TRANSACTIONS = "SELECT datname, xact_commit + xact_rollback FROM pg_stat_database WHERE datname IS NOT NULL"


@dataclass(slots=True)
class Rest:
    """The results of one peer."""

    milliseconds: list[float]
    """From the call that sends to the handler."""
    transactions: float = 0.0
    """Transactions of the server per second while nothing is sent."""
    megabytes: float = 0.0
    processes: int = 0


def measure(
    plays: Sequence[Play], server: PostgreSQL, *, messages: int, watched: float, log_line: Callable[[str], None]
) -> dict[str, Rest]:  # fmt: skip
    """Results by key of the peer."""
    found = {play.peer.key: Rest([]) for play in plays}
    with ExitStack() as stack:
        resting = []
        for play in plays:
            play.clear()
            notes = play.notes()
            worker = play.start(play.peer.at_rest(CONCURRENCY), notes)
            stack.callback(worker.kill)
            resting.append((play, notes, worker))
        for play, notes, worker in list(resting):
            # opens every connection and fills every cache
            play.send(2 * CONCURRENCY)
            try:
                notes.wait_for(2 * CONCURRENCY, worker)
            except RuntimeError as problem:
                # the others are still measured
                log_line(f"{play.peer.name} does not come to rest: {problem}")
                resting.remove((play, notes, worker))
                del found[play.peer.key]
        for _ in range(messages):
            for play, notes, worker in resting:
                # not in step with the polling of any peer
                threading.Event().wait(random.uniform(0.01, 0.11))
                found[play.peer.key].milliseconds.append(_latency(play, notes, worker))
        log_line(f"at rest: {messages} messages to each, now watched for {watched:g} s")
        transactions = _watch(server, watched)
        for play, _, worker in resting:
            rest = found[play.peer.key]
            rest.transactions = transactions.get(play.database, 0.0)
            rest.megabytes, rest.processes = worker.megabytes(), len(worker.processes())
    return found


def _latency(play: Play, notes: Notes, worker: Worker) -> float:
    before = notes.count()
    (number,), answer = play.send(1)
    notes.wait_for(before + 1, worker)
    last = notes.all()[-1]
    if last.number != number:
        raise RuntimeError(f"message {number} was sent to {play.peer.name}, but {last.number} was handled")
    return (last.seconds - answer["began"]) * 1000


def _watch(server: PostgreSQL, seconds: float) -> dict[str, float]:
    """Transactions per second in each database, observed from another database."""
    with server.connect("postgres") as connection:

        def count() -> dict[str, int]:
            connection.execute("SELECT pg_stat_clear_snapshot()")
            return {str(name): int(number) for name, number in connection.execute(_TRANSACTIONS).fetchall()}

        threading.Event().wait(_SETTLED_SECONDS)
        before, began = count(), time.monotonic()
        threading.Event().wait(seconds)
        after, passed = count(), time.monotonic() - began
    return {name: max(0, after[name] - before.get(name, 0)) / passed for name in after}
