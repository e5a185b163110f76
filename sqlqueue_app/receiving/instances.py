"""Instances: the row that shows that a process of an endpoint is alive, and the lease of its callback queue.

A callback queue belongs to one process at a time (docs/internals/decisions.md#callback-queues). A process takes the first name
that is free or whose holder has stopped sending heartbeats, and creates a missing table. The database's clock decides.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

from django.db import IntegrityError, connections, transaction
from django.db.models import QuerySet, Value
from django.db.models.functions import Now

from sqlqueue_app import __version__
from sqlqueue_app.conf import EndpointSettings, get_settings, instance_name
from sqlqueue_app.messages.errors import ConfigurationError, DatabaseError, LockTimeout, TransientError
from sqlqueue_app.models import CallbackQueue, Claim, Instance, managed_alias
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.receiver import Receiver
from sqlqueue_app.tables.connections import errors_of_alias

logger = logging.getLogger("sqlqueue.worker")

HEARTBEAT_SECONDS = 10.0
# Four heartbeats, after which ServiceControl considers an endpoint gone (docs/internals/operations.md#heartbeats).
DEAD_AFTER_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The state that an operator requests of a process through its row."""

    concurrency: int
    paused: bool


@dataclass(slots=True)
class InstanceLease:
    """The registration of this process. `callback_queue` is None if it holds none. Only the heartbeat's thread changes it."""

    alias: str
    row_id: int
    endpoint: str
    callback_queue: str | None

    def heartbeat(self, threads: dict[str, int], busy: dict[str, int] | None = None) -> bool:
        """Record that the process is alive. Returns False if its row was deleted or taken over after too long a silence."""
        json = Instance._meta.get_field("threads")
        return self._own().update(heartbeat_at=Now(), threads=Value(threads, json), busy=Value(busy or {}, json)) == 1

    def desired_state(self) -> DesiredState | None:
        """The desired state in the row; None if the row is gone."""
        row = self._own().values_list("concurrency", "paused").first()
        return None if row is None else DesiredState(*row)

    def write_concurrency(self, concurrency: int) -> None:
        """Write the maximum number of messages that are handled at once."""
        self._own().update(concurrency=concurrency)

    def write_paused(self, paused: bool) -> None:
        """Write whether the process is paused."""
        self._own().update(paused_since=Now() if paused else None)

    def pause_again(self) -> None:
        """Record the pause of this process in a new row."""
        self._own().update(paused=True, paused_since=Now())

    def register_again(self, endpoint: EndpointSettings, concurrency: int) -> None:
        """Create a new row for the lost one, without a callback queue, which another process may hold now."""
        registered = register_instance(endpoint, alias=self.alias, concurrency=concurrency)
        self.row_id, self.callback_queue = registered.row_id, None

    def release(self) -> None:
        """Release the callback queue when the process ends."""
        self.withdraw()
        if self.callback_queue:
            CallbackQueue.objects.using(self.alias).filter(callback_queue=self.callback_queue).update(used_at=Now())

    def withdraw(self) -> None:
        """Delete the row, and leave the callback queue as if it had not been used."""
        self._own().delete()

    def release_at_exit(self, logger: logging.Logger) -> None:
        """Release at the end of a process, which must not fail: errors are logged, and the lease then expires."""
        try:
            self.release()
        except Exception as error:  # noqa: BLE001 - see the docstring
            logger.warning("the lease could not be released: %s", error, extra={"event": "lease_kept", "endpoint": self.endpoint})

    def _own(self) -> QuerySet[Instance]:
        return Instance.objects.using(self.alias).filter(pk=self.row_id, pid=os.getpid(), host=_host())


def register_instance(endpoint: EndpointSettings, *, alias: str, concurrency: int) -> InstanceLease:
    """Register this process as an instance of the endpoint, without a callback queue."""
    fields = _this_process(endpoint.name, instance_name(endpoint), concurrency)
    return InstanceLease(alias, Instance.objects.using(alias).create(**fields).pk, endpoint.name, None)


