"""A worker process in which an unexpected error kills a receive thread, once: the file BREAK_ONCE records that it happened."""

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
    """Insert one row per message: number and process id."""
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO handled (number, pid) VALUES (%s, %s)", (message["number"], os.getpid()))


def break_once() -> None:
    once = Path(os.environ["BREAK_ONCE"])
    if not once.exists():
        once.touch()
        raise MemoryError


if "BREAK_ONCE" in os.environ:
    trap(MessageProcessor, "receive", break_once, before=True)
