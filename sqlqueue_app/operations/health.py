"""Whether all is well, as values: what `sqlqueue_health` says to monitoring systems.

Each check gives findings, each number that a limit may stand for a measure. What is asked for by a limit takes the place of the
default check of the same thing; all other default checks stay.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Count

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.conf.problems import meant
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConfigurationError, ConnectionLost, DatabaseError
from sqlqueue_app.models import FailedMessage
from sqlqueue_app.models.failures import FailureStatus
from sqlqueue_app.operations.instance_status import InstanceStatus
from sqlqueue_app.operations.known_queues import QueueKind
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.minimums import read_minimums
from sqlqueue_app.operations.queue_looks import QueueStatus
from sqlqueue_app.operations.queue_problems import ProblemKind
from sqlqueue_app.operations.status import Status, read_status
from sqlqueue_app.operations.watching.catalogue import BUILT_IN, finding_in_words
from sqlqueue_app.operations.watching.results import failing_checks
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT

_RECEIVED = (QueueKind.MAIN, QueueKind.SATELLITE)
_WARNED_OF = (ProblemKind.NO_EXPIRES_INDEX, ProblemKind.DEAD_ROWS)


class Level(enum.IntEnum):
    """How good it is; the numbers are the exit codes of monitoring plugins, and the greatest one counts."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """From when on a number is a warning, and critical; None: never. With `least` what is below is bad, else what is above."""

    warning: float | None = None
    critical: float | None = None
    least: bool = False

    def level(self, value: float) -> Level:
        """How good a value is."""
        if self._is_beyond(value, self.critical):
            return Level.CRITICAL
        return Level.WARNING if self._is_beyond(value, self.warning) else Level.OK

    def _is_beyond(self, value: float, bound: float | None) -> bool:
        if bound is None:
            return False
        return value < bound if self.least else value > bound


_NO_BOUNDS = Bounds()
_NONE_IS_FINE = Bounds(warning=0)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that somebody asked for. Ages are seconds."""

    length: Bounds | None = None
    age: Bounds | None = None
    failed: Bounds | None = None
    expired: Bounds | None = None
    overdue: Bounds | None = None
    instances: Bounds | None = None

    @property
    def counted_to(self) -> int:
        """How far must be counted to tell whether a limit is exceeded."""
        bounds = [each for each in (self.length, self.failed, self.expired, self.overdue) if each is not None]
        numbers = [number for each in bounds for number in (each.warning, each.critical) if number is not None]
        return max([EXACT_COUNT_LIMIT, *(int(number) + 1 for number in numbers)])


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a queue or an endpoint, with the bounds that it was held against. `exact`: False for an estimate."""

    subject: str
    name: str
    value: float
    bounds: Bounds = _NO_BOUNDS
    unit: str = ""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """Something that is not well: which check found it, at what, in words."""

    level: Level
    check: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    """The findings, the worst first, and everything that was measured."""

    findings: tuple[HealthFinding, ...] = ()
    measures: tuple[Measure, ...] = ()
    taken_at: datetime | None = None

    @property
    def level(self) -> Level:
        """That of the worst finding; CRITICAL goes before UNKNOWN, for what is known to be bad is no question."""
        levels = {each.level for each in self.findings}
        return Level.CRITICAL if Level.CRITICAL in levels else max(levels, default=Level.OK)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is looked at, and what of it by name."""

    status: Status
    limits: Limits
    queues: tuple[QueueStatus, ...]
    endpoints: tuple[str, ...]
    instances: tuple[InstanceStatus, ...]
    named: frozenset[str] = field(default_factory=frozenset)
    minimums: Mapping[str, int] = field(default_factory=dict)


def read_health(
    settings: Settings | None = None,
    limits: Limits | None = None,
    *,
    queues: Sequence[str] = (),
    endpoints: Sequence[str] = (),
) -> Health:
    """Look at all queues and endpoints of the settings, or at the named ones. Takes nothing, writes nothing, locks nothing.

    As many statements as `read_status`, one for the minimums of instances, two for the results of checks where everything is
    looked at, and one where messages lie in error queues. Raises ConnectionLost; ConfigurationError for wrong settings, for
    settings without endpoints, and for a name that there is not.
    """
    settings = settings or get_settings()
    limits = limits or Limits()
    if not settings.senders:
        raise ConfigurationError('SQLQUEUE["ENDPOINTS"] names no endpoint: there is nothing to check')
    for name in endpoints:
        if name not in settings.senders:
            settings.endpoint(name)  # raises, with the nearest name
    status = read_status(settings, limit=limits.counted_to, others=bool(queues))
    scope = _scope(settings, status, limits, queues, endpoints)
    looked = [_of_instances(scope), _of_queues(scope), _of_failures(scope), _of_delayed(scope), _of_endpoints(settings, scope)]
    if not queues and not endpoints:
        looked.append(_of_checks())
    found = [each for part in looked for each in part]
    findings = sorted((each for each in found if isinstance(each, HealthFinding)), key=lambda each: -each.level)
    return Health(tuple(findings), tuple(each for each in found if isinstance(each, Measure)), status.taken_at)


