"""The state of every queue and instance, as values: what the overview page and `sqlqueue_status` show.

Depths and the expired backlog are counted by the database; nothing is taken and no row is waited for. A table that is missing or
broken is a problem of its own row; only a database that cannot be reached ends the reading (ConnectionLost).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.conf.values import ErrorQueueOwner
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.operations.dead_rows import dead_row_problems
from sqlqueue_app.operations.delayed_status import DelayedStatus, read_delayed
from sqlqueue_app.operations.head_age import HeadAge, head_age
from sqlqueue_app.operations.instance_status import InstanceStatus, read_instances, threads_on
from sqlqueue_app.operations.known_queues import KnownQueue, QueueKind, known_queues
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.queue_problems import QueueProblem, problem_of_error, problem_of_layout
from sqlqueue_app.operations.schedules import ScheduleStatus, read_schedules
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT, Depth, QueueTable, queue_table


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue. `exists` and `depth` are None where the database would not say; `problem` tells why, and what mends it.

    `head_age` belongs to the first row and is None for an empty queue. `expiry_exact`: whether the two numbers of the Expires
    backlog are exact, which they can be where the depth is an estimate.
    """

    queue: KnownQueue
    table: str
    exists: bool | None = None
    depth: Depth | None = None
    expiry_exact: bool = True
    head_age: HeadAge | None = None
    problem: QueueProblem | None = None

    @property
    def name(self) -> str:
        """The unique name of the queue."""
        return self.queue.name


@dataclass(frozen=True, slots=True)
class Status:
    """Everything at one look. `taken_at` is the clock of this process, aware, in UTC; the ages of heads are counted to it."""

    database: str
    taken_at: datetime
    queues: tuple[QueueStatus, ...]
    instances: tuple[InstanceStatus, ...]
    instances_problem: QueueProblem | None = None
    schedules: tuple[ScheduleStatus, ...] = ()
    delayed: tuple[DelayedStatus, ...] = ()
    error_queue_owner: ErrorQueueOwner = "sqlqueue"

    def depth_of_callback(self, instance: InstanceStatus) -> Depth | None:
        """How much waits in the callback queue of an instance; None without a queue, or where it could not be counted."""
        found = self.callback_of(instance)
        return found.depth if found is not None else None

    def threads_of(self, queue: QueueStatus) -> int | None:
        """The receive threads of all live instances on a queue, as of their last heartbeats; None if no live one has the queue."""
        return threads_on(queue.queue.address.table, self.instances)

    def callback_of(self, instance: InstanceStatus) -> QueueStatus | None:
        """The callback queue of an instance."""
        name = instance.callback_queue
        return next((each for each in self.queues if name is not None and each.queue.address.table == name), None)


def utc_now() -> datetime:
    """The clock of this process."""
    return datetime.now(UTC)


def read_status(
    settings: Settings | None = None, *, limit: int = EXACT_COUNT_LIMIT, now: Callable[[], datetime] = utc_now
) -> Status:
    """Look at every known queue and every instance.

    At most four statements per queue once its columns are known (two more at the first look of a process), one for the instances,
    one for each schedule and each delayed table; on PostgreSQL one for the dead rows of all queues, and one more where those pile
    up.
    Depth is exact up to `limit`. Inside of a transaction each look has a savepoint. Raises ConnectionLost, and ConfigurationError
    for wrong settings.
    """
    settings = settings or get_settings()
    taken_at = now()
    instances, rows, problem = read_instances()
    schedules = () if problem else _read_schedules(settings, taken_at)
    queues = tuple(read_queue(settings, queue, limit=limit, now=lambda: taken_at) for queue in known_queues(settings, rows))
    delayed = read_delayed(settings, limit=limit)
    queues = _with_dead_rows(settings.database, queues)
    return Status(settings.database, taken_at, queues, instances, problem, schedules, delayed, settings.error_queue_owner)


def _read_schedules(settings: Settings, now: datetime) -> tuple[ScheduleStatus, ...]:
    with looking(managed_alias(), "read the ticks of the schedules"):
        return tuple(read_schedules(settings, now))


def _with_dead_rows(alias: str, queues: tuple[QueueStatus, ...]) -> tuple[QueueStatus, ...]:
    """The queues, those without another problem with that of their dead rows."""
    try:
        with looking(alias, "look for dead rows"):
            found = dead_row_problems(alias, [each.table for each in queues])
    except ConnectionLost:
        raise
    except DatabaseError:
        return queues  # statistics that cannot be read are no reason to show nothing
    return tuple(each if each.problem else replace(each, problem=found.get(each.table)) for each in queues)


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
    age = head_age(head[0], now) if head else None
    return QueueStatus(queue, table.qualified, True, depth, expiry_exact, age, problem)


def working_queues(status: Status) -> list[QueueStatus]:
    """The queues but for callback queues."""
    return [each for each in status.queues if each.queue.kind is not QueueKind.CALLBACK]


def callback_queues(status: Status) -> list[QueueStatus]:
    """The callback queues."""
    return [each for each in status.queues if each.queue.kind is QueueKind.CALLBACK]
