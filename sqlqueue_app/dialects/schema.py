"""DDL of every sqlqueue table, for migrations, the installer and the scripts that a DBA runs, and the wake-up triggers of
PostgreSQL.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sqlqueue_app.dialects.dialect import Dialect
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError, ConfigurationError

LAYOUTS = ("classic", "modern")
ALL_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"
"""The rights that a worker needs: on PostgreSQL, FOR UPDATE requires UPDATE."""


class TableKind(enum.Enum):
    """The purpose of a table."""

    QUEUE = "queue"
    DELAYED = "delayed"
    SUBSCRIPTIONS = "subscriptions"


def create_statements(dialect: Dialect, kind: TableKind, address: QueueAddress, layout: str = "classic") -> list[str]:
    """The statements that create the table and its indexes, in order, without values and without a check for existence.

    Tables of messages on PostgreSQL get the wake-up trigger. `layout` applies to queues on SQL Server; ConfigurationError for an
    unknown layout.
    """
    table = dialect.qualified(address)
    if kind is TableKind.SUBSCRIPTIONS:
        return [dialect.script("create_subscriptions", table=table)]
    woken = create_wake_up_trigger(dialect, address) if dialect.name == "postgresql" else []
    if kind is TableKind.DELAYED:
        index = _index(dialect, "create_due_index", table, f"{address.table}_Due")
        return [dialect.script("create_delayed", table=table), index, *woken]
    if dialect.name != "sqlserver":
        return [dialect.script("create_queue", table=table), create_expires_index(dialect, address), *woken]
    if layout not in LAYOUTS:
        raise ConfigurationError(f"unknown table layout {layout!r}: expected one of {', '.join(LAYOUTS)}")
    return [
        dialect.script(f"{name}_{layout}", table=table)
        for name in ("create_queue", "create_row_version_index", "create_expires_index")
    ]


def create_expires_index(dialect: Dialect, address: QueueAddress, layout: str = "classic") -> str:
    """The statement that creates the index on Expires of a queue table."""
    table = dialect.qualified(address)
    if dialect.name == "sqlserver":
        return dialect.script(f"create_expires_index_{layout}", table=table)
    return _index(dialect, "create_expires_index", table, f"{address.table}_Expires")


def create_written_statement(dialect: Dialect, table: str) -> str:
    """Create the table of Spark's committed batches if it is missing; `table` is its quoted name."""
    # On SQL Server the name also occurs in a string literal, and may contain an apostrophe.
    texts = {"literal": table.replace("'", "''")} if dialect.name == "sqlserver" else {}
    return dialect.script("create_written", table=table, **texts)


def drop_statement(dialect: Dialect, address: QueueAddress) -> str:
    """The statement that drops the table."""
    return dialect.script("drop_table", table=dialect.qualified(address))


def grant_statements(dialect: Dialect, kind: TableKind, address: QueueAddress, role: str, rights: str = ALL_RIGHTS) -> list[str]:
    """Grant a role rights on the table, by default what a worker needs; empty on SQLite, which has no roles."""
    if dialect.name == "sqlite":
        return []
    texts = {"table": dialect.qualified(address), "role": dialect.quote(role), "rights": rights}
    grants = [dialect.script("grant", **texts)]
    if dialect.name == "sqlserver":
        return grants
    schema = address.schema or dialect.default_schema or ""
    if schema != dialect.default_schema:
        # Every role may use `public`; any other schema needs a grant.
        grants.insert(0, dialect.script("grant_schema", schema=dialect.quote(schema), role=texts["role"]))
    if kind is TableKind.QUEUE and "INSERT" in rights:
        sequence = f"{dialect.quote(schema)}.{dialect.quote(address.table + '_seq_seq')}"
        grants.append(dialect.script("grant_sequence", sequence=sequence, role=texts["role"]))
    return grants


