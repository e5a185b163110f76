"""Finding the table of a queue: by its address, and with the columns that it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlqueue_app.databases.dialect import Dialect, dialect
from sqlqueue_app.databases.layouts import TableShape, layout_of
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError, ConfigurationError, QueueNotFound
from sqlqueue_app.spark.source.connections import Connection
from sqlqueue_app.spark.source.urls import Database


@dataclass(frozen=True, slots=True)
class QueueTable:
    """The table of a queue: its quoted name, which of our columns it has, and all that it has with their types."""

    address: QueueAddress
    qualified: str
    columns: tuple[str, ...]
    shape: tuple[tuple[str, str], ...]


def find_table(connection: Connection, database: Database, queue: str) -> QueueTable:
    """The table that is named so to the letter, else the one of that address.

    QueueNotFound if there is none, TableMismatch if it is no queue, ConfigurationError for a text that is no address.
    """
    known = dialect(database.dialect)
    address, columns = find_columns(connection, database, "queue", queue)
    qualified = known.qualified(address)
    layout_of(known.name, qualified, TableShape(columns, ()))
    held = {name.lower() for name, _ in columns}
    ours = tuple(name for name in known.module.READ_VALUES if name.lower() in held or name in ("RowVersion", "Id"))
    return QueueTable(address, qualified, ours, columns)


def find_columns(
    connection: Connection, database: Database, option: str, text: str
) -> tuple[QueueAddress, tuple[tuple[str, str], ...]]:
    """The table that an option names, and its columns with their types; QueueNotFound if there is none."""
    known = dialect(database.dialect)
    tried = []
    for address in _addresses(option, text, known):
        columns = _columns(connection, known, address)
        if columns:
            return address, columns
        tried.append(known.qualified(address))
    tables = " or ".join(dict.fromkeys(tried))
    raise QueueNotFound(f"the option {option} is {text!r}, and there is no table {tables} in {database.shown}")


def _addresses(option: str, queue: str, known: Dialect) -> Iterator[QueueAddress]:
    """What the text may mean: a table of that name, an address as this database writes it, one as SQL Server writes it."""
    forms = [known.name, *(["sqlserver"] if "@[" in queue and known.name == "postgresql" else [])]
    try:
        yield QueueAddress(queue, known.default_schema, form=known.name)
        for form in forms:
            address = QueueAddress.parse(queue, form)
            schema = None if known.name == "sqlite" else address.schema or known.default_schema
            catalog = address.catalog if known.name == "sqlserver" else None
            yield replace(address, schema=schema, catalog=catalog, form=known.name)
    except AddressError as error:
        raise ConfigurationError(f"the option {option} is {queue!r}: {error}") from None


def _columns(connection: Connection, known: Dialect, address: QueueAddress) -> tuple[tuple[str, str], ...]:
    texts: dict[str, str] = {}
    values: dict[str, object] = {"table": known.qualified(address)}
    if known.name == "sqlite":
        values = {"name": address.table}
    elif known.name == "sqlserver":
        texts = {"catalog": f"{known.quote(address.catalog)}." if address.catalog else ""}
    found = connection.fetch(known.statement("columns", **texts), **values)
    return tuple((str(name), str(kind)) for name, kind in found)
