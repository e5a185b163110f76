"""The three concurrency models: adaptive (transport 2.1), fixed (1.x and 2.0), and the peek monitor (3.0 and later)."""

from __future__ import annotations

import threading
from collections import deque

from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.policies.polling import (
    MONITOR_FAULT_PAUSE_SECONDS,
    TRIGGERED_PAUSE_SECONDS,
    BackOff,
    Batch,
    BusyThreads,
    FixedThread,
    RampUpController,
    SlowTaskMonitor,
    Step,
    decide_after_peek,
)
from sqlqueue_app.receiving.receiver import OUTAGE_CAP_SECONDS, OUTAGE_FIRST_SECONDS, Poller, Receiver, ReceiverOptions, logger
from sqlqueue_app.receiving.waiting import Watch


class AdaptiveReceiver(Receiver):
    """Keeps between one and `maximum` polling threads on one queue (docs/internals/endpoints.md#ramp-up-controller)."""

    def __init__(self, queue: str, options: ReceiverOptions) -> None:
        super().__init__(queue, options)
        self._slow_tasks = SlowTaskMonitor()
        self._busy = BusyThreads()

    def start(self) -> None:
        """Start the first thread."""
        self._start_thread("start")

    def tick(self) -> None:
        """Start one more thread for each slow message; the tick of the slow-task monitor."""
        with self._lock:
            extra = self._slow_tasks.tick()
        for _ in range(extra):
            self._start_thread("slow message")

    def probe(self) -> bool:
        """Start another thread if all are busy with the same messages as at the last probe; see `Receiver.probe`."""
        with self._lock:
            is_needed = self._busy.probe(self._budget.live)
            may_need = not self._busy.free(self._budget.live) and self._budget.live < self._budget.maximum
        if is_needed:
            self._start_thread("all threads are busy")
        return may_need

    def _concurrency_changed(self) -> None:
        super()._concurrency_changed()
        self.message.set()

    def _work(self, number: int, poller: Poller) -> None:
        while True:
            self._poll_until_idle(number, poller)
            with self._lock:
                # Several may have decided to end at once. Keep the last one: like a new one, without a new connection.
                if self._stop.is_set() or self._budget.has_surplus or self._busy.free(self._budget.live) > 1:
                    self._ended(number)
                    return

    def _ended(self, number: int) -> None:
        super()._ended(number)
        self._slow_tasks.ended(number)
        self._busy.probes.pop(number, None)

    @property
    def _free_threads(self) -> int:
        with self._lock:
            return self._busy.free(self._budget.live)

    @property
    def _is_burst(self) -> bool:
        return self.wake_up is not None and self.wake_up.is_burst

    def _poll_until_idle(self, number: int, poller: Poller) -> None:
        """Loop until the thread's ramp-up controller, a surplus of threads or the stop ends it."""
        controller = RampUpController()
        watch = Watch(self.wake_up) if self.wake_up is not None else None
        outage = BackOff(OUTAGE_FIRST_SECONDS, OUTAGE_CAP_SECONDS)
        while not self._stop.is_set():
            if self.gate.is_closed:
                self._wait_out_pause(number, poller)
                continue
            with self._lock:
                if self._budget.live > self._budget.maximum:
                    return
                self._slow_tasks.loop_began(number)
            mark = self._outage.mark
            try:
                succeeded = self._poll(number, poller, watch)
            except DatabaseError as error:
                self._poll_failed(error, poller, mark)
                # One free thread stays and retries, the others end.
                if self._free_threads > 1:
                    return
                self._stop.wait(outage.next_wait())
                continue
            self._outage.poll_succeeded(mark)
            outage.reset()
            wait = controller.polled(succeeded=succeeded)
            step = controller.next_step()
            if step is Step.END:
                # Without the wait: it could take a wake-up there, and end without a poll while the threads that stay sleep on.
                if self._free_threads > 1 and not self._is_burst:
                    return
                controller = RampUpController()
            elif step is Step.RAMP_UP_AND_POLL:
                self._start_thread("ramp-up")
            if wait:
                self._wait_after_poll(number, watch, wait)

    def _poll(self, number: int, poller: Poller, watch: Watch | None) -> bool:
        """Poll once; the thread is busy as soon as there is a message."""
        if watch is not None:
            watch.was_empty = False

        def received(found: bool) -> None:
            if watch is not None:
                watch.received(found)
            if found:
                with self._lock:
                    self._busy.probes[number] = 0
                # Called for each message: avoid the event's lock if it is set.
                if not self.message.is_set():
                    self.message.set()

        try:
            return poller.poll(received)
        finally:
            with self._lock:
                self._busy.probes.pop(number, None)

    def _wait_out_pause(self, number: int, poller: Poller) -> None:
        with self._lock:
            # A pause is not a slow message.
            self._slow_tasks.ended(number)
        super()._wait_out_pause(number, poller)

    def _wait_after_poll(self, number: int, watch: Watch | None, wait: float) -> None:
        """Wait; at an empty queue the last free thread waits longer, and the others as usual, so that they end as usual.

        In a burst, one of them polls more often for all.
        """
        if watch is not None and watch.was_empty and (self._free_threads == 1 or self._is_burst):
            with self._lock:
                # A long idle wait is not a slow message.
                self._slow_tasks.ended(number)
            self._idle_wait(wait)
        else:
            self._wait(wait)


