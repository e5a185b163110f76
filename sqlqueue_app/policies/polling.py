"""When and how a queue is polled: the ramp-up controller of transport 2.1, fixed threads, the peek monitor, batch sizes, back-off,
the circuit breaker and rate limiting. Plain arithmetic: no clock, no thread.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, Literal


@dataclass(slots=True)
class BackOff:
    """Seconds to wait, doubling up to a cap (docs/internals/endpoints.md#concurrency). Not thread-safe: each thread has its own."""

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
    """Counts consecutive successes and failures of one polling thread; the number of threads follows from what all of them find.

    A success is a poll that yielded a message, even if its processing failed; a failure is an empty poll, an expired or a
    poison row (docs/internals/endpoints.md#ramp-up-controller). Not thread-safe: one per thread.
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


# A look at the threads of a queue while all of them are busy. Two looks make 20 to 40 ms.
BUSY_LOOK_SECONDS: Final = 0.02
BUSY_LOOKS: Final = 2


@dataclass(slots=True)
class BusyThreads:
    """Which polling threads are inside a message, so that one thread is always free to look for the next message.

    An addition of ours to the algorithm of version 2.1 (docs/internals/endpoints.md#ramp-up-controller): there a message waits for
    the handler before it until that has run for 5 to 10 seconds. The caller looks every BUSY_LOOK_SECONDS while all threads are
    busy. Not thread-safe: callers hold one lock.
    """

    looks: dict[int, int] = field(default_factory=dict)
    """How often each thread was seen inside the message or batch at hand: 0 when that begins. A free thread has no entry."""

    def free(self, live: int) -> int:
        """How many of the live threads are in no message."""
        return live - len(self.looks)

    def look(self, live: int) -> bool:
        """Count a look; True asks for a thread, because each of the live ones was in the same message at the last look too."""
        for thread in self.looks:
            self.looks[thread] += 1
        return not self.free(live) and all(looks >= BUSY_LOOKS for looks in self.looks.values())


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


# A thread that faulted (connection, SQL) waits so long and starts again (docs/internals/endpoints.md#fixed-threads).
FIXED_FAULT_PAUSE_SECONDS = 10.0


@dataclass(slots=True)
class FixedThread:
    """What one thread of the fixed model does after each poll. Not thread-safe: one per thread."""

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
        return FIXED_FAULT_PAUSE_SECONDS


# After a failed peek or receive: armed breaker, docs/internals/endpoints.md#circuit-breakers.
MONITOR_FAULT_PAUSE_SECONDS = 1.0
TRIGGERED_PAUSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PeekDecision:
    """What follows from a peek: start so many receives, or wait so long and peek again."""

    receives: int
    wait_seconds: float


def decide_after_peek(waiting: int, peek_delay_seconds: float) -> PeekDecision:
    """One receive per message that seems to wait; nothing waits: the peek delay, which does not grow."""
    return PeekDecision(waiting, 0.0) if waiting > 0 else PeekDecision(0, peek_delay_seconds)


@dataclass(slots=True)
class Batch:
    """The receives that follow from one peek (docs/internals/endpoints.md#peek-monitor). Not thread-safe: callers hold one lock.

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


# More rows gain nothing (docs/internals/performance.md#limits-of-the-database: 50 and 100 rows come to the same).
AUTO_MAXIMUM: Final = 64
# A batch takes no longer than this, so that its first message waits for its commit no longer either.
AUTO_SECONDS: Final = 0.1


class BatchSize:
    """The size for one receiving thread: fixed, or by itself with "auto". Times are seconds.

    A commit costs as much as ten receives (docs/internals/performance.md#limits-of-the-database); but messages of one transaction
    wait for each other, and are all received again when it is lost. So a batch grows only while the queue is deep and handlers are
    quick, and after a loss each message is taken alone, so that the one to blame is found.
    """

    def __init__(self, size: int | Literal["auto"] = 1) -> None:
        self._automatic = size == "auto"
        self._size = 1 if size == "auto" else size
        self._alone = 0

    def next(self) -> int:
        """The most rows that the next receive takes. Asked once for each receive."""
        if self._alone:
            self._alone -= 1
            return 1
        return self._size

    def done(self, received: int, seconds: float, *, failed: bool) -> None:
        """A batch came to its end after so long; `failed` if a message of it was not handled."""
        if not self._automatic:
            return
        if failed:
            self._size = 1
        elif seconds > AUTO_SECONDS:
            self._size = max(1, int(received * AUTO_SECONDS / seconds))
        elif received >= self._size and seconds <= AUTO_SECONDS / 2:
            self._size = min(self._size * 2, AUTO_MAXIMUM)

    def lost(self, received: int) -> None:
        """The transaction of a batch was lost with all its messages: they are received alone now, and others beside them."""
        self._alone = received if received > 1 else 0
        if self._automatic:
            self._size = 1


# While push is enabled. The polls in between find what no notification announces: a message that came back because its worker was
# killed, or messages after the trigger was dropped.
IDLE_WAIT_SECONDS = 10.0


# So many announcements, each so soon after the one before, are a crowd.
CROWD_SECONDS: Final = 0.01
CROWD_ANNOUNCEMENTS: Final = 6
# A receiver that has found nothing for so long, at two polls or more, is no longer in a crowd.
QUIET_SECONDS: Final = 0.05


@dataclass(slots=True)
class Crowd:
    """Whether the announcements on one channel come so fast that the receiver polls instead of having senders announce.

    On PostgreSQL commits that notify wait for each other, so that senders in a crowd lose more than half of their rate
    (docs/internals/performance.md#announcements). Instants are seconds of a monotonic clock. Not thread-safe.
    """

    _last: float | None = None
    _count: int = 0

    def announced(self, now: float) -> bool:
        """Count an announcement; True if it makes a crowd."""
        follows = self._last is not None and now - self._last < CROWD_SECONDS
        self._last, self._count = now, self._count + 1 if follows else 1
        return self._count >= CROWD_ANNOUNCEMENTS


# The bound must never hide a row that came back below it or was committed late: after so long a receive looks from the start.
LOOK_AGAIN_SECONDS = 0.1
# A look from the start that takes long may take this part of the time at most; never less often than the cap.
LOOK_AGAIN_SHARE = 0.1
LOOK_AGAIN_CAP_SECONDS = 1.0


@dataclass(slots=True)
class LowerBound:
    """The lowest number that the next receive asks for, so that it need not pass rows that are dead but not yet vacuumed.

    Measured 18,000 instead of 340 receives a second after 60,000 messages while an old transaction was open
    (docs/internals/performance.md#dead-rows). Instants are seconds of a monotonic clock.

    One for each queue and process: its threads share it, so that one of them looks from the start for all. Used without a lock:
    whatever threads write at the same time, the bound is one that some receive has proved, or 0.
    """

    lowest: int = 0
    looked_at: float = 0.0
    wait_seconds: float = LOOK_AGAIN_SECONDS

    def for_receive(self, now: float) -> int:
        """The bound for a receive that begins now; 0 when it is time to look from the start, for the first that asks."""
        if now - self.looked_at >= self.wait_seconds:
            self.looked_at = now
            return 0
        return self.lowest

    def received(self, number: int, *, asked: int, began: float, now: float) -> None:
        """A receive that began with the bound `asked` got the row of this number."""
        if asked == 0:
            self.looked_at = now
            self.wait_seconds = min(max(LOOK_AGAIN_SECONDS, (now - began) / LOOK_AGAIN_SHARE), LOOK_AGAIN_CAP_SECONDS)
            self.lowest = number + 1
        elif self.lowest >= asked:
            # Another thread may be further; or has looked from the start and gone back, which holds.
            self.lowest = max(self.lowest, number + 1)

    def forget(self) -> None:
        """Look from the start next: nothing was found, or a row was given back."""
        self.lowest = 0


@dataclass(slots=True)
class CircuitBreaker:
    """Armed by a failure, triggered when failures have gone on for `wait_seconds`, reset by a success; instants in seconds.

    Not thread-safe: callers hold one lock (docs/internals/endpoints.md#circuit-breakers).
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


# So long after each failure, one message at a time (docs/internals/endpoints.md#rate-limit).
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
