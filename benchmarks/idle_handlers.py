"""The handler of the idle worker: it prints the message and the time of its call."""

from __future__ import annotations

import sys
import time
from typing import Any

from sqlqueue_app import handles


@handles("Bench.Message")
def report(message: Any, _context: Any) -> None:
    # `time.monotonic()` is one clock for all processes of a machine.
    began = time.monotonic()
    sys.stdout.write(f"{message['order_id']} {began!r}\n")
    sys.stdout.flush()
