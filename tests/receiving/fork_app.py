"""A handler that forks and returns in both processes."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

from sqlqueue_app import handles

MODULE = __name__


@handles("Fork.Message")
def work(message: Any, context: Any) -> None:
    """Insert one row per message: number and process id. The child returns into the worker as its parent does."""
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO handled (number, pid) VALUES (%s, %s)", (message["number"], os.getpid()))
    if not message["fork"]:
        return
    with warnings.catch_warnings():
        # 3.12 and later warn about forks beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        # a child that continued to work would block this wait: it must end by itself
        _, status = os.waitpid(child, 0)
        assert os.WIFEXITED(status)
    else:
        # the child never outlives the test
        signal.alarm(60)
