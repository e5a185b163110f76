"""One queue table: send, peek, count, purge. Receiving is in `receive_transaction`, because it owns a transaction."""

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
from sqlqueue_app.messages.errors import counted
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

# Depth is exact up to here; beyond, an estimate from the two ends of the index.
EXACT_COUNT_LIMIT = 10_000
PEEKED_BODY_BYTES = 65_536
# The largest bigint: no RowVersion lies above it, and the databases refuse a larger number.
LAST_ROW_VERSION = 2**63 - 1
# From so many rows on a COPY is faster than an INSERT; beyond ROWS_PER_COPY it gains nothing more.
COPY_FROM_ROWS = 50
ROWS_PER_COPY = 500


@dataclass(frozen=True, slots=True)
class Depth:
    """How much is in a queue. Numbers are exact unless `exact` is False: then `waiting` is an estimate and the others lower bounds.

    `expiring` counts the rows that carry an expiry, `expired` those of them whose time has passed.
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
        """The layout of the table as it was found at the first call; QueueNotFound, or TableMismatch if it is no queue."""
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
        """The columns were looked up elsewhere, with those of other tables."""
        with self._lock:
            if self._layout != layout:
                self._layout = layout
                self._sends.clear()

    def forget_layout(self) -> None:
        """Look the columns up again at the next use: the table was made or changed."""
        with self._lock:
            self._layout = None
            self._sends.clear()

    def send(self, rows: Iterable[NewRow]) -> None:
        """Insert the rows in their order: all or none; inside the caller's transaction if there is one, else committed on return.

        Rows are asked for while others are written, in the same transaction: few are in memory. QueueNotFound if there is no table.
        """
        write_chunks(self.alias, chunks_by_table((self, row) for row in rows))

    def rows_per_statement(self) -> int:
        """How many rows `insert` takes."""
        with self.errors(f"send messages to {self.qualified}"):
            return ROWS_PER_COPY if can_copy(self.connection()) else self.dialect.rows_per_send

    def insert(self, rows: Sequence[NewRow]) -> None:
        """Insert at most `rows_per_statement` rows with one statement, which is all or none by itself; otherwise as `send`."""
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
        # Only the two sizes that come again are worth keeping: one row and a full statement.
        if rows in (1, self.dialect.rows_per_send):
            with self._lock:
                self._sends[rows] = statement
        return statement

    def peek(self, limit: int, *, after: int = 0, body_limit: int = PEEKED_BODY_BYTES) -> list[PeekedRow]:
        """The first rows after a RowVersion, oldest first, without taking them or waiting for those that are being received."""
        return self._peek(limit, after, body_limit, compared=">", order="ASC")

    def peek_back(self, limit: int, *, before: int = LAST_ROW_VERSION, body_limit: int = PEEKED_BODY_BYTES) -> list[PeekedRow]:
        """The last rows at and before a RowVersion, the newest first, as `peek`."""
        return self._peek(limit, before, body_limit, compared="<=", order="DESC")

    def _peek(self, limit: int, place: int, body_limit: int, **texts: str) -> list[PeekedRow]:
        statement = self.dialect.statement("peek", table=self.qualified, **texts, **self._correlation_columns())
        with self.errors(f"peek into {self.qualified}"):
            rows = fetch_all(self.connection(), statement, limit=limit, place=place, body_limit=body_limit)
        return [peeked_row(row) for row in rows]

    def row_versions(self, limit: int, *, after: int = 0) -> list[int]:
        """The RowVersions of the first rows after one, ascending; on SQL Server without rows that somebody holds."""
        with self.errors(f"list the rows of {self.qualified}"):
            return [int(number) for (number,) in self._read("row_versions", self.connection(), limit=limit, after=after)]

    def row_version_at(self, position: int) -> int | None:
        """The RowVersion of the row at a position, counted from 0; None beyond the end. Walks the index that far."""
        with self.errors(f"look for message {position} of {self.qualified}"):
            found = self._read("row_version_at", self.connection(), position=position)
        return int(found[0][0]) if found else None

    def depth(self, limit: int = EXACT_COUNT_LIMIT) -> Depth:
        """How much is in the queue: exact up to `limit` rows, beyond that an estimate; never a scan of the whole table."""
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
        """An upper bound of the rows that wait, from the two ends of the table; those that are being received do not count."""
        with self.errors(f"peek at the length of {self.qualified}"):
            (length,) = self._read("waiting", self.connection())[0]
        return int(length or 0)

    def purge(self) -> int:
        """Delete every row and return how many there were."""
        with self.errors(f"purge {self.qualified}"):
            return run(self.connection(), self.dialect.statement("purge", table=self.qualified))

    def purge_expired(self, batch: int) -> int:
        """Delete at most `batch` expired rows and return how many; rows that are being received are stepped over."""
        with self.errors(f"purge expired messages of {self.qualified}"):
            return run(self.connection(), self.dialect.statement("purge_expired", table=self.qualified), limit=batch)

    def holds(self, row: ReceivedRow) -> bool:
        """Whether a row that was received is in the table still, or again."""
        return any(found.row_version == row.row_version for found in self.peek(1, after=row.row_version - 1, body_limit=0))

    @property
    def has_unique_ids(self) -> bool:
        """Whether the row id is a primary key, so that a copy of a row needs a new one."""
        return self.dialect.name == "postgresql"

    def id_of_copy(self, row_id: uuid.UUID) -> uuid.UUID:
        """The id for a copy of a row, which may have been copied before."""
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
        """What stands for the correlation columns in a statement that deletes and returns rows; nothing but on SQL Server."""
        return {name: f"deleted.{text}" if text != "NULL" else text for name, text in self._correlation_columns().items()}

    def _correlation_columns(self) -> dict[str, str]:
        if self.dialect.name != "sqlserver":
            return {}
        if self.layout().correlation_columns:
            return {"correlation_id": "CorrelationId", "reply_to_address": "ReplyToAddress"}
        return {"correlation_id": "NULL", "reply_to_address": "NULL"}

    def _read(self, name: str, connection: BaseDatabaseWrapper, **values: object) -> list[tuple[Any, ...]]:
        return fetch_all(connection, self.dialect.statement(name, table=self.qualified), **values)


_tables: dict[tuple[str, str], QueueTable] = {}
# The same tables by their addresses: to quote a name costs more than to send to it.
_tables_by_address: dict[tuple[str, QueueAddress], QueueTable] = {}
_tables_lock = threading.Lock()


def queue_table(alias: str, address: QueueAddress) -> QueueTable:
    """The shared description of a queue table: its columns are looked up once per process."""
    table = _tables_by_address.get((alias, address))
    if table is None:
        key = (alias, dialect_of_connection(connection_of(alias)).qualified(address))
        with _tables_lock:
            table = _tables_by_address[alias, address] = _tables.get(key) or _tables.setdefault(key, QueueTable(alias, address))
    return table


def used_tables(alias: str) -> list[QueueTable]:
    """The queue tables of an alias that this process has sent to, received from or looked at since they were last forgotten."""
    with _tables_lock:
        return [table for (of_alias, _), table in _tables.items() if of_alias == alias]


def forget_tables() -> None:
    """Forget every looked-up layout: tables were made, dropped or altered."""
    with _tables_lock:
        _tables.clear()
        _tables_by_address.clear()


on_settings_changed(forget_tables, "SQLQUEUE", "DATABASES")


# So many bytes of headers and bodies wait for a statement at most, so that memory and the server's packet limits hold with large
# messages; one larger message goes alone.
SEND_BYTES_PER_STATEMENT = 4 * 1024 * 1024


class Inserts(Protocol):
    """A table that takes a chunk of rows in one statement."""

    def rows_per_statement(self) -> int: ...

    def insert(self, rows: list[NewRow]) -> None: ...


Chunk = tuple[Inserts, list[NewRow]]


@dataclass(slots=True)
class _Filling:
    """A chunk that is not full yet: its rows, how many it takes, the bytes it holds."""

    room: int
    rows: list[NewRow] = field(default_factory=list)
    weight: int = 0


def chunks_by_table(rows: Iterable[tuple[Inserts, NewRow]]) -> Iterator[Chunk]:
    """The rows in chunks that one statement takes, those of each table in their order.

    A chunk leaves when it is full, and all leave before they hold more than SEND_BYTES_PER_STATEMENT together.
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
    """Insert the chunks: all or none, also for a caller in a transaction who catches the error.

    One chunk is one statement and needs nothing; more get a transaction, or a savepoint inside of the caller's. Not so with
    `begun`: the caller has begun what it will roll back on any error. Chunks are asked for one at a time then.
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
    """`atomic()` on the alias whose own errors, of its begin and its commit, come as our kinds; what is raised inside passes."""
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    by_statements = connection.vendor == "microsoft" and not connection.in_atomic_block
    by_statements = by_statements and not sqlserver.has_mars(connection.settings_dict["OPTIONS"])
    block = transaction_of_statements(connection) if by_statements else transaction.atomic(using=alias)
    with database_errors(dialect, f"begin a transaction on {alias!r} to send messages"):
        block.__enter__()
    try:
        yield
    except BaseException:
        block.__exit__(*sys.exc_info())
        raise
    with database_errors(dialect, f"commit the messages sent on {alias!r}"):
        block.__exit__(None, None, None)


def can_copy(connection: BaseDatabaseWrapper) -> bool:
    """Whether the database has COPY and the driver streams into it: psycopg 3 does, psycopg 2 does not."""
    if connection.vendor != "postgresql":
        return False
    connection.ensure_connection()
    return hasattr(connection.connection, "pgconn")


def copy_rows(connection: BaseDatabaseWrapper, dialect: Dialect, table: str, rows: Sequence[NewRow]) -> None:
    """Write the rows in their order by COPY, three times as fast as INSERT; all or none, in the transaction of the caller if any.

    Times to be received are added to the database's clock as it stood before the first row. Errors come as Django's.
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
