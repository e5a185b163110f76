"""Samples of queues and endpoints: written every 10 seconds, rolled up to longer intervals, deleted when old."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, Final

from django.db import IntegrityError, models, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.messages.errors import DatabaseError
from sqlqueue_app.models import EndpointSample, EndpointTotal, Instance, QueueSample, managed_alias
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.instances import claim, forget_claims, is_dead
from sqlqueue_app.receiving.measures import SUMS, Counted, Measures
from sqlqueue_app.status.delayed import DelayedStatus, read_delayed
from sqlqueue_app.status.instances import InstanceStatus
from sqlqueue_app.status.overview import Status
from sqlqueue_app.status.queues import KnownQueue, QueueKind, QueueStatus, known_queues, read_queues
from sqlqueue_app.status.retention import delete_in_chunks
from sqlqueue_app.tables.connections import connection_of, database_now, errors_of_alias
from sqlqueue_app.tables.installation import DELAYED_SUFFIX


def one_transaction(alias: str) -> AbstractContextManager[object]:
    """One transaction, the cheapest way for an idle worker; none on SQLite, where it would block writing handlers."""
    return nullcontext() if connection_of(alias).vendor == "sqlite" else transaction.atomic(using=alias)


def start_of(moment: datetime, seconds: float) -> datetime:
    """The start of the interval of this many seconds that contains a moment, in UTC."""
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, UTC)


@dataclass(frozen=True, slots=True)
class Resolution:
    """Samples of this many seconds each, and how long they are kept."""

    seconds: int
    kept: timedelta

    def start_of(self, moment: datetime) -> datetime:
        return start_of(moment, self.seconds)


# A chart of an hour shows 10 seconds each, of a day the minutes, of a month ten minutes, of a year the hours: at most
# 360 + 1,440 + 4,320 + 8,760 rows for each queue, and for each message type of an instance.
RESOLUTIONS: Final = (
    Resolution(10, timedelta(hours=1)),
    Resolution(60, timedelta(days=1)),
    Resolution(600, timedelta(days=30)),
    Resolution(3600, timedelta(days=365)),
)
FINEST: Final = RESOLUTIONS[0]
CLAIMS_KEPT: Final = timedelta(days=30)
_WRITE_BATCH: Final = 100


def write_samples(alias: str, samples: Sequence[QueueSample]) -> None:
    """Insert the samples that do not exist yet: another project may know the same queue. All of one time and length."""
    try:
        with transaction.atomic(using=alias):
            QueueSample.objects.using(alias).bulk_create(samples, batch_size=_WRITE_BATCH)
    except IntegrityError:
        for sample in samples:
            known = {"queue": sample.queue, "seconds": sample.seconds, "taken_at": sample.taken_at}
            if not QueueSample.objects.using(alias).filter(**known).exists():
                sample.pk = None
                # Another process that counted the same may insert it in between.
                with suppress(IntegrityError), transaction.atomic(using=alias):
                    sample.save(using=alias, force_insert=True)


@dataclass(frozen=True, slots=True)
class SampleTable:
    """A table of samples: its key columns, and the function that combines several samples into one."""

    model: type[models.Model]
    key: tuple[str, ...]
    rolled_up: Callable[[Sequence[Any]], dict[str, Any]]


def _complete(finer: Resolution, coarser: Resolution, now: datetime) -> datetime:
    # The last samples of an interval may be written shortly after its end.
    return coarser.start_of(now - timedelta(seconds=finer.seconds))


def roll_up_samples(alias: str, now: datetime) -> None:
    """Roll up complete samples and delete old ones in both tables, once a minute in the whole cluster.

    `now` is the clock of the database. A roll-up and its claim are one transaction: done once, or not at all.
    """
    minute_is_over = False
    for finer, coarser in pairwise(RESOLUTIONS):
        until = _complete(finer, coarser, now)
        with transaction.atomic(using=alias):
            if not claim(alias, f"roll-up of samples to {coarser.seconds} s", until):
                continue
            minute_is_over = True
            for table in TABLES:
                _roll_up(alias, table, finer, coarser, until)
    if minute_is_over:
        for resolution in RESOLUTIONS:
            for table in TABLES:
                old = {"seconds": resolution.seconds, "taken_at__lt": now - resolution.kept}
                delete_in_chunks(table.model._default_manager.using(alias).filter(**old).order_by("taken_at"))
        forget_claims(alias, now - CLAIMS_KEPT)


def _roll_up(alias: str, table: SampleTable, finer: Resolution, coarser: Resolution, until: datetime) -> None:
    """Create the coarser samples for all complete intervals that were not rolled up before."""
    samples = table.model._default_manager.using(alias)
    last = samples.filter(seconds=coarser.seconds).order_by("-taken_at").values_list("taken_at", flat=True).first()
    fine = samples.filter(seconds=finer.seconds, taken_at__lt=until)
    if last is not None:
        fine = fine.filter(taken_at__gte=last + timedelta(seconds=coarser.seconds))
    groups: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
    sample: Any
    for sample in fine:
        groups[coarser.start_of(sample.taken_at), *(getattr(sample, name) for name in table.key)].append(sample)
    rolled = [
        table.model(
            taken_at=key[0], seconds=coarser.seconds, **dict(zip(table.key, key[1:], strict=True)), **table.rolled_up(groups[key])
        )
        for key in sorted(groups)
    ]
    if rolled:
        samples.bulk_create(rolled, batch_size=_WRITE_BATCH)


def _of_queue(group: Sequence[QueueSample]) -> dict[str, Any]:
    """Means weighted by the number of counts, and the maxima."""
    counted = sum(sample.samples for sample in group)

    def mean(name: str) -> int:
        total: int = sum(getattr(sample, name) * sample.samples for sample in group)
        return round(total / counted)

    return {
        "samples": counted,
        "waiting": mean("waiting"),
        "most_waiting": max(sample.most_waiting for sample in group),
        "expired": mean("expired"),
        "overdue": mean("overdue"),
        "head_age_seconds": max((each.head_age_seconds for each in group if each.head_age_seconds is not None), default=None),
        "exact": all(sample.exact for sample in group),
        "written": max((sample.written for sample in group if sample.written is not None), default=None),
    }


def _of_endpoint(group: Sequence[EndpointSample]) -> dict[str, Any]:
    sums = {name: sum(getattr(sample, name) for sample in group) for name in SUMS}
    return {
        **sums,
        "processing_max": max(sample.processing_max for sample in group),
        "critical_max": max((each.critical_max for each in group if each.critical_max is not None), default=None),
    }


TABLES: Final = (
    SampleTable(QueueSample, ("queue",), _of_queue),
    SampleTable(EndpointSample, ("endpoint", "instance", "message_type"), _of_endpoint),
)


def resolution_for(period: timedelta) -> Resolution:
    """The finest samples that are kept for this period; the coarsest for more than a year."""
    return next((each for each in RESOLUTIONS if each.kept >= period), RESOLUTIONS[-1])


def read_samples(alias: str, queues: Iterable[str], period: timedelta, now: datetime) -> dict[str, list[QueueSample]]:
    """The samples of these queues in the `period` before `now`, oldest first, in the finest kept resolution; one statement."""
    found: dict[str, list[QueueSample]] = {queue: [] for queue in queues}
    samples = QueueSample.objects.using(alias).filter(
        queue__in=list(found), seconds=resolution_for(period).seconds, taken_at__gt=now - period, taken_at__lte=now
    )
    for sample in samples.order_by("taken_at"):
        found[sample.queue].append(sample)
    return found


MINUTE: Final = RESOLUTIONS[1]

# Twice per interval, so that none is missed if one run is slightly early and the next slightly late.
SAMPLE_SECONDS: Final = FINEST.seconds / 2


class Sampling:
    """Takes samples of the queues of the settings. One object serves one thread at a time; others may compete with it.

    Main queues, satellites, error and audit queues, tables of delayed messages, and the callback queues of live instances.
    `now` is the clock of the managed tables' database unless given; `clock` measures seconds.
    """

    def __init__(
        self, settings: Settings, *, now: Callable[[], datetime] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)
        # Processes with the same queues share the counting; another project on this database has its own claim.
        names = "\n".join(sorted([*(queue.name for queue in self._queues([])), *settings.senders]))
        self._claim = f"queue samples {hashlib.sha256(names.encode()).hexdigest()[:16]}"
        self._sampled_at: datetime | None = None
        self._clock = clock
        self._next_sample: float | None = None
        # The minute up to which this object knows that samples are rolled up.
        self.rolled_up_at: datetime | None = None

    def job(self) -> BackgroundJob:
        return BackgroundJob("queue samples", SAMPLE_SECONDS, self._run, retries_silently=True)

    def _run(self) -> None:
        if self._next_sample is None or self._clock() >= self._next_sample:
            self.sample()

    def sample(self) -> int:
        """Call `take`. Returns the number of samples written."""
        return len(self.take())

    def take(self, status: Status | None = None) -> list[QueueSample]:
        """Count every queue unless the samples of this interval exist. Returns the samples written. Raises DatabaseError.

        A queue that cannot be counted is left out; the status shows its state. No row is taken, locked or waited for, and long
        queues are not counted to their end. With a status, its numbers are written without counting.
        """
        with errors_of_alias(self._alias, "write queue samples"):
            with one_transaction(self._alias):
                now = self._now()
                begin = FINEST.start_of(now)
                # The database's clock has whole seconds: a second too early only repeats the query, too late would be a gap.
                self._next_sample = self._clock() + FINEST.seconds - (now - begin).total_seconds() - 1.0
                if begin == self._sampled_at:
                    return []
                if not claim(self._alias, self._claim, begin):
                    self._sampled_at = begin
                    return []
                samples = list(self._count(begin, now, status))
                write_samples(self._alias, samples)
            self._sampled_at = begin
            # No roll-up can be complete before the next minute; a process that could not finish this one retries.
            minute = _complete(*RESOLUTIONS[:2], now)
            if minute != self.rolled_up_at:
                roll_up_samples(self._alias, now)
                self.rolled_up_at = minute
        return samples

    def _count(self, begin: datetime, now: datetime, status: Status | None) -> Iterator[QueueSample]:
        if status is None:
            leased = Instance.objects.using(self._alias).filter(~Q(callback_queue=None), endpoint__in=list(self._settings.senders))
            live = [row for row in leased.annotate(database_now=Now()) if not is_dead(row, row.database_now)]
            found = read_queues(self._settings, self._queues(live), now=now)
            delayed = list(read_delayed(self._settings))
        else:
            held = {each.callback_queue for each in status.instances if each.alive}
            found = [each for each in status.queues if each.queue.kind is not QueueKind.OTHER and _is_counted(each.queue, held)]
            delayed = [each for each in status.delayed if each.is_in_settings]
        for sample in filter(None, (*map(_sample_of_queue, found), *map(_of_delayed, delayed))):
            sample.taken_at, sample.seconds, sample.most_waiting = begin, FINEST.seconds, sample.waiting
            yield sample

    def _queues(self, live: Sequence[Instance]) -> list[KnownQueue]:
        leased = {instance.callback_queue for instance in live}
        return [queue for queue in known_queues(self._settings, live) if _is_counted(queue, leased)]


def _is_counted(queue: KnownQueue, leased: Container[str | None]) -> bool:
    return queue.kind is not QueueKind.CALLBACK or queue.address.table in leased


# The time for which a process does not retry after it could not write, or was not allowed to.
_REFUSED_SECONDS: Final = 60.0


class PageSampling:
    """Takes the samples for a page while no worker is alive. Safe from any thread; `clock` measures seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refused_until: dict[str, float] = {}
        self._rolled_up_at: datetime | None = None

    def take(
        self, instances: Iterable[InstanceStatus], newest: datetime | None, now: datetime, status: Status | None = None
    ) -> list[QueueSample]:
        """The samples of `now` if the `newest` are outdated and this process is the first to take them.

        Nothing if a worker is alive, in a transaction, which would hold the claim, and for a minute after an error, which is not
        raised. `now` is the clock of the managed tables' database; with a `status` its numbers are written.
        """
        alias = managed_alias()
        is_new = newest is not None and newest >= FINEST.start_of(now)
        if is_new or any(each.works_for_all for each in instances):
            return []
        if connection_of(alias).in_atomic_block or self._clock() < self._refused_until.get(alias, float("-inf")):
            return []
        if not self._lock.acquire(blocking=False):
            return []
        try:
            sampling = Sampling(get_settings(), now=lambda: now)
            sampling.rolled_up_at = self._rolled_up_at
            taken = sampling.take(status)
            self._rolled_up_at = sampling.rolled_up_at
            return taken
        except DatabaseError:  # the page's own statements report an unreachable database
            self._refused_until[alias] = self._clock() + _REFUSED_SECONDS
            return []
        finally:
            self._lock.release()


