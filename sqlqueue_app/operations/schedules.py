"""Recurring messages: the setting SCHEDULES, sent by workers, once for each tick however many of them run.

A tick is claimed by a row of its own, in one transaction with the message: the unique constraint lets one process through. Where
the managed tables are in another database than the queues, the message commits first, so that a process killed in between leaves
a tick that is sent again, never one that is not sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import partial

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from sqlqueue_app.conf import EndpointSettings, ScheduleSettings, Settings
from sqlqueue_app.conf.crontab import cron_times
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.models import ScheduleTick
from sqlqueue_app.receiving.handlers import handlers_of
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.sending.routing import Routes
from sqlqueue_app.sending.sender import Sender
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.background")

# A message is sent so long after its tick at most, while a worker runs.
LOOK_SECONDS = 5.0
# A tick at which no worker ran is made up for by one that starts within a day, as Celery's beat does without a limit; of several
# ticks only the last is, as with APScheduler's `coalesce`.
LATE_AT_MOST = timedelta(days=1)
# What is more than this late is said to be.
LATE_FROM = timedelta(minutes=1)
KEPT = timedelta(days=30)
_DELETED_AT_ONCE = 1000


class Schedules:
    """Sends the messages that are due, as one endpoint. One object serves one thread at a time; others may compete with it.

    A message goes where the routes say, without a route to the endpoint that `handled_by` names for its type: of those that the
    process runs. `now` is the clock of the managed tables' database unless another is handed in; `zone` is Django's TIME_ZONE.
    """

    def __init__(
        self,
        settings: Settings,
        endpoint: str,
        *,
        handled_by: Mapping[str, str] | None = None,
        now: Callable[[], datetime] | None = None,
        zone: tzinfo | None = None,
    ) -> None:
        self._routes = Routes(settings.routes)
        self._handled_by = handled_by or {}
        self._alias = managed_alias()
        self._sender = Sender(endpoint)
        self._endpoint = endpoint
        self._now = now or partial(database_now, self._alias)
        zone = zone or timezone.get_default_timezone()
        self._entries = [_Entry(each, zone) for each in settings.schedules.values()]

    def job(self) -> BackgroundJob:
        """`send_due` as a background job."""
        return BackgroundJob("recurring messages", LOOK_SECONDS, self._run)

    def send_due(self) -> int:
        """Send what has become due since the last look, each schedule for itself, and return how many messages were sent.

        What fails is logged, once for each tick, and tried again at the next look. TransientError where the database is away, or
        (SQLite) written to by somebody who takes long: call it again later, nothing is lost.
        """
        now = self._now()
        return sum(self._look(entry, now) for entry in self._entries)

    def _run(self) -> None:
        try:
            self.send_due()
        except TransientError:
            # The receivers have said so.
            return

    def _look(self, entry: _Entry, now: datetime) -> bool:
        schedule = entry.schedule
        try:
            with database_errors(
                dialect_of_connection(connection_of(self._alias)), f"send the message of schedule {schedule.name!r}"
            ):
                if entry.done is None:
                    entry.done = self._first_look(schedule, now)
                tick = entry.due(now)
                if tick is None:
                    return False
                sent = self._send(schedule, tick, now)
            entry.done = tick
        except TransientError:
            raise
        except Exception as error:
            if entry.fails_anew(now):
                logger.exception("schedule %s cannot send: %s", schedule.name, error, extra={"event": "schedule_failed"})
            return False
        return sent

    def _first_look(self, schedule: ScheduleSettings, now: datetime) -> datetime:
        """Up to when the schedule is done; a schedule that nobody has seen before is done up to now."""
        ticks = self._ticks(schedule)
        last = ticks.order_by("-tick").first()
        if last is None:
            with transaction.atomic(using=self._alias):
                last, _ = ticks.get_or_create(
                    schedule=schedule.name, message_type=schedule.send, tick=now.replace(second=0, microsecond=0),
                    defaults={"sent_at": now},
                )  # fmt: skip
        seen: datetime = last.tick  # type: ignore[assignment]  # never NULL
        return seen

    def _send(self, schedule: ScheduleSettings, tick: datetime, now: datetime) -> bool:
        """Claim the tick and send its message, both or none; False if another process has."""
        if self._ticks(schedule).filter(tick=tick).exists():
            return False
        message = self._sender.composer.compose(
            schedule.send,
            dict(schedule.body),
            to=self._address_of(schedule.send),
            headers={names.SCHEDULE: schedule.name, names.SCHEDULED_FOR: format_time(tick)},
        )
        try:
            with transaction.atomic(using=self._alias):
                ScheduleTick.objects.using(self._alias).create(
                    schedule=schedule.name,
                    message_type=schedule.send,
                    tick=tick,
                    sent_at=now,
                    message_id=message.message_id or "",
                    endpoint=self._endpoint,
                )
                with transaction.atomic(using=self._sender.alias):
                    self._sender.write([message])
        except IntegrityError:
            return False
        self._say_sent(schedule, tick, now)
        self._forget_old(schedule, now)
        return True

    def _address_of(self, message_type: str) -> str | None:
        """Where a type goes that has no route; None where the routes say it, or say what is missing."""
        if self._routes.find(message_type) is not None or (endpoint := self._handled_by.get(message_type)) is None:
            return None
        book = self._sender.dispatcher.book
        return book.canonical(book.of_queue(endpoint))

    def _forget_old(self, schedule: ScheduleSettings, now: datetime) -> None:
        old = self._ticks(schedule).filter(tick__lt=now - KEPT).values_list("pk", flat=True)
        if chosen := list(old[:_DELETED_AT_ONCE]):
            ScheduleTick.objects.using(self._alias).filter(pk__in=chosen).delete()

    def _ticks(self, schedule: ScheduleSettings) -> QuerySet[ScheduleTick]:
        return ScheduleTick.objects.using(self._alias).filter(schedule=schedule.name, message_type=schedule.send)

    def _say_sent(self, schedule: ScheduleSettings, tick: datetime, now: datetime) -> None:
        late = f", {now - tick} late" if now - tick > LATE_FROM else ""
        logger.info(
            "%s sent by schedule %s for %s%s",
            schedule.send,
            schedule.name,
            tick.isoformat(),
            late,
            extra={"event": "schedule_sent"},
        )


class _Entry:
    """A schedule with what this process knows of it: up to when it is done, None before the first look."""

    def __init__(self, schedule: ScheduleSettings, zone: tzinfo) -> None:
        self.schedule = schedule
        self.done: datetime | None = None
        self._failed_at: tuple[datetime | None] | None = None
        self._times = cron_times(schedule.cron)
        self._zone = zone

    def fails_anew(self, now: datetime) -> bool:
        """Whether this failure is the first one of its tick."""
        before, self._failed_at = self._failed_at, (self.due(now),)
        return before != self._failed_at

    def due(self, now: datetime) -> datetime | None:
        """The last tick that is not done; earlier ones are left out."""
        after = now - LATE_AT_MOST
        return self._times.latest(after if self.done is None else max(after, self.done), now, self._zone)


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule with its next tick and the last one whose message was sent; None where there is none."""

    name: str
    cron: str
    send: str
    next_tick: datetime | None
    last_tick: datetime | None = None
    last_sent_at: datetime | None = None
    last_message_id: str | None = None
    last_endpoint: str | None = None


