"""The number of messages in the delayed tables, and of overdue ones, which grows while no worker moves them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, QueueNotFound
from sqlqueue_app.status.queues import address_book_of, limit_of_each, name_of_queue, shared_snapshots, table_key
from sqlqueue_app.tables.connections import guarded_read, optional_read
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import DELAYED_SUFFIX, delayed_address
from sqlqueue_app.tables.listing import ListedTable, snapshot_delayed
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Workers poll every second: a message that has been due for this long is overdue.
OVERDUE_AFTER: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class DelayedStatus:
    """The delayed table of one endpoint. `exists`, `waiting` and `overdue` are None if they could not be read.

    `exact` is False if a number has reached the limit, and is a lower bound. `next_due` is when the first message is or
    was due; None if there is none, or if the tables were read one by one. `name` is that of the `KnownDelayed`.
    """

    endpoint: str
    table: str
    exists: bool | None = None
    waiting: int | None = None
    overdue: int | None = None
    exact: bool = True
    next_due: datetime | None = None
    name: str = ""
    is_in_settings: bool = True

    @property
    def overdue_exact(self) -> bool:
        """Whether `overdue` is exact; otherwise both numbers have reached the limit."""
        return self.exact or self.overdue != self.waiting

    def overdue_at(self, now: datetime) -> int | None:
        """`overdue`, but 0 until the first message has been due for OVERDUE_AFTER."""
        is_recent = self.next_due is not None and self.next_due > now - OVERDUE_AFTER
        return 0 if is_recent and self.overdue else self.overdue


def read_delayed(
    settings: Settings, *, limit: int = EXACT_COUNT_LIMIT, listed: Iterable[ListedTable] | None = None
) -> tuple[DelayedStatus, ...]:
    """Read the delayed tables of all endpoints of the settings and of SEND_AS. Raises ConnectionLost.

    One statement for each; with `listed`, the tables of the database, one for a hundred, and tables of other systems follow.
    Exact up to `limit`, or less if there are more than five tables: at most 50,000 rows are counted in total.
    """
    listed = None if listed is None else list(listed)
    tables = known_delayed_tables(settings, listed or ())
    limit = limit_of_each(len(tables), limit)
    found: dict[KnownDelayed, DelayedStatus] = {}
    if listed is not None:
        there = {table_key(table.address) for table in listed if table.is_delayed}
        keys = {each: (settings.database, "delayed", each.name) for each in tables if table_key(each.address) in there}
        found = shared_snapshots(keys, lambda unseen: _read_together(settings.database, unseen, limit))
    return tuple(found.get(each) or _read_one(settings.database, each, limit) for each in tables)


def _read_together(alias: str, tables: Sequence[KnownDelayed], limit: int) -> dict[KnownDelayed, DelayedStatus]:
    """Read all tables together; empty if one of them cannot be read."""
    if not tables:
        return {}
    with optional_read(alias, f"inspect {len(tables)} tables of delayed messages"):
        snapshots = snapshot_delayed(alias, [table.address for table in tables], limit + 1)
        return {
            table: _status(alias, table, snapshot.waiting, snapshot.overdue, limit, snapshot.first_due)
            for table, snapshot in zip(tables, snapshots, strict=True)
        }
    return {}


def _read_one(alias: str, known: KnownDelayed, limit: int) -> DelayedStatus:
    table = known.table(alias)
    unknown = DelayedStatus(known.endpoint, table.qualified, name=known.name, is_in_settings=known.is_in_settings)
    try:
        with guarded_read(alias, f"inspect {table.qualified}"):
            waiting, overdue = table.count(limit + 1)
    except ConnectionLost:
        raise
    except QueueNotFound:
        return replace(unknown, exists=False)
    except DatabaseError:
        return unknown
    return _status(alias, known, waiting, overdue, limit)


def _status(
    alias: str, known: KnownDelayed, waiting: int, overdue: int, limit: int, first_due: float | None = None
) -> DelayedStatus:
    return DelayedStatus(
        known.endpoint,
        known.table(alias).qualified,
        True,
        min(waiting, limit),
        min(overdue, limit),
        exact=waiting <= limit,
        next_due=instant_of(first_due),
        name=known.name,
        is_in_settings=known.is_in_settings,
    )


def instant_of(seconds: float | None) -> datetime | None:
    """The instant of seconds since 1970; None if a datetime cannot hold it, such as infinity."""
    try:
        return None if seconds is None else _EPOCH + timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class KnownDelayed:
    """A table of delayed messages and its endpoint, from the settings or table name; `name` is unique, as in `KnownQueue`."""

    name: str
    endpoint: str
    address: QueueAddress
    is_in_settings: bool

    def table(self, alias: str) -> DelayedTable:
        return DelayedTable(alias, self.address)


def known_delayed_tables(settings: Settings, listed: Iterable[ListedTable] = ()) -> list[KnownDelayed]:
    """The tables of all endpoints of the settings and of SEND_AS, then the other listed tables. Does not read a database."""
    book = address_book_of(settings)
    found: dict[tuple[str | None, str | None, str], KnownDelayed] = {}
    for endpoint in settings.senders:
        address = delayed_address(book, endpoint)
        found.setdefault(table_key(address), KnownDelayed(name_of_queue(book, address), endpoint, address, is_in_settings=True))
    for table in listed:
        if table.is_delayed:
            name = name_of_queue(book, table.address)
            endpoint = table.address.table.removesuffix(DELAYED_SUFFIX)
            found.setdefault(table_key(table.address), KnownDelayed(name, endpoint, table.address, is_in_settings=False))
    return list(found.values())
