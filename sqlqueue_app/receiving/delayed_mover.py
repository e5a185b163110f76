"""The one thread of a worker process that moves due messages out of delayed tables, and when it looks.

It sleeps until the earliest message that it knows of is due, at most LOOK_SECONDS. A message that this process stores meanwhile and
that is due earlier wakes it at its commit; one that another process stores is seen within LOOK_SECONDS. A table with the wake-up
trigger announces each message that anybody stores, so that it can be left alone for longer. A look is one statement for each table
that reads the first entry of the index on the due times, so that it costs the same however many messages wait. What is due is the
database's clock to say; ours only measures how long to sleep.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from django.db import connections

from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, LockTimeout, QueueNotFound, TransientError
from sqlqueue_app.policies.back_off import BackOff
from sqlqueue_app.policies.resting import REST_SECONDS
from sqlqueue_app.receiving.delayed_wake_up import DelayedWakeUp
from sqlqueue_app.receiving.due_messages import DueMessages
from sqlqueue_app.receiving.stopping import EmptyQueues, StopSignal
from sqlqueue_app.sending.delaying import told_of_delays

logger = logging.getLogger("sqlqueue.background")

# NServiceBus looks every second (3.1 to 6.2), or after 1 to 60 s (8.1); a short delay that a web process stores shall not wait.
LOOK_SECONDS = 1.0
# A clock of the database and a timer of ours never agree to the last digit.
SHORTEST_WAIT_SECONDS = 0.001
# Transport reference 5.4.
FAILURE_FIRST_SECONDS = 1.0
FAILURE_CAP_SECONDS = 10.0
# A table of an endpoint that runs elsewhere need not be there; it may be made at any time.
MISSING_SECONDS = 60.0


class DelayedMover:
    """Moves due messages until the stop signal. Run by one thread; `stored` and `anything_due` may be called from any."""

    def __init__(
        self,
        tables: Sequence[DueMessages],
        stop: StopSignal,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """`clock` measures seconds, `wait` waits so many of them or until it is woken."""
        self._stop = stop
        self._wake = threading.Event()
        self._wait = wait or self._wake.wait
        self._empty: EmptyQueues | None = None
        self._tables = [_Watched(each, clock, self._end_wait) for each in tables]
        stop.subscribe(self._wake.set)

    @property
    def wake_ups(self) -> list[DelayedWakeUp]:
        """What a listener tells of new messages; nobody need listen."""
        return [table.wake_up for table in self._tables]

    def tell(self, empty: EmptyQueues) -> None:
        """Report each move to it, before and after: what is on its way between two tables is in no queue."""
        self._empty = empty

    @contextmanager
    def running(self) -> Iterator[None]:
        """While open, a thread moves what is due. It ends with the stop signal, which must be set when this is left."""
        if not self._tables:
            yield
            return
        thread = threading.Thread(target=self._run, name="sqlqueue-delayed", daemon=True)
        with told_of_delays(self._tables[0].due.delayed.alias, self.stored):
            thread.start()
            try:
                yield
            finally:
                self._stop.set()
                thread.join()

    def stored(self, seconds: float) -> None:
        """This process has committed a message that is due in so many seconds: look earlier, if need be."""
        if seconds < LOOK_SECONDS:
            self._look_at_all()

    def _end_wait(self) -> None:
        self._wake.set()

    def _look_at_all(self) -> None:
        for table in self._tables:
            table.wake_up.wake()

    def anything_due(self) -> bool:
        """Whether a message waits to be moved, by the calling thread's connection; then it is moved. Raises TransientError."""
        found = any(table.anything_due() for table in self._tables)
        if found:
            self._look_at_all()
        return found

    def _run(self) -> None:
        try:
            # Else nobody would move what this worker has promised to move.
            with self._stop.failing_with(logger, "the mover of delayed messages died"):
                while not self._stop.is_set():
                    self._wake.clear()
                    seconds = self.look()
                    if not self._stop.is_set():
                        self._wait(seconds)
        finally:
            connections.close_all()

    def look(self) -> float:
        """Move what is due in every table, a batch from each in turn; how long to wait until the next look. Never raises."""
        waits: dict[_Watched, float] = {}
        while len(waits) < len(self._tables) and not self._stop.is_set():
            for table in self._tables:
                if table not in waits and (seconds := table.look(self._empty)) is not None:
                    waits[table] = seconds
        return max(SHORTEST_WAIT_SECONDS, min(waits.values(), default=LOOK_SECONDS))


