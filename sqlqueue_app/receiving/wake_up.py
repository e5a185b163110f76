"""Waking idle receivers: the flag that each receiver waits on, and the one thread of a process that listens for all of them.

The rules that keep a message from being overlooked: a thread that waits takes the flag away when its wait ends, so before it looks;
a thread that found something raises the flag again, so that another one looks too. One notification wakes one thread, and that
one wakes the next only if there was something to find.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from sqlqueue_app.databases.wake_up import wake_up_channel
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.policies.back_off import BackOff
from sqlqueue_app.policies.resting import REST_SECONDS
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.tables.listening import Interrupted, ListeningConnection

logger = logging.getLogger("sqlqueue.receive")

RECONNECT_FIRST_SECONDS = 1.0
RECONNECT_CAP_SECONDS = 10.0
# How often the listener looks which tables have the trigger. The same question shows whether the line still works.
LOOK_SECONDS = 60.0


class Woken(Protocol):
    """What a listener tells of the announcements on one channel. Called by its thread."""

    queue: str
    qualified: str
    channel: str

    @property
    def covered(self) -> bool:
        """What `cover` was last told."""
        ...

    def cover(self, covered: bool) -> None:
        """Whether every new message is announced from now on."""
        ...

    def wake(self) -> None:
        """There may be a message."""
        ...

    def wake_all(self) -> None:
        """Announcements may have been missed, or will be."""
        ...


class WakeUp:
    """Ends the idle waits of one receiver's threads. Safe from any thread."""

    listens = True
    """Whether new messages are to be listened for; else only this process itself wakes."""

    def __init__(self, queue: str, qualified: str, stop: StopSignal, *, rest_seconds: float | None = None) -> None:
        self.queue = queue
        self.qualified = qualified
        self.channel = wake_up_channel(qualified)
        self._rest_seconds = REST_SECONDS if rest_seconds is None else rest_seconds
        self._stop = stop
        self._condition = threading.Condition()
        self._flag = False
        self._round = 0
        self._covered = False
        self._keeps_time = False
        self._waiting = 0
        stop.subscribe(self._stopped)

    @property
    def covered(self) -> bool:
        """Whether every new message, whoever sends it, is announced to us."""
        return self._covered

    @property
    def waiting(self) -> int:
        """How many threads wait now."""
        with self._condition:
            return self._waiting

    def cover(self, covered: bool) -> None:
        """Say whether every new message is announced from now on."""
        self._covered = covered

    def wake(self) -> None:
        """There may be a message: one thread looks for it, now, or as soon as it would have waited."""
        # Who takes the flag away looks afterwards: a flag that is up needs not be raised again.
        if self._flag:
            return
        with self._condition:
            self._flag = True
            self._condition.notify()

    def wake_all(self) -> None:
        """Announcements may have been missed, or will be: every thread looks for itself."""
        with self._condition:
            self._flag = True
            self._round += 1
            self._condition.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a wake-up, or until the stop."""
        with self._condition:
            self._wait(seconds)

    def rest(self, seconds: float) -> None:
        """`wait`, but where everything is announced much longer: one thread then keeps the time for all that rest."""
        with self._condition:
            if not self._covered:
                self._wait(seconds)
                return
            if self._keeps_time:
                self._wait(None)
                return
            self._keeps_time = True
            try:
                self._wait(max(seconds, self._rest_seconds))
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
    """What one thread saw at its last poll. Each thread has its own; made for a receiver with or without wake-ups."""

    def __init__(self, wake_up: WakeUp | None) -> None:
        self._wake_up = wake_up
        self.saw_nothing = False
        """Whether it saw an empty queue; known only with wake-ups."""

    def begin(self) -> Callable[[bool], None] | None:
        """To be handed to the next poll, which says as early as it knows whether there was a row."""
        if self._wake_up is None:
            return None
        # A poll that gives way to another session says nothing, and knows nothing.
        self.saw_nothing = False
        return self._received

    def _received(self, found: bool) -> None:
        self.saw_nothing = not found
        if found and self._wake_up is not None:
            self._wake_up.wake()


class WakeUpListener:
    """Listens for the queues of one process on one connection of its own, in one thread. Started once; `join` after the stop.

    A connection that is cut is made anew, with a back-off; meanwhile the receivers poll as if there were no wake-up. Once it
    listens again every thread looks for itself, because something may have been announced in between.
    """

    def __init__(
        self,
        alias: str,
        wake_ups: Iterable[Woken],
        stop: StopSignal,
        *,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wake_ups = {each.channel: each for each in wake_ups}
        self._stop = stop
        self._look_seconds = look_seconds
        self._clock = clock
        self._line = ListeningConnection(alias)
        self._uncovered: frozenset[str] | None = None
        self._lost = False
        self._thread = threading.Thread(target=self._run, name="sqlqueue-wake-up")
        stop.subscribe(self._line.interrupt)

    def start(self) -> None:
        """Start the thread; it returns before anything is connected."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread and its connection are gone."""
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._stop.failing_with(logger, "the thread that listens for new messages died"), suppress(Interrupted):
                self._keep_listening()
        finally:
            self._cover(frozenset())
            self._line.dispose()

    def _keep_listening(self) -> None:
        back_off = BackOff(RECONNECT_FIRST_SECONDS, RECONNECT_CAP_SECONDS)
        while not self._stop.is_set():
            try:
                self._line.open(self._wake_ups)
                self._look()
                self._say_on()
                back_off.reset()
                self._listen()
            except DatabaseError as error:
                self._line.close()
                self._cover(frozenset())
                self._say_lost(error)
                self._stop.wait(back_off.next_wait())

    def _listen(self) -> None:
        look_at = self._clock() + self._look_seconds
        while True:
            for channel in self._line.wait(look_at - self._clock()):
                if (wake_up := self._wake_ups.get(channel)) is not None:
                    wake_up.wake()
            if self._clock() >= look_at:
                self._look()
                look_at = self._clock() + self._look_seconds

    def _look(self) -> None:
        """Find out which tables have the trigger: only those of them can be left alone."""
        covered = self._line.covered({each.qualified: channel for channel, each in self._wake_ups.items()})
        self._cover(covered)
        self._say_uncovered(frozenset(self._wake_ups.keys() - covered))

    def _cover(self, channels: frozenset[str]) -> None:
        for channel, wake_up in self._wake_ups.items():
            was_covered, now_covered = wake_up.covered, channel in channels
            wake_up.cover(now_covered)
            if was_covered and not now_covered:
                # Who rests must look at once, and poll again.
                wake_up.wake_all()

    def _say_on(self) -> None:
        # Announcements may have been missed since the line was cut, or before it was there.
        for wake_up in self._wake_ups.values():
            wake_up.wake_all()
        queues = ", ".join(each.queue for each in self._wake_ups.values())
        logger.info("new messages wake the receivers of %s", queues, extra={"event": "wake_up_on"})
        self._lost = False

    def _say_lost(self, error: DatabaseError) -> None:
        if not self._lost:
            logger.warning("new messages wake nobody, polling until they do again: %s", error, extra={"event": "wake_up_lost"})
        self._lost = True

    def _say_uncovered(self, channels: frozenset[str]) -> None:
        new, self._uncovered = channels - (self._uncovered or frozenset()), channels
        for channel in sorted(new):
            wake_up = self._wake_ups[channel]
            logger.info(
                "%s has no wake-up trigger, or a pooler stands before the server: senders whose settings have no WAKE_UP are found "
                "by polling; to add the trigger: python manage.py sqlqueue_install --wake-up",
                wake_up.qualified,
                extra={"event": "wake_up_without_trigger", "queue": wake_up.queue},
            )


@contextmanager
def listening(alias: str, wake_ups: Iterable[WakeUp | None], stop: StopSignal, *, also: Iterable[Woken] = ()) -> Iterator[None]:
    """While open, new messages wake these receivers, and what is handed in as `also`; does nothing where no receiver listens.

    The stop comes before its end.
    """
    known: list[Woken] = [each for each in wake_ups if each is not None and each.listens]
    if known:
        known += also
    if not known:
        yield
        return
    listener = WakeUpListener(alias, known, stop)
    listener.start()
    try:
        yield
    finally:
        stop.set()
        listener.join()
