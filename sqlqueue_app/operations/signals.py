"""SIGINT and SIGTERM, told to a worker or its supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from sqlqueue_app.receiving.stopping import StopSignal

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
# Never the number of a signal.
_END = b"\0"

# Whether this process listens; a forked child must not, for it shares the pipe with its parent.
_listening = threading.Event()


@contextlib.contextmanager
def stop_on_signals(stop: StopSignal, *, abort: Callable[[], None] = lambda: None) -> Iterator[None]:
    """SIGINT and SIGTERM set the stop signal; the second one calls `abort` and ends the process at once with 128 + its number.

    An aborted process leaves its transactions to the database, which rolls them back: the messages are in their queues again.
    Only in the main thread; does nothing in others. Both are called in a thread of their own, so they may take locks.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    # Python calls a handler of signals in the main thread alone, between two of its steps. Setting an event there waits for ever
    # where the main thread holds the event's lock; and a signal that comes just before the main thread begins to wait for a lock
    # is not handled until that wait ends. The number that the interpreter writes into a pipe at once suffers from neither.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        seen = 0
        while (got := os.read(reading, 1)) not in (_END, b""):
            if got[0] not in _NUMBERS:
                continue
            seen += 1
            stop.set()
            if seen > 1:
                os.write(2, b"second signal: aborting, messages in work go back to their queues\n")
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


def _only_the_pipe(_number: int, _frame: FrameType | None) -> None:
    """Without a handler the signal would end the process; what is to be done, the thread at the other end of the pipe does."""


def _forget_in_child() -> None:
    """A child that a handler forked (multiprocessing, say) dies of a signal as any program does, and stops nobody else."""
    if _listening.is_set():
        signal.set_wakeup_fd(-1)
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_in_child)