class _Watched:
    """One delayed table as the mover sees it: whether it is there, and how long to leave it alone after an error."""

    def __init__(self, due: DueMessages, clock: Callable[[], float], wake: Callable[[], None]) -> None:
        self.due = due
        self.wake_up = DelayedWakeUp(due.delayed, wake)
        self._clock = clock
        self._failure = BackOff(FAILURE_FIRST_SECONDS, FAILURE_CAP_SECONDS)
        self._rests_until: float | None = None
        self._alone_until: float | None = None
        self._missing = False

    def anything_due(self) -> bool:
        try:
            seconds = self.due.delayed.seconds_until_due()
        except TransientError:
            raise
        except DatabaseError:
            return False  # what cannot be looked at cannot be moved either
        return seconds is not None and seconds <= 0

    def look(self, empty: EmptyQueues | None) -> float | None:
        """Move a batch if one is due; the seconds until the next look, None: at once, there may be more."""
        if self._rests_until is not None and (rest := self._rests_until - self._clock()) > 0:
            return rest
        self._rests_until = None
        # Taken away before the look: what is announced during it is looked for once more.
        announced = self.wake_up.take()
        if not announced and self._alone_until is not None and (rest := self._alone_until - self._clock()) > 0:
            return rest
        self._alone_until = None
        longest = REST_SECONDS if self.wake_up.covered else LOOK_SECONDS
        try:
            seconds = self.due.delayed.seconds_until_due()
            moved = self._move(empty) if seconds is not None and seconds <= 0 else -1
        except LockTimeout as error:
            # SQLite: a handler holds the write lock for long. Nothing is wrong, and nothing is lost.
            extra = self._extra("delayed_locked")
            logger.debug("due messages of %s wait for a lock: %s", self.due.delayed.qualified, error, extra=extra)
            return LOOK_SECONDS
        except Exception as error:  # noqa: BLE001 - the thread must outlive whatever a table or a row does to it
            return self._rest(error)
        self._failure.reset()
        self._missing = False
        if moved > 0:
            return None
        # Nothing could be taken of what is due: another process is at it.
        wait = LOOK_SECONDS if moved == 0 else longest if seconds is None else min(seconds, longest)
        if self.wake_up.covered:
            self._alone_until = self._clock() + wait
        return wait

    def _move(self, empty: EmptyQueues | None) -> int:
        if empty is None:
            return self.due.move_batch()
        empty.message_begins()
        try:
            return self.due.move_batch()
        finally:
            empty.message_ends()

    def _rest(self, error: Exception) -> float:
        if isinstance(error, QueueNotFound) and self._is_missing():
            if not self._missing:
                self._missing = True
                text = "%s does not exist: nothing is moved from there until it does; run sqlqueue_install"
                logger.info(text, self.due.delayed.qualified, extra=self._extra("delayed_table_missing"))
            wait = MISSING_SECONDS
        else:
            wait = self._failure.next_wait()
            logger.warning(
                "due messages of %s could not be moved, trying again in %g s: %s: %s",
                self.due.delayed.qualified,
                wait,
                type(error).__name__,
                error,
                extra=self._extra("delayed_move_failed"),
                exc_info=None if isinstance(error, DatabaseError) else error,
            )
        if isinstance(error, ConnectionLost):
            connections[self.due.delayed.alias].close()
        self._rests_until = self._clock() + wait
        return wait

    def _is_missing(self) -> bool:
        try:
            return not self.due.delayed.exists()
        except DatabaseError:
            return False

    def _extra(self, event: str) -> dict[str, object]:
        return {"event": event, "endpoint": self.due.endpoint, "queue": self.due.delayed.address.table}
