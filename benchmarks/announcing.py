"""The cost of waking a worker for the senders: each message is one transaction, and a worker handles them.

Senders are processes that call `send()`, as users do, and clients of pgbench, which have almost no overhead per message.

A transaction that notifies holds a server-wide lock while it commits, so that notifications follow the order of the commits:
senders that would share a disk write wait one after the other. Our trigger therefore notifies only while a worker requests it;
it is compared with one that always notifies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks import messages
from benchmarks.databases import QUEUE, PostgreSQL
from benchmarks.idle import running_worker
from benchmarks.limit import MISSING, TPS, find_pgbench
from benchmarks.series import Kind, Measured, Plan
from sqlqueue_app.dialects.dialect import dialect
from sqlqueue_app.dialects.schema import create_wake_up_trigger, wake_up_channel
from sqlqueue_app.messages.addresses import QueueAddress

CLIENTS = (1, 8)
PROCESSES = 8
SLOW_COMMIT_MICROSECONDS = 10_000
_POSTGRESQL = dialect("postgresql")
_ADDRESS = QueueAddress(QUEUE, "public", form="postgresql")
_TABLE = _POSTGRESQL.qualified(_ADDRESS)


def plan(database: PostgreSQL, *, rows: int) -> Plan:
    """Messages per second of 1 and 8 senders: the worker polls, is woken, or gets a notification for every commit."""
    program = find_pgbench(database.programs)
    ways = (("polled", "to a worker that polls"), ("woken", "to a worker that is woken"), ("always", "with every commit announced"))
    kinds = [
        Kind(f"send.{way}", f"{PROCESSES} processes, send() {name}", _measure(database, way, partial(_send_all, rows=rows)))
        for way, name in ways
    ]
    kinds += [
        Kind(
            f"slow.{way}",
            f"{PROCESSES} processes, send() {name}, commits of {SLOW_COMMIT_MICROSECONDS // 1000} ms",
            _measure(database, way, partial(_send_slowly, rows=rows // 4)),
        )
        for way, name in ways
    ]
    kinds += [
        Kind(
            f"{way}.{clients}",
            f"pgbench, {clients} client{'s' if clients > 1 else ''} {name}",
            _measure(database, way, partial(_insert_all, program, clients=clients, rows=rows)) if program else None,
            note="" if program else MISSING,
        )
        for clients in CLIENTS
        for way, name in ways
    ]
    return Plan("announcing", "sending to a worker that is woken", database.name, kinds, {"messages": rows})


def _measure(database: PostgreSQL, way: str, send: Callable[[PostgreSQL], float]) -> Callable[[], Measured]:
    def measure() -> Measured:
        database.fill(0)
        polls = way == "polled"
        environment = database.environment(QUEUE, WAKE_UP=not polls)
        with _trigger(database, way), running_worker(environment, "worker_started" if polls else "wake_up_on"):
            return Measured(send(database))

    return measure


def _send_slowly(database: PostgreSQL, *, rows: int) -> float:
    """Like `_send_all`, with delayed disk writes as on a slow disk; commits may share a write."""
    settings = {"commit_delay": SLOW_COMMIT_MICROSECONDS, "commit_siblings": 0}
    with database.connect() as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER SYSTEM SET {name} = {value}".encode())
        connection.execute("SELECT pg_reload_conf()")
        try:
            return _send_all(database, rows=rows)
        finally:
            for name in settings:
                connection.execute(f"ALTER SYSTEM RESET {name}".encode())
            connection.execute("SELECT pg_reload_conf()")


def _send_all(database: PostgreSQL, *, rows: int) -> float:
    """Messages per second of processes that call `send()`, from the time all are ready until the last ends."""
    command = [sys.executable, "-m", "benchmarks.sender_process", str(rows // PROCESSES)]
    with ExitStack() as stack:
        senders = [
            stack.enter_context(
                subprocess.Popen(command, env=database.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(PROCESSES)
        ]
        for sender in senders:
            if _line(sender) != "ready":
                raise RuntimeError("a process that sends has ended")
        begin = time.monotonic()
        for sender in senders:
            assert sender.stdin is not None
            sender.stdin.write("\n")
            sender.stdin.flush()
        ends = [float(_line(sender)) for sender in senders]
    return rows // PROCESSES * PROCESSES / (max(ends) - begin)


def _line(sender: subprocess.Popen[str]) -> str:
    assert sender.stdout is not None
    return sender.stdout.readline().strip()


def _insert_all(program: str, database: PostgreSQL, *, clients: int, rows: int) -> float:
    # In hexadecimal digits: pgbench would read a colon in JSON as the start of a variable.
    headers, body = messages.stored_headers().encode().hex(), messages.stored_body().hex()
    values = f"gen_random_uuid(), convert_from(decode('{headers}', 'hex'), 'UTF8'), decode('{body}', 'hex')"
    insert = f"INSERT INTO {_TABLE} (id, headers, body) VALUES ({values})"
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"{insert};\n")
        script.flush()
        answer = subprocess.run(
            [program, "--no-vacuum", "--protocol=prepared", f"--client={clients}", f"--jobs={min(clients, os.cpu_count() or 1)}",
             f"--transactions={rows // clients}", f"--file={script.name}", database.conninfo()],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
    match = TPS.search(answer.stdout)
    if answer.returncode != 0 or match is None:
        raise RuntimeError(f"pgbench failed with {answer.returncode}: {answer.stdout[-500:]}{answer.stderr[-500:]}")
    return float(match.group(1))


@contextmanager
def _trigger(database: PostgreSQL, way: str) -> Iterator[None]:
    ours = create_wake_up_trigger(_POSTGRESQL, _ADDRESS)
    always = (
        f"CREATE OR REPLACE TRIGGER sqlqueue_wake_up AFTER INSERT ON {_TABLE} FOR EACH STATEMENT "
        f"EXECUTE FUNCTION sqlqueue_wake_up('{wake_up_channel(_TABLE)}')"
    )
    none = f"DROP TRIGGER IF EXISTS sqlqueue_wake_up ON {_TABLE}"
    with database.connect() as connection:
        for statement in {"polled": [none], "woken": ours, "always": [*ours, always]}[way]:
            connection.execute(statement.encode())
        yield
        for statement in ours:
            connection.execute(statement.encode())
