"""How much waits in the delayed tables, and how much of it is overdue: that grows where no worker moves it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, QueueNotFound
from sqlqueue_app.operations.known_queues import address_book_of
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.tables.delayed import DelayedTable
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


def read_delayed(settings: Settings, *, limit: int = EXACT_COUNT_LIMIT) -> tuple[DelayedStatus, ...]:
    """The delayed tables of all endpoints of the settings and of SEND_AS: one statement for each. Raises ConnectionLost."""
    book = address_book_of(settings)
    return tuple(_look(name, DelayedTable(settings.database, delayed_address(book, name)), limit) for name in settings.senders)


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
    return DelayedStatus(endpoint, table.qualified, True, min(waiting, limit), min(overdue, limit), exact=waiting <= limit)
