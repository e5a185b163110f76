"""How a worker is told to stop, and how it knows that there is nothing left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


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
        for told in subscribers:
            told()

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

    def subscribe(self, told: Callable[[], None]) -> None:
        """Have `told` called at each `set`, in the thread that sets, or at once if it is set: it must be quick and never raise.

        For waits on something else than this signal, which the stop has to end too.
        """
        with self._lock:
            self._subscribers.append(told)
            is_set = self._event.is_set()
        if is_set:
            told()

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
    """Says when every queue was found empty while nothing was being handled, so that no handler can have sent anything since.

    Threads report the begin and the end of each poll and each message. An empty poll proves something only if no message was
    received or handled meanwhile. Another poll may have received one and not said so yet: it says so before it ends, and nothing
    is proved any more; so the end is found when no poll is under way. At last `anything_due` is asked, which says whether something
    waits elsewhere that will be in a queue at once.
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
        """The poll received a row; said before `poll_ends`."""
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
