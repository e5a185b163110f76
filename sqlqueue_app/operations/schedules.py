"""Recurring messages: the setting SCHEDULES, sent by workers, once for each tick however many of them run.

A tick is claimed by a row of its own, in one transaction with the message: the unique constraint lets one process through. Where
the managed tables are in another database than the queues, the message commits first, so that a process killed in between leaves
a tick that is sent again, never one that is not sent. A run that an operator asks for is taken by an UPDATE in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from sqlqueue_app.conf import EndpointSettings, ScheduleSettings, Settings
from sqlqueue_app.conf.crontab import cron_times
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.models import Schedule, ScheduleTick
from sqlqueue_app.operations.schedule_state import clear_failure, is_skipped, note_failure, requested_runs, take_run
from sqlqueue_app.operations.schedule_status import LATE_FROM
from sqlqueue_app.receiving.handlers import handlers_of
from sqlqueue_app.scheduler import BackgroundJob
from sqlqueue_app.sending.routing import Routes
from sqlqueue_app.sending.sender import Sender
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.connections import connection_of, database_errors, dialect_of_connection

logger = logging.getLogger("sqlqueue.background")

# A message is sent so long after its tick at most, while a worker runs.
LOOK_SECONDS = 5.0
# Whoever asks for a run waits longer than a tick does: a worker at rest looks for it with every second look.
_LOOKS_FOR_A_REQUEST = 2
# A tick at which no worker ran is made up for by one that starts within a day, as Celery's beat does without a limit; of several
# ticks only the last is, as with APScheduler's `coalesce`.
LATE_AT_MOST = timedelta(days=1)
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
        self._looks = 0

    def job(self) -> BackgroundJob:
        """`send_due` as a background job."""
        return BackgroundJob("recurring messages", LOOK_SECONDS, self._run)

    def send_due(self, *, requests: bool = True) -> int:
        """Send what has become due since the last look, each schedule for itself, and return how many messages were sent.

        With `requests` also what somebody has asked to be run now, whether it is enabled or not. What fails is logged, once for
        each tick and run, and tried again at the next look. TransientError where the database is away, or
        (SQLite) written to by somebody who takes long: call it again later, nothing is lost.
        """
        now = self._now()
        asked = self._requested() if requests else {}
        return sum(self._look(entry, now) + self._run_asked(entry, asked, now) for entry in self._entries)

    def _run(self) -> None:
        self._looks += 1
        try:
            self.send_due(requests=self._looks % _LOOKS_FOR_A_REQUEST == 1)
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
                # Disabled by an operator, or it was when the tick came.
                sent = not is_skipped(self._alias, schedule, tick) and self._send(schedule, tick, now)
            entry.done = tick
        except TransientError:
            raise
        except Exception as error:  # noqa: BLE001 - one that cannot be sent keeps no other from it
            self._say_failed(entry, entry.due(now), error, now)
            return False
        return sent

    def _requested(self) -> dict[tuple[str, str], Schedule]:
        with database_errors(dialect_of_connection(connection_of(self._alias)), "look for runs that were asked for"):
            return requested_runs(self._alias)

    def _run_asked(self, entry: _Entry, asked: Mapping[tuple[str, str], Schedule], now: datetime) -> bool:
        """Send the message of a schedule that somebody asks to be run now; False if nobody does, or another process has."""
        schedule = entry.schedule
        request = asked.get((schedule.name, schedule.send))
        if request is None or request.run_requested_at is None:
            return False
        try:
            with database_errors(dialect_of_connection(connection_of(self._alias)), f"run schedule {schedule.name!r}"):
                message = self._compose(schedule, request.run_requested_at, by_hand=True)
                with transaction.atomic(using=self._alias):
                    if not take_run(self._alias, request, now, message_id=message.message_id or "", endpoint=self._endpoint):
                        return False
                    with transaction.atomic(using=self._sender.alias):
                        self._sender.write([message])
        except TransientError:
            raise
        except Exception as error:  # noqa: BLE001 - one that cannot be sent keeps no other from it
            self._say_failed(entry, request.run_requested_at, error, now)
            return False
        text = "%s sent by schedule %s, run by hand"
        logger.info(text, schedule.send, schedule.name, extra={"event": "schedule_sent"})
        return True

    def _say_failed(self, entry: _Entry, at: datetime | None, error: Exception, now: datetime) -> None:
        """Log a failure, and leave it for the pages of operators, once for each tick and each run."""
        if entry.fails_anew(at):
            name = entry.schedule.name
            logger.error("schedule %s cannot send: %s", name, error, exc_info=error, extra={"event": "schedule_failed"})
            note_failure(self._alias, entry.schedule, error, now)

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
        message = self._compose(schedule, tick)
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
                clear_failure(self._alias, schedule)
                with transaction.atomic(using=self._sender.alias):
                    self._sender.write([message])
        except IntegrityError:
            return False
        self._say_sent(schedule, tick, now)
        self._forget_old(schedule, now)
        return True

    def _compose(self, schedule: ScheduleSettings, tick: datetime, *, by_hand: bool = False) -> OutgoingMessage:
        told = {names.SCHEDULE: schedule.name, names.SCHEDULED_FOR: format_time(tick)}
        return self._sender.composer.compose(
            schedule.send,
            dict(schedule.body),
            to=self._address_of(schedule.send),
            headers={**told, names.RUN_BY_HAND: "True"} if by_hand else told,
        )

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
        self._failed_at: list[datetime | None] = []
        self._times = cron_times(schedule.cron)
        self._zone = zone
        # A time in which there is no tick that is not done.
        self._without = (datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC))

    def fails_anew(self, at: datetime | None) -> bool:
        """Whether this failure is the first one of its tick or run; of one that could not even look at its ticks, of all."""
        if at in self._failed_at:
            return False
        # A tick and a run may fail in turns.
        self._failed_at = [*self._failed_at[-1:], at]
        return True

    def due(self, now: datetime) -> datetime | None:
        """The last tick that is not done; earlier ones are left out."""
        after = now - LATE_AT_MOST if self.done is None else max(now - LATE_AT_MOST, self.done)
        begin, end = self._without
        # A day has 1,440 minutes: those that were looked at, and had no tick, are stepped over.
        found = self._times.latest(end if begin <= after <= end <= now else after, now, self._zone)
        if found is None:
            self._without = (after, now)
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
