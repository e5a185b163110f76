"""Threads of a process that handle quick messages in batches take turns, one whole batch each.

Two threads that only compute share one interpreter. Every call that gives its lock back for a moment, a write to a file, say, hands
it to the other thread, so that they change places at every message, which costs half as much as the message itself. In turns they
change places once a batch, and while one of them handles its batch, another waits for the database: 1.2 to 1.3 times as many
messages with eight threads, of handlers that do next to nothing (measured 2026-11-22, batches of 64, two cores).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final

# A turn is for batches that take a few milliseconds. A longer one waits for something, and others can work meanwhile.
TURN_SECONDS: Final = 0.02
# The handler of the holder may wait for what this thread holds, so no thread waits for its turn for longer.
WAIT_SECONDS: Final = 0.05
# A thread that waited for a turn in vain, or took too long for one, does without for so many batches: so turns cost slow handlers
# nothing that can be measured.
BATCHES_WITHOUT: Final = 64

# The lock of the interpreter is one for the process, whatever its queues.
TURNS: Final = threading.Lock()


class BatchTurn:
    """The turns of one thread, which holds one while it is `with` this, or does without.

    `lock` is shared by the threads of the process, seconds are those of a monotonic clock.
    """

    def __init__(
        self,
        lock: threading.Lock = TURNS,
        clock: Callable[[], float] = time.monotonic,
        *,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._wait_seconds = wait_seconds
        # A free-threaded Python has no lock of the interpreter (PEP 703): there threads work at once.
        self._is_of_use = getattr(sys, "_is_gil_enabled", lambda: True)()
        self._without = 0
        self._held = False
        self._until = 0.0

    def __enter__(self) -> None:
        """Wait for the turn, but not for long, and not where that is of no use."""
        if not self._is_of_use:
            return
        if self._without:
            self._without -= 1
            return
        self._held = self._lock.acquire(timeout=self._wait_seconds)
        if self._held:
            self._until = self._clock() + TURN_SECONDS
        else:
            self._without = BATCHES_WITHOUT

    def between(self) -> None:
        """Between two messages of the batch: a turn that takes too long ends here."""
        if self._held and self._clock() > self._until:
            self._without = BATCHES_WITHOUT
            self._end()

    def __exit__(self, *_: object) -> None:
        """The messages of the batch are handled, or it is lost."""
        self._end()

    def _end(self) -> None:
        if self._held:
            self._held = False
            self._lock.release()
