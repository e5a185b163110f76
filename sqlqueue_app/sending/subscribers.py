"""Who gets an event: the subscription table, and what is remembered of it for a few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.tables.connections import on_settings_changed
from sqlqueue_app.tables.installation import subscription_address
from sqlqueue_app.tables.subscriptions import SubscriptionRow, SubscriptionTable

# As long as NServiceBus remembers them by default (docs/internals/wire.md#subscription-table).
SECONDS_REMEMBERED = 5.0
# Type names may come from anywhere: the oldest entry makes room.
MOST_EVENT_TYPES = 1_000

Topics = tuple[str, ...]
_Remembered = tuple[float, tuple[SubscriptionRow, ...]]
"""When subscriptions were read, by the clock, and what was found."""


class Subscribers:
    """The subscribers of event types, each remembered for SECONDS_REMEMBERED, none found included. Shared by all threads.

    `clock` gives seconds from any beginning. What this process changes in the table is seen at once; what others change, when the
    time is over. No lock is held while the database is asked, so threads that find nothing remembered ask it each for itself.
    """

    def __init__(self, alias: str, book: AddressBook, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.table = SubscriptionTable(alias, subscription_address(book), changed=self.forget)
        self._clock = clock
        self._lock = threading.Lock()
        self._remembered: dict[Topics, _Remembered] = {}
        self._changes = 0

    def of(self, topics: Topics) -> tuple[SubscriptionRow, ...]:
        """The subscriptions to an event whose types are `topics`. QueueNotFound if there is no subscription table."""
        now = self._clock()
        with self._lock:
            known = self._remembered.get(topics)
            changes = self._changes
        if known is not None and now - known[0] < SECONDS_REMEMBERED:
            return known[1]
        # Uncommitted changes of this thread are for this thread alone.
        private = self.table.has_joined_changes()
        found = tuple(self.table.subscribers(topics))
        if not private:
            self._remember(topics, (now, found), changes)
        return found

    def _remember(self, topics: Topics, found: _Remembered, changes: int) -> None:
        with self._lock:
            if changes != self._changes:
                return  # read before the change, perhaps
            self._remembered.pop(topics, None)
            if len(self._remembered) >= MOST_EVENT_TYPES:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[topics] = found

    def forget(self) -> None:
        """Ask the table again at the next publish."""
        with self._lock:
            self._changes += 1
            self._remembered.clear()


_shared: dict[tuple[str, str], Subscribers] = {}
_shared_lock = threading.Lock()


def subscribers_of(alias: str, book: AddressBook) -> Subscribers:
    """The subscribers in the database of an alias: what is remembered is shared by the whole process. Asks no database."""
    key = (alias, str(subscription_address(book)))
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Subscribers(alias, book)
        return _shared[key]


def use_subscribers(subscribers: Subscribers) -> None:
    """Ask these from now on about the same table: for tests. Until the settings change; senders made before ask on as they did."""
    with _shared_lock:
        _shared[subscribers.table.alias, str(subscribers.table.address)] = subscribers


def forget_subscribers() -> None:
    """Ask the table again at the next publish: for tests, and for whoever has changed it by hand."""
    with _shared_lock:
        shared = list(_shared.values())
    for subscribers in shared:
        subscribers.forget()


def _forget_shared() -> None:
    with _shared_lock:
        _shared.clear()


on_settings_changed(_forget_shared, "SQLQUEUE", "DATABASES")
