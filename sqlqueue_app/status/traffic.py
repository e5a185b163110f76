"""Traffic of queues and endpoints: messages in, out and waiting, now and by minute, from samples."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from django.db.models import BigIntegerField, Case, F, Q, Sum, Value, When
from django.db.models.functions import Cast

from sqlqueue_app.models import EndpointSample, QueueSample, managed_alias
from sqlqueue_app.status.overview import Status
from sqlqueue_app.status.queues import QueueStatus, total_depth
from sqlqueue_app.status.samples import FINEST, MINUTE, read_page_samples, resolution_for
from sqlqueue_app.tables.connections import database_now, optional_read
from sqlqueue_app.tables.queue import Depth


class QueueCounts(NamedTuple):
    """The counts of a queue at an instant."""

    at: datetime
    waiting: int
    written: int | None
    gone: int | None


def counts_of(sample: QueueSample) -> QueueCounts:
    """The counts in a sample; the number of removed rows is known only if both counts are exact."""
    gone = sample.written - sample.waiting if sample.exact and sample.written is not None else None
    return QueueCounts(sample.taken_at, sample.waiting, sample.written, gone)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The samples of a page, oldest first: sums over groups of queues in a period, and an hour by queue and by endpoint.

    Of a queue: messages waiting, rows ever written and removed, None if unknown; by minute, the newest by ten seconds. Of an
    endpoint: messages moved to the error queue by minute.
    """

    totals: list[list[tuple[datetime, float]]]
    queues: dict[str, list[QueueCounts]]
    moved: defaultdict[str, Counter[datetime]]

    @property
    def newest(self) -> datetime | None:
        """The time of the newest sample."""
        return max((taken[-1].at for taken in self.queues.values()), default=None)

    def add(self, samples: Iterable[QueueSample], groups: Sequence[Sequence[str]]) -> None:
        """Add samples taken after this was read, all at one time; to the totals, those of the groups."""
        sums = [0.0] * len(groups)
        at = None
        for each in samples:
            at = each.taken_at
            self.queues.setdefault(each.queue, []).append(counts_of(each))
            for number, group in enumerate(groups):
                sums[number] += each.waiting if each.queue in group else 0
        if at is not None:
            for total, value in zip(self.totals, sums, strict=False):
                total.append((at, value))


# Minutes are rolled up shortly after their end. Of the last ones, only the ten-second samples are read.
_NOT_ROLLED_UP: Final = timedelta(seconds=150)
TRAFFIC: Final = timedelta(hours=1)


def read_traffic(
    alias: str, queues: Iterable[str], groups: Sequence[Sequence[str]], period: timedelta, endpoints: Iterable[str], now: datetime
) -> Traffic:
    """The traffic of these queues and endpoints in the hour before `now`, and the depth of each of two groups in the period.

    One statement: the database computes the sums that are shown.
    """
    number: BigIntegerField[int, int] = BigIntegerField()
    nothing = Cast(Value(None), number)
    samples, measured = QueueSample.objects.using(alias), EndpointSample.objects.using(alias)
    in_period = samples.filter(
        queue__in=[queue for group in groups for queue in group],
        seconds=resolution_for(period).seconds,
        taken_at__gt=now - period,
        taken_at__lte=now,
    )
    first, second = (Cast(Sum("waiting", filter=Q(queue__in=list(group))), number) for group in groups)
    totals = in_period.order_by().values("taken_at").annotate(what=Value("total"), of=Value(""), a=first, b=second, c=nothing)
    finest_from = MINUTE.start_of(now - _NOT_ROLLED_UP)
    of_minutes = Q(seconds=MINUTE.seconds, taken_at__gt=now - TRAFFIC, taken_at__lt=finest_from)
    times = of_minutes | Q(seconds=FINEST.seconds, taken_at__gte=finest_from)
    by_queue = samples.filter(times, queue__in=list(queues), taken_at__lte=now).order_by()
    gone = Case(When(exact=True, then=F("written") - F("waiting")), default=None, output_field=number)
    counted = by_queue.annotate(what=Value("queue"), of=F("queue"), a=F("waiting"), b=F("written"), c=gone)
    by_endpoint = measured.filter(times, endpoint__in=list(endpoints), taken_at__lte=now).order_by().values("endpoint", "taken_at")
    moved = Cast(Sum("moved_to_error"), number)
    minutes = by_endpoint.annotate(what=Value("endpoint"), of=F("endpoint"), a=moved, b=nothing, c=nothing)
    columns = ("what", "of", "taken_at", "a", "b", "c")
    rows = totals.values_list(*columns).union(counted.values_list(*columns), minutes.values_list(*columns), all=True)
    found = Traffic([[] for _group in groups], {}, defaultdict(Counter))
    for what, of, at, a, b, c in sorted(rows, key=itemgetter(2)):
        if what == "queue":
            # A sample of a minute has its start, and the counts of its last ten seconds.
            counted_at = at if at >= finest_from else at + timedelta(seconds=MINUTE.seconds - FINEST.seconds)
            found.queues.setdefault(of, []).append(QueueCounts(counted_at, a, b, c))
        elif what == "total":
            for total, value in zip(found.totals, (a, b), strict=True):
                total += [] if value is None else [(at, float(value))]
        else:
            found.moved[of][MINUTE.start_of(at)] += a
    return found


# --- Now --------------------------------------------------------------------------------------------------------------

# About seven samples, the first and the last a minute apart.
RECENT: Final = timedelta(seconds=75)
# A rate is not current after three missed samples.
FRESH: Final = timedelta(seconds=30)
_Count = Callable[[QueueCounts], int | None]
_WRITTEN: Final[_Count] = attrgetter("written")
_GONE: Final[_Count] = attrgetter("gone")


