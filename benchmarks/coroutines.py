"""Handlers with `async def`, each compared with the same one without it: one that does nothing, and one that waits for 10 ms."""

from __future__ import annotations

from benchmarks import receive
from benchmarks.databases import QUEUE, PostgreSQL, run_child
from benchmarks.handlers import HANDLER
from benchmarks.series import Kind, Measured, Plan

THREADS = 8

_WAYS = {
    "note": "def, does nothing",
    "note_async": "async def, does nothing",
    "wait": "def, waits for 10 ms",
    "wait_async": "async def, awaits 10 ms",
}


def plan(database: PostgreSQL, *, messages: int) -> Plan:
    """The worker with eight threads and one message in a transaction."""
    return Plan("async", "async def", database.name, [_kind(database, way, messages) for way in _WAYS], {"messages": messages})


def _kind(database: PostgreSQL, way: str, messages: int) -> Kind:
    def one() -> Measured:
        database.fill(messages)
        found = run_child("benchmarks.worker_process", database.environment(QUEUE) | {HANDLER: way}, str(THREADS))
        return receive.checked(found, messages, "the worker")

    return Kind(way, f"worker, {THREADS} threads: {_WAYS[way]}", one)
