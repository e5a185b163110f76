"""Which schema and catalog a queue is in: the address book of one database.

The order, for schema and catalog alike (transport reference §3.3): the setting for the queue, the setting for the
endpoint where a message is routed to one, the address, the default, and for schemas at last ``dbo`` or ``public``.
Look-ups are exact, case-sensitive, by the table part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.messages.identifiers import is_blank

_LAST_SCHEMA: Final = {"sqlserver": "dbo", "postgresql": "public", "sqlite": None}


@dataclass(frozen=True, slots=True)
class AddressBook:
    """Fills in the schema and the catalog of queue addresses, by settings.

    ``dialect`` is ``sqlserver``, ``postgresql`` or ``sqlite``; only SQL Server has catalogs, SQLite has no schemas
    either, and settings for what a database does not have are not looked at. Without any catalog known (no default), the
    catalog of an address stays ``None`` and its names have two parts. Raises :class:`ConfigurationError` for another
    dialect. Resolving what is resolved changes nothing.

    ``cuts_received``: addresses in received messages are read as transports 1.x and 2.x read them.
    """

    dialect: str
    default_schema: str | None = None
    default_catalog: str | None = None
    schema_for_queue: Mapping[str, str] = field(default_factory=dict)
    schema_for_endpoint: Mapping[str, str] = field(default_factory=dict)
    catalog_for_queue: Mapping[str, str] = field(default_factory=dict)
    catalog_for_endpoint: Mapping[str, str] = field(default_factory=dict)
    cuts_received: bool = False

    def __post_init__(self) -> None:
        if self.dialect not in _LAST_SCHEMA:
            raise ConfigurationError(f"unknown dialect {self.dialect!r}; expected one of {', '.join(_LAST_SCHEMA)}")

    def resolve(self, address: QueueAddress, endpoint: str | None = None) -> QueueAddress:
        """The address in this database's form with all its parts; ``endpoint`` where the message is routed to one."""
        table = address.table
        schema = catalog = None
        if self.dialect != "sqlite":
            schema = _first(
                self.schema_for_queue.get(table),
                self.schema_for_endpoint.get(endpoint) if endpoint is not None else None,
                address.schema,
                self.default_schema,
                _LAST_SCHEMA[self.dialect],
            )
        if self.dialect == "sqlserver":
            catalog = _first(
                self.catalog_for_queue.get(table),
                self.catalog_for_endpoint.get(endpoint) if endpoint is not None else None,
                address.catalog,
                self.default_catalog,
            )
        return QueueAddress(table, schema, catalog, self.dialect)

    def parse(self, text: str) -> QueueAddress:
        """The queue that an address text means here, resolved; raises :class:`AddressError` for text that is none."""
        return self.resolve(QueueAddress.parse(text, self.dialect))

    def received(self, text: str) -> QueueAddress:
        """The queue that an address in a received message means here, resolved; raises :class:`AddressError` for text that is none.

        With ``cuts_received`` it is cut at the first ``@``: what follows is a machine, or a schema that versions 1 and 2 leave to
        their settings (transport reference §3.5). Text in double quotes is none of theirs, and read as ever.
        """
        cuts = self.cuts_received and not text.startswith('"')
        return self.resolve(QueueAddress.parse(text, "legacy" if cuts else self.dialect))

    def of_queue(self, name: str) -> QueueAddress:
        """The queue of this literal name, resolved: the name is never parsed, so dots and brackets belong to it."""
        return self.resolve(QueueAddress(name, form=self.dialect))

    def of_endpoint(self, name: str) -> QueueAddress:
        """The primary queue of an endpoint, resolved with the endpoint's own settings; the name is never parsed."""
        return self.resolve(QueueAddress(name, form=self.dialect), name)

    def canonical(self, address: QueueAddress) -> str:
        """The text that goes into ReplyToAddress, FailedQ, ForwardDestination and the subscription table.

        On SQLite the bare name of the table. Raises :class:`AddressError` for a table whose name no reader could read.
        """
        return self.resolve(address).full(None)


def _first(*values: str | None) -> str | None:
    return next((value for value in values if not is_blank(value)), None)