def recent_rates(status: Status) -> dict[str, tuple[float | None, float | None]]:
    """Messages per second in and out of each queue over the last minute, by queue name. One statement; without processes two.

    The rate out of a queue whose length is an estimate is unknown, None. Queues without new samples are missing; empty if samples
    cannot be read. Takes samples if no worker does.
    """
    alias = managed_alias()
    samples: dict[str, list[QueueSample]] = {}
    with optional_read(alias, "read the samples of the queues"):
        now = status.managed_now or database_now(alias)
        samples = read_page_samples(alias, [each.name for each in status.queues], RECENT, status.instances, now, status)
    found = {}
    for name, taken in samples.items():
        came, went = _rates_now([counts_of(each) for each in taken], now)
        if came is not None or went is not None:
            found[name] = (came, went)
    return found


def _rates_now(taken: Sequence[QueueCounts], now: datetime) -> tuple[float | None, float | None]:
    """Rows per second in and out over the last minute; None if the newest sample is old."""
    return _rate_now(taken, _WRITTEN, now), _rate_now(taken, _GONE, now)


def _rate_now(taken: Sequence[QueueCounts], of: _Count, now: datetime) -> float | None:
    known = [(each.at, value) for each in taken if now - each.at <= RECENT and (value := of(each)) is not None]
    if len(known) < 2 or now - known[-1][0] > FRESH:
        return None
    (before, first), (after, last) = known[0], known[-1]
    return max(0.0, (last - first) / (after - before).total_seconds()) if after > before else None


# --- Endpoints --------------------------------------------------------------------------------------------------------

STEP: Final = timedelta(seconds=MINUTE.seconds)
STEPS: Final = TRAFFIC // STEP
# A queue is growing if it is longer by this much than ten minutes ago.
GROWN_IN: Final = timedelta(minutes=10)
_GROWN_BY: Final = 10
_GROWN_TIMES: Final = 1.1


class EndpointTraffic(NamedTuple):
    """The traffic of the queues that an endpoint receives from; None if unknown.

    `in_rate`, `out_rate`: current messages per second. `depth`: messages waiting now; `grown`: the growth since GROWN_IN, 0 if
    small. By minute of the last hour: messages per second that `came` and `went`, messages that `waited`, and that `failed`, which
    leaves out the current minute.
    """

    in_rate: float | None
    out_rate: float | None
    depth: Depth | None
    grown: int
    came: dict[datetime, float]
    went: dict[datetime, float]
    waited: dict[datetime, float]
    failed: dict[datetime, float]


def endpoint_queues(status: Status, failed: Mapping[str, int]) -> dict[str, list[QueueStatus]]:
    """The queues that each endpoint receives from; in turn the one with the most failures and the one with the longest queues."""
    found: dict[str, list[QueueStatus]] = {}
    for each in status.queues:
        if each.queue.is_receiving:
            for endpoint in each.queue.endpoints:
                found.setdefault(endpoint, []).append(each)
    waiting = {name: sum(each.depth.waiting for each in queues if each.depth) for name, queues in found.items()}
    by_failures = sorted(found, key=lambda name: (-failed.get(name, 0), -waiting[name]))
    by_depth = sorted(found, key=lambda name: (-waiting[name], -failed.get(name, 0)))
    return {name: found[name] for both in zip(by_failures, by_depth, strict=True) for name in both}


def traffic_of(endpoint: str, queues: Sequence[QueueStatus], traffic: Traffic, now: datetime) -> EndpointTraffic:
    """The traffic of one endpoint that receives from these queues."""
    samples = [traffic.queues.get(each.name, []) for each in queues]
    # The newest sample of each minute.
    minutes = [{MINUTE.start_of(each.at): each for each in taken} for taken in samples]
    waited = _added_up([{at: float(each.waiting) for at, each in taken.items()} for taken in minutes])
    came, went = (_added_up([_growth(taken, of) for taken in minutes]) for of in (_WRITTEN, _GONE))
    # Without the current minute, whose count would look like a decline; processes write up to ten seconds after its end.
    end = MINUTE.start_of(now - timedelta(seconds=FINEST.seconds))
    moved = traffic.moved[endpoint]
    failed = {at: float(moved[at]) for at in (end - n * STEP for n in reversed(range(1, STEPS)))} if moved else {}
    in_rates, out_rates = zip(*(_rates_now(taken, now) for taken in samples), strict=True)
    depth = total_depth(each.depth for each in queues)
    grown = 0 if depth is None else _grown(waited.get(MINUTE.start_of(now - GROWN_IN)), depth.waiting)
    return EndpointTraffic(_total(in_rates), _total(out_rates), depth, grown, came, went, waited, failed)


def _growth(minutes: Mapping[datetime, QueueCounts], of: _Count) -> dict[datetime, float]:
    """Rows per second between samples of consecutive minutes."""
    found = {}
    for (before, first), (after, second) in pairwise(minutes.items()):
        old, new = of(first), of(second)
        if old is not None and new is not None and new >= old and after - before == STEP:
            found[after] = (new - old) / (second.at - first.at).total_seconds()
    return found


def _added_up(parts: Sequence[Mapping[datetime, float]]) -> dict[datetime, float]:
    return {at: sum(part.get(at, 0.0) for part in parts) for at in sorted(set().union(*parts))}


def _total(rates: Sequence[float | None]) -> float | None:
    known = [each for each in rates if each is not None]
    return sum(known) if known else None


def _grown(before: float | None, now: int) -> int:
    return 0 if before is None or now < before + _GROWN_BY or now < before * _GROWN_TIMES else round(now - before)
