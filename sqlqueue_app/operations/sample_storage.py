"""Samples of queues and endpoints in their tables: written, rolled up to longer times, deleted when they are old, read for charts.

A chart of an hour shows what was counted every 10 seconds, one of a day the minutes, one of a month the ten minutes, one of a
year the hours. A queue, and a message type of an instance, has at most 360 + 1,440 + 4,320 + 8,760 rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from django.db import IntegrityError, models, transaction
from django.db.models import Q, Sum

from sqlqueue_app.models import EndpointSample, QueueSample
from sqlqueue_app.operations.claims import claim, forget_claims
from sqlqueue_app.operations.portions import delete_in_portions


@dataclass(frozen=True, slots=True)
class Resolution:
    """Samples of so many seconds each, and how long they are kept."""

    seconds: int
    kept: timedelta

    def begin_of(self, moment: datetime) -> datetime:
        """The begin of the time that a moment belongs to, in UTC."""
        return datetime.fromtimestamp(moment.timestamp() // self.seconds * self.seconds, UTC)


RESOLUTIONS: Final = (
    Resolution(10, timedelta(hours=1)),
    Resolution(60, timedelta(days=1)),
    Resolution(600, timedelta(days=30)),
    Resolution(3600, timedelta(days=365)),
)
FINEST: Final = RESOLUTIONS[0]
CLAIMS_KEPT: Final = timedelta(days=30)
_WRITTEN_AT_ONCE: Final = 100


def write_samples(alias: str, samples: Sequence[QueueSample]) -> None:
    """Insert the samples but for those that are there: another project may know the same queue. All of one time and length."""
    try:
        with transaction.atomic(using=alias):
            QueueSample.objects.using(alias).bulk_create(samples, batch_size=_WRITTEN_AT_ONCE)
    except IntegrityError:
        for sample in samples:
            known = {"queue": sample.queue, "seconds": sample.seconds, "taken_at": sample.taken_at}
            if not QueueSample.objects.using(alias).filter(**known).exists():
                sample.pk = None
                _write_one(alias, sample)


def _write_one(alias: str, sample: QueueSample) -> None:
    try:
        with transaction.atomic(using=alias):
            sample.save(using=alias, force_insert=True)
    except IntegrityError:
        return  # written in between, by somebody who counted the same


@dataclass(frozen=True, slots=True)
class SampleTable:
    """A table of samples: which columns say of what they are, and the values of one sample for the time of several."""

    model: type[models.Model]
    key: tuple[str, ...]
    rolled_up: Callable[[Sequence[Any]], dict[str, Any]]


def complete_minute(now: datetime) -> datetime:
    """The end of the last minute whose samples are all written; `keep_house` has nothing new to do until it moves."""
    return _complete(*RESOLUTIONS[:2], now)


def _complete(finer: Resolution, coarser: Resolution, now: datetime) -> datetime:
    # The last samples of a time may be written a little after its end.
    return coarser.begin_of(now - timedelta(seconds=finer.seconds))


def keep_house(alias: str, now: datetime) -> None:
    """In both tables roll up what is complete and delete what is old; once a minute in the whole cluster, else nothing.

    `now` is the clock of the database. A roll-up is one transaction with its claim: done once, or not at all.
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
                _delete_old(alias, table, resolution, now)
        forget_claims(alias, now - CLAIMS_KEPT)


def _roll_up(alias: str, table: SampleTable, finer: Resolution, coarser: Resolution, until: datetime) -> None:
    """Make the coarser samples of all that is complete and was not rolled up before."""
    samples = table.model._default_manager.using(alias)
    last = samples.filter(seconds=coarser.seconds).order_by("-taken_at").values_list("taken_at", flat=True).first()
    fine = samples.filter(seconds=finer.seconds, taken_at__lt=until)
    if last is not None:
        fine = fine.filter(taken_at__gte=last + timedelta(seconds=coarser.seconds))
    groups: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
    sample: Any
    for sample in fine:
        groups[coarser.begin_of(instant_of(sample)), *(getattr(sample, name) for name in table.key)].append(sample)
    rolled = [
        table.model(
            taken_at=key[0], seconds=coarser.seconds, **dict(zip(table.key, key[1:], strict=True)), **table.rolled_up(groups[key])
        )
        for key in sorted(groups)
    ]
    if rolled:
        samples.bulk_create(rolled, batch_size=_WRITTEN_AT_ONCE)


def _of_queue(group: Sequence[QueueSample]) -> dict[str, Any]:
    """Means weighted by how often was counted, and the maxima."""
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
    """Sums, and the maxima."""
    sums = {name: sum(getattr(sample, name) for sample in group) for name in SUMS}
    return {
        **sums,
        "processing_max": max(sample.processing_max for sample in group),
        "critical_max": max((each.critical_max for each in group if each.critical_max is not None), default=None),
    }


SUMS: Final = (
    "handled", "failures", "immediate_retries", "delayed_retries", "moved_to_error",
    "processing_seconds", "critical_measured", "critical_seconds",
)  # fmt: skip
TABLES: Final = (
    SampleTable(QueueSample, ("queue",), _of_queue),
    SampleTable(EndpointSample, ("endpoint", "instance", "message_type"), _of_endpoint),
)


def _delete_old(alias: str, table: SampleTable, resolution: Resolution, now: datetime) -> None:
    old = {"seconds": resolution.seconds, "taken_at__lt": now - resolution.kept}
    delete_in_portions(table.model._default_manager.using(alias).filter(**old).order_by("taken_at"))


def resolution_for(period: timedelta) -> Resolution:
    """The finest samples that are kept for so long; the coarsest for more than a year."""
    return next((each for each in RESOLUTIONS if each.kept >= period), RESOLUTIONS[-1])


def read_samples(alias: str, queues: Iterable[str], period: timedelta, now: datetime) -> dict[str, list[QueueSample]]:
    """The samples of these queues in the `period` before `now`, oldest first, as fine as they are kept; one statement."""
    found: dict[str, list[QueueSample]] = {queue: [] for queue in queues}
    samples = QueueSample.objects.using(alias).filter(
        queue__in=list(found), seconds=resolution_for(period).seconds, taken_at__gt=now - period, taken_at__lte=now
    )
    for sample in samples.order_by("taken_at"):
        found[sample.queue].append(sample)
    return found


def read_totals(
    alias: str, groups: Sequence[Sequence[str]], period: timedelta, now: datetime
) -> list[list[tuple[datetime, float]]]:
    """How much waited in the queues of each group together, by the begins of their times. One statement: the database adds up."""
    samples = QueueSample.objects.using(alias).filter(
        queue__in=[queue for group in groups for queue in group],
        seconds=resolution_for(period).seconds,
        taken_at__gt=now - period,
        taken_at__lte=now,
    )
    sums = {f"sum_{number}": Sum("waiting", filter=Q(queue__in=list(group))) for number, group in enumerate(groups)}
    rows = list(samples.order_by("taken_at").values("taken_at").annotate(**sums))
    return [[(row["taken_at"], float(row[name])) for row in rows if row[name] is not None] for name in sums]


def instant_of(sample: QueueSample | EndpointSample) -> datetime:
    """The begin of the time of a sample."""
    instant: datetime = sample.taken_at  # type: ignore[assignment]  # never NULL
    return instant
