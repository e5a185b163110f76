"""Recurring messages: the setting SCHEDULES, sent by workers once per tick, the changes of operators, and the current state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Final

from django.db import Error as DjangoError, IntegrityError, transaction
from django.db.models import Q, QuerySet, Subquery
from django.utils import timezone

from sqlqueue_app.conf import EndpointSettings, ScheduleSettings, Settings
from sqlqueue_app.conf.crontab import CronTimes, cron_times
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, TransientError
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.models import Schedule, ScheduleTick
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.handlers import Handler, handlers_of
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.sending.composer import Routes, SendOptions
from sqlqueue_app.sending.sender import Sender
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.queues import MIGRATE_COMMAND, ProblemKind, QueueProblem, utc_now
from sqlqueue_app.tables.connections import connection_of, database_errors, database_now, dialect_of_connection, guarded_read

logger = logging.getLogger("sqlqueue.background")

# The maximum delay of a message after its tick, while a worker runs.
EVERY_SECONDS = 5.0
# A requested run may wait longer than a tick: an idle worker checks for requests at every second run.
_RUNS_PER_REQUEST = 2
# A worker that starts within a day makes up for a missed tick, as Celery's beat does without a limit; of several ticks only
# for the last, like APScheduler's `coalesce`.
MAX_DELAY = timedelta(days=1)
KEPT = timedelta(days=30)
_DELETED_AT_ONCE = 1000


class Schedules:
    """Sends due messages as one endpoint. One object serves one thread at a time; others may compete with it.

    A tick is claimed by its own row, in one transaction with the message. If the managed tables are in another database,
    the message commits first: if the process is killed in between, the tick is sent twice rather than never.

    A message goes where the routes send it; without a route, to the endpoint that `handled_by` names for its type: of those that
    the process runs. `now` is the clock of the managed tables' database unless given; `zone` is Django's TIME_ZONE.
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
        self._runs = 0

    def job(self) -> BackgroundJob:
        return BackgroundJob("recurring messages", EVERY_SECONDS, self._run)

    def send_due(self, *, requests: bool = True) -> int:
        """Send the messages that have become due since the last call, each schedule separately. Returns the number sent.

        With `requests`, also send the runs that operators requested, even of disabled schedules. Failures are logged, once for
        each tick and run, and retried at the next call. TransientError if the database is unavailable, or (SQLite) locked by
        a long write: call it again later, nothing is lost.
        """
        now = self._now()
        requested: dict[tuple[str, str], Schedule] = {}
        if requests:
            with database_errors(dialect_of_connection(connection_of(self._alias)), "look for requested runs"):
                rows = Schedule.objects.using(self._alias).filter(run_requested_at__isnull=False)
                requested = {(row.name, row.message_type): row for row in rows}
        return sum(self._send_if_due(entry, now) + self._run_requested(entry, requested, now) for entry in self._entries)

    def _run(self) -> None:
        self._runs += 1
        # The receivers log it.
        with suppress(TransientError):
            self.send_due(requests=self._runs % _RUNS_PER_REQUEST == 1)

    def _send_if_due(self, entry: _Entry, now: datetime) -> bool:
        schedule = entry.schedule
        try:
            with database_errors(
                dialect_of_connection(connection_of(self._alias)), f"send the message of schedule {schedule.name!r}"
            ):
                if entry.done is None:
                    entry.done = self._find_done(schedule, now)
                tick = entry.due(now)
                if tick is None:
                    return False
                # Disabled by an operator, now or at the time of the tick.
                sent = not is_skipped(self._alias, schedule, tick) and self._send(schedule, tick, now)
            entry.done = tick
        except TransientError:
            raise
        except Exception as error:  # noqa: BLE001 - one failing schedule must not stop the others
            self._report_failure(entry, entry.due(now), error, now)
            return False
        return sent

    def _run_requested(self, entry: _Entry, requested: Mapping[tuple[str, str], Schedule], now: datetime) -> bool:
        """Send the message of a schedule whose run is requested; False if there is no request, or another process has sent it."""
        schedule = entry.schedule
        request = requested.get((schedule.name, schedule.send))
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
        except Exception as error:  # noqa: BLE001 - one failing schedule must not stop the others
            self._report_failure(entry, request.run_requested_at, error, now)
            return False
        text = "%s sent by schedule %s, run by hand"
        logger.info(text, schedule.send, schedule.name, extra={"event": "schedule_sent"})
        return True

    def _report_failure(self, entry: _Entry, at: datetime | None, error: Exception, now: datetime) -> None:
        """Log a failure, and store it for the pages of operators, once for each tick and each run."""
        if entry.is_new_failure(at):
            name = entry.schedule.name
            logger.error("schedule %s cannot send: %s", name, error, exc_info=error, extra={"event": "schedule_failed"})
            note_failure(self._alias, entry.schedule, error, now)

    def _find_done(self, schedule: ScheduleSettings, now: datetime) -> datetime:
        """The time up to which the schedule is done; a schedule that no worker has seen before is done up to now."""
        ticks = self._ticks(schedule)
        last = ticks.order_by("-tick").first()
        if last is None:
            with transaction.atomic(using=self._alias):
                last, _ = ticks.get_or_create(
                    schedule=schedule.name, message_type=schedule.send, tick=now.replace(second=0, microsecond=0),
                    defaults={"sent_at": now},
                )  # fmt: skip
        return last.tick

    def _send(self, schedule: ScheduleSettings, tick: datetime, now: datetime) -> bool:
        """Claim the tick and send its message, both or none; False if another process has claimed it."""
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
                _rows(self._alias, schedule.name, schedule.send).filter(failed_at__isnull=False).update(failed_at=None, error="")
                with transaction.atomic(using=self._sender.alias):
                    self._sender.write([message])
        except IntegrityError:
            return False
        self._log_sent(schedule, tick, now)
        self._forget_old(schedule, now)
        return True

    def _compose(self, schedule: ScheduleSettings, tick: datetime, *, by_hand: bool = False) -> OutgoingMessage:
        values = {names.SCHEDULE: schedule.name, names.SCHEDULED_FOR: format_time(tick)}
        options = SendOptions(
            to=self._address_of(schedule.send), headers={**values, names.RUN_BY_HAND: "True"} if by_hand else values
        )
        return self._sender.composer.compose(schedule.send, dict(schedule.body), options)

    def _address_of(self, message_type: str) -> str | None:
        """The destination of a type without a route; None if the routes provide it, or report what is missing."""
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

    def _log_sent(self, schedule: ScheduleSettings, tick: datetime, now: datetime) -> None:
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
    """A schedule with this process's knowledge of it: the time up to which it is done, None before the first read."""

    def __init__(self, schedule: ScheduleSettings, zone: tzinfo) -> None:
        self.schedule = schedule
        self.done: datetime | None = None
        self._failed_at: list[datetime | None] = []
        self._times = cron_times(schedule.cron)
        self._zone = zone
        # An interval without unfinished ticks.
        self._without = (datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC))

    def is_new_failure(self, at: datetime | None) -> bool:
        """Whether this is the first failure of its tick or run; if even the ticks cannot be read, the first of all."""
        if at in self._failed_at:
            return False
        # A tick and a run may fail alternately.
        self._failed_at = [*self._failed_at[-1:], at]
        return True

    def due(self, now: datetime) -> datetime | None:
        """The last unfinished tick; earlier ones are left out."""
        after = now - MAX_DELAY if self.done is None else max(now - MAX_DELAY, self.done)
        begin, end = self._without
        # A day has 1,440 minutes: skip those already known to have no tick.
        found = self._times.latest(end if begin <= after <= end <= now else after, now, self._zone)
        if found is None:
            self._without = (after, now)
        return found


