"""The ramp-up controller of transport 2.1: when a polling thread asks for another one, and when it ends.

Each polling thread asks its own controller; the number of threads follows from what they find (transport reference 4.2).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from sqlqueue_app.policies.back_off import BackOff

RAMP_UP_ABOVE_SUCCESSES = 5
END_AT_FAILURES = 7
SLOW_TASK_TICK_SECONDS = 5.0
# A thread that is seen at two ticks without having begun another loop is slow.
SLOW_TASK_TICKS = 2


class Step(enum.Enum):
    """What a polling thread does next."""

    POLL = "poll"
    RAMP_UP_AND_POLL = "ramp up and poll"
    END = "end"


@dataclass(slots=True)
class RampUpController:
    """Counts consecutive successes and failures of one polling thread. Not thread-safe: one per thread.

    A success is a poll that yielded a message, even if its processing failed; a failure is an empty poll, an expired or a
    poison row.
    """

    back_off: BackOff = field(default_factory=BackOff)
    successes: int = 0
    failures: int = 0

    def next_step(self) -> Step:
        """Asked before each poll. A ramp-up zeroes both counters, whether or not a thread could be started."""
        if self.failures >= END_AT_FAILURES:
            return Step.END
        if self.successes > RAMP_UP_ABOVE_SUCCESSES:
            self.successes = self.failures = 0
            return Step.RAMP_UP_AND_POLL
        return Step.POLL

    def polled(self, *, succeeded: bool) -> float:
        """Count a poll and return the seconds to wait before the next one."""
        if succeeded:
            self.successes, self.failures = self.successes + 1, 0
            self.back_off.reset()
            return 0.0
        self.successes, self.failures = 0, self.failures + 1
        return self.back_off.next_wait()


@dataclass(slots=True)
class SlowTaskMonitor:
    """Asks for one extra thread per message that keeps a thread busy for more than one tick of the monitor.

    The caller ticks every SLOW_TASK_TICK_SECONDS, the first time at once. Not thread-safe: callers hold one lock.
    """

    _seen: dict[int, int] = field(default_factory=dict)

    def loop_began(self, thread: int) -> None:
        """The thread begins a loop iteration: whatever it did before is done."""
        self._seen[thread] = 0

    def ended(self, thread: int) -> None:
        """The thread is gone."""
        self._seen.pop(thread, None)

    def tick(self) -> int:
        """Count one tick and return how many extra threads are asked for."""
        extra = 0
        for thread, seen in self._seen.items():
            self._seen[thread] = seen + 1
            extra += seen + 1 == SLOW_TASK_TICKS
        return extra


@dataclass(slots=True)
class ThreadBudget:
    """How many polling threads of one queue live, at most `maximum`, which may change. Not thread-safe: callers hold one lock."""

    maximum: int
    live: int = 0

    def may_start(self) -> bool:
        """Take a place for one more thread, if there is one."""
        if self.live >= self.maximum:
            return False
        self.live += 1
        return True

    @property
    def has_surplus(self) -> bool:
        """Whether more threads live than may, because the maximum was lowered."""
        return self.live > self.maximum

    def ended(self) -> bool:
        """Give a place back; True if the thread was the last one, so that a new one starts at once."""
        self.live -= 1
        return self.live == 0
