"""In-memory measurements of an endpoint: messages and their times by type, and slow handlers."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import FrameType
from typing import Final

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.messages.headers import Headers
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.messages.types import resolve_enclosed
from sqlqueue_app.policies.recoverability import Action, MoveToError, RetryLater, RetryNow
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.handlers import Handler

logger = logging.getLogger("sqlqueue.receive")


# Senders control the number of types: those after the first 200 are counted together.
MAX_TYPES: Final = 200
OTHER_TYPES: Final = "(other types)"
_REMEMBERED_TEXTS: Final = 1000
_MAX_CACHED_LENGTH: Final = 4000
_MAX_NAME_LENGTH: Final = 255
_MINUTE: Final = len("2026-04-29 21:56:")
_WHOLE: Final = len("2026-04-29 21:56:55:590807 Z")

Done = tuple[str | None, str | None, float, float]
"""A handled message: the texts of its types and of when it was sent, and when its processing has begun and was done, by
`perf_counter`. Not its headers: they would be kept until a whole batch is done."""


def done(headers: Headers, started: float, completed: float) -> Done:
    """The values to count for a committed message."""
    get = headers.get
    return get(names.ENCLOSED_MESSAGE_TYPES), get(names.DELIVER_AT) or get(names.TIME_SENT), started, completed


@dataclass(slots=True)
class Counted:
    """The counts of one message type since the last `take`. Seconds are sums; `critical_measured` messages have a time."""

    handled: int = 0
    failures: int = 0
    immediate_retries: int = 0
    delayed_retries: int = 0
    moved_to_error: int = 0
    processing_seconds: float = 0.0
    processing_max: float = 0.0
    critical_measured: int = 0
    critical_seconds: float = 0.0
    critical_max: float | None = None

    def add(self, other: Counted) -> None:
        """Add the counts of another."""
        longest = [each for each in (self.critical_max, other.critical_max) if each is not None]
        slowest = max(self.processing_max, other.processing_max)
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.processing_max, self.critical_max = slowest, max(longest, default=None)


SUMS: Final = tuple(field.name for field in fields(Counted) if not field.name.endswith("_max"))
_NOTHING: Final = Counted()


class Measures:
    """Counts for one endpoint in one process, by message type. Safe from any thread; reads no database and no clock.

    The definitions are those of NServiceBus (docs/internals/operations.md#metrics): times of successes only. The processing time
    is that of the successful attempt, without the receive, the writing of outgoing messages and the commit. The critical time
    runs from the header DeliverAt, else TimeSent, to the end of the processing; it is negative if the sender's clock is ahead.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[str, Counted] = {}
        self._names: dict[str, str] = {}
        self._types: set[str] = set()
        # Since the start of the process; `take` does not reset them.
        self.all_handled = self.all_failures = 0
        self._minute = ""
        self._minute_begin = 0.0

    def handled(self, messages: Sequence[Done], ahead: float) -> None:
        """Count handled messages after their commit. `ahead`: the time since 1970 less that of `perf_counter`."""
        # In a batch most messages have the type of the previous one.
        last: str | None = None
        counted = _NOTHING
        with self._lock:
            self.all_handled += len(messages)
            for text, at, started, completed in messages:
                if text != last or counted is _NOTHING:
                    last, counted = text, self._of_type(text or "")
                took = completed - started
                counted.handled += 1
                counted.processing_seconds += took
                if took > counted.processing_max:
                    counted.processing_max = took
                if at:
                    # Most were sent in the same minute as the previous one: parse a small number, not a whole date.
                    if at[:_MINUTE] == self._minute and len(at) == _WHOLE and (digits := at[17:19] + at[20:26]).isdecimal():
                        sent = self._minute_begin + int(digits) * 1e-6
                    elif (instant := self._instant(at)) is not None:
                        sent = instant
                    else:
                        continue
                    critical = completed + ahead - sent
                    counted.critical_measured += 1
                    counted.critical_seconds += critical
                    if counted.critical_max is None or critical > counted.critical_max:
                        counted.critical_max = critical

    def failed(self, headers: Headers) -> None:
        """Count a failed attempt."""
        self._count(headers, "failures")

    def decided(self, headers: Headers, action: Action) -> None:
        """Count the decision on a failed attempt."""
        if isinstance(action, RetryNow):
            self._count(headers, "immediate_retries")
        elif isinstance(action, RetryLater):
            self._count(headers, "delayed_retries")
        elif isinstance(action, MoveToError):
            self._count(headers, "moved_to_error")

    def take(self) -> dict[str, Counted]:
        """Return and reset the counts since the last `take`, by message type."""
        with self._lock:
            taken, self._counted = self._counted, {}
        return taken

    def put_back(self, taken: Mapping[str, Counted]) -> None:
        """Add counts that could not be written to the next `take`."""
        with self._lock:
            for name, counted in taken.items():
                (self._counted.get(name) or self._begin(name)).add(counted)

    def _count(self, headers: Headers, what: str) -> None:
        with self._lock:
            self.all_failures += what == "failures"
            counted = self._of_type(headers.get(names.ENCLOSED_MESSAGE_TYPES) or "")
            setattr(counted, what, getattr(counted, what) + 1)

    def _of_type(self, text: str) -> Counted:
        """The counts of the types that a header encloses. Called under the lock."""
        name = self._names.get(text)
        if name is None:
            name = self._new_name(text)
        return self._counted.get(name) or self._begin(name)

    def _begin(self, name: str) -> Counted:
        counted = self._counted[name] = Counted()
        return counted

    def _new_name(self, text: str) -> str:
        """The name under which a type is counted; empty for a message without a type. Called under the lock."""
        found = resolve_enclosed(text) if text else []
        # Databases may refuse NUL in text, and the column limits the length.
        name = found[0].replace("\0", "\N{SYMBOL FOR NULL}")[:_MAX_NAME_LENGTH] if found else ""
        if name not in self._types and len(self._types) >= MAX_TYPES:
            name = OTHER_TYPES
        else:
            self._types.add(name)
        if len(text) <= _MAX_CACHED_LENGTH and len(self._names) < _REMEMBERED_TEXTS:
            self._names[text] = name
        return name

    def _instant(self, text: str) -> float | None:
        """Seconds since 1970; None for text that is not an instant. Called under the lock."""
        try:
            instant = parse_time(text)
        except ValueError:
            return None
        self._minute, self._minute_begin = text[:_MINUTE], instant.replace(second=0, microsecond=0).timestamp()
        return instant.timestamp()


# A slow handler is logged at most this much later than SLOW_HANDLER, and sooner if SLOW_HANDLER is short.
MAX_PROBE_SECONDS = 1.0
MIN_PROBE_SECONDS = 0.1
_CALLER = "sqlqueue_app/receiving/processing.py"

Running = tuple[Handler, IncomingMessage, float, int]
"""A call of a handler: handler, message, start by the clock of the slot, and thread. A tuple, which is fast to create."""


class CallSlot:
    """The current call of one thread, which assigns `running` before each call and None after the last; the watcher reads it."""

    __slots__ = ("__weakref__", "clock", "logged", "queue", "running")

    def __init__(self, queue: str, clock: Callable[[], float]) -> None:
        self.queue = queue
        self.clock = clock
        self.running: Running | None = None
        self.logged: Running | None = None


class SlowHandlers:
    """Logs slow handlers of one endpoint, with the stack of their thread, while they still run.

    With `after_seconds` of 0 it watches nothing. Shared by all threads: each records its call in a slot, by one assignment before
    and one after the calls, without a lock; a background job checks the slots.
    """

    def __init__(self, endpoint: str, after_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint
        self._after = after_seconds
        self._clock = clock
        self._lock = threading.Lock()
        # A slot lives as long as the thread's processor.
        self._slots: weakref.WeakSet[CallSlot] = weakref.WeakSet()

    def jobs(self) -> list[BackgroundJob]:
        """The job that checks the slots; none if nothing is watched."""
        if not self._after:
            return []
        every = max(MIN_PROBE_SECONDS, min(MAX_PROBE_SECONDS, self._after / 2))
        return [BackgroundJob(f"slow handlers of {self._endpoint}", every, self.probe, uses_database=False)]

    def slot(self, queue: str) -> CallSlot | None:
        """A slot for one thread that handles messages of the queue; None if nothing is watched."""
        if not self._after:
            return None
        slot = CallSlot(queue, self._clock)
        with self._lock:
            self._slots.add(slot)
        return slot

    def probe(self) -> None:
        """Log each slow call once."""
        with self._lock:
            slots = list(self._slots)
        for slot in slots:
            running = slot.running
            if running is None or running is slot.logged:
                continue
            handler, incoming, began, thread = running
            seconds = self._clock() - began
            if seconds < self._after:
                continue
            frame = sys._current_frames().get(thread)
            # The stack belongs to this call only if the call has not ended in the meantime.
            if frame is not None and slot.running is running:
                slot.logged = running
                self._log(slot, handler, incoming.message_id, seconds, frame)

    def _log(self, slot: CallSlot, handler: Handler, message_id: str, seconds: float, frame: FrameType) -> None:
        logger.warning(
            "handler %s has been running for %.1f s and is still running:\n%s",
            handler.path,
            seconds,
            _stack(frame),
            extra={"event": "slow_handler", "endpoint": self._endpoint, "queue": slot.queue, "message_id": message_id},
        )


def _stack(frame: FrameType) -> str:
    """The stack from where the handler (or the middleware around it) is called, without the worker's own frames above."""
    frames = traceback.extract_stack(frame)
    above = [place for place, each in enumerate(frames) if each.filename.endswith(_CALLER)]
    return "".join(traceback.format_list(frames[above[-1] + 1 :] if above else list(frames))).rstrip()
