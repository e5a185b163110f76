"""Receiving: the limit, plain loops and the real worker on the same database, in turns."""

from __future__ import annotations

from benchmarks import limit
from benchmarks.databases import QUEUE, Database, PostgreSQL, SQLite, run_child
from benchmarks.recording import Recording, record
from benchmarks.series import Kind, Measured, Plan

BATCH_FACTOR = 5
"""If a transaction takes many messages, this many times as many are sent, because they are handled that much sooner."""

BATCH_ROWS = 50

# Kinds that are compared run one after the other.
_ORDER = (
    "limit.1.1", "plain.1", "worker.1.1",
    "plain.8", "pgconn.8", "worker.8.1", "limit.8.1", "worker.8.auto", "worker.8.50", "limit.8.50",
    "worker.1.50", "worker.1.auto",
)  # fmt: skip

_PGCONN = ("pgconn", "the same below psycopg's cursor")


def messages_of(messages: int, *, threads: int, batch: bool = False) -> int:
    """The number of messages of a turn: fewer for one thread, which waits for each commit, more for fast batches."""
    return messages * BATCH_FACTOR if batch else max(1, messages // 2) if threads == 1 else messages


def plan(database: Database, *, messages: int) -> Plan:
    """All kinds of receiving on one database."""
    recording = record(database)
    kinds = plain_kinds(database, recording, messages) + worker_kinds(database, messages)
    facts: dict[str, object] = {"messages": messages, "sent for each message": recording.cycle}
    if isinstance(database, PostgreSQL):
        facts["round trips for each message"] = len(recording.cycle)
        kinds = limit_kinds(database, recording, messages) + kinds
        facts["limit"] = limit.find_pgbench(database.programs) or limit.MISSING
    kinds.sort(key=lambda kind: _ORDER.index(kind.key))
    return Plan("receive", "receiving", database.name, kinds, facts)


def limit_kinds(database: PostgreSQL, recording: Recording, messages: int) -> list[Kind]:
    """pgbench with the worker's statement, or a loop of libpq in its place."""
    program = limit.find_pgbench(database.programs)
    batch = record(database, BATCH_SIZE=BATCH_ROWS)

    def kind(clients: int, rows: int) -> Kind:
        count = messages_of(messages, threads=clients, batch=rows > 1)
        text = batch if rows > 1 else recording

        def one() -> Measured:
            if program:
                return limit.pgbench(program, database, text, messages=count, clients=clients, rows=rows)
            return limit.libpq(database, text, messages=count, clients=clients)

        name = f"limit: {'pgbench' if program else 'libpq loop'}, {_count(rows, 'row')} a transaction, {_count(clients, 'client')}"
        return Kind(f"limit.{clients}.{rows}", name, one, note="" if program else limit.MISSING)

    return [kind(1, 1), kind(8, 1), kind(8, BATCH_ROWS)]


def plain_kinds(database: Database, recording: Recording, messages: int) -> list[Kind]:
    """The plain driver with the statements of the worker."""
    if isinstance(database, PostgreSQL):
        address, loops = database.conninfo(), {"one_trip": ("plain", "plain driver loop, one round trip"), "pgconn": _PGCONN}
    elif isinstance(database, SQLite):
        address, loops = str(database.file), {"sqlite": ("plain", "plain driver loop, the same statements")}
    else:
        raise TypeError(f"no plain loop for {database.name}")

    def kind(loop: str, threads: int) -> Kind:
        count = messages_of(messages, threads=threads)

        def one() -> Measured:
            return plain(database, address, recording, loop, messages=count, threads=threads)

        key, name = loops[loop]
        return Kind(f"{key}.{threads}", f"{name}, {_count(threads, 'thread')}", one)

    return [kind(loop, threads) for loop in loops for threads in (1, 8) if threads == 8 or loop != "pgconn"]


def plain(
    database: Database, address: str, recording: Recording, loop: str, *, messages: int, threads: int, **environment: str
) -> Measured:
    """One plain loop until the queue is empty, with more of the environment for its process."""
    database.fill(messages)
    arguments = [loop, str(threads), address, recording.as_json()]
    return checked(run_child("benchmarks.plain_loop", database.environment() | environment, *arguments), messages, loop)


def worker_kinds(database: Database, messages: int) -> list[Kind]:
    """The real worker with one and with eight threads, one and many messages in a transaction."""

    def kind(threads: int, batch: int | str) -> Kind:
        count = messages_of(messages, threads=threads, batch=batch != 1)
        options: dict[str, object] = {} if batch == 1 else {"BATCH_SIZE": batch}

        def one() -> Measured:
            return worker(database, messages=count, threads=threads, **options)

        name = f"worker, BATCH_SIZE {batch}, {_count(threads, 'thread')}"
        return Kind(f"worker.{threads}.{batch}", name, one)

    return [kind(1, 1), kind(8, 1), kind(1, BATCH_ROWS), kind(8, BATCH_ROWS), kind(1, "auto"), kind(8, "auto")]


def worker(database: Database, *, messages: int, threads: int, **options: object) -> Measured:
    """The real worker with a no-op handler until its queue is empty."""
    database.fill(messages)
    found = run_child("benchmarks.worker_process", database.environment(QUEUE, **options), str(threads))
    return checked(found, messages, "the worker")


def checked(found: dict[str, float], messages: int, who: str) -> Measured:
    """Raise RuntimeError unless all messages were received."""
    if found["messages"] != messages:
        raise RuntimeError(f"{who} received {found['messages']} messages, expected {messages}")
    return Measured(found["rate"], found["processor_microseconds"])


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
