"""How receivers wait: the stop signal, the gate of a pause, the wake-up by announcements of new messages, turns of threads."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from sqlqueue_app.dialects.schema import wake_up_channel
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.policies.polling import IDLE_WAIT_SECONDS, QUIET_SECONDS, BackOff, Crowd
from sqlqueue_app.tables.announcements import Interrupted, listening_connection
from sqlqueue_app.tables.connections import connection_of

logger = logging.getLogger("sqlqueue.receive")


class StopSignal:
    """Set once, by a signal or by the end of the work; every wait ends at once then.

    Safe from any thread, but not from a handler of operating-system signals: those go through `stop_on_signals`.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._subscribers: list[Callable[[], None]] = []
        self._failed = False

    def set(self) -> None:
        """Stop fetching; messages that are being handled are finished."""
        with self._lock:
            self._event.set()
            subscribers = list(self._subscribers)
        for call in subscribers:
            call()

    def fail(self) -> None:
        """As `set`, because something of ours broke: whoever runs the worker finds `has_failed`. After a `set` that alone."""
        self._failed = self._failed or not self.is_set()
        self.set()

    @contextmanager
    def failing_with(self, logger: logging.Logger, text: str, *values: object) -> Iterator[None]:
        """What a thread does that must not die unnoticed: whatever is raised inside is logged with this text and its values (event
        `thread_died`), is a `fail`, and goes on.
        """
        try:
            yield
        except BaseException:
            logger.critical(text, *values, extra={"event": "thread_died"}, exc_info=True)
            self.fail()
            raise

    @property
    def has_failed(self) -> bool:
        """Whether the stop came by `fail`."""
        return self._failed

    def subscribe(self, call: Callable[[], None]) -> None:
        """Have `call` called at each `set`, in the thread that sets, or at once if it is set: it must be quick and never raise.

        For waits on something else than this signal, which the stop has to end too.
        """
        with self._lock:
            self._subscribers.append(call)
            is_set = self._event.is_set()
        if is_set:
            call()

    def is_set(self) -> bool:
        """Whether to stop."""
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait so long, or for ever; True at once when the stop comes."""
        return self._event.wait(seconds)


class PartOfStop(StopSignal):
    """The stop of a part that may end before the whole: `set` stops the whole, `retire` this part alone."""

    def __init__(self, whole: StopSignal) -> None:
        super().__init__()
        self._whole = whole
        whole.subscribe(self.retire)

    def set(self) -> None:
        """Stop everything, unless this part has ended before."""
        if not self.is_set():
            self._whole.set()

    def fail(self) -> None:
        """Stop everything by `fail`, unless this part has ended before."""
        if not self.is_set():
            self._whole.fail()

    def retire(self) -> None:
        """Stop this part."""
        super().set()


class EmptyQueues:
    """Detects that every queue was found empty while nothing was being handled, so that no handler can have sent anything since.

    Threads report the begin and the end of each poll and each message. An empty poll proves something only if no message was
    received or handled meanwhile. Another poll may have received one and not reported it yet: it does so before it ends, and then
    nothing is proved any more; so the end is detected only while no poll is under way. Finally `anything_due` returns whether
    something waits elsewhere that will be in a queue at once.
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
        """A mark to hand to `poll_ends`."""
        with self._lock:
            self._polls += 1
            return self._generation

    def message_begins(self) -> None:
        """The poll received a row; reported before `poll_ends`."""
        with self._lock:
            self._busy += 1
            self._generation += 1
            self._empty.clear()

    def message_ends(self) -> None:
        """Its transaction is over."""
        with self._lock:
            self._busy -= 1
            self._generation += 1

    def poll_ends(self, queue: str, mark: int, *, empty: bool) -> bool:
        """True when with this poll the last of the queues was found empty. Raises what `anything_due` raises."""
        with self._lock:
            self._polls -= 1
            if not empty:
                # It may have failed with a row in its hand, which is in the queue again.
                self._empty.discard(queue)
                return False
            if mark != self._generation or self._busy:
                return False
            self._empty.add(queue)
            if self._polls or self._empty != self._queues:
                return False
        # Not under the lock: it asks the database.
        if self._anything_due():
            return False
        with self._lock:
            return mark == self._generation and not self._busy


