"""A worker process in which an error that nobody expects kills a receive thread, once: BREAK_ONCE is the file that says it has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sqlqueue_app import handles
from sqlqueue_app.receiving.processing import MessageProcessor
from tests.support.failpoints import trap

MODULE = __name__


@handles("Break.Message")
def work(message: Any, context: Any) -> None:
    """One row per message: number, process."""
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO handled (number, pid) VALUES (%s, %s)", (message["number"], os.getpid()))


def break_once() -> None:
    once = Path(os.environ["BREAK_ONCE"])
    if not once.exists():
        once.touch()
        raise MemoryError


if "BREAK_ONCE" in os.environ:
    trap(MessageProcessor, "receive", break_once, before=True)
