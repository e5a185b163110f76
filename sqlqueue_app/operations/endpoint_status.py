"""The state of endpoints, as values: their processes, how much waits for them, what they do, what has failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db.models import CharField, Count, Value
from django.db.models.functions import Cast

from sqlqueue_app.conf import Settings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import EndpointExpectation, FailedMessage, FailureStatus
from sqlqueue_app.operations.endpoint_measures import Measured, recent_measures
from sqlqueue_app.operations.instance_status import InstanceStatus, read_instances
from sqlqueue_app.operations.known_queues import KnownQueue, QueueKind, known_queues
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.queue_looks import QueueStatus, read_queues, utc_now
from sqlqueue_app.operations.queue_problems import QueueProblem
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.queue import Depth

_RECEIVED = (QueueKind.MAIN, QueueKind.SATELLITE)


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """One endpoint. `measured` is of the last minute; `failed` counts the unresolved failed messages. Both None if unreadable.

    `failed` is None, too, for one of which nothing but a `minimum` is known: how many live processes operators expect at least,
    0: they expect nothing.
    """

    name: str
    is_in_settings: bool
    queues: tuple[QueueStatus, ...] = ()
    instances: tuple[InstanceStatus, ...] = ()
    measured: Measured | None = None
    failed: int | None = None
    minimum: int = 0

    @property
    def is_below_minimum(self) -> bool:
        """Whether fewer of its processes are alive than operators expect."""
        return len(self.alive) < self.minimum

    @property
    def depth(self) -> Depth | None:
        """What waits in its main queue and satellites; None where nothing could be counted."""
        depths = [each.depth for each in self.queues if each.queue.kind in _RECEIVED and each.depth is not None]
        if not depths:
            return None
        return Depth(
            sum(each.waiting for each in depths),
            sum(each.expiring for each in depths),
            sum(each.expired for each in depths),
            exact=all(each.exact for each in depths),
        )

    @property
    def alive(self) -> tuple[InstanceStatus, ...]:
        """Its live processes."""
        return tuple(each for each in self.instances if each.alive)

    @property
    def dead(self) -> int:
        """How many processes have ended without saying so."""
        return len(self.instances) - len(self.alive)

    @property
    def busy_threads(self) -> int:
        """The threads of live processes that handle a message, as of their last heartbeats."""
        return sum(each.busy_threads for each in self.alive)

    @property
    def limit(self) -> int:
        """How many messages its live processes handle at once, at most."""
        return sum(each.concurrency for each in self.alive)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """All endpoints: those of the settings, then others with a registered process or a minimum.

    `now` is by the clock of the managed tables.
    """

    endpoints: tuple[EndpointStatus, ...]
    now: datetime | None
    problem: QueueProblem | None = field(default=None)


def read_endpoints(settings: Settings, only: str | None = None) -> Endpoints:
    """The endpoints, or the one of this name alone, if there is such. Raises ConnectionLost; what else fails is left out."""
    instances, rows, problem = read_instances()
    names = dict.fromkeys([*settings.senders, *sorted({each.endpoint for each in instances})])
    queues = [each for each in known_queues(settings, rows) if _belongs(each, [only] if only is not None else names)]
    looks = {each.queue: each for each in read_queues(settings, queues, now=utc_now())} if queues else {}
    measured, failed, minimums, now = _read_managed([only] if only is not None else list(names))
    names |= dict.fromkeys(sorted(minimums))
    found = tuple(
        EndpointStatus(
            name=name,
            is_in_settings=name in settings.senders,
            queues=tuple(look for queue, look in looks.items() if name in queue.endpoints),
            instances=tuple(each for each in instances if each.endpoint == name),
            measured=None if measured is None else measured.get(name, Measured(60.0)),
            failed=None if failed is None else failed.get(name),
            minimum=minimums.get(name, 0),
        )
        for name in names
        if only is None or name == only
    )
    return Endpoints(found, now, problem)


def _belongs(queue: KnownQueue, names: Iterable[str]) -> bool:
    return any(name in queue.endpoints for name in names)


def _read_managed(
    names: Sequence[str],
) -> tuple[Mapping[str, Measured] | None, Mapping[str, int] | None, Mapping[str, int], datetime | None]:
    """The measures of the last minute, the numbers of failed messages, the minimums, the time; None where it cannot be read."""
    alias = managed_alias()
    try:
        with looking(alias, "read the measures of endpoints"):
            now = database_now(alias)
            return recent_measures(alias, now), *_failed_and_minimums(alias, names), now
    except ConnectionLost:
        raise
    except DatabaseError:
        return None, None, {}, None


def _failed_and_minimums(alias: str, names: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
    """The failed messages of these endpoints, and the minimums of all: one statement, of which a page has few.

    Failed messages by the groups of ServiceControl: their index holds all that is counted.
    """
    groups = {CLASSIFIERS["endpoint"].group_id(name): name for name in names}
    unresolved = FailedMessage.objects.using(alias).filter(status=FailureStatus.UNRESOLVED, endpoint_group__in=list(groups))
    counted = unresolved.order_by().values("endpoint_group").annotate(number=Count("*"))
    told = counted.annotate(what=Value("failed"), name=Cast("endpoint_group", CharField())).values_list("what", "name", "number")
    minimums = EndpointExpectation.objects.using(alias).annotate(what=Value("minimum"))
    rows = list(told.union(minimums.values_list("what", "endpoint", "minimum"), all=True))
    failed = dict.fromkeys(names, 0) | {groups[UUID(name)]: number for what, name, number in rows if what == "failed"}
    return failed, {name: number for what, name, number in rows if what == "minimum"}
