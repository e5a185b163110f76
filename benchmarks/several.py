"""The cost of a second database: handlers that write to the database of the queues and to another one."""

from __future__ import annotations

import json

from benchmarks import receive
from benchmarks.databases import OURS, QUEUE, PostgreSQL, run_child
from benchmarks.series import Kind, Measured, Plan

SECOND = "second"
"""The alias of the other database, and its name."""

_TABLE = "CREATE TABLE IF NOT EXISTS bench_effects (number bigint GENERATED ALWAYS AS IDENTITY)"
_HANDLERS = ["benchmarks.handlers", "benchmarks.writing_handlers"]

_WAYS = {
    "own": ("rows in the database of the queues alone", "transaction_scope", ("default",)),
    "both": ("and in another, two-phase commit", "transaction_scope", ("default", SECOND)),
    "apart": ("and in another, which commits on its own", "sends_atomic_with_receive", ("default", SECOND)),
}


def plan(database: PostgreSQL, *, messages: int) -> Plan:
    """The worker with 1 and with 8 threads, each message and its rows in one transaction."""
    with database.connect() as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [SECOND]).fetchone():
            database.create(SECOND)
    for name in (OURS, SECOND):
        with database.connect(name) as connection:
            connection.execute(_TABLE)
    kinds = [_kind(database, way, threads, messages) for threads in (1, 8) for way in _WAYS]
    return Plan("several", "handlers that write to several databases", database.name, kinds, {"messages": messages})


def _kind(database: PostgreSQL, way: str, threads: int, messages: int) -> Kind:
    description, mode, aliases = _WAYS[way]
    count = receive.messages_of(messages, threads=threads)
    # Otherwise Django would open a connection for each message.
    second = {"ENGINE": "django.db.backends.postgresql", "CONN_MAX_AGE": 600, **database.settings(SECOND)}
    own = {"SQLQUEUE_BENCH_SECOND": json.dumps(second), "SQLQUEUE_BENCH_WRITES": ",".join(aliases)}

    def one() -> Measured:
        database.fill(count)
        _empty(database)
        environment = database.environment(QUEUE, HANDLERS=_HANDLERS, TRANSACTION_MODE=mode) | own
        measured = receive.checked(run_child("benchmarks.worker_process", environment, str(threads)), count, "the worker")
        left = [_count(database, name) for name in (OURS, SECOND)]
        if left != [count, count * (SECOND in aliases)]:
            raise RuntimeError(f"{way}: the handlers of {count} messages left {left} rows")
        return measured

    return Kind(f"{way}.{threads}", f"worker, {threads} thread{'s' * (threads > 1)}: {description}", one)


def _empty(database: PostgreSQL) -> None:
    for name in (OURS, SECOND):
        with database.connect(name) as connection:
            connection.execute("TRUNCATE bench_effects")


def _count(database: PostgreSQL, name: str) -> int:
    with database.connect(name) as connection:
        row = connection.execute("SELECT count(*) FROM bench_effects").fetchone()
    return int(row[0]) if row else 0
