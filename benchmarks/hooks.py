"""The cost of signals, outgoing middleware and rate limits to a worker, each compared with the same worker without it."""

from __future__ import annotations

from benchmarks import receive
from benchmarks.databases import QUEUE, PostgreSQL, run_child
from benchmarks.hook_handlers import HOOK
from benchmarks.series import Kind, Measured, Plan

_HANDLERS = ["benchmarks.handlers", "benchmarks.hook_handlers"]
# More than any worker handles, so that no message waits.
_RATE = {"Bench.*": "999999/s"}

_WAYS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("nothing", {}),
    "handled": ("a receiver of message_handled", {}),
    "rate": ("a rate limit that is not reached", {"RATE_LIMITS": _RATE}),
    "sends": ("the handler sends a message", {}),
    "sent": ("the same, with a receiver of message_sent", {}),
    "middleware": ("the same, with outgoing middleware", {}),
}


def plan(database: PostgreSQL, *, messages: int) -> Plan:
    """The worker with one thread."""
    return Plan(
        "hooks",
        "signals, middleware and rate limits",
        database.name,
        [_kind(database, way, messages) for way in _WAYS],
        {"messages": messages},
    )


def _kind(database: PostgreSQL, way: str, messages: int) -> Kind:
    description, options = _WAYS[way]
    count = receive.messages_of(messages, threads=1)

    def one() -> Measured:
        database.fill(count)
        with database.connect() as connection:
            connection.execute("TRUNCATE error")
        environment = database.environment(QUEUE, HANDLERS=_HANDLERS, **options) | {HOOK: way}
        measured = receive.checked(run_child("benchmarks.worker_process", environment, "1"), count, "the worker")
        expected = count if way in ("sends", "sent", "middleware") else 0
        if (found := database.depth("error")) != expected:
            raise RuntimeError(f"{way}: {found} messages were sent, expected {expected}")
        return measured

    return Kind(way, f"worker, 1 thread: {description}", one)
