"""A worker pinned to one processor compared with an unpinned one, with the limit and a plain loop, in turns."""

from __future__ import annotations

from benchmarks import processes, receive
from benchmarks.databases import PostgreSQL
from benchmarks.plain_loop import ONE_PROCESSOR
from benchmarks.recording import record
from benchmarks.series import Kind, Measured, Plan

_ADAPTS, _NEVER = ("--cpu-affinity", "auto"), ("--cpu-affinity", "none")
_BATCHES = ("--batch-size", "auto")
_KEY, _NAME = ".one", ", on one processor each"


def plan(database: PostgreSQL, *, messages: int) -> Plan:
    """`run_sqlqueue_worker` with the default affinity and with none: one process of 8 threads, also in batches, and two of 4."""
    recording = record(database)
    limit = next(kind for kind in receive.limit_kinds(database, recording, messages) if kind.key == "limit.8.1")

    def plain(*, one: bool) -> Kind:
        def measure() -> Measured:
            affinity = {ONE_PROCESSOR: "1"} if one else {}
            return receive.plain(database, database.conninfo(), recording, "one_trip", messages=messages, threads=8, **affinity)

        return Kind(f"plain.8{_KEY * one}", f"plain driver loop, 8 threads{_NAME * one}", measure)

    def worker(key: str, name: str, threads: int, *arguments: str, factor: int = 1, one: bool) -> Kind:
        given = (*arguments, *(_ADAPTS if one else _NEVER))

        def measure() -> Measured:
            return processes.run(database, messages * factor, processes.THREADS // threads, threads, *given)

        return Kind(f"{key}{_KEY * one}", f"{name}{_NAME * one}", measure)

    kinds = [limit]
    for one in (False, True):
        kinds += [
            worker("worker.8", "worker, 1 process of 8 threads", 8, one=one),
            worker("worker.2x4", "worker, 2 processes of 4 threads", 4, factor=2, one=one),
            worker("worker.8.auto", "worker, BATCH_SIZE auto, 8 threads", 8, *_BATCHES, factor=receive.BATCH_FACTOR, one=one),
            plain(one=one),
        ]
    kinds.sort(key=lambda kind: kind.key.removesuffix(_KEY))
    return Plan("affinity", "a processor for each process", database.name, kinds, {"messages": messages})
