"""The subscriptions of endpoints: those that a worker makes at its start, those that are there, those that nobody needs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sqlqueue_app.conf import Settings
from sqlqueue_app.endpoint import Endpoint
from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.sending.subscribers import subscribers_of
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.subscriptions import Subscription, SubscriptionTable

logger = logging.getLogger("sqlqueue.worker")


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """A subscription and what can be said of it; `handled` is None for an endpoint that is not in the settings."""

    subscription: Subscription
    queue_exists: bool
    handled: bool | None


def subscribe_to_events(endpoint: Endpoint) -> list[str]:
    """Subscribe to the events of an endpoint, if SUBSCRIBE says so, and return the types whose row was missing or had another
    address. Reads first: where nothing changed nothing is written. Types that are no longer handled keep their rows.

    QueueNotFound if there is no subscription table.
    """
    if not endpoint.config.subscribe or not (events := endpoint.events):
        return []
    address = endpoint.book.canonical(endpoint.book.of_queue(endpoint.name))
    known = set(endpoint.subscriptions.all())
    wanted = [Subscription(endpoint.name, topic, address) for topic in events]
    changed = [subscription for subscription in wanted if subscription not in known]
    for subscription in changed:
        endpoint.subscriptions.subscribe(subscription)
        logger.info(
            "endpoint %s has subscribed to %s",
            endpoint.name,
            subscription.topic,
            extra={"event": "subscribed", "endpoint": endpoint.name},
        )
    return [subscription.topic for subscription in changed]


def read_subscriptions(settings: Settings, endpoint: str | None = None) -> list[SubscriptionState]:
    """The subscriptions of an endpoint, or all, by endpoint and topic. QueueNotFound if there is no subscription table."""
    book, table = _book_and_table(settings)
    rows = [row for row in table.all() if endpoint is None or row.endpoint == endpoint]
    handled = {
        name: set(Endpoint(settings, name).handlers.message_types)
        for name in {row.endpoint for row in rows} & set(settings.endpoints)
    }
    exists = {address: _exists(settings.database, book, address) for address in {row.address for row in rows}}
    return [
        SubscriptionState(row, exists[row.address], row.topic in handled[row.endpoint] if row.endpoint in handled else None)
        for row in rows
    ]


def remove_subscriptions(settings: Settings, subscriptions: list[Subscription]) -> int:
    """Delete the rows and return how many there were."""
    _, table = _book_and_table(settings)
    return sum(table.unsubscribe(each.endpoint, each.topic) for each in subscriptions)


def _book_and_table(settings: Settings) -> tuple[AddressBook, SubscriptionTable]:
    book = address_book_of(settings)
    return book, subscribers_of(settings.database, book).table


def _exists(alias: str, book: AddressBook, address: str) -> bool:
    try:
        return queue_table(alias, book.parse(address)).exists()
    except AddressError:
        return False
