"""Reference loops: the statements of the worker without the worker and without Django; nothing is done with the rows.

    python -m benchmarks.plain_loop one_trip|pgconn|libpq|sqlite THREADS ADDRESS RECORDING

`one_trip` sends exactly the strings that the worker sends, joined into one round trip per message, with a psycopg cursor.
`pgconn` sends the same below the cursor, with psycopg's PGconn, and does not convert the values.
`libpq` runs only the prepared receive, each in its own transaction: the limit if pgbench is missing.
`sqlite` runs the statements of the worker one after the other; the threads take turns, because SQLite has one writer.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any

import psycopg
from psycopg import generators

from benchmarks.databases import SQLite
from benchmarks.measures import rate
from benchmarks.recording import LOWEST, Recording, is_receive, recording_of

ONE_PROCESSOR = "SQLQUEUE_BENCH_ONE_PROCESSOR"
"""Set if all threads of a loop must stay on one processor."""

Connection = psycopg.Connection[tuple[Any, ...]]
Receive = Callable[[], int]
"""Receives once, and returns the number of messages."""
Open = Callable[[str], AbstractContextManager[Any]]

_turn = threading.Lock()


def one_trip(connection: Connection, recording: Recording) -> Receive:
    """Commit the last message, begin, receive the next one: one string, one round trip; the row is fetched and discarded."""
    before, _, behind = recording.one_trip.partition(LOWEST)
    cursor = connection.cursor()
    cursor.execute(recording.prepare.encode())
    lowest = 0

    def receive() -> int:
        nonlocal lowest
        while True:
            cursor.execute(f"{before}{lowest}{behind}".encode())
            while cursor.description is None:
                cursor.nextset()
            found = cursor.fetchall()
            if found:
                lowest = int(found[-1][-1])
                return len(found)
            if not lowest:
                cursor.execute("ROLLBACK")
                return 0
            # As the worker does: rows may have come back below.
            lowest = 0

    return receive


def pgconn(connection: Connection, recording: Recording) -> Receive:
    """The same string by PQsendQuery, without anything that psycopg adds to libpq."""
    before, _, behind = recording.one_trip.partition(LOWEST)
    connection.execute(recording.prepare.encode())
    low = connection.pgconn
    lowest = b"0"

    def query(text: str) -> list[Any]:
        low.send_query(text.encode())
        return [result for result in connection.wait(generators.execute(low)) if _checked(result).nfields]

    def receive() -> int:
        nonlocal lowest
        while True:
            (result,) = query(f"{before}{lowest.decode()}{behind}")
            if result.ntuples:
                lowest = result.get_value(result.ntuples - 1, result.nfields - 1)
                return int(result.ntuples)
            if lowest == b"0":
                query("ROLLBACK")
                return 0
            lowest = b"0"

    return receive


def _checked(result: Any) -> Any:
    if result.status not in (psycopg.pq.ExecStatus.TUPLES_OK, psycopg.pq.ExecStatus.COMMAND_OK):
        raise RuntimeError(result.error_message.decode(errors="replace"))
    return result


def libpq(connection: Connection, recording: Recording) -> Receive:
    """Only the receive, by PQexecPrepared, during which other threads run."""
    low = connection.pgconn
    statement = re.sub(re.escape(LOWEST), "$1", recording.prepared_statement)
    low.prepare(b"receive", statement.encode())
    lowest = b"0"

    def receive() -> int:
        nonlocal lowest
        while True:
            result = _checked(low.exec_prepared(b"receive", [lowest]))
            if result.ntuples:
                lowest = result.get_value(result.ntuples - 1, result.nfields - 1) or b"0"
                return int(result.ntuples)
            if lowest == b"0":
                return 0
            lowest = b"0"

    return receive


def sqlite(connection: sqlite3.Connection, recording: Recording) -> Receive:
    """The statements of the worker in their order, from the one after the commit on."""
    commit = recording.cycle.index("COMMIT")
    texts = [*recording.cycle[commit + 1 :], *recording.cycle[: commit + 1]]

    def receive() -> int:
        found: list[Any] = []
        with _turn:
            for text in texts:
                rows = connection.execute(text).fetchall()
                if is_receive(text):
                    found = rows
        return len(found)

    return receive


def _open_postgresql(conninfo: str) -> AbstractContextManager[Connection]:
    return psycopg.connect(conninfo, autocommit=True, options="-c enable_seqscan=off -c enable_sort=off")


def _open_sqlite(file: str) -> AbstractContextManager[sqlite3.Connection]:
    connection = sqlite3.connect(file, isolation_level=None, timeout=30)
    connection.executescript(SQLite.pragmas)
    return closing(connection)


LOOPS: dict[str, tuple[Open, Callable[[Any, Recording], Receive]]] = {
    "one_trip": (_open_postgresql, one_trip),
    "pgconn": (_open_postgresql, pgconn),
    "libpq": (_open_postgresql, libpq),
    "sqlite": (_open_sqlite, sqlite),
}


def run(loop: str, threads: int, address: str, recording: Recording) -> dict[str, object]:
    """Receive everything with all threads; return the rate, and the processor time of each message."""
    times: list[float] = []
    failures: list[BaseException] = []
    open_connection, loop_on = LOOPS[loop]

    def work() -> None:
        try:
            with open_connection(address) as connection:
                receive = loop_on(connection, recording)
                while count := receive():
                    times.extend([time.perf_counter()] * count)
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that is looked at
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    used_before = time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    used = time.process_time() - used_before
    return {"messages": len(times), "rate": rate(times), "processor_microseconds": used / max(1, len(times)) * 1e6}


def main() -> None:
    loop, threads, address, recording = sys.argv[1:]
    if ONE_PROCESSOR in os.environ:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(json.dumps(run(loop, int(threads), address, recording_of(recording))))


if __name__ == "__main__":
    main()
