"""Rows written to and read from a queue table, the same for every database."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

# The transport's columns hold 255 characters; longer text stays only in the headers (docs/internals/wire.md#limits).
_COLUMN_CHARACTERS = 255
# DATEADD(ms) takes a 32-bit integer: 24 days, 20 hours (docs/internals/wire.md#limits). The same clamp everywhere.
MAX_TIME_TO_BE_RECEIVED_MS = 2**31 - 1


def clamped(time_to_be_received_ms: int) -> int:
    """The lifetime, limited to what every database supports."""
    return max(-MAX_TIME_TO_BE_RECEIVED_MS, min(time_to_be_received_ms, MAX_TIME_TO_BE_RECEIVED_MS))


@dataclass(frozen=True, slots=True)
class NewRow:
    """A row to send. `time_to_be_received_ms` is clamped to 24.8 days; the database's clock adds it to now.

    Only rows of a delayed table have `delay_ms`, which the database's clock adds to now, or `due` (aware).
    """

    id: str
    headers: str
    body: bytes
    correlation_id: str | None = None
    reply_to_address: str | None = None
    time_to_be_received_ms: int | None = None
    delay_ms: int | None = None
    due: datetime | None = None

    @property
    def is_delayed(self) -> bool:
        """Whether the row belongs in a table of delayed messages."""
        return self.delay_ms is not None or self.due is not None


def delayed_values_of(rows: Iterable[NewRow], names: Sequence[str]) -> list[Any]:
    """The values of rows of a delayed table, one row after the other, each in the order of the names."""
    values: list[Any] = []
    for row in rows:
        held = {
            "headers": row.headers,
            "body": row.body,
            "delay_ms": row.delay_ms,
            # ISO text in UTC: independent of the session's time zone.
            "due": None if row.due is None else row.due.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds"),
        }
        values += [held[name] for name in names]
    return values


def values_of(rows: Iterable[NewRow], names: Sequence[str], dialect: str) -> list[Any]:
    """The values of the rows, one row after the other, each in the order of the names, as the database's columns hold them."""
    values: list[Any] = []
    for row in rows:
        lifetime = row.time_to_be_received_ms
        held = {
            "id": row.id.replace("-", "") if dialect == "sqlite" else row.id,
            "time_to_be_received_ms": None if lifetime is None else clamped(lifetime),
            "headers": _as_it_was(row.headers) if dialect == "sqlite" else row.headers,
            "body": row.body,
            "correlation_id": _column_text(row.correlation_id, dialect),
            "reply_to_address": _column_text(row.reply_to_address, dialect),
        }
        values += [held[name] for name in names]
    return values


def _column_text(text: str | None, dialect: str) -> str | bytes | None:
    """The text for the transport's column, or None: if the column is NULL most readers use the header.

    On SQL Server it is `varchar`, which would change characters other than ASCII.
    """
    if text is None or len(text) > _COLUMN_CHARACTERS or (dialect == "sqlserver" and not text.isascii()):
        return None
    return _as_it_was(text) if dialect == "sqlite" else text


class ReceivedRow(NamedTuple):
    """A row deleted by a receive. `body` is None if the column was NULL.

    A tuple, because one is made for every message: a frozen dataclass takes three times as long.
    """

    id: uuid.UUID
    correlation_id: str | None
    reply_to_address: str | None
    expired: bool
    headers: str | None
    body: bytes | None
    row_version: int = 0


@dataclass(frozen=True, slots=True)
class PeekedRow:
    """A row that is still in the table. `body` is the beginning of the body, `body_length` its total number of bytes."""

    row_version: int
    id: uuid.UUID
    correlation_id: str | None
    reply_to_address: str | None
    expires: datetime | None
    expired: bool
    headers: str | None
    body: bytes | None
    body_length: int | None


def received_rows(found: Iterable[Sequence[Any]]) -> list[ReceivedRow]:
    """The rows of a receive statement in queue order: a DELETE returns rows in no particular order."""
    return sorted((_received_row(row) for row in found), key=lambda row: row.row_version)


def _received_row(row: Sequence[Any]) -> ReceivedRow:
    row_id, correlation_id, reply_to_address, expired, headers, body, row_version = row
    return ReceivedRow(
        row_id_of(row_id),
        correlation_id if correlation_id is None else text_of(correlation_id),
        reply_to_address if reply_to_address is None else text_of(reply_to_address),
        bool(expired),
        headers if type(headers) is str else text_of(headers),
        bytes_of(body),
        int(row_version),
    )


def peeked_row(row: tuple[Any, ...]) -> PeekedRow:
    """The row of a peek statement."""
    row_version, row_id, correlation_id, reply_to_address, expires, expired, headers, body, length = row
    return PeekedRow(
        int(row_version),
        row_id_of(row_id),
        text_of(correlation_id, "replace"),
        text_of(reply_to_address, "replace"),
        _instant(expires),
        bool(expired),
        text_of(headers, "replace"),
        bytes_of(body),
        length,
    )


def row_id_of(value: Any) -> uuid.UUID:
    """The row id for a driver's value of its column."""
    if isinstance(value, uuid.UUID):
        return value
    text = text_of(value, "backslashreplace") or ""
    try:
        return uuid.UUID(text)
    except ValueError:
        # SQLite has no type that excludes other text from the column; the same text always gives the same id.
        return uuid.uuid5(uuid.NAMESPACE_OID, text)


def text_of(value: Any, errors: str = "surrogateescape") -> str | None:
    """The text in a column. SQLite returns bytes that may not be UTF-8: surrogate escapes keep them for the way back."""
    text: str | None = value.decode("utf-8", errors) if isinstance(value, bytes) else value
    return text


def _as_it_was(text: str) -> str | bytes:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return _bytes_again(text)
    return text


def _bytes_again(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def bytes_of(value: Any) -> bytes | None:
    """The bytes in the column of a body; None for NULL."""
    return value if value is None or isinstance(value, bytes) else bytes(value)


def _instant(value: Any) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        try:
            value = datetime.fromisoformat(value.decode("ascii"))
        except ValueError:
            return None
    instant: datetime = value
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def without_nul(text: str) -> str:
    """Replace NUL by U+FFFD."""
    return text.replace("\0", "\ufffd")


def cut_text(text: str, limit: int | None) -> str:
    """Remove NUL and cut the text to a column of `limit` characters in every database: SQL Server counts UTF-16."""
    whole = without_nul(text)
    return whole if limit is None else whole.encode("utf-16-le", "surrogatepass")[: 2 * limit].decode("utf-16-le", "ignore")
