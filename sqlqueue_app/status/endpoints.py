"""Endpoints: their processes, waiting messages, throughput, failures, and minimum numbers of instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import CharField, Count, Max, Min, QuerySet, Sum, Value
from django.db.models.functions import Cast
from django.utils.translation import gettext as _

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import EndpointExpectation, EndpointSample, FailedMessage, FailureStatus, Operation, managed_alias
from sqlqueue_app.models.operations import OPEN
from sqlqueue_app.receiving.measures import SUMS, Counted
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.instances import InstanceStatus, clock_of_rows, is_received, read_instances, works_on
from sqlqueue_app.status.queues import QueueProblem, QueueStatus, known_queues, queue_name_at, read_queues, total_depth, utc_now
from sqlqueue_app.status.samples import FINEST, RESOLUTIONS, Resolution
from sqlqueue_app.tables.connections import database_now, optional_read
from sqlqueue_app.tables.queue import Depth


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """One endpoint. `measured` covers the last minute; `failed` counts unresolved failed messages. Both None if unreadable.

    `failed` is also None for an endpoint of which only a `minimum` is known: the least number of live processes that operators
    expect, 0 for no expectation.
    """

    name: str
    is_in_settings: bool
    queues: tuple[QueueStatus, ...]
    instances: tuple[InstanceStatus, ...]
    measured: Measured | None
    failed: int | None
    minimum: int

    @property
    def is_below_minimum(self) -> bool:
        """Whether fewer live processes receive from its main queue than operators expect."""
        return sum(works_on(each, self.name) for each in self.instances) < self.minimum

    @property
    def depth(self) -> Depth | None:
        """The messages that wait in its main queue and satellites; None if nothing could be counted."""
        return total_depth(each.depth for each in self.queues if each.queue.is_receiving)

    @property
    def alive(self) -> tuple[InstanceStatus, ...]:
        return tuple(each for each in self.instances if each.alive)

    @property
    def dead(self) -> int:
        """The number of processes that ended without signing off."""
        return len(self.instances) - len(self.alive)

    @property
    def busy_threads(self) -> int:
        """The number of busy threads of live processes, as of their last heartbeats."""
        return sum(each.busy_threads for each in self.alive)

    @property
    def limit(self) -> int:
        """The maximum number of messages that its live processes handle at once."""
        return sum(each.concurrency for each in self.alive)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints of the settings, then others with a process or a minimum. `now` is by the clock of the managed tables."""

    endpoints: tuple[EndpointStatus, ...]
    now: datetime | None
    problem: QueueProblem | None


def read_endpoints(settings: Settings, only: str | None = None) -> Endpoints:
    """Read all endpoints, or only the one of this name, if it exists. Raises ConnectionLost; other failed reads are left out."""
    instances, rows, problem = read_instances()
    names = dict.fromkeys([*settings.senders, *sorted({each.endpoint for each in instances})])
    shown = [only] if only is not None else list(names)
    queues = [each for each in known_queues(settings, rows) if not set(each.endpoints).isdisjoint(shown)]
    statuses = {each.queue: each for each in read_queues(settings, queues, now=utc_now())} if queues else {}
    measured, failed, minimums, now = _read_managed(shown, clock_of_rows(rows))
    names |= dict.fromkeys(sorted(minimums))
    found = tuple(
        EndpointStatus(
            name=name,
            is_in_settings=name in settings.senders,
            queues=tuple(status for queue, status in statuses.items() if name in queue.endpoints),
            instances=tuple(each for each in instances if each.endpoint == name),
            measured=None if measured is None else measured.get(name, Measured(length=60.0)),
            failed=None if failed is None else failed.get(name),
            minimum=minimums.get(name, 0),
        )
        for name in names
        if only is None or name == only
    )
    return Endpoints(found, now, problem)


def _read_managed(
    names: Sequence[str], now: datetime | None
) -> tuple[Mapping[str, Measured] | None, Mapping[str, int] | None, Mapping[str, int], datetime | None]:
    """The measures of the last minute, the numbers of failed messages, the minimums, the time; None for unreadable ones."""
    alias = managed_alias()
    with optional_read(alias, "read the measures of endpoints"):
        now = now or database_now(alias)
        failed, minimums, _running = failed_and_minimums(alias, names)
        return recent_measures(alias, now), failed, minimums, now
    return None, None, {}, None


