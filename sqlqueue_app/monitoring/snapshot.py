"""The state that checks read: from a `Status`, or from data that a worker can read cheaply.

Commands and pages have a status, which counts the queues. Workers check every 20 seconds: they take queue lengths from the
samples, which exist anyway, and read no queue table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from django.db.models import Avg, Count, F, IntegerField, Max, Min, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from sqlqueue_app.conf import Settings
from sqlqueue_app.models import (
    EndpointExpectation,
    FailedAttempt,
    FailedMessage,
    FailureGroup,
    FailureStatus,
    PipelineRun,
    QueueSample,
    managed_alias,
)
from sqlqueue_app.status.delayed import DelayedStatus
from sqlqueue_app.status.in_doubt import InDoubt
from sqlqueue_app.status.instances import InstanceStatus, is_received, read_instances, works_on
from sqlqueue_app.status.overview import Status, callback_queues
from sqlqueue_app.status.queues import KnownQueue, QueueKind, QueueProblem, QueueStatus, known_queues
from sqlqueue_app.status.samples import FINEST, RESOLUTIONS, Resolution
from sqlqueue_app.status.schedules import ScheduleStatus, read_schedules
from sqlqueue_app.tables.connections import optional_read
from sqlqueue_app.tables.installation import DELAYED_SUFFIX
from sqlqueue_app.tables.rows import cut_text
from sqlqueue_app.tables.two_phase import PreparedBranch

# A queue with messages in each sample of this period has a backlog; a single sample may catch a message between two polls.
RECENT: Final = timedelta(seconds=60)
MIN_SAMPLES: Final = 4
MINUTES: Final = RESOLUTIONS[1]
GROWTH_PERIOD: Final = timedelta(minutes=9)
MIN_GROWTH: Final = 100
# Like the pages of failed messages.
FAILURES_COUNTED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed messages waiting for a decision: the newest in words, its group, the time of the oldest, the number of groups.

    If `count` is not exact, it is a lower bound, and the groups are not known.
    """

    count: int = 0
    exact: bool = True
    newest: str = ""
    since: datetime | None = None
    group: UUID | None = None
    groups: int = 0


