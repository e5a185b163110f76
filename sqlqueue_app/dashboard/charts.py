"""Charts and sparklines as server-rendered SVG without inline styles, with the numbers as text and for the cursor of charts.js.

The vertical scale is that of ServicePulse: the largest of the maximum, 1.5 times the mean, and 10, rounded up to a readable number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final, NamedTuple

from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.formats import Number, Scale, counts, depth_number, per_second
from sqlqueue_app.status.queues import QueueStatus
from sqlqueue_app.status.samples import MINUTE
from sqlqueue_app.status.traffic import STEP, STEPS, EndpointTraffic, Traffic, traffic_of

WIDTH: Final = 420
HEIGHT: Final = 110
SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 24
_LEAST_TOP: Final = 10.0
_TIMES_MEAN: Final = 1.5
# Widest letter of a label, in units of the drawing: the room on the left is as wide as the longest label.
_LETTER: Final = 8
# Room for half of a time or a day at the ends of its axis.
_HALF_TIME: Final = 26
# the length of a point without neighbours
_ALONE: Final = 6
Points = Sequence[tuple[datetime, float | None]]
# The values of all lines at a time.
Reading = tuple[datetime, tuple[float | None, ...]]
_DAY: Final = timedelta(days=1)
# Up to this length labels are times of day; a chart of a day may start one step earlier.
_SHOWN_BY_TIME: Final = timedelta(hours=26)
# Most rows of a table, and most positions of the cursor; a chart of a month has 4,320 points.
TABLE_ROWS: Final = 60
_READINGS: Final = 210
_MOST_TICKS: Final = 7
_MINUTES: Final = (1, 2, 3, 5, 10, 15, 30, 60, 120, 180, 360, 720)
_TICKS: Final = tuple(timedelta(minutes=n) for n in _MINUTES) + tuple(timedelta(days=n) for n in (1, 2, 5, 7, 14, 30, 61, 122))
# Data has ended where nothing has come for three steps; rolled up samples come up to 70 seconds after their time.
_MISSED: Final = 3
_ROLLED_UP_AFTER: Final = timedelta(seconds=70)
_FINEST: Final = timedelta(seconds=10)
# Between values in attributes; it is in no formatted number.
_SEPARATOR: Final = "|"


class Series(NamedTuple):
    """One line: a name and values at ascending instants; None is a gap, as is a step that is too long."""

    name: str
    points: Points


class ChartLine(NamedTuple):
    """A line as drawn: `number` selects colour and dashes; `values` are those under the cursor, `last` is the current one."""

    number: int
    name: str
    path: str
    last: str
    values: str


class Label(NamedTuple):
    """A text at a position of the drawing."""

    x: str
    y: str
    text: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with text alternatives: `summary` has a sentence per line, `rows` is a table of times and values.

    `ended`: in words, since when there is no data; empty if there is. `ended_x`: where that is in the drawing.
    """

    title: str
    unit: str
    lines: tuple[ChartLine, ...]
    labels: tuple[Label, ...]
    grid: tuple[str, ...]
    summary: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    view_box: str
    xs: str
    times: str
    ended: str = ""
    ended_x: str = ""
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
    least_top: float = _LEAST_TOP,
    source: str = "samples",
) -> Chart:
    """Draw the series from `begin` to `end`. Points more than two and a half `step` apart are not connected. Days are those of UTC.

    `scale` gives the unit for all values; `least_top` is the smallest top of the scale, as the values are. `source` is `samples` or
    `figures`: what is missing where the data ends.
    """
    values = [value for each in series for _at, value in each.points if value is not None]
    unit = scale([*values, least_top])
    bottom, top = _bounds([value / unit.factor for value in values], least_top / unit.factor)
    zone = UTC if step >= _DAY else timezone.get_current_timezone()

    def x_of(at: datetime) -> float:
        return (at - begin) / (end - begin) * WIDTH

    def y_of(value: float) -> float:
        return HEIGHT - (value - bottom) / (top - bottom) * HEIGHT

    ended_at = _ended_at(series, end, step)
    readings = _readings(series)
    shown = _thinned(readings, _READINGS)
    levels = (bottom, 0.0, top) if bottom else (0.0, top / 2, top)
    y_labels = [Label("-6", f"{y_of(level) + 4:.1f}", unit.label(level * unit.factor), "end") for level in levels]
    margin = max(_HALF_TIME, 8 + _LETTER * max(len(label.text) for label in y_labels))
    time_of = _time_of(end - begin, step, zone)
    paths = [_path(each.points, x_of, lambda value: y_of(value / unit.factor), step) for each in series]
    return Chart(
        title=title,
        unit=unit.unit,
        lines=tuple(_lines(series, paths, shown, unit, is_over=ended_at is not None)),
        labels=(*y_labels, *_x_labels(begin, end, step, zone, x_of)),
        grid=tuple(f"{y_of(level):.1f}" for level in levels),
        summary=tuple(_summary(each, unit, is_over=ended_at is not None) for each in series),
        rows=tuple((time_of(at), tuple(map(unit.text, found))) for at, found in reversed(_thinned(readings, TABLE_ROWS))),
        view_box=f"-{margin} -10 {WIDTH + margin + _HALF_TIME} {HEIGHT + 34}",
        xs=_SEPARATOR.join(f"{x_of(at):.1f}" for at, _found in shown),
        times=_SEPARATOR.join(time_of(at) for at, _found in shown),
        ended="" if ended_at is None else _ended(ended_at, end, zone, source),
        ended_x="" if ended_at is None else f"{max(0.0, x_of(ended_at)):.1f}",
    )


