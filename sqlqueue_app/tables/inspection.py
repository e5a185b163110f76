"""What the database says of a table: whether it exists, its columns, its indexes. Reads only; needs no right on the rows."""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.databases.dialect import Dialect
from sqlqueue_app.databases.layouts import TableShape
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.tables.connections import fetch_all


def shape_of_table(connection: BaseDatabaseWrapper, dialect: Dialect, address: QueueAddress) -> TableShape | None:
    """Columns and indexes of the table, or None if there is none. The address has all its parts filled in."""
    texts: dict[str, str] = {}
    values: dict[str, object] = {"table": dialect.qualified(address)}
    if dialect.name == "sqlite":
        values = {"name": address.table}
    elif dialect.name == "sqlserver":
        texts = {"catalog": f"{dialect.quote(address.catalog)}." if address.catalog else ""}
    columns = fetch_all(connection, dialect.statement("columns", **texts), **values)
    if not columns:
        return None
    indexes = fetch_all(connection, dialect.statement("indexes", **texts), **values)
    return TableShape(tuple((str(name), str(kind)) for name, kind in columns), tuple((str(a), str(b)) for a, b in indexes))


def table_exists(connection: BaseDatabaseWrapper, dialect: Dialect, address: QueueAddress) -> bool:
    """Whether there is a table of this address."""
    statement = dialect.statement("table_exists")
    values = {"name": address.table} if dialect.name == "sqlite" else {"table": dialect.qualified(address)}
    return bool(fetch_all(connection, statement, **values)[0][0])


def current_catalog(connection: BaseDatabaseWrapper) -> str | None:
    """The catalog of the connection on SQL Server; None where there are none."""
    if connection.vendor != "microsoft":
        return None
    name = connection.settings_dict.get("NAME")
    return str(name) if name else None
