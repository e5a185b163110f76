"""The registered instances with their heartbeats; dead ones stay listed until another process takes over their queue."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models.functions import Now
from django.utils import timezone

from sqlqueue_app.instances import is_dead, managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import Instance
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.queue_problems import MIGRATE_COMMAND, ProblemKind, QueueProblem


class InstanceState(enum.StrEnum):
    """What a process does. It follows a command at its next heartbeat: until then it is pausing, or resuming."""

    ALIVE = "alive"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """One process. `heartbeat_age` is measured by the database's clock, which also wrote the heartbeat.

    `asked_ago` is how long ago an operator has asked for something that it has not followed: not since its last heartbeat.
    """

    endpoint: str
    name: str
    host: str
    pid: int
    callback_queue: str | None
    started_at: datetime
    heartbeat_age: timedelta
    alive: bool
    threads: Mapping[str, int]
    concurrency: int
    version: str
    busy: Mapping[str, int] = field(default_factory=dict)
    paused: bool = False
    paused_since: datetime | None = None
    id: int = 0
    asked_ago: timedelta | None = None

    @property
    def live_threads(self) -> int:
        """The live polling threads of all its queues."""
        return sum(self.threads.values())

    @property
    def busy_threads(self) -> int:
        """How many of them handle a message."""
        return sum(self.busy.values())

    @property
    def works_for_all(self) -> bool:
        """Whether it lives and receives from more than its callback queue: then it does what one process does for the cluster."""
        return self.alive and bool(set(self.threads) - {self.callback_queue})

    @property
    def state(self) -> InstanceState:
        """What the process does, by its row."""
        return state_of(alive=self.alive, paused=self.paused, followed=self.paused_since is not None)


def state_of(*, alive: bool, paused: bool, followed: bool) -> InstanceState:
    """The state of a process; `paused` is what it was asked, `followed` whether it has paused."""
    if not alive:
        return InstanceState.DEAD
    if paused:
        return InstanceState.PAUSED if followed else InstanceState.PAUSING
    return InstanceState.RESUMING if followed else InstanceState.ALIVE


def threads_on(queue: str, instances: Iterable[InstanceStatus]) -> int | None:
    """The receive threads of live instances on the queue of this literal name, as of their last heartbeats; None if none has it."""
    counts = [each.threads[queue] for each in instances if each.alive and queue in each.threads]
    return sum(counts) if counts else None


def read_instances() -> tuple[tuple[InstanceStatus, ...], list[Instance], QueueProblem | None]:
    """The instances, their rows, and what is wrong if they cannot be read. One statement. Raises ConnectionLost."""
    alias = managed_alias()
    try:
        with looking(alias, "read the registered instances"):
            rows = list(Instance.objects.using(alias).annotate(database_now=Now()))
    except ConnectionLost:
        raise
    except DatabaseError as error:
        return (), [], QueueProblem(ProblemKind.UNREADABLE, str(error), command=MIGRATE_COMMAND)
    return tuple(_status(row, row.database_now) for row in rows), list(rows), None


def clock_of_rows(rows: Iterable[Instance]) -> datetime | None:
    """The clock of the database when it gave these rows, aware, in whole seconds; None if it gave none."""
    told: Any = next(iter(rows), None)
    if told is None:
        return None
    now: datetime = told.database_now
    # Without USE_TZ Django gives instants in its own time zone.
    aware = timezone.make_aware(now, timezone.get_default_timezone()) if timezone.is_naive(now) else now
    return aware.astimezone(UTC).replace(microsecond=0)


def _status(row: Instance, now: datetime) -> InstanceStatus:
    return InstanceStatus(
        endpoint=row.endpoint,
        name=row.name,
        host=row.host,
        pid=row.pid,
        callback_queue=row.callback_queue,
        started_at=row.started_at,
        heartbeat_age=now - row.heartbeat_at,
        alive=not is_dead(row, now),
        threads=threads_of_row(row),
        concurrency=row.concurrency,
        version=row.version,
        busy=_counts(row.busy),
        paused=row.paused,
        paused_since=row.paused_since,
        id=row.pk,
        asked_ago=now - row.asked_at if row.asked_at is not None and row.asked_at > row.heartbeat_at else None,
    )


def threads_of_row(row: Instance) -> dict[str, int]:
    """The receive threads of each queue, as the process has told; nothing where the row was written by hand."""
    return _counts(row.threads)


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    return {str(queue): count for queue, count in value.items() if isinstance(count, int)}
