"""A receiver: the threads that receive from one queue, the work of each, and their behaviour during an outage."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from django.conf import settings as django_settings
from django.db import connections, reset_queries

from sqlqueue_app.messages.errors import ConfigurationError, ConnectionLost, DatabaseError, TransientError
from sqlqueue_app.policies.polling import WAIT_SECONDS, CircuitBreaker, ThreadBudget
from sqlqueue_app.policies.recoverability import TransactionMode
from sqlqueue_app.receiving.processing import MessageProcessor, NonTransactionalProcessor, ProcessorConfig
from sqlqueue_app.receiving.recovery import RateLimit
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.receiving.waiting import EmptyQueues, PauseGate, WakeUp
from sqlqueue_app.tables.connections import leave_no_transaction
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import ReceiveTransaction, receive_transaction
from sqlqueue_app.tables.rows import ReceivedRow

logger = logging.getLogger("sqlqueue.receive")

# Seconds between two attempts to reach an unavailable database, doubling up to the cap.
OUTAGE_FIRST_SECONDS = 1.0
OUTAGE_CAP_SECONDS = 10.0
# Versions 3 and later (docs/internals/endpoints.md#circuit-breakers); the setting CIRCUIT_BREAKER overrides it.
CIRCUIT_BREAKER_SECONDS = 30.0


class Poller(Protocol):
    """The work of one receive thread; created, used and closed only there. Other threads may read its attributes."""

    @property
    def handling(self) -> bool:
        """Whether a message is being handled."""

    @property
    def received(self) -> int:
        """The number of messages received."""

    @property
    def queue(self) -> str:
        """The queue that is being polled."""

    def poll(self, received: Callable[[bool], None] | None = None) -> bool:
        """Receive and process a batch of messages; True if there was one. DatabaseError if the database cannot be queried.

        Calls `received` with whether there was a row as soon as that is known, before the message is processed.
        """

    def peek(self) -> int:
        """An upper bound of the waiting messages. DatabaseError if the database cannot be queried."""

    def close(self) -> None:
        """Close the thread's connections. Another poll opens them again."""


NewProcessor = Callable[[ProcessorConfig, ReceiveTransaction], MessageProcessor]

# SQLite has one writer: the threads of a process take turns instead of waiting for each other's lock.
_sqlite_turn = threading.Lock()