page_sampling = PageSampling()


def read_page_samples(
    alias: str,
    queues: Iterable[str],
    period: timedelta,
    instances: Iterable[InstanceStatus],
    now: datetime,
    status: Status | None = None,
) -> dict[str, list[QueueSample]]:
    """Call `read_samples`, and add samples that the page itself takes while none of these instances is a live worker."""
    found = read_samples(alias, queues, period, now)
    newest = max((taken[-1].taken_at for taken in found.values() if taken), default=None)
    for each in page_sampling.take(instances, newest, now, status):
        if each.queue in found and resolution_for(period) is FINEST:
            found[each.queue].append(each)
    return found


def _sample_of_queue(found: QueueStatus) -> QueueSample | None:
    depth = found.depth
    if depth is None:
        return None
    return QueueSample(
        queue=found.name,
        waiting=depth.waiting,
        expired=depth.expired,
        head_age_seconds=found.head_age_seconds,
        exact=depth.exact,
        written=found.written,
    )


def _of_delayed(found: DelayedStatus) -> QueueSample | None:
    if found.waiting is None:
        return None
    name = found.endpoint + DELAYED_SUFFIX
    return QueueSample(queue=name, waiting=found.waiting, overdue=found.overdue or 0, exact=found.exact)


logger = logging.getLogger("sqlqueue.worker")

