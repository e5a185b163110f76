"""Creates missing tables: idempotent, safe for concurrent installers, and requiring only create rights."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error as DjangoDatabaseError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.dialects.dialect import Dialect, QueueLayout, TableShape, check_delayed, check_subscriptions, layout_of
from sqlqueue_app.dialects.schema import (
    PlannedTable,
    TableKind,
    create_expires_index,
    create_statements,
    drop_statement,
    installation_lock,
)
from sqlqueue_app.messages.addresses import AddressBook, QueueAddress, check_name
from sqlqueue_app.messages.errors import QueueNotFound, TableMismatch
from sqlqueue_app.tables.connections import connection_of, cursor_with_numbers, database_errors, dialect_of_connection, table_exists
from sqlqueue_app.tables.listing import shape_of_table
from sqlqueue_app.tables.queue import forget_tables


class FindingKind(enum.Enum):
    """Problems of a table; only a missing table or foreign columns stop a worker."""

    MISSING = "missing"
    MISMATCH = "mismatch"
    NO_EXPIRES_INDEX = "no index on Expires"
    NON_UNICODE_HEADERS = "non-Unicode Headers"
    NO_WAKE_UP_TRIGGER = "no wake-up trigger"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a table, as text, with the SQL that fixes it ('' if there is none)."""

    kind: FindingKind
    table: PlannedTable
    qualified: str
    text: str
    sql: str


def install_tables(alias: str, tables: list[PlannedTable], *, layout: str = "classic") -> list[PlannedTable]:
    """Create missing tables and return those; each in its own transaction, so that created tables remain after an error.

    Never alters existing tables. Raises database errors as our types: QueueNotFound for a missing schema.
    """
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    made = []
    for table in tables:
        try:
            if _install(connection, dialect, table, layout):
                made.append(table)
        except QueueNotFound as error:
            # The only thing that a new table can lack is its schema.
            schema = dialect.quote(table.address.schema or "")
            text = f"failed to install {dialect.qualified(table.address)}: schema {schema} does not exist: create it first"
            raise QueueNotFound(f"{text} (CREATE SCHEMA {schema}), or change the setting that names it") from error
    if made:
        forget_tables()
    return made


def _install(connection: BaseDatabaseWrapper, dialect: Dialect, table: PlannedTable, layout: str) -> bool:
    qualified = dialect.qualified(table.address)
    with database_errors(dialect, f"install {qualified}"):
        if table_exists(connection, dialect, table.address):
            return False
        try:
            with _write_transaction(connection):
                return _install_locked(connection, dialect, table, layout)
        except DjangoDatabaseError:
            # Installers of NServiceBus do not take our lock on PostgreSQL, and may have created the table first.
            if table_exists(connection, dialect, table.address):
                return False
            raise


