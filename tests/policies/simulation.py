"""Polling threads of one queue on a numeric clock: the adaptive receiver without threads and without time.

Times are whole milliseconds, so that sums are exact.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlqueue_app.policies.polling import (
    BUSY_PROBE_SECONDS,
    SLOW_TASK_TICK_SECONDS,
    BusyThreads,
    RampUpController,
    SlowTaskMonitor,
    Step,
    ThreadBudget,
)


@dataclass(frozen=True, slots=True)
class Poll:
    """One poll: its time, its thread, and whether it found a message."""

    at: int
    thread: int
    found: bool


@dataclass
class Simulation:
    """`arrivals`: the arrival times of the messages, in order; `handling`: the milliseconds that each takes.

    `failed`: whether the poll of a message counts as a failure (expired, poison). A poll itself takes no time. Without `looks`,
    this is the plain algorithm of version 2.1.
    """

    maximum: int
    arrivals: Sequence[int] = ()
    handling: Callable[[int], int] = lambda _: 1
    failed: Callable[[int], bool] = lambda _: False
    monitored: bool = True
    probes: bool = False
    polls: list[Poll] = field(default_factory=list)
    live: list[tuple[int, int]] = field(default_factory=list)
    """The number of live threads after each change of it."""
    handled: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Each message's begin and thread."""
    requests: list[tuple[int, str, bool]] = field(default_factory=list)
    """When a thread was requested, why, and whether there was a place for it."""
    extra: list[tuple[int, int]] = field(default_factory=list)
    """The ticks at which the slow-task monitor requested threads, and how many."""

    def __post_init__(self) -> None:
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        self._budget = ThreadBudget(self.maximum)
        self._monitor = SlowTaskMonitor()
        self._busy = BusyThreads()
        self._is_probing = False
        self._taken = 0

    def run(self, until: int) -> Simulation:
        """Run everything up to and including that time."""
        self._request(0, "start")
        if self.monitored:
            self._at(0, self._tick)
        while self._events and self._events[0][0] <= until:
            now, _, action = heapq.heappop(self._events)
            action(now)
        return self

    def threads_at(self, time: int) -> int:
        """Return the number of live threads at that time."""
        return self.live[bisect_right([at for at, _ in self.live], time) - 1][1]

    def _at(self, time: int, action: Callable[[int], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), action))

    def _request(self, now: int, why: str) -> None:
        started = self._budget.may_start()
        self.requests.append((now, why, started))
        if started:
            self.live.append((now, self._budget.live))
            number, controller = next(self._numbers), RampUpController()
            self._at(now, lambda then: self._loop(then, number, controller))

    def _tick(self, now: int) -> None:
        extra = self._monitor.tick()
        if extra:
            self.extra.append((now, extra))
        for _ in range(extra):
            self._request(now, "slow message")
        self._at(now + round(SLOW_TASK_TICK_SECONDS * 1000), self._tick)

    def _probe(self, now: int) -> None:
        probed = self._busy.probe(self._budget.live)
        self._is_probing = not self._busy.free(self._budget.live) and self._budget.live < self.maximum
        if probed:
            self._request(now, "all threads are busy")
        if self._is_probing:
            self._at(now + round(BUSY_PROBE_SECONDS * 1000), self._probe)

    def _received(self, now: int, thread: int) -> None:
        self._busy.probes[thread] = 0
        if self.probes and not self._is_probing:
            self._is_probing = True
            self._at(now + round(BUSY_PROBE_SECONDS * 1000), self._probe)

    def _loop(self, now: int, thread: int, controller: RampUpController) -> None:
        self._busy.probes.pop(thread, None)
        self._monitor.loop_began(thread)
        step = controller.next_step()
        if step is Step.END and self.probes and self._budget.live > 1 and self._busy.free(self._budget.live) == 1:
            controller = RampUpController()
            step = controller.next_step()
        if step is Step.END:
            self._monitor.ended(thread)
            was_last = self._budget.ended()
            self.live.append((now, self._budget.live))
            if was_last:
                self._request(now, "last thread")
            return
        if step is Step.RAMP_UP_AND_POLL:
            self._request(now, "ramp-up")
        message = self._take(now)
        self.polls.append(Poll(now, thread, message is not None))
        if message is None or self.failed(message):
            wait = controller.polled(succeeded=False)
            busy = 0
        else:
            wait = controller.polled(succeeded=True)
            busy = self.handling(message)
            self._received(now, thread)
            self.handled[message] = now, thread
        self._at(now + busy + round(wait * 1000), lambda then: self._loop(then, thread, controller))

    def _take(self, now: int) -> int | None:
        if self._taken < len(self.arrivals) and self.arrivals[self._taken] <= now:
            self._taken += 1
            return self._taken - 1
        return None
