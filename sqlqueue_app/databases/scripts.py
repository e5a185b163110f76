"""Scripts for a DBA: what the installer would do, as text that can be read, kept and run again without harm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sqlqueue_app.databases.ddl import ALL_RIGHTS, TableKind, create_statements, grant_statements, managed_grant_statements
from sqlqueue_app.databases.dialect import Dialect
from sqlqueue_app.databases.wake_up import create_wake_up_function, create_wake_up_trigger, wake_up_function
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table that should exist."""

    kind: TableKind
    address: QueueAddress


def _all_rights(_table: object) -> str:
    return ALL_RIGHTS


@dataclass(frozen=True, slots=True)
class Grants:
    """What a script gives a role: the rights on each table, as SQL lists them, "" for none; by default all that a worker needs."""

    role: str
    on_table: Callable[[PlannedTable], str] = field(default=_all_rights)
    on_managed: Callable[[str], str] = field(default=_all_rights)


def installation_script(
    dialect: Dialect,
    tables: Iterable[PlannedTable],
    *,
    layout: str = "classic",
    grants: Grants | None = None,
    managed: Iterable[str] = (),
    woken: Iterable[PlannedTable] = (),
) -> str:
    """A script that makes the tables that are missing, and gives a role its rights; ends with a line break.

    Tables that exist are left as they are. `managed` are the tables that `migrate` makes: there are grants for them too. The
    tables `woken` (PostgreSQL) get the wake-up trigger, whether they are made by the script or were there.
    AddressError for a name with a line break, which no script can hold.
    """
    blocks = [_block(dialect, table, layout, grants) for table in tables]
    blocks += [_wake_up_block(dialect, table.address) for table in woken]
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
    rights = "" if grants is None else grants.on_table(table)
    given = grant_statements(dialect, table.kind, table.address, grants.role, rights) if grants and rights else []
    lines = [f"-- {table.kind.value}: {qualified}"]
    if dialect.name == "sqlite":
        lines += [f"{_if_missing(statement)};" for statement in create]
    else:
        literal = qualified.replace("'", "''")
        body = "\n".join(f"{statement};" for statement in create)
        lines += _GUARDS[dialect.name](literal, body)
    return "\n".join([*lines, *_ended(dialect, given)]) + "\n"


def _wake_up_block(dialect: Dialect, address: QueueAddress) -> str:
    function = f"{wake_up_function(dialect, address)}()".replace("'", "''")
    make = f"{create_wake_up_function(dialect, address)};"
    lines = [
        f"-- wake-up trigger: {_one_line(dialect.qualified(address))}",
        *_postgresql_guard(function, make, look="to_regprocedure"),
        f"{create_wake_up_trigger(dialect, address)};",
    ]
    return "\n".join(lines) + "\n"


def _sqlserver_guard(literal: str, body: str) -> list[str]:
    return [f"IF OBJECT_ID(N'{literal}', N'U') IS NULL", "BEGIN", body, "END", "GO"]


def _postgresql_guard(literal: str, body: str, *, look: str = "to_regclass") -> list[str]:
    tag = "$sqlqueue$"
    while tag in body or tag in literal:
        tag = f"{tag[:-1]}_$"
    return [f"DO {tag} BEGIN", f"IF {look}('{literal}') IS NULL THEN", body, "END IF;", f"END {tag};"]


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
    # Script tools cut batches at lines that say GO, even inside of a quoted name.
    if len(name.splitlines()) > 1:
        raise AddressError(f"the table name {name!r} has a line break: a script cannot hold it; install it with sqlqueue_install")
    return name
