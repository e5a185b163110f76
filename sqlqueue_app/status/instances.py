"""Registered instances: heartbeats, requests of operators, and callback queues of instances that are gone."""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Now

from sqlqueue_app.conf import Settings, instance_name
from sqlqueue_app.messages.errors import (
    AddressError,
    ConnectionLost,
    DatabaseError,
    PermissionDenied,
    TableMismatch,
    TransientError,
)
from sqlqueue_app.models import CallbackQueue, Instance, managed_alias
from sqlqueue_app.receiving.instances import claim_callback_queue, dead_instances, is_dead, is_gone
from sqlqueue_app.status.queues import KnownQueue, ProblemKind, QueueKind, QueueProblem, address_book_of, known_queues
from sqlqueue_app.status.texts import in_utc
from sqlqueue_app.tables.connections import errors_of_alias, guarded_read, optional_read
from sqlqueue_app.tables.installation import drop_queue, migrate_command
from sqlqueue_app.tables.queue import Depth, QueueTable, queue_table

logger = logging.getLogger("sqlqueue.background")


class InstanceState(enum.StrEnum):
    """The state of a process. It follows a command at its next heartbeat; until then it is pausing or resuming."""

    ALIVE = "alive"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """One process. `heartbeat_age` is measured by the database's clock, which also wrote the heartbeat.

    `requested_ago` is the time since a request of an operator that it has not followed yet; None if it has sent a heartbeat since.
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
    busy: Mapping[str, int]
    paused: bool
    paused_since: datetime | None
    paused_by: str
    asked_at: datetime | None
    heartbeat_at: datetime
    id: int
    requested_ago: timedelta | None
    replaced: bool = False
    """Whether it is dead and another process of its endpoint has started since; each new process replaces one."""

    @property
    def is_lost(self) -> bool:
        """Whether it ended without signing off and was not replaced."""
        return not self.alive and not self.replaced

    @property
    def pause_requested_at(self) -> datetime | None:
        return self.paused_since or self.asked_at

    @property
    def live_threads(self) -> int:
        return sum(self.threads.values())

    @property
    def busy_threads(self) -> int:
        """The number of threads that handle a message."""
        return sum(self.busy.values())

    @property
    def is_worker(self) -> bool:
        """Whether it receives more than the replies of its callback queue, or has not reported its threads yet."""
        return set(self.threads) != {self.callback_queue}

    @property
    def works_for_all(self) -> bool:
        """Whether it is alive and receives from more than its callback queue, and so can do work for the whole cluster."""
        return self.alive and bool(set(self.threads) - {self.callback_queue})

    @property
    def state(self) -> InstanceState:
        if not self.alive:
            return InstanceState.DEAD
        if self.paused:
            return InstanceState.PAUSED if self.paused_since else InstanceState.PAUSING
        return InstanceState.RESUMING if self.paused_since else InstanceState.ALIVE


def works_on(instance: InstanceStatus, queue: str) -> bool:
    """Whether a live process serves the queue of this literal name; one that has just started has not reported threads yet."""
    return instance.alive and (queue in instance.threads or not instance.threads)


def receives(instance: InstanceStatus, queue: str) -> bool:
    """Whether a live process receives from the queue; one with a request to pause does while it has threads there.

    Without a pause, no threads are normal: the model `monitor` only peeks at an idle queue.
    """
    return works_on(instance, queue) and (_live_threads(instance, queue) > 0 or not instance.paused)


def _live_threads(instance: InstanceStatus, queue: str) -> int:
    """The receive threads on the queue. A process that has just paused reports them once more, until its next heartbeat."""
    has_paused = instance.paused and instance.paused_since is not None and queue != instance.callback_queue
    return 0 if has_paused else instance.threads.get(queue, 0)


def is_received(queue: KnownQueue, instances: Iterable[InstanceStatus]) -> bool:
    """Whether a live process of the queue's endpoints receives from it."""
    return any(each.endpoint in queue.endpoints and receives(each, queue.address.table) for each in instances)


def threads_on(queue: str, instances: Iterable[InstanceStatus]) -> int | None:
    """The receive threads of live instances on the queue of this literal name, as of their last heartbeats; None if none has it."""
    counts = [_live_threads(each, queue) for each in instances if each.alive and queue in each.threads]
    return sum(counts) if counts else None


