"""Automatic rate limiting: after so many failures in a row an endpoint slows down until something works again."""

from __future__ import annotations

# Transport reference 9: so long after each failure, one message at a time.
WAIT_SECONDS = 1.0


class ConsecutiveFailures:
    """Counts failures in a row; `after` is how many there may be before the limit, None for no limit."""

    def __init__(self, after: int | None) -> None:
        self._after = after
        self._failures = 0

    @property
    def limited(self) -> bool:
        """Whether the limit is on."""
        return self._after is not None and self._failures >= self._after

    def failed(self) -> bool:
        """One more failure; True if the limit begins with it."""
        before = self.limited
        self._failures += 1
        return self.limited and not before

    def succeeded(self) -> bool:
        """Something worked; True if the limit ends with it."""
        before = self.limited
        self._failures = 0
        return before
