"""The contents of a database: queue tables, their columns, indexes and dead rows, and rows that contain a text."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.dialects.dialect import Dialect, QueueLayout, Rendered, TableShape, check_delayed, layout_of
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import TableMismatch
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, executed, fetch_all
from sqlqueue_app.tables.rows import row_id_of, text_of

# PostgreSQL plans these in a few tens of milliseconds; SQLite accepts at most 500 parts of a UNION.
TABLES_PER_STATEMENT: Final = 100
_ASCII_CAPITALS: Final = re.compile("[A-Z]+")


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table with headers and a body: a queue if it has a `layout`, a table of delayed messages if `is_delayed`."""

    address: QueueAddress
    layout: QueueLayout | None
    is_delayed: bool


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """A snapshot of a queue. The first three numbers are capped at the limit.

    `span` is the distance between the first and the last row, both included: an upper bound of their number. `head` is the text
    of the first row's headers. `written` is the number of rows ever written, if the database reports it. `dead` and `live` are
    row counts of PostgreSQL's statistics.
    """

    waiting: int
    expiring: int
    expired: int
    span: int
    head: str | None
    written: int | None
    dead: int | None
    live: int | None


@dataclass(frozen=True, slots=True)
class DelayedSnapshot:
    """The waiting and due messages of a delayed table, up to the limit, and the first due time in seconds since 1970."""

    waiting: int
    overdue: int
    first_due: float | None


def list_tables(alias: str) -> list[ListedTable]:
    """The queue and delayed tables that this connection may read, by schema and name, in its own catalog."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    columns: defaultdict[tuple[str | None, str], list[tuple[str, str]]] = defaultdict(list)
    indexes: defaultdict[tuple[str | None, str], list[tuple[str, str]]] = defaultdict(list)
    with database_errors(dialect, "list the tables"):
        rows = fetch_all(connection, dialect.statement("list_tables"))
    for schema, table, place, name, kind in rows:
        # Columns have a position, keys of indexes have none.
        found = indexes if place is None else columns
        found[None if schema is None else str(schema), str(table)].append((str(name), str(kind)))
    catalog = current_catalog(connection)
    listed = []
    for (schema, name), described in columns.items():
        address = QueueAddress(name, schema, catalog, form=dialect.name)
        layout, is_delayed = _kind(dialect, address, TableShape(tuple(described), tuple(indexes[schema, name])))
        if layout is not None or is_delayed:
            listed.append(ListedTable(address, layout, is_delayed))
    return listed


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


def snapshot_queues(alias: str, addresses: Sequence[QueueAddress], limit: int) -> list[QueueSnapshot]:
    """A snapshot of each queue, in order, with a statement for each hundred. Locks nothing. DatabaseError if one is gone."""
    return [
        QueueSnapshot(
            int(waiting),
            int(expiring),
            int(expired),
            int(span or 0),
            text_of(head, "replace"),
            *(None if value is None else int(value) for value in (written, dead, live)),
        )
        for waiting, expiring, expired, span, head, written, dead, live in _count_each(alias, "snapshot", addresses, limit)
    ]


def count_expiries(alias: str, addresses: Sequence[QueueAddress], limit: int) -> list[tuple[int, int]]:
    """The number of rows with an expiry and of expired rows in each queue, up to the limit, by the index on Expires."""
    return [(int(expiring), int(expired)) for expiring, expired in _count_each(alias, "count_expiries", addresses, limit)]


def snapshot_delayed(alias: str, addresses: Sequence[QueueAddress], limit: int) -> list[DelayedSnapshot]:
    """A snapshot of each table of delayed messages, in order."""
    return [
        DelayedSnapshot(int(waiting), int(overdue), None if due is None else float(due))
        for waiting, overdue, due in _count_each(alias, "snapshot_delayed", addresses, limit)
    ]


def _count_each(alias: str, name: str, addresses: Sequence[QueueAddress], limit: int) -> list[tuple[Any, ...]]:
    parts = [_Part(name, address, {"limit": limit}) for address in addresses]
    found = {int(number): tuple(row) for number, *row in _read_each(alias, f"inspect {len(addresses)} tables", parts)}
    return [found[number] for number in range(len(addresses))]


@dataclass(frozen=True, slots=True)
class _Part:
    """A named statement for one of many tables."""

    statement: str
    address: QueueAddress
    values: dict[str, object]
    texts: dict[str, str] = field(default_factory=dict)
    render: Callable[..., Rendered] = Dialect.statement


def _read_each(alias: str, doing: str, parts: Sequence[_Part]) -> list[tuple[Any, ...]]:
    """The rows of all parts, each starting with the number of its part, with one statement for each hundred tables."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    found: list[tuple[Any, ...]] = []
    with database_errors(dialect, doing):
        for start in range(0, len(parts), TABLES_PER_STATEMENT):
            statements: list[str] = []
            values: list[Any] = []
            for number, part in enumerate(parts[start : start + TABLES_PER_STATEMENT], start):
                qualified = dialect.qualified(part.address)
                rendered = part.render(dialect, part.statement, table=qualified, number=str(number), **part.texts)
                statements.append(rendered.sql)
                values += rendered.bind({**part.values, "table": qualified, "name": part.address.table})
            with executed(connection, Rendered("\nUNION ALL\n".join(statements), ()), values) as cursor:
                found += cursor.fetchall()
    return found


