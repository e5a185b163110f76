"""Looks at queues of a moment ago, for pages that are made again and again: several of them look at the same queues.

Nothing is kept for anybody else: a command, a check, or a page that somebody has just asked for counts anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Final

KEPT_AT_MOST: Final = 2_000


class RecentLooks:
    """The last look at each thing, by its key. Safe from any thread; `clock` is in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looks: dict[Hashable, tuple[float, Any]] = {}
        self.turn = threading.Lock()
        """Held by the thread that looks: who waits for it finds what it has looked at."""

    @contextmanager
    def used(self, seconds: float) -> Iterator[None]:
        """While open, what this thread looks at is kept here, and looks younger than so many seconds are taken for new ones."""
        token = _used.set((self, seconds))
        try:
            yield
        finally:
            _used.reset(token)

    def find(self, keys: Iterable[Hashable], seconds: float) -> dict[Hashable, Any]:
        """The looks that are younger than that, by their keys."""
        since = self._clock() - seconds
        with self._lock:
            known = ((key, self._looks.get(key)) for key in keys)
            return {key: look[1] for key, look in known if look is not None and look[0] > since}

    def keep(self, looks: Mapping[Hashable, Any]) -> None:
        """These were taken just now."""
        now = self._clock()
        with self._lock:
            if len(self._looks) + len(looks) > KEPT_AT_MOST:
                self._looks.clear()
            self._looks.update({key: (now, look) for key, look in looks.items()})


_used: ContextVar[tuple[RecentLooks, float] | None] = ContextVar("sqlqueue_recent_looks", default=None)


def recent_looks(keys: Iterable[Hashable]) -> dict[Hashable, Any]:
    """What this thread may take for new looks, by their keys; nothing outside of `used`."""
    used = _used.get()
    return {} if used is None else used[0].find(keys, used[1])


def taking_turns() -> AbstractContextManager[object]:
    """A scope for looking: one thread at a time where looks are shared, so that they need not be taken twice."""
    used = _used.get()
    return nullcontext() if used is None else used[0].turn


def keep_looks(looks: Mapping[Hashable, Any]) -> None:
    """Keep looks that were taken just now for others; nothing outside of `used`."""
    used = _used.get()
    if used is not None:
        used[0].keep(looks)
