"""Sending: one `send_many()`, and `send()` with a unique key, compared with as many plain `send()` calls, in turns."""

from __future__ import annotations

from benchmarks.databases import Database, run_child
from benchmarks.series import Kind, Measured, Plan


def plan(database: Database, *, messages: int) -> Plan:
    """Messages per second of each way, outside of a transaction."""
    kinds = [
        Kind("send.single", "send(), each on its own", lambda: _send(database, "single", messages)),
        Kind("send.unique", "send() with a new unique_key, each on its own", lambda: _send(database, "unique", messages)),
        Kind("send.many", "send_many(), all at once", lambda: _send(database, "many", messages)),
    ]
    return Plan("send", "sending", database.name, kinds, {"messages": messages})


def _send(database: Database, how: str, messages: int) -> Measured:
    database.fill(0)
    found = run_child("benchmarks.send_process", database.environment(), how, str(messages))
    if found["messages"] != messages:
        raise RuntimeError(f"{how} left {found['messages']} messages in the queue, expected {messages}")
    return Measured(found["rate"], found["processor_microseconds"])
