"""Waiting in receivers: empty queues, pause gate, wake-up by announcements of new messages, turns of threads."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from sqlqueue_app.dialects.schema import wake_up_channel
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.policies.polling import IDLE_WAIT_SECONDS, QUIET_SECONDS, BackOff, BurstDetector, wait_in_burst
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.tables.announcements import Interrupted, listening_connection
from sqlqueue_app.tables.connections import connection_of

logger = logging.getLogger("sqlqueue.receive")


class EmptyQueues:
    """Detects that every queue was empty while no message was in progress, so that no handler can have sent anything since.

    Threads report the start and the end of each poll and each message. An empty poll proves something only if no message was
    received or handled meanwhile. Another poll may have received one without having reported it, which it does before it ends; so
    the end is detected only while no poll is in progress. Finally `anything_due` returns whether a message waits elsewhere that
    is about to be put into a queue.
    """

    def __init__(self, queues: Iterable[str], *, anything_due: Callable[[], bool] = lambda: False) -> None:
        self._anything_due = anything_due
        self._lock = threading.Lock()
        self._queues = frozenset(queues)
        self._polls = 0
        self._busy = 0
        self._generation = 0
        self._empty: set[str] = set()

    def poll_begins(self) -> int:
        """Record the start of a poll. Returns a mark for `poll_ends`."""
        with self._lock:
            self._polls += 1
            return self._generation

    def message_begins(self) -> None:
        """Record that a poll received a row; call it before `poll_ends`."""
        with self._lock:
            self._busy += 1
            self._generation += 1
            self._empty.clear()

    def message_ends(self) -> None:
        """Record the end of a message's transaction."""
        with self._lock:
            self._busy -= 1
            self._generation += 1

    def poll_ends(self, queue: str, mark: int, *, empty: bool) -> bool:
        """Record the end of a poll. Returns True if it found the last queue empty. Raises as `anything_due`."""
        with self._lock:
            self._polls -= 1
            if not empty:
                # It may have failed after receiving a row, which has returned to the queue.
                self._empty.discard(queue)
                return False
            if mark != self._generation or self._busy:
                return False
            self._empty.add(queue)
            if self._polls or self._empty != self._queues:
                return False
        # Outside the lock: it queries the database.
        if self._anything_due():
            return False
        with self._lock:
            return mark == self._generation and not self._busy


class PauseGate:
    """The gate that a receiver's threads pass before each poll; closed during a pause. Safe from any thread.

    A stop lets every thread through, so that a paused worker also ends.
    """

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop
        self._condition = threading.Condition()
        self._closed = False
        self._waiting = 0
        stop.subscribe(self._stopped)

    @property
    def is_closed(self) -> bool:
        """Whether threads that arrive now must wait; False once a stop is requested."""
        return self._closed and not self._stop.is_set()

    @property
    def waiting(self) -> int:
        """The number of waiting threads."""
        with self._condition:
            return self._waiting

    def close(self) -> bool:
        """Hold every thread back from now on. Returns False if the gate was closed."""
        with self._condition:
            before, self._closed = self._closed, True
        return not before

    def open(self) -> bool:
        """Let every thread through again. Returns False if the gate was open."""
        with self._condition:
            before, self._closed = self._closed, False
            self._condition.notify_all()
        return before

    def wait(self) -> None:
        """Wait until the gate opens or the stop is set."""
        with self._condition:
            self._waiting += 1
            try:
                self._condition.wait_for(lambda: not self._closed or self._stop.is_set())
            finally:
                self._waiting -= 1

    def _stopped(self) -> None:
        with self._condition:
            self._condition.notify_all()


RECONNECT_FIRST_SECONDS = 1.0
RECONNECT_CAP_SECONDS = 10.0
# The interval of checking which tables have the trigger. The same query shows whether the connection still works.
FIND_TRIGGERS_SECONDS = 60.0
# The interval of checking whether a receiver without push has become quiet; that queries no database.
QUIET_CHECK_SECONDS = 0.05
# Between two checks whether all senders announce, while a transaction that has sent is still open.
PUSH_RETRY_FIRST_SECONDS = 0.05
PUSH_RETRY_CAP_SECONDS = 1.0