# Contained in all headers, which are JSON objects: finds all rows.
EVERY: Final = "{"
# Only the beginning of larger bodies is searched.
SEARCHED_BODY_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class TableScan:
    """A table to search: `rows` of a queue, the first ones, or the last ones up to `before`; or, with `is_delayed`, of
    delayed messages.
    """

    address: QueueAddress
    rows: int
    is_delayed: bool = False
    from_end: bool = False
    before: int = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A found row, with the number of its scan. A delayed message has either no number (0) or no `id`, and a `due` time."""

    scan: int
    row_version: int
    id: uuid.UUID | None
    headers: str | None
    due: float | None


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The found rows, in order of the scans. `longer`: for scans that ended early, the RowVersion at which to continue; 0 for
    delayed messages.
    """

    rows: tuple[FoundRow, ...]
    longer: Mapping[int, int]


def sees_locked_rows(alias: str, addresses: Iterable[QueueAddress]) -> bool:
    """Whether `find_rows` can read rows in these tables that other transactions have locked, without waiting.

    PostgreSQL and SQLite always can, SQL Server if READ_COMMITTED_SNAPSHOT is on, in the catalog of the connection.
    """
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    if dialect.name != "sqlserver":
        return True
    if {each.catalog for each in addresses} - {None, current_catalog(connection)}:
        return False
    with database_errors(dialect, "look up READ_COMMITTED_SNAPSHOT"):
        return fetch_all(connection, dialect.statement("keeps_row_versions")) == [(1,)]


def find_rows(
    alias: str,
    scans: Sequence[TableScan],
    *texts: str,
    limit: int,
    bodies: bool = False,
    match_case: bool = False,
    row_id: uuid.UUID | None = None,
    with_locked: bool = False,
) -> ScanResult:
    """Find rows that contain one of the texts, as encoded in the JSON; at most `limit` per table. Ignores the case of ASCII,
    unless `match_case`, which takes less than half the time and is for headers alone.

    Uses one statement for each hundred tables, which takes and locks nothing and never waits. Headers have no index, so it reads
    the rows. With `bodies` it also searches the first SEARCHED_BODY_BYTES of each body. With `row_id` it also finds the row of a
    queue with this id. `with_locked` needs `sees_locked_rows`. Raises DatabaseError if a table is gone.
    """
    wanted = texts if match_case else [_ASCII_CAPITALS.sub(lambda found: found[0].lower(), text) for text in texts]
    values = {f"text_{chr(97 + number)}": text for number, text in enumerate(wanted)}
    encoded: dict[str, object] = {f"{name}_bytes": text.encode("utf-8", "surrogatepass") for name, text in values.items()}
    if row_id is not None:
        encoded["row_id"] = dialect_of_connection(connection_of(alias)).uuid_text(row_id)
    parts = [
        _Part(
            "find_in_delayed" if scan.is_delayed else "find_in_queue",
            scan.address,
            {"rows": scan.rows, "limit": limit, "before": scan.before, "body_limit": SEARCHED_BODY_BYTES, **values, **encoded},
            {"order": "DESC" if scan.from_end else "ASC"},
            partial(
                Dialect.find_statement,
                texts=list(values),
                bodies=bodies,
                match_case=match_case,
                by_row_id=row_id is not None,
                with_locked=with_locked,
            ),
        )
        for scan in scans
    ]
    rows: list[FoundRow] = []
    longer: dict[int, int] = {}
    for number, rest, row_version, row_id, headers, due in _read_each(alias, f"look for messages in {len(scans)} tables", parts):
        if rest is not None:
            longer[int(number)] = int(rest)
            continue
        found_id = None if row_id is None else row_id_of(row_id)
        rows.append(FoundRow(int(number), int(row_version), found_id, text_of(headers, "replace"), due))
    return ScanResult(tuple(sorted(rows, key=lambda row: (row.scan, row.row_version))), longer)