def managed_grant_statements(dialect: Dialect, table: str, role: str, rights: str = ALL_RIGHTS) -> list[str]:
    """The grant for a table of `migrate`; the database skips it while the table is missing."""
    if dialect.name == "sqlite":
        return []
    quoted = dialect.quote(table)
    literal = quoted.replace("'", "''")
    return [dialect.script("grant_existing", table=quoted, literal=literal, role=dialect.quote(role), rights=rights)]


def installation_lock(dialect: Dialect, address: QueueAddress) -> str:
    """The name of the lock that installers of one table take, the same as that of the transport."""
    # sp_getapplock takes 255 characters; cutting a longer name only makes the lock wider.
    return f"{dialect.qualified(address)}_lock"[:255]


def _index(dialect: Dialect, statement: str, table: str, name: str) -> str:
    if dialect.name == "sqlserver":
        return dialect.script(statement, table=table)
    if dialect.name == "sqlite" and name.lower().startswith("sqlite_"):
        name = f"Index_{name}"  # the start of names that SQLite reserves; for tables it rejects only those
    return dialect.script(statement, table=table, index=dialect.quote(name))


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table that should exist."""

    kind: TableKind
    address: QueueAddress


@dataclass(frozen=True, slots=True)
class Grants:
    """Rights of a role on each table, as SQL lists them, "" for none; by default all that a worker needs."""

    role: str
    on_table: Callable[[PlannedTable], str] = lambda _table: ALL_RIGHTS
    on_managed: Callable[[str], str] = lambda _table: ALL_RIGHTS
    others: tuple[PlannedTable, ...] = ()
    """Tables of other systems, which the script does not create."""


def installation_script(
    dialect: Dialect,
    tables: Iterable[PlannedTable],
    *,
    layout: str,
    grants: Grants | None,
    managed: Iterable[str],
    woken: Iterable[PlannedTable] = (),
) -> str:
    """A script that creates missing tables and grants rights; safe to run again; ends with a line break.

    `managed` are the tables of `migrate`, which get grants only. The tables `woken` (PostgreSQL) get the wake-up trigger, new or
    not. AddressError for a name with a line break.
    """
    blocks = [_block(dialect, table, layout, grants) for table in tables]
    blocks += [_wake_up_block(dialect, table.address) for table in woken]
    if grants is not None:
        blocks += [_block_of_other(dialect, table, grants) for table in grants.others]
    given = [] if grants is None else _managed_grants(dialect, managed, grants)
    if given:
        blocks.append("\n".join(["-- tables made by migrate", *_ended(dialect, given)]) + "\n")
    return "\n".join(blocks)


def _managed_grants(dialect: Dialect, tables: Iterable[str], grants: Grants) -> list[str]:
    rights = {table: grants.on_managed(table) for table in tables}
    return [
        each for table in rights if rights[table] for each in managed_grant_statements(dialect, table, grants.role, rights[table])
    ]


def _block(dialect: Dialect, table: PlannedTable, layout: str, grants: Grants | None) -> str:
    qualified = _one_line(dialect.qualified(table.address))
    create = create_statements(dialect, table.kind, table.address, layout)
    given = [] if grants is None else _grants(dialect, table, grants)
    lines = [f"-- {table.kind.value}: {qualified}"]
    if dialect.name == "sqlite":
        lines += [f"{_if_missing(statement)};" for statement in create]
    else:
        literal = qualified.replace("'", "''")
        body = "\n".join(f"{statement};" for statement in create)
        lines += _GUARDS[dialect.name](literal, body)
    return "\n".join([*lines, *_ended(dialect, given)]) + "\n"


def _block_of_other(dialect: Dialect, table: PlannedTable, grants: Grants) -> str:
    # Without a check for existence: the error then names a table that the settings misspell.
    given = _ended(dialect, _grants(dialect, table, grants))
    return "\n".join([f"-- {table.kind.value} of another system: {_one_line(dialect.qualified(table.address))}", *given]) + "\n"


def _grants(dialect: Dialect, table: PlannedTable, grants: Grants) -> list[str]:
    rights = grants.on_table(table)
    return grant_statements(dialect, table.kind, table.address, grants.role, rights) if rights else []


def _wake_up_block(dialect: Dialect, address: QueueAddress) -> str:
    made = _ended(dialect, create_wake_up_trigger(dialect, address))
    return "\n".join([f"-- wake-up trigger: {_one_line(dialect.qualified(address))}", *made]) + "\n"


def _sqlserver_guard(literal: str, body: str) -> list[str]:
    return [f"IF OBJECT_ID(N'{literal}', N'U') IS NULL", "BEGIN", body, "END", "GO"]


def _postgresql_guard(literal: str, body: str) -> list[str]:
    tag = "$sqlqueue$"
    while tag in body or tag in literal:
        tag = f"{tag[:-1]}_$"
    return [f"DO {tag} BEGIN", f"IF to_regclass('{literal}') IS NULL THEN", body, "END IF;", f"END {tag};"]


_GUARDS: Mapping[str, Callable[[str, str], list[str]]] = {"sqlserver": _sqlserver_guard, "postgresql": _postgresql_guard}


def _ended(dialect: Dialect, statements: list[str]) -> list[str]:
    after = ["GO"] if dialect.name == "sqlserver" else []
    return [line for statement in statements for line in (f"{statement};", *after)]


def _if_missing(statement: str) -> str:
    for kind in ("TABLE", "INDEX"):
        if statement.startswith(start := f"CREATE {kind} "):
            return f"{start}IF NOT EXISTS {statement.removeprefix(start)}"
    return statement


def _one_line(name: str) -> str:
    # Script tools split batches at GO lines, even inside a quoted name.
    if len(name.splitlines()) > 1:
        raise AddressError(f"the table name {name!r} has a line break: a script cannot hold it; install it with sqlqueue_install")
    return name


# One function per schema.
TRIGGER = "sqlqueue_wake_up"
FUNCTION = "sqlqueue_wake_up"
_CHANNEL_PREFIX = "sqlqueue_"
_HASH_CHARACTERS = 32


def wake_up_channel(qualified: str) -> str:
    """The channel of a table by its quoted `"schema"."table"`: 41 characters of `[a-z0-9_]`, of the 63 bytes that PostgreSQL
    allows.

    A hash, because names can be longer and contain characters that need quoting. Notifications stay inside their database.
    """
    return _CHANNEL_PREFIX + hashlib.sha256(qualified.encode()).hexdigest()[:_HASH_CHARACTERS]


@dataclass(frozen=True, slots=True)
class WakeUpLocks:
    """The keys of the two advisory locks of a channel, halves of its hash (docs/internals/performance.md#announcements)."""

    requested: int
    """Held, shared, by the sessions of receivers that request announcements."""
    sending: int
    """Held, shared, by each transaction that has sent, from before it checks `requested` until its end."""


def wake_up_locks(channel: str) -> WakeUpLocks:
    """The locks of a channel."""
    key = bytes.fromhex(channel.removeprefix(_CHANNEL_PREFIX))
    half = len(key) // 2
    return WakeUpLocks(int.from_bytes(key[:half], signed=True), int.from_bytes(key[half:], signed=True))


def create_wake_up_trigger(dialect: Dialect, address: QueueAddress) -> list[str]:
    """The statements that create or replace the trigger, and its function if that is missing."""
    table = dialect.qualified(address)
    function = f"{dialect.quote(address.schema or dialect.default_schema or '')}.{dialect.quote(FUNCTION)}"
    literal = "'" + f"{function}()".replace("'", "''") + "'"
    channel = wake_up_channel(table)
    locks = wake_up_locks(channel)
    return [
        dialect.script("create_wake_up_function", function=function, literal=literal),
        dialect.script(
            "create_wake_up_trigger",
            trigger=dialect.quote(TRIGGER),
            table=table,
            function=function,
            channel=f"'{channel}'",
            requested=str(locks.requested),
            sending=str(locks.sending),
        ),
    ]