class QueuePoller:
    """Polls one queue in one thread. The first poll opens the thread's connection, `close` closes it."""

    def __init__(
        self,
        table: QueueTable,
        config: ProcessorConfig,
        *,
        stop: StopSignal,
        empty: EmptyQueues | None = None,
        receives_ahead: bool = False,
        new_processor: NewProcessor | None = None,
    ) -> None:
        self.handling = False
        self.received = 0
        self.queue = config.queue
        self._table = table
        self._config = config
        self._stop = stop
        self._empty = empty
        self._receives_ahead = receives_ahead
        self._is_busy = False
        self._new_processor = new_processor or _processor_of_mode
        self._processor: MessageProcessor | None = None
        self._has_other_aliases = len(list(connections)) > 1
        self._logs_queries = django_settings.DEBUG
        self._turn = _sqlite_turn if table.dialect.name == "sqlite" else None

    def poll(self, received: Callable[[bool], None] | None = None) -> bool:
        """See `Poller`. With `receives_ahead` a poll that found work may hold the next rows: poll again, or `close`."""
        limit = self._config.rate_limit
        if limit is not None and limit.limited:
            return self._poll_limited(limit, received)
        return self._poll_in_turn(received)

    def _poll_limited(self, limit: RateLimit, received: Callable[[bool], None] | None) -> bool:
        self._give_back()
        with limit.one_at_a_time():
            found = self._poll_in_turn(received)
            if found and limit.limited:
                self._stop.wait(WAIT_SECONDS)
            return found

    def _poll_in_turn(self, received: Callable[[bool], None] | None) -> bool:
        if self._turn is None:
            return self._poll_unless_stopped(received)
        with self._turn:
            return self._poll_unless_stopped(received)

    def _poll_unless_stopped(self, received: Callable[[bool], None] | None) -> bool:
        if self._stop.is_set():
            return False
        if self._empty is not None:
            return self._poll_until_empty(self._empty, received)
        return bool(self._poll(received))

    def _poll_until_empty(self, empty: EmptyQueues, received: Callable[[bool], None] | None) -> bool:
        mark = empty.poll_begins()
        found: bool | None = None
        try:
            found = self._poll(received)
        finally:
            if empty.poll_ends(self._config.queue, mark, empty=found is False):
                self._stop.set()
        return bool(found)

    def _poll(self, received: Callable[[bool], None] | None) -> bool | None:
        """Whether there was a message; None if the receive gave way to another session and does not know."""
        processor = self._processor or self._open()
        try:
            rows = processor.receive()
        except ConnectionLost:
            raise
        except TransientError as error:
            logger.warning("receive gave way to another session: %s", error, extra=self._extra("receive_gave_way"))
            return None
        if not rows and (keys := self._config.keys) is not None and keys.is_blocked:
            # Not empty: poll again soon.
            return None
        if received is not None:
            received(bool(rows))
        return self._process(processor, rows) if rows else False

    def _process(self, processor: MessageProcessor, rows: list[ReceivedRow]) -> bool:
        self._set_busy(True)
        self.handling = True
        try:
            found = processor.process(rows)
            if not found:
                # The thread may wait now, and must hold nothing.
                processor.give_back()
            return found
        except DatabaseError as error:
            if not processor.has_lost:
                text = "a message could not be finished and returned to its queue: %s"
                logger.critical(text, error, extra=self._extra("message_stays"))
            raise
        finally:
            self.handling = False
            self.received += len(rows)
            # Rows received ahead are in no queue, so an empty queue proves nothing yet.
            self._set_busy(bool(processor.transaction.rows_ahead))
            self._clean_up()

    def peek(self) -> int:
        """An upper bound of the waiting messages, without rows that are being received, or whose keys are taken."""
        mark = None if self._empty is None else self._empty.poll_begins()
        keys, empty, waiting = self._config.keys, False, 0
        try:
            waiting = self._table.waiting() if keys is None else keys.waiting(self._table)
            empty = not waiting and (keys is None or not keys.is_blocked)
        finally:
            if self._empty is not None and mark is not None and self._empty.poll_ends(self._config.queue, mark, empty=empty):
                self._stop.set()
        return waiting

    def close(self) -> None:
        """Close every connection of the calling thread; rows received ahead return to their queue."""
        self._give_back()
        self._processor = None
        for dispatcher in (self._config.dispatcher, self._config.immediate_dispatcher):
            if dispatcher is not None:
                dispatcher.close()
        connections.close_all()

    def _open(self) -> MessageProcessor:
        # Not in the constructor: on SQL Server it reads the table, and the database may be unavailable.
        with self._table.errors(f"inspect {self._table.qualified}"):
            opened = receive_transaction(self._table, self._config.bound, self._config.keys)
            opened.participants = self._config.participants()
            self._processor = self._new_processor(self._config, opened)
            if self._receives_ahead and opened.receives_ahead:
                self._processor.may_receive_ahead = self._may_receive_ahead
        return self._processor

    def _may_receive_ahead(self) -> bool:
        limit = self._config.rate_limit
        return not self._stop.is_set() and (limit is None or not limit.limited)

    def _set_busy(self, busy: bool) -> None:
        if self._empty is not None and busy is not self._is_busy:
            self._is_busy = busy
            (self._empty.message_begins if busy else self._empty.message_ends)()

    def _clean_up(self) -> None:
        """Clear the query log and close broken or old connections, as Django does at the end of a request."""
        if self._logs_queries:
            reset_queries()
        if not self._has_other_aliases:
            return
        for connection in connections.all(initialized_only=True):
            if connection.alias != self._table.alias:
                leave_no_transaction(connection)

    def _give_back(self) -> None:
        if self._processor is not None:
            self._processor.give_back()
        self._set_busy(False)

    def _extra(self, event: str) -> dict[str, object]:
        return {"event": event, "endpoint": self._config.endpoint, "queue": self._config.queue}


def _processor_of_mode(config: ProcessorConfig, opened: ReceiveTransaction) -> MessageProcessor:
    return (NonTransactionalProcessor if config.mode is TransactionMode.NONE else MessageProcessor)(config, opened)