@contextmanager
def _write_transaction(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Open a transaction that waits for other writers: a deferred one of SQLite would read, then fail on its write."""
    known: Any = connection
    mode = getattr(known, "transaction_mode", None)
    if connection.vendor == "sqlite":
        known.transaction_mode = "IMMEDIATE"
    try:
        with transaction.atomic(using=connection.alias):
            yield
    finally:
        if connection.vendor == "sqlite":
            known.transaction_mode = mode


def _install_locked(connection: BaseDatabaseWrapper, dialect: Dialect, table: PlannedTable, layout: str) -> bool:
    if dialect.name != "sqlite":
        lock = dialect.statement("lock_installation")
        with cursor_with_numbers(connection) as cursor:
            cursor.execute(lock.sql, lock.bind({"resource": installation_lock(dialect, table.address)}))
    if table_exists(connection, dialect, table.address):
        return False
    with cursor_with_numbers(connection) as cursor:
        for statement in create_statements(dialect, table.kind, table.address, layout):
            cursor.execute(statement)
    return True


def drop_queue(alias: str, address: QueueAddress, *, only_empty: bool = False) -> bool:
    """Drop the table of a queue if it exists, after receives in progress. TableMismatch if it is not a queue.

    With `only_empty` keeps a table with rows and returns False. Locks it before the check; LockTimeout if it is in use.
    """
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    qualified = dialect.qualified(address)
    with database_errors(dialect, f"drop {qualified}"):
        shape = shape_of_table(connection, dialect, address)
        if shape is None:
            return True
        layout_of(dialect.name, qualified, shape)
        with _write_transaction(connection), cursor_with_numbers(connection) as cursor:
            if only_empty:
                if dialect.name == "postgresql":
                    cursor.execute(dialect.script("lock_table", table=qualified))
                cursor.execute(dialect.script("any_row", table=qualified))
                if cursor.fetchone() is not None:
                    return False
            cursor.execute(drop_statement(dialect, address))
    forget_tables()
    return True


def inspect_tables(alias: str, tables: list[PlannedTable], *, layout: str = "classic") -> list[Finding]:
    """The problems of the tables; empty if there are none. Only reads."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    return [finding for table in tables for finding in _inspect(connection, dialect, table, layout)]


def _inspect(connection: BaseDatabaseWrapper, dialect: Dialect, table: PlannedTable, layout: str) -> list[Finding]:
    qualified = dialect.qualified(table.address)
    with database_errors(dialect, f"inspect {qualified}"):
        shape = shape_of_table(connection, dialect, table.address)
    if shape is None:
        sql = ";\n".join(create_statements(dialect, table.kind, table.address, layout)) + ";"
        return [Finding(FindingKind.MISSING, table, qualified, f"table {qualified} does not exist", sql)]
    try:
        found = _layout_found(dialect, table, qualified, shape)
    except TableMismatch as error:
        return [Finding(FindingKind.MISMATCH, table, qualified, str(error), "")]
    return [] if found is None else findings_of_layout(dialect, table, found, layout)


def findings_of_layout(dialect: Dialect, table: PlannedTable, found: QueueLayout, layout: str) -> list[Finding]:
    """Possible improvements of a working queue table. Queries no database."""
    qualified = dialect.qualified(table.address)
    findings = []
    if not found.expires_index:
        text = f"table {qualified} has no index on Expires: adding it speeds up purging and counting of expired messages"
        sql = create_expires_index(dialect, table.address, layout) + ";"
        findings.append(Finding(FindingKind.NO_EXPIRES_INDEX, table, qualified, text, sql))
    if not found.unicode_headers:
        text = (
            f"table {qualified} stores Headers in a non-Unicode column: headers of sqlqueue are ASCII, but those of other senders "
            "may lose characters"
        )
        sql = f"ALTER TABLE {qualified} ALTER COLUMN [Headers] [nvarchar](max) NOT NULL;"
        findings.append(Finding(FindingKind.NON_UNICODE_HEADERS, table, qualified, text, sql))
    return findings


def _layout_found(dialect: Dialect, table: PlannedTable, qualified: str, shape: TableShape) -> QueueLayout | None:
    if table.kind is TableKind.DELAYED:
        check_delayed(qualified, shape)
        return None
    if table.kind is TableKind.SUBSCRIPTIONS:
        check_subscriptions(qualified, shape)
        return None
    return layout_of(dialect.name, qualified, shape)


SUBSCRIPTION_TABLE = "SubscriptionRouting"
DELAYED_SUFFIX = ".Delayed"


def delayed_address(book: AddressBook, endpoint: str) -> QueueAddress:
    """The table of an endpoint's delayed messages, next to its queue (docs/internals/wire.md#delayed-messages)."""
    queue = book.of_queue(endpoint)
    return book.resolve(QueueAddress(endpoint + DELAYED_SUFFIX, queue.schema, queue.catalog, form=queue.form))


def subscription_address(book: AddressBook) -> QueueAddress:
    """The subscription table that all endpoints share (docs/internals/wire.md#subscription-table)."""
    return book.of_queue(SUBSCRIPTION_TABLE)


def check_address(address: QueueAddress, dialect: str) -> None:
    """Raise AddressError if the database does not support the name of the table, its schema or its catalog."""
    check_name(address.table, dialect)
    for part in ("schema", "catalog"):
        value: str | None = getattr(address, part)
        if value is not None:
            check_name(value, dialect, part=part)


def migrate_command(alias: str) -> str:
    """The command that creates the app's own tables in this database. Without `--database`, it migrates only `default`."""
    return "migrate" if alias == DEFAULT_DB_ALIAS else f"migrate --database {alias}"
