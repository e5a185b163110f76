"""Subscribers of each event, and orphans: missing queues, endpoints without processes, events without handlers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.addresses import AddressBook
from sqlqueue_app.messages.errors import AddressError, ConnectionLost, DatabaseError, QueueNotFound
from sqlqueue_app.messages.types import plain_name
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.sending.subscribers import subscribers_of
from sqlqueue_app.status.instances import read_instances
from sqlqueue_app.status.queues import INSTALL_COMMAND, ProblemKind, QueueProblem, address_book_of, listed_tables, table_key
from sqlqueue_app.tables.connections import guarded_read, optional_read
from sqlqueue_app.tables.queue import queue_table
from sqlqueue_app.tables.subscriptions import SubscriptionRow

# The number of queues probed one by one, if the list of all tables lacks them, as in another catalog.
_MAX_PROBED: Final = 3


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One subscription and its state.

    `handled` is whether the endpoint has a handler for the event; None if unknown, for an endpoint that is not in the settings
    of this process, or whose handlers cannot be imported. `live` is the number of its live processes, None if the tables of
    `migrate` are missing.
    """

    subscription: SubscriptionRow
    queue_exists: bool
    is_in_settings: bool
    handled: bool | None
    live: int | None
    subscribes_again: bool

    @property
    def is_orphan(self) -> bool:
        """Whether copies are never handled: the queue is gone, no process of the endpoint is alive, or it has no handler."""
        return not self.queue_exists or self.live == 0 or self.handled is False


@dataclass(frozen=True, slots=True)
class SubscribedEvent:
    """An event with its subscribers. `is_handled`: False if none of them has a handler, as far as known."""

    topic: str
    subscribers: tuple[Subscriber, ...]

    @property
    def is_handled(self) -> bool:
        """Whether a subscriber handles it, or may."""
        return any(each.handled is not False for each in self.subscribers)


def read_matrix(settings: Settings) -> list[SubscribedEvent]:
    """Every event with a subscription, by name, each with its subscribers by name.

    One statement for the subscriptions, two for the queues and one for the processes; three more at most where queues are gone.
    Imports handlers; those that cannot be imported are left out. QueueNotFound without a subscription table, another DatabaseError
    for one of another shape, ConnectionLost.
    """
    book = address_book_of(settings)
    with guarded_read(settings.database, "read the subscriptions"):
        rows = subscribers_of(settings.database, book).table.all()
    exists = _existing(settings, book, sorted({row.address for row in rows}))
    names = {row.endpoint for row in rows}
    handled = {name: _handled(settings, name) for name in names & set(settings.endpoints)}
    instances, _rows, problem = read_instances()
    live = {name: sum(1 for each in instances if each.alive and each.endpoint == name) for name in names}
    events: dict[str, list[Subscriber]] = {}
    for row in sorted(rows, key=lambda each: (each.topic, each.endpoint)):
        types = handled.get(row.endpoint)
        is_handled = None if types is None else plain_name(row.topic) in types
        events.setdefault(row.topic, []).append(
            Subscriber(
                subscription=row,
                queue_exists=row.address in exists,
                is_in_settings=row.endpoint in settings.senders,
                handled=is_handled,
                live=None if problem is not None else live[row.endpoint],
                subscribes_again=bool(is_handled) and settings.endpoints[row.endpoint].subscribe,
            )
        )
    return [SubscribedEvent(topic, tuple(subscribers)) for topic, subscribers in events.items()]


def read_events(settings: Settings) -> tuple[list[SubscribedEvent], QueueProblem | None]:
    """The result of `read_matrix`; empty, with the reason, if the subscriptions cannot be read. Raises ConnectionLost."""
    try:
        return read_matrix(settings), None
    except ConnectionLost:
        raise
    except QueueNotFound as error:
        return [], QueueProblem(ProblemKind.MISSING, str(error), command=INSTALL_COMMAND)
    except DatabaseError as error:
        return [], QueueProblem(ProblemKind.UNREADABLE, f"{error}{error.remedy}")


def _existing(settings: Settings, book: AddressBook, addresses: Iterable[str]) -> set[str]:
    listed = {table_key(table.address) for table in listed_tables(settings.database) if table.layout is not None}
    found, probed = set(), 0
    for text in addresses:
        try:
            address = book.parse(text)
        except AddressError:
            continue
        if table_key(address) in listed:
            found.add(text)
        elif probed < _MAX_PROBED:
            probed += 1
            with optional_read(settings.database, "look for a queue"):
                if queue_table(settings.database, address).exists():
                    found.add(text)
    return found


def _handled(settings: Settings, endpoint: str) -> set[str] | None:
    try:
        return _handled_types(settings, endpoint)
    except Exception:  # noqa: BLE001 - user modules may raise anything; the endpoint's page shows it
        return None


def _handled_types(settings: Settings, endpoint: str) -> set[str]:
    """The types that an endpoint handles, compared without the assemblies of type arguments, as its workers do."""
    return {plain_name(name) for name in ReceivingEndpoint(settings, endpoint).handlers.message_types}


logger = logging.getLogger("sqlqueue.worker")


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """A subscription and its state; `handled` is None for an endpoint that is not in the settings."""

    subscription: SubscriptionRow
    queue_exists: bool
    handled: bool | None


def subscribe_to_events(endpoint: ReceivingEndpoint) -> list[str]:
    """Subscribe to the events of an endpoint if SUBSCRIBE is set. Returns the types whose row was missing or had another
    address. Reads first, and writes only changes. Types that are no longer handled keep their rows.

    QueueNotFound if the subscription table is missing.
    """
    if not endpoint.config.subscribe or not (events := endpoint.events):
        return []
    address = endpoint.book.canonical(endpoint.book.of_queue(endpoint.name))
    known = set(endpoint.subscriptions.all())
    wanted = [SubscriptionRow(endpoint.name, topic, address) for topic in events]
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


def read_subscriptions(settings: Settings, endpoint: str | None) -> list[SubscriptionState]:
    """The subscriptions of an endpoint, or all, by endpoint and topic. QueueNotFound if the subscription table is missing."""
    book = address_book_of(settings)
    rows = [row for row in subscribers_of(settings.database, book).table.all() if endpoint is None or row.endpoint == endpoint]
    handled = {name: _handled_types(settings, name) for name in {row.endpoint for row in rows} & set(settings.endpoints)}
    exists = {address: _exists(settings.database, book, address) for address in {row.address for row in rows}}
    return [
        SubscriptionState(
            row, exists[row.address], plain_name(row.topic) in handled[row.endpoint] if row.endpoint in handled else None
        )
        for row in rows
    ]


def remove_subscriptions(settings: Settings, subscriptions: list[SubscriptionRow]) -> int:
    """Delete the rows. Returns the number deleted."""
    table = subscribers_of(settings.database, address_book_of(settings)).table
    return sum(table.unsubscribe(each.endpoint, each.topic) for each in subscriptions)


def _exists(alias: str, book: AddressBook, address: str) -> bool:
    try:
        return queue_table(alias, book.parse(address)).exists()
    except AddressError:
        return False
