"""The cost of a receive with many waiting messages, and with many dead rows before them."""

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
    """The worker with different numbers of waiting messages, and with dead rows that vacuum cannot remove."""
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

    # Each depth has its own queue, filled before the first turn: refilling a million messages per turn would take minutes,
    # and the pending writes of the server would slow the next turn.
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

    # Both hold an old transaction open, so rows deleted by the worker stay in the table in both cases.
    return Kind(f"dead.{'some' if rows else 'none'}", f"worker, {THREADS} threads, {rows:,} dead rows held by a transaction", one)
