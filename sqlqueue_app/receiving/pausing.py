"""The gate that a receiver's threads pass before each poll: closed while an operator has paused them."""

from __future__ import annotations

import threading

from sqlqueue_app.receiving.stopping import StopSignal


class PauseGate:
    """Open at first. Safe from any thread; a stop lets everybody through, so that a paused worker ends as any other."""

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop
        self._condition = threading.Condition()
        self._closed = False
        self._waiting = 0
        stop.subscribe(self._stopped)

    @property
    def is_closed(self) -> bool:
        """Whether those who come now have to wait; False once the stop was asked for."""
        return self._closed and not self._stop.is_set()

    @property
    def waiting(self) -> int:
        """How many threads wait now."""
        with self._condition:
            return self._waiting

    def close(self) -> bool:
        """Hold everybody back from now on; False if it was closed."""
        with self._condition:
            before, self._closed = self._closed, True
        return not before

    def open(self) -> bool:
        """Let everybody through again; False if it was open."""
        with self._condition:
            before, self._closed = self._closed, False
            self._condition.notify_all()
        return before

    def wait(self) -> None:
        """Wait until the gate is open, or until the stop."""
        with self._condition:
            self._waiting += 1
            try:
                self._condition.wait_for(lambda: not self._closed or self._stop.is_set())
            finally:
                self._waiting -= 1

    def _stopped(self) -> None:
        with self._condition:
            self._condition.notify_all()
