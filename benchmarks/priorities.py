"""The cost of priorities: a worker whose endpoint has PRIORITIES, and only normal messages, compared with one without."""

from __future__ import annotations

import subprocess
import sys

from benchmarks import receive
from benchmarks.databases import Database
from benchmarks.series import Kind, Measured, Plan

_WAYS = {"without": ("without PRIORITIES", False), "with": ("with PRIORITIES, all messages normal", True)}


def plan(database: Database, *, messages: int) -> Plan:
    """The worker with 1 and with 8 threads."""
    command = [sys.executable, "-m", "django", "sqlqueue_install"]
    subprocess.run(command, env=database.environment(PRIORITIES=True), check=True, stdout=subprocess.DEVNULL)
    kinds = [_kind(database, way, threads, messages) for threads in (1, 8) for way in _WAYS]
    return Plan("priorities", "receiving by priority", database.name, kinds, {"messages": messages})


def _kind(database: Database, way: str, threads: int, messages: int) -> Kind:
    description, enabled = _WAYS[way]
    count = receive.messages_of(messages, threads=threads)

    def one() -> Measured:
        return receive.worker(database, messages=count, threads=threads, PRIORITIES=enabled)

    return Kind(f"{way}.{threads}", f"worker, {threads} thread{'s' * (threads > 1)}: {description}", one)
