"""A worker pinned to one processor compared with an unpinned one, with the limit and a plain loop, in turns."""

from __future__ import annotations

from benchmarks import processes, receive
from benchmarks.databases import PostgreSQL
from benchmarks.handlers import WORKS
from benchmarks.plain_loop import ONE_PROCESSOR
from benchmarks.recording import record
from benchmarks.series import Kind, Measured, Plan

_ADAPTS, _NEVER = ("--cpu-affinity", "auto"), ("--cpu-affinity", "none")
_BATCHES = ("--batch-size", "auto")
# Handlers that work take much longer, so fewer messages do.
_OF_WORK = 0.1
_KEY, _NAME = ".one", ", on one processor each"


def plan(database: PostgreSQL, *, messages: int) -> Plan:
    """`run_sqlqueue_worker` with the default affinity and with none: one process of 8 threads and two of 4, and one in batches and
    with handlers that wait or compute."""
    recording = record(database)
    limit = next(kind for kind in receive.limit_kinds(database, recording, messages) if kind.key == "limit.8.1")

    def plain(*, one: bool) -> Kind:
        def measure() -> Measured:
            affinity = {ONE_PROCESSOR: "1"} if one else {}
            return receive.plain(database, database.conninfo(), recording, "one_trip", messages=messages, threads=8, **affinity)

        return Kind(f"plain.8{_KEY * one}", f"plain driver loop, 8 threads{_NAME * one}", measure)

    def worker(key: str, name: str, threads: int, *arguments: str, factor: float = 1, work: str | None = None, one: bool) -> Kind:
        given = (*arguments, *(_ADAPTS if one else _NEVER))

        def measure() -> Measured:
            count, others = round(messages * factor), processes.THREADS // threads
            return processes.run(database, count, others, threads, *given, work=work)

        return Kind(f"{key}{_KEY * one}", f"{name}{_NAME * one}", measure)

    kinds = [limit]
    for one in (False, True):
        kinds += [
            worker("worker.8", "worker, 1 process of 8 threads", 8, one=one),
            worker("worker.2x4", "worker, 2 processes of 4 threads", 4, factor=2, one=one),
            worker("worker.8.auto", "worker, BATCH_SIZE auto, 8 threads", 8, *_BATCHES, factor=receive.BATCH_FACTOR, one=one),
            plain(one=one),
            *(
                worker(f"worker.8.{key}", f"worker, 8 threads, a handler that {work}", 8, factor=_OF_WORK, work=work, one=one)
                for key, work in zip(("waits", "computes", "hashes"), WORKS, strict=True)
            ),
        ]
    kinds.sort(key=lambda kind: kind.key.removesuffix(_KEY))
    return Plan("affinity", "a processor for each process", database.name, kinds, {"messages": messages})