def read_schedules(settings: Settings, now: datetime, *, zone: tzinfo | None = None) -> list[ScheduleStatus]:
    """The schedules of the settings as they stand at `now`. One statement for each; Django's errors if there are no tables."""
    alias, zone = managed_alias(), zone or timezone.get_default_timezone()
    found = []
    for schedule in settings.schedules.values():
        sent = ScheduleTick.objects.using(alias).filter(~Q(message_id=""), schedule=schedule.name, message_type=schedule.send)
        last = sent.order_by("-tick").first()
        following = cron_times(schedule.cron).next_after(now, zone)
        told = () if last is None else (last.tick, last.sent_at, last.message_id, last.endpoint)
        found.append(ScheduleStatus(schedule.name, schedule.cron, schedule.send, following, *told))
    return found


def schedules_without_route(settings: Settings) -> list[ScheduleSettings]:
    """The schedules whose message type ROUTES sends nowhere and no endpoint handles; imports handlers, reaches no database."""
    routes = Routes(settings.routes)
    unrouted = [schedule for schedule in settings.schedules.values() if routes.find(schedule.send) is None]
    if not unrouted:
        return []
    handled = {name for endpoint in settings.endpoints.values() for name in _handled_types(endpoint)}
    return [schedule for schedule in unrouted if schedule.send not in handled]


def _handled_types(endpoint: EndpointSettings) -> list[str]:
    try:
        return [handler.message_type for handler in handlers_of(endpoint.handlers)]
    except Exception:  # noqa: BLE001 - a module of the project may raise anything; who runs the endpoint is told of it
        return []
