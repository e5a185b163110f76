"""The table of an endpoint's delayed messages: put in, take what is due. The database's clock says what is (design 6.3)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlqueue_app.databases.statements import Rendered
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection, fetch_all, run


@dataclass(frozen=True, slots=True)
class DelayedRow:
    """A row that was taken: its headers as text, its body."""

    headers: str
    body: bytes


class DelayedTable:
    """A description, not a connection: each call uses the calling thread's Django connection. May be shared by threads."""

    def __init__(self, alias: str, address: QueueAddress) -> None:
        self.alias = alias
        self.address = address
        self._dialect = dialect_of_connection(connection_of(alias))
        self.qualified = self._dialect.qualified(address)

    def add(self, headers: str, body: bytes, due: datetime) -> None:
        """Keep a message until `due`, which is aware; in the caller's transaction if there is one, else committed on return.

        Fractions are kept to the millisecond. QueueNotFound if the table is missing.
        """
        text = due.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
        with database_errors(self._dialect, f"delay a message in {self.qualified}"):
            run(connection_of(self.alias), self._statement("delay"), headers=headers, body=body, due=text)

    def any_due(self) -> bool:
        """Whether a message is due; takes nothing and, on SQLite, not the write lock."""
        with database_errors(self._dialect, f"look for due messages in {self.qualified}"):
            return bool(fetch_all(connection_of(self.alias), self._statement("any_due"))[0][0])

    def take_due(self, limit: int) -> list[DelayedRow]:
        """Delete at most `limit` due messages, the earliest, and return them in no order; inside of the caller's transaction.

        Messages that another process is taking are stepped over.
        """
        with database_errors(self._dialect, f"take due messages from {self.qualified}"):
            rows = fetch_all(connection_of(self.alias), self._statement("take_due"), limit=limit)
        return [DelayedRow(headers, _bytes(body)) for headers, body in rows]

    def _statement(self, name: str) -> Rendered:
        return self._dialect.statement(name, table=self.qualified)


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):  # inserted by hand into SQLite
        return value.encode("utf-8")
    return b"" if value is None else bytes(value)
