"""One message of a key at a time: the worker with 1, 100 and 100,000 keys, and the same messages without a key."""

from __future__ import annotations

from benchmarks import messages
from benchmarks.databases import QUEUE, PostgreSQL, run_child
from benchmarks.handlers import KEYED
from benchmarks.series import Kind, Measured, Plan

KEYS = (1, 100, 100_000)
THREADS = 8
# A prime: neighbours have different keys.
_STEP = 7_919


def plan(database: PostgreSQL, *, count_messages: int, keys: tuple[int, ...] = KEYS) -> Plan:
    """Messages per second of a worker whose handler has no key, and of one with each number of keys, in turns."""
    kinds = [_kind(database, count_messages, threads, each) for threads in (1, THREADS) for each in (0, *keys)]
    return Plan("keys", "one message of a key at a time", database.name, kinds, {"messages": count_messages})


def _kind(database: PostgreSQL, count: int, threads: int, keys: int) -> Kind:
    def one() -> Measured:
        fill(database, count, keys or KEYS[-1])
        environment = database.environment() | ({KEYED: "1"} if keys else {})
        found = run_child("benchmarks.worker_process", environment, str(threads))
        if found["messages"] != count:
            raise RuntimeError(f"the worker received {found['messages']} messages, expected {count}")
        return Measured(found["rate"], found["processor_microseconds"])

    name = f"{keys:,} key{'s' if keys > 1 else ''}" if keys else "no key"
    return Kind(f"keys.{threads}.{keys}", f"worker, {threads} thread{'s' if threads > 1 else ''}, {name}", one)


def fill(database: PostgreSQL, count: int, keys: int) -> None:
    """Leave `count` messages of `keys` keys in the queue: the order_id is the key."""
    database.fill(0)
    body = messages.stored_body().decode()
    with database.connect() as connection:
        connection.execute(
            f'INSERT INTO "{QUEUE}" (id, headers, body) SELECT gen_random_uuid(), %s,'
            " convert_to(replace(%s, '0000000000', lpad((n * %s %% %s)::text, 10, '0')), 'UTF8')"
            " FROM generate_series(1, %s) AS n",
            [messages.stored_headers(), body, _STEP, keys, count],
        )
        connection.execute(f'VACUUM ANALYZE "{QUEUE}"')
        connection.execute("CHECKPOINT")
