"""Rows of a queue table by their RowVersions: a few that a person chose, or ranges of hundreds of thousands for the pipeline.

Each call raises DatabaseErrors, QueueNotFound among them. Chosen rows take one statement for a thousand.
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

# So many numbers stand in one statement at most.
ROWS_PER_STATEMENT: Final = 1_000
Chosen = TypeVar("Chosen")


@dataclass(frozen=True, slots=True)
class TakenRow:
    """A row that was deleted, in full. `lifetime_ms` is what is left of its life by the database's clock; None: for ever."""

    row_version: int
    id: uuid.UUID
    correlation_id: str | None
    reply_to_address: str | None
    lifetime_ms: int | None
    headers: str | None
    body: bytes | None


def headers_of_rows(table: QueueTable, row_versions: Iterable[int]) -> dict[int, str | None]:
    """The header texts of the rows that are there, by RowVersion; on SQL Server without rows that somebody holds. Locks nothing."""
    return {int(number): text_of(headers) for number, headers in _each(table, "look_at", row_versions)}


def take_rows(table: QueueTable, row_versions: Iterable[int]) -> list[TakenRow]:
    """Delete the rows and return them, oldest first; those that are gone, or that somebody else holds, are left out.

    In the caller's transaction. Bodies are in memory whole: choose few if they are large.
    """
    found = (_taken(row) for row in _each(table, "take", row_versions, **table.deleted_correlation_columns()))
    return sorted(found, key=lambda row: row.row_version)


def remove_rows(table: QueueTable, row_versions: Iterable[int]) -> list[int]:
    """Delete the rows and return the numbers of those that were there, and that nobody else holds; otherwise as `take_rows`."""
    return sorted(int(number) for (number,) in _each(table, "remove", row_versions))


def find_ids(table: QueueTable, ids: Collection[uuid.UUID], *, limit: int) -> dict[uuid.UUID, int]:
    """The RowVersions of the rows of these ids, that are there: a thousand ids at most; one statement, which takes nothing.

    On PostgreSQL anywhere in the table, on the others among the first `limit` rows, for they have no index of ids.
    """
    if not ids:
        return {}
    quoted = ", ".join(f"'{table.dialect.uuid_text(each)}'" for each in ids)
    statement = table.dialect.statement("find_ids", table=table.qualified, ids=quoted)
    with table.errors(f"look for messages in {table.qualified}"):
        found = fetch_all(table.connection(), statement, limit=limit)
    return {row_id_of(row_id): int(number) for number, row_id in found}


def statement_chunks(chosen: Iterable[Chosen]) -> Iterator[list[Chosen]]:
    """What stands in one statement, one after the other: a thousand each, as they are asked for."""
    source = iter(chosen)
    while portion := list(islice(source, ROWS_PER_STATEMENT)):
        yield portion


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
# SQL Server exchanges 5,000 locks of a statement for one of the table, for which senders would wait; others know no such thing.
_ROWS_PER_STATEMENT: Final = {"sqlserver": 4_900}
_IDS_PER_STATEMENT: Final = 50_000
# One above the lowest bigint, whose digits alone would be none.
BEFORE_ALL: Final = -(2**63) + 1


class NumberRange(NamedTuple):
    """Consecutive RowVersions, both ends among them."""

    lowest: int
    highest: int


def ranges_of(row_versions: Iterable[int]) -> list[NumberRange]:
    """The numbers as ranges without gaps, ascending; a number that comes twice is in one range, once."""
    found: list[NumberRange] = []
    for number in sorted(row_versions):
        if found and number <= found[-1].highest + 1:
            found[-1] = NumberRange(found[-1].lowest, number)
        else:
            found.append(NumberRange(number, number))
    return found


def remove_ranges(table: QueueTable, ranges: Iterable[NumberRange]) -> int:
    """Delete exactly the rows of these numbers and return how many there were, in the caller's transaction.

    Rows that somebody else holds are waited for on PostgreSQL and SQL Server.
    """
    removed = 0
    for portion in _chunks(ranges, _ROWS_PER_STATEMENT.get(table.dialect.name)):
        text = ", ".join(f"({int(each.lowest)}, {int(each.highest)})" for each in portion)
        with table.errors(f"delete {counted(len(portion), 'range')} of rows of {table.qualified}"):
            removed += run(table.connection(), table.dialect.statement("remove_ranges", table=table.qualified, ranges=text))
    return removed


def row_ids(table: QueueTable) -> Iterator[tuple[int, str]]:
    """The number and the id of every row, ascending; on SQL Server without rows that somebody holds. The id is "" where it is NULL.

    One statement for 50,000 rows, which are no snapshot together: what comes or goes meanwhile may be in it or not.
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
    """The id of the row of that number, "" where it is NULL; None where no such row can be seen."""
    statement = table.dialect.statement("row_ids", table=table.qualified)
    with table.errors(f"look at a row of {table.qualified}"):
        rows = fetch_all(table.connection(), statement, after=number - 1, limit=1)
    return _id_text(rows[0][1]) if rows and int(rows[0][0]) == number else None


def row_version_after(table: QueueTable, after: int, highest: int, place: int) -> int | None:
    """The number of the n-th row after one number and up to another; None if there are fewer."""
    texts = {"after": str(int(after)), "highest": str(int(highest)), "places": str(int(place) - 1)}
    statement = table.dialect.statement("row_version_after", table=table.qualified, **texts)
    with table.errors(f"look for rows of {table.qualified}"):
        rows = fetch_all(table.connection(), statement)
    return int(rows[0][0]) if rows else None


def numbers_drawn(table: QueueTable) -> int | None:
    """The highest number that a row of the table has had; None if the database does not tell; on SQL Server 1 if none had."""
    with table.errors(f"look up the numbers of {table.qualified}"):
        statement = table.dialect.statement("numbers_drawn")
        rows = fetch_all(table.connection(), statement, table=table.qualified, name=table.address.table)
    return int(rows[0][0]) if rows and rows[0][0] is not None else None


def _id_text(row_id: object) -> str:
    return "" if row_id is None else str(row_id_of(row_id))


def _chunks(ranges: Iterable[NumberRange], most_rows: int | None) -> Iterator[list[NumberRange]]:
    portion: list[NumberRange] = []
    rows = 0
    for each in _pieces(ranges, most_rows):
        length = each.highest - each.lowest + 1
        if portion and (len(portion) == RANGES_PER_STATEMENT or (most_rows is not None and rows + length > most_rows)):
            yield portion
            portion, rows = [], 0
        portion.append(each)
        rows += length
    if portion:
        yield portion


def _pieces(ranges: Iterable[NumberRange], most_rows: int | None) -> Iterator[NumberRange]:
    """The ranges, those that are too long cut."""
    for lowest, highest in ranges:
        if most_rows is None:
            yield NumberRange(lowest, highest)
            continue
        for start in range(lowest, highest + 1, most_rows):
            yield NumberRange(start, min(start + most_rows - 1, highest))
