"""Charts as SVG that the server draws: paths and texts, no inline style, the same numbers as a sentence and as a table.

The vertical scale is that of ServicePulse: up to the largest value, 1.5 times the mean, or 10 (operations reference 3.1), rounded
up to a number that reads well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext as _

WIDTH: Final = 420
HEIGHT: Final = 110
_LEAST_TOP: Final = 10.0
_TIMES_MEAN: Final = 1.5
_X_LABELS: Final = 4
# the length of a point that is joined with none
_ALONE: Final = 6
Points = Sequence[tuple[datetime, float | None]]
# Hours are told from each other by their time of day; a chart of a day may begin a step before it.
_SHOWN_BY_TIME: Final = timedelta(hours=26)
# So many rows a table has at most; a chart of a month has 4,320 points.
TABLE_ROWS: Final = 60


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name, and values at instants in their order; None is a gap, and so is a step longer than `longest_step`."""

    name: str
    points: Points


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it is drawn: `number` picks its colour and its dashes."""

    number: int
    name: str
    path: str
    last: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a place of the drawing."""

    x: str
    y: str
    text: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its text alternatives: `summary` in a sentence for each line, `rows` for a table of time and values."""

    title: str
    lines: tuple[Line, ...]
    labels: tuple[Label, ...]
    grid: tuple[str, ...]
    summary: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def view_box(self) -> str:
        """The drawing with room for its labels."""
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
    """Draw the series from `begin` to `end`. Values that are further apart than two and a half `step` are not joined.

    `text_of` writes a value; `least_top` is the least value at the top of the scale.
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
        lines.append(Line(number, each.name, path, text_of(known[-1]) if known else ""))
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


def _path(
    points: Points,
    x_of: Callable[[datetime], float],
    y_of: Callable[[float], float],
    step: timedelta,
) -> str:
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
    """A point alone is a short line: one of no length, a dot as wide as the line, is hardly seen."""
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
    """The newest first; of many points every so manieth, so that the table covers the whole period."""
    form = "H:i:s" if length <= timedelta(days=1) else "Y-m-d H:i"
    by_time: dict[datetime, list[str]] = {}
    for number, each in enumerate(series):
        for at, value in each.points:
            by_time.setdefault(at, ["–"] * len(series))[number] = "–" if value is None else text_of(value)
    times = sorted(by_time, reverse=True)
    every = max(1, math.ceil(len(times) / TABLE_ROWS))
    return tuple((date_format(timezone.localtime(at), form), tuple(by_time[at])) for at in times[::every])


def rates(points: Points) -> list[tuple[datetime, float | None]]:
    """How fast a count grows, per second, between each two points that follow each other; None where it shrinks or is not known."""
    found: list[tuple[datetime, float | None]] = []
    for (before, first), (after, second) in pairwise(points):
        seconds = (after - before).total_seconds()
        known = first is not None and second is not None and second >= first and seconds > 0
        found.append((after, (second - first) / seconds if known and first is not None and second is not None else None))
    return found
