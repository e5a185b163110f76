"""Metrics for a monitoring system that polls, as metric families of prometheus-client; never contents of messages.

Counters never decrease, even if processes end: they come from the database, not from this process. Needs the extra `metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from django.db import models
from django.db.models import Count, Max, Sum
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from sqlqueue_app import __version__
from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.models import CheckResult, FailedMessage, Operation, PipelineRun, RunState, managed_alias
from sqlqueue_app.models.failures import FailureStatus
from sqlqueue_app.models.operations import OPEN
from sqlqueue_app.monitoring.check_results import is_muted
from sqlqueue_app.monitoring.health import current_results, is_watched
from sqlqueue_app.monitoring.snapshot import Snapshot
from sqlqueue_app.status.instances import InstanceStatus
from sqlqueue_app.status.overview import Status, read_status
from sqlqueue_app.status.queues import QueueStatus
from sqlqueue_app.status.samples import read_endpoint_totals
from sqlqueue_app.tables.connections import database_now, optional_read

_TOTALS: Final = (
    ("handled", "Messages handled."),
    ("failures", "Attempts that failed."),
    ("immediate_retries", "Immediate retries."),
    ("delayed_retries", "Delayed retries."),
    ("moved_to_error", "Messages moved to the error queue."),
    ("processing_seconds", "How long the handlers of handled messages took."),
)
_PIPELINE: Final = (
    ("batches", "Batches that the pipeline has committed."),
    ("messages", "Messages that the pipeline has taken from audit queues."),
    ("failures", "Messages that the pipeline has copied from error queues."),
    ("unreadable", "Rows that the pipeline could not read."),
    ("bytes", "Bytes of the files that the pipeline has written."),
)
_ALIVE: Final = models.Q(state=RunState.RUNNING)
_CHECKS: Final = 1_000


def _family(name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    """A counter if the name ends in `_total`, otherwise a gauge; samples hold the values of the labels. Ages are in seconds."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family


def read_metrics(settings: Settings | None = None) -> list[Metric]:
    """Read all metrics. As many statements as `read_status` and up to ten more. Raises ConnectionLost, and ConfigurationError."""
    settings = settings or get_settings()
    status = read_status(settings)
    families = [
        _family("sqlqueue_info", "The version of sqlqueue.", ["version"], [([__version__], 1)]),
        *_of_queues(status),
        *_of_delayed(status),
        *_of_instances(status),
    ]
    alias = managed_alias()
    for of_tables in (_of_totals, _of_failures, _of_operations, partial(_of_checks, settings, status), _of_pipeline):
        # Unreadable metrics, such as before `migrate`, are left out.
        with optional_read(alias, "read the metrics"):
            families += of_tables(alias)
    return [each for each in families if each.samples]


def _of_queues(status: Status) -> Iterator[Metric]:
    queues = [each for each in status.queues if is_watched(each, status)]

    def family(name: str, text: str, number: Callable[[QueueStatus], float | None]) -> Metric:
        samples = [([each.name, each.queue.kind.value], value) for each in queues if (value := number(each)) is not None]
        return _family(f"sqlqueue_queue_{name}", text, ["queue", "kind"], samples)

    yield family(
        "up", "Whether the table exists and can be used.", lambda each: 0 if each.problem and each.problem.stops_work else 1
    )
    yield family(
        "messages", "Rows in the table; an estimate beyond 10,000.", lambda each: each.depth.waiting if each.depth else None
    )
    yield family("expired_messages", "Expired and not purged.", lambda each: each.depth.expired if each.depth else None)
    yield family("head_age_seconds", "Age of the first message by its headers; 0 for an empty queue.", _head_age)
    yield family("threads", "Receive threads of live processes.", status.threads_of)
    yield family("rows_written_total", "Rows ever written into the table.", lambda each: each.written)


def _head_age(queue: QueueStatus) -> float | None:
    return 0 if queue.depth is not None and not queue.depth.waiting else queue.head_age_seconds


def _of_delayed(status: Status) -> Iterator[Metric]:
    now = status.managed_now or status.taken_at
    found = [each for each in status.delayed if each.waiting is not None and each.overdue is not None]
    yield _family(
        "sqlqueue_delayed_messages",
        "Delayed messages; counted up to 10,000.",
        ["endpoint"],
        [([each.endpoint], each.waiting or 0) for each in found],
    )
    yield _family(
        "sqlqueue_delayed_overdue_messages",
        "Delayed messages that no worker has moved for a minute; counted up to 10,000.",
        ["endpoint"],
        [([each.endpoint], each.overdue_at(now) or 0) for each in found],
    )


