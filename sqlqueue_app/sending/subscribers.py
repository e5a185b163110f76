"""The subscribers of events: the subscription table, cached for a few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.tables.connections import on_settings_changed
from sqlqueue_app.tables.installation import subscription_address
from sqlqueue_app.tables.subscriptions import SubscriptionRow, SubscriptionTable

# The default of NServiceBus (docs/internals/wire.md#subscription-table).
SECONDS_REMEMBERED = 5.0
# Type names may come from anywhere: the oldest entry is evicted.
MAX_EVENT_TYPES = 1_000

Topics = tuple[str, ...]
_Remembered = tuple[float, tuple[SubscriptionRow, ...]]
"""The time at which subscriptions were read, by the clock, and the result."""


class Subscribers:
    """The subscribers of event types, cached for SECONDS_REMEMBERED, empty results included. Shared by all threads.

    `clock` returns seconds from an arbitrary origin. Changes by this process are visible at once, those of others when the entry
    expires. No lock is held during a query, so threads that miss the cache query the database independently.
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
        # Only this thread sees its uncommitted changes.
        private = self.table.has_joined_changes()
        found = tuple(self.table.subscribers(topics))
        if not private:
            self._remember(topics, (now, found), changes)
        return found

    def _remember(self, topics: Topics, found: _Remembered, changes: int) -> None:
        with self._lock:
            if changes != self._changes:
                return  # it might have been read before the change
            self._remembered.pop(topics, None)
            if len(self._remembered) >= MAX_EVENT_TYPES:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[topics] = found

    def forget(self) -> None:
        """Clear the cache: the next publish reads the table again."""
        with self._lock:
            self._changes += 1
            self._remembered.clear()


_shared: dict[tuple[str, str], Subscribers] = {}
_shared_lock = threading.Lock()


def subscribers_of(alias: str, book: AddressBook) -> Subscribers:
    """The subscribers in the database of an alias, with one cache for the whole process. Reaches no database."""
    key = (alias, str(subscription_address(book)))
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Subscribers(alias, book)
        return _shared[key]


def use_subscribers(subscribers: Subscribers) -> None:
    """Use these subscribers for their table until the settings change, for tests. Existing senders keep theirs."""
    with _shared_lock:
        _shared[subscribers.table.alias, str(subscribers.table.address)] = subscribers


def forget_subscribers() -> None:
    """Read the table again at the next publish: for tests, and after changing it by hand."""
    with _shared_lock:
        shared = list(_shared.values())
    for subscribers in shared:
        subscribers.forget()


def _forget_shared() -> None:
    with _shared_lock:
        _shared.clear()


on_settings_changed(_forget_shared, "SQLQUEUE", "DATABASES")
