"""The end of a process by signals of the operating system, or with its standard input. Imports nothing of Django."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from sqlqueue_app.receiving.stopping import StopSignal

REPEAT_SECONDS: Final = 1.0
_NUMBERS = (signal.SIGINT, signal.SIGTERM)
# Not the number of any signal.
_END = b"\0"

# Whether this process listens; a forked child must not, because it shares the pipe with its parent.
_listening = threading.Event()


@contextlib.contextmanager
def stop_on_signals(
    stop: StopSignal, *, abort: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Set the stop signal on SIGINT or SIGTERM; the second one calls `abort` and ends the process at once with 128 + its number.

    The same signal within REPEAT_SECONDS of the first does not count as second: `timeout` signals its child, then the whole
    group. The database rolls back the transactions of an aborted process: the messages return to their queues. Does nothing
    outside the main thread. Both are called in a separate thread, so they may take locks.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    # Python runs signal handlers only in the main thread, between two of its steps. Setting an event there deadlocks if the main
    # thread holds the event's lock, and a signal just before the main thread waits for a lock is not handled until that wait
    # ends. Neither affects the number that the interpreter writes into a pipe at once.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        first: tuple[int, float] | None = None
        while (got := os.read(reading, 1)) not in (_END, b""):
            if got[0] not in _NUMBERS:
                continue
            now = clock()
            stop.set()
            if first is None:
                first = got[0], now
            elif got[0] != first[0] or now - first[1] >= REPEAT_SECONDS:
                with contextlib.suppress(OSError):  # the first Ctrl-C may have ended the reader, such as tee
                    os.write(2, b"second signal: aborting, messages in progress return to their queues\n")
                abort()
                os._exit(128 + got[0])

    watcher = threading.Thread(target=watch, name="sqlqueue-signals", daemon=True)
    watcher.start()
    pipe_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _only_the_pipe) for number in _NUMBERS}
    _listening.set()
    try:
        yield
    finally:
        _listening.clear()
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(pipe_before)
        os.write(writing, _END)
        watcher.join()
        os.close(reading)
        os.close(writing)


class RunRequests:
    """Requests to run again, as lines of standard input, whose end sets the stop signal: such a process never outlives its parent.

    One in a process. A thread reads and discards the input, and ends with the process.
    """

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop
        self._woken = threading.Event()
        stop.subscribe(self._woken.set)
        threading.Thread(target=self._read, name="sqlqueue-stdin", daemon=True).start()

    def _read(self) -> None:
        while os.read(0, 4096):
            self._woken.set()
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Wait for a request; False if none came within this time, or on the stop. Several requests count as one."""
        is_woken = self._woken.wait(seconds)
        self._woken.clear()
        return is_woken and not self._stop.is_set()


def _only_the_pipe(_number: int, _frame: FrameType | None) -> None:
    """Keep the signal from ending the process; the thread at the other end of the pipe acts on it."""


def _forget_in_child() -> None:
    """Restore default signals in a child forked by a handler (such as multiprocessing), so that it stops no other process."""
    if _listening.is_set():
        signal.set_wakeup_fd(-1)
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_in_child)
