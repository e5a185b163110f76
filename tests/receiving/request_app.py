"""A small web server: a process that starts up, forks its workers, and lets each send requests and wait for replies.

    python -W error -m tests.receiving.request_app PROCESSES REQUESTS
    python -W error -m tests.receiving.request_app hold
    python -W error -m tests.receiving.request_app end

Each child prints one line of JSON. With `hold`, one process sends one request, prints, and waits to be killed. With `end`, it
sends one request, ends, and prints which callback threads are alive in an exit hook that was registered before the request.
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
    """Fork the children and wait for all of them."""
    # Like a server that loads the application before it forks. No part of the requests may have started by then.
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
    """Send requests from two threads of one child; each reply must match its request."""
    from sqlqueue_app import request

    wrong: list[Any] = []
    queues: set[str] = set()

    def send_request(start: int) -> None:
        try:
            for each in range(start, requests, THREADS):
                pending = request("Test.Ask", {"code": number * 1_000_000 + each})
                queues.add(pending.queue)
                if (reply := pending.result(SECONDS)) != number * 1_000_000 + each:
                    wrong.append(reply)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=send_request, args=(start,)) for start in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print_json({"pid": os.getpid(), "wrong": wrong, "queues": sorted(queues), "requests": requests})


def hold() -> None:
    """Send one request and wait."""
    from sqlqueue_app import request

    pending = request("Test.Hold")
    print_json({"pid": os.getpid(), "queue": pending.queue, "message_id": pending.message_id})
    pending.result(SECONDS)


def end() -> None:
    """Send one request and end."""
    import sqlqueue_app.receiving.reply_listeners
    from sqlqueue_app import request

    assert sqlqueue_app.receiving.reply_listeners is not None
    # A database driver that is imported with the first connection registers its hook like this.
    atexit.register(lambda: print_json({"alive": [each.name for each in threading.enumerate() if "callbacks" in each.name]}))
    pending = request("Test.Hold")
    assert pending.message_id


def print_json(found: dict[str, Any]) -> None:
    """Print one line with a single write: the children share the pipe."""
    os.write(1, (json.dumps(found) + "\n").encode())


if __name__ == "__main__":
    django.setup()
    if sys.argv[1] == "hold":
        hold()
    elif sys.argv[1] == "end":
        end()
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
