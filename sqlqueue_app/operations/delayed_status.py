"""How much waits in the delayed tables, and how much of it is overdue: that grows where no worker moves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, QueueNotFound
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.other_queues import other_delayed_tables
from sqlqueue_app.operations.queue_looks import table_key
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.listing import ListedTable, look_at_delayed
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT
from sqlqueue_app.tables.well_known import delayed_address


@dataclass(frozen=True, slots=True)
class DelayedStatus:
    """The delayed table of one endpoint. `exists`, `waiting` and `overdue` are None where the database would not say.

    `exact` is False where a number has reached the limit: then there are at least so many.
    """

    endpoint: str
    table: str
    exists: bool | None = None
    waiting: int | None = None
    overdue: int | None = None
    exact: bool = True


def read_delayed(
    settings: Settings, *, limit: int = EXACT_COUNT_LIMIT, listed: Iterable[ListedTable] | None = None
) -> tuple[DelayedStatus, ...]:
    """The delayed tables of all endpoints of the settings and of SEND_AS. Raises ConnectionLost.

    One statement for each; with `listed`, the tables of the database, one for a hundred, and those of other systems come behind.
    """
    book = address_book_of(settings)
    tables = [(name, DelayedTable(settings.database, delayed_address(book, name))) for name in settings.senders]
    found: dict[str, DelayedStatus] = {}
    if listed is not None:
        known = {table_key(table.address) for table in listed if table.is_delayed}
        others = other_delayed_tables(settings, listed)
        tables += [(name, DelayedTable(settings.database, address)) for name, address in others]
        found = _look_together([each for each in tables if table_key(each[1].address) in known], limit)
    return tuple(found.get(table.qualified) or _look(name, table, limit) for name, table in tables)


def _look_together(tables: Sequence[tuple[str, DelayedTable]], limit: int) -> dict[str, DelayedStatus]:
    """By qualified name; nothing where one of them cannot be looked at."""
    if not tables:
        return {}
    alias = tables[0][1].alias
    try:
        with looking(alias, f"look at {len(tables)} tables of delayed messages"):
            looks = look_at_delayed(alias, [table.address for _name, table in tables], limit + 1)
    except ConnectionLost:
        raise
    except DatabaseError:
        return {}
    return {
        table.qualified: _status(name, table, look.waiting, look.overdue, limit)
        for (name, table), look in zip(tables, looks, strict=True)
    }


def _look(endpoint: str, table: DelayedTable, limit: int) -> DelayedStatus:
    try:
        with looking(table.alias, f"look at {table.qualified}"):
            waiting, overdue = table.count(limit + 1)
    except ConnectionLost:
        raise
    except QueueNotFound:
        return DelayedStatus(endpoint, table.qualified, exists=False)
    except DatabaseError:
        return DelayedStatus(endpoint, table.qualified)
    return _status(endpoint, table, waiting, overdue, limit)


def _status(endpoint: str, table: DelayedTable, waiting: int, overdue: int, limit: int) -> DelayedStatus:
    return DelayedStatus(endpoint, table.qualified, True, min(waiting, limit), min(overdue, limit), exact=waiting <= limit)