def _lines(
    series: Sequence[Series], paths: Sequence[str], shown: Sequence[Reading], unit: Scale, *, is_over: bool
) -> Iterator[ChartLine]:
    for place, (each, path) in enumerate(zip(series, paths, strict=True)):
        last = "" if is_over or not each.points else unit.text(each.points[-1][1])
        yield ChartLine(place + 1, each.name, path, last, _SEPARATOR.join(unit.text(found[place]) for _at, found in shown))


def _bounds(values: Sequence[float], least: float) -> tuple[float, float]:
    """The bottom and the top of the scale, both readable numbers; the bottom is below zero only where a value is."""
    mean = sum(values) / len(values) if values else 0.0
    lowest = min(values, default=0.0)
    return -_readable(-lowest) if lowest < 0 else 0.0, _readable(max([least, _TIMES_MEAN * mean, *values]))


def _readable(wanted: float) -> float:
    """The next number whose half is readable too."""
    power: float = 10.0 ** math.floor(math.log10(wanted))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= wanted * 0.999999)


def _path(points: Points, x_of: Callable[[datetime], float], y_of: Callable[[float], float], step: timedelta) -> str:
    joined: list[list[tuple[float, float]]] = []
    pen_down = False
    before: datetime | None = None
    for at, value in points:
        if value is None or (before is not None and at - before > 2.5 * step):
            pen_down = False
        if value is not None:
            if not pen_down:
                joined.append([])
            joined[-1].append((x_of(at), y_of(value)))
            pen_down = True
        before = at
    return "".join(map(_stroke, joined))


def _stroke(points: Sequence[tuple[float, float]]) -> str:
    """A single point is a short line, because a dot would hardly be visible."""
    (x, y), *others = points
    if not others:
        return f"M{x - _ALONE / 2:.1f} {y:.1f}h{_ALONE}"
    return f"M{x:.1f} {y:.1f}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in others)


def _x_labels(begin: datetime, end: datetime, step: timedelta, zone: tzinfo, x_of: Callable[[datetime], float]) -> list[Label]:
    """Readable times or days, each once and above it what belongs to it."""
    every = next((each for each in _TICKS if each >= min(step, _DAY) and (end - begin) / each <= _MOST_TICKS), _TICKS[-1])
    # By the clock on the wall, which a change to summer time moves.
    first = begin.astimezone(zone).replace(tzinfo=None)
    at = first.replace(hour=0, minute=0, second=0, microsecond=0)
    labels = []
    while (instant := at.replace(tzinfo=zone)) <= end:
        if instant >= begin:
            labels.append(
                Label(f"{x_of(instant):.0f}", f"{HEIGHT + 18}", date_format(at, "H:i" if every < _DAY else "j M"), "middle")
            )
        at += every
    return labels


