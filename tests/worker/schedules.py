"""Recurring messages of a bench, and a clock for them."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connections

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import ScheduleTick
from sqlqueue_app.status.schedules import Schedules
from tests.support.bench import Bench
from tests.support.waiting import run_in_threads

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HOURLY = {"CRON": "0 * * * *", "SEND": "Test.Hourly", "BODY": {"n": 1}}
ROUTES = {"Test.*": "Sales"}


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


def configure(bench: Bench, **entries: Any) -> None:
    bench.configure(routes=ROUTES)
    bench.database.configure(SCHEDULES=entries or {"hourly": HOURLY})


def schedules_of(clock: Clock, **more: Any) -> Schedules:
    """A worker that has just started and has checked its schedules once."""
    made = Schedules(get_settings(), "Sales", now=clock, **more)
    made.send_due()
    return made


def sent_by_competitors(clock: Clock, *, workers: int, rounds: int) -> list[int]:
    """Let workers check their schedules at the same moment, once an hour; returns how many messages each check has sent."""
    sent: list[int] = []
    # The last thread advances the clock; then all check at once.
    together = threading.Barrier(workers, action=lambda: setattr(clock, "now", clock.now + HOUR))

    def work() -> None:
        mine = Schedules(get_settings(), "Sales", now=clock)
        try:
            for _ in range(rounds):
                together.wait(60)
                sent.append(mine.send_due())
        finally:
            connections.close_all()

    run_in_threads(work, workers)
    return sent


def scheduled_for(bench: Bench) -> list[str]:
    return [each["SqlQueue.ScheduledFor"][:16] for each in bench.headers("Sales")]


def ticks(bench: Bench) -> list[datetime | None]:
    rows = ScheduleTick.objects.using(bench.database.alias).exclude(message_id="").filter(manual_run="").order_by("tick")
    return [row.tick for row in rows]
