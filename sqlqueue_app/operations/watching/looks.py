"""The checks that one worker runs for all: few statements each, and none that reads a queue table.

How much waits is taken from the samples, which a worker counts every ten seconds anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import cached_property
from typing import Final

from django.db.models import Count, Min
from django.utils import timezone

from sqlqueue_app.conf import Settings
from sqlqueue_app.databases.ddl import TableKind
from sqlqueue_app.instances import DEAD_AFTER_SECONDS
from sqlqueue_app.models import EndpointExpectation, QueueSample
from sqlqueue_app.operations.in_doubt import InDoubt
from sqlqueue_app.operations.installation_plan import planned_tables
from sqlqueue_app.operations.instance_status import InstanceStatus, read_instances
from sqlqueue_app.operations.known_queues import KnownQueue, QueueKind, known_queues
from sqlqueue_app.operations.queue_looks import table_key
from sqlqueue_app.operations.sample_storage import FINEST, RESOLUTIONS
from sqlqueue_app.operations.schedule_status import read_schedules
from sqlqueue_app.operations.watching import catalogue
from sqlqueue_app.operations.watching.catalogue import CheckKind
from sqlqueue_app.operations.watching.results import Details, Report
from sqlqueue_app.tables.connections import connection_of, dialect_of_connection
from sqlqueue_app.tables.inspection import current_catalog
from sqlqueue_app.tables.installation import FindingKind, findings_of_layout, inspect_tables
from sqlqueue_app.tables.listing import list_tables
from sqlqueue_app.tables.well_known import DELAYED_SUFFIX

# A queue that was found so in each sample of this time is so; one sample may catch a message between two polls.
RECENT: Final = timedelta(seconds=60)
LEAST_SAMPLES: Final = 4
EXPIRED_LIMIT: Final = 1_000
# A purge that is late by two of its intervals; workers purge every five minutes unless the settings say otherwise.
PURGES_MISSED: Final = 3
LEAST_TIME: Final = timedelta(minutes=15)
MINUTES: Final = RESOLUTIONS[1]
# The tick of a schedule is sent within seconds by a worker that lives, and later where the database was away.
TICK_GRACE: Final = timedelta(minutes=2)
_RECEIVED: Final = (QueueKind.MAIN, QueueKind.SATELLITE)


@dataclass(frozen=True, slots=True)
class Recent:
    """A queue in the samples of the last minute: the least that was in it."""

    waiting: int
    overdue: int


class Look:
    """One look at everything, for the checks that are due. `now` is an instant of the clock of the managed tables' database.

    `in_doubt` is that of the process, which outlives the look.
    """

    def __init__(self, settings: Settings, alias: str, now: datetime, in_doubt: InDoubt, *, zone: tzinfo | None = None) -> None:
        self.settings = settings
        self.alias = alias
        self.now = now
        self.in_doubt = in_doubt
        self.zone = zone or timezone.get_default_timezone()

    @cached_property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """The registered processes."""
        return read_instances()[0]

    @cached_property
    def received_queues(self) -> list[KnownQueue]:
        """The main queues and satellites of the endpoints that workers run."""
        known = known_queues(self.settings)
        return [each for each in known if each.kind in _RECEIVED and set(each.endpoints) & set(self.settings.endpoints)]

    @cached_property
    def recent(self) -> Mapping[str, Recent]:
        """By name, the queues that were counted often enough in the last minute."""
        samples = QueueSample.objects.using(self.alias).filter(
            seconds=FINEST.seconds, taken_at__gt=self.now - RECENT, taken_at__lte=self.now
        )
        rows = samples.values_list("queue").annotate(n=Count("pk"), waiting=Min("waiting"), overdue=Min("overdue")).order_by()
        return {queue: Recent(waiting, overdue) for queue, n, waiting, overdue in rows if n >= LEAST_SAMPLES}


_Found = Iterator[tuple[str, Details | None]]


def run(kind: CheckKind, look: Look) -> Report:
    """Run a check. Raises the errors of the database."""
    found = dict(CHECKS[kind.name](look))
    failing = {subject: details for subject, details in found.items() if details is not None}
    return Report(kind.name, kind.every_seconds, failing, frozenset(found.keys() - failing.keys()))


def _instances(look: Look) -> _Found:
    for each in look.instances:
        # Not how long ago it was: that would be another row every time.
        silent = {"endpoint": each.endpoint, "seconds": int(DEAD_AFTER_SECONDS)}
        yield f"{each.endpoint} on {each.host} ({each.pid})", None if each.alive else silent


def _minimums(look: Look) -> _Found:
    wanted = EndpointExpectation.objects.using(look.alias).filter(minimum__gt=0)
    for endpoint, minimum in wanted.values_list("endpoint", "minimum"):
        alive = sum(1 for each in look.instances if each.alive and each.endpoint == endpoint)
        yield endpoint, {"alive": alive, "minimum": minimum} if alive < minimum else None


def _receivers(look: Look) -> _Found:
    for queue in look.received_queues:
        found = look.recent.get(queue.name)
        if found is None:
            continue
        table = queue.address.table
        # One that has just started has not yet told of its threads.
        is_received = any(
            each.alive and each.endpoint in queue.endpoints and (table in each.threads or not each.threads)
            for each in look.instances
        )
        yield queue.name, {"waiting": found.waiting} if found.waiting and not is_received else None


def _mover(look: Look) -> _Found:
    for endpoint in look.settings.senders:
        found = look.recent.get(endpoint + DELAYED_SUFFIX)
        if found is not None:
            yield endpoint, {"overdue": found.overdue} if found.overdue else None


def _purging(look: Look) -> _Found:
    times: defaultdict[timedelta, list[str]] = defaultdict(list)
    for queue in look.received_queues:
        endpoints = [each for name, each in look.settings.endpoints.items() if name in queue.endpoints]
        every = min(each.purge_expired_every_seconds for each in endpoints)
        if every:
            times[max(timedelta(seconds=PURGES_MISSED * every), LEAST_TIME)].append(queue.name)
    for time, queues in times.items():
        if time >= MINUTES.kept:
            continue
        samples = QueueSample.objects.using(look.alias).filter(
            seconds=MINUTES.seconds, taken_at__gt=look.now - time, queue__in=queues
        )
        minutes = round(time.total_seconds() / MINUTES.seconds)
        for name, n, expired in samples.values_list("queue").annotate(n=Count("pk"), expired=Min("expired")).order_by():
            # The last minute is not rolled up yet, and one may be missing where a worker has taken over from another.
            is_late = expired > EXPIRED_LIMIT and n >= minutes - 3
            yield name, {"limit": EXPIRED_LIMIT, "minutes": minutes} if is_late else None


def _schedules(look: Look) -> _Found:
    for each in read_schedules(look.settings, look.now, zone=look.zone):
        since = each.late_since
        if since is not None and since > look.now - TICK_GRACE:
            since = None
        if each.error and each.state is not None:
            since = since or each.state.failed_at
        if not each.is_seen and since is None:
            continue
        at = None if since is None else f"{since.astimezone(look.zone):%Y-%m-%d %H:%M %Z}"
        yield each.name, None if at is None else {"tick": at, "error": each.error}


def _tables(look: Look) -> _Found:
    """What `sqlqueue_install --check` says, but for callback queues, which only the machine knows whose they are."""
    alias = look.settings.database
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    layout = look.settings.table_layout
    listed = {table_key(each.address): each for each in list_tables(alias)}
    for table in planned_tables(look.settings, dialect.name, current_catalog(connection), instance_names=()):
        found = listed.get(table_key(table.address))
        if found is not None and table.kind is TableKind.QUEUE and found.layout is not None:
            findings = findings_of_layout(dialect, table, found.layout, layout)
        elif found is not None and table.kind is TableKind.DELAYED and found.is_delayed:
            findings = []
        else:
            findings = inspect_tables(alias, [table], layout=layout)
        wrong = [each for each in findings if each.kind is not FindingKind.NON_UNICODE_HEADERS]
        yield dialect.qualified(table.address), {"text": wrong[0].text, "sql": wrong[0].sql} if wrong else None


def _branches(look: Look) -> _Found:
    """Branches that outlive the looks of the workers, which end what is in doubt every few seconds."""
    for each in look.in_doubt.prepared():
        at = each.prepared_at.astimezone(look.zone)
        is_old = each.prepared_at < look.now - RECENT
        yield str(each.id), {"alias": each.alias, "prepared": f"{at:%Y-%m-%d %H:%M %Z}"} if is_old else None


CHECKS: Final[Mapping[str, Callable[[Look], _Found]]] = {
    catalogue.INSTANCES.name: _instances,
    catalogue.MINIMUMS.name: _minimums,
    catalogue.RECEIVERS.name: _receivers,
    catalogue.MOVER.name: _mover,
    catalogue.PURGING.name: _purging,
    catalogue.SCHEDULES.name: _schedules,
    catalogue.TABLES.name: _tables,
    catalogue.BRANCHES.name: _branches,
}
