"""Looking at queues: how much is in each, how old its first message is, what is wrong with its table.

Many queues are looked at together, because a dashboard over two hundred of them must not take two hundred round trips; a queue
that makes trouble is looked at by itself, so that its trouble is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlqueue_app.conf import Settings
from sqlqueue_app.databases.layouts import QueueLayout
from sqlqueue_app.messages.addresses import QueueAddress
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.operations.head_age import HeadAge, head_age
from sqlqueue_app.operations.known_queues import KnownQueue
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.queue_problems import QueueProblem, problem_of_error, problem_of_found_layout, problem_of_layout
from sqlqueue_app.operations.recent_looks import keep_looks, recent_looks, taking_turns
from sqlqueue_app.tables.listing import ListedTable, Look, list_tables, look_at_expiries, look_at_queues
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT, Depth, QueueTable, queue_table

# So many rows may be counted in one look at all tables; the more there are, the sooner an estimate has to do.
COUNTED_AT_MOST: Final = 50_000
_LEAST_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue. `exists` and `depth` are None where the database would not say; `problem` tells why, and what mends it.

    `head_age` belongs to the first row and is None for an empty queue. `expiry_exact`: whether the two numbers of the Expires
    backlog are exact, which they can be where the depth is an estimate. `written`: how many rows were ever written into the table,
    as far as the database tells.
    """

    queue: KnownQueue
    table: str
    exists: bool | None = None
    depth: Depth | None = None
    expiry_exact: bool = True
    head_age: HeadAge | None = None
    problem: QueueProblem | None = None
    written: int | None = None

    @property
    def name(self) -> str:
        """The unique name of the queue."""
        return self.queue.name


def limit_of_each(tables: int, limit: int) -> int:
    """Up to how many rows each of so many tables is counted that are looked at together: `limit`, or less where they are many."""
    return min(limit, max(_LEAST_LIMIT, COUNTED_AT_MOST // max(1, tables)))


def utc_now() -> datetime:
    """The clock of this process."""
    return datetime.now(UTC)


def read_queues(
    settings: Settings,
    queues: Sequence[KnownQueue],
    *,
    limit: int = EXACT_COUNT_LIMIT,
    now: datetime,
    listed: Iterable[ListedTable] | None = None,
) -> list[QueueStatus]:
    """Look at queues, in their order. `listed` are the tables of the database, where the caller has listed them. ConnectionLost.

    Exact up to `limit`, or less where there are more than five queues: all together count 50,000 rows at most.
    """
    limit = limit_of_each(len(queues), limit)
    listed = listed_tables(settings.database) if listed is None else listed
    layouts = {table_key(table.address): table.layout for table in listed if table.layout is not None}
    together = {queue: layout for queue in queues if (layout := layouts.get(table_key(queue.address))) is not None}
    with taking_turns():
        found = _look_or_remember(settings, together, limit, now)
    return [found.get(queue) or read_queue(settings, queue, limit=limit, now=lambda: now) for queue in queues]


def _look_or_remember(
    settings: Settings, queues: dict[KnownQueue, QueueLayout], limit: int, now: datetime
) -> dict[KnownQueue, QueueStatus]:
    """The looks at these queues, those of a moment ago where they may be shared; nothing new where one of them makes trouble."""
    alias = settings.database
    recent: dict[Any, QueueStatus] = recent_looks((alias, queue) for queue in queues)
    unseen = {queue: layout for queue, layout in queues.items() if (alias, queue) not in recent}
    try:
        with looking(alias, f"look at {len(unseen)} queues"):
            found = _look_together(settings, unseen, limit, now)
    except ConnectionLost:
        raise
    except DatabaseError:
        found = {}  # one of them is gone or locked: each by itself, then
    keep_looks({(alias, queue): status for queue, status in found.items()})
    return {**found, **{queue: status for (_alias, queue), status in recent.items()}}


def table_key(address: QueueAddress) -> tuple[str | None, str | None, str]:
    """By what a table is told from others: on SQLite and, by its usual collations, on SQL Server names differ by more than case."""
    if address.form == "postgresql":
        return (None, address.schema, address.table)
    schema, catalog = address.schema, address.catalog
    return (catalog and catalog.lower(), schema and schema.lower(), address.table.lower())


def listed_tables(alias: str) -> list[ListedTable]:
    """The tables of the database; none where its catalog may not be read. Raises ConnectionLost."""
    try:
        with looking(alias, "list the tables"):
            return list_tables(alias)
    except ConnectionLost:
        raise
    except DatabaseError:
        return []


def _look_together(
    settings: Settings, queues: dict[KnownQueue, QueueLayout], limit: int, now: datetime
) -> dict[KnownQueue, QueueStatus]:
    alias = settings.database
    looks = dict(zip(queues, look_at_queues(alias, [queue.address for queue in queues], limit + 1), strict=True))
    long = [queue for queue, look in looks.items() if look.waiting > limit and queues[queue].expires_index]
    expiries = dict(zip(long, look_at_expiries(alias, [queue.address for queue in long], limit + 1), strict=True))
    found = {}
    for queue, look in looks.items():
        table = queue_table(alias, queue.address)
        table.remember_layout(queues[queue])
        depth = _depth(look, expiries.get(queue), limit)
        problem = problem_of_found_layout(table, queue, settings.table_layout, queues[queue])
        found[queue] = QueueStatus(
            queue=queue,
            table=table.qualified,
            exists=True,
            depth=depth,
            expiry_exact=depth.exact or (queue in expiries and depth.expiring <= limit),
            head_age=head_age(look.head, now) if depth.waiting else None,
            problem=problem,
            written=look.written,
        )
    return found


def _depth(look: Look, expiries: tuple[int, int] | None, limit: int) -> Depth:
    if look.waiting <= limit:
        return Depth(look.waiting, look.expiring, look.expired, exact=True)
    expiring, expired = expiries or (look.expiring, look.expired)
    return Depth(max(look.span, look.waiting), expiring, expired, exact=False)


def read_queue(
    settings: Settings, queue: KnownQueue, *, limit: int = EXACT_COUNT_LIMIT, now: Callable[[], datetime] = utc_now
) -> QueueStatus:
    """Look at one queue. Raises ConnectionLost."""
    table = queue_table(settings.database, queue.address)
    try:
        with looking(settings.database, f"look at {table.qualified}"):
            return _look(settings, queue, table, limit, now())
    except ConnectionLost:
        raise
    except DatabaseError as error:
        problem, exists = problem_of_error(table, queue, settings.table_layout, error)
        return QueueStatus(queue, table.qualified, exists=exists, problem=problem)


def _look(settings: Settings, queue: KnownQueue, table: QueueTable, limit: int, now: datetime) -> QueueStatus:
    layout = table.layout()
    depth = table.depth(limit)
    # Beyond the limit the two numbers come from the index on Expires, and are bounded by it too.
    expiry_exact = depth.exact or (layout.expires_index and depth.expiring <= limit)
    problem = problem_of_layout(table, queue, settings.table_layout)
    head = table.peek(1, body_limit=0) if depth.waiting else []
    age = head_age(head[0].headers, now) if head else None
    return QueueStatus(queue, table.qualified, True, depth, expiry_exact, age, problem)
