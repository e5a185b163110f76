"""Rows whose headers hold a text, looked for in many tables at once, in each no further than a limit.

There is no index on what headers say, so a look reads rows: the first ones of a queue, or the last ones of a table that only grows.
It takes nothing, locks nothing, waits for nobody, and says where there was more than it has read.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection
from sqlqueue_app.tables.listing import TABLES_PER_STATEMENT, Piece, union_of
from sqlqueue_app.tables.rows import row_id_of, text_of

# Every text of headers that is a JSON object has it: to find all rows.
EVERY: Final = "{"


@dataclass(frozen=True, slots=True)
class Place:
    """A table to look into: `looked` rows of a queue, the first or the last ones; or, with `is_delayed`, of delayed messages."""

    address: QueueAddress
    looked: int
    is_delayed: bool = False
    from_end: bool = False


@dataclass(frozen=True, slots=True)
class FoundRow:
    """A row that was found, with the number of its place. A delayed message has either no number (0) or no `id`."""

    place: int
    row_version: int
    id: uuid.UUID | None
    headers: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, in the order of the places; and the places that have more rows than were looked at."""

    rows: tuple[FoundRow, ...]
    longer: frozenset[int]


def find_rows(alias: str, places: Sequence[Place], text: str, *, most: int) -> Finding:
    """The rows whose headers hold the text, as it stands in the JSON; `most` of each place at most.

    A statement for each hundred tables. Raises DatabaseError if one of them is gone.
    """
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    rows: list[FoundRow] = []
    longer: set[int] = set()
    with database_errors(dialect, f"look for messages in {len(places)} tables"):
        for start in range(0, len(places), TABLES_PER_STATEMENT):
            part = list(enumerate(places))[start : start + TABLES_PER_STATEMENT]
            statement, values = union_of(dialect, [_piece(number, place, text, most) for number, place in part])
            with connection.cursor() as cursor:
                cursor.execute(statement, values)
                for number, row_version, row_id, headers in cursor.fetchall():
                    if row_version is None:
                        longer.add(int(number))
                        continue
                    found_id = None if row_id is None else row_id_of(row_id)
                    rows.append(FoundRow(int(number), int(row_version), found_id, text_of(headers, "replace")))
    return Finding(tuple(sorted(rows, key=lambda row: (row.place, row.row_version))), frozenset(longer))


def _piece(number: int, place: Place, text: str, most: int) -> Piece:
    name = "find_in_delayed" if place.is_delayed else "find_in_queue"
    order = {"order": "DESC" if place.from_end else "ASC"}
    return Piece(name, number, place.address, {"looked": place.looked, "most": most, "text": text}, order)
