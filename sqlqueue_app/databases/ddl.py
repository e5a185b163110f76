"""The DDL of every table sqlqueue knows, for migrations, installer and scripts alike."""

from __future__ import annotations

import enum

from sqlqueue_app.databases.dialect import Dialect
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConfigurationError

LAYOUTS = ("classic", "modern")
ALL_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"
"""What a worker needs: on PostgreSQL, FOR UPDATE asks for UPDATE."""


class TableKind(enum.Enum):
    """What a table is for."""

    QUEUE = "queue"
    DELAYED = "delayed"
    SUBSCRIPTIONS = "subscriptions"


def create_statements(dialect: Dialect, kind: TableKind, address: QueueAddress, layout: str = "classic") -> list[str]:
    """The statements that make the table and its indexes, in order, without values and without a check for existence.

    `layout` counts on SQL Server and for queues only; ConfigurationError for one that is not known.
    """
    table = dialect.qualified(address)
    if kind is TableKind.SUBSCRIPTIONS:
        return [dialect.script("create_subscriptions", table=table)]
    if kind is TableKind.DELAYED:
        return [dialect.script("create_delayed", table=table), _index(dialect, "create_due_index", table, f"{address.table}_Due")]
    if dialect.name != "sqlserver":
        return [dialect.script("create_queue", table=table), create_expires_index(dialect, address)]
    if layout not in LAYOUTS:
        raise ConfigurationError(f"unknown table layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
    return [
        dialect.script(f"{name}_{layout}", table=table)
        for name in ("create_queue", "create_row_version_index", "create_expires_index")
    ]


def create_expires_index(dialect: Dialect, address: QueueAddress, layout: str = "classic") -> str:
    """The statement that makes the index on Expires of a queue table."""
    table = dialect.qualified(address)
    if dialect.name == "sqlserver":
        return dialect.script(f"create_expires_index_{layout}", table=table)
    return _index(dialect, "create_expires_index", table, f"{address.table}_Expires")


def create_written_statement(dialect: Dialect, table: str) -> str:
    """What makes the table of the batches that Spark has written, where it is missing; `table` is its quoted name."""
    # On SQL Server the name stands in a text too, in which a schema may have an apostrophe.
    texts = {"literal": table.replace("'", "''")} if dialect.name == "sqlserver" else {}
    return dialect.script("create_written", table=table, **texts)


def drop_statement(dialect: Dialect, address: QueueAddress) -> str:
    """The statement that drops the table with everything in it."""
    return dialect.script("drop_table", table=dialect.qualified(address))


def grant_statements(dialect: Dialect, kind: TableKind, address: QueueAddress, role: str, rights: str = ALL_RIGHTS) -> list[str]:
    """Gives a role the rights on the table, by default what it needs to send and receive; empty on SQLite, which has no roles."""
    if dialect.name == "sqlite":
        return []
    texts = {"table": dialect.qualified(address), "role": dialect.quote(role), "rights": rights}
    grants = [dialect.script("grant", **texts)]
    if dialect.name == "sqlserver":
        return grants
    schema = address.schema or dialect.default_schema or ""
    if schema != dialect.default_schema:
        # Everybody may use `public`; any other schema is closed until somebody opens it.
        grants.insert(0, dialect.script("grant_schema", schema=dialect.quote(schema), role=texts["role"]))
    if kind is TableKind.QUEUE and "INSERT" in rights:
        sequence = f"{dialect.quote(schema)}.{dialect.quote(address.table + '_seq_seq')}"
        grants.append(dialect.script("grant_sequence", sequence=sequence, role=texts["role"]))
    return grants


def managed_grant_statements(dialect: Dialect, table: str, role: str, rights: str = ALL_RIGHTS) -> list[str]:
    """The grant for a table that `migrate` makes, skipped by the database while the table is missing."""
    if dialect.name == "sqlite":
        return []
    quoted = dialect.quote(table)
    literal = quoted.replace("'", "''")
    return [dialect.script("grant_existing", table=quoted, literal=literal, role=dialect.quote(role), rights=rights)]


def installation_lock(dialect: Dialect, address: QueueAddress) -> str:
    """The name of the lock that installers of the same table wait for, as the transport names it (transport reference 1.4)."""
    # sp_getapplock takes 255 characters; a longer name is cut alike by everyone, which only makes the lock wider.
    return f"{dialect.qualified(address)}_lock"[:255]


def _index(dialect: Dialect, statement: str, table: str, name: str) -> str:
    if dialect.name == "sqlserver":
        return dialect.script(statement, table=table)
    return dialect.script(statement, table=table, index=dialect.quote(name))
