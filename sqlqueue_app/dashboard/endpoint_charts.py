"""The charts of an endpoint, from its samples and those of its queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.charts import Chart, Points, Series, line_chart
from sqlqueue_app.dashboard.formats import precise_duration, rate, whole
from sqlqueue_app.dashboard.periods import Period
from sqlqueue_app.models import QueueSample
from sqlqueue_app.operations.endpoint_measures import Measured, resolution_of
from sqlqueue_app.operations.sample_storage import instant_of


def endpoint_charts(
    measured: Sequence[tuple[datetime, Measured]], queued: Sequence[QueueSample], period: Period, now: datetime
) -> list[Chart]:
    """Throughput with failures and retries, processing time, critical time, and how much waited; `queued` of all its queues."""
    begin, step = now - period.length, timedelta(seconds=resolution_of(period.length).seconds)
    seconds = step.total_seconds()
    charts = []
    if any(each.handled or each.failures or each.retries for _at, each in measured):
        flow = [
            Series(_("handled"), [(at, each.throughput) for at, each in measured]),
            Series(_("failed attempts"), [(at, each.failures / seconds) for at, each in measured]),
            Series(_("retries"), [(at, each.retries / seconds) for at, each in measured]),
        ]
        charts.append(line_chart(_("Messages per second"), flow, begin=begin, end=now, step=step, text_of=rate, least_top=1.0))
        processing = [
            Series(_("mean"), [(at, each.processing_mean) for at, each in measured]),
            Series(_("longest"), [(at, each.processing_max if each.handled else None) for at, each in measured]),
        ]
        critical = [
            Series(_("mean"), [(at, each.critical_mean) for at, each in measured]),
            Series(_("longest"), [(at, each.critical_max) for at, each in measured]),
        ]
        for title, series in ((_("Processing time"), processing), (_("Critical time"), critical)):
            charts.append(line_chart(title, series, begin=begin, end=now, step=step, text_of=_seconds, least_top=0.01))
    if depth := _added_up(queued):
        waiting = [Series(_("messages"), depth)]
        charts.append(line_chart(_("Waiting in its queues"), waiting, begin=begin, end=now, step=step, text_of=whole))
    return charts


def _added_up(samples: Sequence[QueueSample]) -> Points:
    at_time: defaultdict[datetime, float] = defaultdict(float)
    for sample in samples:
        at_time[instant_of(sample)] += sample.waiting
    return sorted(at_time.items())


def _seconds(value: float) -> str:
    return precise_duration(timedelta(seconds=value))
