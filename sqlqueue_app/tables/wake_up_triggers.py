"""The triggers that announce new rows of queue tables: who has them, and making those that are missing. PostgreSQL only."""

from __future__ import annotations

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.databases.ddl import TableKind
from sqlqueue_app.databases.dialect import Dialect
from sqlqueue_app.databases.scripts import PlannedTable
from sqlqueue_app.databases.wake_up import (
    TRIGGER,
    create_wake_up_function,
    create_wake_up_trigger,
    wake_up_channel,
    wake_up_function,
    wake_up_lock,
)
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, fetch_all
from sqlqueue_app.tables.inspection import table_exists
from sqlqueue_app.tables.installation import Finding, FindingKind

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
