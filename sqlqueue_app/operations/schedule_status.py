"""How the recurring messages stand: their next ticks, the last that was sent, what is late, failing or disabled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Final

from django.db.models import Q, Subquery
from django.utils import timezone

from sqlqueue_app.conf import Settings
from sqlqueue_app.conf.cron_times import CronTimes
from sqlqueue_app.conf.crontab import cron_times
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import Schedule, ScheduleTick

# What is more than this late is said to be.
LATE_FROM: Final = timedelta(minutes=1)
_NEXT_TICKS: Final = 3
# So many schedules are asked for with one statement.
_AT_ONCE: Final = 50

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule with its next tick and the last one whose message was sent; None where there is none.

    `cron` is None for a schedule that others have, and the settings of this process have not. `is_seen` is whether a worker has
    ever seen it. `late_since` is the first tick whose message should have been sent, and was not. `state` is what
    operators have said of it, and workers.
    """

    name: str
    cron: str | None
    send: str
    next_tick: datetime | None
    last_tick: datetime | None = None
    last_sent_at: datetime | None = None
    last_message_id: str | None = None
    last_endpoint: str | None = None
    next_ticks: tuple[datetime, ...] = ()
    is_seen: bool = False
    late_since: datetime | None = None
    state: Schedule | None = None

    @property
    def key(self) -> Key:
        """By what it is told from others: several projects on one database may have a schedule of the same name."""
        return self.name, self.send

    @property
    def is_enabled(self) -> bool:
        """Whether workers send its message at its ticks."""
        return self.state is None or self.state.enabled

    @property
    def error(self) -> str:
        """Why its message cannot be sent; empty if it can."""
        return self.state.error if self.state is not None and self.state.failed_at is not None else ""


def read_schedules(settings: Settings, now: datetime, *, zone: tzinfo | None = None, others: bool = False) -> list[ScheduleStatus]:
    """The schedules of the settings as they stand at `now`; with `others` also those that the database knows besides.

    Two statements for fifty of them; one more with `others`, which reads all ticks that are kept. Django's errors if there are no
    tables.
    """
    if not settings.schedules and not others:
        return []
    alias, zone = managed_alias(), zone or timezone.get_default_timezone()
    lines: dict[Key, str | None] = {(each.name, each.send): each.cron for each in settings.schedules.values()}
    states = {(row.name, row.message_type): row for row in Schedule.objects.using(alias)}
    if others:
        ticked = ScheduleTick.objects.using(alias).order_by().values_list("schedule", "message_type").distinct()
        for key in sorted({*states, *ticked} - lines.keys()):
            lines[key] = None
    last = dict(_last_ticks(alias, lines))
    return [_status(key, line, last.get(key), states.get(key), now, zone) for key, line in lines.items()]


def _last_ticks(alias: str, keys: Iterable[Key]) -> Iterator[tuple[Key, ScheduleTick]]:
    """The row of the last tick of each schedule: each is found by the index, fifty with one statement."""
    left = list(keys)
    while left:
        chosen, left = left[:_AT_ONCE], left[_AT_ONCE:]
        wanted = Q()
        for name, message_type in chosen:
            of_schedule = ScheduleTick.objects.using(alias).filter(schedule=name, message_type=message_type)
            wanted |= Q(pk=Subquery(of_schedule.order_by("-tick").values("pk")[:1]))
        for row in ScheduleTick.objects.using(alias).filter(wanted):
            yield (row.schedule, row.message_type), row


def _status(
    key: Key, line: str | None, last: ScheduleTick | None, state: Schedule | None, now: datetime, zone: tzinfo
) -> ScheduleStatus:
    times = None if line is None else cron_times(line)
    following = () if times is None else tuple(_following(times, now, zone))
    is_sent = last is not None and bool(last.message_id)
    late = None
    if times is not None and last is not None and last.tick is not None and (state is None or state.enabled):
        changed_at = state.changed_at if state is not None else None
        missed = times.next_after(max(last.tick, changed_at or last.tick), zone)
        late = missed if missed is not None and missed <= now - LATE_FROM else None
    return ScheduleStatus(
        name=key[0],
        cron=line,
        send=key[1],
        next_tick=following[0] if following else None,
        last_tick=last.tick if last is not None and is_sent else None,
        last_sent_at=last.sent_at if last is not None and is_sent else None,
        last_message_id=last.message_id if last is not None and is_sent else None,
        last_endpoint=last.endpoint if last is not None and is_sent else None,
        next_ticks=following,
        is_seen=last is not None,
        late_since=late,
        state=state,
    )


def _following(times: CronTimes, now: datetime, zone: tzinfo) -> Iterator[datetime]:
    moment: datetime | None = now
    for _ in range(_NEXT_TICKS):
        moment = times.next_after(moment, zone) if moment is not None else None
        if moment is not None:
            yield moment