class Woken(Protocol):
    """The target of a listener's notifications about one channel. Called by the listener's thread."""

    queue: str
    qualified: str
    channel: str
    push_enabled: bool
    """Whether every new message, from any sender, is announced to this process."""

    @property
    def is_quiet(self) -> bool:
        """Whether messages are so rare that each should be announced."""
        ...

    def wake(self) -> None:
        """Report that there may be a message."""
        ...

    def wake_all(self) -> None:
        """Report that announcements may have been missed, or will be."""
        ...


class WakeUp:
    """Ends the idle waits of one receiver's threads. Safe from any thread.

    To miss no message, a thread clears the flag when its wait ends, before it polls, and raises it again if it found something:
    one notification wakes one thread, which wakes the next only if it found a message.
    """

    listens = True
    """Whether to listen for new messages; otherwise only this process wakes the threads."""

    def __init__(
        self,
        queue: str,
        qualified: str,
        stop: StopSignal,
        *,
        idle_wait_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = queue
        self.qualified = qualified
        self.channel = wake_up_channel(qualified)
        self._idle_wait_seconds = IDLE_WAIT_SECONDS if idle_wait_seconds is None else idle_wait_seconds
        self._stop = stop
        self._condition = threading.Condition()
        self._flag = False
        self._round = 0
        self.push_enabled = False
        self._had_push = False
        self.is_quiet = True
        # Threads count without a lock, so now and then one message is not counted.
        self._found = 0
        self._counted_since = clock()
        self._clock = clock
        self._empty_since: float | None = None
        self._keeps_time = False
        self._waiting = 0
        self.channels: Sequence[Woken] = (self,)
        """What to listen for; several for a receiver of several queues."""
        stop.subscribe(self._stopped)

    @property
    def waiting(self) -> int:
        """The number of waiting threads."""
        with self._condition:
            return self._waiting

    @property
    def is_burst(self) -> bool:
        """Whether push is disabled because messages are frequent."""
        return self._had_push and not self.push_enabled and not self.is_quiet

    def wake(self) -> None:
        """Have one thread poll for a possible message, now or as soon as it would have waited."""
        # Inlined from `polled`, to save a call for each message.
        self.is_quiet, self._empty_since = False, None
        self._found += 1
        # The thread that clears the flag polls afterwards, so a raised flag is enough.
        if self._flag:
            return
        with self._condition:
            self._flag = True
            self._condition.notify()

    def polled(self, found: bool) -> None:
        """Record whether a poll found a message."""
        if found:
            self.is_quiet, self._empty_since = False, None
            return
        now, since = self._clock(), self._empty_since
        if since is None:
            self._empty_since = now
        elif now - since >= QUIET_SECONDS:
            self.is_quiet = True

    def wake_all(self) -> None:
        """Have every thread poll, because announcements may have been missed, or will be."""
        with self._condition:
            self._flag = True
            self._round += 1
            self._condition.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds`, or until a wake-up or the stop."""
        with self._condition:
            self._wait(seconds)

    def idle_wait(self, seconds: float) -> None:
        """Wait as `wait`, but much longer while push is enabled, and less in a burst: one thread keeps time for all idle ones."""
        with self._condition:
            self._had_push = self._had_push or self.push_enabled
            if self._keeps_time or not (self.push_enabled or self.is_burst):
                self._wait(None if self.push_enabled else seconds)
                return
            self._keeps_time = True
            try:
                self._wait(max(seconds, self._idle_wait_seconds) if self.push_enabled else min(seconds, self._wait_in_burst()))
            finally:
                self._keeps_time = False

    def _wait_in_burst(self) -> float:
        found, since = self._found, self._counted_since
        self._found, self._counted_since = 0, self._clock()
        return wait_in_burst(found, self._counted_since - since)

    def _wait(self, seconds: float | None) -> None:
        began = self._round
        self._waiting += 1
        try:
            self._condition.wait_for(lambda: self._flag or self._round != began or self._stop.is_set(), seconds)
        finally:
            self._waiting -= 1
            self._flag = False

    def _stopped(self) -> None:
        with self._condition:
            self._condition.notify_all()


class Watch:
    """The result of one thread's last poll, where new messages wake the thread. Each thread has its own."""

    def __init__(self, wake_up: WakeUp) -> None:
        self._wake_up = wake_up
        self.was_empty = False
        """Whether the queue was empty. False before each poll, because one that gives way to another session cannot know."""

    def begin(self) -> Callable[[bool], None]:
        """Start a poll and return the callback for its result."""
        self.was_empty = False
        return self.received

    def received(self, found: bool) -> None:
        """Record whether a poll received a row; call it as soon as that is known."""
        self.was_empty = not found
        if found:
            self._wake_up.wake()
        else:
            self._wake_up.polled(False)


@dataclass(slots=True)
class _Channel:
    """A listener's state of one channel."""

    woken: Woken
    has_trigger: bool = False
    is_requested: bool = False
    """Whether announcements are requested from senders. Push is enabled once all senders announce."""
    request_at: float = 0.0
    burst: BurstDetector = field(default_factory=BurstDetector)
    back_off: BackOff = field(default_factory=lambda: BackOff(PUSH_RETRY_FIRST_SECONDS, PUSH_RETRY_CAP_SECONDS))


class WakeUpListener:
    """Listens for the queues of one process on its own connection, in one thread.

    It requests announcements from senders only while messages are rare, and enables push when all senders announce
    (docs/internals/performance.md#announcements). A lost connection is reopened, with a back-off. Without push the receivers poll
    as if there were no wake-up. Whenever push begins or ends every thread polls once, because something may have been committed
    in between.
    """

    def __init__(
        self,
        alias: str,
        wake_ups: Iterable[Woken],
        stop: StopSignal,
        *,
        find_seconds: float = FIND_TRIGGERS_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channels = {each.channel: _Channel(each) for each in wake_ups}
        self._stop = stop
        self._find_seconds = find_seconds
        self._clock = clock
        self._line = listening_connection(alias)
        self._without_push: frozenset[str] | None = None
        self._lost = False
        self._thread = threading.Thread(target=self._run, name="sqlqueue-wake-up")
        stop.subscribe(self._line.interrupt)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While open, run the listening thread. Sets the stop and closes the connection at the end."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._stop.failing_with(logger, "the thread that listens for new messages died"), suppress(Interrupted):
                self._keep_listening()
        finally:
            self._end_push()
            self._line.dispose()

    def _keep_listening(self) -> None:
        back_off = BackOff(RECONNECT_FIRST_SECONDS, RECONNECT_CAP_SECONDS)
        while not self._stop.is_set():
            try:
                self._line.open(self._channels)
                self._find_triggers()
                self._request_announcements()
                self._log_on()
                back_off.reset()
                self._listen()
            except DatabaseError as error:
                self._line.close()
                self._end_push()
                self._log_lost(error)
                self._stop.wait(back_off.next_wait())

    def _listen(self) -> None:
        find_at = self._clock() + self._find_seconds
        while True:
            is_idle = all(each.woken.push_enabled or not each.has_trigger for each in self._channels.values())
            seconds = find_at - self._clock()
            for name, session in self._line.wait(seconds if is_idle else min(seconds, QUIET_CHECK_SECONDS)):
                if (channel := self._channels.get(name)) is not None:
                    self._announced(name, channel, session)
            if self._clock() >= find_at:
                self._find_triggers()
                find_at = self._clock() + self._find_seconds
            self._request_announcements()

    def _announced(self, name: str, channel: _Channel, session: int) -> None:
        channel.woken.wake()
        if channel.burst.announced(self._clock(), session) and channel.is_requested:
            self._push(channel, False)
            channel.is_requested = False
            self._line.withdraw_request(name)

    def _find_triggers(self) -> None:
        """Find the tables that have the trigger: push can be enabled only for those."""
        tables = {each.woken.qualified: name for name, each in self._channels.items()}
        covered = self._line.channels_with_trigger(tables)
        for name, channel in self._channels.items():
            channel.has_trigger = name in covered
            if not channel.has_trigger:
                self._push(channel, False)
        self._log_without_push(frozenset(self._channels.keys() - covered))

    def _request_announcements(self) -> None:
        """Request announcements on the quiet channels, and enable push where all senders announce."""
        now = self._clock()
        without = {name: each for name, each in self._channels.items() if each.has_trigger and not each.woken.push_enabled}
        wanted = {
            name: each for name, each in without.items() if now >= each.request_at and (each.is_requested or each.woken.is_quiet)
        }
        announcing = self._line.request(wanted) if wanted else set()
        for name, channel in wanted.items():
            channel.is_requested = True
            if name in announcing:
                channel.back_off.reset()
                self._push(channel, True)
            else:
                channel.request_at = now + channel.back_off.next_wait()

    def _push(self, channel: _Channel, enabled: bool) -> None:
        if channel.woken.push_enabled != enabled:
            channel.woken.push_enabled = enabled
            # Earlier commits are not announced, and without push idle threads must keep polling.
            channel.woken.wake_all()

    def _end_push(self) -> None:
        for channel in self._channels.values():
            channel.is_requested = False
            self._push(channel, False)

    def _log_on(self) -> None:
        if queues := ", ".join(each.woken.queue for each in self._channels.values() if each.has_trigger):
            logger.info("new messages wake the receivers of %s", queues, extra={"event": "wake_up_on"})
        self._lost = False

    def _log_lost(self, error: DatabaseError) -> None:
        if not self._lost:
            logger.warning(
                "new messages do not wake this worker, polling until they do again: %s", error, extra={"event": "wake_up_lost"}
            )
        self._lost = True

    def _log_without_push(self, channels: frozenset[str]) -> None:
        new = channels - (self._without_push or frozenset())
        self._without_push = channels
        for name in sorted(new):
            woken = self._channels[name].woken
            logger.info(
                "%s has no wake-up trigger, or there is a pooler in front of the server: the queue is polled; to add the "
                "trigger: python manage.py sqlqueue_install --wake-up",
                woken.qualified,
                extra={"event": "wake_up_without_trigger", "queue": woken.queue},
            )


@contextmanager
def listening(alias: str, wake_ups: Iterable[WakeUp | None], stop: StopSignal, *, also: Iterable[Woken] = ()) -> Iterator[None]:
    """While open, new messages wake these receivers and `also`; does nothing where no receiver listens.

    The stop must be set before it ends.
    """
    known = [channel for each in wake_ups if each is not None and each.listens for channel in each.channels]
    # On SQLite every change of the file would wake those, too.
    if known and connection_of(alias).vendor != "sqlite":
        known += also
    if not known:
        yield
        return
    with WakeUpListener(alias, known, stop).running():
        yield


# A turn is for batches of a few milliseconds. A longer batch waits for something, and others can work during that time.
TURN_SECONDS: Final = 0.02
# The handler of the holder may wait for what this thread holds, so no thread waits for its turn for longer.
TURN_WAIT_SECONDS: Final = 0.05
# A thread that waited for a turn in vain, or exceeded its turn, skips turns for this many batches, so that turns cost slow
# handlers nothing measurable.
BATCHES_WITHOUT: Final = 64

# The interpreter has one lock per process, whatever its queues.
TURNS: Final = threading.Lock()


class BatchTurn:
    """The turns of one thread: a context manager that holds the turn for one whole batch, or runs without one.

    Threads that only compute share one interpreter. Each call that briefly releases its lock, such as a write to a file, hands it
    to another thread, at every message, at half the cost of the message itself. With turns the threads switch once a batch, while
    another thread waits for the database: 1.2 to 1.3 times as many messages with eight threads and almost empty handlers
    (measured 2026-11-22, batches of 64, two cores).

    The threads of the process share `lock`; seconds are those of a monotonic clock.
    """

    def __init__(
        self, lock: threading.Lock = TURNS, clock: Callable[[], float] = time.monotonic, *, wait_seconds: float = TURN_WAIT_SECONDS
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._wait_seconds = wait_seconds
        # A free-threaded Python has no interpreter lock (PEP 703), so threads run in parallel.
        self._is_useful = getattr(sys, "_is_gil_enabled", lambda: True)()
        self._without = 0
        self._held = False
        self._until = 0.0

    def __enter__(self) -> None:
        """Wait briefly for the turn, if turns are useful."""
        if not self._is_useful:
            return
        if self._without:
            self._without -= 1
            return
        self._held = self._lock.acquire(timeout=self._wait_seconds)
        if self._held:
            self._until = self._clock() + TURN_SECONDS
        else:
            self._without = BATCHES_WITHOUT

    def between(self) -> None:
        """End a turn that takes too long; called between two messages of the batch."""
        if self._held and self._clock() > self._until:
            self._without = BATCHES_WITHOUT
            self._end()

    def __exit__(self, *_: object) -> None:
        """End the turn after the batch, whether handled or lost."""
        self._end()

    def _end(self) -> None:
        if self._held:
            self._held = False
            self._lock.release()