class Outage:
    """Logs once that receiving fails, has failed for too long, and works again, however many threads detect it.

    Each poll passes the `mark` from before its start. A successful poll that began before the outage does not end it, and a
    failed one that began before the end of the outage does not start another.
    """

    def __init__(self, queue: str, *, circuit_breaker_seconds: float, clock: Callable[[], float]) -> None:
        self.is_on = False
        """Whether receiving currently fails."""
        self.mark = 0
        """The number of starts and ends of outages; read it before a poll."""
        self._queue = queue
        self._lock = threading.Lock()
        self._breaker = CircuitBreaker(circuit_breaker_seconds)
        self._clock = clock

    @property
    def is_critical(self) -> bool:
        """Whether the circuit breaker has triggered."""
        return self._breaker.triggered

    def poll_failed(self, error: DatabaseError, mark: int) -> None:
        """Record a failed poll."""
        with self._lock:
            if not self.is_on and mark != self.mark:
                return
            first, self.is_on = not self.is_on, True
            self.mark += first
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
            text = "the database is unreachable, trying again: %s" if lost else "receiving failed, trying again: %s"
            logger.warning(text, error, extra={"event": "receive_failed", "queue": self._queue})

    def poll_succeeded(self, mark: int) -> None:
        """Record a successful poll."""
        if not self.is_on:
            return
        with self._lock:
            back = mark == self.mark
            if back:
                self.is_on = False
                self.mark += 1
                self._breaker.succeeded()
        if back:
            logger.info("receiving again", extra={"event": "receive_recovered", "queue": self._queue})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverOptions:
    """The options of a receiver of any concurrency model."""

    maximum: int
    """The maximum number of threads."""
    new_poller: Callable[[], Poller]
    stop: StopSignal
    name: str
    """The prefix of its threads' names."""
    circuit_breaker_seconds: float = CIRCUIT_BREAKER_SECONDS
    clock: Callable[[], float] = time.monotonic
    wake_up: WakeUp | None = None
    levels: tuple[str, ...] = ()
    """The queues of other priorities, from which its threads also receive."""


