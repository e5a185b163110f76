"""How long a polling thread waits after an empty poll."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BackOff:
    """Seconds to wait, doubling up to a cap, back to the first value after a success (transport reference 4.1 and 4.2).

    Not thread-safe: each polling thread has its own.
    """

    first_seconds: float = 0.05
    cap_seconds: float = 1.0
    _next_seconds: float = 0.0

    def next_wait(self) -> float:
        """The seconds to wait now; the following wait is twice as long, up to the cap."""
        wait = self._next_seconds or self.first_seconds
        self._next_seconds = min(wait * 2, self.cap_seconds)
        return wait

    def reset(self) -> None:
        """Start again from the first value."""
        self._next_seconds = 0.0
