"""The charts of a queue, from its samples."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.charts import Chart, Points, Series, line_chart, rates
from sqlqueue_app.dashboard.formats import duration, rate, whole
from sqlqueue_app.dashboard.periods import Period
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import QueueSample
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.sample_storage import instant_of, read_samples, resolution_for
from sqlqueue_app.operations.status import Status
from sqlqueue_app.tables.clock import database_now

# Seven samples or so: the first and the last of them a minute apart.
RECENT: Final = timedelta(seconds=75)


def queue_charts(samples: Sequence[QueueSample], period: Period, now: datetime) -> list[Chart]:
    """How much waited, how much came and went, and how old the first message was; the last chart only where there is an age."""
    begin, step = now - period.length, timedelta(seconds=resolution_for(period.length).seconds)

    def series(name: str, points: Points) -> Series:
        return Series(name, points)

    waiting = [(instant_of(each), float(each.waiting)) for each in samples]
    most = [(instant_of(each), float(each.most_waiting)) for each in samples]
    depth = [series(_("messages"), waiting)]
    if any(each.most_waiting != each.waiting for each in samples):
        depth.append(series(_("at most"), most))
    if any(each.expired for each in samples):
        depth.append(series(_("expired"), [(instant_of(each), float(each.expired)) for each in samples]))
    if any(each.overdue for each in samples):
        depth.append(series(_("overdue"), [(instant_of(each), float(each.overdue)) for each in samples]))
    charts = [line_chart(_("Messages"), depth, begin=begin, end=now, step=step, text_of=whole)]
    came, went = in_and_out(samples)
    if came:
        flow = [series(_("in"), came), series(_("out"), went)]
        charts.append(line_chart(_("Messages per second"), flow, begin=begin, end=now, step=step, text_of=rate, least_top=1.0))
    ages = [(instant_of(each), each.head_age_seconds) for each in samples]
    if any(age is not None for _at, age in ages):
        age = [series(_("age of the first"), ages)]
        charts.append(line_chart(_("Age of the first message"), age, begin=begin, end=now, step=step, text_of=_seconds))
    return charts


def in_and_out(samples: Sequence[QueueSample]) -> tuple[Points, Points]:
    """How many messages came and went each second, between the samples; nothing where the database does not count what is written.

    What was written and rolled back counts as both.
    """
    written = [(instant_of(each), None if each.written is None else float(each.written)) for each in samples]
    gone = [
        (instant_of(each), None if each.written is None else float(each.written - each.waiting)) for each in samples if each.exact
    ]
    if all(value is None for _at, value in written):
        return [], []
    return rates(written), rates(gone)


def recent_rates(status: Status) -> dict[str, tuple[float, float]]:
    """How many messages came to each queue and went from it, each second of the last minute; by the queue's name.

    One statement, and one for the clock. Nothing for queues of which there are no samples, or where those cannot be read.
    """
    alias = managed_alias()
    try:
        with looking(alias, "read the samples of the queues"):
            now = database_now(alias)
            samples = read_samples(alias, [each.name for each in status.queues], RECENT, now)
    except ConnectionLost:
        raise
    except DatabaseError:
        return {}
    found = {}
    for name, taken in samples.items():
        known = [each for each in taken if each.written is not None]
        came, went = in_and_out([known[0], known[-1]]) if len(known) > 1 else ([], [])
        if came and went and came[0][1] is not None and went[0][1] is not None:
            found[name] = (came[0][1], went[0][1])
    return found


def _seconds(value: float) -> str:
    return duration(timedelta(seconds=value))
