"""What endpoints did in a time, read from their samples: added up by the database, by endpoint, instance, message type or time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Max, QuerySet, Sum

from sqlqueue_app.models import EndpointSample
from sqlqueue_app.operations.sample_storage import FINEST, RESOLUTIONS, SUMS, Resolution

# The throughput of now is that of the last minute whose samples are all there.
RECENT: Final = timedelta(minutes=1)
# More points than a chart shows are work for nothing: a month is read by the hour.
MOST_POINTS: Final = 1500


@dataclass(frozen=True, slots=True)
class Measured:
    """What was done in `length` seconds. Times in seconds; None where no message has one. Means are weighted by message."""

    length: float
    handled: int = 0
    failures: int = 0
    immediate_retries: int = 0
    delayed_retries: int = 0
    moved_to_error: int = 0
    processing_seconds: float = 0.0
    processing_max: float = 0.0
    critical_measured: int = 0
    critical_seconds: float = 0.0
    critical_max: float | None = None

    @property
    def throughput(self) -> float:
        """Handled messages per second."""
        return self.handled / self.length

    @property
    def retries(self) -> int:
        """Immediate and delayed retries."""
        return self.immediate_retries + self.delayed_retries

    @property
    def processing_mean(self) -> float | None:
        """The mean processing time of a message."""
        return self.processing_seconds / self.handled if self.handled else None

    @property
    def critical_mean(self) -> float | None:
        """The mean critical time of a message; negative where senders' clocks are ahead."""
        return self.critical_seconds / self.critical_measured if self.critical_measured else None


def resolution_of(period: timedelta) -> Resolution:
    """The finest samples that are kept for so long and are no more than a chart shows."""
    fine_enough = (each for each in RESOLUTIONS if each.kept >= period and period / timedelta(seconds=each.seconds) <= MOST_POINTS)
    return next(fine_enough, RESOLUTIONS[-1])


def recent_measures(alias: str, now: datetime) -> dict[str, Measured]:
    """What each endpoint did in the last minute. One statement."""
    end = FINEST.begin_of(now)
    rows = _summed(_samples(alias, None, FINEST, end - RECENT, end).values("endpoint"))
    return {row.pop("endpoint"): Measured(RECENT.total_seconds(), **row) for row in rows}


def measures_by_type_and_instance(
    alias: str, endpoint: str, period: timedelta, now: datetime
) -> tuple[dict[str, Measured], dict[str, Measured]]:
    """What an endpoint did in the period before `now`, by message type and by instance, the busiest first. One statement."""
    samples = _samples(alias, endpoint, resolution_of(period), now - period, now)
    by_type: dict[str, Measured] = {}
    by_instance: dict[str, Measured] = {}
    for row in _summed(samples.values("message_type", "instance")):
        message_type, instance = row.pop("message_type"), row.pop("instance")
        measured = Measured(period.total_seconds(), **row)
        by_type[message_type] = _both(by_type.get(message_type), measured)
        by_instance[instance] = _both(by_instance.get(instance), measured)
    return _busiest_first(by_type), _busiest_first(by_instance)


def _both(first: Measured | None, second: Measured) -> Measured:
    """What two measures of the same time have in common."""
    if first is None:
        return second
    longest = [each for each in (first.critical_max, second.critical_max) if each is not None]
    return Measured(
        first.length,
        **{name: getattr(first, name) + getattr(second, name) for name in SUMS},
        processing_max=max(first.processing_max, second.processing_max),
        critical_max=max(longest, default=None),
    )


def _busiest_first(found: dict[str, Measured]) -> dict[str, Measured]:
    order = sorted(found, key=lambda name: (-found[name].handled, -found[name].failures, name))
    return {name: found[name] for name in order}


def measures_over_time(alias: str, endpoint: str, period: timedelta, now: datetime) -> list[tuple[datetime, Measured]]:
    """What an endpoint did in each time of the period, oldest first, also where that was nothing. One statement.

    The newest times are left out until all their samples are there.
    """
    resolution = resolution_of(period)
    # Processes write at the end of the time at the latest; coarser samples are made up to a minute later.
    late = timedelta(seconds=0 if resolution is FINEST else 60 + FINEST.seconds)
    end = resolution.begin_of(now - late)
    begin = resolution.begin_of(now - period) + timedelta(seconds=resolution.seconds)
    rows = _summed(_samples(alias, endpoint, resolution, begin, end).values("taken_at"))
    found = {row.pop("taken_at"): Measured(resolution.seconds, **row) for row in rows}
    nothing = Measured(resolution.seconds)
    times = int((end - begin).total_seconds()) // resolution.seconds
    every = [begin + timedelta(seconds=resolution.seconds * number) for number in range(times)]
    return [(at, found.get(at, nothing)) for at in every]


def _samples(alias: str, endpoint: str | None, resolution: Resolution, begin: datetime, end: datetime) -> QuerySet[EndpointSample]:
    found = EndpointSample.objects.using(alias).filter(seconds=resolution.seconds, taken_at__gte=begin, taken_at__lt=end)
    return found if endpoint is None else found.filter(endpoint=endpoint)


def _summed(grouped: Any) -> Any:
    sums: dict[str, Any] = {name: Sum(name) for name in SUMS}
    return grouped.annotate(**sums, processing_max=Max("processing_max"), critical_max=Max("critical_max")).order_by()
