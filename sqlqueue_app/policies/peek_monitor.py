"""The peek monitor of transports 3.0 and later: one look, then one receive per waiting message (transport reference 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

# After a failed peek or receive: armed breaker, transport reference 5.4.
FAULT_PAUSE_SECONDS = 1.0
TRIGGERED_PAUSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Look:
    """What follows from a peek: start so many receives, or wait so long and peek again."""

    receives: int
    wait_seconds: float


def look(waiting: int, peek_delay_seconds: float) -> Look:
    """One receive per message that seems to wait; nothing waits: the peek delay, which does not grow."""
    return Look(waiting, 0.0) if waiting > 0 else Look(0, peek_delay_seconds)


@dataclass(slots=True)
class Batch:
    """The receives that follow from one peek. Not thread-safe: callers hold one lock.

    The first receive that finds nothing ends the batch: what was not started is not started any more, because the peek is an upper
    bound (gaps in the numbers, other receivers). The next peek waits until each started receive has executed its DELETE, so that a
    row that is just being taken is not counted twice (the latch of 8.1.11).
    """

    started: int = 0
    received: int = 0
    cancelled: bool = False

    def may_start(self) -> bool:
        """Count one more receive as started, unless the batch is cancelled."""
        if self.cancelled:
            return False
        self.started += 1
        return True

    def received_one(self, *, found: bool) -> None:
        """A started receive has executed its DELETE."""
        self.received += 1
        if not found:
            self.cancelled = True

    @property
    def settled(self) -> bool:
        """Whether the monitor may peek again."""
        return self.cancelled or self.received >= self.started
