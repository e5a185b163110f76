"""Readers of every version, written from the description of the wire (docs/internals/wire.md), not from our code.

Each takes a row as it is in the table, and returns what an endpoint of that version reads from it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlqueue_app.messages import QueueAddress
from tests.support.raw_rows import RawRow

INT32 = 2**31 - 1
Place = tuple[str, str | None, str | None]
"""Table, schema and catalog, as far as the reader sees them in an address."""


@dataclass(frozen=True)
class Seen:
    """The values that a reader takes from a row. `seconds_left`: seconds until it drops the message; None: never."""

    message_id: str
    correlation_id: str | None
    reply_to: Place | None
    seconds_left: float | None = None


def header(row: RawRow, name: str) -> str | None:
    return row.headers.get(f"NServiceBus.{name}")


def message_id(row: RawRow) -> str:
    """3.0 and later: the text of the header, else the id of the row."""
    return header(row, "MessageId") or str(row.id)


def guid(row: RawRow) -> str:
    """1.x and 2.x: the same, but parsed as a GUID as soon as the message is passed on."""
    return str(uuid.UUID(message_id(row)))


def cut(text: str | None) -> Place | None:
    """1.x and 2.x: the queue is the part before the first @; settings define its schema."""
    return (text.split("@")[0], None, None) if text else None


def two_parts(text: str | None) -> Place | None:
    """3.0: split at every @, the third part is dropped."""
    if not text:
        return None
    table, *others = text.split("@")
    schema = others[0] if others else None
    if schema is not None and schema.startswith("[") and schema.endswith("]"):
        schema = schema[1:-1].replace("]]", "]")
    return table, schema, None


def parts(form: str) -> Callable[[str | None], Place | None]:
    """3.1 and later, PostgreSQL: the parsers that tests/messages/test_addresses.py compares with recorded addresses."""

    def read(text: str | None) -> Place | None:
        if not text:
            return None
        address = QueueAddress.parse(text, form)
        return address.table, address.schema, address.catalog

    return read


three_parts, postgresql_parts = parts("sqlserver"), parts("postgresql")


def version_1(row: RawRow) -> Seen:
    """Reply-to and correlation are columns; no header has them."""
    return Seen(guid(row), row.correlation_id, cut(row.reply_to_address), row.seconds_left)


def version_2(row: RawRow) -> Seen:
    """The correlation column overwrites the header, NULL too; an empty reply-to column does not. Callback queues come first."""
    reply_to = header(row, "SqlServer.CallbackQueue") or row.reply_to_address or header(row, "ReplyToAddress")
    return Seen(guid(row), row.correlation_id, cut(reply_to), row.seconds_left)


def version_2_2_2(row: RawRow) -> Seen:
    """As before, but the database counts the remaining milliseconds in an int: a larger value would block the queue (error 535)."""
    seen = version_2(row)
    assert seen.seconds_left is None or abs(round(seen.seconds_left * 1000)) <= INT32, "DATEDIFF overflows"
    return seen


def column_first(read: Callable[[str | None], Place | None]) -> Callable[[RawRow], Seen]:
    """3.0 to 6.x: the correlation column is ignored; the callback queue of 2.x replaces the reply-to address."""

    def reader(row: RawRow) -> Seen:
        reply_to = header(row, "SqlServer.CallbackQueue") or row.reply_to_address or header(row, "ReplyToAddress")
        return Seen(message_id(row), header(row, "CorrelationId"), read(reply_to), row.seconds_left)

    return reader


def version_7(row: RawRow) -> Seen:
    """7.0 to 8.0: headers only."""
    return column_first(three_parts)(replace(row, reply_to_address=None))


def headers_alone(read: Callable[[str | None], Place | None]) -> Callable[[RawRow], Seen]:
    """8.1 and later: the callback queue of 2.x is ignored."""

    def reader(row: RawRow) -> Seen:
        return Seen(message_id(row), header(row, "CorrelationId"), read(header(row, "ReplyToAddress")), row.seconds_left)

    return reader


SQL_SERVER_READERS: dict[str, Callable[[RawRow], Seen]] = {
    "1.x": version_1,
    "2.0-2.2.1": version_2,
    "2.2.2-2.2.6": version_2_2_2,
    "3.0": column_first(two_parts),
    "3.1-6.x": column_first(three_parts),
    "7.0-8.0": version_7,
    "8.1+": headers_alone(three_parts),
}
POSTGRESQL_READERS: dict[str, Callable[[RawRow], Seen]] = {"PostgreSQL": headers_alone(postgresql_parts)}


def readers_of(vendor: str) -> dict[str, Callable[[RawRow], Seen]]:
    """Return the versions that can read rows of that product; SQLite has the table of SQL Server."""
    return POSTGRESQL_READERS if vendor == "postgresql" else SQL_SERVER_READERS
