"""How many receives may run at once: a semaphore whose size can change while it is held."""

from __future__ import annotations

import threading


class Slots:
    """At most `size` slots are taken; after a `resize` to fewer, none is given out until enough have come back. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._condition = threading.Condition()
        self._size = size
        self._taken = 0

    def acquire(self) -> None:
        """Take a slot; waits until there is one."""
        with self._condition:
            self._condition.wait_for(lambda: self._taken < self._size)
            self._taken += 1

    def release(self) -> None:
        """Give a slot back."""
        with self._condition:
            self._taken -= 1
            self._condition.notify()

    def resize(self, size: int) -> None:
        """From now on so many slots; those that are taken stay taken."""
        with self._condition:
            self._size = size
            self._condition.notify_all()
