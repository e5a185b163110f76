"""Rows of a queue table by RowVersion: a few chosen by a person, or ranges of hundreds of thousands for the pipeline.

Each call may raise DatabaseError, including QueueNotFound. Chosen rows take one statement for each thousand.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from sqlqueue_app.messages.errors import counted
from sqlqueue_app.tables.connections import fetch_all, run
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.rows import bytes_of, row_id_of, text_of

# The maximum number of RowVersions in one statement.
ROWS_PER_STATEMENT: Final = 1_000
Chosen = TypeVar("Chosen")


@dataclass(frozen=True, slots=True)
class TakenRow:
    """A deleted row, complete. `lifetime_ms` is its remaining lifetime by the database's clock; None: unlimited."""

    row_version: int
    id: uuid.UUID
    correlation_id: str | None
    reply_to_address: str | None
    lifetime_ms: int | None
    headers: str | None
    body: bytes | None


def headers_of_rows(table: QueueTable, row_versions: Iterable[int]) -> dict[int, str | None]:
    """The header texts of the existing rows, by RowVersion; on SQL Server without locked rows. Locks nothing."""
    return {int(number): text_of(headers) for number, headers in _each(table, "headers_of_rows", row_versions)}


def take_rows(table: QueueTable, row_versions: Iterable[int]) -> list[TakenRow]:
    """Delete the rows and return them, oldest first, without rows that are gone or locked by others.

    Runs in the caller's transaction. Loads whole bodies into memory: choose few if they are large.
    """
    found = (_taken(row) for row in _each(table, "take", row_versions, **table.deleted_correlation_columns()))
    return sorted(found, key=lambda row: row.row_version)


def remove_rows(table: QueueTable, row_versions: Iterable[int]) -> list[int]:
    """Delete the rows and return the RowVersions of those that existed and were not locked by others; otherwise as `take_rows`."""
    return sorted(int(number) for (number,) in _each(table, "remove", row_versions))


def free_rows(table: QueueTable, row_versions: Iterable[int]) -> set[int]:
    """Those of the RowVersions whose rows exist and that no other transaction holds; on SQLite all that exist. Locks nothing."""
    return {int(number) for (number,) in _each(table, "free_rows", row_versions)}


def find_ids(table: QueueTable, ids: Collection[uuid.UUID], *, limit: int) -> dict[uuid.UUID, int]:
    """The RowVersions of the existing rows with these ids, at most a thousand ids; one statement, which takes nothing.

    Searches the whole table on PostgreSQL, and the first `limit` rows on other databases, which have no index on ids.
    """
    if not ids:
        return {}
    quoted = ", ".join(f"'{table.dialect.uuid_text(each)}'" for each in ids)
    statement = table.dialect.statement("find_ids", table=table.qualified, ids=quoted)
    with table.errors(f"look for messages in {table.qualified}"):
        found = fetch_all(table.connection(), statement, limit=limit)
    return {row_id_of(row_id): int(number) for number, row_id in found}


def statement_chunks(chosen: Iterable[Chosen]) -> Iterator[list[Chosen]]:
    """Split the items lazily into chunks of one statement, a thousand each."""
    source = iter(chosen)
    while chunk := list(islice(source, ROWS_PER_STATEMENT)):
        yield chunk


def _each(table: QueueTable, statement: str, row_versions: Iterable[int], **texts: str) -> Iterator[tuple[Any, ...]]:
    for numbers in statement_chunks(row_versions):
        chosen = ", ".join(str(int(number)) for number in numbers)
        rendered = table.dialect.statement(statement, table=table.qualified, row_versions=chosen, **texts)
        with table.errors(f"{statement.replace('_', ' ')} {counted(len(numbers), 'row')} of {table.qualified}"):
            yield from fetch_all(table.connection(), rendered)


def _taken(row: Sequence[Any]) -> TakenRow:
    row_id, correlation_id, reply_to_address, lifetime, headers, body, row_version = row
    return TakenRow(
        int(row_version),
        row_id_of(row_id),
        text_of(correlation_id),
        text_of(reply_to_address),
        None if lifetime is None else int(lifetime),
        text_of(headers),
        bytes_of(body),
    )


RANGES_PER_STATEMENT: Final = 1_000
# SQL Server escalates 5,000 locks of a statement to a table lock, which blocks senders; others do not.
_ROWS_PER_STATEMENT: Final = {"sqlserver": 4_900}
_IDS_PER_STATEMENT: Final = 50_000
# One above the lowest bigint, whose digits without the sign exceed the type.
BEFORE_ALL: Final = -(2**63) + 1


