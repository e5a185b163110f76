"""Handlers that harm their process: each first writes its row into `effects`, then does what its type names."""

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
    """Write only the row."""
    effect(context, message["id"])


@handles("Bad.Memory")
def memory(message: Any, context: Any) -> None:
    """Allocate until memory runs out; the first call limits the process to little more than it has."""
    effect(context, message["id"])
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + PORTIONS * PORTION, resource.RLIM_INFINITY))
    taken = []
    while True:
        taken.append(bytearray(PORTION))


@handles("Bad.Leak")
def leak(message: Any, context: Any) -> None:
    """Leak a second connection, and an endless thread with its own connection."""
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
    """Close the connection through Django, then query it."""
    effect(context, message["id"])
    context.connection.close()
    with context.connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@handles("Bad.Hang")
def hang(message: Any, context: Any) -> None:
    """Print a line and wait forever, like a call without a timeout; the second time (the file exists) return."""
    effect(context, message["id"])
    while not os.path.exists(message["released"]):
        sys.stdout.write("hanging\n")
        sys.stdout.flush()
        threading.Event().wait(60)


@handles("Bad.Big")
def big(message: Any, context: Any) -> None:
    """Write a row that is larger than the message, so that it does not fit into a full database."""
    effect(context, message["id"])
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO ballast (content) VALUES (%s)", ["x" * 300_000])