def failed_and_minimums(alias: str, names: Sequence[str]) -> tuple[dict[str, int], dict[str, int], int]:
    """Failed messages by endpoint, minimums by endpoint, and the number of open operations: one statement.

    Failures are counted by ServiceControl's groups, whose index covers the count.
    """
    groups = {CLASSIFIERS["endpoint"].group_id(name): name for name in names}
    unresolved = FailedMessage.objects.using(alias).filter(status=FailureStatus.UNRESOLVED, endpoint_group__in=list(groups))
    counted = unresolved.order_by().values("endpoint_group").annotate(number=Count("*"))
    numbers = counted.annotate(what=Value("failed"), name=Cast("endpoint_group", CharField())).values_list("what", "name", "number")
    minimums = EndpointExpectation.objects.using(alias).annotate(what=Value("minimum")).values_list("what", "endpoint", "minimum")
    running = Operation.objects.using(alias).filter(state__in=OPEN).order_by().annotate(what=Value("running"))
    states = running.values("what", "state").annotate(number=Count("pk")).values_list("what", "state", "number")
    rows = list(numbers.union(minimums, states, all=True))
    failed = dict.fromkeys(names, 0) | {groups[UUID(name)]: number for what, name, number in rows if what == "failed"}
    expected = {name: number for what, name, number in rows if what == "minimum"}
    return failed, expected, sum(number for what, _name, number in rows if what == "running")


# Current throughput is that of the last minute with complete samples.
RECENT: Final = timedelta(minutes=1)
# More points than a chart shows would be wasted work: a month is read by the hour.
MAX_POINTS: Final = 1500


@dataclass(slots=True)
class Measured(Counted):
    """Work done in `length` seconds. Times in seconds; None where no message has one. Means are weighted by message."""

    length: float = field(kw_only=True)

    @property
    def throughput(self) -> float:
        return self.handled / self.length

    @property
    def retries(self) -> int:
        return self.immediate_retries + self.delayed_retries

    @property
    def retry_rate(self) -> float:
        """Retries per second."""
        return self.retries / self.length

    @property
    def failure_rate(self) -> float:
        """Failed attempts per second."""
        return self.failures / self.length

    @property
    def processing_mean(self) -> float | None:
        return self.processing_seconds / self.handled if self.handled else None

    @property
    def critical_mean(self) -> float | None:
        """The mean critical time of a message; negative where senders' clocks are ahead."""
        return self.critical_seconds / self.critical_measured if self.critical_measured else None


def resolution_of(period: timedelta) -> Resolution:
    """The finest samples that are kept for this period and do not exceed the points of a chart."""
    fine_enough = (each for each in RESOLUTIONS if each.kept >= period and period / timedelta(seconds=each.seconds) <= MAX_POINTS)
    return next(fine_enough, RESOLUTIONS[-1])


def recent_measures(alias: str, now: datetime) -> dict[str, Measured]:
    """The measures of each endpoint in the last minute. One statement."""
    end = FINEST.start_of(now)
    rows = _summed(_samples(alias, None, FINEST, end - RECENT, end).values("endpoint"))
    return {row.pop("endpoint"): Measured(length=RECENT.total_seconds(), **row) for row in rows}


def measures_by_type_and_instance(
    alias: str, endpoint: str, period: timedelta, now: datetime, started: Mapping[str, datetime]
) -> tuple[dict[str, Measured], dict[str, Measured]]:
    """The measures of an endpoint in the period before `now`, by message type and by instance, busiest first. One statement.

    `started`: start times of the registered instances. The measures of an instance younger than the period cover its lifetime;
    those of types cover the lifetime of the oldest instance.
    """
    samples = _samples(alias, endpoint, resolution_of(period), now - period, now)
    rows = list(_summed(samples.values("message_type", "instance")).annotate(first=Min("taken_at")))
    begins = dict(started)
    for row in rows:
        begins[row["instance"]] = min(row.pop("first"), begins.get(row["instance"], now))
    lengths = {name: max(float(FINEST.seconds), (now - max(begin, now - period)).total_seconds()) for name, begin in begins.items()}
    longest = max(lengths.values(), default=0.0)
    by_type: dict[str, Measured] = {}
    by_instance: dict[str, Measured] = {}
    for row in rows:
        message_type, instance = row.pop("message_type"), row.pop("instance")
        by_type.setdefault(message_type, Measured(length=longest)).add(Counted(**row))
        by_instance.setdefault(instance, Measured(length=lengths[instance])).add(Counted(**row))
    return _busiest_first(by_type), _busiest_first(by_instance)


