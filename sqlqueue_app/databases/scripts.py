"""Scripts for a DBA: what the installer would do, as text that can be read, kept and run again without harm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sqlqueue_app.databases.ddl import TableKind, create_statements, grant_statements, managed_grant_statements
from sqlqueue_app.databases.dialect import Dialect
from sqlqueue_app.databases.wake_up import create_wake_up_function, create_wake_up_trigger, wake_up_function
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import AddressError


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table that should exist."""

    kind: TableKind
    address: QueueAddress


def installation_script(
    dialect: Dialect,
    tables: Iterable[PlannedTable],
    *,
    layout: str = "classic",
    role: str | None = None,
    managed: Iterable[str] = (),
    woken: Iterable[PlannedTable] = (),
) -> str:
    """A script that makes the tables that are missing, and grants a role what the worker needs; ends with a line break.

    Tables that exist are left as they are. `managed` are the tables that `migrate` makes: the role is granted their use too. The
    tables `woken` (PostgreSQL) get the wake-up trigger, whether they are made by the script or were there.
    AddressError for a name with a line break, which no script can hold.
    """
    blocks = [_block(dialect, table, layout, role) for table in tables]
    blocks += [_wake_up_block(dialect, table.address) for table in woken]
    grants = [grant for table in managed for grant in managed_grant_statements(dialect, table, role)] if role else []
    if grants:
        blocks.append("\n".join(["-- tables made by migrate", *_ended(dialect, grants)]) + "\n")
    return "\n".join(blocks)


def _block(dialect: Dialect, table: PlannedTable, layout: str, role: str | None) -> str:
    qualified = _one_line(dialect.qualified(table.address))
    create = create_statements(dialect, table.kind, table.address, layout)
    grants = grant_statements(dialect, table.kind, table.address, role) if role else []
    lines = [f"-- {table.kind.value}: {qualified}"]
    if dialect.name == "sqlite":
        lines += [f"{_if_missing(statement)};" for statement in create]
    else:
        literal = qualified.replace("'", "''")
        body = "\n".join(f"{statement};" for statement in create)
        lines += _GUARDS[dialect.name](literal, body)
    return "\n".join([*lines, *_ended(dialect, grants)]) + "\n"


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