class PauseGate:
    """The threads of a receiver pass it before each poll; closed while an operator has paused them. Safe from any thread.

    A stop lets every thread through, so that a paused worker ends like any other.
    """

    def __init__(self, stop: StopSignal) -> None:
        self._stop = stop
        self._condition = threading.Condition()
        self._closed = False
        self._waiting = 0
        stop.subscribe(self._stopped)

    @property
    def is_closed(self) -> bool:
        """Whether threads that arrive now have to wait; False once the stop was requested."""
        return self._closed and not self._stop.is_set()

    @property
    def waiting(self) -> int:
        """How many threads wait now."""
        with self._condition:
            return self._waiting

    def close(self) -> bool:
        """Hold every thread back from now on; False if it was closed."""
        with self._condition:
            before, self._closed = self._closed, True
        return not before

    def open(self) -> bool:
        """Let every thread through again; False if it was open."""
        with self._condition:
            before, self._closed = self._closed, False
            self._condition.notify_all()
        return before

    def wait(self) -> None:
        """Wait until the gate is open, or until the stop."""
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
# How often the listener checks which tables have the trigger. The same query shows whether the connection still works.
FIND_TRIGGERS_SECONDS = 60.0
# How often it looks whether a receiver without push has become quiet; that asks no database.
LOOK_SECONDS = 0.05
# Between two questions whether all senders are asked, while a transaction that has sent goes on.
ASK_FIRST_SECONDS = 0.05
ASK_CAP_SECONDS = 1.0


class Woken(Protocol):
    """What a listener notifies of the announcements on one channel. Called by the thread of the listener."""

    queue: str
    qualified: str
    channel: str
    push_enabled: bool
    """Whether every new message, from any sender, is announced to this process."""

    @property
    def is_quiet(self) -> bool:
        """Whether messages come so seldom that each should be announced."""
        ...

    def wake(self) -> None:
        """There may be a message."""
        ...

    def wake_all(self) -> None:
        """Announcements may have been missed, or will be."""
        ...


