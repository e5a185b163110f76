"""The rate limit of a queue at work: one message at a time, and a pause after each failure, until one is handled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlqueue_app.policies.rate_limit import WAIT_SECONDS, ConsecutiveFailures

logger = logging.getLogger("sqlqueue.receive")


class RateLimit:
    """Shared by the threads of a queue. Costs nothing while it is off and nothing fails."""

    def __init__(self, queue: str = "", after: int | None = None) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._count = ConsecutiveFailures(after)
        self._off = after is None
        self._clean = True

    @property
    def limited(self) -> bool:
        """Whether one message at a time is handled now."""
        return self._count.limited

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Wait for the turn of the calling thread."""
        with self._turn:
            yield

    def failed(self) -> None:
        """An attempt to handle a message has failed."""
        if self._off:
            return
        with self._lock:
            self._clean = False
            begins = self._count.failed()
        if begins:
            logger.warning(
                "too many failures in a row: one message of %s at a time from now on, %g s after each failure",
                self._queue,
                WAIT_SECONDS,
                extra={"event": "rate_limit_begins", "queue": self._queue},
            )

    def succeeded(self) -> None:
        """A message was handled."""
        if self._off or self._clean:
            return
        with self._lock:
            self._clean = True
            ends = self._count.succeeded()
        if ends:
            logger.info("a message was handled: no rate limit any more", extra={"event": "rate_limit_ends", "queue": self._queue})
