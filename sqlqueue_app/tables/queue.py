"""One queue table: send, peek, count, purge. `receive_transaction` receives, because that owns a transaction."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any, Protocol

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.dialects import sqlserver
from sqlqueue_app.dialects.dialect import Dialect, QueueLayout, Rendered, layout_of
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import DoomedTransaction, counted
from sqlqueue_app.tables.connections import (
    Table,
    connection_of,
    database_errors,
    dialect_of_connection,
    executed,
    fetch_all,
    missing_table,
    on_settings_changed,
    raise_table_error,
    run,
    transaction_of_statements,
)
from sqlqueue_app.tables.listing import shape_of_table
from sqlqueue_app.tables.rows import NewRow, PeekedRow, ReceivedRow, clamped, peeked_row, values_of

# The depth is exact up to this limit, and beyond it an estimate from the two ends of the index.
EXACT_COUNT_LIMIT = 10_000
PEEKED_BODY_BYTES = 65_536
# The largest bigint: no RowVersion exceeds it, and the databases refuse a larger number.
LAST_ROW_VERSION = 2**63 - 1
# COPY is faster than INSERT from this many rows on, and gains nothing more beyond ROWS_PER_COPY.
COPY_FROM_ROWS = 50
ROWS_PER_COPY = 500


@dataclass(frozen=True, slots=True)
class Depth:
    """The depth of a queue. If `exact` is False, `waiting` is an estimate and the other numbers are lower bounds.

    `expiring` counts the rows with an expiry, `expired` those of them whose time has passed.
    """

    waiting: int
    expiring: int
    expired: int
    exact: bool


class QueueTable(Table):
    """The table of one queue."""

    def __init__(self, alias: str, address: QueueAddress) -> None:
        super().__init__(alias, address)
        self._lock = threading.Lock()
        self._layout: QueueLayout | None = None
        self._sends: dict[int, Rendered] = {}

    def layout(self) -> QueueLayout:
        """The layout of the table, read at the first call. QueueNotFound, or TableMismatch if the table is not a queue."""
        layout = self._layout
        if layout is None:
            with database_errors(self.dialect, f"look up the columns of {self.qualified}"):
                shape = shape_of_table(self.connection(), self.dialect, self.address)
            if shape is None:
                why = f"does not exist in {self.alias!r}: run sqlqueue_install or migrate"
                raise missing_table(self, f"queue table {self.qualified} {why}")
            layout = layout_of(self.dialect.name, self.qualified, shape)
            with self._lock:
                self._layout = layout
        return layout

    def remember_layout(self, layout: QueueLayout) -> None:
        """Store a layout that was read elsewhere, with those of other tables."""
        with self._lock:
            if self._layout != layout:
                self._layout = layout
                self._sends.clear()

    def forget_layout(self) -> None:
        """Read the columns again at the next use, after the table was created or changed."""
        with self._lock:
            self._layout = None
            self._sends.clear()

    def send(self, rows: Iterable[NewRow]) -> None:
        """Insert the rows in order, all or none, inside the caller's transaction if there is one, else committed on return.

        Rows are read while others are written, in the same transaction: few are in memory. QueueNotFound if there is no table.
        """
        write_chunks(self.alias, chunks_by_table((self, row) for row in rows))

    def rows_per_statement(self) -> int:
        """The maximum number of rows for `insert`."""
        with self.errors(f"send messages to {self.qualified}"):
            return ROWS_PER_COPY if can_copy(self.connection()) else self.dialect.rows_per_send

    def insert(self, rows: Sequence[NewRow]) -> None:
        """Insert at most `rows_per_statement` rows with one statement, and so all or none; otherwise as `send`."""
        connection = connections[self.alias]
        try:
            if len(rows) >= COPY_FROM_ROWS and can_copy(connection):
                self.layout()
                copy_rows(connection, self.dialect, self.qualified, rows)
                return
            statement = self._sends.get(len(rows)) or self._send_statement(len(rows))
            values = values_of(rows, statement.names[: len(statement.names) // len(rows)], self.dialect.name)
            if self.dialect.name == "sqlserver":
                with executed(connection, statement, values):
                    return
            with connection.cursor() as cursor:
                cursor.execute(statement.sql, values)
        except Exception as error:
            raise_table_error(self, f"send {counted(len(rows), 'message')} to {self.qualified}", error)
            raise

    def _send_statement(self, rows: int) -> Rendered:
        statement = self.dialect.send_statement(self.qualified, self.layout(), rows)
        # Cache only the two sizes that recur: one row and a full statement.
        if rows in (1, self.dialect.rows_per_send):
            with self._lock:
                self._sends[rows] = statement
        return statement

    def peek(self, limit: int, *, after: int = 0, body_limit: int = PEEKED_BODY_BYTES) -> list[PeekedRow]:
        """The first rows after a RowVersion, oldest first. Takes none, and does not wait for rows that are being received."""
        return self._peek(limit, after, body_limit, compared=">", order="ASC")

    def peek_row(self, row_version: int, *, body_limit: int = PEEKED_BODY_BYTES) -> PeekedRow | None:
        """The row of this RowVersion; None if there is none. Otherwise as `peek`."""
        rows = self.peek(1, after=row_version - 1, body_limit=body_limit)
        return rows[0] if rows and rows[0].row_version == row_version else None

    def peek_back(self, limit: int, *, before: int = LAST_ROW_VERSION) -> list[PeekedRow]:
        """The last rows at or before a RowVersion, newest first, without bodies; otherwise as `peek`."""
        return self._peek(limit, before, 0, compared="<=", order="DESC")

    def _peek(self, limit: int, place: int, body_limit: int, **texts: str) -> list[PeekedRow]:
        statement = self.dialect.statement("peek", table=self.qualified, **texts, **self._correlation_columns())
        with self.errors(f"peek into {self.qualified}"):
            rows = fetch_all(self.connection(), statement, limit=limit, place=place, body_limit=body_limit)
        return [peeked_row(row) for row in rows]

    def row_versions(self, limit: int, *, after: int = 0) -> list[int]:
        """The RowVersions of the first rows after a RowVersion, ascending; on SQL Server without locked rows."""
        with self.errors(f"list the rows of {self.qualified}"):
            return [int(number) for (number,) in self._read("row_versions", self.connection(), limit=limit, after=after)]

    def row_version_at(self, position: int) -> int | None:
        """The RowVersion of the row at a position, counted from 0; None beyond the end. Walks the index that far."""
        with self.errors(f"look for message {position} of {self.qualified}"):
            found = self._read("row_version_at", self.connection(), position=position)
        return int(found[0][0]) if found else None

    def depth(self, limit: int = EXACT_COUNT_LIMIT) -> Depth:
        """The depth of the queue: exact up to `limit` rows, beyond that an estimate. Never scans the whole table."""
        connection = self.connection()
        layout = self.layout()
        with self.errors(f"count {self.qualified}"):
            waiting, expiring, expired = self._read("count", connection, limit=limit + 1)[0]
            if waiting <= limit:
                return Depth(waiting, expiring, expired, exact=True)
            if layout.expires_index:
                expiring, expired = self._read("count_expiring", connection, limit=limit + 1)[0]
            (estimate,) = self._read("estimate", connection)[0]
        return Depth(max(int(estimate or 0), waiting), expiring, expired, exact=False)

    def waiting(self) -> int:
        """An upper bound of the waiting rows, from the two ends of the table, without those that are being received."""
        with self.errors(f"peek at the length of {self.qualified}"):
            (length,) = self._read("waiting", self.connection())[0]
        return int(length or 0)

    def purge(self) -> int:
        """Delete every row and return their number."""
        with self.errors(f"purge {self.qualified}"):
            return run(self.connection(), self.dialect.statement("purge", table=self.qualified))

    def purge_expired(self, batch: int) -> int:
        """Delete at most `batch` expired rows, skip those that are being received, and return the number deleted."""
        with self.errors(f"purge expired messages of {self.qualified}"):
            return run(self.connection(), self.dialect.statement("purge_expired", table=self.qualified), limit=batch)

    def holds(self, row: ReceivedRow) -> bool:
        """Whether a received row is still, or again, in the table."""
        return self.peek_row(row.row_version, body_limit=0) is not None

    @property
    def has_unique_ids(self) -> bool:
        """Whether the row id is a primary key, so that a copy of a row needs a new one."""
        return self.dialect.name == "postgresql"

    def id_of_copy(self, row_id: uuid.UUID) -> uuid.UUID:
        """The id for a copy of a row; earlier copies may exist."""
        return uuid.uuid4() if self.has_unique_ids else row_id

    def receive_statement(self, limit: int, *, begins: bool = False) -> Rendered:
        """The statement that deletes and returns the next rows, at most `limit`.

        On SQL Server it can begin the transaction, which stays open, with a savepoint after the receive, if rows were received.
        """
        texts = self.deleted_correlation_columns()
        if self.dialect.name == "sqlserver":
            known = self.dialect
            texts["before"] = f"{known.script('begin')};\n" if begins else ""
            texts["after"] = f"\n{known.script('keep_what_was_received')};" if begins else ""
        return self.dialect.statement("receive", table=self.qualified, limit=str(limit), **texts)

    def deleted_correlation_columns(self) -> dict[str, str]:
        """The correlation columns for a statement that deletes and returns rows; empty except on SQL Server."""
        return {name: f"deleted.{text}" if text != "NULL" else text for name, text in self._correlation_columns().items()}

    def _correlation_columns(self) -> dict[str, str]:
        if self.dialect.name != "sqlserver":
            return {}
        if self.layout().correlation_columns:
            return {"correlation_id": "CorrelationId", "reply_to_address": "ReplyToAddress"}
        return {"correlation_id": "NULL", "reply_to_address": "NULL"}

    def _read(self, name: str, connection: BaseDatabaseWrapper, **values: object) -> list[tuple[Any, ...]]:
        return fetch_all(connection, self.dialect.statement(name, table=self.qualified), **values)


# Addresses may come from anywhere, such as from reply-to headers: beyond this number all are forgotten.
REMEMBERED_TABLES = 10_000
_tables: dict[tuple[str, str], QueueTable] = {}
# The same tables by address: quoting a name costs more than sending to it.
_tables_by_address: dict[tuple[str, QueueAddress], QueueTable] = {}
_tables_lock = threading.Lock()


def queue_table(alias: str, address: QueueAddress) -> QueueTable:
    """The shared description of a queue table, whose columns are read once per process."""
    table = _tables_by_address.get((alias, address))
    if table is None:
        key = (alias, dialect_of_connection(connection_of(alias)).qualified(address))
        with _tables_lock:
            if len(_tables_by_address) >= REMEMBERED_TABLES:
                _tables.clear()
                _tables_by_address.clear()
            table = _tables_by_address[alias, address] = _tables.get(key) or _tables.setdefault(key, QueueTable(alias, address))
    return table


def used_tables(alias: str) -> list[QueueTable]:
    """The queue tables of an alias that this process has used since the last `forget_tables`."""
    with _tables_lock:
        return [table for (of_alias, _), table in _tables.items() if of_alias == alias]


def forget_tables() -> None:
    """Drop every cached layout, after tables were created, dropped or altered."""
    with _tables_lock:
        _tables.clear()
        _tables_by_address.clear()


on_settings_changed(forget_tables, "SQLQUEUE", "DATABASES")


# The maximum bytes of headers and bodies that wait for a statement, which bounds memory and packets of the server; a larger
# message is written alone.
SEND_BYTES_PER_STATEMENT = 4 * 1024 * 1024


class Inserts(Protocol):
    """A table that takes a chunk of rows in one statement."""

    def rows_per_statement(self) -> int: ...

    def insert(self, rows: list[NewRow]) -> None: ...


Chunk = tuple[Inserts, list[NewRow]]


@dataclass(slots=True)
class _Filling:
    """A chunk that is not full yet: its rows, their maximum number, and their size in bytes."""

    room: int
    rows: list[NewRow] = field(default_factory=list)
    weight: int = 0


def chunks_by_table(rows: Iterable[tuple[Inserts, NewRow]]) -> Iterator[Chunk]:
    """Split the rows into chunks of one statement, with the rows of each table in order.

    Yields a chunk when it is full, and all chunks before they exceed SEND_BYTES_PER_STATEMENT together.
    """
    filling: dict[Inserts, _Filling] = {}
    weight = 0
    for table, row in rows:
        size = len(row.body) + len(row.headers)
        if weight and weight + size > SEND_BYTES_PER_STATEMENT:
            for other, chunk in filling.items():
                yield other, chunk.rows
            filling, weight = {}, 0
        chosen = filling.get(table)
        if chosen is None:
            chosen = filling[table] = _Filling(table.rows_per_statement())
        chosen.rows.append(row)
        chosen.weight += size
        weight += size
        if len(chosen.rows) == chosen.room:
            del filling[table]
            weight -= chosen.weight
            yield table, chosen.rows
    for other, chunk in filling.items():
        yield other, chunk.rows


def write_chunks(alias: str, chunks: Iterable[Chunk], *, begun: bool = False) -> None:
    """Insert the chunks, all or none, also for a caller in a transaction that catches the error.

    One chunk is one statement; several get a transaction, or a savepoint inside the caller's. With `begun` they do not: the
    caller rolls back what it has begun on any error, and chunks are read one at a time.
    """
    source = iter(chunks)
    if not begun:
        ahead = list(islice(source, 2))
        source, begun = chain(ahead, source), len(ahead) < 2
    with nullcontext() if begun else all_or_none(alias):
        for table, rows in source:
            table.insert(rows)


@contextmanager
def all_or_none(alias: str) -> Iterator[None]:
    """Open `atomic()` on the alias. Raises errors of its BEGIN and COMMIT as our types; errors raised inside pass through.

    Raises DoomedTransaction where `atomic()` would roll back without an error: the caller would take that for success.
    """
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    by_statements = connection.vendor == "microsoft" and not connection.in_atomic_block
    by_statements = by_statements and not sqlserver.has_mars(connection.settings_dict["OPTIONS"])
    with database_errors(dialect, f"begin a transaction on {alias!r} to send messages"):
        # Without autocommit, the transaction is the caller's.
        by_statements = by_statements and connection.get_autocommit()
        block = transaction_of_statements(connection) if by_statements else transaction.atomic(using=alias)
        block.__enter__()
    try:
        yield
        if connection.needs_rollback:
            raise DoomedTransaction(
                f"nothing was written to {alias!r}: a database error in the transaction was caught outside of an atomic() block, "
                "or set_rollback(True) was called; wrap the statement that may fail in transaction.atomic()"
            )
    except BaseException:
        block.__exit__(*sys.exc_info())
        raise
    with database_errors(dialect, f"commit the messages sent on {alias!r}"):
        block.__exit__(None, None, None)


def can_copy(connection: BaseDatabaseWrapper) -> bool:
    """Whether the database has COPY and the driver can stream into it: psycopg 3 can, psycopg 2 cannot."""
    if connection.vendor != "postgresql":
        return False
    connection.ensure_connection()
    return hasattr(connection.connection, "pgconn")


def copy_rows(connection: BaseDatabaseWrapper, dialect: Dialect, table: str, rows: Sequence[NewRow]) -> None:
    """Write the rows in order by COPY, three times as fast as INSERT; all or none, in the caller's transaction if any.

    Times to be received count from the database's clock before the first row. Raises Django's database errors.
    """
    connection.validate_no_broken_transaction()
    with connection.cursor() as cursor:
        now = None
        if any(row.time_to_be_received_ms is not None for row in rows):
            cursor.execute(dialect.script("utc_now"))
            (now,) = cursor.fetchone()
        driver_cursor: Any = cursor.cursor
        with connection.wrap_database_errors, driver_cursor.copy(dialect.script("send_many", table=table)) as copy:
            copy.set_types(["uuid", "timestamp", "text", "bytea"])
            write = copy.write_row
            for row in rows:
                write((uuid.UUID(row.id), _expires(now, row.time_to_be_received_ms), row.headers, row.body))


def _expires(now: datetime | None, lifetime: int | None) -> datetime | None:
    return None if now is None or lifetime is None else now + timedelta(milliseconds=clamped(lifetime))
