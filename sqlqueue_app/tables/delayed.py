"""The table of an endpoint's delayed messages: put in, take what is due. The database's clock says what is (design 6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue_app.databases.dialect import Dialect
from sqlqueue_app.databases.statements import Rendered
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.headers import Headers, write_headers
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, fetch_all, run, statement_scope
from sqlqueue_app.tables.inspection import table_exists
from sqlqueue_app.tables.rows import NewRow, bytes_of, delayed_values_of, text_of
from sqlqueue_app.tables.table_errors import TableErrors


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A row that was taken: its headers as text, its body."""

    headers: str
    body: bytes


class DelayedTable:
    """A description, not a connection: each call uses the calling thread's Django connection. May be shared by threads.

    Every call raises QueueNotFound if the table is missing.
    """

    def __init__(self, alias: str, address: QueueAddress) -> None:
        self.alias = alias
        self.address = address
        self.dialect: Dialect = dialect_of_connection(connection_of(alias))
        self.qualified = self.dialect.qualified(address)

    def __repr__(self) -> str:
        return f"<DelayedTable {self.qualified} on {self.alias!r}>"

    def connection(self) -> BaseDatabaseWrapper:
        """The calling thread's Django connection."""
        return connection_of(self.alias)

    def exists(self) -> bool:
        """Whether there is such a table."""
        with database_errors(self.dialect, f"look for {self.qualified}"):
            return table_exists(self.connection(), self.dialect, self.address)

    def forget_layout(self) -> None:
        """Nothing to forget: every table of delayed messages has the same columns."""

    def add(self, headers: str, body: bytes, due: datetime) -> None:
        """Keep a message until `due`, which is aware; in the caller's transaction if there is one, else committed on return.

        Fractions are kept to the millisecond.
        """
        self.insert([NewRow("", headers, body, due=due)])

    def rows_per_statement(self) -> int:
        """How many rows `insert` takes."""
        return self.dialect.rows_per_send

    def insert(self, rows: Sequence[NewRow]) -> None:
        """Keep at most `rows_per_statement` messages, each with a delay or a due time, by one statement, which is all or none."""
        connection = self.connection()
        with TableErrors(self, f"delay {len(rows)} message(s) in {self.qualified}"):
            statement = self.dialect.delay_statement(self.qualified, len(rows))
            values = delayed_values_of(rows, statement.names[: len(statement.names) // len(rows)])
            with statement_scope(connection), connection.cursor() as cursor:
                cursor.execute(statement.sql, values)

    def seconds_until_due(self) -> float | None:
        """Seconds until the earliest message is due, below 0 since then, None if there is none.

        Takes nothing and, on SQLite, not the write lock; a message that somebody is taking counts still.
        """
        with TableErrors(self, f"look for due messages in {self.qualified}"):
            (seconds,) = fetch_all(self.connection(), self._statement("next_due"))[0]
        return None if seconds is None else float(seconds)

    def take_due(self, limit: int) -> list[DelayedRow]:
        """Delete at most `limit` due messages, the earliest, and return them in that order; inside of the caller's transaction.

        Messages that another process is taking are stepped over.
        """
        with TableErrors(self, f"take due messages from {self.qualified}"):
            rows = fetch_all(self.connection(), self._statement("take_due"), limit=limit)
        found = sorted(rows, key=lambda row: row[2])
        return [DelayedRow(text_of(headers) or "", bytes_of(body) or b"") for headers, body, _ in found]

    def cancel(self, headers: Headers) -> int:
        """Delete the messages that carry these two headers, as we write them, and return how many there were.

        Reads the whole table. In the caller's transaction if there is one; messages that are being moved may escape.
        """
        one, other = (write_headers({name: value})[1:-1] for name, value in headers.items())
        with TableErrors(self, f"cancel messages in {self.qualified}"):
            return run(self.connection(), self._statement("cancel"), one=one, other=other)

    def peek(self, limit: int) -> list[DelayedRow]:
        """The first messages that will be due, in that order, without taking them."""
        with TableErrors(self, f"peek into {self.qualified}"):
            rows = fetch_all(self.connection(), self._statement("peek_delayed"), limit=limit)
        return [DelayedRow(text_of(headers) or "", bytes_of(body) or b"") for headers, body in rows]

    def bring_nearer(self, time: timedelta) -> None:
        """Have every message due so much earlier, for tests: the database's clock, which says what is due, goes on as ever."""
        with TableErrors(self, f"change due times in {self.qualified}"):
            run(self.connection(), self._statement("bring_nearer"), milliseconds=time // timedelta(milliseconds=1))

    def count(self, limit: int) -> tuple[int, int]:
        """How many messages wait, and how many of them are due; each number ends at the limit."""
        with TableErrors(self, f"count {self.qualified}"):
            waiting, overdue = fetch_all(self.connection(), self._statement("count_delayed"), limit=limit)[0]
        return int(waiting), int(overdue)

    def _statement(self, name: str) -> Rendered:
        return self.dialect.statement(name, table=self.qualified)