def schedules_without_route(settings: Settings) -> list[ScheduleSettings]:
    """The schedules whose message type has no route and no handling endpoint; imports handlers, does not connect."""
    routes = Routes(settings.routes)
    unrouted = [schedule for schedule in settings.schedules.values() if routes.find(schedule.send) is None]
    if not unrouted:
        return []
    handled = {handler.message_type for endpoint in settings.endpoints.values() for handler in handlers_or_none(endpoint)}
    return [schedule for schedule in unrouted if schedule.send not in handled]


def handlers_or_none(endpoint: EndpointSettings) -> list[Handler]:
    """The handlers of an endpoint, whose modules are imported; none if that raises."""
    try:
        return handlers_of(endpoint.handlers)
    except Exception:  # noqa: BLE001 - user modules may raise anything; the endpoint's worker reports it
        return []


_MAX_ERROR_LENGTH: Final = 2_000


def request_run(name: str, message_type: str) -> bool:
    """Request one run of the schedule by a worker, within 10 seconds; False if already requested. Raises Django's errors."""
    alias = managed_alias()
    now = database_now(alias)
    with transaction.atomic(using=alias):
        row = _row(alias, name, message_type)
        return _rows(alias, name, message_type).filter(pk=row.pk, run_requested_at=None).update(run_requested_at=now) == 1


def cancel_run(name: str, message_type: str) -> bool:
    """Cancel the request for a run; False if a worker has followed it, or there is none."""
    requested = _rows(managed_alias(), name, message_type).filter(run_requested_at__isnull=False)
    return requested.update(run_requested_at=None) == 1


