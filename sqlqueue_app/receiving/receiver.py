"""What the receivers of every concurrency model share: their threads, and how they sit out a database that is away."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from sqlqueue_app.messages.errors import ConfigurationError, ConnectionLost, DatabaseError
from sqlqueue_app.policies.circuit_breaker import CircuitBreaker
from sqlqueue_app.policies.ramp_up import ThreadBudget
from sqlqueue_app.receiving.pausing import PauseGate
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.wake_up import WakeUp

logger = logging.getLogger("sqlqueue.receive")

# Seconds between looks at a database that is away, doubling up to the cap.
OUTAGE_FIRST_SECONDS = 1.0
OUTAGE_CAP_SECONDS = 10.0
# Transport reference 5.4, versions 3 and later; the setting CIRCUIT_BREAKER goes before it.
CIRCUIT_BREAKER_SECONDS = 30.0


class Poller(Protocol):
    """What one polling thread does; made, used and closed in that thread alone.

    Other threads may read its attribute `handling`, where it has one: whether a message is being handled.
    """

    def poll(self, received: Callable[[bool], None] | None = None) -> bool:
        """Receive and process one message; True if there was one. Raises DatabaseError when the database cannot be asked.

        `received` is told whether there was a row as soon as that is known, before the message is processed.
        """

    def close(self) -> None:
        """Give back what the thread holds: its connections. Another poll opens them again."""


class Outage:
    """Says once that receiving fails, once that it has failed for too long, and once that it works again, whatever the number of
    threads that notice.

    A poll brings the `mark` of its begin along: one that worked, but began before the outage was noticed, does not end it, and one
    that failed, but began before the outage was over, is no new one.
    """

    def __init__(self, queue: str, *, circuit_breaker_seconds: float, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._on = False
        self._turns = 0
        self._breaker = CircuitBreaker(circuit_breaker_seconds)
        self._clock = clock

    @property
    def is_critical(self) -> bool:
        """Whether the circuit breaker is triggered."""
        return self._breaker.triggered

    @property
    def mark(self) -> int:
        """To be asked before a poll: how many times an outage has begun or ended."""
        return self._turns

    def noticed(self, error: DatabaseError, mark: int) -> None:
        """A poll failed."""
        with self._lock:
            if not self._on and mark != self._turns:
                return
            first, self._on = not self._on, True
            self._turns += first
            critical = self._breaker.failed(self._clock())
        if critical:
            logger.critical(
                "failed to receive from %s for %g seconds: %s",
                self._queue,
                self._breaker.wait_seconds,
                error,
                extra={"event": "critical_error", "queue": self._queue},
            )
        if first:
            lost = isinstance(error, ConnectionLost)
            text = "the database is away, looking for it again: %s" if lost else "receiving failed, trying again: %s"
            logger.warning(text, error, extra={"event": "receive_failed", "queue": self._queue})

    def over(self, mark: int) -> None:
        """A poll worked."""
        if not self._on:
            return
        with self._lock:
            back = mark == self._turns
            if back:
                self._on = False
                self._turns += 1
                self._breaker.succeeded()
        if back:
            logger.info("receiving again", extra={"event": "receive_recovered", "queue": self._queue})


class Receiver(ABC):
    """Receives from one queue with threads of its own, at most `maximum`. Started once; `join` after the stop signal is set."""

    def __init__(
        self,
        queue: str,
        *,
        maximum: int,
        new_poller: Callable[[], Poller],
        stop: StopSignal,
        name: str,
        circuit_breaker_seconds: float = CIRCUIT_BREAKER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wake_up: WakeUp | None = None,
    ) -> None:
        self.queue = queue
        self.wake_up = wake_up
        self._new_poller = new_poller
        self._stop = stop
        self._name = name
        self._lock = threading.Lock()
        self._budget = ThreadBudget(maximum)
        self._threads: set[threading.Thread] = set()
        self._pollers: set[Poller] = set()
        self._gate = PauseGate(stop)
        self._sitting_out = 0
        self._threads_refused = False
        self._numbers = itertools.count(1)
        self._outage = Outage(queue, circuit_breaker_seconds=circuit_breaker_seconds, clock=clock)

    @property
    def maximum(self) -> int:
        """The most threads there may be."""
        return self._budget.maximum

    @property
    def live_threads(self) -> int:
        """The receive threads there are now; those that sit out a pause do not count."""
        with self._lock:
            return self._budget.live - self._sitting_out

    @property
    def busy_threads(self) -> int:
        """The receive threads that handle a message now."""
        with self._lock:
            return sum(getattr(poller, "handling", False) for poller in self._pollers)

    @property
    def is_paused(self) -> bool:
        """Whether an operator has stopped it from receiving."""
        return self._gate.is_closed

    def pause(self) -> None:
        """Receive nothing from now on; messages that are being handled are finished. Safe from any thread, and returns at once.

        A thread that is just receiving may still get a message. The threads wait without a connection, for `resume` or the stop.
        """
        if self._gate.close():
            logger.info("receiving from %s is paused", self.queue, extra={"event": "receiving_paused", "queue": self.queue})
            if self.wake_up is not None:
                # Who rests gives its connection back now.
                self.wake_up.wake_all()

    def resume(self) -> None:
        """Receive again after a `pause`; every thread looks at once. Safe from any thread."""
        if self._gate.open():
            logger.info("receiving from %s again", self.queue, extra={"event": "receiving_resumed", "queue": self.queue})

    @abstractmethod
    def start(self) -> None:
        """Start the first threads."""

    def change_concurrency(self, maximum: int) -> None:
        """Have at most `maximum` threads from now on; the last call counts. Safe from any thread, and returns at once.

        More: the fixed model starts the missing threads now, the others may start them when there is work. Fewer: a thread too
        many ends after the message at hand, or after the wait that it is in; none is interrupted.
        ConfigurationError unless it is an integer of at least 1.
        """
        if isinstance(maximum, bool) or maximum < 1:
            raise ConfigurationError(
                f"the concurrency of {self.queue!r} cannot be {maximum!r}: expected an integer of at least 1; "
                "to receive nothing, stop the worker"
            )
        with self._lock:
            before, self._budget.maximum = self._budget.maximum, maximum
        if before == maximum:
            return
        logger.info(
            "at most %s threads receive from %s now, before it were %s",
            maximum,
            self.queue,
            before,
            extra={"event": "concurrency_changed", "queue": self.queue},
        )
        self._concurrency_changed()

    def _concurrency_changed(self) -> None:
        """What follows at once from a new maximum."""
        if self.wake_up is not None:
            # Threads that rest may be too many.
            self.wake_up.wake_all()

    def tick(self) -> None:  # noqa: B027 - most models have nothing to look at
        """Called every few seconds, for models that look at how long messages take."""

    def join(self) -> None:
        """Wait until every thread has finished the message it was at."""
        while threads := self._not_ended():
            for thread in threads:
                thread.join()

    def _not_ended(self) -> list[threading.Thread]:
        with self._lock:
            return [thread for thread in self._threads if thread.is_alive()]

    def _start_thread(self, reason: str) -> bool:
        """Start one more thread that runs `_work`, if the maximum allows it and no stop was asked for."""
        with self._lock:
            if self._stop.is_set() or not self._budget.may_start():
                return False
            number = next(self._numbers)
            thread = threading.Thread(target=self._run, args=(number,), name=f"{self._name}-{number}")
            # Threads that have ended are forgotten here, and not by themselves: a thread still closes its connection then.
            self._threads = {other for other in self._threads if other.is_alive()} | {thread}
            live = self._budget.live
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                self._not_started(number, thread, error)
                return False
            self._threads_refused = False
        logger.debug(
            "receive thread %s started (%s), %s live", number, reason, live, extra={"event": "thread_started", "queue": self.queue}
        )
        return True

    def _not_started(self, number: int, thread: threading.Thread, error: Exception) -> None:
        """The system has no thread for us now: those that are there go on. Raises `error` where there is none. Under the lock."""
        self._threads.discard(thread)
        self._ended(number)
        if not self._budget.live:
            raise error
        # Once, and not at each message that asks for one more.
        refused, self._threads_refused = self._threads_refused, True
        if refused:
            return
        logger.warning(
            "another receive thread of %s cannot be started, %s go on: %s",
            self.queue,
            self._budget.live,
            error,
            extra={"event": "thread_not_started", "queue": self.queue},
        )

    def _run(self, number: int) -> None:
        poller = self._new_poller()
        with self._lock:
            self._pollers.add(poller)
        try:
            with self._stop.failing_with(logger, "receive thread %s of %s died", number, self.queue):
                self._work(number, poller)
        except BaseException:
            with self._lock:
                self._ended(number)
            raise
        finally:
            with self._lock:
                self._pollers.discard(poller)
            poller.close()

    @abstractmethod
    def _work(self, number: int, poller: Poller) -> None:
        """What a thread does until it ends; it calls `_ended` under the lock before it returns."""

    def _ends_as_surplus(self, number: int) -> bool:
        """Give the thread's place back if there are more threads than there may be; it ends then. Called without the lock."""
        with self._lock:
            if not self._budget.has_surplus or self._stop.is_set():
                return False
            self._ended(number)
        return True

    def _ended(self, number: int) -> None:
        """Give the thread's place back. Called under the lock."""
        self._budget.ended()

    def _sit_out(self, number: int, poller: Poller) -> None:
        """Wait until the pause or the worker ends, and hold nothing meanwhile. Called without the lock."""
        self._give_back(poller)
        with self._lock:
            self._sitting_out += 1
        try:
            self._gate.wait()
        finally:
            with self._lock:
                self._sitting_out -= 1

    def _wait(self, seconds: float) -> None:
        """Wait between two polls: so long, or until a new message is announced, or until the stop."""
        if self.wake_up is None:
            self._stop.wait(seconds)
        else:
            self.wake_up.wait(seconds)

    def _rest(self, seconds: float) -> None:
        """`_wait` at a queue that was seen empty: longer, where every new message is announced."""
        if self.wake_up is None:
            self._stop.wait(seconds)
        else:
            self.wake_up.rest(seconds)

    def _noticed(self, error: DatabaseError, poller: Poller, mark: int) -> None:
        """A poll failed that began at this mark of the outage: say so once, and start over with a new connection."""
        self._give_back(poller)
        self._outage.noticed(error, mark)

    def _give_back(self, poller: Poller) -> None:
        """Close the thread's connections, whatever state they are in; rows received ahead are in their queue again."""
        with contextlib.suppress(Exception):
            poller.close()
