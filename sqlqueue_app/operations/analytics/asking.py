"""Which figures are asked for, how much there is of them, and of when they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db.models import Max, Q

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import LakeBatch, MessageFigures
from sqlqueue_app.operations.looking import looking

MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class FiguresAsked:
    """Figures in steps of `seconds` (60, 3600 or 86400) from `begin` to `end`, of an endpoint and a message type or of all."""

    begin: datetime
    end: datetime
    seconds: int
    endpoint: str = ""
    message_type: str = ""

    @classmethod
    def until(cls, end: datetime, length: timedelta, seconds: int, endpoint: str = "", message_type: str = "") -> FiguresAsked:
        """The steps that have begun in so long a time until now."""
        first = -(-(end - length).timestamp() // seconds) * seconds
        return cls(datetime.fromtimestamp(first, UTC), end.astimezone(UTC), seconds, endpoint, message_type)

    def in_steps_of(self, seconds: int) -> FiguresAsked:
        """The same in longer steps."""
        first = self.begin.timestamp() // seconds * seconds
        return replace(self, begin=datetime.fromtimestamp(first, UTC), seconds=seconds)

    @property
    def step(self) -> timedelta:
        """The length of a step."""
        return timedelta(seconds=self.seconds)

    @property
    def in_time(self) -> Q:
        """The rows of these steps."""
        return Q(seconds=self.seconds, at__gte=self.begin, at__lt=self.end)

    @property
    def in_days(self) -> Q:
        """The rows of the days that these times touch."""
        return Q(day__gte=self.begin.date(), day__lte=self.end.date())

    @property
    def of_messages(self) -> Q:
        """The rows of the endpoint and the type."""
        found = Q(endpoint=self.endpoint) if self.endpoint else Q()
        return found & Q(message_type=self.message_type) if self.message_type else found


@dataclass(frozen=True, slots=True)
class Freshness:
    """When the pipeline last committed a batch; None: never, so there are no figures. `problem`: the tables cannot be read."""

    committed_at: datetime | None
    problem: str = ""


def freshness() -> Freshness:
    """One statement. Raises ConnectionLost."""
    alias = managed_alias()
    try:
        with looking(alias, "read the batches of the lake"):
            return Freshness(LakeBatch.objects.using(alias).aggregate(last=Max("committed_at"))["last"])
    except ConnectionLost:
        raise
    except DatabaseError as error:
        return Freshness(None, str(error))  # the tables of `migrate` are missing


def known_endpoints(most: int = 200) -> list[str]:
    """Endpoints that there are figures of, in their order; one statement."""
    rows = MessageFigures.objects.using(managed_alias()).filter(seconds=DAY).exclude(endpoint="")
    return list(rows.values_list("endpoint", flat=True).distinct().order_by("endpoint")[:most])
