"""Queues that the headers of a received message may make us send to: the setting ALLOWED_DESTINATIONS."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError, ConfigurationError
from sqlqueue_app.messages.resolution import AddressBook

_ANY = "*"


def allowed_destinations(patterns: tuple[str, ...] | None, book: AddressBook) -> AllowedDestinations | None:
    """What the setting allows, in the database of the book; None: any queue."""
    return None if patterns is None else AllowedDestinations(patterns, book)


@dataclass(frozen=True, slots=True)
class AllowedDestinations:
    """Patterns of queues in one database.

    A plain name, dots and all, is that queue where the settings have it: in the default schema, or the one that SCHEMA_FOR_QUEUE or
    SCHEMA_FOR_ENDPOINT names. Another schema or catalog is reached only by a pattern that is written as an address and names it:
    else who sends a message could choose among all queues of that name. `*` stands for any characters, the rest for itself, and its
    case counts.
    """

    patterns: tuple[str, ...]
    book: AddressBook

    def has(self, destination: QueueAddress) -> bool:
        """Whether messages may go to the queue, an address that the book has resolved."""
        return any(self._names(each, destination) or self._addresses(each, destination) for each in self.patterns)

    def check(self, destination: QueueAddress, *, message_id: str, what: str) -> None:
        """ConfigurationError if the setting does not have the queue that the message asks `what` to."""
        if not self.has(destination):
            raise ConfigurationError(
                f"message {message_id!r} asks for {what} to {self.shown(destination)}, "
                "which SQLQUEUE['ALLOWED_DESTINATIONS'] does not allow"
            )

    def shown(self, destination: QueueAddress) -> str:
        """The queue as an entry of the setting would have to name it."""
        at_home = destination in self._homes(destination.table)
        return repr(destination.table if at_home else str(destination))

    def _homes(self, table: str) -> tuple[QueueAddress, ...]:
        return self.book.of_queue(table), self.book.of_endpoint(table)

    def _names(self, pattern: str, destination: QueueAddress) -> bool:
        return _matches(pattern, destination.table) and destination in self._homes(destination.table)

    def _addresses(self, pattern: str, destination: QueueAddress) -> bool:
        try:
            read = QueueAddress.parse(pattern, self.book.dialect)
        except AddressError:
            return False
        if read.schema is None and read.catalog is None:
            return _matches(read.table, destination.table) and destination in self._homes(destination.table)
        if read.schema is not None and _ANY in read.schema and _is_bare(pattern, self.book.dialect):
            return False  # such as *.Billing on PostgreSQL, which means names
        whole = self.book.resolve(read)
        # A setting for the queue has settled its schema already, whatever the address said.
        schema = read.schema or whole.schema
        return (
            _matches(read.table, destination.table)
            and _matches(schema, destination.schema)
            and _matches(read.catalog or whole.catalog, destination.catalog)
        )


def _is_bare(pattern: str, dialect: str) -> bool:
    return dialect == "postgresql" and '"' not in pattern


def _matches(pattern: str | None, value: str | None) -> bool:
    if pattern is None or value is None:
        return pattern is None and value is None
    return re.fullmatch(".*".join(map(re.escape, pattern.split(_ANY))), value, re.DOTALL) is not None
