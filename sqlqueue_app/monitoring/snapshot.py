"""The state that checks read: as a `Status` shows it now, or as a worker can read it at little cost.

Commands and pages have a status, which counts the queues. Workers check every 20 seconds: they take the numbers of queues from the
samples, which are written anyway, and read no queue table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from functools import cached_property
from typing import Final

from django.db.models import Count, Min, QuerySet
from django.utils import timezone

from sqlqueue_app.conf import Settings
from sqlqueue_app.models import EndpointExpectation, FailedMessage, FailureStatus, QueueSample
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.status.delayed import DelayedStatus
from sqlqueue_app.status.in_doubt import InDoubt
from sqlqueue_app.status.instances import InstanceStatus, read_instances, receives
from sqlqueue_app.status.overview import Status, callback_queues
from sqlqueue_app.status.queues import KnownQueue, QueueKind, QueueProblem, QueueStatus, known_queues
from sqlqueue_app.status.samples import FINEST, RESOLUTIONS, Resolution
from sqlqueue_app.status.schedules import ScheduleStatus, read_schedules
from sqlqueue_app.tables.connections import optional_read
from sqlqueue_app.tables.installation import DELAYED_SUFFIX
from sqlqueue_app.tables.two_phase import PreparedBranch

RECEIVED: Final = (QueueKind.MAIN, QueueKind.SATELLITE)
# A queue with messages in each sample of this period has a backlog; one sample may catch a message between two polls.
RECENT: Final = timedelta(seconds=60)
LEAST_SAMPLES: Final = 4
MINUTES: Final = RESOLUTIONS[1]


class Snapshot:
    """The state at one instant. Each part is read when it is first asked for, and once; what could not be read is left out.

    With a `status` and the `minimums` of live processes all is known but archived messages. Without them it comes from the managed
    tables, and raises the errors of the database. `now` is an instant of their clock. `in_doubt` outlives the snapshot.
    """

    def __init__(
        self,
        settings: Settings,
        now: datetime,
        *,
        status: Status | None = None,
        minimums: Mapping[str, int] | None = None,
        in_doubt: InDoubt | None = None,
        zone: tzinfo | None = None,
    ) -> None:
        self.settings = settings
        self.status = status
        self.now = now
        self.zone = zone or timezone.get_default_timezone()
        self._alias = managed_alias()
        self._in_doubt = in_doubt
        if minimums is not None:
            self.minimums = minimums

    @cached_property
    def _registry(self) -> tuple[Sequence[InstanceStatus], QueueProblem | None]:
        if self.status is not None:
            return self.status.instances, self.status.instances_problem
        instances, _rows, problem = read_instances()
        return instances, problem

    @property
    def instances(self) -> Sequence[InstanceStatus]:
        return self._registry[0]

    @property
    def registry_problem(self) -> QueueProblem | None:
        """Why the registered processes cannot be read: then nothing is known of them."""
        return self._registry[1]

    @cached_property
    def minimums(self) -> Mapping[str, int]:
        """How many live processes operators expect at least, by endpoint."""
        return dict(EndpointExpectation.objects.using(self._alias).values_list("endpoint", "minimum"))

    def workers(self, endpoint: str) -> int:
        """How many live processes receive from the main queue of the endpoint."""
        return sum(1 for each in self.instances if each.endpoint == endpoint and receives(each, endpoint))

    @cached_property
    def known_queues(self) -> Sequence[KnownQueue]:
        return known_queues(self.settings)

    def is_run_by_workers(self, queue: KnownQueue) -> bool:
        """Whether it is a main queue or satellite of an endpoint that workers run."""
        return queue.kind in RECEIVED and bool(set(queue.endpoints) & set(self.settings.endpoints))

    @cached_property
    def waiting(self) -> Mapping[KnownQueue, int]:
        """How many messages wait in the main queues and satellites that workers run; of samples, the least of the last minute."""
        if self.status is not None:
            counted = {each.queue: each.depth.waiting for each in self.status.queues if each.depth is not None}
        else:
            counted = {each: self._recent[each.name][0] for each in self.known_queues if each.name in self._recent}
        return {queue: waiting for queue, waiting in counted.items() if self.is_run_by_workers(queue)}

    @cached_property
    def overdue(self) -> Mapping[str, int]:
        """How many delayed messages are overdue, by endpoint; of samples, the least of the last minute."""
        if self.status is not None:
            return {each.endpoint: each.overdue for each in self.delayed if each.overdue is not None}
        names = {endpoint: endpoint + DELAYED_SUFFIX for endpoint in self.settings.senders}
        return {endpoint: self._recent[name][1] for endpoint, name in names.items() if name in self._recent}

    @cached_property
    def failed(self) -> Sequence[tuple[QueueStatus, int]]:
        """The error queues of the status with the number of messages that nobody has archived, whoever owns them."""
        found = [] if self.status is None else [each for each in self.status.queues if each.queue.kind is QueueKind.ERROR]
        counted = [(each, each.depth.waiting) for each in found if each.depth is not None]
        archived = _count_archived(self._alias, [each.name for each, waiting in counted if waiting])
        return [(each, max(0, waiting - archived.get(each.name, 0))) for each, waiting in counted]

    @cached_property
    def replies(self) -> Sequence[tuple[QueueStatus, int]]:
        """The callback queues of the status that no live process holds, and how many replies wait in them."""
        if self.status is None:
            return ()
        held = {found.name for each in self.instances if each.alive and (found := self.status.callback_of(each)) is not None}
        free = [each for each in callback_queues(self.status) if each.name not in held]
        return [(each, each.depth.waiting) for each in free if each.depth is not None]

    @property
    def delayed(self) -> Sequence[DelayedStatus]:
        """The tables of delayed messages of the status that belong to endpoints of the settings."""
        found = () if self.status is None else self.status.delayed
        return [each for each in found if each.endpoint in self.settings.senders]

    @cached_property
    def _recent(self) -> Mapping[str, tuple[int, int]]:
        """The least numbers of waiting and of overdue messages, by queue, where it was sampled often enough."""
        counted = self._samples(FINEST, RECENT).values_list("queue").order_by()
        rows = counted.annotate(n=Count("pk"), waiting=Min("waiting"), overdue=Min("overdue"))
        return {queue: (waiting, overdue) for queue, n, waiting, overdue in rows if n >= LEAST_SAMPLES}

    @cached_property
    def newest_samples(self) -> Mapping[str, QueueSample]:
        """The newest sample of each queue that was sampled in the last minute."""
        samples = self._samples(FINEST, RECENT).only("queue", "waiting", "head_age_seconds")
        return {each.queue: each for each in samples.order_by("taken_at")}

    def expired(self, queues: Iterable[str], period: timedelta) -> Iterable[tuple[str, int, int]]:
        """The queues with their number of samples in the period, and the least number of expired messages in these."""
        rows = self._samples(MINUTES, period).filter(queue__in=list(queues)).values_list("queue").order_by()
        return list(rows.annotate(n=Count("pk"), expired=Min("expired")))

    def _samples(self, resolution: Resolution, period: timedelta) -> QuerySet[QueueSample]:
        times = {"taken_at__gt": self.now - period, "taken_at__lte": self.now}
        return QueueSample.objects.using(self._alias).filter(seconds=resolution.seconds, **times)

    @cached_property
    def schedules(self) -> Sequence[ScheduleStatus]:
        return self.status.schedules if self.status is not None else read_schedules(self.settings, self.now, zone=self.zone)

    @cached_property
    def branches(self) -> Sequence[PreparedBranch]:
        return () if self._in_doubt is None else self._in_doubt.prepared()


def _count_archived(alias: str, queues: Sequence[str]) -> dict[str, int]:
    """How many messages of each error queue are archived. One statement, none without queues. Raises ConnectionLost."""
    if not queues:
        return {}
    rows = FailedMessage.objects.using(alias).filter(status=FailureStatus.ARCHIVED, row_version__isnull=False, queue__in=queues)
    with optional_read(alias, "count the archived messages"):
        return dict(rows.order_by().values_list("queue").annotate(count=Count("pk")))
    return {}  # without the index nothing can have been archived
