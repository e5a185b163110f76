"""Which tables of delayed messages there are: those of the endpoints in settings, and others of the database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.operations.known_queues import address_book_of, name_of_queue
from sqlqueue_app.operations.queue_looks import table_key
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.listing import ListedTable
from sqlqueue_app.tables.well_known import DELAYED_SUFFIX, delayed_address


@dataclass(frozen=True, slots=True)
class KnownDelayed:
    """A table of delayed messages. `name` is unique among them, as that of a `KnownQueue`.

    `endpoint` is whose messages wait in it: by the settings, else by the name of the table.
    """

    name: str
    endpoint: str
    address: QueueAddress
    is_in_settings: bool

    def table(self, alias: str) -> DelayedTable:
        """The table in the database of an alias."""
        return DelayedTable(alias, self.address)


def known_delayed_tables(settings: Settings, listed: Iterable[ListedTable] = ()) -> list[KnownDelayed]:
    """Those of all endpoints of the settings and of SEND_AS, then the others of the tables that were listed. Asks no database."""
    book = address_book_of(settings)
    found: dict[tuple[str | None, str | None, str], KnownDelayed] = {}
    for endpoint in settings.senders:
        address = delayed_address(book, endpoint)
        found.setdefault(table_key(address), KnownDelayed(name_of_queue(book, address), endpoint, address, is_in_settings=True))
    for table in listed:
        if table.is_delayed:
            name = name_of_queue(book, table.address)
            endpoint = table.address.table.removesuffix(DELAYED_SUFFIX)
            found.setdefault(table_key(table.address), KnownDelayed(name, endpoint, table.address, is_in_settings=False))
    return list(found.values())