WRITE_SECONDS = float(FINEST.seconds)
_ENDPOINT_SAMPLES_AT_ONCE = 50


class Measuring:
    """Writes the measures of endpoints: triples of its name, the name of its instance and its measures. One thread at a time.

    `now` is the clock of the managed tables' database unless given. A sample belongs to the interval in which it is
    written; after a failed write, the counts are kept for the next run.
    """

    def __init__(self, endpoints: Iterable[tuple[str, str, Measures]], *, now: Callable[[], datetime] | None = None) -> None:
        self._endpoints = list(endpoints)
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)

    def job(self) -> BackgroundJob:
        return BackgroundJob("measures of endpoints", WRITE_SECONDS, self.write, retries_silently=True)

    def write(self) -> int:
        """Write the counts since the last call in one transaction. Returns the number of rows. Raises DatabaseError.

        Without counts, no statement is executed.
        """
        taken = [(endpoint, instance, measures, measures.take()) for endpoint, instance, measures in self._endpoints]
        if not any(counted for *_, counted in taken):
            return 0
        try:
            with errors_of_alias(self._alias, "write the measures of endpoints"):
                begin = FINEST.start_of(self._now())
                rows = [row for endpoint, instance, _, counted in taken for row in _rows(endpoint, instance, begin, counted)]
                with transaction.atomic(using=self._alias):
                    EndpointSample.objects.using(self._alias).bulk_create(rows, batch_size=_ENDPOINT_SAMPLES_AT_ONCE)
                    add_to_totals(self._alias, rows)
        except BaseException:
            for _endpoint, _instance, measures, counted in taken:
                measures.put_back(counted)
            raise
        return len(rows)

    def write_at_exit(self) -> None:
        """Call `write` at the end of a process, which must not fail: an error is logged, and the counts are lost."""
        try:
            self.write()
        except Exception as error:  # noqa: BLE001 - see the docstring
            text = "the last measures of this process could not be written: %s"
            logger.warning(text, error, extra={"event": "measures_lost"})


