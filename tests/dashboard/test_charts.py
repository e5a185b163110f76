"""Charts: sparse values, units, axes in any zone, the end of the data, the values at the cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone, translation

from sqlqueue_app.dashboard.charts import Chart, Points, Series, line_chart, spark_times, sparkline
from sqlqueue_app.dashboard.formats import Scale, counts, per_second, percents, precise_duration, times

BEGIN = datetime(2026, 11, 22, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
STEP = timedelta(minutes=6)


def chart(
    points: Points,
    *,
    length: timedelta = HOUR,
    step: timedelta = STEP,
    scale: Callable[[Sequence[float]], Scale] = counts,
    **more: Any,
) -> Chart:
    return line_chart("Title", [Series("a", points)], begin=BEGIN, end=BEGIN + length, step=step, scale=scale, **more)


def path(points: Points) -> str:
    (line,) = chart(points).lines
    return line.path


def axis(drawn: Chart) -> list[tuple[float, str]]:
    """The positions of the times on the horizontal axis, as fractions of its width."""
    return [(round(float(x) / drawn.width, 2), text) for x, text in drawn.x_axis]


def every(step: timedelta, count: int, value: float | None = 1.0, begin: datetime = BEGIN) -> list[tuple[datetime, float | None]]:
    return [(begin + number * step, value) for number in range(count)]


def test_consecutive_values_are_joined() -> None:
    assert path([(BEGIN, 0.0), (BEGIN + STEP, 10.0), (BEGIN + 2 * STEP, 5.0)]) == "M0.0 110.0L42.0 0.0L84.0 55.0"


def test_single_value_is_visible() -> None:
    assert path([(BEGIN + STEP, 10.0)]) == "M39.0 55.0h6"
    assert path([(BEGIN, 0.0), (BEGIN + STEP, None), (BEGIN + 2 * STEP, 5.0)]) == "M-3.0 110.0h6M81.0 55.0h6"
    assert path([(BEGIN, 0.0), (BEGIN + 5 * STEP, 5.0)]) == "M-3.0 110.0h6M207.0 55.0h6"
    assert path([(BEGIN, None)]) == ""


@pytest.mark.parametrize(
    ("most", "scale", "unit", "labels"),
    [
        (59, counts, "messages", ["0", "30", "60"]),
        (1_234_567, counts, "messages", ["0", "1,000,000", "2,000,000"]),
        (0.7, per_second, "per second", ["0", "0.50", "1"]),
        (0.013, times, "ms", ["0", "10", "20"]),
        (5.124, times, "s", ["0", "3", "6"]),
        (19.0, times, "s", ["0", "10", "20"]),
        (5_124.0, times, "min", ["0", "50", "100"]),
        (20_000, times, "h", ["0", "3", "6"]),
        (0.33, percents, "%", ["0", "20", "40"]),
    ],
)
def test_axis_has_one_unit_and_readable_numbers(
    most: float, scale: Callable[[Sequence[float]], Scale], unit: str, labels: list[str]
) -> None:
    drawn = chart(
        [*every(STEP, 9, 0.0), (BEGIN + 9 * STEP, most)], scale=scale, least_top=0.01 if scale in (times, percents) else 1.0
    )
    assert drawn.unit == unit
    assert [text for _y, text in drawn.y_axis] == labels


def test_negative_values_extend_the_axis() -> None:
    drawn = chart([(BEGIN, -1.5), (BEGIN + STEP, 3.0)], scale=times, least_top=0.01)
    assert [text for _y, text in drawn.y_axis] == ["\N{MINUS SIGN}2", "0", "4"]
    assert drawn.lines[0].values == "\N{MINUS SIGN}1.5 s|3.0 s"


def test_labels_fit_beside_the_chart() -> None:
    """The font size is twelve units and no character is wider than eight."""
    drawn = chart([(BEGIN, 12_345_678_901.0)])
    left, top, width, height = map(int, drawn.view_box.split())
    assert -left >= 6 + 8 * len("20,000,000,000") - 8
    assert width + left >= drawn.width
    assert (top, height + top) <= (-8, drawn.height + 18)


@pytest.mark.parametrize(
    ("begin", "length", "step", "texts"),
    [
        (timedelta(hours=21, minutes=3), 5 * MINUTE, timedelta(seconds=10), [f"21:0{n}" for n in range(3, 9)]),
        (timedelta(hours=21, minutes=3), HOUR, timedelta(seconds=10), ["21:10", "21:20", "21:30", "21:40", "21:50", "22:00"]),
        (timedelta(hours=12, seconds=30), DAY, timedelta(minutes=1), ["18:00", "00:00", "06:00", "12:00"]),
        (timedelta(hours=12), 7 * DAY, HOUR, ["23 Nov", "24 Nov", "25 Nov", "26 Nov", "27 Nov", "28 Nov", "29 Nov"]),
        (timedelta(), 30 * DAY, timedelta(minutes=10), ["22 Nov", "27 Nov", "2 Dec", "7 Dec", "12 Dec", "17 Dec", "22 Dec"]),
    ],
)  # fmt: skip
def test_axis_times_are_round_and_unique(begin: timedelta, length: timedelta, step: timedelta, texts: list[str]) -> None:
    drawn = line_chart("", [Series("a", [])], begin=BEGIN + begin, end=BEGIN + begin + length, step=step, scale=counts)
    assert [text for _x, text in axis(drawn)] == texts


def test_day_is_labelled_once_below_its_point() -> None:
    """Usage by day in the evening: yesterday and today so far."""
    drawn = chart(every(DAY, 2), length=DAY + 21 * HOUR, step=DAY)
    assert axis(drawn) == [(0.0, "22 Nov"), (round(24 / 45, 2), "23 Nov")]
    assert drawn.lines[0].path.split("L")[1].split()[0] == f"{420 * 24 / 45:.1f}"
    assert drawn.times == "2026-11-22|2026-11-23"
    assert [label for _x, label in axis(chart(every(DAY, 1), length=9 * HOUR, step=DAY))] == ["22 Nov"]


def test_times_use_the_zone_of_the_page_and_days_use_utc() -> None:
    with timezone.override("Asia/Kolkata"):
        drawn = chart(every(STEP, 10))
        assert axis(drawn)[:2] == [(0.0, "05:30"), (0.17, "05:40")]
        assert drawn.times.startswith("05:30|05:36|")
        assert drawn.rows[-1][0] == "05:30"
        assert spark_times(BEGIN, STEP, 2) == "05:30|05:36"
        assert chart(every(DAY, 2), length=2 * DAY, step=DAY).times == "2026-11-22|2026-11-23"
    with timezone.override("America/New_York"):
        summer = datetime(2026, 11, 1, 4, tzinfo=UTC)
        drawn = line_chart("", [Series("a", [])], begin=summer, end=summer + DAY, step=STEP, scale=counts)
        assert axis(drawn) == [
            (0.0, "00:00"),
            (round(7 / 24, 2), "06:00"),
            (round(13 / 24, 2), "12:00"),
            (round(19 / 24, 2), "18:00"),
        ]
    with timezone.override("Europe/Berlin"):
        spring = datetime(2026, 3, 28, 23, tzinfo=UTC)
        drawn = line_chart("", [Series("a", [])], begin=spring, end=spring + 5 * HOUR, step=STEP, scale=counts)
        assert axis(drawn) == [(0.0, "00:00"), (0.2, "01:00"), (0.4, "03:00"), (0.6, "04:00"), (0.8, "05:00"), (1.0, "06:00")]


def test_end_of_the_data_is_marked_and_old_values_are_not_current() -> None:
    step = timedelta(seconds=10)
    drawn = chart(every(step, 120, 59.0), step=step)
    assert drawn.ended == "No samples since 00:19"
    assert drawn.ended_x == f"{420 * 1190 / 3600:.1f}"
    assert drawn.lines[0].last == ""
    assert tuple(line.summary for line in drawn.lines) == ("a: last 59, between 59 and 59, 59 on average.",)

    going_on = chart(every(step, 358, 59.0), step=step)
    assert (going_on.ended, going_on.ended_x, going_on.lines[0].last) == ("", "", "59")
    assert tuple(line.summary for line in going_on.lines) == ("a: now 59, between 59 and 59, 59 on average.",)
    assert chart(every(STEP, 3), source="figures").ended == "No figures since 00:12"
    assert chart(every(HOUR, 3), step=HOUR, length=5 * DAY).ended == "No samples since 22 Nov 02:00"


def test_late_roll_up_does_not_count_as_missing_samples() -> None:
    minute = timedelta(minutes=1)
    newest = HOUR - timedelta(seconds=240)
    assert chart([(BEGIN, 1.0), (BEGIN + newest, 1.0)], step=minute).ended == ""
    assert chart([(BEGIN, 1.0), (BEGIN + newest - minute, 1.0)], step=minute).ended == "No samples since 00:55"


def test_line_without_a_current_value_shows_a_dash() -> None:
    drawn = line_chart(
        "", [Series("a", every(STEP, 10)), Series("b", [(BEGIN, 3.0), *every(STEP, 9, None, BEGIN + STEP)])],
        begin=BEGIN, end=BEGIN + HOUR, step=STEP, scale=times,
    )  # fmt: skip
    assert [line.last for line in drawn.lines] == ["1.0 s", "–"]
    assert drawn.lines[1].summary.startswith("b: last 3.0 s")


def test_cursor_has_values_at_each_time_and_keeps_peaks() -> None:
    points = every(timedelta(seconds=10), 360, 2.0)
    points[100] = (points[100][0], 5_000.0)
    lines = [Series("a", points), Series("b", points[:180])]
    drawn = line_chart("", lines, begin=BEGIN, end=BEGIN + HOUR, step=timedelta(seconds=10), scale=counts)
    xs, at = drawn.xs.split("|"), drawn.times.split("|")
    values, others = (line.values.split("|") for line in drawn.lines)
    assert len(xs) == len(at) == len(values) == len(others) == 180
    place = values.index("5,000")
    assert (xs[place], at[place]) == (f"{420 * 1000 / 3600:.1f}", "00:16:40")
    assert (others[0], others[-1]) == ("2", "–")
    assert len(drawn.rows) == 60
    assert ("00:16:40", ("5,000", "5,000")) in drawn.rows


def test_sparkline_has_a_value_for_each_step() -> None:
    drawn = sparkline(
        Series("Waiting", [(BEGIN, 0.0), (BEGIN + 2 * STEP, 10.0), (BEGIN + 3 * STEP, 5.0)]), BEGIN, STEP, 4, counts([])
    )
    assert drawn.path == "M-3.0 22.0h6M80.0 2.0L120.0 12.0"
    assert drawn.values == "0|–|10|5"
    assert drawn.summary == "Waiting: last 5, between 0 and 10, 5 on average."
    assert sparkline(Series("a", []), BEGIN, STEP, 2, counts([])).path == ""


def test_largest_value_determines_the_unit() -> None:
    assert list(map(times([5.124, 0.003]).text, [5.124, 19.0, 0.003, None])) == ["5.1 s", "19.0 s", "0.003 s", "–"]
    assert times([0.25]).text(0.003) == "3.0 ms"
    assert times([7_000.0]).label(90) == "1.5"
    # next to minutes or hours, a short time would be zero
    assert list(map(times([7_000.0]).text, [90, 0.2, -1_800, None])) == ["1 min 30 s", "0.200 s", "\N{MINUS SIGN}30 min 0 s", "–"]
    assert times([]).text(None) == "–"
    assert [per_second([]).text(each) for each in (0.00001, 3.0)] == ["< 0.001/s", "3.0/s"]
    with translation.override("de"):
        assert times([5.124]).text(0.3) == "0,30 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0, "0 s"),
        (0.0004, "< 0.001 s"),
        (0.25, "0.250 s"),
        (5.124, "5.1 s"),
        (timedelta(seconds=19), "19 s"),
        (59.6, "1 min 0 s"),
        (5_124, "1 h 25 min"),
        (-1.5, "\N{MINUS SIGN}1.5 s"),
        (-90, "\N{MINUS SIGN}1 min 30 s"),
    ],
)
def test_short_durations_are_in_seconds(seconds: float | timedelta | None, text: str) -> None:
    assert precise_duration(seconds) == text