def read_instances(*, gone: bool = False) -> tuple[tuple[InstanceStatus, ...], list[Instance | CallbackQueue], QueueProblem | None]:
    """The instances, their rows and those of callback queues, and the problem if they cannot be read. Raises ConnectionLost.

    With `gone`, also the instances whose rows are obsolete and wait to be deleted.
    """
    alias = managed_alias()
    try:
        with guarded_read(alias, "read the registered instances"):
            rows = list(Instance.objects.using(alias).annotate(database_now=Now()))
            held = list(CallbackQueue.objects.using(alias).annotate(database_now=Now()))
    except ConnectionLost:
        raise
    except DatabaseError as error:
        command = "" if isinstance(error, PermissionDenied) else f"python manage.py {migrate_command(alias)}"
        return (), [], QueueProblem(ProblemKind.UNREADABLE, f"{error}{error.remedy}", command=command)
    shown = [row for row in rows if gone or not is_gone(row, row.database_now)]
    return _with_replaced(list(map(status_of_row, shown)), shown), [*rows, *held], None


def read_callback_queues() -> list[CallbackQueue]:
    """The callback queues of registered instances and of those that are gone, each once: one statement. Raises ConnectionLost."""
    alias, columns = managed_alias(), ("endpoint", "callback_queue")
    with optional_read(alias, "read the callback queues"):
        of_instances = Instance.objects.using(alias).order_by().values_list(*columns)
        held = of_instances.union(CallbackQueue.objects.using(alias).order_by().values_list(*columns))
        return [CallbackQueue(endpoint=endpoint, callback_queue=queue) for endpoint, queue in held]
    return []


def _with_replaced(found: list[InstanceStatus], rows: Iterable[Instance]) -> tuple[InstanceStatus, ...]:
    starts = sorted((each.endpoint, each.started_at) for each in found if each.alive)
    heartbeats = [in_utc(row.heartbeat_at) for row in rows]
    # The process with the oldest heartbeat is replaced first.
    for place in sorted((place for place, each in enumerate(found) if not each.alive), key=heartbeats.__getitem__):
        endpoint = found[place].endpoint
        start = next((start for start in starts if start[0] == endpoint and start[1] > heartbeats[place]), None)
        if start is not None:
            starts.remove(start)
            found[place] = replace(found[place], replaced=True)
    return tuple(found)


def clock_of_rows(rows: Iterable[Instance | CallbackQueue]) -> datetime | None:
    """The time of the database when these rows were read, aware, in whole seconds; None without rows."""
    first: Any = next(iter(rows), None)
    return None if first is None else in_utc(first.database_now).replace(microsecond=0)


def status_of_row(row: Any) -> InstanceStatus:
    """The process of this row of `Instance`, which was read with the clock of its database as `database_now`."""
    now = row.database_now
    return InstanceStatus(
        endpoint=row.endpoint,
        name=row.name,
        host=row.host,
        pid=row.pid,
        callback_queue=row.callback_queue,
        started_at=in_utc(row.started_at),
        heartbeat_age=now - row.heartbeat_at,
        alive=not is_dead(row, now),
        threads=_counts(row.threads),
        concurrency=row.concurrency,
        version=row.version,
        busy=_counts(row.busy),
        paused=row.paused,
        paused_since=row.paused_since and in_utc(row.paused_since),
        paused_by=row.paused_by,
        asked_at=row.asked_at and in_utc(row.asked_at),
        heartbeat_at=in_utc(row.heartbeat_at),
        id=row.pk,
        requested_ago=now - row.asked_at if row.asked_at is not None and row.asked_at > row.heartbeat_at else None,
    )


def _counts(value: object) -> dict[str, int]:
    """The numbers of each queue, as the process reported them; empty if the row was written by hand."""
    found = value.items() if isinstance(value, dict) else ()
    return {str(queue): count for queue, count in found if isinstance(count, int)}


def forget_dead(instance: int) -> bool:
    """Delete the row of a dead process and free its callback queue; False if it has a new heartbeat, or is gone."""
    return dead_instances(managed_alias()).filter(pk=instance).delete()[0] > 0


@dataclass(frozen=True, slots=True)
class GoneCallbackQueue:
    """A callback queue that no live process holds, `silent` since it was last used. `depth` is None if only a row is left."""

    name: str
    endpoint: str
    instance: str
    silent: timedelta
    table: QueueTable
    depth: Depth | None