_Found = Iterator[HealthFinding | Measure]


def _scope(settings: Settings, status: Status, limits: Limits, queues: Sequence[str], endpoints: Sequence[str]) -> _Scope:
    known = {each.name: each for each in status.queues}
    for name in queues:
        if name not in known:
            near = meant(name, known) or ": sqlqueue_status lists those that there are"
            raise ConfigurationError(f"there is no queue {name!r} in database {status.database!r}{near}")
    chosen = [each for each in status.queues if is_watched(each, status)]
    of_endpoints = tuple(settings.senders)
    if queues or endpoints:
        chosen = [
            each
            for each in status.queues
            if each.name in queues or (is_watched(each, status) and set(each.queue.endpoints) & set(endpoints))
        ]
        of_queues = {
            name for each in chosen if each.name in queues and each.queue.kind in _RECEIVED for name in each.queue.endpoints
        }
        of_endpoints = tuple(name for name in settings.senders if name in endpoints or name in of_queues)
    instances = tuple(each for each in status.instances if each.endpoint in of_endpoints)
    everything = not queues and not endpoints
    minimums = {name: minimum for name, minimum in read_minimums().items() if everything or name in of_endpoints}
    looked = status.instances if everything else instances
    return _Scope(status, limits, tuple(chosen), of_endpoints, looked, frozenset(queues), minimums)


def is_watched(queue: QueueStatus, status: Status) -> bool:
    """Callback queues only while a live process holds them: a host that watches may have none of its own."""
    if queue.queue.kind is QueueKind.OTHER:
        return False
    if queue.queue.kind is not QueueKind.CALLBACK:
        return True
    return any(each.alive and each.callback_queue == queue.queue.address.table for each in status.instances)


def _of_instances(scope: _Scope) -> _Found:
    if scope.status.instances_problem is not None:
        yield HealthFinding(Level.CRITICAL, "instances", "instances", scope.status.instances_problem.text)
    for each in scope.instances:
        if not each.alive:
            silent = f"{each.heartbeat_age.total_seconds():.0f} s"
            text = f"the process {each.pid} of {each.endpoint} on {each.host} is dead: nothing was heard of it for {silent}"
            yield HealthFinding(Level.WARNING, "dead_instances", each.endpoint, text)


def _of_queues(scope: _Scope) -> _Found:
    for each in scope.queues:
        problem = each.problem
        if problem is not None and problem.stops_work:
            yield HealthFinding(Level.CRITICAL, problem.kind.value, each.name, f"queue {each.name}: {problem.text}")
        elif problem is not None and problem.kind in _WARNED_OF:
            yield HealthFinding(Level.WARNING, problem.kind.value, each.name, f"queue {each.name}: {problem.text}")
        if each.depth is not None:
            yield from _of_depth(scope, each)


def _of_depth(scope: _Scope, queue: QueueStatus) -> _Found:
    depth, limits = queue.depth, scope.limits
    if depth is None:
        return
    # Error and audit queues are not received from: their length and age are no backlog, unless somebody asks by name.
    is_backlog = queue.queue.kind not in (QueueKind.ERROR, QueueKind.AUDIT) or queue.name in scope.named
    yield from _held(
        Measure(queue.name, "length", depth.waiting, (limits.length if is_backlog else None) or _NO_BOUNDS, exact=depth.exact),
        "messages are waiting",
    )
    age = queue.head_age
    bounds = (limits.age if is_backlog else None) or _NO_BOUNDS
    if age is not None and age.age is not None:
        yield from _held(
            Measure(queue.name, "age", round(age.age.total_seconds(), 3), bounds, "s"), "s is the age of the first message"
        )
    elif age is not None and bounds != _NO_BOUNDS:
        text = f"queue {queue.name}: the age of the first message is not known: {age.unknown}"
        yield HealthFinding(Level.UNKNOWN, "age", queue.name, text)
    expired = Measure(queue.name, "expired", depth.expired, limits.expired or _NO_BOUNDS, exact=queue.expiry_exact)
    yield from _held(expired, "messages are expired and not purged")