class Receiver(ABC):
    """Receives from one queue with at most `maximum` threads of its own. Started once; `join` after setting the stop signal."""

    def __init__(self, queue: str, options: ReceiverOptions) -> None:
        self.queue = queue
        self.wake_up = options.wake_up
        self._new_poller = options.new_poller
        self._stop = options.stop
        self._name = options.name
        self._levels = options.levels
        self._lock = threading.Lock()
        self._budget = ThreadBudget(options.maximum)
        self._threads: set[threading.Thread] = set()
        self._pollers: set[Poller] = set()
        self._received_by_ended_threads = 0
        self.message = threading.Event()
        """Set when a thread may have become busy, so that `probe` must be called. May be replaced before the start."""
        self.gate = PauseGate(options.stop)
        self._paused_threads = 0
        self._threads_refused = False
        self._numbers = itertools.count(1)
        self._outage = Outage(queue, circuit_breaker_seconds=options.circuit_breaker_seconds, clock=options.clock)

    @property
    def maximum(self) -> int:
        """The maximum number of threads."""
        return self._budget.maximum

    @property
    def live_threads(self) -> int:
        """The current number of receive threads, without those that wait during a pause."""
        with self._lock:
            return self._budget.live - self._paused_threads

    @property
    def busy_threads(self) -> int:
        """The number of receive threads that are handling a message."""
        with self._lock:
            return sum(poller.handling for poller in self._pollers)

    def threads_by_queue(self) -> tuple[dict[str, int], dict[str, int]]:
        """The live threads and the busy ones of each queue; a thread for several counts where it is busy, else for the main one."""
        if not self._levels:
            return {self.queue: self.live_threads}, {self.queue: self.busy_threads}
        busy = dict.fromkeys((self.queue, *self._levels), 0)
        with self._lock:
            for poller in self._pollers:
                if poller.handling:
                    busy[poller.queue] += 1
            live = self._budget.live - self._paused_threads
        elsewhere = {queue: busy[queue] for queue in self._levels}
        return {self.queue: max(0, live - sum(elsewhere.values())), **elsewhere}, busy

    @property
    def received(self) -> int:
        """The number of messages that its threads have received."""
        with self._lock:
            return self._received_by_ended_threads + sum(poller.received for poller in self._pollers)

    def pause(self) -> None:
        """Stop receiving; messages in progress are finished. Safe from any thread, and returns at once.

        A thread that is receiving may still get a message. The threads wait without a connection for `resume` or the stop.
        """
        if self.gate.close():
            logger.info("receiving from %s is paused", self.queue, extra={"event": "receiving_paused", "queue": self.queue})
            if self.wake_up is not None:
                # Idle threads close their connections now.
                self.wake_up.wake_all()

    def resume(self) -> None:
        """Resume receiving after a `pause`; every thread polls at once. Safe from any thread."""
        if self.gate.open():
            logger.info("receiving from %s resumed", self.queue, extra={"event": "receiving_resumed", "queue": self.queue})

    @abstractmethod
    def start(self) -> None:
        """Start the first threads."""

    def change_concurrency(self, maximum: int) -> None:
        """Set the maximum number of threads; the last call counts. Safe from any thread, and returns at once.

        If it grows, the fixed model starts the missing threads now, the others when there is work. If it shrinks, surplus threads
        end after their current message or wait; none is interrupted.
        Raises ConfigurationError unless it is an integer of at least 1.
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
            "concurrency of %s changed from %s to %s",
            self.queue,
            before,
            maximum,
            extra={"event": "concurrency_changed", "queue": self.queue},
        )
        self._concurrency_changed()

    def _concurrency_changed(self) -> None:
        """Apply a new maximum."""
        if self.wake_up is not None:
            # There may be too many idle threads.
            self.wake_up.wake_all()

    def tick(self) -> None:  # noqa: B027 - optional: most models have nothing to observe
        """Observe processing times, in models that do so; called every few seconds."""

    def probe(self) -> bool:
        """Probe the receiver; called every BUSY_PROBE_SECONDS after `message` was set, while it returns True."""
        return False

    def join(self) -> None:
        """Wait until every thread has finished its current message."""
        while threads := self._not_ended():
            for thread in threads:
                thread.join()

    def _not_ended(self) -> list[threading.Thread]:
        with self._lock:
            return [thread for thread in self._threads if thread.is_alive()]

    def _start_thread(self, reason: str) -> bool:
        """Start another thread that runs `_work`, if the maximum allows it and no stop is requested."""
        with self._lock:
            if self._stop.is_set() or not self._budget.may_start():
                return False
            number = next(self._numbers)
            thread = threading.Thread(target=self._run, args=(number,), name=f"{self._name}-{number}")
            # Drop ended threads here, not in the threads themselves, which still have to close their connections.
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
        """Continue with the existing threads if the system refuses another. Raises `error` if there is none. Under the lock."""
        self._threads.discard(thread)
        self._ended(number)
        if not self._budget.live:
            raise error
        # Log it once, not for each message that needs another thread.
        refused, self._threads_refused = self._threads_refused, True
        if refused:
            return
        logger.warning(
            "another receive thread of %s cannot be started, continuing with %s: %s",
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
                self._received_by_ended_threads += poller.received
            poller.close()

    @abstractmethod
    def _work(self, number: int, poller: Poller) -> None:
        """The main function of a thread, which calls `_ended` under the lock before it returns."""

    def _ends_as_surplus(self, number: int) -> bool:
        """Release the thread's place if there are too many threads; the thread then ends. Called without the lock."""
        with self._lock:
            if not self._budget.has_surplus or self._stop.is_set():
                return False
            self._ended(number)
        return True

    def _ended(self, number: int) -> None:
        """Release the thread's place. Called under the lock."""
        self._budget.ended()

    def _wait_out_pause(self, number: int, poller: Poller) -> None:
        """Wait, without holding anything, until the pause or the worker ends. Called without the lock."""
        self._give_back(poller)
        with self._lock:
            self._paused_threads += 1
        try:
            self.gate.wait()
        finally:
            with self._lock:
                self._paused_threads -= 1

    def _wait(self, seconds: float) -> None:
        """Wait between two polls, at most `seconds`, or until a new message is announced or the stop is set."""
        if self.wake_up is None:
            self._stop.wait(seconds)
        else:
            self.wake_up.wait(seconds)

    def _idle_wait(self, seconds: float) -> None:
        """Wait as `_wait` at an empty queue, but longer while push is enabled."""
        if self.wake_up is None:
            self._stop.wait(seconds)
        else:
            self.wake_up.idle_wait(seconds)

    def _poll_failed(self, error: DatabaseError, poller: Poller, mark: int) -> None:
        """Log once that a poll that began at this mark failed, and start over with a new connection."""
        self._give_back(poller)
        self._outage.poll_failed(error, mark)

    def _give_back(self, poller: Poller) -> None:
        """Close the thread's connections in any state; rows received ahead return to their queue."""
        with contextlib.suppress(Exception):
            poller.close()