class RowVersionRange(NamedTuple):
    """Consecutive RowVersions, both ends included."""

    lowest: int
    highest: int


def ranges_of(row_versions: Iterable[int]) -> list[RowVersionRange]:
    """Group the RowVersions into ascending ranges without gaps; duplicates count once."""
    found: list[RowVersionRange] = []
    for number in sorted(row_versions):
        if found and number <= found[-1].highest + 1:
            found[-1] = RowVersionRange(found[-1].lowest, number)
        else:
            found.append(RowVersionRange(number, number))
    return found


def remove_ranges(table: QueueTable, ranges: Iterable[RowVersionRange]) -> int:
    """Delete exactly the rows with these RowVersions, in the caller's transaction, and return how many existed.

    Waits for rows locked by others on PostgreSQL and SQL Server.
    """
    removed = 0
    for chunk in _chunks(ranges, _ROWS_PER_STATEMENT.get(table.dialect.name)):
        text = ", ".join(f"({int(each.lowest)}, {int(each.highest)})" for each in chunk)
        with table.errors(f"delete {counted(len(chunk), 'range')} of rows of {table.qualified}"):
            removed += run(table.connection(), table.dialect.statement("remove_ranges", table=table.qualified, ranges=text))
    return removed


def row_ids(table: QueueTable) -> Iterator[tuple[int, str]]:
    """The RowVersion and the id of every row, ascending; on SQL Server without locked rows. The id is "" if it is NULL.

    Uses one statement for each 50,000 rows. The result is not a snapshot: it may miss or include concurrent changes.
    """
    statement = table.dialect.statement("row_ids", table=table.qualified)
    after = BEFORE_ALL
    while True:
        with table.errors(f"list the rows of {table.qualified}"):
            rows = fetch_all(table.connection(), statement, after=after, limit=_IDS_PER_STATEMENT)
        for number, row_id in rows:
            yield int(number), _id_text(row_id)
        if len(rows) < _IDS_PER_STATEMENT:
            return
        after = int(rows[-1][0])


def row_id_at(table: QueueTable, number: int) -> str | None:
    """The id of the row with that RowVersion, "" if it is NULL; None if no such row is visible."""
    statement = table.dialect.statement("row_ids", table=table.qualified)
    with table.errors(f"read a row of {table.qualified}"):
        rows = fetch_all(table.connection(), statement, after=number - 1, limit=1)
    return _id_text(rows[0][1]) if rows and int(rows[0][0]) == number else None


def row_version_after(table: QueueTable, after: int, highest: int, place: int) -> int | None:
    """The RowVersion of the row at a `place` (from 1) after one RowVersion and up to another; None if there are fewer rows."""
    texts = {"after": str(int(after)), "highest": str(int(highest)), "places": str(int(place) - 1)}
    statement = table.dialect.statement("row_version_after", table=table.qualified, **texts)
    with table.errors(f"look for rows of {table.qualified}"):
        rows = fetch_all(table.connection(), statement)
    return int(rows[0][0]) if rows else None


def drawn_row_version(table: QueueTable) -> int | None:
    """The highest RowVersion ever drawn; None if the database does not report it; on SQL Server 1 if none was drawn."""
    with table.errors(f"look up the numbers of {table.qualified}"):
        statement = table.dialect.statement("drawn_row_version")
        rows = fetch_all(table.connection(), statement, table=table.qualified, name=table.address.table)
    return int(rows[0][0]) if rows and rows[0][0] is not None else None


def _id_text(row_id: object) -> str:
    return "" if row_id is None else str(row_id_of(row_id))


def _chunks(ranges: Iterable[RowVersionRange], max_rows: int | None) -> Iterator[list[RowVersionRange]]:
    chunk: list[RowVersionRange] = []
    rows = 0
    for each in _pieces(ranges, max_rows):
        length = each.highest - each.lowest + 1
        if chunk and (len(chunk) == RANGES_PER_STATEMENT or (max_rows is not None and rows + length > max_rows)):
            yield chunk
            chunk, rows = [], 0
        chunk.append(each)
        rows += length
    if chunk:
        yield chunk


def _pieces(ranges: Iterable[RowVersionRange], max_rows: int | None) -> Iterator[RowVersionRange]:
    """Split ranges that are too long."""
    for lowest, highest in ranges:
        if max_rows is None:
            yield RowVersionRange(lowest, highest)
            continue
        for start in range(lowest, highest + 1, max_rows):
            yield RowVersionRange(start, min(start + max_rows - 1, highest))