def _held(measure: Measure, words: str) -> _Found:
    """The measure, and a finding where it is beyond its bounds."""
    yield measure
    level = measure.bounds.level(measure.value)
    if level is not Level.OK:
        number = f"{measure.value:g}" if measure.unit else f"{measure.value:.0f}"
        text = f"{measure.subject}: {'' if measure.exact else 'about '}{number} {words}"
        yield HealthFinding(level, measure.name, measure.subject, text)


def _of_failures(scope: _Scope) -> _Found:
    """What lies in the error queues, but for what somebody has archived: that stays there and needs nobody."""
    queues = [each for each in scope.queues if each.queue.kind is QueueKind.ERROR and each.depth is not None]
    archived = _archived([each.name for each in queues if each.depth and each.depth.waiting])
    for each in queues:
        if each.depth is not None:
            failed = max(0, each.depth.waiting - archived.get(each.name, 0))
            measure = Measure(each.name, "failed", failed, scope.limits.failed or _NONE_IS_FINE, exact=each.depth.exact)
            yield from _held(measure, "failed messages")


def _archived(queues: Iterable[str]) -> dict[str, int]:
    names = list(queues)
    if not names:
        return {}
    alias = managed_alias()
    try:
        with looking(alias, "count the archived messages"):
            rows = FailedMessage.objects.using(alias).filter(
                status=FailureStatus.ARCHIVED, row_version__isnull=False, queue__in=names
            )
            return dict(rows.order_by().values_list("queue").annotate(count=Count("pk")))
    except ConnectionLost:
        raise
    except DatabaseError:
        return {}  # without the index nothing can have been archived


def _of_delayed(scope: _Scope) -> _Found:
    for each in scope.status.delayed:
        if each.endpoint not in scope.endpoints:
            continue
        if each.exists is False:
            text = f"{each.endpoint}: its table of delayed messages {each.table} is missing: run python manage.py sqlqueue_install"
            yield HealthFinding(Level.CRITICAL, "missing", each.endpoint, text)
        elif each.overdue is None:
            text = f"{each.endpoint}: its table of delayed messages {each.table} cannot be read"
            yield HealthFinding(Level.CRITICAL, "unreadable", each.endpoint, text)
        else:
            measure = Measure(each.endpoint, "overdue", each.overdue, scope.limits.overdue or _NONE_IS_FINE)
            yield from _held(measure, "delayed messages are overdue: no worker moves them")


def _of_endpoints(settings: Settings, scope: _Scope) -> _Found:
    if scope.status.instances_problem is not None:
        return
    bounds = scope.limits.instances
    for name in dict.fromkeys((*scope.endpoints, *scope.minimums)):
        if name not in settings.endpoints and name not in scope.minimums:
            continue  # that of SEND_AS without an entry is run by no worker
        receiving = sum(1 for each in scope.status.instances if each.endpoint == name and _receives(each, name))
        minimum = scope.minimums.get(name)
        expected = bounds or (Bounds(critical=minimum, least=True) if minimum else _NO_BOUNDS)
        words = f"live instances, at least {minimum} are expected" if minimum and bounds is None else "live instances"
        yield from _held(Measure(name, "instances", receiving, expected), words)
    if bounds is None:
        yield from _nobody_receives(settings, scope)


def _nobody_receives(settings: Settings, scope: _Scope) -> _Found:
    for each in scope.queues:
        owners = set(each.queue.endpoints) & set(settings.endpoints)
        if each.queue.kind not in _RECEIVED or not owners or each.depth is None or not each.depth.waiting:
            continue
        if not any(one.endpoint in owners and _receives(one, each.queue.address.table) for one in scope.status.instances):
            text = f"queue {each.name}: {each.depth.waiting} messages are waiting, and no live instance receives from it"
            yield HealthFinding(Level.CRITICAL, "no_live_instance", each.name, text)


def _of_checks() -> _Found:
    """What checks have found, but for those that look at the same things as this module; nothing of what is muted."""
    alias = managed_alias()
    try:
        with looking(alias, "read the results of checks"):
            results = failing_checks(alias, database_now(alias))
    except ConnectionLost:
        raise
    except DatabaseError:
        return  # before `migrate` there is no table of results
    for each in results:
        kind = BUILT_IN.get(each.name)
        if kind is None or not kind.health_says_so:
            level = Level.CRITICAL if kind is None or kind.is_critical else Level.WARNING
            finding = finding_in_words(each.name, each.subject, each.details)
            text = finding if kind is not None else f"check {each.name}: {finding}"
            yield HealthFinding(level, "check", each.name if kind is None else each.subject, text)


def _receives(instance: InstanceStatus, queue: str) -> bool:
    """Whether a live process has threads on the queue; one that has just started has not yet told of its threads."""
    return instance.alive and (queue in instance.threads or not instance.threads)