@dataclass(frozen=True, slots=True)
class DeadRows:
    """PostgreSQL's statistics, about a second old, of deleted rows that vacuum has not removed yet and that slow down readers."""

    table: str
    dead: int
    live: int


@dataclass(frozen=True, slots=True)
class HorizonHolder:
    """A holder of the vacuum horizon: vacuum keeps every row that died since.

    `kind` is "session", "prepared transaction" or "replication slot"; `name` is that of the application, transaction or slot.
    `transactions` counts the transactions begun since. `seconds` and `state` are None if this role may not see them, or if there
    are none.
    """

    kind: str
    name: str
    role: str | None
    pid: int | None
    state: str | None
    seconds: float | None
    transactions: int


def dead_rows(alias: str, tables: Sequence[str]) -> dict[str, DeadRows]:
    """The dead rows of existing tables by qualified name; empty on other databases. Raises DatabaseError."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    if dialect.name != "postgresql" or not tables:
        return {}
    with database_errors(dialect, "read the statistics of the queue tables"):
        found = fetch_all(connection, dialect.statement("dead_rows"), tables=list(tables))
    return {str(name): DeadRows(str(name), int(dead), int(live)) for name, dead, live in found}


def horizon_holders(alias: str) -> list[HorizonHolder]:
    """The holders of the vacuum horizon, oldest first, at most five; empty except on PostgreSQL."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    if dialect.name != "postgresql":
        return []
    with database_errors(dialect, "look for old transactions"):
        found = fetch_all(connection, dialect.statement("horizon_holders"))
    return [HorizonHolder(kind, name, role, pid, state, seconds, int(age)) for kind, name, role, pid, state, seconds, age in found]


def shape_of_table(connection: BaseDatabaseWrapper, dialect: Dialect, address: QueueAddress) -> TableShape | None:
    """Columns and indexes of the table, or None if there is none. The address has all its parts filled in."""
    texts: dict[str, str] = {}
    values: dict[str, object] = {"table": dialect.qualified(address)}
    if dialect.name == "sqlite":
        values = {"name": address.table}
    elif dialect.name == "sqlserver":
        texts = {"catalog": f"{dialect.quote(address.catalog)}." if address.catalog else ""}
        is_elsewhere = address.catalog not in (None, current_catalog(connection))
        # A statement fails, and may end the transaction, if it names a missing database or one closed to this login.
        if is_elsewhere and fetch_all(connection, dialect.statement("may_use_catalog"), catalog=address.catalog) != [(1,)]:
            return None
    columns = fetch_all(connection, dialect.statement("columns", **texts), **values)
    if not columns:
        return None
    indexes = fetch_all(connection, dialect.statement("indexes", **texts), **values)
    return TableShape(tuple((str(name), str(kind)) for name, kind in columns), tuple((str(a), str(b)) for a, b in indexes))


def current_catalog(connection: BaseDatabaseWrapper) -> str | None:
    """The catalog of the connection on SQL Server; None on other databases."""
    if connection.vendor != "microsoft":
        return None
    name = connection.settings_dict.get("NAME")
    return str(name) if name else None
