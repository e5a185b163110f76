"""The measured handler: it only records the time of its calls, unless that is switched off."""

from __future__ import annotations

import asyncio
import atexit
import functools
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlqueue_app import handles

TIMES: list[float] = []
"""When each message was handled, in seconds of `time.perf_counter()`; appended to by all threads."""

ENOUGH: list[tuple[int, Callable[[], None]]] = []
"""Pairs of a number of messages and the function to call after that many."""

QUIET = "SQLQUEUE_BENCH_QUIET"
"""Set if memory is measured, because a list of times would be measured with it."""

DIRECTORY = "SQLQUEUE_BENCH_TIMES"
"""Names a directory where each process leaves its times at its end."""

TOGETHER = "SQLQUEUE_BENCH_TOGETHER"
"""How many processes wait for one another in that directory at their first message, so that a rate is that of all."""

KEYED = "SQLQUEUE_BENCH_KEYED"
"""Set if the order is the key of the message."""

WORK = "SQLQUEUE_BENCH_WORK"
"""Names the additional work of the handler: one of `WORKS`."""

HANDLER = "SQLQUEUE_BENCH_HANDLER"
"""Names another handler: one of `_HANDLERS`."""

_SECONDS_TO_MEET = 60.0
_SECONDS_TO_WAIT = 0.01
_pause = threading.Event()
_block = bytes(1_000_000)


def _compute() -> None:
    """About two milliseconds that hold the interpreter's lock."""
    sum(number * number for number in range(20_000))


WORKS: dict[str, Callable[[], object]] = {
    "waits": lambda: _pause.wait(0.005),
    "computes in Python": _compute,
    # hashlib releases the lock for large data
    "computes outside Python": lambda: hashlib.sha256(_block).digest(),
}


def _meet(directory: Path, processes: int) -> None:
    (directory / f"{os.getpid()}.here").touch()
    end = time.monotonic() + _SECONDS_TO_MEET
    pause = threading.Event()
    while len(list(directory.glob("*.here"))) < processes and time.monotonic() < end:
        pause.wait(0.001)


@functools.cache
def _met() -> None:
    if TOGETHER in os.environ:
        _meet(Path(os.environ[DIRECTORY]), int(os.environ[TOGETHER]))


def _note(_message: Any, _context: Any) -> None:
    if not TIMES:
        _met()
    TIMES.append(time.perf_counter())
    for count, call in ENOUGH:
        # >=: another thread may have appended in between; a second call is harmless
        if len(TIMES) >= count:
            call()


def _nothing(_message: Any, _context: Any) -> None:
    return None


def _key(message: Any) -> Any:
    return message["order_id"]


def _with_work(message: Any, context: Any) -> None:
    WORKS[os.environ[WORK]]()
    _note(message, context)


async def _note_async(message: Any, context: Any) -> None:
    _note(message, context)


def _wait(message: Any, context: Any) -> None:
    _note(message, context)
    _pause.wait(_SECONDS_TO_WAIT)


async def _wait_async(message: Any, context: Any) -> None:
    _note(message, context)
    await asyncio.sleep(_SECONDS_TO_WAIT)


_HANDLERS: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": _nothing, "note": _note, "work": _with_work,
    "note_async": _note_async, "wait": _wait, "wait_async": _wait_async,
}  # fmt: skip
_handler = _HANDLERS["nothing" if QUIET in os.environ else "work" if WORK in os.environ else os.environ.get(HANDLER, "note")]
handles("Bench.Message", key=_key if KEYED in os.environ else None)(_handler)


@atexit.register
def _leave_times() -> None:
    if TIMES and (directory := os.environ.get(DIRECTORY)):
        (Path(directory) / f"{os.getpid()}.json").write_text(json.dumps(TIMES), encoding="ascii")
