"""Handlers that deadlock: the victims are eventually handled, each once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sqlqueue_app import handles, send_many
from tests.chaos.books import assert_no_lock
from tests.support.bench import Bench, Calls
from tests.support.databases import QueueDatabase
from tests.support.worker_processes import address

PAIRS = 10
SECONDS_TO_MEET = 10.0


def soon_found(database: QueueDatabase) -> None:
    """Have the server look for deadlocks after 10 ms instead of a second."""
    with database.connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        (name,) = cursor.fetchone()
        cursor.execute(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '10ms'")


def test_victims_of_deadlocks_are_handled_once(postgresql_bench: Bench, calls: Calls, events: Callable[[], list[str]]) -> None:
    """Each pair locks two rows in opposite order; both hold their first before either requests its second."""
    bench = postgresql_bench
    bench.configure(MAX_CONCURRENCY=4, CONCURRENCY_MODEL="fixed", IMMEDIATE_RETRIES=5)
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE stock (pair integer, side integer, taken integer NOT NULL, PRIMARY KEY (pair, side))")
        cursor.executemany("INSERT INTO stock VALUES (%s, %s, 0)", [(pair, side) for pair in range(PAIRS) for side in (0, 1)])
        cursor.execute("CREATE TABLE effects (pair integer, side integer)")
    soon_found(bench.database)
    together = [threading.Barrier(2) for _ in range(PAIRS)]

    @handles("Test.Message")
    def take_both(message: Any, context: Any) -> None:
        pair, first = message["pair"], message["side"]
        calls.add((pair, first))
        with context.connection.cursor() as cursor:
            cursor.execute("INSERT INTO effects VALUES (%s, %s)", [pair, first])
            cursor.execute("UPDATE stock SET taken = taken + 1 WHERE pair = %s AND side = %s", [pair, first])
            if context.attempt == 1:
                together[pair].wait(SECONDS_TO_MEET)
            cursor.execute("UPDATE stock SET taken = taken + 1 WHERE pair = %s AND side = %s", [pair, 1 - first])

    both = [{"pair": pair, "side": side} for pair in range(PAIRS) for side in (0, 1)]
    send_many("Test.Message", both, to=address(bench, "Sales"))
    bench.run()

    with bench.database.connection.cursor() as cursor:
        cursor.execute("SELECT pair, side FROM effects ORDER BY pair, side")
        assert cursor.fetchall() == [(each["pair"], each["side"]) for each in both]
        cursor.execute("SELECT DISTINCT taken FROM stock")
        assert cursor.fetchall() == [(2,)]
    assert bench.rows("error") == []
    # one of each pair was the victim
    assert len(calls.seen) >= len(both) + PAIRS
    assert_no_lock(bench)
