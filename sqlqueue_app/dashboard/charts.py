"""Charts and sparklines as server-rendered SVG without inline styles, with the numbers as text and for the cursor in charts.js.

The vertical scale is that of ServicePulse: the largest of the maximum, 1.5 times the mean, and 10, rounded up to a readable number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.dashboard.formats import Scale, counts, depth_number, per_second
from sqlqueue_app.status.queues import QueueStatus
from sqlqueue_app.status.samples import MINUTE
from sqlqueue_app.status.traffic import STEP, STEPS, Traffic, traffic_of

WIDTH: Final = 420
HEIGHT: Final = 110
SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 24
_TIMES_MEAN: Final = 1.5
# Widest letter of a label, in units of the drawing: the left margin is as wide as the longest label.
_LETTER: Final = 8
# Margin for half of a time or a day at the ends of its axis.
_HALF_TIME: Final = 26
# the length of a point without neighbours
_ALONE: Final = 6
_DAY: Final = timedelta(days=1)
# Up to this length labels are times of day; a chart of a day may start one step earlier.
_SHOWN_BY_TIME: Final = timedelta(hours=26)
# The maximum number of table rows and cursor positions; a chart of a month has 4,320 points.
TABLE_ROWS: Final = 60
_READINGS: Final = 210
_MAX_TICKS: Final = 7
_MINUTES: Final = (1, 2, 3, 5, 10, 15, 30, 60, 120, 180, 360, 720)
_TICKS: Final = tuple(timedelta(minutes=n) for n in _MINUTES) + tuple(timedelta(days=n) for n in (1, 2, 5, 7, 14, 30, 61, 122))
# Data has ended after three steps without values; rolled-up samples arrive up to 70 seconds after their time.
_MISSED: Final = 3
_ROLLED_UP_AFTER: Final = timedelta(seconds=70)
_FINEST: Final = timedelta(seconds=10)
# Separates values in attributes; no formatted number contains it.
_SEPARATOR: Final = "|"

Points = Sequence[tuple[datetime, float | None]]


class Series(NamedTuple):
    """One line: a name and values at ascending instants. None and an overlong step are gaps."""

    name: str
    points: Points


class ChartLine(NamedTuple):
    """A line of a chart, or a sparkline: `values` are those under the cursor, `last` is the current one, `summary` a sentence."""

    name: str
    path: str
    values: str
    summary: str
    last: str


class Chart(NamedTuple):
    """A chart and its text alternative: `rows` is a table of times and values. An axis has positions and labels.

    `ended`: the time since which there is no data, in words; empty if data continues. `ended_x`: its position in the drawing.
    """

    title: str
    unit: str
    lines: list[ChartLine]
    x_axis: list[tuple[str, str]]
    y_axis: list[tuple[str, str]]
    rows: list[tuple[str, tuple[str, ...]]]
    view_box: str
    xs: str
    times: str
    ended: str
    ended_x: str
    width: int = WIDTH
    height: int = HEIGHT


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    begin: datetime,
    end: datetime,
    step: timedelta,
    scale: Callable[[Sequence[float]], Scale],
    least_top: float = 10.0,
    source: str = "samples",
) -> Chart:
    """Draw the series from `begin` to `end`. Points more than two and a half `step` apart are not connected. Days are those of UTC.

    `scale` gives the unit for all values; `least_top` is the smallest top of the scale, in the unit of the values. `source` is
    `samples` or `figures`: the missing data.
    """
    known = [dict(each.points) for each in series]
    values = [value for points in known for value in points.values() if value is not None]
    unit = scale([*values, least_top])
    bottom, top = _bounds(values, least_top, unit.factor)
    zone = UTC if step >= _DAY else timezone.get_current_timezone()

    def x_of(at: datetime) -> float:
        return (at - begin) / (end - begin) * WIDTH

    def y_of(value: float) -> float:
        return (top - value) / (top - bottom) * HEIGHT

    times = sorted(set().union(*known))
    shown, listed = (_thinned(times, known, limit) for limit in (_READINGS, TABLE_ROWS))
    ended_at = _ended_at(times, end, step)
    levels = (bottom, 0.0, top) if bottom else (0.0, top / 2, top)
    y_axis = [(f"{y_of(level):.1f}", unit.label(level)) for level in levels]
    margin = max(_HALF_TIME, 8 + _LETTER * max(len(text) for _y, text in y_axis))
    time_of = _time_of(end - begin, step, zone)
    return Chart(
        title=title,
        unit=unit.unit,
        lines=[_line(each, _path(each.points, x_of, y_of, step), unit, shown, is_over=ended_at is not None) for each in series],
        x_axis=[(f"{x_of(at):.0f}", text) for at, text in _ticks(begin, end, step, zone)],
        y_axis=y_axis,
        rows=[(time_of(at), tuple(unit.text(points.get(at)) for points in known)) for at in reversed(listed)],
        view_box=f"-{margin} -10 {WIDTH + margin + _HALF_TIME} {HEIGHT + 34}",
        xs=_SEPARATOR.join(f"{x_of(at):.1f}" for at in shown),
        times=_SEPARATOR.join(map(time_of, shown)),
        ended="" if ended_at is None else _ended(ended_at, end, zone, source),
        ended_x="" if ended_at is None else f"{max(0.0, x_of(ended_at)):.1f}",
    )


def _line(series: Series, path: str, scale: Scale, times: Sequence[datetime], *, is_over: bool) -> ChartLine:
    known = dict(series.points)
    texts = {value: scale.text(value) for value in {None, *known.values()}}
    values = _SEPARATOR.join(texts[known.get(at)] for at in times)
    last = "" if is_over or not series.points else texts[series.points[-1][1]]
    return ChartLine(series.name, path, values, _summary(series, scale, is_over=is_over), last)


def _bounds(values: Sequence[float], least: float, unit: float) -> tuple[float, float]:
    """The bottom and the top of the scale, both readable numbers of units; the bottom is below zero only for negative values."""
    mean = sum(values) / len(values) if values else 0.0
    lowest = min(values, default=0.0)
    top = _readable(max([least, _TIMES_MEAN * mean, *values]) / unit) * unit
    return -_readable(-lowest / unit) * unit if lowest < 0 else 0.0, top


def _readable(wanted: float) -> float:
    """The next number whose half is also readable."""
    power: float = 10.0 ** math.floor(math.log10(wanted))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= wanted * 0.999999)


def _path(points: Points, x_of: Callable[[datetime], float], y_of: Callable[[float], float], step: timedelta) -> str:
    """The joined points; one without neighbours is a short line, because a dot would be hardly visible."""
    strokes: list[list[tuple[float, float]]] = []
    before: datetime | None = None
    for at, value in points:
        if value is not None:
            if before is None or at - before > 2.5 * step:
                strokes.append([])
            strokes[-1].append((x_of(at), y_of(value)))
        before = None if value is None else at
    return "".join(
        f"M{stroke[0][0] - _ALONE / 2:.1f} {stroke[0][1]:.1f}h{_ALONE}"
        if len(stroke) == 1
        else "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in stroke)
        for stroke in strokes
    )


def _ticks(begin: datetime, end: datetime, step: timedelta, zone: tzinfo) -> list[tuple[datetime, str]]:
    """Readable times or days, each once, without an hour that daylight saving time skips."""
    every = next((each for each in _TICKS if each >= min(step, _DAY) and (end - begin) / each <= _MAX_TICKS), _TICKS[-1])
    form = "H:i" if every < _DAY else "j M"
    # By local time, because daylight saving time shifts it.
    at = begin.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    found = []
    while (instant := at.replace(tzinfo=zone)) <= end:
        if instant >= begin and (every >= _DAY or instant.astimezone(UTC).astimezone(zone).hour == at.hour):
            found.append((instant, date_format(at, form)))
        at += every
    return found


def _time_of(length: timedelta, step: timedelta, zone: tzinfo) -> Callable[[datetime], str]:
    by_time = "Y-m-d H:i" if length > _SHOWN_BY_TIME else "H:i" if step.seconds % 60 == 0 else "H:i:s"
    form = "Y-m-d" if step >= _DAY else by_time
    return lambda at: date_format(at.astimezone(zone), form)


def _ended_at(times: Sequence[datetime], end: datetime, step: timedelta) -> datetime | None:
    """The end of the data; None if it continues, or if there is none."""
    late = timedelta() if step <= _FINEST else _ROLLED_UP_AFTER
    return times[-1] if times and end - times[-1] > _MISSED * step + late else None


def _ended(at: datetime, end: datetime, zone: tzinfo, source: str) -> str:
    time = date_format(at.astimezone(zone), "H:i" if end - at < _DAY else "j M H:i")
    words = _("No samples since %(time)s") if source == "samples" else _("No figures since %(time)s")
    return words % {"time": time}


def _summary(series: Series, scale: Scale, *, is_over: bool) -> str:
    values = [value for _at, value in series.points if value is not None]
    if not values:
        return _("%(name)s: nothing was measured in this time.") % {"name": series.name}
    if is_over or series.points[-1][1] is None:
        words = _("%(name)s: last %(last)s, between %(least)s and %(most)s, %(mean)s on average.")
    else:
        words = _("%(name)s: now %(last)s, between %(least)s and %(most)s, %(mean)s on average.")
    found = {"last": values[-1], "least": min(values), "most": max(values), "mean": sum(values) / len(values)}
    return words % {"name": series.name, **{name: scale.text(value) for name, value in found.items()}}


def _thinned(times: Sequence[datetime], lines: Collection[Mapping[datetime, float | None]], limit: int) -> list[datetime]:
    """At most this many times over the whole range; of each part, the one with the highest values, so that no peak is hidden."""
    every = max(1, math.ceil(len(times) / limit))
    parts = (times[start : start + every] for start in range(0, len(times), every))
    return [max(part, key=lambda at: sum(points.get(at) or 0.0 for points in lines)) for part in parts]


def rates(points: Points) -> list[tuple[datetime, float | None]]:
    """Growth per second between consecutive points; None where the count shrinks or is unknown."""
    found: list[tuple[datetime, float | None]] = []
    for (before, first), (after, second) in pairwise(points):
        grown = None if first is None or second is None or second < first or after <= before else second - first
        found.append((after, None if grown is None else grown / (after - before).total_seconds()))
    return found


def sparkline(series: Series, begin: datetime, step: timedelta, count: int, scale: Scale) -> ChartLine:
    """A small line without axes: one value for each of `count` steps from `begin`."""
    known = dict(series.points)
    times = [begin + number * step for number in range(count)]
    whole = Series(series.name, [(at, known.get(at)) for at in times])
    top = max([1.0, *(value for _at, value in whole.points if value is not None)])
    path = _path(
        whole.points,
        lambda at: (at - begin) / (step * max(1, count - 1)) * SPARK_WIDTH,
        lambda value: SPARK_HEIGHT - 2 - value / top * (SPARK_HEIGHT - 4),
        step,
    )
    return _line(whole, path, scale, times, is_over=True)


def spark_times(begin: datetime, step: timedelta, count: int) -> str:
    """The times of the values of sparklines, as their cursor shows them."""
    return _SEPARATOR.join(date_format(timezone.localtime(begin + number * step), "H:i") for number in range(count))


# The page of endpoints has the others; those with failures and the longest queues come first.
MAX_ENDPOINTS: Final = 20


def traffic_table(
    endpoints: Mapping[str, Sequence[QueueStatus]],
    traffic: Traffic,
    failed: Mapping[str, int],
    now: datetime,
    failures_url_of: Callable[[str], str],
) -> dict[str, Any]:
    """Template variables of the traffic of these endpoints in the last hour, of which at most MAX_ENDPOINTS are shown."""
    begin = MINUTE.start_of(now) - (STEPS - 1) * STEP
    rows = []
    for name, queues in list(endpoints.items())[:MAX_ENDPOINTS]:
        found = traffic_of(name, queues, traffic, now)
        drawn = (
            (_("In"), found.came, per_second),
            (_("Out"), found.went, per_second),
            (_("Waiting"), found.waited, counts),
            (_("Failed"), found.failed, counts),
        )
        row = {
            "name": name,
            "failures_url": failures_url_of(name),
            "traffic": found,
            "waiting": None if found.depth is None else depth_number(found.depth),
            "failed": failed.get(name),
            "lines": [sparkline(Series(title, [*points.items()]), begin, STEP, STEPS, scale([])) for title, points, scale in drawn],
        }
        rows.append(row)
    return {"rows": rows, "times": spark_times(begin, STEP, STEPS), "left_out": max(0, len(endpoints) - MAX_ENDPOINTS)}


class Period(NamedTuple):
    """A period of charts and rollups: its name in the query string, its label, its length."""

    name: str
    label: str | Promise
    length: timedelta

    @property
    def refresh_seconds(self) -> int:
        """The refresh interval of a page with samples of this period."""
        return 5 if self.length <= timedelta(minutes=5) else 10 if self.length <= timedelta(hours=1) else 60

    @property
    def figure_seconds(self) -> int:
        """The steps of its rollups: those of minutes are kept for 2 days, of hours for 92, of days without limit."""
        return 60 if self.length <= _DAY else 3_600 if self.length <= timedelta(days=30) else 86_400


# The periods of ServiceControl and longer ones. Samples are kept for a month, rollups and the archive longer.
_ALL: Final = (
    Period("5m", gettext_lazy("5 minutes"), timedelta(minutes=5)),
    Period("15m", gettext_lazy("15 minutes"), timedelta(minutes=15)),
    Period("1h", gettext_lazy("1 hour"), timedelta(hours=1)),
    Period("6h", gettext_lazy("6 hours"), timedelta(hours=6)),
    Period("1d", gettext_lazy("1 day"), timedelta(days=1)),
    Period("7d", gettext_lazy("7 days"), timedelta(days=7)),
    Period("30d", gettext_lazy("30 days"), timedelta(days=30)),
    Period("90d", gettext_lazy("90 days"), timedelta(days=90)),
    Period("1y", gettext_lazy("1 year"), timedelta(days=365)),
)
PERIODS: Final = _ALL[:7]
LONG_PERIODS: Final = _ALL[2:]


def period_of(request: HttpRequest, periods: Sequence[Period] = PERIODS, default: str = "1h") -> Period:
    """The period in the query string, or the default."""
    by_name = {each.name: each for each in periods}
    return by_name.get(request.GET.get("period", "")) or by_name[default]
