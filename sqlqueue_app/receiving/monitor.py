"""The monitor receiver of transports 3.0 and later: one thread peeks, a pool receives (transport reference 4.3).

The monitor's own thread is no receive thread: it takes nothing. Pool threads are started when there is work for them, and end when
there was none for a while; each holds one connection.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.policies.peek_monitor import FAULT_PAUSE_SECONDS, TRIGGERED_PAUSE_SECONDS, Batch, look
from sqlqueue_app.receiving.receiver import Poller, Receiver, logger
from sqlqueue_app.receiving.slots import Slots

# A pool thread without work for so long gives its connection back.
IDLE_SECONDS = 10.0
SECONDS_BETWEEN_LOOKS_AT_THE_STOP = 1.0


class PeekingPoller(Poller, Protocol):
    """A poller that can also look."""

    def peek(self) -> int:
        """An upper bound of the messages that wait; DatabaseError when the database cannot be asked."""


class MonitorReceiver(Receiver):
    """Peeks at the queue and has each waiting message received by a pool of at most `maximum` threads."""

    def __init__(
        self,
        queue_name: str,
        *,
        maximum: int,
        new_poller: Callable[[], PeekingPoller],
        peek_delay_seconds: float,
        **options: Any,
    ) -> None:
        super().__init__(queue_name, maximum=maximum, new_poller=new_poller, **options)
        self._new_peeking_poller = new_poller
        self._peek_delay_seconds = peek_delay_seconds
        self._slots = Slots(maximum)
        # Taking a task and no longer counting as waiting are one step under the lock: else a thread that has just taken one would
        # be counted on for the next, which would lie there while that thread handles its message.
        self._tasks: deque[Batch | None] = deque()
        self._task_came = threading.Condition(self._lock)
        self._waiting_threads = 0
        self._settled = threading.Condition(self._lock)

    def start(self) -> None:
        """Start the monitor; it starts pool threads when there is something to receive."""
        thread = threading.Thread(target=self._guarded_monitor, name=f"{self._name}-monitor")
        with self._lock:
            self._threads.add(thread)
            thread.start()

    def _concurrency_changed(self) -> None:
        super()._concurrency_changed()
        with self._task_came:
            # Under the lock, so that of two changes at once the later one counts here too.
            self._slots.resize(self._budget.maximum)
            # Threads without work end now; a busy one sees after its message that it is too many.
            self._tasks.extend([None] * (self._budget.live - self._budget.maximum))
            self._task_came.notify_all()

    def _guarded_monitor(self) -> None:
        poller = self._new_peeking_poller()
        try:
            with self._stop.failing_with(logger, "the monitor of %s died", self.queue):
                self._monitor(poller)
        finally:
            # The pool ends with its monitor, whatever ended that.
            self._stop.set()
            # No thread starts any more.
            with self._task_came:
                self._tasks.extend([None] * self._budget.live)
                self._task_came.notify_all()
            poller.close()

    def _monitor(self, poller: PeekingPoller) -> None:
        while not self._stop.is_set():
            if self._gate.is_closed:
                # The monitor is no receive thread; those of the pool end for want of work.
                self._give_back(poller)
                self._gate.wait()
                continue
            mark = self._outage.mark
            try:
                decision = look(poller.peek(), self._peek_delay_seconds)
            except DatabaseError as error:
                self._noticed(error, poller, mark)
                self._stop.wait(TRIGGERED_PAUSE_SECONDS if self._outage.is_critical else FAULT_PAUSE_SECONDS)
                continue
            if decision.wait_seconds:
                self._outage.over(mark)
                self._rest(decision.wait_seconds)
                continue
            # While the breaker is triggered, one receive tries whether it works again (4.1 and later).
            self._run_batch(1 if self._outage.is_critical else decision.receives)

    def _run_batch(self, receives: int) -> None:
        batch = Batch()
        for _ in range(receives):
            # A task that was handed out just when the stop came may have found no thread: its slot never comes free.
            if self._stop.is_set():
                break
            # Every other slot comes free when a message is done: a stop waits for those anyway.
            self._slots.acquire()
            with self._lock:
                may_start = not self._stop.is_set() and not self._gate.is_closed and batch.may_start()
            if not may_start:
                self._slots.release()
                break
            self._hand_out(batch)
        with self._settled:
            # A stop may leave the last task to nobody: then no one will settle it.
            while not batch.settled and not self._stop.is_set():
                self._settled.wait(SECONDS_BETWEEN_LOOKS_AT_THE_STOP)

    def _hand_out(self, batch: Batch) -> None:
        # The task first: a thread that is done with waiting looks for one under this lock, before it gives its place back.
        with self._task_came:
            self._tasks.append(batch)
            idle = self._waiting_threads >= len(self._tasks)
            self._task_came.notify()
        if not idle:
            self._start_thread("waiting message")

    def _work(self, number: int, poller: Poller) -> None:
        while not self._ends_as_surplus(number):
            batch = self._next_task()
            if batch is None:
                with self._lock:
                    # A task may have come between the end of the wait and here.
                    if not self._tasks or self._stop.is_set():
                        self._ended(number)
                        return
                continue
            self._receive_one(poller, batch)

    def _next_task(self) -> Batch | None:
        with self._task_came:
            self._waiting_threads += 1
            try:
                self._task_came.wait_for(lambda: bool(self._tasks), IDLE_SECONDS)
            finally:
                self._waiting_threads -= 1
            return self._tasks.popleft() if self._tasks else None

    def _receive_one(self, poller: Poller, batch: Batch) -> None:
        told = False

        def received(found: bool) -> None:
            nonlocal told
            if told:
                return
            told = True
            with self._settled:
                batch.received_one(found=found)
                self._settled.notify_all()

        mark = self._outage.mark
        try:
            poller.poll(received)
            self._outage.over(mark)
        except DatabaseError as error:
            self._noticed(error, poller, mark)
        finally:
            received(False)
            self._slots.release()
