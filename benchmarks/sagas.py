"""The cost of a saga, compared with a handler that locks and saves a row by hand and with one that does nothing."""

from __future__ import annotations

from benchmarks import receive
from benchmarks.databases import QUEUE, PostgreSQL, run_child
from benchmarks.series import Kind, Measured, Plan

# Those of benchmarks.saga_handlers, which only a process with Django can import.
_WAY = "SQLQUEUE_BENCH_SAGA"
_SAGAS = 10_000

_TABLE = """
CREATE TABLE IF NOT EXISTS bench_saga (
    id uuid PRIMARY KEY, originator text NOT NULL, original_message_id text NOT NULL, conversation_id text NOT NULL,
    started_at timestamptz NOT NULL, updated_at timestamptz NOT NULL, completed_at timestamptz, next_timeout_at timestamptz,
    timeouts text NOT NULL, history text NOT NULL, number integer NOT NULL UNIQUE, count integer NOT NULL)
"""
_INDEXES = "CREATE INDEX ON bench_saga (started_at); CREATE INDEX ON bench_saga (completed_at)"
_RUNNING = f"""
INSERT INTO bench_saga
SELECT gen_random_uuid(), '', '', '', now(), now(), NULL, NULL, '[]', '[]', number, 0
FROM generate_series(0, {_SAGAS - 1}) AS number
"""
_WAYS = {
    "nothing": "a handler that does nothing",
    "hand": "a handler that locks and saves a row by hand",
    "continues": "a saga that runs",
    "starts": "each message starts a saga",
}


def plan(database: PostgreSQL, *, messages: int) -> Plan:
    """The worker with 1 and with 8 threads."""
    with database.connect() as connection:
        connection.execute(_TABLE)
        connection.execute(_INDEXES)
    kinds = [_kind(database, way, threads, messages) for threads in (1, 8) for way in _WAYS]
    return Plan("sagas", "messages to sagas", database.name, kinds, {"messages": messages, "sagas that run": _SAGAS})


def _kind(database: PostgreSQL, way: str, threads: int, messages: int) -> Kind:
    count = receive.messages_of(messages, threads=threads)
    handlers = ["benchmarks.handlers"] + ["benchmarks.saga_handlers"] * (way != "nothing")

    def one() -> Measured:
        database.fill(count)
        with database.connect() as connection:
            connection.execute("TRUNCATE bench_saga")
            if way != "starts":
                connection.execute(_RUNNING)
            connection.execute("VACUUM ANALYZE bench_saga")
        environment = database.environment(QUEUE, HANDLERS=handlers) | {_WAY: way}
        measured = receive.checked(run_child("benchmarks.worker_process", environment, str(threads)), count, "the worker")
        with database.connect() as connection:
            row = connection.execute("SELECT sum(count), count(*) FROM bench_saga").fetchone()
        if row is None or (way != "nothing" and row[0] != count):
            raise RuntimeError(f"{way}: {count} messages were counted {row} times")
        return measured

    return Kind(f"{way}.{threads}", f"worker, {threads} thread{'s' * (threads > 1)}: {_WAYS[way]}", one)
