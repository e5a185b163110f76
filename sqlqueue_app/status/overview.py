"""The state of every queue and instance, as values, for the overview page and `sqlqueue_status`.

The database counts depths and the expired backlog, without taking rows or waiting for locks. A missing or broken table is a
problem of its own row; only an unreachable database ends the reading (ConnectionLost).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.conf.settings import ErrorQueueOwner
from sqlqueue_app.models import managed_alias
from sqlqueue_app.status.delayed import DelayedStatus, read_delayed
from sqlqueue_app.status.instances import InstanceStatus, clock_of_rows, read_instances, threads_on
from sqlqueue_app.status.queues import (
    QueueKind,
    QueueProblem,
    QueueStatus,
    dead_row_problems,
    known_queues,
    listed_tables,
    other_queues,
    read_queues,
    utc_now,
)
from sqlqueue_app.status.schedules import ScheduleStatus, read_schedules
from sqlqueue_app.tables.connections import guarded_read, optional_read
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT, Depth


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of a number over tables; a lower bound unless `exact`. `unread` is the number of tables that could not be read.

    `is_estimate`: the numbers of long tables are estimates, not lower bounds.
    """

    value: int
    exact: bool
    unread: int
    is_estimate: bool = False

    @property
    def mark(self) -> str:
        """The sign before the value: of a lower bound, or of an estimate."""
        return "" if self.exact else "≈ " if self.is_estimate and not self.unread else "≥ "


def _total(numbers: Iterable[tuple[int | None, bool]]) -> Total:
    """The total of numbers, None for an unreadable table, each with whether it is exact."""
    found = list(numbers)
    known = [number for number, _exact in found if number is not None]
    exact = all(exact for number, exact in found if number is not None)
    return Total(sum(known), exact and len(known) == len(found), len(found) - len(known))


@dataclass(frozen=True, slots=True)
class Status:
    """The whole state at one instant. `taken_at` is the clock of this process, aware, in UTC; ages of heads are relative to it.

    `managed_now` is that of the managed tables' database, in whole seconds, where a process is registered, else None.
    """

    database: str
    taken_at: datetime
    queues: tuple[QueueStatus, ...]
    instances: tuple[InstanceStatus, ...]
    instances_problem: QueueProblem | None = None
    schedules: tuple[ScheduleStatus, ...] = ()
    delayed: tuple[DelayedStatus, ...] = ()
    error_queue_owner: ErrorQueueOwner = "sqlqueue"
    managed_now: datetime | None = None

    @property
    def waiting(self) -> Total:
        """The messages in main queues and satellites."""
        depths = [each.depth for each in self.queues if each.queue.is_receiving]
        return replace(_total((None, False) if each is None else (each.waiting, each.exact) for each in depths), is_estimate=True)

    @property
    def expired(self) -> Total:
        """The number of expired messages in all queues that are not purged yet."""
        return _total((None if each.depth is None else each.depth.expired, each.expiry_exact) for each in self.queues)

    @property
    def delayed_messages(self) -> Total:
        return _total((each.waiting, each.exact) for each in self.delayed)

    def overdue_at(self, now: datetime) -> Total:
        """The number of delayed messages that should have been moved; see `DelayedStatus.overdue_at`."""
        return _total((each.overdue_at(now), each.overdue_exact) for each in self.delayed)

    @property
    def alive(self) -> int:
        return sum(each.alive for each in self.instances)

    @property
    def dead(self) -> int:
        return len(self.instances) - self.alive

    @property
    def lost(self) -> int:
        """The number of dead processes that were not replaced."""
        return sum(each.is_lost for each in self.instances)

    def depth_of_callback(self, instance: InstanceStatus) -> Depth | None:
        """The depth of an instance's callback queue; None without a queue, or if it could not be counted."""
        found = self.callback_of(instance)
        return found.depth if found is not None else None

    def threads_of(self, queue: QueueStatus) -> int | None:
        """The receive threads of all live instances on a queue, as of their last heartbeats; None if no live one has the queue."""
        return threads_on(queue.queue.address.table, self.instances)

    def callback_of(self, instance: InstanceStatus) -> QueueStatus | None:
        name = instance.callback_queue
        return next((each for each in self.queues if name is not None and each.queue.address.table == name), None)


def read_status(
    settings: Settings | None = None,
    *,
    limit: int = EXACT_COUNT_LIMIT,
    now: Callable[[], datetime] = utc_now,
    others: bool = False,
    with_schedules: bool = True,
) -> Status:
    """Read every known queue and every instance; with `others`, also the queues of the database that the settings do not name.

    One statement finds the tables, one counts a hundred queues, and one more those longer than `limit`; a table that is missing
    or broken is read by itself. One statement for the instances, one for a hundred delayed tables, two for fifty schedules,
    unless they are not wanted; on PostgreSQL one more if dead rows pile up.
    Depth is exact up to `limit`. Inside a transaction each read has a savepoint. Raises ConnectionLost, and ConfigurationError
    for wrong settings.
    """
    settings = settings or get_settings()
    taken_at = now()
    instances, rows, problem = read_instances()
    schedules: list[ScheduleStatus] = []
    if with_schedules and problem is None:
        with guarded_read(managed_alias(), "read the ticks of the schedules"):
            schedules = read_schedules(settings, taken_at)
    listed = listed_tables(settings.database)
    known = known_queues(settings, rows)
    if others:
        known += other_queues(settings, known, listed)
    queues = tuple(read_queues(settings, known, limit=limit, now=taken_at, listed=listed))
    delayed = read_delayed(settings, limit=limit, listed=listed)
    if not others:
        delayed = tuple(each for each in delayed if each.is_in_settings)
    queues = _with_dead_rows(settings.database, queues)
    owner, clock = settings.error_queue_owner, clock_of_rows(rows)
    return Status(settings.database, taken_at, queues, instances, problem, tuple(schedules), delayed, owner, clock)


def _with_dead_rows(alias: str, queues: tuple[QueueStatus, ...]) -> tuple[QueueStatus, ...]:
    """The queues; those without another problem get that of their dead rows."""
    found: dict[str, QueueProblem] = {}
    with optional_read(alias, "look for dead rows"):
        found = dead_row_problems(alias, (each.dead for each in queues if each.dead is not None))
    return tuple(each if each.problem else replace(each, problem=found.get(each.table)) for each in queues)


def callback_queues(status: Status) -> list[QueueStatus]:
    """The callback queues."""
    return [each for each in status.queues if each.queue.kind is QueueKind.CALLBACK]
