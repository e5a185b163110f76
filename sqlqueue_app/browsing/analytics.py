"""Data that the Spark pipeline has written: lake files, rollups of messages and failures, endpoint map, usage.

Sums are computed by the database, quantiles by merging sketches in Python. Functions raise DatabaseErrors unless stated otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Max, Min, Q, QuerySet, Sum

from sqlqueue_app.conf import Settings
from sqlqueue_app.lake.data_files import SEARCHED, DataFile, LakeError, data_file, glob_files, lake_id
from sqlqueue_app.lake.sketches import Sketch, from_json, merged, quantile
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import (
    ConversationEdge,
    EndpointSeen,
    GroupFigures,
    LakeBatch,
    LakeFile,
    MessageFigures,
    NotableMessage,
    PipelineRun,
    QueueFigures,
    RunState,
    UsageDay,
    managed_alias,
)
from sqlqueue_app.tables.connections import guarded_read, optional_read

HOUR: Final = 3_600
DAY: Final = 86_400
# Sketches merged per page: a few tenths of a second. Above this, quantiles use longer steps, which have fewer sketches.
MAX_SKETCHES: Final = 10_000
MAX_KINDS: Final = 200
MAX_GROUPS: Final = 50
MAX_EDGES: Final = 100
MAX_ROWS: Final = 200
_SUMS: Final = (
    "processed", "failed", "retried", "delayed_retries", "processing_count", "processing_sum", "critical_count", "critical_sum",
    "critical_negative", "body_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RollupQuery:
    """A query for rollups in steps of `seconds` (60, 3600 or 86400), optionally of one endpoint and one message type.

    `classifier` is the name of the classifier that groups failures, `counted_until` the end of the data.
    """

    begin: datetime
    end: datetime
    seconds: int
    endpoint: str = ""
    message_type: str = ""
    classifier: str = ""
    counted_until: datetime | None = None

    @classmethod
    def until(
        cls, end: datetime, length: timedelta, seconds: int, *, counted_until: datetime | None = None, **filters: str
    ) -> RollupQuery:
        """The steps that began within `length` before `end`."""
        first = -(-(end - length).timestamp() // seconds) * seconds
        return cls(datetime.fromtimestamp(first, UTC), end.astimezone(UTC), seconds, counted_until=counted_until, **filters)

    def resample(self, seconds: int) -> RollupQuery:
        first = self.begin.timestamp() // seconds * seconds
        return replace(self, begin=datetime.fromtimestamp(first, UTC), seconds=seconds)

    @property
    def step(self) -> timedelta:
        return timedelta(seconds=self.seconds)

    @property
    def in_time(self) -> Q:
        return Q(seconds=self.seconds, at__gte=self.begin, at__lt=self.end)

    @property
    def in_days(self) -> Q:
        """Filter tables by day: every day that the time range touches."""
        return Q(day__gte=self.begin.date(), day__lte=self.end.date())

    @property
    def of_messages(self) -> Q:
        found = Q(endpoint=self.endpoint) if self.endpoint else Q()
        return found & Q(message_type=self.message_type) if self.message_type else found


@dataclass(frozen=True, slots=True)
class Freshness:
    """The time until which the pipeline has read the queues, None if never. `problem`: why the tables cannot be read."""

    read_until: datetime | None
    problem: str = ""


def freshness() -> Freshness:
    """Read how far the pipeline is: two statements. Raises ConnectionLost."""
    alias = managed_alias()
    try:
        with guarded_read(alias, "read the batches of the lake"):
            last = LakeBatch.objects.using(alias).aggregate(last=Max("committed_at"))["last"]
            return Freshness(last and _read_until(last, PipelineRun.objects.using(alias)))
    except ConnectionLost:
        raise
    except DatabaseError as error:
        return Freshness(None, str(error))  # `migrate` has not been run


def _read_until(last_batch: datetime, runs: QuerySet[PipelineRun]) -> datetime:
    """The last batch, or the start of a later run that has ended: it left nothing in the queues that was there at its start."""
    later = runs.filter(state=RunState.ENDED, started_at__gt=last_batch)
    return later.aggregate(last=Max("started_at"))["last"] or last_batch


def newest_run() -> PipelineRun | None:
    """The last run of the pipeline: one statement. None without a run, or without the tables of `migrate`."""
    alias = managed_alias()
    with optional_read(alias, "read the runs of the pipeline"):
        return PipelineRun.objects.using(alias).order_by("-started_at", "-pk").first()
    return None


def known_endpoints() -> list[str]:
    """The names of endpoints with rollups, sorted; one statement."""
    rows = MessageFigures.objects.using(managed_alias()).filter(seconds=DAY).exclude(endpoint="")
    return list(rows.values_list("endpoint", flat=True).distinct().order_by("endpoint")[:MAX_ROWS])


QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def durations(count: int, total: float, sketch: Sketch) -> dict[str, float | None]:
    """The mean and the QUANTILES of measured messages, by name, in seconds; None without messages, or without a sketch."""
    return {"mean": total / count if count else None, **{name: quantile(sketch, part) for name, part in QUANTILES.items()}}


@dataclass(slots=True)
class Rollup:
    """Totals of messages, times in seconds."""

    processed: int = 0
    failed: int = 0
    retried: int = 0
    delayed_retries: int = 0
    processing_count: int = 0
    processing_sum: float = 0.0
    critical_count: int = 0
    critical_sum: float = 0.0
    critical_negative: int = 0
    body_bytes: int = 0
    processing: Sketch = field(default_factory=dict)
    critical: Sketch = field(default_factory=dict)

    @property
    def failure_rate(self) -> float | None:
        """Failed messages as a fraction of processed and failed ones."""
        whole = self.processed + self.failed
        return self.failed / whole if whole else None

    @property
    def processing_times(self) -> dict[str, float | None]:
        """The `durations` of processing."""
        return durations(self.processing_count, self.processing_sum, self.processing)

    @property
    def critical_times(self) -> dict[str, float | None]:
        """The `durations` from sending to the end of processing."""
        return durations(self.critical_count, self.critical_sum, self.critical)

    def add_sketches(self, processing: Any, critical: Any) -> None:
        _merge(self.processing, processing)
        _merge(self.critical, critical)

    def plus(self, other: Rollup) -> None:
        """Add another rollup, which is not changed."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.processing = merged(self.processing, other.processing)
        self.critical = merged(self.critical, other.critical)


