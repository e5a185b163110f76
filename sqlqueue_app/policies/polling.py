"""Polling of queues: the ramp-up controller of transport 2.1, fixed threads, the peek monitor, batch sizes, back-off, the circuit
breaker and rate limiting. Plain arithmetic: no clock, no thread.
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
        """The seconds to wait now; the next wait is twice as long, up to the cap."""
        wait = self._next_seconds or self.first_seconds
        self._next_seconds = min(wait * 2, self.cap_seconds)
        return wait

    def reset(self) -> None:
        """Start again from the first value."""
        self._next_seconds = 0.0


RAMP_UP_ABOVE_SUCCESSES = 5
END_AT_FAILURES = 7
SLOW_TASK_TICK_SECONDS = 5.0
# A thread is slow if it begins no new loop between two ticks.
SLOW_TASK_TICKS = 2


class Step(enum.Enum):
    """The next step of a polling thread."""

    POLL = "poll"
    RAMP_UP_AND_POLL = "ramp up and poll"
    END = "end"


@dataclass(slots=True)
class RampUpController:
    """Counts consecutive successes and failures of one polling thread; together they determine the number of threads.

    A success is a poll that yielded a message, even if its processing failed; a failure is an empty poll, an expired row
    or a poison row (docs/internals/endpoints.md#ramp-up-controller). Not thread-safe: one per thread.
    """

    back_off: BackOff = field(default_factory=BackOff)
    successes: int = 0
    failures: int = 0

    def next_step(self) -> Step:
        """The step before each poll. A ramp-up resets both counters, whether or not a thread could be started."""
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
    """Requests one extra thread per message that keeps a thread busy for more than one tick of the monitor.

    The caller ticks every SLOW_TASK_TICK_SECONDS, the first time immediately. Not thread-safe: callers hold one lock.
    """

    _seen: dict[int, int] = field(default_factory=dict)

    def loop_began(self, thread: int) -> None:
        """Record that the thread begins a loop iteration, so its previous work is done."""
        self._seen[thread] = 0

    def ended(self, thread: int) -> None:
        """Remove a thread that has ended."""
        self._seen.pop(thread, None)

    def tick(self) -> int:
        """Count one tick and return the number of requested extra threads."""
        extra = 0
        for thread, seen in self._seen.items():
            self._seen[thread] = seen + 1
            extra += seen + 1 == SLOW_TASK_TICKS
        return extra


# Interval of probing the threads of a queue while all are busy. Two probes take 20 to 40 ms.
BUSY_PROBE_SECONDS: Final = 0.02
BUSY_PROBES: Final = 2


@dataclass(slots=True)
class BusyThreads:
    """Tracks the polling threads that handle a message, so that one thread is always free to receive the next one.

    An addition to the algorithm of version 2.1 (docs/internals/endpoints.md#ramp-up-controller), where a message waits for
    the handler before it until that has run for 5 to 10 seconds. The caller probes every BUSY_PROBE_SECONDS while all threads are
    busy. Not thread-safe: callers hold one lock.
    """

    probes: dict[int, int] = field(default_factory=dict)
    """The number of probes that found each thread in its current message or batch, from 0. A free thread has no entry."""

    def free(self, live: int) -> int:
        """The number of live threads that handle no message."""
        return live - len(self.probes)

    def probe(self, live: int) -> bool:
        """Count a probe; True requests a thread, because every live one was in the same message at the last probe too."""
        for thread in self.probes:
            self.probes[thread] += 1
        return not self.free(live) and all(count >= BUSY_PROBES for count in self.probes.values())


@dataclass(slots=True)
class ThreadBudget:
    """Counts live polling threads of one queue, at most `maximum`, which may change. Not thread-safe: callers hold one lock."""

    maximum: int
    live: int = 0

    def may_start(self) -> bool:
        """Reserve a place for one more thread, if there is one."""
        if self.live >= self.maximum:
            return False
        self.live += 1
        return True

    @property
    def has_surplus(self) -> bool:
        """Whether there are more threads than allowed, because the maximum was lowered."""
        return self.live > self.maximum

    def ended(self) -> bool:
        """Release a place; True if the thread was the last one, so that a new one starts immediately."""
        self.live -= 1
        return self.live == 0


# The wait before a thread that faulted (connection, SQL) starts over (docs/internals/endpoints.md#fixed-threads).
FIXED_FAULT_PAUSE_SECONDS = 10.0


@dataclass(slots=True)
class FixedThread:
    """The waits of one thread of the fixed model. Not thread-safe: one per thread."""

    back_off: BackOff = field(default_factory=BackOff)

    def polled(self, *, succeeded: bool) -> float:
        """The seconds to wait before the next poll: none after a message, else 50 ms doubling to 1 s."""
        if succeeded:
            self.back_off.reset()
            return 0.0
        return self.back_off.next_wait()

    def faulted(self) -> float:
        """The seconds to wait after a fault before the thread starts over."""
        self.back_off.reset()
        return FIXED_FAULT_PAUSE_SECONDS


# After a failed peek or receive: armed breaker, docs/internals/endpoints.md#circuit-breakers.
MONITOR_FAULT_PAUSE_SECONDS = 1.0
TRIGGERED_PAUSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PeekDecision:
    """The decision after a peek: the number of receives to start, or the wait before the next peek."""

    receives: int
    wait_seconds: float


def decide_after_peek(waiting: int, peek_delay_seconds: float) -> PeekDecision:
    """Start one receive per message that seems to wait; if there is none, wait for the peek delay, which does not grow."""
    return PeekDecision(waiting, 0.0) if waiting > 0 else PeekDecision(0, peek_delay_seconds)


@dataclass(slots=True)
class Batch:
    """The receives started by one peek (docs/internals/endpoints.md#peek-monitor). Not thread-safe: callers hold one lock.

    The first receive that finds nothing ends the batch: no further receive is started, because the peek is only an upper bound
    (gaps in the RowVersions, other receivers). The next peek waits until each started receive has executed its DELETE, so that a
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
        """Record that a started receive has executed its DELETE."""
        self.received += 1
        if not found:
            self.cancelled = True

    @property
    def settled(self) -> bool:
        """Whether the monitor may peek again."""
        return self.cancelled or self.received >= self.started


# More rows gain nothing (docs/internals/performance.md#limits-of-the-database: 50 and 100 rows are equally fast).
AUTO_MAXIMUM: Final = 64
# The maximum duration of a batch, and so of the wait of its first message for the commit.
AUTO_SECONDS: Final = 0.1
# The maximum bytes of the bodies of a batch, which its thread holds several times, as text of the database among others.
AUTO_BYTES: Final = 2**20


class BatchSize:
    """The batch size of one receiving thread: fixed, or adaptive with "auto". Times are in seconds.

    A commit costs as much as ten receives (docs/internals/performance.md#limits-of-the-database); but messages of one transaction
    wait for each other, and all are received again if it is lost. So a batch grows only while the queue is deep and handlers are
    fast, and its bodies are small. After a loss each message is received alone, which identifies the failing one.
    """

    def __init__(self, size: int | Literal["auto"] = 1) -> None:
        self._automatic = size == "auto"
        self._size = 1 if size == "auto" else size
        self._alone = 0

    def next(self) -> int:
        """The maximum number of rows of the next receive. Call it once per receive."""
        if self._alone:
            self._alone -= 1
            return 1
        return self._size

    def done(self, received: int, seconds: float, *, failed: bool, content: int = 0) -> None:
        """Record the end and the duration of a batch; `failed` if one of its messages was not handled; `content`: the bytes of its
        bodies.
        """
        if not self._automatic:
            return
        if failed:
            self._size = 1
        elif seconds > AUTO_SECONDS:
            self._size = max(1, int(received * AUTO_SECONDS / seconds))
        elif content > AUTO_BYTES:
            self._size = max(1, received * AUTO_BYTES // content)
        elif received >= self._size and seconds <= AUTO_SECONDS / 2 and content <= AUTO_BYTES / 2:
            self._size = min(self._size * 2, AUTO_MAXIMUM)

    def lost(self, received: int) -> None:
        """Record that the transaction of a batch was lost: until its messages are handled, each message is received alone."""
        self._alone = received if received > 1 else 0
        if self._automatic:
            self._size = 1


# While push is enabled. These polls find messages without a notification: returned because their worker was killed, or sent after
# the trigger was dropped.
IDLE_WAIT_SECONDS = 10.0


# This many announcements in a row are a burst, each within this time of the previous one.
BURST_ANNOUNCEMENTS: Final = 6
BURST_SECONDS: Final = 0.01
# If another session sent it: senders that wait for each other commit in turn, however slow the disk or the replica.
# A single sender never waits and keeps its wake-ups at this pace.
BURST_OTHER_SESSION_SECONDS: Final = 0.1
# During a burst, one idle thread polls again after this time while at most this many messages are found per second. Faster senders
# need the processor themselves: eight of them lost a fifth of their rate (docs/internals/performance.md#announcements).
BURST_WAIT_SECONDS: Final = 0.005
BURST_WAIT_MESSAGES_PER_SECOND: Final = 200
# A burst is over when a receiver has found nothing for this time, in at least two polls.
QUIET_SECONDS: Final = 0.05


@dataclass(slots=True)
class BurstDetector:
    """Detects announcements on one channel that are so frequent that polling is better.

    On PostgreSQL, commits with notifications wait for each other, so senders in a burst lose more than half of their rate
    (docs/internals/performance.md#announcements). Instants are seconds of a monotonic clock. Not thread-safe.
    """

    _last: float = float("-inf")
    _session: int = 0
    _count: int = 0

    def announced(self, now: float, session: int) -> bool:
        """Count an announcement by this session of the server; True if it completes a burst."""
        within = BURST_SECONDS if session == self._session else BURST_OTHER_SESSION_SECONDS
        self._count = self._count + 1 if now - self._last < within else 1
        self._last, self._session = now, session
        return self._count >= BURST_ANNOUNCEMENTS


def wait_in_burst(found: int, seconds: float) -> float:
    """The seconds until one idle thread polls again during a burst, if `found` messages were found within the last `seconds`."""
    return BURST_WAIT_SECONDS if found <= seconds * BURST_WAIT_MESSAGES_PER_SECOND else QUIET_SECONDS


# The bound must not hide rows that returned below it or were committed late: after this time a receive starts from the beginning.
RESCAN_SECONDS = 0.1
# Slow receives from the beginning may take at most this share of the time, but happen at least as often as the cap.
RESCAN_SHARE = 0.1
RESCAN_CAP_SECONDS = 1.0


@dataclass(slots=True)
class LowerBound:
    """The lowest RowVersion for the next receive, so that it skips rows that are dead but not yet vacuumed.

    Measured: 18,000 instead of 340 receives a second after 60,000 messages while an old transaction was open
    (docs/internals/performance.md#dead-rows). Instants are seconds of a monotonic clock.

    One per queue and process. Threads share it, so that one of them starts from the beginning for all. Used without a lock: with
    concurrent writes, the bound is still one that some receive has proved, or 0.
    """

    lowest: int = 0
    rescanned_at: float = 0.0
    wait_seconds: float = RESCAN_SECONDS

    def for_receive(self, now: float) -> int:
        """The bound for a receive that begins now; 0 for the first call once a receive from the beginning is due."""
        if now - self.rescanned_at >= self.wait_seconds:
            self.rescanned_at = now
            return 0
        return self.lowest

    def received(self, number: int, *, bound: int, began: float, now: float) -> None:
        """Record that a receive with this `bound` returned the row with this RowVersion."""
        if bound == 0:
            self.rescanned_at = now
            self.wait_seconds = min(max(RESCAN_SECONDS, (now - began) / RESCAN_SHARE), RESCAN_CAP_SECONDS)
            self.lowest = number + 1
        elif self.lowest >= bound:
            # Another thread may be ahead, or has started from the beginning and reset the bound, which takes precedence.
            self.lowest = max(self.lowest, number + 1)

    def forget(self) -> None:
        """Start from the beginning next: nothing was found, or a row was returned to the queue."""
        self.lowest = 0


@dataclass(slots=True)
class CircuitBreaker:
    """Armed by a failure, triggered if failures continue for `wait_seconds`, reset by a success; instants in seconds.

    Not thread-safe: callers hold one lock (docs/internals/endpoints.md#circuit-breakers).
    """

    wait_seconds: float
    armed_at: float | None = None
    triggered: bool = False

    def failed(self, now: float) -> bool:
        """Count a failure; True if it triggers the breaker."""
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


# The wait after each failure, one message at a time (docs/internals/endpoints.md#rate-limit).
WAIT_SECONDS = 1.0


class ConsecutiveFailures:
    """Counts consecutive failures; `after` is the number of failures that starts the limit, None for no limit."""

    def __init__(self, after: int | None) -> None:
        self._after = after
        self._failures = 0

    @property
    def limited(self) -> bool:
        """Whether the limit is active."""
        return self._after is not None and self._failures >= self._after

    def failed(self) -> bool:
        """Count a failure; True if it starts the limit."""
        before = self.limited
        self._failures += 1
        return self.limited and not before

    def succeeded(self) -> bool:
        """Record a success; True if it ends the limit."""
        before = self.limited
        self._failures = 0
        return before
