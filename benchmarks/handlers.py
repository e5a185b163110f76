"""The handler that is measured: it does nothing but note when it was called, unless it was told not to."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlqueue_app import handles

TIMES: list[float] = []
"""When each message was handled, in seconds of `time.perf_counter()`; appended to by all threads."""

ENOUGH: list[tuple[int, Callable[[], None]]] = []
"""After how many messages something is to be called, and what."""

QUIET = "SQLQUEUE_BENCH_QUIET"
"""Set where memory is measured: a list of times would be measured with it."""

DIRECTORY = "SQLQUEUE_BENCH_TIMES"
"""Names a directory where each process leaves its times at its end."""


def _note(_message: Any, _context: Any) -> None:
    TIMES.append(time.perf_counter())
    for count, call in ENOUGH:
        # >=: another thread may have appended in between; who is called bears to be called again
        if len(TIMES) >= count:
            call()


def _nothing(_message: Any, _context: Any) -> None:
    return None


handles("Bench.Message")(_nothing if QUIET in os.environ else _note)


@atexit.register
def _leave_times() -> None:
    if TIMES and (directory := os.environ.get(DIRECTORY)):
        (Path(directory) / f"{os.getpid()}.json").write_text(json.dumps(TIMES), encoding="ascii")
