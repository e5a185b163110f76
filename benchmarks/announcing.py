"""What announcing costs the senders: pgbench inserts messages, each in a transaction of its own, while one session listens.

A transaction that notifies holds one lock of the whole server while it commits, so that notifications come in the order of the
commits: senders that would share a wait for the disk wait one after the other.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks import messages
from benchmarks.databases import QUEUE, PostgreSQL
from benchmarks.limit import MISSING, TPS, find_pgbench
from benchmarks.series import Kind, Measured, Plan
from sqlqueue_app.dialects.dialect import Rendered, dialect
from sqlqueue_app.dialects.schema import (
    announcing,
    create_wake_up_function,
    create_wake_up_trigger,
    drop_wake_up_trigger,
    wake_up_channel,
    wake_up_function,
)
from sqlqueue_app.messages.addresses import QueueAddress

CLIENTS = (1, 8)
_POSTGRESQL = dialect("postgresql")
_ADDRESS = QueueAddress(QUEUE, "public", form="postgresql")
_TABLE = _POSTGRESQL.qualified(_ADDRESS)


def plan(database: PostgreSQL, *, rows: int) -> Plan:
    """Messages per second of 1 and 8 senders: nothing announced, announced by the statement itself, announced by the trigger."""
    program = find_pgbench(database.programs)
    ways = (("none", "nothing announced"), ("statement", "announced by the statement"), ("trigger", "announced by the trigger"))
    kinds = [
        Kind(
            f"announcing.{way}.{clients}",
            f"{clients} sender{'s' if clients > 1 else ''}, {name}",
            _measure(program, database, way, clients, rows) if program else None,
            note="" if program else MISSING,
        )
        for clients in CLIENTS
        for way, name in ways
    ]
    return Plan("announcing", "sending to receivers that are woken", database.name, kinds, {"messages": rows})


def _measure(program: str, database: PostgreSQL, way: str, clients: int, rows: int) -> Callable[[], Measured]:
    def measure() -> Measured:
        database.fill(0)
        with _listener(database), _trigger(database, way == "trigger"):
            rate = _send(program, database, way, clients, rows)
        left, expected = database.depth(), rows // clients * clients
        if left != expected:
            raise RuntimeError(f"pgbench sent {left} messages, expected {expected}")
        return Measured(rate)

    return measure


def _send(program: str, database: PostgreSQL, way: str, clients: int, rows: int) -> float:
    # In hexadecimal digits: pgbench would take a colon in JSON for the beginning of a variable.
    headers, body = messages.stored_headers().encode().hex(), messages.stored_body().hex()
    values = f"gen_random_uuid(), convert_from(decode('{headers}', 'hex'), 'UTF8'), decode('{body}', 'hex')"
    insert = f"INSERT INTO {_TABLE} (id, headers, body) VALUES ({values})"
    text = announcing(_POSTGRESQL, Rendered(insert, ()), _TABLE).sql if way == "statement" else insert
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"{text};\n")
        script.flush()
        answer = subprocess.run(
            [program, "--no-vacuum", "--protocol=prepared", f"--client={clients}", f"--jobs={min(clients, os.cpu_count() or 1)}",
             f"--transactions={rows // clients}", f"--file={script.name}", database.conninfo()],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
    told = TPS.search(answer.stdout)
    if answer.returncode != 0 or told is None:
        raise RuntimeError(f"pgbench failed with {answer.returncode}: {answer.stdout[-500:]}{answer.stderr[-500:]}")
    return float(told.group(1))


@contextmanager
def _listener(database: PostgreSQL) -> Iterator[None]:
    with database.connect() as connection:
        connection.execute(f'LISTEN "{wake_up_channel(_TABLE)}"'.encode())
        yield


@contextmanager
def _trigger(database: PostgreSQL, wanted: bool) -> Iterator[None]:
    with database.connect() as connection:
        connection.execute(drop_wake_up_trigger(_POSTGRESQL, _ADDRESS).encode())
        if wanted:
            connection.execute(f"DROP FUNCTION IF EXISTS {wake_up_function(_POSTGRESQL, _ADDRESS)}() CASCADE".encode())
            connection.execute(create_wake_up_function(_POSTGRESQL, _ADDRESS).encode())
            connection.execute(create_wake_up_trigger(_POSTGRESQL, _ADDRESS).encode())
        yield
        connection.execute(drop_wake_up_trigger(_POSTGRESQL, _ADDRESS).encode())