def _time_of(length: timedelta, step: timedelta, zone: tzinfo) -> Callable[[datetime], str]:
    form = "Y-m-d H:i" if length > _SHOWN_BY_TIME else "H:i" if step.seconds % 60 == 0 else "H:i:s"
    if step >= _DAY:
        form = "Y-m-d"
    return lambda at: date_format(at.astimezone(zone), form)


def _ended_at(series: Sequence[Series], end: datetime, step: timedelta) -> datetime | None:
    """When the data ended; None where it goes on, or where there is none at all."""
    newest = max((each.points[-1][0] for each in series if each.points), default=None)
    late = timedelta() if step <= _FINEST else _ROLLED_UP_AFTER
    return newest if newest is not None and end - newest > _MISSED * step + late else None


def _ended(at: datetime, end: datetime, zone: tzinfo, source: str) -> str:
    time = date_format(at.astimezone(zone), "H:i" if end - at < _DAY else "j M H:i")
    words = _("No samples since %(time)s") if source == "samples" else _("No figures since %(time)s")
    return words % {"time": time}


def _summary(series: Series, scale: Scale, *, is_over: bool) -> str:
    values = [value for _at, value in series.points if value is not None]
    if not values:
        return _("%(name)s: nothing was measured in this time.") % {"name": series.name}
    is_over = is_over or series.points[-1][1] is None
    words = (
        _("%(name)s: last %(last)s, between %(least)s and %(most)s, %(mean)s on average.")
        if is_over
        else _("%(name)s: now %(last)s, between %(least)s and %(most)s, %(mean)s on average.")
    )
    return words % {
        "name": series.name,
        "last": scale.text(values[-1]),
        "least": scale.text(min(values)),
        "most": scale.text(max(values)),
        "mean": scale.text(sum(values) / len(values)),
    }


def _readings(series: Sequence[Series]) -> list[Reading]:
    """The values of all lines by their times, oldest first."""
    by_time: dict[datetime, list[float | None]] = {}
    for place, each in enumerate(series):
        for at, value in each.points:
            by_time.setdefault(at, [None] * len(series))[place] = value
    return [(at, tuple(by_time[at])) for at in sorted(by_time)]


def _thinned(readings: Sequence[Reading], most: int) -> list[Reading]:
    """At most so many, over the whole time, and of each part the one with the highest values: no peak is hidden."""
    every = max(1, math.ceil(len(readings) / most))
    parts = (readings[start : start + every] for start in range(0, len(readings), every))
    return [max(part, key=lambda each: sum(value or 0.0 for value in each[1])) for part in parts]


def rates(points: Points) -> list[tuple[datetime, float | None]]:
    """Growth per second between consecutive points; None where the count shrinks or is unknown."""
    found: list[tuple[datetime, float | None]] = []
    for (before, first), (after, second) in pairwise(points):
        seconds = (after - before).total_seconds()
        known = first is not None and second is not None and second >= first and seconds > 0
        found.append((after, (second - first) / seconds if known and first is not None and second is not None else None))
    return found


# --- Sparklines -------------------------------------------------------------------------------------------------------


class Sparkline(NamedTuple):
    """A small line without axes: `values` are those under the cursor, `summary` is for screen readers."""

    name: str
    path: str
    values: str
    summary: str
    width: int = SPARK_WIDTH
    height: int = SPARK_HEIGHT


def sparkline(series: Series, begin: datetime, step: timedelta, count: int, scale: Scale) -> Sparkline:
    """Draw one value for each of `count` steps from `begin`."""
    known = dict(series.points)
    points = [(begin + number * step, known.get(begin + number * step)) for number in range(count)]
    top = max([1.0, *(value for _at, value in points if value is not None)])
    path = _path(
        points,
        lambda at: (at - begin) / (step * max(1, count - 1)) * SPARK_WIDTH,
        lambda value: SPARK_HEIGHT - 2 - value / top * (SPARK_HEIGHT - 4),
        step,
    )
    values = _SEPARATOR.join(scale.text(value) for _at, value in points)
    return Sparkline(series.name, path, values, _summary(Series(series.name, points), scale, is_over=True))


