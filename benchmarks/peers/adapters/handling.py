"""The handler of every peer: it notes each call in a file that survives a kill, and waits for the kill where requested.

A line of the file is `what number worker seconds`: `h` for a call of a handler, `k` for a handler that waits to be killed. The
seconds are those of `time.monotonic()`, one clock for all processes of a machine.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

NOTES = "BENCH_NOTES"
"""Names the file."""

WORKER = "BENCH_WORKER"
"""The name of the worker that runs here."""

TOGETHER = "BENCH_TOGETHER"
"""How many processes wait for one another at their first message, so that a rate is that of all."""

DATABASE = "BENCH_DATABASE"
"""Address of the database where a handler leaves its row."""

INSERT = "INSERT INTO bench_done (number) VALUES (%s)"

_SECONDS_OF_WORK = 0.02
_SECONDS_TO_MEET = 60.0
_SECONDS_TO_BE_KILLED = 60.0


def handle(body: Mapping[str, Any], insert: Callable[[int], object] | None = None) -> None:
    """Note the call. With a `moment` in the message: work 20 ms, `insert` a row, and be killed once `before` or `after` it."""
    number = int(body["order_id"])
    _meet(os.getpid())
    _note("h", number)
    moment = body.get("moment")
    if moment is None:
        return
    # longer than any wake-up: several workers share the messages
    threading.Event().wait(_SECONDS_OF_WORK)
    if moment == "before":
        _be_killed(number)
    (insert or _insert)(number)
    if moment == "after":
        _be_killed(number)


def _note(what: str, number: int) -> None:
    # a short append is never torn and survives the process
    os.write(_notes(), f"{what} {number} {os.environ.get(WORKER, '-')} {time.monotonic()!r}\n".encode())


@functools.cache
def _notes() -> int:
    return os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def _be_killed(number: int) -> None:
    try:
        os.close(os.open(f"{os.environ[NOTES]}.killed.{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        # it was already killed here and has been redelivered
        return
    _note("k", number)
    threading.Event().wait(_SECONDS_TO_BE_KILLED)


@functools.cache
def _meet(process: int) -> None:
    """Wait until all processes have called this."""
    wanted = int(os.environ.get(TOGETHER, "1"))
    if wanted > 1:
        here = Path(f"{os.environ[NOTES]}.here")
        here.mkdir(exist_ok=True)
        (here / str(process)).touch()
        end = time.monotonic() + _SECONDS_TO_MEET
        while len(list(here.iterdir())) < wanted and time.monotonic() < end:
            threading.Event().wait(0.001)


def _insert(number: int) -> None:
    """Insert the row by a separate connection, committed at once, as handlers do if the peer provides no connection."""
    _connection(threading.get_ident()).execute(INSERT, [number])


@functools.cache
def _connection(_thread: int) -> Any:
    import psycopg  # noqa: PLC0415 - imported only if needed, because the memory of workers is measured

    return psycopg.connect(os.environ[DATABASE], autocommit=True)