class FixedReceiver(Receiver):
    """Runs exactly `maximum` polling threads; each waits with its own back-off, and longer after a fault.

    While push is enabled, idle threads wait longer, and one of them polls now and then for all
    (docs/internals/endpoints.md#fixed-threads).
    """

    _is_started = False

    def start(self) -> None:
        """Start all threads."""
        self._is_started = True
        self._fill("start")

    def _concurrency_changed(self) -> None:
        super()._concurrency_changed()
        if self._is_started:
            self._fill("higher concurrency")

    def tick(self) -> None:
        """Start threads that the system refused before; nothing else retries that."""
        if self._threads_refused:
            self._fill("refused before")

    def _fill(self, reason: str) -> None:
        while self._start_thread(reason):
            pass

    def _work(self, number: int, poller: Poller) -> None:
        policy = FixedThread()
        watch = Watch(self.wake_up) if self.wake_up is not None else None
        while not self._stop.is_set():
            if self._ends_as_surplus(number):
                return
            if self.gate.is_closed:
                self._wait_out_pause(number, poller)
                continue
            mark = self._outage.mark
            try:
                wait = policy.polled(succeeded=poller.poll(watch.begin() if watch is not None else None))
            except DatabaseError as error:
                self._poll_failed(error, poller, mark)
                if self.wake_up is not None:
                    # Another thread polls for what was announced: perhaps only the session of this one was cut.
                    self.wake_up.wake()
                self._stop.wait(policy.faulted())
                continue
            self._outage.poll_succeeded(mark)
            if watch is not None and watch.was_empty:
                self._idle_wait(wait)
            elif wait:
                self._wait(wait)
        with self._lock:
            self._ended(number)


# A pool thread closes its connection after this time without work.
IDLE_SECONDS = 10.0
STOP_CHECK_SECONDS = 1.0


