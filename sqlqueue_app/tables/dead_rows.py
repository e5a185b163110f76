"""Dead rows: deleted, and still in the way of who reads, until vacuum takes them. PostgreSQL alone can say how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, fetch_all


@dataclass(frozen=True, slots=True)
class DeadRows:
    """What the statistics say of a table; they follow what happens by a second or so, and are lost with a crash of the server."""

    table: str
    dead: int
    live: int


@dataclass(frozen=True, slots=True)
class HorizonHolder:
    """Somebody for whose sake vacuum keeps every row that died since.

    `kind` is "session", "prepared transaction" or "replication slot"; `name` the application's, the transaction's or the slot's.
    `transactions` says how many transactions began since. `seconds` and `state` are None where this role may not see them, and for
    what has none.
    """

    kind: str
    name: str
    role: str | None
    pid: int | None
    state: str | None
    seconds: float | None
    transactions: int


def dead_rows(alias: str, tables: Sequence[str]) -> dict[str, DeadRows]:
    """The dead rows of tables by their qualified names; nothing for tables that are not there, and for other databases.

    One statement; needs no right on the tables. DatabaseError if the database cannot be asked.
    """
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    if dialect.name != "postgresql" or not tables:
        return {}
    with database_errors(dialect, "look at the statistics of the queue tables"):
        found = fetch_all(connection, dialect.statement("dead_rows"), tables=list(tables))
    return {str(name): DeadRows(str(name), int(dead), int(live)) for name, dead, live in found}


def horizon_holders(alias: str) -> list[HorizonHolder]:
    """Who holds rows that are dead already, the oldest first, five at most; empty on other databases than PostgreSQL."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    if dialect.name != "postgresql":
        return []
    with database_errors(dialect, "look for old transactions"):
        found = fetch_all(connection, dialect.statement("horizon_holders"))
    return [HorizonHolder(kind, name, role, pid, state, seconds, int(age)) for kind, name, role, pid, state, seconds, age in found]