@dataclass(frozen=True, slots=True)
class RollupResult:
    """Rollups over time, by endpoint and message type (the busiest ones), and in total.

    `quantiles` has steps of `quantile_seconds`; None: there are too many sketches to merge.
    """

    query: RollupQuery
    over_time: dict[datetime, Rollup]
    quantiles: dict[datetime, Rollup]
    quantile_seconds: int | None
    by_kind: dict[tuple[str, str], Rollup]
    total: Rollup
    is_cut: bool


def read_rollups(query: RollupQuery) -> RollupResult:
    """Run the query: at most six statements."""
    rows = _rows(query)
    over_time: dict[datetime, Rollup] = {}
    sums = {f"sum_{name}": Sum(name) for name in _SUMS}
    total = Rollup()
    for values in rows.values("at").annotate(**sums).order_by("at"):
        over_time[values["at"]] = _summed(values)
        total.plus(over_time[values["at"]])
    kinds = rows.values("endpoint", "message_type").annotate(**sums).order_by("-sum_processed", "endpoint", "message_type")
    found = list(kinds[: MAX_KINDS + 1])
    by_kind = {(values["endpoint"], values["message_type"]): _summed(values) for values in found[:MAX_KINDS]}
    quantiles, seconds = _quantiles(query, by_kind, total)
    return RollupResult(query, over_time, quantiles, seconds, by_kind, total, len(found) > MAX_KINDS)


def iter_rollups(query: RollupQuery) -> Iterator[MessageFigures]:
    """Iterate over all rows, oldest first, without loading them at once."""
    return _rows(query).order_by("at", "endpoint", "message_type").iterator(chunk_size=1_000)