def gone_callback_queues(settings: Settings, older_than: timedelta = timedelta()) -> list[GoneCallbackQueue]:
    """The callback queues of instances that have been gone for at least this time, each once; reads only. Raises DatabaseErrors.

    A queue is gone with the process that leased it last. If no process of an instance name is alive, on a machine other than
    this one, the rest of its pool is gone too. Left out: other queues of the settings, unreadable tables, those that are no queues.
    """
    instances, rows, problem = read_instances(gone=True)
    if problem is not None:
        raise DatabaseError(f"the instances cannot be read: {problem.text}")
    book = address_book_of(settings)
    leased = {each.callback_queue for each in instances if each.alive}
    others = {queue.address for queue in known_queues(settings, rows) if queue.kind is not QueueKind.CALLBACK}
    found: dict[str, GoneCallbackQueue] = {}
    for name, owned, endpoint, instance, silent in _names(settings, instances, rows):
        try:
            address = book.of_queue(name)
        except AddressError:
            continue  # the row was written by hand
        if name in leased or name in found or address in others or silent < older_than:
            continue
        table = queue_table(settings.database, address)
        try:
            depth = table.depth() if table.exists() else None
        except (TableMismatch, PermissionDenied):
            continue
        if depth is not None or owned:
            found[name] = GoneCallbackQueue(name, endpoint, instance, silent, table, depth)
    return list(found.values())


def _names(settings: Settings, instances: Iterable[InstanceStatus], rows: list[Any]) -> Iterator[tuple[str, bool, str, str, Any]]:
    """Names of callback queues, whether a row names them, endpoint and instance, and how long each is gone; last gone first."""
    living = {(each.endpoint, each.name) for each in instances if each.alive}
    dead = ((each.callback_queue, each.endpoint, each.name, each.heartbeat_age) for each in instances if not each.alive)
    gone = sorted(dead, key=lambda each: each[-1])
    held: list[Any] = [row for row in rows if isinstance(row, CallbackQueue)]
    gone += [(row.callback_queue, row.endpoint, row.name, row.database_now - row.used_at) for row in held]
    yield from ((queue, True, endpoint, name, silent) for queue, endpoint, name, silent in gone if queue)
    for _queue, endpoint, name, silent in gone:
        known = settings.senders.get(endpoint)
        if known is not None and (endpoint, name) not in living and name != instance_name(known):
            yield from ((queue, False, endpoint, name, silent) for queue in known.callback_queue_names(name))


def remove_callback_queue(gone: GoneCallbackQueue) -> bool:
    """Drop the table with its messages, and forget the instance; False if a process has since leased it.

    The queue is leased only while it is dropped: a lease that stays would be reported as a dead process. Raises DatabaseErrors.
    """
    lease = claim_callback_queue(gone.name, alias=managed_alias(), endpoint=gone.endpoint, name=gone.instance)
    if lease is None:
        return False
    try:
        drop_queue(gone.table.alias, gone.table.address)
        CallbackQueue.objects.using(lease.alias).filter(callback_queue=gone.name).delete()
    finally:
        lease.withdraw()
    return True


def drop_old_callback_queues(settings: Settings) -> list[str]:
    """Record the leased callback queues, and drop empty ones that a process created, unused for a day; their names.

    Failures (another session writes, no permission to drop, the database is unavailable) are left for the next run.
    """
    alias = managed_alias()
    known = CallbackQueue.objects.using(alias)
    with suppress(TransientError), errors_of_alias(alias, "look for old callback queues"):
        held = Instance.objects.using(alias).exclude(callback_queue=None).exclude(pk__in=dead_instances(alias).values("pk"))
        known.filter(callback_queue__in=list(held.values_list("callback_queue", flat=True))).update(used_at=Now())
        old = known.filter(made=True, endpoint__in=list(settings.senders), used_at__lt=Now() - timedelta(days=1))
        return [row.callback_queue for row in list(old) if _drop_old(settings, row, old)]
    return []


def _drop_old(settings: Settings, row: CallbackQueue, old: QuerySet[CallbackQueue]) -> bool:
    lease = claim_callback_queue(row.callback_queue, alias=old.db, endpoint=row.endpoint, name=row.name)
    if lease is None:
        return False
    try:
        # A process may have used it since it was read; from here on none can.
        address = address_book_of(settings).of_queue(row.callback_queue)
        if dropped := old.filter(pk=row.pk).exists() and drop_queue(settings.database, address, only_empty=True):
            row.delete()
            logger.info("callback queue %s dropped", row.callback_queue, extra={"event": "callback_queue_dropped"})
        return dropped
    except DatabaseError as error:
        logger.debug("callback queue %s stays: %s", row.callback_queue, error)
        return False
    finally:
        lease.withdraw()