def set_enabled(name: str, message_type: str, *, enabled: bool, actor: Actor) -> bool:
    """Enable or disable a schedule; False if nothing changes. Ticks before the schedule was enabled are not made up for."""
    alias = managed_alias()
    now = database_now(alias)
    with transaction.atomic(using=alias):
        row = _row(alias, name, message_type)
        other = _rows(alias, name, message_type).filter(pk=row.pk, enabled=not enabled)
        return other.update(enabled=enabled, changed_by=actor.name[:255], changed_at=now) == 1


def _rows(alias: str, name: str, message_type: str) -> QuerySet[Schedule]:
    return Schedule.objects.using(alias).filter(name=name, message_type=message_type)


def _row(alias: str, name: str, message_type: str) -> Schedule:
    return Schedule.objects.using(alias).get_or_create(name=name, message_type=message_type)[0]


def is_skipped(alias: str, schedule: ScheduleSettings, tick: datetime) -> bool:
    """Whether a tick is skipped: the schedule is disabled, or it was until after the tick. One statement."""
    state = _rows(alias, schedule.name, schedule.send).values_list("enabled", "changed_at").first()
    if state is None:
        return False
    enabled, changed_at = state
    return not enabled or (changed_at is not None and tick <= changed_at)


def take_run(alias: str, request: Schedule, now: datetime, *, message_id: str, endpoint: str) -> bool:
    """Take a request for a run, in the transaction that sends its message; False if another process has taken it."""
    requested = Schedule.objects.using(alias).filter(pk=request.pk, run_requested_at=request.run_requested_at)
    values = {"ran_at": now, "ran_message_id": message_id, "ran_endpoint": endpoint, "failed_at": None, "error": ""}
    return requested.update(run_requested_at=None, **values) == 1


def note_failure(alias: str, schedule: ScheduleSettings, error: Exception, now: datetime) -> None:
    """Store for operators why a message could not be sent. Never raises database errors, since the log has all the facts."""
    values = {"failed_at": now, "error": f"{type(error).__name__}: {error}".replace("\0", "")[:_MAX_ERROR_LENGTH]}
    rows = _rows(alias, schedule.name, schedule.send)
    try:
        with transaction.atomic(using=alias):
            if not rows.update(**values):
                rows.create(name=schedule.name, message_type=schedule.send, **values)
    except IntegrityError:
        pass  # another process inserted it first
    except DjangoError:
        return


# Ticks that are later than this are shown as late.
LATE_FROM: Final = timedelta(minutes=1)
_NEXT_TICKS: Final = 3
# The number of schedules read by one statement.
_BATCH: Final = 50

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule with its next tick and the last one whose message was sent; None if there is none.

    `cron` is None for a schedule of others that the settings of this process do not have. `is_seen` is whether a worker has
    ever seen it. `late_since` is the first tick whose message should have been sent, and was not. `state` holds the changes
    of operators and the reports of workers.
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
        """Its identity: several projects on one database may have a schedule of the same name."""
        return self.name, self.send

    @property
    def is_enabled(self) -> bool:
        """Whether workers send its message at its ticks."""
        return self.state is None or self.state.enabled

    @property
    def error(self) -> str:
        """The reason why its message cannot be sent; empty if it can."""
        return self.state.error if self.state is not None and self.state.failed_at is not None else ""


def read_schedules(settings: Settings, now: datetime, *, zone: tzinfo | None = None, others: bool = False) -> list[ScheduleStatus]:
    """The schedules of the settings as of `now`; with `others`, also further ones that the database knows.

    Two statements for fifty of them; one more with `others`, which reads all kept ticks. Django's errors if the tables are
    missing.
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


def read_all_schedules(settings: Settings) -> tuple[datetime, list[ScheduleStatus], QueueProblem | None]:
    """The time, and `read_schedules` with `others`; empty, with the reason, if it cannot be read. Raises ConnectionLost."""
    alias = managed_alias()
    try:
        with guarded_read(alias, "read the recurring messages"):
            now = database_now(alias)
            return now, read_schedules(settings, now, others=True), None
    except ConnectionLost:
        raise
    except DatabaseError as error:
        return utc_now(), [], QueueProblem(ProblemKind.UNREADABLE, str(error), command=MIGRATE_COMMAND)


def _last_ticks(alias: str, keys: Iterable[Key]) -> Iterator[tuple[Key, ScheduleTick]]:
    """The row of the last tick of each schedule, found by the index; fifty with one statement."""
    left = list(keys)
    while left:
        chosen, left = left[:_BATCH], left[_BATCH:]
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
    if times is not None and last is not None and (state is None or state.enabled):
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
