"""The fixed model of transports 1.x and 2.0: so many polling threads from start to end, each with its own back-off."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlqueue_app.policies.back_off import BackOff

# A thread that faulted (connection, SQL) waits so long and starts again (transport reference 4.1).
FAULT_PAUSE_SECONDS = 10.0


@dataclass(slots=True)
class FixedThread:
    """What one of the threads does after each poll. Not thread-safe: one per thread."""

    back_off: BackOff = field(default_factory=BackOff)

    def polled(self, *, succeeded: bool) -> float:
        """The seconds to wait before the next poll: none after a message, else 50 ms doubling to 1 s."""
        if succeeded:
            self.back_off.reset()
            return 0.0
        return self.back_off.next_wait()

    def faulted(self) -> float:
        """The seconds to wait after a fault; the thread starts over then."""
        self.back_off.reset()
        return FAULT_PAUSE_SECONDS
