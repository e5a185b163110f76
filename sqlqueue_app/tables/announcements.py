"""Announcements of new rows: queue tables whose inserts wake idle receivers with the commit. PostgreSQL only."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from weakref import WeakKeyDictionary

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.dialects.dialect import Dialect, Rendered
from sqlqueue_app.dialects.schema import (
    TRIGGER,
    PlannedTable,
    TableKind,
    announcing,
    channel_literal,
    create_wake_up_function,
    create_wake_up_trigger,
    wake_up_channel,
    wake_up_function,
    wake_up_lock,
)
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, fetch_all
from sqlqueue_app.tables.installation import Finding, FindingKind
from sqlqueue_app.tables.listing import table_exists
from sqlqueue_app.tables.queue import COPY_FROM_ROWS, QueueTable, all_or_none, can_copy, queue_table
from sqlqueue_app.tables.rows import NewRow


class AnnouncingQueueTable(QueueTable):
    """Each statement that inserts also notifies: in the transaction of the rows and without a round trip of its own.

    The server keeps one of the notifications of a transaction that are alike, whether we or a trigger made them, and drops them
    on a rollback.
    """

    def insert(self, rows: Sequence[NewRow]) -> None:
        connection = self.connection()
        if len(rows) < COPY_FROM_ROWS or not can_copy(connection):
            super().insert(rows)
            return
        with nullcontext() if connection.in_atomic_block else all_or_none(self.alias):
            super().insert(rows)
            with self.errors(f"announce messages in {self.qualified}"), connection.cursor() as cursor:
                cursor.execute(self.dialect.script("notify", channel=channel_literal(self.qualified)))

    def _make_send_statement(self, rows: int) -> Rendered:
        return announcing(self.dialect, super()._make_send_statement(rows), self.qualified)


_tables: WeakKeyDictionary[QueueTable, AnnouncingQueueTable] = WeakKeyDictionary()
_lock = threading.Lock()


def announcing_table(alias: str, address: QueueAddress) -> QueueTable:
    """As `queue_table`, but what is inserted is announced where the database can do that."""
    shared = queue_table(alias, address)
    if shared.dialect.name != "postgresql":
        return shared
    with _lock:
        # It lives as long as the shared one, which is forgotten when tables are made or settings change.
        table = _tables.get(shared)
        if table is None:
            table = _tables[shared] = AnnouncingQueueTable(alias, address)
    return table


# Whoever writes into the table waits behind us while we wait, so not for long.
LOCK_SECONDS = 10.0


def install_wake_up_triggers(alias: str, tables: list[PlannedTable]) -> list[PlannedTable]:
    """Add the trigger to the tables that lack it, and return those; each in a transaction of its own.

    Adding one waits for every transaction that has written into the table, and whoever writes meanwhile waits too: after
    LOCK_SECONDS it gives up with LockTimeout. QueueNotFound if a table is missing. Nothing else of a table is altered.
    """
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    return [table for table in tables if _install(connection, dialect, table.address)]


def _install(connection: BaseDatabaseWrapper, dialect: Dialect, address: QueueAddress) -> bool:
    with database_errors(dialect, f"add the wake-up trigger to {dialect.qualified(address)}"):
        if _has_trigger(connection, dialect, address):
            return False
        function = wake_up_function(dialect, address)
        lock = dialect.statement("lock_installation")
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(lock.sql, lock.bind({"resource": wake_up_lock(dialect, address)}))
            if _has_trigger(connection, dialect, address):
                return False
            if not fetch_all(connection, dialect.statement("wake_up_function_exists"), function=f"{function}()")[0][0]:
                cursor.execute(create_wake_up_function(dialect, address))
            cursor.execute(dialect.script("limit_lock_wait", milliseconds=str(int(LOCK_SECONDS * 1000))))
            cursor.execute(create_wake_up_trigger(dialect, address))
    return True


def inspect_wake_up_triggers(alias: str, tables: list[PlannedTable]) -> list[Finding]:
    """The tables that are there but lack the trigger, each with the SQL that adds it. Reads only."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    found = []
    for table in tables:
        qualified = dialect.qualified(table.address)
        with database_errors(dialect, f"look for the wake-up trigger of {qualified}"):
            lacks = table_exists(connection, dialect, table.address) and not _has_trigger(connection, dialect, table.address)
            if lacks:
                found.append(_missing(connection, dialect, table, qualified))
    return found


def _missing(connection: BaseDatabaseWrapper, dialect: Dialect, table: PlannedTable, qualified: str) -> Finding:
    statements = [create_wake_up_trigger(dialect, table.address)]
    function = wake_up_function(dialect, table.address)
    if not fetch_all(connection, dialect.statement("wake_up_function_exists"), function=f"{function}()")[0][0]:
        statements.insert(0, create_wake_up_function(dialect, table.address))
    consequence = (
        "any worker looks into it each second"
        if table.kind is TableKind.DELAYED
        else "WAKE_UP is on, but only senders whose settings have it on wake the receivers, and those go on polling"
    )
    text = f"table {qualified} has no wake-up trigger: {consequence}"
    return Finding(FindingKind.NO_WAKE_UP_TRIGGER, table, qualified, text, ";\n".join(statements) + ";")


def _has_trigger(connection: BaseDatabaseWrapper, dialect: Dialect, address: QueueAddress) -> bool:
    qualified = dialect.qualified(address)
    statement = dialect.statement("wake_up_trigger_exists")
    values = {"table": qualified, "trigger": TRIGGER, "channel": wake_up_channel(qualified)}
    return bool(fetch_all(connection, statement, **values)[0][0])