class _CountOf(Subquery):
    """The number of rows of another query."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) counted)"
    output_field = IntegerField()


class _CountOfGroups(_CountOf):
    """The number of different values of `of_group` in another query."""

    template = "(SELECT COUNT(DISTINCT of_group) FROM (%(subquery)s) counted)"


class Snapshot:
    """The state at one instant. Each part is read once, at its first use; unreadable parts are left out.

    With a `status` and the `minimums` of live processes, only archived messages are unknown. Otherwise the state comes from the
    managed tables, and raises the errors of the database. `now` is an instant of their clock. `in_doubt` outlives the snapshot.
    """

    def __init__(
        self,
        settings: Settings,
        now: datetime,
        *,
        status: Status | None = None,
        minimums: Mapping[str, int] | None = None,
        in_doubt: InDoubt | None = None,
    ) -> None:
        self.settings = settings
        self.status = status
        self.now = now
        self.zone = timezone.get_default_timezone()
        self._alias = managed_alias()
        self._in_doubt = in_doubt
        if minimums is not None:
            self.minimums = minimums
        self.checked_at: datetime | None = None
        """The time when a worker last ran checks, if known."""

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
        """The reason why the registered processes cannot be read; they are unknown then."""
        return self._registry[1]

    @cached_property
    def processes(self) -> Mapping[tuple[str, int], Sequence[InstanceStatus]]:
        """The instances of each process, by machine and process id: a process may run several endpoints."""
        found: defaultdict[tuple[str, int], list[InstanceStatus]] = defaultdict(list)
        for each in self.instances:
            found[each.host, each.pid].append(each)
        return found

    @cached_property
    def lost(self) -> frozenset[str]:
        """The endpoints with a dead process that was not replaced, which is the cause of their other problems."""
        return frozenset(each.endpoint for each in self.instances if each.is_lost)

    @cached_property
    def paused(self) -> Mapping[str, InstanceStatus]:
        """The endpoints whose workers all have a request to pause, with the worker that got the last request."""
        found: dict[str, InstanceStatus] = {}
        for name in dict.fromkeys(each.endpoint for each in self.instances):
            workers = [each for each in self.instances if each.endpoint == name and each.alive and each.is_worker]
            if workers and all(each.paused for each in workers):
                found[name] = max(workers, key=lambda each: each.pause_requested_at or self.now)
        return found

    @cached_property
    def has_no_workers(self) -> bool:
        """Whether no worker is alive."""
        return not any(each.alive and each.is_worker for each in self.instances)

    @property
    def is_unstarted(self) -> bool:
        """Whether an endpoint has handlers, but no worker is alive and none has ever run checks."""
        has_handlers = not all(map(self.settings.is_send_only, self.settings.endpoints))
        return has_handlers and self.checked_at is None and self.has_no_workers

    @cached_property
    def is_lack_of_workers_reported(self) -> bool:
        """Whether no worker is alive, and an alert about an endpoint reports it: the cause of unfinished work of workers."""
        return self.has_no_workers and any(map(self.is_reported, {*self.lost, *self.minimums, *self.settings.senders}))

    def is_reported(self, endpoint: str) -> bool:
        """Whether an alert reports that the endpoint lacks a worker."""
        return endpoint in self.lost or self.is_below_minimum(endpoint) or self.count_unreceived(endpoint) > 0

    @cached_property
    def unreceived(self) -> Mapping[KnownQueue, int]:
        """The queues with messages that no live process receives from."""
        if self.registry_problem is not None:
            return {}
        return {queue: count for queue, count in self.waiting.items() if count and not is_received(queue, self.instances)}

    def is_below_minimum(self, endpoint: str) -> bool:
        """Whether the endpoint has fewer processes than operators expect."""
        return self.registry_problem is None and self.workers(endpoint) < self.minimums.get(endpoint, 0)

    def queues_of(self, endpoint: str) -> list[KnownQueue]:
        """The main queue and the satellites of the endpoint that could be counted."""
        return [queue for queue in self.waiting if endpoint in queue.endpoints]

    def waiting_since(self, queues: Sequence[KnownQueue]) -> datetime | None:
        """The time since which the first message without a live receiver has waited, according to its headers."""
        statuses = () if self.status is None else self.status.queues
        heads = [each.head_age for each in statuses if each.queue in queues and each.queue in self.unreceived]
        return min((self.now - head.age for head in heads if head is not None and head.age is not None), default=None)

    def count_unreceived(self, endpoint: str) -> int:
        """The number of waiting messages of the endpoint without a live receiver."""
        return sum(self.unreceived.get(queue, 0) for queue in self.queues_of(endpoint))

    @cached_property
    def minimums(self) -> Mapping[str, int]:
        """The minimum number of live processes that operators expect, by endpoint."""
        return dict(EndpointExpectation.objects.using(self._alias).values_list("endpoint", "minimum"))

    def workers(self, endpoint: str) -> int:
        """The number of live processes for the main queue of the endpoint, paused or not."""
        return sum(1 for each in self.instances if each.endpoint == endpoint and works_on(each, endpoint))

    @cached_property
    def known_queues(self) -> Sequence[KnownQueue]:
        return known_queues(self.settings)

    def is_run_by_workers(self, queue: KnownQueue) -> bool:
        """Whether it is a main queue or satellite of an endpoint that workers run."""
        return queue.is_receiving and bool(set(queue.endpoints) & set(self.settings.endpoints))

    @cached_property
    def waiting(self) -> Mapping[KnownQueue, int]:
        """The number of messages in each main queue and satellite; from samples, the minimum of the last minute."""
        if self.status is not None:
            counted = {each.queue: each.depth.waiting for each in self.status.queues if each.depth is not None}
        else:
            counted = {each: self._recent[each.name][0] for each in self.known_queues if each.name in self._recent}
        return {queue: waiting for queue, waiting in counted.items() if queue.is_receiving}

    @cached_property
    def growth(self) -> Mapping[str, int]:
        """The growth of each queue, in messages; 0 unless it has grown steadily. One statement; empty with a status.

        The means of three intervals of three minutes each rise, the queue is longer now than in the second of them, and by 100
        messages and a tenth longer than in the first. The growth of a long queue without samples in one of them is unknown, and
        missing here: a restart of the workers leaves a gap in the samples. It counts from the first minute, like the overview.
        """
        if self.status is not None:
            return {}
        end = MINUTES.start_of(self.now) - timedelta(minutes=1)
        third = GROWTH_PERIOD / 3
        means: dict[str, Any] = {"start": Max("waiting", filter=Q(taken_at=end - GROWTH_PERIOD))}
        for number in range(3):
            begin = end - GROWTH_PERIOD + number * third
            within = Q(taken_at__gte=begin, taken_at__lt=begin + third)
            means |= {f"mean_{number}": Avg("waiting", filter=within), f"count_{number}": Count("pk", filter=within)}
        now = {queue.name: count for queue, count in self.waiting.items()}
        samples = QueueSample.objects.using(self._alias).filter(seconds=MINUTES.seconds, queue__in=list(now))
        found = {name: 0 for name, count in now.items() if count < MIN_GROWTH}
        rows = samples.filter(taken_at__gte=end - GROWTH_PERIOD, taken_at__lt=end).order_by().values("queue").annotate(**means)
        for row in rows:
            if min(row[f"count_{number}"] for number in range(3)) < 2:
                continue
            first, second, last, count = float(row["mean_0"]), float(row["mean_1"]), float(row["mean_2"]), now[row["queue"]]
            is_growing = first < second < last and count > second and count - first >= max(MIN_GROWTH, first / 10)
            start = first if row["start"] is None else min(first, row["start"])
            found[row["queue"]] = round(count - start) if is_growing else 0
        return found

    @cached_property
    def failures(self) -> Failures:
        """The failed messages waiting for a decision: from the index, or from the error queues if it lacks some of their rows."""
        found = self.indexed_failures
        statuses = () if self.status is None else self.status.queues
        rows = {each.name: each.depth.waiting for each in statuses if each.queue.kind is QueueKind.ERROR and each.depth is not None}
        if self.has_no_workers and sum(rows.values()) > found.count and sum(rows.values()) > self._count_indexed(rows):
            found = replace(found, count=max(found.count, sum(count for _queue, count in self.failed)))
        return found

    def _count_indexed(self, queues: Iterable[str]) -> int:
        """The number of rows of these error queues in the index; a message has several after a retry. One statement."""
        rows = FailedAttempt.objects.using(self._alias).filter(queue__in=list(queues), row_version__isnull=False)
        with optional_read(self._alias, "count the rows in the index"):
            return rows.count()
        return 0

    @cached_property
    def indexed_failures(self) -> Failures:
        """One statement: the first and the last message, each with the total number."""
        of_index = FailedMessage.objects.using(self._alias)
        unresolved = of_index.filter(status=FailureStatus.UNRESOLVED)
        first, last = (Subquery(unresolved.order_by(by).values("pk")[:1]) for by in ("failed_at", "-failed_at"))
        title = FailureGroup.objects.using(self._alias).filter(pk=OuterRef("exception_group")).values("title")[:1]
        counted = unresolved.order_by().annotate(of_group=F("exception_group")).values("of_group")[: FAILURES_COUNTED + 1]
        found = of_index.filter(Q(pk=first) | Q(pk=last))
        found = found.annotate(title=Subquery(title), count=_CountOf(counted), groups=_CountOfGroups(counted))
        with optional_read(self._alias, "count the failed messages"):
            columns = ("failed_at", "first_failed_at", "title", "exception_type", "exception_group", "count", "groups")
            rows = list(found.order_by("failed_at").values(*columns))
            if rows:
                newest, count = rows[-1], rows[0]["count"]
                text = cut_text(newest["title"] or newest["exception_type"], 200)
                is_exact = count <= FAILURES_COUNTED
                group, groups = (newest["exception_group"], newest["groups"]) if is_exact else (None, 0)
                since = min(row["first_failed_at"] for row in rows)
                return Failures(min(count, FAILURES_COUNTED), is_exact, text, since, group, groups)
        return Failures()

    @cached_property
    def overdue(self) -> Mapping[str, int]:
        """The number of delayed messages by endpoint that are due, 0 until the first has been due for a minute.

        From samples it is the minimum of the last minute.
        """
        if self.status is not None:
            counted = ((each.endpoint, each.overdue_at(self.now)) for each in self.delayed)
            return {endpoint: overdue for endpoint, overdue in counted if overdue is not None}
        names = {endpoint: endpoint + DELAYED_SUFFIX for endpoint in self.settings.senders}
        return {endpoint: self._recent[name][1] for endpoint, name in names.items() if name in self._recent}

    @cached_property
    def failed(self) -> Sequence[tuple[QueueStatus, int]]:
        """The error queues of the status, of any owner, with the number of messages that are not archived."""
        found = [] if self.status is None else [each for each in self.status.queues if each.queue.kind is QueueKind.ERROR]
        counted = [(each, each.depth.waiting) for each in found if each.depth is not None]
        archived = _count_archived(self._alias, [each.name for each, waiting in counted if waiting])
        return [(each, max(0, waiting - archived.get(each.name, 0))) for each, waiting in counted]

    @cached_property
    def replies(self) -> Sequence[tuple[QueueStatus, int]]:
        """The callback queues of the status without a live process, and the number of replies in each."""
        if self.status is None:
            return ()
        held = {found.name for each in self.instances if each.alive and (found := self.status.callback_of(each)) is not None}
        free = [each for each in callback_queues(self.status) if each.name not in held]
        return [(each, each.depth.waiting) for each in free if each.depth is not None]

    @property
    def delayed(self) -> Sequence[DelayedStatus]:
        """The tables of delayed messages in the status that the settings name, not those of another schema."""
        found = () if self.status is None else self.status.delayed
        return [each for each in found if each.is_in_settings]

    @cached_property
    def pipeline_runs(self) -> Sequence[PipelineRun]:
        """The two newest runs of the pipeline, the newest first. One statement."""
        with optional_read(self._alias, "read the runs of the pipeline"):
            return list(PipelineRun.objects.using(self._alias).order_by("-started_at", "-pk")[:2])
        return ()

    @cached_property
    def _recent(self) -> Mapping[str, tuple[int, int]]:
        """The minimum numbers of waiting and of overdue messages, by queue, if it has enough samples."""
        counted = self._samples(FINEST, RECENT).values_list("queue").order_by()
        rows = counted.annotate(n=Count("pk"), waiting=Min("waiting"), overdue=Min("overdue"))
        return {queue: (waiting, overdue) for queue, n, waiting, overdue in rows if n >= MIN_SAMPLES}

    @cached_property
    def newest_samples(self) -> Mapping[str, QueueSample]:
        """The newest sample of each queue that was sampled in the last minute."""
        samples = self._samples(FINEST, RECENT).only("queue", "waiting", "head_age_seconds")
        return {each.queue: each for each in samples.order_by("taken_at")}

    def expired(self, queues: Iterable[str], period: timedelta) -> Iterable[tuple[str, int, int]]:
        """The queues with their number of samples in the period, and the minimum number of expired messages in these."""
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
    """The number of archived messages of each error queue. One statement, none without queues. Raises ConnectionLost."""
    if not queues:
        return {}
    rows = FailedMessage.objects.using(alias).filter(status=FailureStatus.ARCHIVED, row_version__isnull=False, queue__in=queues)
    with optional_read(alias, "count the archived messages"):
        return dict(rows.order_by().values_list("queue").annotate(count=Count("pk")))
    return {}  # without the index, nothing is archived
