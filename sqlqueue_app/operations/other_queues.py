"""Tables that the settings do not name: queues of other systems, and what was left of endpoints that are gone."""

from __future__ import annotations

from collections.abc import Iterable

from sqlqueue_app.conf import Settings
from sqlqueue_app.operations.known_queues import KnownQueue, QueueKind, address_book_of, name_of_queue
from sqlqueue_app.operations.queue_looks import table_key
from sqlqueue_app.tables.listing import ListedTable


def other_queues(settings: Settings, known: Iterable[KnownQueue], listed: Iterable[ListedTable]) -> list[KnownQueue]:
    """The queue tables of the database that are none of the known queues, by schema and name."""
    keys = {table_key(queue.address) for queue in known}
    book = address_book_of(settings)
    return [
        KnownQueue(name_of_queue(book, table.address), table.address, QueueKind.OTHER, ())
        for table in listed
        if table.layout is not None and table_key(table.address) not in keys
    ]
