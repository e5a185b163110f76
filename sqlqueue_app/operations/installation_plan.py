"""Which tables the settings ask for: endpoints, satellites, callback queues, delayed messages, error, audit, subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlqueue_app.conf import EndpointSettings, Settings, instance_name
from sqlqueue_app.databases.ddl import TableKind
from sqlqueue_app.databases.scripts import PlannedTable
from sqlqueue_app.messages.errors import AddressError
from sqlqueue_app.messages.resolution import AddressBook
from sqlqueue_app.tables.well_known import check_address, delayed_address, subscription_address


def planned_tables(
    settings: Settings, dialect: str, catalog: str | None = None, instance_names: Iterable[str] | None = None
) -> list[PlannedTable]:
    """Every table that the endpoints of the settings need in this dialect, each once, in the order of the settings.

    Callback queues are planned for `instance_names`; None means this machine (or the endpoint's INSTANCE), an empty list none.
    `catalog` is the connection's own on SQL Server. Reaches no database. Raises AddressError for a name that the database could
    not hold.
    """
    return _once(_tables(settings, settings.address_book(dialect, catalog), instance_names), dialect)


def wake_up_tables(settings: Settings, dialect: str, instance_names: Iterable[str] | None = None) -> list[PlannedTable]:
    """Of the planned tables those that a wake-up trigger is for; none off PostgreSQL.

    They are what endpoints with WAKE_UP receive from, and where there are such endpoints the tables of delayed messages, which any
    worker looks into.
    """
    if dialect != "postgresql" or not settings.announces:
        return []
    names = None if instance_names is None else tuple(instance_names)
    book = settings.address_book(dialect)
    queues = [
        PlannedTable(TableKind.QUEUE, book.of_queue(queue))
        for endpoint in settings.endpoints.values()
        if endpoint.wake_up
        for queue in (*endpoint.receiving_queue_names(), *_callback_queues(endpoint, names))
    ]
    delayed = [PlannedTable(TableKind.DELAYED, delayed_address(book, name)) for name in settings.senders]
    return _once([*queues, *delayed], dialect)


def _once(tables: Iterable[PlannedTable], dialect: str) -> list[PlannedTable]:
    found: dict[tuple[str, str | None, str | None], PlannedTable] = {}
    for table in tables:
        check_address(table.address, dialect)
        address = table.address
        # SQLite and, by its usual collations, SQL Server see one table where names differ only in case.
        name = address.table if dialect == "postgresql" else address.table.lower()
        found.setdefault((name, address.schema, address.catalog), table)
    return list(found.values())


def unusable_names(settings: Settings, dialect: str, catalog: str | None = None) -> list[str]:
    """What is wrong with the names of the planned tables, one sentence each; empty when all can be made."""
    wrong: list[str] = []
    for table in _tables(settings, settings.address_book(dialect, catalog), None):
        try:
            check_address(table.address, dialect)
        except AddressError as error:
            wrong.append(str(error))
    return list(dict.fromkeys(wrong))


def _tables(settings: Settings, book: AddressBook, instance_names: Iterable[str] | None) -> Iterator[PlannedTable]:
    names = None if instance_names is None else tuple(instance_names)
    for endpoint in settings.senders.values():
        for queue in (*endpoint.receiving_queue_names(), *_callback_queues(endpoint, names)):
            yield PlannedTable(TableKind.QUEUE, book.of_queue(queue))
        yield PlannedTable(TableKind.DELAYED, delayed_address(book, endpoint.name))
        for text in (endpoint.error_queue, endpoint.audit_queue):
            if text is not None:
                yield PlannedTable(TableKind.QUEUE, book.parse(text))
    if settings.senders:
        yield PlannedTable(TableKind.SUBSCRIPTIONS, subscription_address(book))


def _callback_queues(endpoint: EndpointSettings, instance_names: tuple[str, ...] | None) -> Iterator[str]:
    if not endpoint.callbacks:
        return
    for instance in (instance_name(endpoint),) if instance_names is None else instance_names:
        yield from endpoint.callback_queue_names(instance)
