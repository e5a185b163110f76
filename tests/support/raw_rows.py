"""Rows of queue tables written and read with plain SQL, column by column, as another program does it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

# Conversions between the column Expires and seconds from now, by the clock of the database.
_EXPIRES_IN = {
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s || ' seconds')",
    "postgresql": "now() AT TIME ZONE 'UTC' + %s * INTERVAL '1 second'",
    "microsoft": "DATEADD(second, %s, GETUTCDATE())",
}
_SECONDS_LEFT = {
    "sqlite": "(julianday(Expires) - julianday('now')) * 86400.0",
    "postgresql": "extract(epoch FROM expires - now() AT TIME ZONE 'UTC')",
    "microsoft": "CAST(DATEDIFF_BIG(millisecond, GETUTCDATE(), Expires) AS float) / 1000.0",
}


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as stored, with None for missing columns. `seconds_left`: seconds until it expires, None: never."""

    id: uuid.UUID
    correlation_id: str | None
    reply_to_address: str | None
    recoverable: bool | None
    seconds_left: float | None
    headers: dict[str, str | None]
    body: bytes


def has_correlation_columns(connection: BaseDatabaseWrapper) -> bool:
    """Whether queue tables in this database have the columns CorrelationId and ReplyToAddress."""
    return connection.vendor != "postgresql"


def insert_row(
    connection: BaseDatabaseWrapper,
    queue: str,
    row_id: str,
    headers: Mapping[str, str | None],
    body: bytes | None,
    columns: Mapping[str, Any],
    *,
    expires_in: float | None = None,
    escaped: bool = False,
) -> None:
    """Insert a row with the columns Id, Expires, Headers, Body and `columns`.

    The headers are written as by Newtonsoft: characters outside ASCII are kept, or escaped with `escaped`.
    """
    values = {
        "Id": uuid.UUID(row_id).hex if connection.vendor == "sqlite" else row_id,
        "Headers": json.dumps(headers, ensure_ascii=escaped),
        "Body": body,
        **columns,
        "Expires": expires_in,
    }
    marks = ["%s"] * (len(values) - 1) + [_EXPIRES_IN[connection.vendor] if expires_in is not None else "%s"]
    with connection.cursor() as cursor:
        cursor.execute(f'INSERT INTO "{queue}" ({", ".join(values)}) VALUES ({", ".join(marks)})', list(values.values()))


def read_rows(connection: BaseDatabaseWrapper, queue: str) -> list[RawRow]:
    """The rows of a queue, oldest first."""
    order = "seq" if connection.vendor == "postgresql" else "RowVersion"
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT *, {_SECONDS_LEFT[connection.vendor]} AS seconds_left FROM "{queue}" ORDER BY {order}')
        names = [column[0].lower() for column in cursor.description]
        return [_raw_row(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]


def _raw_row(found: dict[str, Any]) -> RawRow:
    recoverable, seconds = found.get("recoverable"), found["seconds_left"]
    return RawRow(
        id=uuid.UUID(str(found["id"])),
        correlation_id=found.get("correlationid"),
        reply_to_address=found.get("replytoaddress"),
        recoverable=None if recoverable is None else bool(recoverable),
        seconds_left=None if seconds is None else float(seconds),
        headers=json.loads(found["headers"]),
        body=bytes(found["body"] or b""),
    )
