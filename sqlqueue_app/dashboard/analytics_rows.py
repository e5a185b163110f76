"""Figures as charts and rows of texts, and as files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final

from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.charts import Chart, Points, Series, line_chart
from sqlqueue_app.dashboard.formats import number, precise_duration, rate, size, whole
from sqlqueue_app.lake.sketches import from_json, quantile
from sqlqueue_app.operations.analytics.asking import DAY, FiguresAsked
from sqlqueue_app.operations.analytics.messages import Figures, FiguresRead, exported_figures, in_steps_of
from sqlqueue_app.operations.analytics.others import GroupRead, UsageRead

QUANTILES: Final = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
# A chart is 420 wide: with more points than this a line is a band.
MOST_POINTS: Final = 240
COLUMNS: Final = (
    "at", "seconds", "endpoint", "message_type", "processed", "failed", "retried", "delayed_retries",
    "processing_mean", "processing_p50", "processing_p95", "processing_p99",
    "critical_mean", "critical_p50", "critical_p95", "critical_p99", "critical_negative", "body_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FigureRow:
    """What was done with messages of one type by one endpoint, or with all."""

    endpoint: str
    message_type: str
    url: str
    processed: str
    failed: str
    failure_rate: str
    processing: tuple[str, ...]
    critical: tuple[str, ...]
    negative: str
    bytes: str


def figure_row(endpoint: str, message_type: str, each: Figures, url: str = "") -> FigureRow:
    """The row; times are the mean and the quantiles."""
    return FigureRow(
        endpoint,
        message_type,
        url,
        number(each.processed),
        number(each.failed),
        _percent(each.failure_rate),
        tuple(map(_length, (each.processing_mean, *(each.processing_of(fraction) for fraction, _name in QUANTILES)))),
        tuple(map(_length, (each.critical_mean, *(each.critical_of(fraction) for fraction, _name in QUANTILES)))),
        number(each.critical_negative) if each.critical_negative else "",
        size(each.body_bytes),
    )


def _percent(part: float | None) -> str:
    return "–" if part is None else f"{rate(part * 100)} %"


def _length(seconds: float | None) -> str:
    return "–" if seconds is None else precise_duration(timedelta(seconds=seconds))


def figure_charts(read: FiguresRead) -> list[Chart]:
    """Throughput, critical time, processing time, failure rate; nothing where there are no figures."""
    if not read.over_time:
        return []
    asked = read.asked
    seconds = _drawn_seconds(asked, asked.seconds)
    over_time = in_steps_of(read.over_time, asked.begin, timedelta(seconds=seconds))
    flow = [
        Series(_("processed"), _per_second(over_time, asked, seconds, lambda each: each.processed)),
        Series(_("failed"), _per_second(over_time, asked, seconds, lambda each: each.failed)),
    ]
    charts = [_chart(_("Messages per second"), flow, asked, seconds, rate, 1.0 if seconds < DAY else 0.1)]
    if read.quantile_seconds is not None:
        wide = _drawn_seconds(asked, read.quantile_seconds)
        quantiles = in_steps_of(read.quantiles, asked.begin, timedelta(seconds=wide))
        for title, of in ((_("Critical time"), Figures.critical_of), (_("Processing time"), Figures.processing_of)):
            series = [Series(name, [(at, of(each, part)) for at, each in quantiles.items()]) for part, name in QUANTILES]
            charts.append(_chart(title, series, asked, wide, _length, 0.01))
    failing = [(at, None if each.failure_rate is None else each.failure_rate * 100) for at, each in over_time.items()]
    charts.append(_chart(_("Failure rate"), [Series(_("of all messages"), failing)], asked, seconds, _percents, 1.0))
    return charts


def _drawn_seconds(asked: FiguresAsked, seconds: int) -> int:
    """The length of the steps of a chart, a multiple of those that there are figures of: no more than can be told apart."""
    steps = (asked.end - asked.begin).total_seconds() / seconds
    return seconds * max(1, math.ceil(steps / MOST_POINTS))


def _percents(value: float) -> str:
    return f"{rate(value)} %"


def _chart(
    title: str, series: Sequence[Series], asked: FiguresAsked, seconds: int, text_of: Callable[[float], str], top: float
) -> Chart:
    wide = asked.in_steps_of(seconds)
    return line_chart(title, series, begin=wide.begin, end=wide.end, step=wide.step, text_of=text_of, least_top=top)


def _per_second(
    over_time: Mapping[datetime, Figures], asked: FiguresAsked, seconds: int, value_of: Callable[[Figures], int]
) -> Points:
    """Steps without figures are nothing done, from the first step to the last one that there are figures of."""
    points: list[tuple[datetime, float | None]] = []
    at, last, step = min(over_time), max(over_time), timedelta(seconds=seconds)
    while at <= last:
        length = min(step, max(asked.end - at, timedelta(seconds=1))).total_seconds()
        each = over_time.get(at)
        points.append((at, value_of(each) / length if each else 0.0))
        at += step
    return points


def exported(asked: FiguresAsked) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, by COLUMNS; times in seconds."""
    for each in exported_figures(asked):
        found: list[Any] = [each.at, each.seconds, each.endpoint, each.message_type, each.processed, each.failed, each.retried]
        found.append(each.delayed_retries)
        for count, total, sketch in (
            (each.processing_count, each.processing_sum, from_json(each.processing_sketch)),
            (each.critical_count, each.critical_sum, from_json(each.critical_sketch)),
        ):
            found += [total / count if count else None, *(quantile(sketch, part) for part, _name in QUANTILES)]
        yield (*found, each.critical_negative, each.body_bytes)


def group_chart(groups: Sequence[GroupRead], asked: FiguresAsked, seconds: int) -> Chart | None:
    """The groups with the most failures over time."""
    drawn = [each for each in groups if each.over_time]
    series = [Series(_cut(each.title), _counts(each.over_time, timedelta(seconds=seconds))) for each in drawn]
    return _chart(_("Failures"), series, asked, seconds, whole, 1.0) if series else None


def _counts(found: Mapping[datetime, int], step: timedelta) -> Points:
    points: list[tuple[datetime, float | None]] = []
    at, last = min(found), max(found)
    while at <= last:
        points.append((at, float(found.get(at, 0))))
        at += step
    return points


def _cut(text: str, letters: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= letters else f"{line[: letters - 1]}…"


def usage_chart(usage: UsageRead, asked: FiguresAsked) -> Chart | None:
    """Messages and failures by day."""
    if not usage.by_day:
        return None

    def series(name: str, place: int) -> Series:
        found = {datetime.combine(day, time(), UTC): values[place] for day, values in usage.by_day.items()}
        return Series(name, _counts(found, timedelta(days=1)))

    return _chart(_("Messages per day"), [series(_("messages"), 0), series(_("failures"), 1)], asked, DAY, whole, 10.0)
