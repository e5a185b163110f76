"""Which queues there are: those of the endpoints in settings, and the callback queues that running instances hold."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sqlqueue_app.conf import Settings, instance_name
from sqlqueue_app.conf.problems import meant
from sqlqueue_app.databases.ddl import TableKind
from sqlqueue_app.databases.scripts import PlannedTable
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError, ConfigurationError
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.models import Instance
from sqlqueue_app.tables.connections import connection_of, dialect_of_connection
from sqlqueue_app.tables.inspection import current_catalog
from sqlqueue_app.tables.queue import QueueTable, queue_table


class QueueKind(enum.StrEnum):
    """What a queue is for; OTHER for a table that the settings do not name."""

    MAIN = "main"
    SATELLITE = "satellite"
    ERROR = "error"
    AUDIT = "audit"
    CALLBACK = "callback"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """A queue that the settings or a running instance name.

    `name` is unique among the known queues: the literal name of the table, or the whole address where the settings put the queue
    elsewhere than its name alone would. `endpoints` are the endpoints that receive from it, or send their failures or audits to it.
    `instance` is the name of the instance whose callback queue it is, where that is not this machine's.
    """

    name: str
    address: QueueAddress
    kind: QueueKind
    endpoints: tuple[str, ...]
    instance: str | None = None

    @property
    def planned(self) -> PlannedTable:
        """The table as the installer would make it."""
        return PlannedTable(TableKind.QUEUE, self.address)


def address_book_of(settings: Settings, *, endpoint: str | None = None) -> AddressBook:
    """The address book of the queues' database; does not connect."""
    connection = connection_of(settings.database)
    return settings.address_book(dialect_of_connection(connection).name, current_catalog(connection), endpoint=endpoint)


def known_queues(settings: Settings, instances: Iterable[Instance] = ()) -> list[KnownQueue]:
    """Every known queue once: main queues and satellites, error and audit queues, then callback queues.

    Callback queues are the pool of this machine and what the `instances` hold. Reaches no database. Raises AddressError for an
    error or audit address that cannot be read.
    """
    book = address_book_of(settings)
    found: dict[tuple[str, str | None, str | None], KnownQueue] = {}
    for address, kind, endpoint, instance in (*_of_settings(settings, book), *_callback_queues(settings, book, instances)):
        # SQLite and, by its usual collations, SQL Server see one table where names differ only in case.
        table = address.table if book.dialect == "postgresql" else address.table.lower()
        key = (table, address.schema, address.catalog)
        first = found.get(key)
        if first is None:
            found[key] = KnownQueue(name_of_queue(book, address), address, kind, (endpoint,), instance)
        elif endpoint not in first.endpoints:
            found[key] = replace(first, endpoints=(*first.endpoints, endpoint))
    return list(found.values())


_Entry = tuple[QueueAddress, QueueKind, str, str | None]


def _of_settings(settings: Settings, book: AddressBook) -> Iterator[_Entry]:
    for endpoint in settings.senders.values():
        for queue in endpoint.receiving_queue_names():
            yield book.of_queue(queue), QueueKind.MAIN if queue == endpoint.name else QueueKind.SATELLITE, endpoint.name, None
    for endpoint in settings.senders.values():
        yield book.parse(endpoint.error_queue), QueueKind.ERROR, endpoint.name, None
    for endpoint in settings.senders.values():
        if endpoint.audit_queue is not None:
            yield book.parse(endpoint.audit_queue), QueueKind.AUDIT, endpoint.name, None


def _callback_queues(settings: Settings, book: AddressBook, instances: Iterable[Instance]) -> Iterator[_Entry]:
    for endpoint in settings.senders.values():
        if endpoint.callbacks:
            for queue in endpoint.callback_queue_names(instance_name(endpoint)):
                yield book.of_queue(queue), QueueKind.CALLBACK, endpoint.name, None
    for instance in instances:
        if instance.callback_queue:
            try:
                yield book.of_queue(instance.callback_queue), QueueKind.CALLBACK, instance.endpoint, instance.name
            except AddressError:
                continue  # the row was written by hand: the instance is shown all the same, without a depth


def name_of_queue(book: AddressBook, address: QueueAddress) -> str:
    """The name of a `KnownQueue` with this address."""
    return address.table if book.of_queue(address.table) == address else str(address)


def table_of_argument(settings: Settings, text: str, known: Iterable[KnownQueue]) -> QueueTable:
    """The queue that a user names: a known queue, else the table of this literal name, else the one that the address means.

    ConfigurationError with the nearest known name if there is none; TableMismatch for a table that is no queue; QueueNotFound for
    a known queue whose table is missing.
    """
    names = {queue.name: queue.address for queue in known}
    table = _existing(settings, names, text)
    if table is None:
        near = meant(text, names) or f"; known are {', '.join(names) or 'none: the settings have no endpoints'}"
        raise ConfigurationError(f"there is no queue {text!r} in database {settings.database!r}{near}")
    # What has not the columns of a queue is none: nothing may be deleted from somebody's other table.
    table.layout()
    return table


def _existing(settings: Settings, names: dict[str, QueueAddress], text: str) -> QueueTable | None:
    if text in names:
        return queue_table(settings.database, names[text])
    book = address_book_of(settings)
    literal = queue_table(settings.database, book.of_queue(text))
    if literal.exists():
        return literal
    try:
        parsed = queue_table(settings.database, book.parse(text))
    except AddressError:
        return None
    return parsed if parsed.exists() else None
