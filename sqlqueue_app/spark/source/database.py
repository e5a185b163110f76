"""Connections of Spark's Python workers, and finding the table of a queue.

Small results are returned as rows, large ones as Arrow batches, with the fastest method of each driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from sqlqueue_app.dialects.dialect import Dialect, DialectName, Rendered, RowRange, TableShape, dialect, layout_of
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError, ConfigurationError, DatabaseError, QueueNotFound
from sqlqueue_app.spark.source.database_url import Database
from sqlqueue_app.spark.source.on_postgresql import OnPostgresql
from sqlqueue_app.spark.source.on_sqlite import OnSqlite
from sqlqueue_app.spark.source.on_sqlserver import OnSqlServer


class Connection(Protocol):
    """A connection, used by one thread. Reading neither waits for row locks nor blocks others."""

    def fetch(self, statement: Rendered, **values: object) -> list[tuple[Any, ...]]:
        """Run a query with a small result."""

    def batches(self, table: str, columns: Iterable[str], rows: RowRange, batch_size: int) -> Iterator[pa.RecordBatch]:
        """Read a range in batches of about `batch_size` rows, fewer if rows are large."""

    def execute(self, sql: str) -> None:
        """Run a statement without a result."""

    def stage(self, address: QueueAddress, qualified: str, rows: Iterable[dict[str, Any]]) -> int:
        """Insert rows into a staging table, committing each chunk; return their number."""

    def transaction(self) -> AbstractContextManager[None]:
        """A context that commits at its end, and rolls back on an error."""

    def close(self) -> None:
        """Close the connection and any open cursor."""


_DRIVERS: Mapping[DialectName, type[OnPostgresql | OnSqlite | OnSqlServer]] = {
    "postgresql": OnPostgresql,
    "sqlite": OnSqlite,
    "sqlserver": OnSqlServer,
}


@contextmanager
def connected(database: Database, doing: str, *, writes: bool = False) -> Iterator[Connection]:
    """A context with a new connection. Converts database errors to ours; `doing` completes "failed to ...".

    Without `writes` the session is read-only where the database supports it. Raises ConfigurationError if the driver is missing.
    """
    driver = _DRIVERS[database.dialect]
    known = dialect(database.dialect)
    # first, because it checks that the driver is installed
    errors = (*driver.errors(), OSError, pa.ArrowException)
    try:
        connection: Connection = driver(database, known, writes=writes)
        try:
            yield connection
        finally:
            connection.close()
    except errors as error:
        kind = known.error_kind(error) or DatabaseError
        text = " ".join(line.strip() for line in database.without_password(str(error)).splitlines()[:3])
        # Without the driver's error, which may contain the password.
        raise kind(f"failed to {doing} ({database.shown}): {text or type(error).__name__}") from None


@dataclass(frozen=True, slots=True)
class SourceTable:
    """The table of a queue: quoted name, the queue columns it has, and all its columns with their types."""

    address: QueueAddress
    qualified: str
    columns: tuple[str, ...]
    shape: tuple[tuple[str, str], ...]


def find_table(connection: Connection, database: Database, queue: str) -> SourceTable:
    """Find a queue by literal table name, else by address.

    Raises QueueNotFound, TableMismatch if the table is not a queue, ConfigurationError for an invalid address.
    """
    known = dialect(database.dialect)
    address, columns = find_columns(connection, database, "queue", queue)
    qualified = known.qualified(address)
    layout_of(known.name, qualified, TableShape(columns, ()))
    held = {name.lower() for name, _ in columns}
    ours = tuple(name for name in known.module.READ_VALUES if name.lower() in held or name in ("RowVersion", "Id"))
    return SourceTable(address, qualified, ours, columns)


def find_columns(
    connection: Connection, database: Database, option: str, text: str
) -> tuple[QueueAddress, tuple[tuple[str, str], ...]]:
    """Find the table that an option names, with its columns and types. Raises QueueNotFound."""
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
    """Possible meanings of the text: a table name, an address in this database's form, or in SQL Server's form."""
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
