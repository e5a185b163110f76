"""The circuit breaker of a receiver: when failures to reach the database become a critical error (transport reference 5.4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CircuitBreaker:
    """Armed by the first failure, triggered when failures have gone on for `wait_seconds`, reset by any success.

    Only the first failure starts the time. Not thread-safe: callers hold one lock. Instants are seconds of any monotonic clock.
    """

    wait_seconds: float
    armed_at: float | None = None
    triggered: bool = False

    def failed(self, now: float) -> bool:
        """Count a failure; True if the breaker triggers with it."""
        if self.armed_at is None:
            self.armed_at = now
        if self.triggered or now - self.armed_at < self.wait_seconds:
            return False
        self.triggered = True
        return True

    def succeeded(self) -> None:
        """Disarm and reset."""
        self.armed_at = None
        self.triggered = False