def _busiest_first(found: dict[str, Measured]) -> dict[str, Measured]:
    order = sorted(found, key=lambda name: (-found[name].handled, -found[name].failures, name))
    return {name: found[name] for name in order}


def measures_over_time(alias: str, endpoint: str, period: timedelta, now: datetime) -> list[tuple[datetime, Measured]]:
    """The intervals of the period, oldest first, also empty ones; the newest only if complete. One statement."""
    resolution = resolution_of(period)
    # Processes write at the end of the interval at the latest; coarser samples follow up to a minute after the next finer ones.
    finer = [each.seconds for each in RESOLUTIONS if each.seconds < resolution.seconds]
    late = timedelta(seconds=60 + finer[-1] if finer else 0)
    end = resolution.start_of(now - late)
    begin = resolution.start_of(now - period) + timedelta(seconds=resolution.seconds)
    rows = _summed(_samples(alias, endpoint, resolution, begin, end).values("taken_at"))
    found = {row.pop("taken_at"): Measured(length=resolution.seconds, **row) for row in rows}
    nothing = Measured(length=resolution.seconds)
    times = int((end - begin).total_seconds()) // resolution.seconds
    every = [begin + timedelta(seconds=resolution.seconds * number) for number in range(times)]
    return [(at, found.get(at, nothing)) for at in every]


def _samples(alias: str, endpoint: str | None, resolution: Resolution, begin: datetime, end: datetime) -> QuerySet[EndpointSample]:
    found = EndpointSample.objects.using(alias).filter(seconds=resolution.seconds, taken_at__gte=begin, taken_at__lt=end)
    return found if endpoint is None else found.filter(endpoint=endpoint)


def _summed(grouped: Any) -> Any:
    sums: dict[str, Any] = {name: Sum(name) for name in SUMS}
    return grouped.annotate(**sums, processing_max=Max("processing_max"), critical_max=Max("critical_max")).order_by()


MAX_MINIMUM: Final = 1_000


def read_minimums() -> dict[str, int]:
    """The minimum of each endpoint that has one; empty before `migrate`. One statement. Raises ConnectionLost."""
    alias = managed_alias()
    with optional_read(alias, "read the minimums of instances"):
        return dict(EndpointExpectation.objects.using(alias).values_list("endpoint", "minimum"))
    return {}


def set_minimum(endpoint: str, minimum: int, *, actor: Actor) -> None:
    """Set the expected number of live instances; 0: no expectation. Raises ConfigurationError if invalid, and Django's errors."""
    if isinstance(minimum, bool) or not 0 <= minimum <= MAX_MINIMUM:
        raise ConfigurationError(
            f"the minimum of instances of {endpoint!r} cannot be {minimum!r}: expected an integer from 0 to {MAX_MINIMUM}; "
            "0 expects nothing"
        )
    alias = managed_alias()
    rows = EndpointExpectation.objects.using(alias)
    if not minimum:
        rows.filter(endpoint=endpoint).delete()
        return
    values = {"minimum": minimum, "changed_by": actor.name[:255], "changed_at": database_now(alias)}
    with transaction.atomic(using=alias):
        rows.update_or_create(endpoint=endpoint, defaults=values)


def reasons_to_wait(settings: Settings, addresses: Iterable[str]) -> list[str]:
    """Why retries to these addresses would wait: queues of the settings that are paused or have no live worker.

    One statement, none without such queues.
    """
    names = {queue_name_at(address) for address in addresses}
    queues = [each for each in known_queues(settings) if each.is_receiving and each.name in names]
    if not queues:
        return []
    instances, _rows, problem = read_instances()
    found = []
    for queue in queues if problem is None else ():
        workers = [each for each in instances if each.endpoint in queue.endpoints and each.alive and each.is_worker]
        if workers and all(each.paused for each in workers):
            text = _("“%(queue)s” is paused by %(user)s: retries wait there.")
            found.append(text % {"queue": queue.name, "user": workers[0].paused_by or "?"})
        elif not is_received(queue, instances):
            found.append(_("“%(queue)s” has no live worker: retries wait there.") % {"queue": queue.name})
    return found
