"""Lines of charts: what is drawn of few values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlqueue_app.dashboard.charts import Points, Series, line_chart

BEGIN = datetime(2026, 11, 22, tzinfo=UTC)
STEP = timedelta(minutes=6)


def path(points: Points) -> str:
    (line,) = line_chart("Title", [Series("a", points)], begin=BEGIN, end=BEGIN + timedelta(hours=1), step=STEP, text_of=str).lines
    return line.path


def test_values_that_follow_each_other_are_joined() -> None:
    assert path([(BEGIN, 0.0), (BEGIN + STEP, 10.0), (BEGIN + 2 * STEP, 5.0)]) == "M0.0 110.0L42.0 0.0L84.0 55.0"


def test_a_value_alone_can_be_seen() -> None:
    assert path([(BEGIN + STEP, 10.0)]) == "M39.0 55.0h6"
    assert path([(BEGIN, 0.0), (BEGIN + STEP, None), (BEGIN + 2 * STEP, 5.0)]) == "M-3.0 110.0h6M81.0 55.0h6"
    assert path([(BEGIN, 0.0), (BEGIN + 5 * STEP, 5.0)]) == "M-3.0 110.0h6M207.0 55.0h6"
    assert path([(BEGIN, None)]) == ""
