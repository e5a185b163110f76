"""A handler of worker processes that prints the threads of its process: names and operating system ids."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from sqlqueue_app import handles
from sqlqueue_app.receiving import instances

MODULE = __name__

if "HEARTBEAT_SECONDS" in os.environ:
    instances.HEARTBEAT_SECONDS = float(os.environ["HEARTBEAT_SECONDS"])


@handles("Worker.Threads")
def print_threads(message: Any, context: Any) -> None:
    """Print one line: the process id and its threads as Python knows them."""
    threads = {thread.name: thread.native_id for thread in threading.enumerate()}
    sys.stdout.write(json.dumps({"pid": os.getpid(), "threads": threads}) + "\n")
    sys.stdout.flush()
