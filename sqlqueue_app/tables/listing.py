"""All tables of a database that look like ours or a transport's, found and looked at with few statements.

Whoever lists two hundred queues would otherwise pay a round trip for each number. A look takes nothing, locks nothing and reads no
further than its limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlqueue_app.databases.dialect import Dialect
from sqlqueue_app.databases.layouts import QueueLayout, TableShape, check_delayed, layout_of
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import TableMismatch
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, fetch_all
from sqlqueue_app.tables.inspection import current_catalog
from sqlqueue_app.tables.rows import text_of

# What PostgreSQL plans in a few tens of milliseconds; SQLite takes 500 parts of a UNION at most.
TABLES_PER_STATEMENT: Final = 100


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table that has headers and a body: a queue if it has a `layout`, a table of delayed messages if `is_delayed`."""

    address: QueueAddress
    layout: QueueLayout | None
    is_delayed: bool


@dataclass(frozen=True, slots=True)
class Look:
    """What one look says of a queue. The first three numbers end at the limit.

    `span` is how far the first and the last row are apart, both counted: at least as many as there are. `head` is the text of the
    headers of the first row. `written` is how many rows were ever written, as far as the database tells.
    """

    waiting: int
    expiring: int
    expired: int
    span: int
    head: str | None
    written: int | None


@dataclass(frozen=True, slots=True)
class DelayedLook:
    """How many messages wait in a delayed table and how many are due, up to the limit; when the first is due, since 1970."""

    waiting: int
    overdue: int
    first_due: float | None


def list_tables(alias: str) -> list[ListedTable]:
    """The queue tables and tables of delayed messages that this connection may read, by schema and name: two statements.

    On SQL Server those of the connection's own catalog. Raises DatabaseError.
    """
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    with database_errors(dialect, "list the tables"):
        columns = _by_table(fetch_all(connection, dialect.statement("list_columns")))
        indexes = _by_table(fetch_all(connection, dialect.statement("list_indexes")))
    catalog = current_catalog(connection)
    found = []
    for (schema, name), described in columns.items():
        address = QueueAddress(name, schema, catalog, form=dialect.name)
        shape = TableShape(tuple(described), tuple(indexes.get((schema, name), ())))
        layout, is_delayed = _kind(dialect, address, shape)
        if layout is not None or is_delayed:
            found.append(ListedTable(address, layout, is_delayed))
    return found


def _by_table(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[str | None, str], list[tuple[str, str]]]:
    found: defaultdict[tuple[str | None, str], list[tuple[str, str]]] = defaultdict(list)
    for schema, table, name, kind in rows:
        found[None if schema is None else str(schema), str(table)].append((str(name), str(kind)))
    return found


def _kind(dialect: Dialect, address: QueueAddress, shape: TableShape) -> tuple[QueueLayout | None, bool]:
    try:
        return layout_of(dialect.name, address.table, shape), False
    except TableMismatch:
        pass
    try:
        check_delayed(address.table, shape)
    except TableMismatch:
        return None, False
    return None, True


def look_at_queues(alias: str, addresses: Sequence[QueueAddress], limit: int) -> list[Look]:
    """One look for each queue, in their order; a statement for each hundred. Raises DatabaseError if one of them is gone."""
    return [
        Look(
            int(waiting),
            int(expiring),
            int(expired),
            int(span or 0),
            text_of(head, "replace"),
            None if written is None else int(written),
        )
        for waiting, expiring, expired, span, head, written in _look(alias, "look", addresses, limit)
    ]


def look_at_expiries(alias: str, addresses: Sequence[QueueAddress], limit: int) -> list[tuple[int, int]]:
    """The rows with an expiry and the expired ones of each queue, each up to the limit, by the index on Expires."""
    return [(int(expiring), int(expired)) for expiring, expired in _look(alias, "look_expiring", addresses, limit)]


def look_at_delayed(alias: str, addresses: Sequence[QueueAddress], limit: int) -> list[DelayedLook]:
    """One look for each table of delayed messages, in their order."""
    return [
        DelayedLook(int(waiting), int(overdue), None if due is None else float(due))
        for waiting, overdue, due in _look(alias, "look_delayed", addresses, limit)
    ]


def _look(alias: str, name: str, addresses: Sequence[QueueAddress], limit: int) -> list[tuple[Any, ...]]:
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    found: dict[int, tuple[Any, ...]] = {}
    with database_errors(dialect, f"look at {len(addresses)} tables"):
        for start in range(0, len(addresses), TABLES_PER_STATEMENT):
            part = list(enumerate(addresses))[start : start + TABLES_PER_STATEMENT]
            statement, values = union_of(dialect, [Piece(name, number, address, {"limit": limit}) for number, address in part])
            with connection.cursor() as cursor:
                cursor.execute(statement, values)
                found.update((int(number), tuple(row)) for number, *row in cursor.fetchall())
    return [found[number] for number in range(len(addresses))]


@dataclass(frozen=True, slots=True)
class Piece:
    """A named statement for one of many tables, with the number that tells its rows from those of the others."""

    statement: str
    number: int
    address: QueueAddress
    values: dict[str, object]
    texts: dict[str, str] = field(default_factory=dict)


def union_of(dialect: Dialect, pieces: Sequence[Piece]) -> tuple[str, list[Any]]:
    """One statement of many, and the parameters in their order."""
    statements = []
    values: list[Any] = []
    for piece in pieces:
        qualified = dialect.qualified(piece.address)
        rendered = dialect.statement(piece.statement, table=qualified, number=str(piece.number), **piece.texts)
        statements.append(rendered.sql)
        values += rendered.bind({**piece.values, "table": qualified, "name": piece.address.table})
    return "\nUNION ALL\n".join(statements), values
