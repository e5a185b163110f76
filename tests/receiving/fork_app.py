"""A handler that forks, and comes back twice."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

from sqlqueue_app import handles

MODULE = __name__


@handles("Fork.Message")
def work(message: Any, context: Any) -> None:
    """One row per message: number, process. The child returns into the worker as its parent does."""
    with context.connection.cursor() as cursor:
        cursor.execute("INSERT INTO handled (number, pid) VALUES (%s, %s)", (message["number"], os.getpid()))
    if not message["fork"]:
        return
    with warnings.catch_warnings():
        # 3.12 and later warn of forks beside threads, and they are right
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        # a child that goes on working is in this very wait's way: it must end by itself
        _, status = os.waitpid(child, 0)
        assert os.WIFEXITED(status)
    else:
        # whatever becomes of it, it does not outlive the test
        signal.alarm(60)
