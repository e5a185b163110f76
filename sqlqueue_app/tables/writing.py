"""Rows into queue tables, all or none: in chunks of one statement each, of which few are in memory at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol

from django.db import transaction

from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection
from sqlqueue_app.tables.rows import NewRow

# So many bytes of headers and bodies wait for a statement at most, so that memory and the server's packet limits hold with large
# messages; one larger message goes alone.
SEND_BYTES_PER_STATEMENT = 4 * 1024 * 1024


class Inserts(Protocol):
    """A table that takes a chunk of rows in one statement."""

    def rows_per_statement(self) -> int: ...

    def insert(self, rows: list[NewRow]) -> None: ...


Chunk = tuple[Inserts, list[NewRow]]


@dataclass(slots=True)
class _Filling:
    """A chunk that is not full yet: its rows, how many it takes, the bytes it holds."""

    room: int
    rows: list[NewRow] = field(default_factory=list)
    weight: int = 0


def chunks_by_table(rows: Iterable[tuple[Inserts, NewRow]]) -> Iterator[Chunk]:
    """The rows in chunks that one statement takes, those of each table in their order.

    A chunk leaves when it is full, and all leave before they hold more than SEND_BYTES_PER_STATEMENT together.
    """
    filling: dict[Inserts, _Filling] = {}
    weight = 0
    for table, row in rows:
        size = len(row.body) + len(row.headers)
        if weight and weight + size > SEND_BYTES_PER_STATEMENT:
            for other, chunk in filling.items():
                yield other, chunk.rows
            filling, weight = {}, 0
        chosen = filling.get(table)
        if chosen is None:
            chosen = filling[table] = _Filling(table.rows_per_statement())
        chosen.rows.append(row)
        chosen.weight += size
        weight += size
        if len(chosen.rows) == chosen.room:
            del filling[table]
            weight -= chosen.weight
            yield table, chosen.rows
    for other, chunk in filling.items():
        yield other, chunk.rows


def write_chunks(alias: str, chunks: Iterable[Chunk], *, begun: bool = False) -> None:
    """Insert the chunks: all or none, also for a caller in a transaction who catches the error.

    One chunk is one statement and needs nothing; more get a transaction, or a savepoint inside of the caller's. Not so with
    `begun`: the caller has begun what it will roll back on any error. Chunks are asked for one at a time then.
    """
    source = iter(chunks)
    if not begun:
        ahead = list(islice(source, 2))
        source, begun = chain(ahead, source), len(ahead) < 2
    with nullcontext() if begun else all_or_none(alias):
        for table, rows in source:
            table.insert(rows)


@contextmanager
def all_or_none(alias: str) -> Iterator[None]:
    """`atomic()` on the alias whose own errors, of its begin and its commit, come as our kinds; what is raised inside passes."""
    dialect = dialect_of_connection(connection_of(alias))
    block = transaction.atomic(using=alias)
    with database_errors(dialect, f"begin a transaction on {alias!r} to send messages"):
        block.__enter__()
    try:
        yield
    except BaseException:
        block.__exit__(*sys.exc_info())
        raise
    with database_errors(dialect, f"commit the messages sent on {alias!r}"):
        block.__exit__(None, None, None)
