"""Workers that run checks at times set by the test, and the events that they record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import CheckResult, Event, Instance, QueueSample
from sqlqueue_app.monitoring.check_results import CheckRunner, ProcessChecks
from sqlqueue_app.monitoring.checks import describe_finding
from sqlqueue_app.status.in_doubt import InDoubt
from tests.support.databases import QueueDatabase

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
SCHEDULES = {"hourly": {"CRON": "0 * * * *", "SEND": "Shop.Count"}}


class Bench:
    """Workers that run checks at times set by the test."""

    def __init__(self, database: QueueDatabase) -> None:
        self.database = database
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.ahead = timedelta()
        self.first = self.worker()

    def worker(self, **own: Any) -> CheckRunner:
        known = ProcessChecks(**{"alias": self.database.alias, "host": "mill", **own})
        in_doubt = InDoubt(self.database.alias)
        return CheckRunner(get_settings(), known, in_doubt, now=lambda: self.now, local=lambda: self.now + self.ahead)

    def pass_time(self, time: timedelta = 5 * MINUTE) -> None:
        """Advance the time so that all checks are due; live processes have sent heartbeats."""
        self.now += time
        # A new runner, because the old one would treat the long pause as an outage.
        self.first = self.worker()
        for each in Instance.objects.filter(heartbeat_at__gte=self.now - time - 40 * SECOND):
            Instance.objects.filter(pk=each.pk).update(heartbeat_at=datetime.now(UTC))

    def samples(self, queue: str, minutes: int = 1, seconds: int = 10, **fields: Any) -> None:
        """Store samples with these values for the given minutes."""
        QueueSample.objects.filter(queue=queue).delete()
        for number in range(minutes * 60 // seconds):
            at = self.now - timedelta(seconds=number * seconds)
            known = {"queue": queue, "seconds": seconds, "taken_at": at, "waiting": 0, "most_waiting": 0}
            QueueSample.objects.create(**{**known, **fields})

    def failing(self, name: str) -> dict[str, str]:
        """The findings of a check by subject. The check must have run."""
        rows = CheckResult.objects.filter(name=f"sqlqueue.{name}")
        assert rows.exists(), "a check that raises is only logged"
        return {each.subject: describe_finding(each.name, each.subject, each.details) for each in rows if each.failing}


def recorded_events() -> list[tuple[str, str]]:
    return [(each.kind, each.subject) for each in Event.objects.order_by("id")]