class WakeUp:
    """Ends the idle waits of one receiver's threads. Safe from any thread.

    So that no message is overlooked, a thread clears the flag when its wait ends, before it polls, and raises it again if it found
    something: one notification wakes one thread, and that one wakes the next only if there was something to find.
    """

    listens = True
    """Whether to listen for new messages; else only this process itself wakes."""

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
        self.is_quiet = True
        self._clock = clock
        self._empty_since: float | None = None
        self._keeps_time = False
        self._waiting = 0
        stop.subscribe(self._stopped)

    @property
    def waiting(self) -> int:
        """How many threads wait now."""
        with self._condition:
            return self._waiting

    def wake(self) -> None:
        """There may be a message: one thread polls for it, now, or as soon as it would have waited."""
        # As `looked`, which is one call more for each message.
        self.is_quiet, self._empty_since = False, None
        # The thread that clears the flag polls afterwards: a flag that is up needs not be raised again.
        if self._flag:
            return
        with self._condition:
            self._flag = True
            self._condition.notify()

    def looked(self, found: bool) -> None:
        """A poll found a message, or the queue empty."""
        if found:
            self.is_quiet, self._empty_since = False, None
            return
        now, since = self._clock(), self._empty_since
        if since is None:
            self._empty_since = now
        elif now - since >= QUIET_SECONDS:
            self.is_quiet = True

    def wake_all(self) -> None:
        """Announcements may have been missed, or will be: every thread polls for itself."""
        with self._condition:
            self._flag = True
            self._round += 1
            self._condition.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a wake-up, or until the stop."""
        with self._condition:
            self._wait(seconds)

    def idle_wait(self, seconds: float) -> None:
        """`wait`, but much longer while push is enabled: one thread then keeps the time for all idle ones."""
        with self._condition:
            if not self.push_enabled:
                self._wait(seconds)
                return
            if self._keeps_time:
                self._wait(None)
                return
            self._keeps_time = True
            try:
                self._wait(max(seconds, self._idle_wait_seconds))
            finally:
                self._keeps_time = False

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
    """What one thread saw at its last poll, where new messages wake the thread. Each thread has its own."""

    def __init__(self, wake_up: WakeUp) -> None:
        self._wake_up = wake_up
        self.saw_nothing = False
        """Whether it saw an empty queue. False before each poll: one that gives way to another session knows nothing."""

    def begin(self) -> Callable[[bool], None]:
        """What the next poll calls."""
        self.saw_nothing = False
        return self.received

    def received(self, found: bool) -> None:
        """A poll knows whether there was a row; to be called as early as it does."""
        self.saw_nothing = not found
        if found:
            self._wake_up.wake()
        else:
            self._wake_up.looked(False)


@dataclass(slots=True)
class _Channel:
    """What a listener knows of one channel."""

    woken: Woken
    has_trigger: bool = False
    asks: bool = False
    """Whether senders are asked to announce. Push is enabled once all of them are."""
    ask_at: float = 0.0
    crowd: Crowd = field(default_factory=Crowd)
    back_off: BackOff = field(default_factory=lambda: BackOff(ASK_FIRST_SECONDS, ASK_CAP_SECONDS))


class WakeUpListener:
    """Listens for the queues of one process on one connection of its own, in one thread.

    It asks senders to announce what they send only while messages come seldom, and enables push when all senders are asked
    (docs/internals/performance.md#announcements). A lost connection is reopened, with a back-off. Without push the receivers poll
    as if there were no wake-up. Whenever push begins or ends every thread polls for itself, because something may have been
    committed in between.
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
        """While open, the thread listens, once it has connected. At the end the stop is set and the connection closed."""
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
                self._ask()
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
            rests = all(each.woken.push_enabled or not each.has_trigger for each in self._channels.values())
            seconds = find_at - self._clock()
            for name in self._line.wait(seconds if rests else min(seconds, LOOK_SECONDS)):
                if (channel := self._channels.get(name)) is not None:
                    self._announced(name, channel)
            if self._clock() >= find_at:
                self._find_triggers()
                find_at = self._clock() + self._find_seconds
            self._ask()

    def _announced(self, name: str, channel: _Channel) -> None:
        channel.woken.wake()
        if channel.crowd.announced(self._clock()) and channel.asks:
            self._push(channel, False)
            channel.asks = False
            self._line.stop_asking(name)

    def _find_triggers(self) -> None:
        """Find out which tables have the trigger: only for those push can be enabled."""
        tables = {each.woken.qualified: name for name, each in self._channels.items()}
        covered = self._line.channels_with_trigger(tables)
        for name, channel in self._channels.items():
            channel.has_trigger = name in covered
            if not channel.has_trigger:
                self._push(channel, False)
        self._log_without_push(frozenset(self._channels.keys() - covered))

    def _ask(self) -> None:
        """Have senders announce on the quiet channels, and enable push where all of them do."""
        now = self._clock()
        without = {name: each for name, each in self._channels.items() if each.has_trigger and not each.woken.push_enabled}
        wanted = {name: each for name, each in without.items() if now >= each.ask_at and (each.asks or each.woken.is_quiet)}
        asked = self._line.ask(wanted) if wanted else set()
        for name, channel in wanted.items():
            channel.asks = True
            if name in asked:
                channel.back_off.reset()
                self._push(channel, True)
            else:
                channel.ask_at = now + channel.back_off.next_wait()

    def _push(self, channel: _Channel, enabled: bool) -> None:
        if channel.woken.push_enabled != enabled:
            channel.woken.push_enabled = enabled
            # No announcement comes for what was committed before, and without push idle threads must keep polling.
            channel.woken.wake_all()

    def _end_push(self) -> None:
        for channel in self._channels.values():
            channel.asks = False
            self._push(channel, False)

    def _log_on(self) -> None:
        queues = ", ".join(each.woken.queue for each in self._channels.values())
        logger.info("new messages wake the receivers of %s", queues, extra={"event": "wake_up_on"})
        self._lost = False

    def _log_lost(self, error: DatabaseError) -> None:
        if not self._lost:
            logger.warning(
                "new messages do not wake this worker, polling until they do again: %s", error, extra={"event": "wake_up_lost"}
            )
        self._lost = True

    def _log_without_push(self, channels: frozenset[str]) -> None:
        new, self._without_push = channels - (self._without_push or frozenset()), channels
        for name in sorted(new):
            woken = self._channels[name].woken
            logger.info(
                "%s has no wake-up trigger, or a pooler stands before the server: its messages are found by polling; to add the "
                "trigger: python manage.py sqlqueue_install --wake-up",
                woken.qualified,
                extra={"event": "wake_up_without_trigger", "queue": woken.queue},
            )


@contextmanager
def listening(alias: str, wake_ups: Iterable[WakeUp | None], stop: StopSignal, *, also: Iterable[Woken] = ()) -> Iterator[None]:
    """While open, new messages wake these receivers, and what is handed in as `also`; does nothing where no receiver listens.

    The stop comes before its end.
    """
    known: list[Woken] = [each for each in wake_ups if each is not None and each.listens]
    # Every change of a SQLite file would have those look, too.
    if known and connection_of(alias).vendor != "sqlite":
        known += also
    if not known:
        yield
        return
    with WakeUpListener(alias, known, stop).running():
        yield


# A turn is for batches that take a few milliseconds. A longer one waits for something, and others can work meanwhile.
TURN_SECONDS: Final = 0.02
# The handler of the holder may wait for what this thread holds, so no thread waits for its turn for longer.
TURN_WAIT_SECONDS: Final = 0.05
# A thread that waited for a turn in vain, or took too long for one, does without for so many batches: so turns cost slow handlers
# nothing that can be measured.
BATCHES_WITHOUT: Final = 64

# The lock of the interpreter is one for the process, whatever its queues.
TURNS: Final = threading.Lock()


class BatchTurn:
    """The turns of one thread, which holds one while it is `with` this, or does without: a turn is for one whole batch.

    Threads that only compute share one interpreter. Each call that releases its lock for a moment, a write to a file, say, hands it
    to another thread, at every message, which costs half as much as the message itself. With turns they change places once a batch,
    and another thread waits for the database meanwhile: 1.2 to 1.3 times as many messages with eight threads, of handlers that do
    next to nothing (measured 2026-11-22, batches of 64, two cores).

    `lock` is shared by the threads of the process, seconds are those of a monotonic clock.
    """

    def __init__(
        self, lock: threading.Lock = TURNS, clock: Callable[[], float] = time.monotonic, *, wait_seconds: float = TURN_WAIT_SECONDS
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._wait_seconds = wait_seconds
        # A free-threaded Python has no lock of the interpreter (PEP 703): there threads work at once.
        self._is_of_use = getattr(sys, "_is_gil_enabled", lambda: True)()
        self._without = 0
        self._held = False
        self._until = 0.0

    def __enter__(self) -> None:
        """Wait for the turn, but not for long, and not where that is of no use."""
        if not self._is_of_use:
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
        """Between two messages of the batch: a turn that takes too long ends here."""
        if self._held and self._clock() > self._until:
            self._without = BATCHES_WITHOUT
            self._end()

    def __exit__(self, *_: object) -> None:
        """The messages of the batch are handled, or it is lost."""
        self._end()

    def _end(self) -> None:
        if self._held:
            self._held = False
            self._lock.release()
