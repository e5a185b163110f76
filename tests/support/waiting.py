"""Wait for other threads and processes, without sleeping and with a time limit."""

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
    """Call `condition` until its result is true, and return that result.

    Use it only for state that must be polled (another process, a view of a server); within a process, wait for an event.
    `deadline` is in seconds from now; the condition is called at least once, and once more after the deadline.
    Raises AssertionError with `what` and the last result.
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


def poll_until_zero(count: Callable[[], int], deadline: float = 60.0, *, what: str) -> None:
    """Call `count` until its result is 0, for as long as the result falls.

    Raises AssertionError with `what` and the last result if the lowest result is `deadline` seconds old.
    """
    pause = threading.Event()
    lowest = count()
    end = time.monotonic() + deadline
    while lowest:
        late = time.monotonic() >= end
        now = count()
        if now < lowest:
            lowest, end = now, time.monotonic() + deadline
        elif late:
            raise AssertionError(f"no fewer than {lowest} for {deadline} s: {what} (last answer {now})")
        pause.wait(SUSPECT_CHECK_SECONDS)


def join_all(threads: Iterable[threading.Thread], deadline: float = SECONDS_TO_END) -> None:
    """Join the threads. Raises AssertionError with the names of those that have not ended within `deadline` seconds."""
    waited = list(threads)
    end = time.monotonic() + deadline
    for thread in waited:
        thread.join(max(0.0, end - time.monotonic()))
    running = [thread.name for thread in waited if thread.is_alive()]
    assert not running, f"not within {deadline} s: the end of the threads {', '.join(running)}"


def run_in_threads(work: Callable[[], object], count: int) -> None:
    """Run `work` in this many threads at the same time, and join them as `join_all`. `work` closes its connections itself."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    join_all(threads)


def done_within(work: Callable[[], object], deadline: float = SECONDS_TO_END, *, what: str) -> None:
    """Run work that might never return, such as `join()` of a receiver. Raises AssertionError with `what` at the deadline.

    It runs in a thread, so it has no result and cannot use the connections of the calling thread.
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
    """The lines that a process prints up to the first one for which `is_sign` is true.

    If there is none within `deadline` seconds, the process is killed, and AssertionError is raised with `what` and the lines.
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
    raise AssertionError(f"not within {deadline} s, or the process ended first: {what}; it printed:\n{printed}")
