"""Handlers that run for long are logged, with the stack of their thread, while they are still running.

Each thread that calls handlers has a slot, in which it notes what it calls: one assignment before and one after the calls, no lock
and no timer. One background job of the endpoint checks the slots.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from types import FrameType

from sqlqueue_app.messages.envelope import IncomingMessage
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.handlers import Handler

logger = logging.getLogger("sqlqueue.receive")

# A slow handler is logged at most so much later than SLOW_HANDLER, and sooner if SLOW_HANDLER is short.
MOST_SECONDS_BETWEEN_LOOKS = 1.0
LEAST_SECONDS_BETWEEN_LOOKS = 0.1

Running = tuple[Handler, IncomingMessage, float, int]
"""A call of a handler: the handler, its message, when it began by the clock of the slot, and the thread. A tuple is made fast."""


class CallSlot:
    """What one thread calls. The thread assigns `running` before each call, and None after the last; the watcher reads it."""

    __slots__ = ("__weakref__", "clock", "logged", "queue", "running")

    def __init__(self, queue: str, clock: Callable[[], float]) -> None:
        self.queue = queue
        self.clock = clock
        self.running: Running | None = None
        self.logged: Running | None = None


class SlowHandlers:
    """Watches the calls of one endpoint; `after_seconds` of 0 watches nothing. Shared by all threads."""

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
        every = max(LEAST_SECONDS_BETWEEN_LOOKS, min(MOST_SECONDS_BETWEEN_LOOKS, self._after / 2))
        return [BackgroundJob(f"slow handlers of {self._endpoint}", every, self.look, uses_database=False)]

    def slot(self, queue: str) -> CallSlot | None:
        """A slot for one thread that handles messages of the queue; None if nobody watches."""
        if not self._after:
            return None
        slot = CallSlot(queue, self._clock)
        with self._lock:
            self._slots.add(slot)
        return slot

    def look(self) -> None:
        """Log each call that runs for longer than it should, once."""
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
            # The stack is that of this call only if the call has not ended meanwhile.
            if frame is not None and slot.running is running:
                slot.logged = running
                self._log(slot, handler, incoming.message_id, seconds, frame)

    def _log(self, slot: CallSlot, handler: Handler, message_id: str, seconds: float, frame: FrameType) -> None:
        logger.warning(
            "handler %s has been running for %.1f s and is still running:\n%s",
            handler.path,
            seconds,
            _stack(frame),
            extra={
                "event": "slow_handler",
                "endpoint": self._endpoint,
                "queue": slot.queue,
                "message_id": message_id,
            },
        )


def _stack(frame: FrameType) -> str:
    """The stack from where the handler (or the middleware around it) is called, without the worker's own frames above."""
    frames = traceback.extract_stack(frame)
    above = [place for place, each in enumerate(frames) if each.filename.endswith(_CALLER)]
    return "".join(traceback.format_list(frames[above[-1] + 1 :] if above else list(frames))).rstrip()


_CALLER = "sqlqueue_app/receiving/processing.py"