def lease_instance(
    endpoint: EndpointSettings,
    *,
    alias: str,
    concurrency: int,
    exists: Callable[[str], bool],
    make: Callable[[str], object],
    may_receive: Callable[[str], bool] = lambda _: True,
) -> InstanceLease:
    """Register this process as an instance of the endpoint with a callback queue: the first that no live process holds.

    `exists` returns whether a queue's table exists, `make` creates it. A table from which this process may not receive belongs to
    another role and is skipped. Raises ConfigurationError, with the remedy, if a table cannot be created; DatabaseError.
    """
    name = instance_name(endpoint)
    refusal: DatabaseError | None = None
    for number in count(1):
        queue = endpoint.callback_queue_name(name, number)
        if refusal is not None and not exists(queue):
            if number < endpoint.callback_queues:
                continue
            break
        # The row comes before the table: only one of the competing processes creates it, and none drops it in between.
        if (lease := claim_callback_queue(queue, alias=alias, endpoint=endpoint.name, name=name, concurrency=concurrency)) is None:
            continue
        try:
            if is_made := not exists(queue):
                make(queue)
            elif not may_receive(queue):
                lease.withdraw()
                continue
            known = {"endpoint": endpoint.name, "name": name, "used_at": Now(), **({"made": True} if is_made else {})}
            CallbackQueue.objects.using(alias).update_or_create(callback_queue=queue, defaults=known)
            return lease
        except BaseException as error:
            lease.release_at_exit(logger)
            if not isinstance(error, DatabaseError) or isinstance(error, TransientError):
                raise
            refusal = error
    first = endpoint.callback_queue_name(name, 1)
    why = str(refusal).splitlines()[0]
    raise ConfigurationError(
        f"endpoint {endpoint.name!r} has no callback queue for this process: none from {first!r} on is free, and none can be "
        f"created ({why}); as a role that may create tables run sqlqueue_install --instance {name}, with CALLBACK_QUEUES "
        f"({endpoint.callback_queues}) no lower than the number of processes that make requests (--sql --grant ROLE also prints "
        "the rights), or set INSTANCE to an installed name"
    ) from refusal


def claim_callback_queue(queue: str, *, alias: str, endpoint: str, name: str, concurrency: int = 0) -> InstanceLease | None:
    """Lease a callback queue, to use it or to reserve it during its removal; None if a live process holds it."""
    row_id = _take(queue, alias, _this_process(endpoint, name, concurrency))
    return None if row_id is None else InstanceLease(alias, row_id, endpoint, queue)


def _this_process(endpoint: str, name: str, concurrency: int) -> dict[str, object]:
    """The row of this process, which may replace that of a process that is gone."""
    return {
        "endpoint": endpoint,
        "name": name,
        "host": _host(),
        "pid": os.getpid(),
        "process_identity": _identity(os.getpid()),
        "started_at": Now(),
        "heartbeat_at": Now(),
        "threads": {},
        "busy": {},
        "concurrency": concurrency,
        "paused": False,
        "paused_since": None,
        "paused_by": "",
        "asked_at": None,
        "version": __version__,
    }


def _take(queue: str, alias: str, fields: dict[str, object]) -> int | None:
    """Take the queue for this process and return its row; None if a live process holds it."""
    try:
        with transaction.atomic(using=alias):
            return int(Instance.objects.using(alias).create(callback_queue=queue, **fields).pk)
    except IntegrityError:
        pass
    dead = Instance.objects.using(alias).filter(callback_queue=queue, heartbeat_at__lt=_dead_before())
    row = dead.first()
    # Several processes may see the same dead holder: the first update is a heartbeat, so the others find none.
    if row is not None and dead.filter(pk=row.pk).update(**fields) == 1:
        return int(row.pk)
    return None


def is_dead(instance: Instance, now: datetime) -> bool:
    """Whether the instance has sent no heartbeat for longer than four intervals.

    On SQLite a writing handler blocks every heartbeat, so there a process of this machine counts as alive while it runs, up to
    INSTANCE_EXPIRY. Elsewhere silence is a fault.
    """
    silent = now - instance.heartbeat_at
    if silent <= timedelta(seconds=DEAD_AFTER_SECONDS):
        return False
    is_checkable = instance.process_identity is not None and connections[instance._state.db or managed_alias()].vendor == "sqlite"
    if not is_checkable or silent > timedelta(seconds=get_settings().instance_expiry_seconds):
        return True
    return instance.process_identity != _identity(instance.pid)


