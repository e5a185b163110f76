"""Waiting for what another thread or process does, without sleeping, and never for ever."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from typing import IO, TypeVar

T = TypeVar("T")

SUSPECT_CHECK_SECONDS = 0.01
# Processes start and threads end in seconds; a slow machine may take a minute.
SECONDS_TO_END = 60.0


def poll_until(condition: Callable[[], T], deadline: float = 60.0, *, what: str = "") -> T:
    """Asks `condition` until its answer is true, and returns that answer.

    For what can only be observed (another process, a server's views); within a process wait on its own event instead.
    `deadline` is in seconds from now; the condition is asked at least once, and once more after the deadline.
    Raises AssertionError with `what` and the last answer.
    """
    pause = threading.Event()
    end = time.monotonic() + deadline
    while True:
        late = time.monotonic() >= end
        answer = condition()
        if answer:
            return answer
        if late:
            description = what or getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"not within {deadline} s: {description} (last answer {answer!r})")
        pause.wait(SUSPECT_CHECK_SECONDS)


def join_all(threads: Iterable[threading.Thread], deadline: float = SECONDS_TO_END) -> None:
    """Joins the threads; AssertionError with the names of those that have not ended within `deadline` seconds."""
    waited = list(threads)
    end = time.monotonic() + deadline
    for thread in waited:
        thread.join(max(0.0, end - time.monotonic()))
    running = [thread.name for thread in waited if thread.is_alive()]
    assert not running, f"not within {deadline} s: the end of the threads {', '.join(running)}"


def done_within(work: Callable[[], object], deadline: float = SECONDS_TO_END, *, what: str) -> None:
    """Does what may wait for ever, such as the `join()` of a receiver, in a thread; AssertionError with `what` if it is not done.

    For work without a result that touches no connection of the calling thread.
    """
    thread = threading.Thread(target=work, name=what, daemon=True)
    thread.start()
    join_all([thread], deadline)


def read_until(
    process: subprocess.Popen[str],
    stream: IO[str] | None,
    is_sign: Callable[[str], bool],
    deadline: float = SECONDS_TO_END,
    *,
    what: str,
) -> list[str]:
    """The lines that a process prints up to the one that `is_sign` knows.

    AssertionError with `what` and the lines where it does not come within `deadline` seconds: the process is killed then, which
    ends its output.
    """
    assert stream is not None, "the process was started without a pipe"
    late = threading.Timer(deadline, process.kill)
    late.start()
    lines: list[str] = []
    try:
        for line in stream:
            lines.append(line)
            if is_sign(line):
                return lines
    finally:
        late.cancel()
        late.join()
    printed = "".join(lines)
    raise AssertionError(f"not within {deadline} s, or the process has ended before: {what}; it printed:\n{printed}")
