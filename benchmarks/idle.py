"""An idle queue: the time from a commit to the handler, and the load of the idle worker on the server.

The worker is a real `run_sqlqueue_worker`; the sender is a plain connection without sqlqueue. The worker becomes idle between the
messages, so that each one finds it idle. Then each message follows the previous one at once, as requests in a loop do.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import psycopg

from benchmarks import messages
from benchmarks.databases import QUEUE, PostgreSQL
from benchmarks.series import Section, Series
from tests.support.processes import end

PAUSE_SECONDS = 0.15
# The time that a process needs between a reply and its next request.
REQUEST_SECONDS = 0.005
WATCHED_SECONDS = 30.0
_PATIENCE_SECONDS = 60.0
# The session that listens reports the transactions of its notifications only with its next statement, once a minute
# (FIND_TRIGGERS_SECONDS); other idle sessions report theirs ten seconds later (PGSTAT_IDLE_INTERVAL).
_SETTLED_SECONDS = 72.0
_INSERT = f'INSERT INTO "{QUEUE}" (id, headers, body) VALUES (gen_random_uuid(), %s, %s)'
# The observer adds two transactions.
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


@dataclass(frozen=True, slots=True)
class Idle:
    """Milliseconds to the handler from just before the COMMIT of the sender, and from its end, which a slow disk delays; the first
    also for messages in a row; all sorted. Transactions per second while no message arrives."""

    milliseconds: tuple[float, ...]
    after_commit: tuple[float, ...]
    in_a_row: tuple[float, ...]
    transactions: float


def percentile(values: tuple[float, ...], percent: float) -> float:
    """The smallest of the sorted values that at least `percent` percent of them do not exceed."""
    return values[max(0, -(-int(len(values) * percent) // 100) - 1)]


def measure_idle(
    database: PostgreSQL, *, wake_up: bool = True, trigger: bool = True, model: str = "adaptive", count_messages: int = 200,
    watched_seconds: float = WATCHED_SECONDS,
) -> Idle:  # fmt: skip
    """One worker with one endpoint, its callback queue included; its heartbeats and purges count as transactions."""
    database.fill(0)
    options: dict[str, object] = {
        "HANDLERS": ["benchmarks.idle_handlers"],
        "WAKE_UP": wake_up,
        "CALLBACKS": True,
        "CONCURRENCY_MODEL": model,
    }
    environment = database.environment(QUEUE, **options)
    with database.connect() as connection:
        connection.execute(f'DROP TRIGGER IF EXISTS sqlqueue_wake_up ON "{QUEUE}"')
        if trigger:
            install = [sys.executable, "-m", "django", "sqlqueue_install", "--wake-up"]
            subprocess.run(install, env=environment, check=True, stdout=subprocess.DEVNULL)
        with running_worker(environment, "wake_up_on" if wake_up else "worker_started") as handled_messages:
            whole, after_commit = zip(*_latencies(connection, handled_messages, count_messages, PAUSE_SECONDS), strict=True)
            in_a_row, _ = zip(*_latencies(connection, handled_messages, count_messages, REQUEST_SECONDS), strict=True)
            transactions = _watch(connection, watched_seconds)
            return Idle(tuple(sorted(whole)), tuple(sorted(after_commit)), tuple(sorted(in_a_row)), transactions)


def measure(database: PostgreSQL, *, count_messages: int, log_line: Callable[[str], None]) -> Section:
    """The series of the goals, with wake-up and trigger, and the cost of polling for comparison."""
    series = []
    for key, name, wakes in (("idle", "WAKE_UP with the trigger", True), ("polling", "polling", False)):
        found = measure_idle(database, wake_up=wakes, trigger=wakes, count_messages=count_messages)
        p50, p99 = percentile(found.milliseconds, 50), percentile(found.milliseconds, 99)
        after, in_a_row = percentile(found.after_commit, 99), percentile(found.in_a_row, 50)
        log_line(
            f"{name}: commit to handler p50 {p50:.1f} ms, p99 {p99:.1f} ms, after the commit p99 {after:.1f} ms, "
            f"in a row p50 {in_a_row:.1f} ms, {found.transactions:.2f} transactions/s"
        )
        series += [
            Series(f"{key}.p50", f"{name}: from commit to handler, p50", "ms", [p50]),
            Series(f"{key}.p99", f"{name}: from commit to handler, p99", "ms", [p99]),
            Series(f"{key}.after", f"{name}: from the end of the commit to handler, p99", "ms", [after]),
            Series(f"{key}.in_a_row", f"{name}: from commit to handler, one after the other, p50", "ms", [in_a_row]),
            Series(f"{key}.statements", f"{name}: transactions of an idle endpoint", "1/s", [found.transactions]),
        ]
    return Section("idle", "a queue at rest", database.name, series, {"messages": count_messages})


@contextmanager
def running_worker(environment: dict[str, str], ready: str) -> Iterator[queue.Queue[tuple[int, float]]]:
    """A worker as users start it, once it has printed `ready`; the output of its handler arrives in the queue."""
    handled_messages: queue.Queue[tuple[int, float]] = queue.Queue()
    started = threading.Event()
    log: deque[str] = deque(maxlen=30)
    command = [sys.executable, "-m", "django", "run_sqlqueue_worker", "--log-format", "json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:

        def read_handler() -> None:
            assert worker.stdout is not None
            for line in worker.stdout:
                number, at = line.split()
                handled_messages.put((int(number), float(at)))

        def read_log() -> None:
            assert worker.stderr is not None
            for line in worker.stderr:
                log.append(line)
                if f'"{ready}"' in line:
                    started.set()

        readers = [threading.Thread(target=read) for read in (read_handler, read_log)]
        for reader in readers:
            reader.start()
        try:
            if not started.wait(_PATIENCE_SECONDS):
                raise RuntimeError(f"the worker did not log {ready} within {_PATIENCE_SECONDS:g} s: {''.join(log)}")
            yield handled_messages
        finally:
            end(worker, _PATIENCE_SECONDS)
            for reader in readers:
                reader.join()


def _latencies(
    connection: psycopg.Connection[Any], handled_messages: queue.Queue[tuple[int, float]], wanted: int, pause_seconds: float
) -> list[tuple[float, float]]:
    """For each message the milliseconds to its handler from just before its COMMIT, and from the end of it."""
    headers = messages.stored_headers()
    pause = threading.Event()
    found: list[tuple[float, float]] = []
    # The first three messages open connections and fill caches.
    for number in count(-3):
        if len(found) == wanted:
            return found
        pause.wait(pause_seconds)
        body = json.dumps({**messages.body(), "order_id": str(number)}).encode()
        connection.execute("BEGIN")
        connection.execute(_INSERT, [headers, body])
        began = time.monotonic()
        connection.execute("COMMIT")
        committed = time.monotonic()
        handled, at = handled_messages.get(timeout=_PATIENCE_SECONDS)
        if handled != number:
            raise RuntimeError(f"message {number} was sent, but {handled} was handled")
        if number >= 0:
            found.append(((at - began) * 1000, (at - committed) * 1000))
    raise AssertionError("counting has no end")


def _watch(connection: psycopg.Connection[Any], seconds: float) -> float:
    """Transactions per second on the server while nothing is sent."""
    threading.Event().wait(_SETTLED_SECONDS)
    before, begin = _transactions(connection), time.monotonic()
    threading.Event().wait(seconds)
    after = _transactions(connection)
    return max(0.0, after - before - 1) / (time.monotonic() - begin)


def _transactions(connection: psycopg.Connection[Any]) -> int:
    connection.execute("SELECT pg_stat_force_next_flush()")
    row = connection.execute(_TRANSACTIONS).fetchone()
    return int(row[0]) if row else 0
