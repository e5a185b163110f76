"""A web server in small: a process that is set up, forks its workers, and lets each ask and wait for replies.

    python -W error -m tests.receiving.request_app PROCESSES REQUESTS
    python -W error -m tests.receiving.request_app hold
    python -W error -m tests.receiving.request_app end

Each child prints one line of JSON. With `hold` there is one process, which asks once, prints, and waits to be killed; with `end` it
asks once, ends, and prints which threads of callbacks live when a hook runs that was there before the request.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import warnings
from typing import Any

import django
from django.db import connections

SECONDS = 120.0
THREADS = 2


def main(processes: int, requests: int) -> None:
    """Fork, and end when all children have ended."""
    # As a server that loads the application before it forks; nothing of the requests may have started by then.
    import sqlqueue_app.receiving.reply_listeners

    assert sqlqueue_app.receiving.reply_listeners is not None
    children = []
    for number in range(processes):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            serve(number, requests)
            return
        children.append(child)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert ended == [0] * processes, ended


def serve(number: int, requests: int) -> None:
    """What one child does: two threads ask by turns, and each reply must be the one that was asked for."""
    from sqlqueue_app import request

    wrong: list[Any] = []
    queues: set[str] = set()

    def ask(start: int) -> None:
        try:
            for each in range(start, requests, THREADS):
                asked = request("Test.Ask", {"code": number * 1_000_000 + each})
                queues.add(asked.queue)
                if (reply := asked.result(SECONDS)) != number * 1_000_000 + each:
                    wrong.append(reply)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say({"pid": os.getpid(), "wrong": wrong, "queues": sorted(queues), "requests": requests})


def hold() -> None:
    """Ask once, and wait."""
    from sqlqueue_app import request

    asked = request("Test.Hold")
    say({"pid": os.getpid(), "queue": asked.queue, "message_id": asked.message_id})
    asked.result(SECONDS)


def end() -> None:
    """Ask once, and end."""
    import sqlqueue_app.receiving.reply_listeners
    from sqlqueue_app import request

    assert sqlqueue_app.receiving.reply_listeners is not None
    # As a database driver does that is imported with the first connection.
    atexit.register(lambda: say({"alive": [each.name for each in threading.enumerate() if "callbacks" in each.name]}))
    asked = request("Test.Hold")
    assert asked.message_id


def say(found: dict[str, Any]) -> None:
    """One line, written at once: the children share the pipe."""
    os.write(1, (json.dumps(found) + "\n").encode())


if __name__ == "__main__":
    django.setup()
    if sys.argv[1] == "hold":
        hold()
    elif sys.argv[1] == "end":
        end()
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
