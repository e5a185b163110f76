"""The cost of large bodies: in their rows, and in files with a claim check, for one thread that sends and one that receives."""

from __future__ import annotations

from benchmarks import receive
from benchmarks.databases import QUEUE, Database, run_child
from benchmarks.send_process import LARGE_BYTES
from benchmarks.series import Kind, Measured, Plan

MESSAGES = 200

_WAYS = {"rows": "in the rows", "files": "in files, with a claim check"}


def plan(database: Database) -> Plan:
    """Sending and receiving bodies of 1 MiB in both ways; files are in a folder of this machine."""
    kinds = [_kind(database, step, way) for step in ("send", "receive") for way in _WAYS]
    facts: dict[str, object] = {"messages": MESSAGES, "bytes of a body": LARGE_BYTES}
    return Plan("claim-checks", "bodies of 1 MiB", database.name, kinds, facts)


def _kind(database: Database, step: str, way: str) -> Kind:
    def one() -> Measured:
        environment = database.environment(QUEUE) | ({"SQLQUEUE_BENCH_CLAIM_CHECK": "1"} if way == "files" else {})
        database.fill(0)
        sent = run_child("benchmarks.send_process", environment, "large", str(MESSAGES))
        # Empties the queue, and the folder.
        received = run_child("benchmarks.worker_process", environment, "1")
        return receive.checked(sent if step == "send" else received, MESSAGES, step)

    return Kind(f"{step}.{way}", f"{step}, bodies {_WAYS[way]}", one)
