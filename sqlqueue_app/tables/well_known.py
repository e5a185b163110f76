"""Tables whose names follow from an endpoint's name, or are the same everywhere; whether a database can hold a name."""

from __future__ import annotations

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.identifiers import check_name
from sqlqueue_app.messages.resolution import AddressBook

SUBSCRIPTION_TABLE = "SubscriptionRouting"
DELAYED_SUFFIX = ".Delayed"


def delayed_address(book: AddressBook, endpoint: str) -> QueueAddress:
    """The table of an endpoint's delayed messages: in the schema and catalog of its queue (transport reference 7.2)."""
    queue = book.of_queue(endpoint)
    return book.resolve(QueueAddress(endpoint + DELAYED_SUFFIX, queue.schema, queue.catalog, form=queue.form))


def subscription_address(book: AddressBook) -> QueueAddress:
    """The subscription table that all endpoints share (transport reference 8.2)."""
    return book.of_queue(SUBSCRIPTION_TABLE)


def check_address(address: QueueAddress, dialect: str) -> None:
    """Raise AddressError if the database could not hold the table, its schema or its catalog under their names."""
    check_name(address.table, dialect)
    for part in ("schema", "catalog"):
        value: str | None = getattr(address, part)
        if value is not None:
            check_name(value, dialect, part=part)
