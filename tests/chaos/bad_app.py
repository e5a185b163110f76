"""Handlers that are bad to their process: each writes its row into `effects` first, then does what its type says."""

from __future__ import annotations

import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any

from django.db import connections

from sqlqueue_app import handles
from tests.chaos.app import effect

MODULE = __name__
LEAKED: list[Any] = []
PORTION, PORTIONS = 16 << 20, 16


@handles("Bad.Nothing")
@handles("Bad.Beside")
def nothing(message: Any, context: Any) -> None:
    """Only the row."""
    effect(context, message["id"])


@handles("Bad.Memory")
def memory(message: Any, context: Any) -> None:
    """Take all that there is; the process may have little more than it has at the first time."""
    effect(context, message["id"])
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + PORTIONS * PORTION, resource.RLIM_INFINITY))
    taken = []
    while True:
        taken.append(bytearray(PORTION))


@handles("Bad.Leak")
def leak(message: Any, context: Any) -> None:
    """A second connection, and a thread with one of its own that does not end; both are never closed."""
    effect(context, message["id"])
    second = context.connection.copy()
    LEAKED.append(second)
    with second.cursor() as cursor:
        cursor.execute("SELECT 1")

    def hold() -> None:
        with connections[context.connection.alias].cursor() as cursor:
            cursor.execute("SELECT 1")
        threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()


@handles("Bad.Close")
def close(message: Any, context: Any) -> None:
    """Django's own close of the connection, and then a question to it."""
    effect(context, message["id"])
    context.connection.close()
    with context.connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@handles("Bad.Hang")
def hang(message: Any, context: Any) -> None:
    """Say so, and wait for ever, as one does for an answer without a time-out; the second time (the file is there) go on."""
    effect(context, message["id"])
    while not os.path.exists(message["released"]):
        sys.stdout.write("hanging\n")
        sys.stdout.flush()
        threading.Event().wait(60)


@handles("Bad.Big")
def big(message: Any, context: Any) -> None:
    """Write more than the message itself has taken, so that a database that is full cannot hold it."""
    effect(context, message["id"])
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO ballast (content) VALUES (%s)", ["x" * 300_000])