def _of_instances(status: Status) -> Iterator[Metric]:
    endpoints = list(dict.fromkeys([*(each.endpoint for each in status.delayed), *(each.endpoint for each in status.instances)]))
    if status.instances_problem is not None:
        return
    yield _family(
        "sqlqueue_instances",
        "Registered processes; dead ones sent no heartbeat for 40 seconds.",
        ["endpoint", "state"],
        [
            ([name, state], sum(1 for each in _of(name, status.instances) if each.alive is alive))
            for name in endpoints
            for state, alive in (("alive", True), ("dead", False))
        ],
    )
    counts: tuple[tuple[str, str, Callable[[InstanceStatus], int]], ...] = (
        ("threads", "Receive threads of live processes.", lambda each: each.live_threads),
        ("busy_threads", "Receive threads of live processes that handle a message.", lambda each: each.busy_threads),
    )
    for short, text, number in counts:
        samples = [([name], sum(number(each) for each in _of(name, status.instances) if each.alive)) for name in endpoints]
        yield _family(f"sqlqueue_endpoint_{short}", text, ["endpoint"], samples)


def _of(endpoint: str, instances: Iterable[InstanceStatus]) -> Iterator[InstanceStatus]:
    return (each for each in instances if each.endpoint == endpoint)


def _of_totals(alias: str) -> Iterator[Metric]:
    totals = read_endpoint_totals(alias)
    for column, text in _TOTALS:
        samples = [([each.endpoint, each.instance], getattr(each, column)) for each in totals]
        yield _family(f"sqlqueue_endpoint_{column}_total", text, ["endpoint", "instance"], samples)


def _of_failures(alias: str) -> Iterator[Metric]:
    found = _count(alias, FailedMessage, "status", FailureStatus.values)
    samples = [([FailureStatus(key).name.lower()], count) for key, count in found]
    yield _family("sqlqueue_failed_messages", "Failed messages in the index, by status.", ["status"], samples)


def _of_operations(alias: str) -> Iterator[Metric]:
    found = _count(alias, Operation, "state", [each.value for each in OPEN])
    samples = [([str(key)], count) for key, count in found]
    yield _family("sqlqueue_operations", "Bulk operations that have not ended.", ["state"], samples)


def _of_checks(settings: Settings, status: Status, alias: str) -> Iterator[Metric]:
    now = database_now(alias)
    stored = list(CheckResult.objects.using(alias).order_by("-failing", "name", "subject")[:_CHECKS])
    # As on the pages: a worker that died reports nothing, least of all its own death.
    results, _issues = current_results(Snapshot(settings, now, status=status), stored)
    samples = [([each.name, each.subject], 1 if each.failing and not is_muted(each, now) else 0) for each in results]
    yield _family("sqlqueue_check_failing", "Whether a check fails and is not muted.", ["check", "subject"], samples)


def _of_pipeline(alias: str) -> Iterator[Metric]:
    """The committed work of pipeline runs; empty if it never ran."""
    runs = PipelineRun.objects.using(alias)
    done = runs.aggregate(**{name: Sum(name) for name, _ in _PIPELINE}, running=Count("pk", filter=_ALIVE))
    last = runs.filter(state=RunState.ENDED).aggregate(last=Max("ended_at"))["last"]
    if done["batches"] is None:
        return
    for name, text in _PIPELINE:
        yield CounterMetricFamily(f"sqlqueue_pipeline_{name}_total", text, done[name])
    yield GaugeMetricFamily("sqlqueue_pipeline_running", "Runs of the pipeline that have not ended.", done["running"])
    if last is not None:
        text = "When a run of the pipeline last ended successfully."
        yield GaugeMetricFamily("sqlqueue_pipeline_ended_timestamp_seconds", text, last.timestamp())


def _count(alias: str, model: type[models.Model], column: str, values: Sequence[object]) -> list[tuple[Any, float]]:
    rows = model._default_manager.using(alias).filter(**{f"{column}__in": list(values)})
    found = dict(rows.order_by().values_list(column).annotate(count=Count("pk")))
    return [(value, found.get(value, 0)) for value in values]


class _Reading(Collector):
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def collect(self) -> list[Metric]:
        return read_metrics(self._settings)


def exposition(settings: Settings, accept: str) -> tuple[bytes, str]:
    """Return all metrics in a format of Prometheus that the header Accept allows, and its type. Raises as `read_metrics`."""
    # A registry of our own: the one of prometheus-client holds the metrics of this process.
    registry = CollectorRegistry()
    registry.register(_Reading(settings))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