def _rows(endpoint: str, instance: str, begin: datetime, counted: Mapping[str, Counted]) -> Iterator[EndpointSample]:
    for message_type, of_type in counted.items():
        yield EndpointSample(
            endpoint=endpoint,
            instance=instance,
            message_type=message_type,
            taken_at=begin,
            seconds=FINEST.seconds,
            **dataclasses.asdict(of_type),
        )


TOTALS: Final = ("handled", "failures", "immediate_retries", "delayed_retries", "moved_to_error", "processing_seconds")


def add_to_totals(alias: str, samples: Iterable[EndpointSample]) -> None:
    """Add the samples to the totals of their instances: one statement each, two for a new one. Inside of a transaction.

    Always in the same order, so that processes that share rows cannot deadlock.
    """
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for sample in samples:
        of_instance = sums.setdefault((sample.endpoint, sample.instance), dict.fromkeys(TOTALS, 0))
        for name in TOTALS:
            of_instance[name] += getattr(sample, name)
    totals = EndpointTotal.objects.using(alias)
    for (endpoint, instance), numbers in sorted(sums.items()):
        row = totals.filter(endpoint=endpoint, instance=instance)
        added: dict[str, Any] = {name: F(name) + number for name, number in numbers.items()}
        if not row.update(**added):
            try:
                with transaction.atomic(using=alias):
                    totals.create(endpoint=endpoint, instance=instance, **numbers)
            except IntegrityError:
                row.update(**added)  # another process of the instance inserted it first


def read_endpoint_totals(alias: str) -> list[EndpointTotal]:
    """The totals of all instances, by endpoint; one statement."""
    return list(EndpointTotal.objects.using(alias).order_by("endpoint", "instance"))
