"""Handlers of worker processes that tests start. They write a row per message in the receive transaction."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from sqlqueue_app import handles

MODULE = __name__


def lines(path: str) -> int:
    return len(Path(path).read_text().splitlines()) if os.path.exists(path) else 0


def note(path: str, text: object = None) -> int:
    """Append a line to a file, independently of the transaction; the process id without a text. Returns the number of lines."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{os.getpid() if text is None else text}\n".encode())
    finally:
        os.close(descriptor)
    return lines(path)


@handles("Worker.Count")
def count(message: Any, context: Any) -> None:
    """Write one row per message: number and process id."""
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO handled (number, pid) VALUES (%s, %s)", (message["number"], os.getpid()))


@handles("Worker.Hang")
def hang(message: Any, context: Any) -> None:
    """Write a row, print a line, and wait to be killed; return if the file `released` exists."""
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO handled (number, pid) VALUES (%s, %s)", (message["number"], os.getpid()))
    if "tries" in message:
        note(message["tries"])
    if os.path.exists(message["released"]):
        return
    sys.stdout.write("in the handler\n")
    sys.stdout.flush()
    while not os.path.exists(message["released"]):
        threading.Event().wait(0.01)


@handles("Worker.Die")
def die(message: Any, context: Any) -> None:
    """End the process once the file `beside` has `wait_for` lines."""
    note(message["tries"])
    while lines(message["beside"]) < message["wait_for"]:
        threading.Event().wait(0.01)
    way = message["way"]
    if way.startswith("SIG"):
        # Signal this thread: if another thread received the signal, this one could continue.
        signal.raise_signal(getattr(signal, way))
    os._exit(int(way))


@handles("Worker.Slow")
def slow(message: Any, context: Any) -> None:
    """Write a row and wait: 60 seconds at the first attempt, 0.3 seconds afterwards."""
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO handled (number, pid) VALUES (%s, %s)", (message["number"], os.getpid()))
    threading.Event().wait(60 if note(message["tries"]) == 1 else 0.3)


@handles("Worker.Fail")
def fail(message: Any, context: Any) -> None:
    """Record the number and fail."""
    note(message["tries"], message["number"])
    raise LookupError("always")
