"""Layouts: which columns a queue table has, and what follows from it for the statements.

Tables that somebody else made are used as they are: a table is one of ours, or of a transport version, if it has the columns that
every version needs; the others may be missing or added (transport reference 1.1, 1.3, 11.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlqueue_app.messages.errors import TableMismatch

_NEEDED_SQLSERVER = frozenset({"id", "expires", "headers", "body", "rowversion"})
_NEEDED_POSTGRESQL = frozenset({"id", "expires", "headers", "body", "seq"})
# Nobody else makes queues on SQLite, and its statements name the columns of the reply.
_NEEDED_SQLITE = _NEEDED_SQLSERVER | {"correlationid", "replytoaddress"}
_NEEDED: Mapping[str, frozenset[str]] = {"sqlserver": _NEEDED_SQLSERVER, "postgresql": _NEEDED_POSTGRESQL, "sqlite": _NEEDED_SQLITE}
_NEEDED_DELAYED = frozenset({"headers", "body", "due"})
_NEEDED_SUBSCRIPTIONS = frozenset({"queueaddress", "endpoint", "topic"})
_NON_UNICODE_TYPES = frozenset({"varchar", "char", "text"})


@dataclass(frozen=True, slots=True)
class TableShape:
    """What the database says of a table: columns with their types, first key columns of the indexes with the index kind."""

    columns: tuple[tuple[str, str], ...]
    indexes: tuple[tuple[str, str], ...]

    def has(self, column: str) -> bool:
        """Whether there is such a column, whatever its case."""
        return column.lower() in {name.lower() for name, _ in self.columns}

    def type_of(self, column: str) -> str | None:
        """The type of the column as the database prints it, or None."""
        return next((kind for name, kind in self.columns if name.lower() == column.lower()), None)

    def has_index_on(self, column: str) -> bool:
        """Whether an index, of any name, starts with the column."""
        return any(name.lower() == column.lower() for name, _ in self.indexes)


@dataclass(frozen=True, slots=True)
class QueueLayout:
    """The layout of one queue table as it was found.

    `send_columns` are the columns that a send fills, in the order of the statement. `expires_index` is whether counting and purging
    by expiry can use an index. `unicode_headers` is False for a `varchar` column on SQL Server.
    """

    send_columns: tuple[str, ...]
    correlation_columns: bool
    expires_index: bool
    unicode_headers: bool


def layout_of(dialect: str, table: str, shape: TableShape) -> QueueLayout:
    """The layout of the table that was found; TableMismatch names the columns that are missing."""
    _check_columns(table, "queue", _NEEDED[dialect], shape)
    names = {name.lower() for name, _ in shape.columns}
    send = ["Id", "CorrelationId", "ReplyToAddress", "Recoverable", "Expires", "Headers", "Body"]
    headers_type = shape.type_of("headers") or ""
    return QueueLayout(
        send_columns=tuple(column for column in send if column.lower() in names),
        correlation_columns={"correlationid", "replytoaddress"} <= names,
        expires_index=shape.has_index_on("expires"),
        unicode_headers=dialect != "sqlserver" or headers_type.lower() not in _NON_UNICODE_TYPES,
    )


def check_delayed(table: str, shape: TableShape) -> None:
    """TableMismatch if the table that was found cannot hold delayed messages."""
    _check_columns(table, "delayed", _NEEDED_DELAYED, shape)


def check_subscriptions(table: str, shape: TableShape) -> None:
    """TableMismatch if the table that was found cannot hold subscriptions."""
    _check_columns(table, "subscriptions", _NEEDED_SUBSCRIPTIONS, shape)


def _check_columns(table: str, kind: str, needed: frozenset[str], shape: TableShape) -> None:
    missing = sorted(needed - {name.lower() for name, _ in shape.columns})
    if missing:
        found = ", ".join(name for name, _ in shape.columns)
        raise TableMismatch(
            f"table {table} is no {kind} table: column(s) {', '.join(missing)} are missing, found {found}; "
            "name another table in the settings, or rename this one and run sqlqueue_install"
        )
