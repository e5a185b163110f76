"""Moving due messages out of a delayed table, with and without many messages that are not due."""

from __future__ import annotations

from benchmarks.databases import Database, run_child
from benchmarks.series import Kind, Measured, Plan

WAITING = (0, 100_000)


def plan(database: Database, *, due: int, waiting: tuple[int, ...] = WAITING) -> Plan:
    """Messages per second that the mover of one worker moves, with `waiting` other messages that are not due."""
    kinds = [_kind(database, due, each) for each in waiting]
    return Plan("delayed", "moving due messages", database.name, kinds, {"messages": due})


def _kind(database: Database, due: int, waiting: int) -> Kind:
    def one() -> Measured:
        database.fill(0)
        found = run_child("benchmarks.delayed_process", database.environment(), str(due), str(waiting))
        if (found["moved"], found["waiting"]) != (due, waiting):
            raise RuntimeError(f"the mover left {found}, expected {due} moved and {waiting} waiting")
        return Measured(found["rate"], found["processor_microseconds"])

    return Kind(f"waiting.{waiting}", f"the mover, {waiting:,} more not due", one)
