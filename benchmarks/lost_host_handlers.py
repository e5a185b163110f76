"""The handler of workers whose host is lost: `python -m benchmarks.lost_host`."""

from __future__ import annotations

import sys
import threading
from typing import Any

from sqlqueue_app import handles


@handles("Bench.Hold")
def hold(_message: Any, _context: Any) -> None:
    """Never return: the transaction holds the row until it is ended from outside."""
    sys.stdout.write("holding\n")
    sys.stdout.flush()
    threading.Event().wait()


@handles("Bench.Quick")
def quick(_message: Any, _context: Any) -> None:
    """Print that it was called."""
    sys.stdout.write("handled\n")
    sys.stdout.flush()
