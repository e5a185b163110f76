"""What a receive costs with many messages waiting, and with many dead rows in front of them."""

from __future__ import annotations

from benchmarks.databases import PostgreSQL, install, run_child
from benchmarks.series import Kind, Measured, Plan

DEPTHS = (1_000, 100_000, 1_000_000)
DEAD_ROWS = 200_000
THREADS = 8


def plan(
    database: PostgreSQL,
    *,
    messages: int,
    depths: tuple[int, ...] = DEPTHS,
    dead_rows: int = DEAD_ROWS,
) -> Plan:
    """The worker with so many messages left behind those that it receives, and with dead rows that nobody may remove."""
    kinds = [_depth_kind(database, messages, depth) for depth in depths]
    kinds += [_dead_kind(database, messages, rows) for rows in (0, dead_rows)]
    return Plan("backlog", "many messages waiting, many dead rows", database.name, kinds, {"messages": messages})


def _depth_kind(database: PostgreSQL, messages: int, depth: int) -> Kind:
    queue = f"Bench{depth}"

    def one() -> Measured:
        database.top_up(depth + messages, queue)
        found = run_child("benchmarks.worker_process", database.environment(queue), str(THREADS), str(messages))
        if found["messages"] < messages:
            raise RuntimeError(f"the worker received {found['messages']} messages of {queue}, expected {messages}")
        return Measured(found["rate"], found["processor_microseconds"])

    # A queue of its own for each depth, filled before the first turn: a million messages anew for each turn would take minutes,
    # and what the server still has to write would slow the turn behind it.
    install(database, queue)
    database.top_up(depth, queue)
    return Kind(f"depth.{depth}", f"worker, {THREADS} threads, {depth:,} more waiting", one)


def _dead_kind(database: PostgreSQL, messages: int, rows: int) -> Kind:
    def one() -> Measured:
        database.fill(rows + messages)
        with database.dead_rows(rows):
            found = run_child("benchmarks.worker_process", database.environment(), str(THREADS))
        if found["messages"] != messages:
            raise RuntimeError(f"the worker received {found['messages']} messages, expected {messages}")
        return Measured(found["rate"], found["processor_microseconds"])

    # Both hold an old transaction open: what the worker itself deletes stays in the table either way.
    return Kind(f"dead.{'some' if rows else 'none'}", f"worker, {THREADS} threads, {rows:,} dead rows held by a transaction", one)