class MonitorReceiver(Receiver):
    """Peeks at the queue and has each waiting message received by a pool of at most `maximum` threads.

    The monitor's own thread receives nothing. Pool threads, each with a connection, start when there is work and end after a
    while without it (docs/internals/endpoints.md#peek-monitor).
    """

    def __init__(self, queue: str, options: ReceiverOptions, *, peek_delay_seconds: float) -> None:
        super().__init__(queue, options)
        self._peek_delay_seconds = peek_delay_seconds
        self._permits = ResizableSemaphore(options.maximum)
        # Taking a task and leaving the waiting count are one step under the lock: otherwise a thread that has just taken a task
        # would count as free for the next, which would then wait until that thread has handled its message.
        self._tasks: deque[Batch | None] = deque()
        self._task_came = threading.Condition(self._lock)
        self._waiting_threads = 0
        self._settled = threading.Condition(self._lock)

    def start(self) -> None:
        """Start the monitor, which starts pool threads when there is something to receive."""
        thread = threading.Thread(target=self._guarded_monitor, name=f"{self._name}-monitor")
        with self._lock:
            self._threads.add(thread)
            thread.start()

    def _concurrency_changed(self) -> None:
        super()._concurrency_changed()
        with self._task_came:
            # Under the lock, so that the later of two concurrent changes counts here too.
            self._permits.resize(self._budget.maximum)
            # Idle threads end now; a busy one detects the surplus after its message.
            self._tasks.extend([None] * (self._budget.live - self._budget.maximum))
            self._task_came.notify_all()

    def _guarded_monitor(self) -> None:
        poller = self._new_poller()
        try:
            with self._stop.failing_with(logger, "the monitor of %s died", self.queue):
                self._monitor(poller)
        finally:
            # The pool ends with its monitor, for whatever reason.
            self._stop.set()
            # No more threads start now.
            with self._task_came:
                self._tasks.extend([None] * self._budget.live)
                self._task_came.notify_all()
            poller.close()

    def _monitor(self, poller: Poller) -> None:
        while not self._stop.is_set():
            if self.gate.is_closed:
                # The monitor is not a receive thread; pool threads end without work.
                self._give_back(poller)
                self.gate.wait()
                continue
            mark = self._outage.mark
            try:
                decision = decide_after_peek(poller.peek(), self._peek_delay_seconds)
            except DatabaseError as error:
                self._poll_failed(error, poller, mark)
                self._stop.wait(TRIGGERED_PAUSE_SECONDS if self._outage.is_critical else MONITOR_FAULT_PAUSE_SECONDS)
                continue
            if self.wake_up is not None:
                self.wake_up.polled(not decision.wait_seconds)
            if decision.wait_seconds:
                self._outage.poll_succeeded(mark)
                self._idle_wait(decision.wait_seconds)
                continue
            # While the breaker is triggered, a single receive probes the database (4.1 and later).
            self._run_batch(1 if self._outage.is_critical else decision.receives)

    def _run_batch(self, receives: int) -> None:
        batch = Batch()
        for _ in range(receives):
            # A task handed out during the stop may have found no thread, and never frees its slot.
            if self._stop.is_set():
                break
            # Every other slot is freed when its message is done; a stop waits for those anyway.
            self._permits.acquire()
            with self._lock:
                may_start = not self._stop.is_set() and not self.gate.is_closed and batch.may_start()
            if not may_start:
                self._permits.release()
                break
            self._hand_out(batch)
        with self._settled:
            # After a stop the last task may have no thread, and is never settled.
            while not batch.settled and not self._stop.is_set():
                self._settled.wait(STOP_CHECK_SECONDS)

    def _hand_out(self, batch: Batch) -> None:
        # Add the task first: a thread whose wait ends checks for one under this lock, before it releases its place.
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
                    # A task may have arrived since the end of the wait.
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
        is_known = False

        def received(found: bool) -> None:
            nonlocal is_known
            if is_known:
                return
            is_known = True
            with self._settled:
                batch.received_one(found=found)
                self._settled.notify_all()

        mark = self._outage.mark
        try:
            poller.poll(received)
            self._outage.poll_succeeded(mark)
        except DatabaseError as error:
            self._poll_failed(error, poller, mark)
        finally:
            received(False)
            self._permits.release()


class ResizableSemaphore:
    """At most `size` slots; after a `resize` to fewer, none is handed out until enough are released. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._condition = threading.Condition()
        self._size = size
        self._taken = 0

    def acquire(self) -> None:
        """Take a slot, and wait until one is free."""
        with self._condition:
            self._condition.wait_for(lambda: self._taken < self._size)
            self._taken += 1

    def release(self) -> None:
        """Release a slot."""
        with self._condition:
            self._taken -= 1
            self._condition.notify()

    def resize(self, size: int) -> None:
        """Change the number of slots; taken slots stay taken."""
        with self._condition:
            self._size = size
            self._condition.notify_all()