def is_gone(instance: Instance, now: datetime) -> bool:
    """Whether the row is obsolete: silent for INSTANCE_EXPIRY, or of an ended process that only awaited replies.

    The latter, such as a web process, deletes its row when it ends normally, but may end without Python's exit hooks. On this
    machine that is detected at once, on others when it counts as dead.
    """
    if now - instance.heartbeat_at > timedelta(seconds=get_settings().instance_expiry_seconds):
        return True
    if not instance.callback_queue or not isinstance(instance.threads, dict) or {*instance.threads} != {instance.callback_queue}:
        return False
    return is_dead(instance, now) or _has_ended_here(instance)


def _has_ended_here(instance: Instance) -> bool:
    here, known = _identity(os.getpid()), instance.process_identity
    is_same_machine = here is not None and known is not None and here.split()[:2] == known.split()[:2]
    return is_same_machine and known != _identity(instance.pid)


def _identity(pid: int) -> str | None:
    """An identity of a running process that survives reuse of its pid; None if it is ended or suspended, or without /proc.

    It includes the pid namespace, because containers may share a host name and the file of the database.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        machine = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    # Ended but not waited for (X, Z), suspended (T); the 22nd field is the start time in ticks since boot.
    return None if state in "TXZ" else f"{machine} {namespace} {fields[18]}"


def dead_instances(alias: str) -> QuerySet[Instance]:
    """The rows of processes without a heartbeat for longer than four intervals, by the database's clock."""
    return Instance.objects.using(alias).filter(heartbeat_at__lt=_dead_before())


def gone_instances(alias: str) -> list[Instance]:
    """The obsolete rows, in one statement."""
    return [each for each in Instance.objects.using(alias).annotate(database_now=Now()) if is_gone(each, each.database_now)]


def forget_gone() -> int:
    """Delete the obsolete rows and return their number. Locked rows are left for the next call."""
    alias = managed_alias()
    with suppress(TransientError), errors_of_alias(alias, "delete the rows of dead instances"):
        # Usually there is none, and on SQLite a DELETE would wait for a busy handler.
        found = [each for each in gone_instances(alias) if _same(alias, each).delete()[0]]
        for each in found:
            logger.warning(
                "process %s of %s on %s ended without signing off, its row was deleted: last heartbeat at %s",
                each.pid,
                each.endpoint,
                each.host,
                each.heartbeat_at.isoformat(timespec="seconds"),
                extra={"event": "instance_expired", "endpoint": each.endpoint},
            )
        return len(found)
    return 0


def _same(alias: str, instance: Instance) -> QuerySet[Instance]:
    """The row, unless its process has since sent a heartbeat."""
    return Instance.objects.using(alias).filter(pk=instance.pk, heartbeat_at__lte=instance.heartbeat_at, pid=instance.pid)


def _dead_before() -> object:
    return Now() - timedelta(seconds=DEAD_AFTER_SECONDS)


def _host() -> str:
    return platform.node() or "unknown"


