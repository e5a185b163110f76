"""Connections that threads hand on to each other, for short work that comes again and again.

A new connection costs a server more than most of that work: a process, a log-in, the set-up of the session.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

# What is not asked for in this time was needed only because much came together.
KEPT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Kept:
    """The connections of one piece of work, and when it ended."""

    connections: tuple[BaseDatabaseWrapper, ...]
    since: float


class KeptConnections:
    """Lends a thread the connections that another has given back. Safe from any thread; `close` comes when all work is done.

    There are as many as there was work at the same time, at least one of them in use every KEPT_SECONDS. What a pool of Django's
    own keeps is given back to it.
    """

    def __init__(self, *, kept_seconds: float = KEPT_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept_seconds = kept_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._shelf: list[_Kept] = []

    @contextmanager
    def lent(self) -> Iterator[None]:
        """While open, `connections` of the calling thread are kept ones; it must have none of its own.

        What an error or a transaction that was left open has touched is closed, not kept.
        """
        for connection in self._take():
            connections[connection.alias] = connection
        try:
            yield
        finally:
            self._give_back()

    def close(self) -> None:
        """Close what is kept."""
        with self._lock:
            kept, self._shelf = self._shelf, []
        _close(kept)

    def _take(self) -> tuple[BaseDatabaseWrapper, ...]:
        with self._lock:
            # The last that came back, so that the others are not needed and grow old.
            last = self._shelf.pop().connections if self._shelf else ()
            old = [each for each in self._shelf if self._clock() - each.since > self._kept_seconds]
            self._shelf = [each for each in self._shelf if each not in old]
        _close(old)
        return last

    def _give_back(self) -> None:
        used = list(connections.all(initialized_only=True))
        kept = []
        for connection in used:
            del connections[connection.alias]
            if _is_fine(connection):
                # Whoever takes it is another thread, and the only one then.
                if not connection.allow_thread_sharing:
                    connection.inc_thread_sharing()
                kept.append(connection)
            else:
                connection.close()
        if kept:
            with self._lock:
                self._shelf.append(_Kept(tuple(kept), self._clock()))


def _is_fine(connection: BaseDatabaseWrapper) -> bool:
    """Whether there is a connection that the next one finds as a new one would be, and that is worth being kept."""
    if connection.connection is None or connection.in_atomic_block or connection.needs_rollback or connection.errors_occurred:
        return False
    return not connection.settings_dict["OPTIONS"].get("pool")


def _close(kept: list[_Kept]) -> None:
    for each in kept:
        for connection in each.connections:
            connection.close()
