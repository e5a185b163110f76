"""A worker with the default affinity compared with one that is bound from the start or never, the limit and a plain loop."""

from __future__ import annotations

from benchmarks import processes, receive
from benchmarks.databases import PostgreSQL
from benchmarks.handlers import WORKS
from benchmarks.plain_loop import ONE_PROCESSOR
from benchmarks.recording import record
from benchmarks.series import Kind, Measured, Plan

_NEVER = ("--cpu-affinity", "none")
_FROM_THE_START = ("--cpu-affinity", "0")
_BATCHES = ("--batch-size", "auto")
# Handlers that work take much longer, so fewer messages do.
_OF_WORK = 0.1
_KEY, _NAME = ".any", ", never bound"


def plan(database: PostgreSQL, *, messages: int) -> Plan:
    """`run_sqlqueue_worker` with the default affinity and with none: one process of 8 threads and two of 4, and one in batches and
    with handlers that wait or compute. One process of 8 threads is also bound to a processor from its start."""
    recording = record(database)
    limit = next(kind for kind in receive.limit_kinds(database, recording, messages) if kind.key == "limit.8.1")

    def plain(suffix: str, title: str, **affinity: str) -> Kind:
        def measure() -> Measured:
            return receive.plain(database, database.conninfo(), recording, "one_trip", messages=messages, threads=8, **affinity)

        return Kind(f"plain.8{suffix}", f"plain driver loop, 8 threads{title}", measure)

    def worker(key: str, name: str, threads: int, *arguments: str, factor: float = 1, work: str | None = None) -> Kind:
        def measure() -> Measured:
            count, others = round(messages * factor), processes.THREADS // threads
            return processes.run(database, count, others, threads, *arguments, work=work)

        return Kind(key, f"worker, {name}", measure)

    kinds = [limit, worker("worker.8.bound", "1 process of 8 threads, bound from the start", 8, *_FROM_THE_START)]
    for suffix, title, given in (("", "", ()), (_KEY, _NAME, _NEVER)):
        kinds += [
            worker(f"worker.8{suffix}", f"1 process of 8 threads{title}", 8, *given),
            worker(f"worker.2x4{suffix}", f"2 processes of 4 threads{title}", 4, *given, factor=2),
            worker(
                f"worker.8.auto{suffix}", f"BATCH_SIZE auto, 8 threads{title}", 8, *_BATCHES, *given, factor=receive.BATCH_FACTOR
            ),
            *(
                worker(f"worker.8.{key}{suffix}", f"8 threads, a handler that {work}{title}", 8, *given, factor=_OF_WORK, work=work)
                for key, work in zip(("waits", "computes", "hashes"), WORKS, strict=True)
            ),
        ]
    kinds += [plain("", ""), plain(".one", ", on one processor", **{ONE_PROCESSOR: "1"})]
    kinds.sort(key=lambda kind: kind.key.removesuffix(_KEY).removesuffix(".bound"))
    return Plan("affinity", "the processor of each process", database.name, kinds, {"messages": messages})
