"""Tables of delayed messages: add, take due rows, list and remove rows. The database's clock decides what is due."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlqueue_app.dialects.dialect import Rendered
from sqlqueue_app.messages.errors import counted
from sqlqueue_app.messages.headers import Headers, write_headers
from sqlqueue_app.tables.connections import Table, executed, fetch_all, run
from sqlqueue_app.tables.row_selection import statement_chunks
from sqlqueue_app.tables.rows import NewRow, bytes_of, delayed_values_of, text_of


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A taken row: its headers as text, and its body, None for NULL."""

    headers: str
    body: bytes | None


class DelayedTable(Table):
    """The table of an endpoint's delayed messages. Every call may raise DatabaseError; QueueNotFound if the table is missing.

    The database's clock decides what is due (docs/internals/decisions.md#database-clock).
    """

    def add(self, headers: str, body: bytes, due: datetime) -> None:
        """Store a message until `due`, aware, to the millisecond; in the caller's transaction, else committed on return."""
        self.insert([NewRow("", headers, body, due=due)])

    def rows_per_statement(self) -> int:
        """The maximum number of rows for `insert`."""
        return self.dialect.rows_per_send

    def insert(self, rows: Sequence[NewRow]) -> None:
        """Store at most `rows_per_statement` messages, each with a delay or due time, all or none, by one statement."""
        connection = self.connection()
        with self.errors(f"delay {counted(len(rows), 'message')} in {self.qualified}"):
            statement = self.dialect.delay_statement(self.qualified, len(rows))
            values = delayed_values_of(rows, statement.names[: len(statement.names) // len(rows)])
            with executed(connection, statement, values):
                pass

    def seconds_until_due(self) -> float | None:
        """Seconds until the earliest message is due, negative if it is overdue, None if there is none.

        Takes nothing and, on SQLite, not the write lock; a message that another process is taking still counts.
        """
        with self.errors(f"look for due messages in {self.qualified}"):
            (seconds,) = fetch_all(self.connection(), self._statement("next_due"))[0]
        return None if seconds is None else float(seconds)

    def take_due(self, limit: int) -> list[DelayedRow]:
        """Delete and return the first due messages, in the caller's transaction; skips those that another process is taking."""
        with self.errors(f"take due messages from {self.qualified}"):
            rows = fetch_all(self.connection(), self._statement("take_due"), limit=limit)
        found = sorted(rows, key=lambda row: row[2])
        return [DelayedRow(text_of(headers) or "", bytes_of(body)) for headers, body, _ in found]

    def cancel(self, headers: Headers) -> int:
        """Delete the messages with these two headers, as we write them, and return their number.

        Reads the whole table, in the caller's transaction if there is one; may miss messages that are being moved.
        """
        one, other = (write_headers({name: value})[1:-1] for name, value in headers.items())
        with self.errors(f"cancel messages in {self.qualified}"):
            return run(self.connection(), self._statement("cancel"), one=one, other=other)

    def peek(self, limit: int) -> list[DelayedRow]:
        """The first messages by due time, without taking them."""
        with self.errors(f"peek into {self.qualified}"):
            rows = fetch_all(self.connection(), self._statement("peek_delayed"), limit=limit)
        return [DelayedRow(text_of(headers) or "", bytes_of(body)) for headers, body in rows]

    def bring_nearer(self, time: timedelta) -> None:
        """Make every message due earlier by `time`, for tests, which cannot change the database's clock."""
        with self.errors(f"change due times in {self.qualified}"):
            run(self.connection(), self._statement("bring_nearer"), milliseconds=time // timedelta(milliseconds=1))

    def count(self, limit: int) -> tuple[int, int]:
        """The number of waiting messages, and of due ones among them, each at most `limit`."""
        with self.errors(f"count {self.qualified}"):
            waiting, overdue = fetch_all(self.connection(), self._statement("count_delayed"), limit=limit)[0]
        return int(waiting), int(overdue)

    def _statement(self, name: str) -> Rendered:
        return self.dialect.statement(name, table=self.qualified)


_LARGEST_NUMBER: Final = 2**63 - 1
_INFINITE: Final = ("infinity", "-infinity")
# SQL Server's `datetime` starts here.
_FIRST_YEAR: Final = 1753
_PRECISION: Final = {"postgresql": "microseconds", "sqlserver": "milliseconds"}


@dataclass(frozen=True, slots=True)
class DelayedPosition:
    """The row after which a list continues: its due time as the database writes it, and its key."""

    due: str
    key: str


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A waiting row. `key` identifies it within its table: an id on PostgreSQL, elsewhere a number.

    `due` is aware, in UTC; None for a time outside datetime, such as infinity, or (SQLite) text that is not a time. `due_text`
    is the database's text. `seconds` is the time left by the database's clock, negative if overdue; None if `due` is not a time.
    `body` is the beginning of the body, up to the requested size, `body_length` its total number of bytes, None for NULL.
    """

    key: str
    due_text: str
    due: datetime | None
    seconds: float | None
    headers: str | None
    body: bytes | None
    body_length: int | None

    @property
    def position(self) -> DelayedPosition:
        """The position after this row."""
        return DelayedPosition(self.due_text, self.key)


@dataclass(frozen=True, slots=True)
class TakenDelayedRow:
    """A deleted row, complete."""

    key: str
    headers: str | None
    body: bytes | None


def key_of(table: DelayedTable, text: str) -> str | None:
    """Parse the text of a key in this table into its canonical form; None if it is not a key."""
    if table.dialect.name != "postgresql":
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_LARGEST_NUMBER))
        return str(int(text)) if is_number and int(text) <= _LARGEST_NUMBER else None
    try:
        return str(uuid.UUID(text)) if len(text) == 36 else None
    except ValueError:
        return None


def position_of(table: DelayedTable, due: str, key: str) -> DelayedPosition | None:
    """Parse a position from two untrusted texts; None if they are not valid."""
    known = key_of(table, key)
    if known is None or "\0" in due:
        return None
    if table.dialect.name == "sqlite" or (table.dialect.name == "postgresql" and due in _INFINITE):
        return DelayedPosition(due, known)
    instant = _instant(due)
    if instant is None or instant.year < _FIRST_YEAR:
        return None
    return DelayedPosition(instant.replace(tzinfo=None).isoformat(timespec=_PRECISION[table.dialect.name]), known)


def list_rows(table: DelayedTable, limit: int, *, after: DelayedPosition | None = None) -> list[WaitingRow]:
    """The first rows, or the first after a position, by due time and key, without bodies. Takes nothing, never waits."""
    with table.errors(f"list {table.qualified}"):
        if after is None:
            rows = fetch_all(table.connection(), table.dialect.statement("list_delayed", table=table.qualified), limit=limit)
        else:
            statement = table.dialect.statement("list_delayed_after", table=table.qualified)
            rows = fetch_all(table.connection(), statement, limit=limit, due=after.due, place=after.key)
    return [_waiting(row) for row in rows]


def read_rows(table: DelayedTable, keys: Iterable[str], *, body_limit: int = 0) -> list[WaitingRow]:
    """The existing rows of these keys, by due time; on SQL Server without locked ones. Otherwise as `list_rows`."""
    return [_waiting(row) for row in _each(table, "read_delayed", keys, body_limit=body_limit)]


def take_rows(table: DelayedTable, keys: Iterable[str]) -> list[TakenDelayedRow]:
    """Delete the rows, in the caller's transaction, and return them, without rows that are gone or locked by others."""
    found = _each(table, "take_delayed", keys)
    return [TakenDelayedRow(str(key), text_of(headers), bytes_of(body)) for key, headers, body in found]


def remove_rows(table: DelayedTable, keys: Iterable[str]) -> list[str]:
    """Delete the rows and return the keys of those that existed and were not locked by others; otherwise as `take_rows`."""
    return [str(key) for (key,) in _each(table, "remove_delayed", keys)]


def _each(table: DelayedTable, statement: str, keys: Iterable[str], **values: object) -> Iterator[tuple[Any, ...]]:
    is_quoted = table.dialect.name == "postgresql"
    for chosen in statement_chunks(keys):
        ids = ", ".join(f"'{uuid.UUID(key)}'" if is_quoted else str(int(key)) for key in chosen)
        rendered = table.dialect.statement(statement, table=table.qualified, ids=ids)
        with table.errors(f"{statement.replace('_', ' ')} {counted(len(chosen), 'row')} of {table.qualified}"):
            yield from fetch_all(table.connection(), rendered, **values)


def _waiting(row: Sequence[Any]) -> WaitingRow:
    key, due, seconds, headers, body, length = row
    text = text_of(due, "replace") or ""
    left = None if seconds is None or not math.isfinite(seconds) else float(seconds)
    return WaitingRow(
        key=str(key),
        due_text=text,
        due=_instant(text),
        seconds=left,
        headers=text_of(headers, "replace"),
        body=bytes_of(body),
        body_length=None if length is None else int(length),
    )


def _instant(text: str) -> datetime | None:
    """Parse an instant in ISO format, in UTC if it has no offset."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
