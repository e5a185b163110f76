"""Charts as server-rendered SVG without inline styles, with the numbers as a sentence and as a table, and the periods of charts.

The vertical scale is that of ServicePulse: the largest of the maximum, 1.5 times the mean, and 10, rounded up to a readable number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

WIDTH: Final = 420
HEIGHT: Final = 110
_LEAST_TOP: Final = 10.0
_TIMES_MEAN: Final = 1.5
_X_LABELS: Final = 4
# the length of a point without neighbours
_ALONE: Final = 6
Points = Sequence[tuple[datetime, float | None]]
# Up to this length labels are times of day; a chart of a day may start one step earlier.
_SHOWN_BY_TIME: Final = timedelta(hours=26)
# Most rows of a table; a chart of a month has 4,320 points.
TABLE_ROWS: Final = 60


@dataclass(frozen=True, slots=True)
class Series:
    """One line: a name and values at ascending instants; None is a gap, as is a step that is too long."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line as drawn: `number` selects colour and dashes."""

    number: int
    name: str
    path: str
    last: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a position of the drawing."""

    x: str
    y: str
    text: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with text alternatives: `summary` has a sentence per line, `rows` is a table of times and values."""

    title: str
    lines: tuple[ChartLine, ...]
    labels: tuple[Label, ...]
    grid: tuple[str, ...]
    summary: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def view_box(self) -> str:
        """The view box with room for labels."""
        return f"-64 -8 {WIDTH + 76} {HEIGHT + 30}"


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    begin: datetime,
    end: datetime,
    step: timedelta,
    text_of: Callable[[float], str],
    least_top: float = _LEAST_TOP,
) -> Chart:
    """Draw the series from `begin` to `end`. Points more than two and a half `step` apart are not connected.

    `text_of` formats a value; `least_top` is the smallest top of the scale.
    """
    values = [value for each in series for _at, value in each.points if value is not None]
    top = _top(values, least_top)
    bottom = min([0.0, *values])

    def x_of(at: datetime) -> float:
        return (at - begin) / (end - begin) * WIDTH

    def y_of(value: float) -> float:
        return HEIGHT - (value - bottom) / (top - bottom) * HEIGHT

    lines = []
    for number, each in enumerate(series, start=1):
        known = [value for _at, value in each.points if value is not None]
        path = _path(each.points, x_of, y_of, step)
        lines.append(ChartLine(number, each.name, path, text_of(known[-1]) if known else ""))
    return Chart(
        title=title,
        lines=tuple(lines),
        labels=(*_y_labels(bottom, top, y_of, text_of), *_x_labels(begin, end)),
        grid=tuple(f"{y_of(value):.1f}" for value in (bottom, (bottom + top) / 2, top)),
        summary=tuple(_summary(each, text_of) for each in series),
        rows=_rows(series, end - begin, text_of),
    )


def _top(values: Sequence[float], least: float) -> float:
    mean = sum(values) / len(values) if values else 0.0
    wanted = max([least, _TIMES_MEAN * mean, *values])
    power: float = 10.0 ** math.floor(math.log10(wanted))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= wanted * 0.999999)


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


def _y_labels(bottom: float, top: float, y_of: Callable[[float], float], text_of: Callable[[float], str]) -> list[Label]:
    return [Label("-6", f"{y_of(value) + 4:.1f}", text_of(value), "end") for value in (bottom, (bottom + top) / 2, top)]


def _x_labels(begin: datetime, end: datetime) -> list[Label]:
    form = "H:i" if end - begin <= _SHOWN_BY_TIME else "j M"
    labels = []
    for number in range(_X_LABELS + 1):
        at = begin + (end - begin) * number / _X_LABELS
        anchor = "start" if number == 0 else "end" if number == _X_LABELS else "middle"
        text = date_format(timezone.localtime(at), form)
        labels.append(Label(f"{WIDTH * number / _X_LABELS:.0f}", f"{HEIGHT + 16}", text, anchor))
    return labels


def _summary(series: Series, text_of: Callable[[float], str]) -> str:
    values = [value for _at, value in series.points if value is not None]
    if not values:
        return _("%(name)s: nothing was measured in this time.") % {"name": series.name}
    return _("%(name)s: now %(last)s, between %(least)s and %(most)s, %(mean)s in the mean.") % {
        "name": series.name,
        "last": text_of(values[-1]),
        "least": text_of(min(values)),
        "most": text_of(max(values)),
        "mean": text_of(sum(values) / len(values)),
    }


def _rows(series: Sequence[Series], length: timedelta, text_of: Callable[[float], str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Newest first; long series are thinned out so that the table covers the whole period."""
    form = "H:i:s" if length <= timedelta(days=1) else "Y-m-d H:i"
    by_time: dict[datetime, list[str]] = {}
    for number, each in enumerate(series):
        for at, value in each.points:
            by_time.setdefault(at, ["–"] * len(series))[number] = "–" if value is None else text_of(value)
    times = sorted(by_time, reverse=True)
    every = max(1, math.ceil(len(times) / TABLE_ROWS))
    return tuple((date_format(timezone.localtime(at), form), tuple(by_time[at])) for at in times[::every])


def rates(points: Points) -> list[tuple[datetime, float | None]]:
    """Growth per second between consecutive points; None where the count shrinks or is unknown."""
    found: list[tuple[datetime, float | None]] = []
    for (before, first), (after, second) in pairwise(points):
        seconds = (after - before).total_seconds()
        known = first is not None and second is not None and second >= first and seconds > 0
        found.append((after, (second - first) / seconds if known and first is not None and second is not None else None))
    return found


# --- Periods ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Period:
    """A period of charts: name in the query string, label, length, and refresh interval of pages that show it."""

    name: str
    label: str | Promise
    length: timedelta
    refresh_seconds: int


# The periods of ServiceControl, and longer ones up to a month, for which samples are kept.
PERIODS: Final = (
    Period("5m", gettext_lazy("5 minutes"), timedelta(minutes=5), 5),
    Period("15m", gettext_lazy("15 minutes"), timedelta(minutes=15), 10),
    Period("1h", gettext_lazy("1 hour"), timedelta(hours=1), 10),
    Period("6h", gettext_lazy("6 hours"), timedelta(hours=6), 60),
    Period("1d", gettext_lazy("1 day"), timedelta(days=1), 60),
    Period("7d", gettext_lazy("7 days"), timedelta(days=7), 60),
    Period("30d", gettext_lazy("30 days"), timedelta(days=30), 60),
)
DEFAULT: Final = PERIODS[2]


def period_of(request: HttpRequest) -> Period:
    """The period in the query string; one hour by default."""
    name = request.GET.get("period", "")
    return next((each for each in PERIODS if each.name == name), DEFAULT)