def resample(found: Mapping[datetime, Rollup], begin: datetime, step: timedelta) -> dict[datetime, Rollup]:
    """Combine rollups into longer steps, counted from `begin`."""
    wide: defaultdict[datetime, Rollup] = defaultdict(Rollup)
    for at, each in found.items():
        wide[begin + (at - begin) // step * step].plus(each)
    return dict(wide)


def _rows(query: RollupQuery) -> QuerySet[MessageFigures]:
    return MessageFigures.objects.using(managed_alias()).filter(query.in_time, query.of_messages)


def _summed(values: dict[str, Any]) -> Rollup:
    sums: dict[str, Any] = {name: values[f"sum_{name}"] or 0 for name in _SUMS}
    return Rollup(**sums)


def _quantiles(
    query: RollupQuery, by_kind: dict[tuple[str, str], Rollup], total: Rollup
) -> tuple[dict[datetime, Rollup], int | None]:
    for seconds in sorted({query.seconds, HOUR, DAY}):
        if seconds < query.seconds:
            continue
        rows = _rows(query.resample(seconds))
        if rows.values("pk")[: MAX_SKETCHES + 1].count() > MAX_SKETCHES:
            continue
        found: defaultdict[datetime, Rollup] = defaultdict(Rollup)
        for at, endpoint, kind, processing, critical in rows.values_list(
            "at", "endpoint", "message_type", "processing_sketch", "critical_sketch"
        ):
            for each in (found[at], total, by_kind.get((endpoint, kind))):
                if each is not None:
                    each.add_sketches(processing, critical)
        return dict(sorted(found.items())), seconds
    return {}, None


@dataclass(frozen=True, slots=True)
class GroupRollup:
    """A failure group in a time range. `over_time` is only filled for the largest groups."""

    id: UUID
    title: str
    count: int
    first_seen: datetime
    last_seen: datetime
    over_time: dict[datetime, int] = field(default_factory=dict)


def read_groups(query: RollupQuery, *, limit: int | None = MAX_GROUPS, trends: int = 4) -> list[GroupRollup]:
    """The largest groups of the classifier, with None all: two statements.

    Steps are hours or days, since groups have no rollups per minute.
    """
    hourly = query.resample(max(query.seconds, HOUR))
    rows = GroupFigures.objects.using(managed_alias()).filter(hourly.in_time, classifier=query.classifier)
    # Any title of the group is sufficient; the newest would need a statement per group.
    sums = {"total": Sum("count"), "first": Min("first_seen"), "last": Max("last_seen"), "name": Max("title")}
    found = [
        GroupRollup(each["group_id"], each["name"], each["total"], each["first"], each["last"])
        for each in rows.values("group_id").annotate(**sums).order_by("-total", "group_id")[:limit]
    ]
    drawn = {each.id: each for each in found[:trends]}
    for group, at, count in rows.filter(group_id__in=list(drawn)).order_by("at").values_list("group_id", "at", "count"):
        drawn[group].over_time[at] = count
    return found


@dataclass(slots=True)
class Edge:
    """Messages from one endpoint to another: number, types and critical time."""

    sender: str
    receiver: str
    count: int
    critical_count: int
    critical_sum: float
    types: dict[str, int] = field(default_factory=dict)
    critical: Sketch = field(default_factory=dict)

    @property
    def critical_times(self) -> dict[str, float | None]:
        """The `durations` from sending to the end of processing; without quantiles if there were too many sketches to merge."""
        return durations(self.critical_count, self.critical_sum, self.critical)


def read_edges(query: RollupQuery, *, limit: int | None = MAX_EDGES) -> list[Edge]:
    """The busiest edges, with None all, of the endpoint of the query if it names one: three statements."""
    hourly = query.resample(max(query.seconds, HOUR))
    ends = Q(sender=query.endpoint) | Q(receiver=query.endpoint) if query.endpoint else Q()
    kind = Q(message_type=query.message_type) if query.message_type else Q()
    rows = ConversationEdge.objects.using(managed_alias()).filter(hourly.in_time, ends, kind)
    sums = {"total": Sum("count"), "measured": Sum("critical_count"), "seconds_sum": Sum("critical_sum")}
    found: dict[tuple[str, str], Edge] = {}
    for each in rows.values("sender", "receiver", "message_type").annotate(**sums).order_by("-total")[: limit and limit * 20]:
        edge = found.setdefault((each["sender"], each["receiver"]), Edge(each["sender"], each["receiver"], 0, 0, 0.0))
        edge.count += each["total"] or 0
        edge.critical_count += each["measured"] or 0
        edge.critical_sum += each["seconds_sum"] or 0.0
        edge.types[each["message_type"]] = each["total"] or 0
    best = sorted(found.values(), key=lambda each: (-each.count, each.sender, each.receiver))[:limit]
    kept = {(each.sender, each.receiver): each for each in best}
    for seconds in sorted({hourly.seconds, DAY}):
        rows = ConversationEdge.objects.using(managed_alias()).filter(hourly.resample(seconds).in_time, ends, kind)
        if rows.values("pk")[: MAX_SKETCHES + 1].count() <= MAX_SKETCHES:
            for sender, receiver, sketch in rows.values_list("sender", "receiver", "critical_sketch"):
                if (sender, receiver) in kept:
                    _merge(kept[sender, receiver].critical, sketch)
            break
    return best


def _merge(into: Sketch, more: Any) -> None:
    for bucket, count in from_json(more).items():
        into[bucket] = into.get(bucket, 0) + count


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Messages, failures and bytes by the start of a day and by endpoint; rows taken by queue; endpoint instances."""

    by_day: dict[datetime, tuple[int, int, int]]
    by_endpoint: list[tuple[str, int, int, int]]
    queues: list[dict[str, Any]]
    instances: Sequence[EndpointSeen]


def read_usage(query: RollupQuery, *, limit: int | None = MAX_ROWS) -> UsageReport:
    """Usage on the days that the time range touches, by the first endpoints and queues, with None all: four statements."""
    alias = managed_alias()
    rows = UsageDay.objects.using(alias).filter(query.in_days, *([Q(endpoint=query.endpoint)] if query.endpoint else []))
    sums = {"m": Sum("messages"), "f": Sum("failures"), "b": Sum("bytes")}
    days = rows.values("day").annotate(**sums).order_by("day")
    by_day = {datetime.combine(each["day"], time(), UTC): (each["m"], each["f"], each["b"]) for each in days}
    counted = rows.values("endpoint").annotate(**sums).order_by("-m", "endpoint")[:limit]
    by_endpoint = [(each["endpoint"], each["m"], each["f"], each["b"]) for each in counted]
    totals = {f"sum_{name}": Sum(name) for name in ("taken", "copied", "expired", "unreadable", "bytes")}
    queues = QueueFigures.objects.using(alias).filter(query.in_days).values("queue").annotate(**totals)
    seen = EndpointSeen.objects.using(alias).filter(last_seen__gte=query.begin).order_by("endpoint", "machine", "pk")
    if query.endpoint:
        seen = seen.filter(endpoint=query.endpoint)
    return UsageReport(by_day, by_endpoint, list(queues.order_by("queue")[:limit]), list(seen[:limit]))


def read_top_messages(query: RollupQuery, kind: str, *, limit: int | None = 20) -> list[NotableMessage]:
    """The top messages of a kind, with None all kept, on the days that the time range touches: one statement."""
    rows = NotableMessage.objects.using(managed_alias()).filter(query.in_days, query.of_messages, kind=kind)
    return list(rows.order_by("-value", "day", "rank")[:limit])


# A compacted lake has a few files per queue and day. DuckDB needs seconds to open more files than this.
MAX_FILES: Final = 20_000


@dataclass(frozen=True, slots=True)
class KnownLake:
    """A lake with its files and the time until which it has the rows of the queues; `lake` is empty if none is configured.

    `is_cut`: there are more files, of earlier days. `is_empty`: nothing was ever written. `problem`: why the files are unknown.
    """

    lake: str
    files: tuple[DataFile, ...] = ()
    read_until: datetime | None = None
    is_cut: bool = False
    is_empty: bool = False
    problem: str = ""


def known_lake(settings: Settings, *, since: date | None = None, until: date | None = None, path: str = "") -> KnownLake:
    """The files of these days below `path` in the lake of the settings, else of the last run: three statements. ConnectionLost."""
    days = (since or date.min, until or date.max)
    lake = (settings.pipeline.lake if settings.pipeline is not None else None) or ""
    alias = managed_alias()
    try:
        with guarded_read(alias, "read the manifest of the lake"):
            batches = LakeBatch.objects.using(alias).select_related("run").order_by("-committed_at")
            # The newest batch may be in another lake.
            marked = lake_id(lake) if lake else None
            newest = (batches if marked is None else batches.filter(lake_id=marked)).first()
            if not lake and newest is not None and newest.run is not None:
                lake = newest.run.lake
            if newest is not None and lake:
                of_lake = Q(batch__lake_id=newest.lake_id, batch__published_at__isnull=False, retired_at__isnull=True)
                rows = LakeFile.objects.using(alias).filter(of_lake, table__in=SEARCHED, day__range=days, path__startswith=path)
                found = list(rows.order_by("-day", "pk").values_list("path", "rows")[: MAX_FILES + 1])
                files = (data_file(where, count) for where, count in found[:MAX_FILES])
                known = tuple(each for each in files if each is not None)
                runs = PipelineRun.objects.using(alias).filter(lake=newest.run.lake if newest.run is not None else lake)
                return KnownLake(lake, known, _read_until(newest.committed_at, runs), len(found) > MAX_FILES)
    except ConnectionLost:
        raise
    except DatabaseError as error:
        return KnownLake(lake, problem=str(error))  # `migrate` has not been run
    return _list_directory(lake, days, path)


def _list_directory(lake: str, days: tuple[date, date], path: str) -> KnownLake:
    if not lake:
        return KnownLake("", is_empty=True)
    try:
        files = list(glob_files(lake))
        found = [each for each in files if days[0] <= each.day <= days[1] and each.path.startswith(path)]
    except (LakeError, OSError) as error:
        return KnownLake(lake, problem=str(error))
    found.sort(key=lambda each: (each.day, each.path), reverse=True)
    return KnownLake(lake, tuple(found[:MAX_FILES]), is_cut=len(found) > MAX_FILES, is_empty=not files)