def spark_times(begin: datetime, step: timedelta, count: int) -> str:
    """The times of the values of sparklines, as their cursor shows them."""
    return _SEPARATOR.join(date_format(timezone.localtime(begin + number * step), "H:i") for number in range(count))


# --- The traffic of the last hour by endpoint -------------------------------------------------------------------------

# More are on the page of the endpoints; those with failures and the longest queues come first.
MOST_ENDPOINTS: Final = 30


class TrafficRow(NamedTuple):
    """An endpoint: its traffic, what waits and what has failed, None if unknown, and the lines of the last hour."""

    name: str
    url: str
    failures_url: str
    traffic: EndpointTraffic
    waiting: Number | None
    failed: int | None
    lines: list[Sparkline]


class TrafficTable(NamedTuple):
    """The rows of the endpoints, the times of their lines, and how many endpoints are left out."""

    rows: list[TrafficRow]
    times: str
    left_out: int


def traffic_table(
    endpoints: Mapping[str, Sequence[QueueStatus]],
    traffic: Traffic,
    failed: Mapping[str, int],
    now: datetime,
    url_of: Callable[[str], str],
    failures_url_of: Callable[[str], str],
) -> TrafficTable:
    """The table of these endpoints, of which at most MOST_ENDPOINTS are shown."""
    begin = MINUTE.begin_of(now) - (STEPS - 1) * STEP
    rows = []
    for name, queues in list(endpoints.items())[:MOST_ENDPOINTS]:
        found = traffic_of(name, queues, traffic, now)
        drawn = (
            (_("In"), found.came, per_second),
            (_("Out"), found.went, per_second),
            (_("Waiting"), found.waited, counts),
            (_("Failed"), found.failed, counts),
        )
        lines = [sparkline(Series(title, list(points.items())), begin, STEP, STEPS, scale([])) for title, points, scale in drawn]
        waiting = None if found.depth is None else depth_number(found.depth)
        rows.append(TrafficRow(name, url_of(name), failures_url_of(name), found, waiting, failed.get(name), lines))
    return TrafficTable(rows, spark_times(begin, STEP, STEPS), max(0, len(endpoints) - MOST_ENDPOINTS))


# --- Periods ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Period:
    """A period of charts and figures: its name in the query string, its label, its length."""

    name: str
    label: str | Promise
    length: timedelta

    @property
    def refresh_seconds(self) -> int:
        """How often a page that shows samples of it is refreshed."""
        return 5 if self.length <= timedelta(minutes=5) else 10 if self.length <= timedelta(hours=1) else 60

    @property
    def figure_seconds(self) -> int:
        """The steps of its figures: those of minutes are kept for 2 days, of hours for 92, of days without limit."""
        return 60 if self.length <= _DAY else 3_600 if self.length <= timedelta(days=30) else 86_400


# The periods of ServiceControl and longer ones. Samples are kept for a month, figures and the archive longer.
_ALL: Final = tuple(
    Period(name, label, timedelta(minutes=minutes))
    for name, label, minutes in (
        ("5m", gettext_lazy("5 minutes"), 5),
        ("15m", gettext_lazy("15 minutes"), 15),
        ("1h", gettext_lazy("1 hour"), 60),
        ("6h", gettext_lazy("6 hours"), 360),
        ("1d", gettext_lazy("1 day"), 1_440),
        ("7d", gettext_lazy("7 days"), 7 * 1_440),
        ("30d", gettext_lazy("30 days"), 30 * 1_440),
        ("90d", gettext_lazy("90 days"), 90 * 1_440),
        ("1y", gettext_lazy("1 year"), 365 * 1_440),
    )
)
PERIODS: Final = _ALL[:7]
LONG_PERIODS: Final = _ALL[2:]


def period_of(request: HttpRequest, periods: Sequence[Period] = PERIODS, default: str = "1h") -> Period:
    """The period in the query string, or the default."""
    by_name = {each.name: each for each in periods}
    return by_name.get(request.GET.get("period", "")) or by_name[default]
