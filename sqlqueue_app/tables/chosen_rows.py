"""Rows of a queue table that somebody has chosen by their RowVersions: looked at, taken out, removed."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

from sqlqueue_app.tables.connections import fetch_all
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
    """The header texts of those of the rows that are there, by RowVersion; on SQL Server without rows that somebody holds.

    One statement for a thousand. Takes and locks nothing. Raises DatabaseErrors, QueueNotFound among them.
    """
    return {int(number): text_of(headers) for number, headers in _each(table, "look_at", row_versions)}


def take_rows(table: QueueTable, row_versions: Iterable[int]) -> list[TakenRow]:
    """Delete the rows and return them, oldest first; those that are gone, or that somebody else holds, are left out.

    One statement for a thousand, in the caller's transaction. Bodies are in memory whole: choose few if they are large. Raises
    DatabaseErrors, QueueNotFound among them.
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


def statement_portions(chosen: Iterable[Chosen]) -> Iterator[list[Chosen]]:
    """What stands in one statement, one after the other: a thousand each, as they are asked for."""
    source = iter(chosen)
    while portion := list(islice(source, ROWS_PER_STATEMENT)):
        yield portion


def _each(table: QueueTable, statement: str, row_versions: Iterable[int], **texts: str) -> Iterator[tuple[Any, ...]]:
    for numbers in statement_portions(row_versions):
        chosen = ", ".join(str(int(number)) for number in numbers)
        rendered = table.dialect.statement(statement, table=table.qualified, row_versions=chosen, **texts)
        with table.errors(f"{statement.replace('_', ' ')} {len(numbers)} row(s) of {table.qualified}"):
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
