"""The delayed tables of the settings, ready to be moved from: those of all endpoints and of SEND_AS, whoever runs them."""

from __future__ import annotations

from functools import partial

from sqlqueue_app.conf import EndpointSettings, Settings
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.receiving.due_messages import DueMessages
from sqlqueue_app.receiving.error_queue import ErrorQueue
from sqlqueue_app.receiving.failures import Processor
from sqlqueue_app.receiving.routes_of_satellites import Destinations
from sqlqueue_app.sending.composer import sender_identity
from sqlqueue_app.tables.connections import connection_of, dialect_of_connection
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.inspection import current_catalog
from sqlqueue_app.tables.well_known import delayed_address


def due_messages_of(settings: Settings) -> list[DueMessages]:
    """One for each endpoint of the settings and for SEND_AS. Reaches no database; the tables need not be there.

    Any worker on the database moves for all of them: a process that sends as SEND_AS runs no worker of its own. ConfigurationError
    for a name that no address can hold.
    """
    connection = connection_of(settings.database)
    dialect, catalog = dialect_of_connection(connection).name, current_catalog(connection)
    return [
        _due_messages(settings, settings.address_book(dialect, catalog, endpoint=config.name), config)
        for config in settings.senders.values()
    ]


def _due_messages(settings: Settings, book: AddressBook, config: EndpointSettings) -> DueMessages:
    name = config.name
    alias = settings.database
    identity = sender_identity(name, book)
    destinations = destinations_of_delayed(settings, book, name)
    return DueMessages(
        name,
        DelayedTable(alias, delayed_address(book, name)),
        main=book.canonical(book.of_queue(name)),
        destinations=destinations,
        error_queue_of=partial(_error_queue, alias, book, config.error_queue, Processor(name, identity.machine, identity.host_id)),
    )


def destinations_of_delayed(settings: Settings, book: AddressBook, endpoint: str) -> Destinations:
    """Finds where the delayed messages of an endpoint go, which need not be one of the settings."""
    config = settings.senders.get(endpoint)
    return Destinations(
        settings.database,
        book,
        satellites=frozenset() if config is None else frozenset(config.legacy_satellite_names()),
        own=endpoint,
        # ALLOWED_DESTINATIONS limits what the headers of received messages can do. These the endpoint has sent itself, and what it
        # drained from an old peer's queue was checked then.
        allowed=None,
        announces=settings.announces,
    )


def _error_queue(alias: str, book: AddressBook, error_queue: str, processor: Processor, failed_queue: str) -> ErrorQueue:
    return ErrorQueue(alias, book.parse(error_queue), failed_queue=failed_queue, processor=processor)
