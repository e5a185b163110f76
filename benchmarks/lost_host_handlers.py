"""The handler of workers whose host is lost: `python -m benchmarks.lost_host`."""

from __future__ import annotations

import sys
import threading
from typing import Any

from sqlqueue_app import handles


@handles("Bench.Hold")
def hold(_message: Any, _context: Any) -> None:
    """Never returns: the row is held by its transaction, until somebody ends that."""
    sys.stdout.write("holding\n")
    sys.stdout.flush()
    threading.Event().wait()


@handles("Bench.Quick")
def quick(_message: Any, _context: Any) -> None:
    """Says that it was called."""
    sys.stdout.write("handled\n")
    sys.stdout.flush()