class Heartbeat:
    """The heartbeats of one instance: each renews its row and applies the `concurrency` and `paused` found there.

    `receivers` are those of the endpoint. `following` use the endpoint's concurrency, the main queue's first; callback queues and
    satellites with their own setting keep theirs. `unpaused` continue during a pause: the callback queue's receiver, because
    requests wait for its replies. `on_lost` is called at each beat once another process has taken over.
    """

    def __init__(
        self,
        lease: InstanceLease,
        receivers: Sequence[Receiver],
        following: Sequence[Receiver],
        unpaused: Sequence[Receiver] = (),
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._lease = lease
        self._receivers = receivers
        self._following = following
        self._pausing = [receiver for receiver in receivers if receiver not in unpaused]
        self._written_paused = False
        self._written = following[0].maximum
        self._on_lost = on_lost

    def job(self) -> BackgroundJob:
        """The beat as a background job."""
        return BackgroundJob(f"heartbeat of {self._lease.endpoint}", HEARTBEAT_SECONDS, self.beat)

    def beat(self) -> None:
        """Renew the row, then apply its desired state. Raises DatabaseError; a lock timeout is left to the next beat."""
        threads: dict[str, int] = {}
        busy: dict[str, int] = {}
        for receiver in self._receivers:
            live_here, busy_here = receiver.threads_by_queue()
            threads |= live_here
            busy |= busy_here
        try:
            with errors_of_alias(self._lease.alias, "write the heartbeat"):
                # One transaction, to keep idle workers cheap for the server.
                with transaction.atomic(using=self._lease.alias):
                    alive = self._lease.heartbeat(threads, busy)
                    desired = self._lease.desired_state() if alive else None
                if desired is not None:
                    self._follow_pause(desired.paused)
                    self._follow_concurrency(desired.concurrency)
        except LockTimeout:
            # SQLite, with a slow handler.
            return
        if not alive:
            logger.error(
                "the row of this process of %s was deleted: it sent no heartbeat for too long",
                self._lease.endpoint,
                extra={"event": "lease_lost", "endpoint": self._lease.endpoint},
            )
            self._on_lost()
            if self._written_paused:
                # The pause belongs to the process, whose new row knows nothing of it.
                self._lease.pause_again()

    def _follow_pause(self, wanted: bool) -> None:
        for receiver in self._pausing:
            (receiver.pause if wanted else receiver.resume)()
        if wanted is not self._written_paused:
            self._lease.write_paused(wanted)
            self._written_paused = wanted

    def _follow_concurrency(self, wanted: int) -> None:
        now = self._following[0].maximum
        if now != self._written:
            # The program has changed it: update the row.
            self._lease.write_concurrency(now)
            self._written = now
            return
        if wanted == self._written:
            return
        if wanted < 1:
            logger.error(
                "the concurrency of %s cannot be %s: expected at least 1; to receive nothing, stop the worker; it stays %s",
                self._lease.endpoint,
                wanted,
                self._written,
                extra={"event": "concurrency_refused", "endpoint": self._lease.endpoint},
            )
            self._lease.write_concurrency(self._written)
            return
        for receiver in self._following:
            receiver.change_concurrency(wanted)
        self._written = wanted


# A claim further ahead dates from before the clock was set back, and would block the work until then.
MAX_CLAIM_AHEAD = timedelta(minutes=15)


def claim(alias: str, name: str, until: datetime) -> bool:
    """Claim work of a cluster until an instant of the database's clock. Returns False if another process holds the claim.

    A failed claim costs one SELECT. Inside a transaction a rollback returns the claim, and competing processes wait until the
    transaction ends.
    """
    claims = Claim.objects.using(alias).filter(name=name)
    before = claims.values_list("until", flat=True).first()
    if before is None:
        try:
            with transaction.atomic(using=alias):
                claims.create(name=name, until=until)
        except IntegrityError:
            return False
        return True
    if _is_claimed(before, until):
        return False
    return claims.filter(until=before).update(until=until) == 1


def due(alias: str, pieces: Mapping[str, datetime]) -> list[str]:
    """Claim several pieces of work, each until an instant, and return those obtained: as `claim`, with one SELECT for all."""
    until = dict(Claim.objects.using(alias).filter(name__in=list(pieces)).values_list("name", "until"))
    waiting = [name for name, wanted in pieces.items() if not _is_claimed(until.get(name), wanted)]
    return [name for name in waiting if claim(alias, name, pieces[name])]


def one_at_a_time(alias: str, name: str, now: datetime) -> None:
    """Block other callers with the same name until the end of the transaction, which must be open."""
    claims = Claim.objects.using(alias).filter(name=name)
    if not claims.update(until=now):
        try:
            with transaction.atomic(using=alias):
                claims.create(name=name, until=now)
        except IntegrityError:
            claims.update(until=now)


def _is_claimed(before: datetime | None, until: datetime) -> bool:
    return before is not None and until <= before <= until + MAX_CLAIM_AHEAD


def forget_claims(alias: str, before: datetime) -> None:
    """Delete claims not renewed since, of work that has been dropped or renamed."""
    Claim.objects.using(alias).filter(until__lt=before).delete()
