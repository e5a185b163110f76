"""Recurring messages of the settings and of the database: workers send them once per tick; requests of operators; their state."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property, partial
from typing import Any, Final

from django.db import Error as DjangoError, IntegrityError, connections, transaction
from django.db.models import Q, QuerySet, Subquery
from django.utils import timezone

from sqlqueue_app.conf import ScheduleSettings, Settings
from sqlqueue_app.conf.schedule_times import ScheduleTimes
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import OutgoingMessage
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, TransientError
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.messages.types import full_name
from sqlqueue_app.models import MissedPolicy, Schedule, ScheduleKind, ScheduleTick, managed_alias
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.sending.composer import Routes, SendOptions
from sqlqueue_app.sending.sender import Sender
from sqlqueue_app.status.events import Actor
from sqlqueue_app.status.queues import ProblemKind, QueueProblem, utc_now
from sqlqueue_app.status.schedule_definitions import times_of
from sqlqueue_app.tables.connections import database_now, errors_of_alias, guarded_read
from sqlqueue_app.tables.installation import migrate_command

logger = logging.getLogger("sqlqueue.background")

# The maximum delay of a message after its tick, while a worker runs.
EVERY_SECONDS = 5.0
# Shorter intervals are followed more closely; the clock of the database has whole seconds.
_SHORT: Final = timedelta(minutes=1)
_CLOSELY_SECONDS: Final = 0.5
# A worker that starts within a day makes up for a missed tick, as Celery's beat does without a limit; of several ticks only
# for the last, like APScheduler's `coalesce`.
MAX_DELAY = timedelta(days=1)
# Ticks that are later than this are shown as late, and skipped by the policy SKIP.
LATE_FROM: Final = timedelta(minutes=1)
KEPT = timedelta(days=30)
# The number of runs that are kept of a schedule of the database, and shown of every schedule.
RUNS_KEPT: Final = 20
_DELETED_AT_ONCE = 1000
_NEVER: Final = datetime.min.replace(tzinfo=UTC)

Key = tuple[str, str]


class Schedules:
    """Sends due messages as one endpoint. One object serves one thread at a time; others may compete with it.

    A tick of the settings is claimed by a row of its own, one of the database by setting the next time of its schedule, in one
    transaction with the message. If the managed tables are in another database, the message commits first: if the process is
    killed in between, the tick is sent twice rather than never.

    A message goes to its destination, if it has one, else where the routes send it; without a route, to the endpoint that
    `handled_by` names for its type: of those that the process runs. `now` is the clock of the managed tables' database unless
    given; `zone` is Django's TIME_ZONE.
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
        self._entries = {(each.name, each.send): _Entry(each, zone) for each in settings.schedules.values()}
        self._failed_at: dict[Key, list[datetime | None]] = {}
        # The next times of short intervals, and when they were computed.
        self._soon: dict[Key, datetime] = {}
        self._at = _NEVER

    def job(self) -> BackgroundJob:
        return BackgroundJob("recurring messages", EVERY_SECONDS, self._run, sooner=self.seconds_to_next)

    def send_due(self) -> int:
        """Send the messages that have become due since the last call, each schedule separately. Returns the number sent.

        Also sends the runs that operators requested, even of disabled schedules. Failures are logged, once for each tick and run,
        and retried at the next call. TransientError if the database is unavailable, or (SQLite) locked by a long write: call it
        again later, nothing is lost. One statement if there is no schedule.
        """
        with errors_of_alias(self._alias, "look for due schedules"):
            rows = Schedule.objects.using(self._alias)
            if not self._entries and not rows.filter(_REQUESTED | Q(enabled=True, next_at__isnull=False)).exists():
                self._soon.clear()
                return 0
            now = self._now()
            if self._at == _NEVER:
                _correct_next_times(rows, now)
            self._at = now
            found = {(row.name, row.message_type): row for row in rows.filter(_REQUESTED | Q(enabled=True, next_at__lte=now))}
        self._soon = {key: following for key, following in self._soon.items() if following > now}
        # A schedule of the settings hides one of the database.
        stored = [_StoredEntry(row) for key, row in found.items() if row.kind and key not in self._entries]
        entries = [*self._entries.values(), *sorted(stored, key=lambda each: each.row.next_at or now)]
        return sum(self._send_if_due(entry, now) + self._run_requested(entry, found, now) for entry in entries)

    def seconds_to_next(self) -> float | None:
        """The time to the next message of a short interval; None if that is later than the next regular call."""
        if not self._soon:
            return None
        seconds = (min(self._soon.values()) - self._at).total_seconds()
        return max(_CLOSELY_SECONDS, seconds - _CLOSELY_SECONDS) if seconds < EVERY_SECONDS else None

    def _run(self) -> None:
        try:
            self.send_due()
        except TransientError:
            # The receivers log it. An outage is not followed closely.
            self._soon.clear()

    def _send_if_due(self, entry: _Entry, now: datetime) -> bool:
        tick = None
        try:
            with errors_of_alias(self._alias, f"send the message of schedule {entry.name!r}"):
                entry.begin(self._alias, now)
                tick = entry.due(now)
                if tick is None:
                    entry.pass_over(self._alias, now)
                    return False
                # Disabled by an operator, now or at the time of the tick.
                sent = not entry.is_skipped(self._alias, tick) and self._send(entry, tick, now)
            entry.done = tick
            if (following := entry.soon(now)) is not None:
                self._soon[entry.key] = following
        except TransientError:
            raise
        except Exception as error:  # noqa: BLE001 - one failing schedule must not stop the others
            self._report_failure(entry, tick, error, now)
            return False
        return sent

    def _run_requested(self, entry: _Entry, found: Mapping[Key, Schedule], now: datetime) -> bool:
        """Send the message of a schedule whose run is requested; False if there is no request, or another process has sent it."""
        request = found.get(entry.key)
        if request is None or request.run_requested_at is None:
            return False
        try:
            with errors_of_alias(self._alias, f"run schedule {entry.name!r}"):
                message = self._compose(entry, request.run_requested_at, by_hand=True)
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
        logger.info("%s sent by schedule %s, run by hand", entry.send, entry.name, extra={"event": "schedule_sent"})
        return True

    def _report_failure(self, entry: _Entry, at: datetime | None, error: Exception, now: datetime) -> None:
        """Log a failure, and store it for the pages of operators, once for each tick and run; without one, the first of all."""
        last = self._failed_at.get(entry.key, [])
        if at not in last:
            # A tick and a run may fail alternately.
            self._failed_at[entry.key] = [*last[-1:], at]
            logger.error("schedule %s cannot send: %s", entry.name, error, exc_info=error, extra={"event": "schedule_failed"})
            note_failure(self._alias, entry.key, error, now)
        connections[self._alias].errors_occurred = True  # not to be kept: the session may be read-only since a failover

    def _send(self, entry: _Entry, tick: datetime, now: datetime) -> bool:
        """Claim the tick and send its message, both or none; False if another process has claimed it."""
        if _ticks(self._alias, entry.key).filter(tick=tick).exists():
            entry.pass_over(self._alias, now)
            return False
        message = self._compose(entry, tick)
        try:
            with transaction.atomic(using=self._alias):
                if not entry.claim(self._alias, now):
                    return False
                ScheduleTick.objects.using(self._alias).create(
                    schedule=entry.name,
                    message_type=entry.send,
                    tick=tick,
                    sent_at=now,
                    message_id=message.message_id or "",
                    endpoint=self._endpoint,
                )
                with transaction.atomic(using=self._sender.alias):
                    self._sender.write([message])
        except IntegrityError:
            return False
        late = f", {now - tick} late" if now - tick > LATE_FROM else ""
        text = "%s sent by schedule %s for %s%s"
        logger.info(text, entry.send, entry.name, tick.isoformat(), late, extra={"event": "schedule_sent"})
        if chosen := list(entry.old_runs(self._alias, now)[:_DELETED_AT_ONCE]):
            ScheduleTick.objects.using(self._alias).filter(pk__in=chosen).delete()
        return True

    def _compose(self, entry: _Entry, tick: datetime, *, by_hand: bool = False) -> OutgoingMessage:
        values = {names.SCHEDULE: entry.name, names.SCHEDULED_FOR: format_time(tick)}
        options = SendOptions(
            to=entry.destination or self._address_of(entry.send),
            headers={**values, names.RUN_BY_HAND: "True"} if by_hand else values,
        )
        return self._sender.composer.compose(entry.send, dict(entry.body), options)

    def _address_of(self, message_type: str) -> str | None:
        """The destination of a type without a route; None if the routes provide it, or report what is missing."""
        name = full_name(message_type)
        if self._routes.find(name) is not None or (endpoint := self._handled_by.get(name)) is None:
            return None
        book = self._sender.dispatcher.book
        return book.canonical(book.of_queue(endpoint))


class _Entry:
    """A schedule of the settings, and what this process knows: the time up to which it is done, None before the first read."""

    destination = ""

    def __init__(self, schedule: ScheduleSettings, zone: tzinfo) -> None:
        self.name, self.send, self.body = schedule.name, schedule.send, schedule.body
        self.key = self.name, self.send
        self.done: datetime | None = None
        self._times = ScheduleTimes(zone, cron=schedule.cron)
        # An interval without unfinished ticks.
        self._without = (datetime.max.replace(tzinfo=UTC), _NEVER)

    def begin(self, alias: str, now: datetime) -> None:
        """Read up to when the schedule is done; one that no worker has seen before is done up to now."""
        if self.done is not None:
            return
        last = _ticks(alias, self.key).order_by("-tick").first()
        if last is None:
            with transaction.atomic(using=alias):
                last, _ = _ticks(alias, self.key).get_or_create(
                    schedule=self.name, message_type=self.send, tick=now.replace(second=0, microsecond=0), defaults={"sent_at": now}
                )
        self.done = last.tick

    def due(self, now: datetime) -> datetime | None:
        """The last unfinished tick; earlier ones are left out."""
        after = now - MAX_DELAY if self.done is None else max(now - MAX_DELAY, self.done)
        begin, end = self._without
        # A day has 1,440 minutes: skip those already known to have no tick.
        found = self._times.latest(end if begin <= after <= end <= now else after, now)
        if found is None:
            self._without = (after, now)
        return found

    def is_skipped(self, alias: str, tick: datetime) -> bool:
        """Whether a tick is skipped: the schedule is disabled, or it was until after the tick. One statement."""
        return _rows(alias, *self.key).filter(Q(enabled=False) | Q(changed_at__gte=tick)).exists()

    def claim(self, alias: str, now: datetime) -> bool:
        """Whether this process sends the tick, whose row decides; in the transaction of the message."""
        _rows(alias, *self.key).filter(failed_at__isnull=False).update(failed_at=None, error="")
        return True

    def pass_over(self, alias: str, now: datetime) -> None:
        """Leave out the times up to now: nothing will be sent for them."""

    def soon(self, now: datetime) -> datetime | None:
        """The next time of a short interval."""
        return None

    def old_runs(self, alias: str, now: datetime) -> QuerySet[ScheduleTick, int]:
        """The keys of the runs to delete. The ticks of the settings are also claims."""
        return _runs(alias, self.key).filter(tick__lt=now - KEPT).values_list("pk", flat=True)


class _StoredEntry(_Entry):
    """A due or requested schedule of the database, read for one call. Its row has the time of its next message."""

    def __init__(self, row: Schedule) -> None:
        self.row = row
        self.name, self.send, self.body, self.destination = row.name, row.message_type, row.body or {}, row.destination
        self.key = self.name, self.send

    @cached_property
    def _times(self) -> ScheduleTimes:  # type: ignore[override]
        return times_of(self.row)

    def begin(self, alias: str, now: datetime) -> None:
        """Nothing to read: the row contains it."""

    def due(self, now: datetime) -> datetime | None:
        """The last time up to now that is not too late."""
        if (first := self._first(now)) is None:
            return None
        after = first - timedelta(microseconds=1)
        if self.row.missed == MissedPolicy.SKIP:
            after = max(after, now - LATE_FROM)
        elif self.row.kind != ScheduleKind.ONCE:
            after = max(after, now - MAX_DELAY)
        return self._times.latest(after, now)

    def is_skipped(self, alias: str, tick: datetime) -> bool:
        """Always False: the claim decides."""
        return False

    def claim(self, alias: str, now: datetime) -> bool:
        return self._advance(alias, now, failed_at=None, error="")

    def pass_over(self, alias: str, now: datetime) -> None:
        # The error stays: it may be the reason why it is too late now.
        if self._first(now) is not None:
            self._advance(alias, now)

    def _advance(self, alias: str, now: datetime, **values: object) -> bool:
        """Set the next time, unless another process or an operator has changed it since it was read."""
        mine = Schedule.objects.using(alias).filter(pk=self.row.pk, enabled=True, next_at=self.row.next_at)
        return mine.update(next_at=self._times.next_after(now), **values) == 1

    def soon(self, now: datetime) -> datetime | None:
        every = self._times.every
        return self._times.next_after(now) if every is not None and every < _SHORT else None

    def old_runs(self, alias: str, now: datetime) -> QuerySet[ScheduleTick, int]:
        """All but the newest."""
        return _runs(alias, self.key).order_by("-tick", "-pk").values_list("pk", flat=True)[RUNS_KEPT:]

    def _first(self, now: datetime) -> datetime | None:
        """The first time that is not done, if it has come."""
        first = self.row.next_at
        return first if self.row.enabled and first is not None and first <= now else None


def _correct_next_times(rows: QuerySet[Schedule], now: datetime) -> None:
    """Replace next times that their crontab lines no longer have: TIME_ZONE or rules of time zones have changed, by a restart."""
    for row in rows.filter(enabled=True, kind=ScheduleKind.CRON, next_at__gt=now):
        times, known = _times_or_none(row), row.next_at
        if times is not None and known is not None and times.next_after(known - timedelta(microseconds=1)) != known:
            rows.filter(pk=row.pk, next_at=known).update(next_at=times.next_after(now))


_MAX_ERROR_LENGTH: Final = 2_000
_REQUESTED: Final = Q(run_requested_at__isnull=False)


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
        values: dict[str, object] = {"enabled": enabled, "changed_by": actor.name[:255], "changed_at": now}
        if enabled and row.kind:
            values["next_at"] = times_of(row).next_after(now)
        return other.update(**values) == 1


def _rows(alias: str, name: str, message_type: str) -> QuerySet[Schedule]:
    return Schedule.objects.using(alias).filter(name=name, message_type=message_type)


def _runs(alias: str, key: Key) -> QuerySet[ScheduleTick]:
    return ScheduleTick.objects.using(alias).filter(schedule=key[0], message_type=key[1])


def _ticks(alias: str, key: Key) -> QuerySet[ScheduleTick]:
    return _runs(alias, key).filter(manual_run="")


def _row(alias: str, name: str, message_type: str) -> Schedule:
    return Schedule.objects.using(alias).get_or_create(name=name, message_type=message_type)[0]


def take_run(alias: str, request: Schedule, now: datetime, *, message_id: str, endpoint: str) -> bool:
    """Take a request for a run, in the transaction that sends its message; False if another process has taken it."""
    requested = Schedule.objects.using(alias).filter(pk=request.pk, run_requested_at=request.run_requested_at)
    values = {"ran_at": now, "ran_message_id": message_id, "ran_endpoint": endpoint, "failed_at": None, "error": ""}
    if not requested.update(run_requested_at=None, **values):
        return False
    run = {"tick": request.run_requested_at, "sent_at": now, "message_id": message_id, "endpoint": endpoint}
    rows = ScheduleTick.objects.using(alias)
    rows.create(schedule=request.name, message_type=request.message_type, manual_run=message_id[:64], **run)
    return True


def note_failure(alias: str, key: Key, error: Exception, now: datetime) -> None:
    """Store for operators why a message could not be sent. Never raises database errors, since the log has all the facts."""
    values = {"failed_at": now, "error": f"{type(error).__name__}: {error}".replace("\0", "")[:_MAX_ERROR_LENGTH]}
    with suppress(DjangoError):
        Schedule.objects.using(alias).update_or_create(name=key[0], message_type=key[1], defaults=values)


_NEXT_TICKS: Final = 3
# The number of schedules read by one statement.
_BATCH: Final = 50


class Origin(enum.StrEnum):
    """Where a schedule is defined."""

    SETTINGS = "settings"
    DATABASE = "database"
    ELSEWHERE = "elsewhere"
    """In the settings of another project: the database knows it from its ticks, or from requests of operators."""


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule with its next tick and the last one whose message was sent; None if there is none.

    `times` is None for a schedule of ELSEWHERE. `is_seen` is whether a worker has ever seen it; the row of a schedule of the
    database suffices. `late_since` is the first tick whose message should have been sent, and was not. `state` holds the
    definition in the database, the changes of operators and the reports of workers.
    """

    name: str
    send: str
    origin: Origin
    times: ScheduleTimes | None = None
    next_ticks: tuple[datetime, ...] = ()
    last_tick: datetime | None = None
    last_sent_at: datetime | None = None
    last_message_id: str | None = None
    last_endpoint: str | None = None
    is_seen: bool = False
    late_since: datetime | None = None
    state: Schedule | None = None

    @property
    def key(self) -> Key:
        """Its identity: several projects on one database may have a schedule of the same name."""
        return self.name, self.send

    @property
    def cron(self) -> str | None:
        """Its crontab line; None if it has none, or if that is not known."""
        return (self.times and self.times.cron) or None

    @property
    def when(self) -> str | None:
        """Its times in a few words; None if they are not known."""
        return None if self.times is None else self.times.text

    @property
    def next_tick(self) -> datetime | None:
        """Its next time, even if it is disabled."""
        return self.next_ticks[0] if self.next_ticks else None

    @property
    def is_enabled(self) -> bool:
        """Whether workers send its message at its ticks."""
        return self.state is None or self.state.enabled

    @property
    def is_over(self) -> bool:
        """Whether it has no further times."""
        return self.origin is Origin.DATABASE and self.state is not None and self.state.next_at is None

    @property
    def error(self) -> str:
        """The reason why its message cannot be sent; empty if it can."""
        return self.state.error if self.state is not None and self.state.failed_at is not None else ""


def read_schedules(settings: Settings, now: datetime, *, zone: tzinfo | None = None, others: bool = False) -> list[ScheduleStatus]:
    """The schedules of the settings and of the database as of `now`; with `others`, also further ones that the database knows.

    One statement, one more for fifty of them, and one with `others`, which reads all kept ticks. Django's errors if the tables
    are missing.
    """
    alias, zone = managed_alias(), zone or timezone.get_default_timezone()
    found = {
        (each.name, each.send): ScheduleStatus(each.name, each.send, Origin.SETTINGS, ScheduleTimes(zone, cron=each.cron))
        for each in settings.schedules.values()
    }
    states = {(row.name, row.message_type): row for row in Schedule.objects.using(alias).order_by("name", "pk")}
    for key, row in states.items():
        if row.kind and key not in found:
            found[key] = ScheduleStatus(*key, Origin.DATABASE, _times_or_none(row))
    if others:
        ticked = ScheduleTick.objects.using(alias).order_by().values_list("schedule", "message_type").distinct()
        found |= {key: ScheduleStatus(*key, Origin.ELSEWHERE) for key in sorted({*states, *ticked} - found.keys())}
    last = dict(_last_ticks(alias, found))
    return [_as_of(now, each, last.get(key), states.get(key)) for key, each in found.items()]


def last_runs(key: Key) -> list[ScheduleTick]:
    """The last runs of a schedule, newest first. Raises Django's errors."""
    return list(_runs(managed_alias(), key).exclude(message_id="").order_by("-tick", "-pk")[:RUNS_KEPT])


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
        command = f"python manage.py {migrate_command(alias)}"
        return utc_now(), [], QueueProblem(ProblemKind.UNREADABLE, str(error), command=command)


def _times_or_none(row: Schedule) -> ScheduleTimes | None:
    """The times of a row; None if they cannot be read here, such as those of a time zone that this machine lacks."""
    try:
        return times_of(row)
    except ValueError:
        return None


def _last_ticks(alias: str, keys: Iterable[Key]) -> Iterator[tuple[Key, ScheduleTick]]:
    """The row of the last tick of each schedule, found by the index; fifty with one statement."""
    left = list(keys)
    while left:
        chosen, left = left[:_BATCH], left[_BATCH:]
        wanted = Q()
        for key in chosen:
            wanted |= Q(pk=Subquery(_ticks(alias, key).order_by("-tick").values("pk")[:1]))
        for row in ScheduleTick.objects.using(alias).filter(wanted):
            yield (row.schedule, row.message_type), row


def _as_of(now: datetime, each: ScheduleStatus, last: ScheduleTick | None, state: Schedule | None) -> ScheduleStatus:
    """The status with its next times and its last message."""
    late = None
    if each.origin is Origin.DATABASE and state is not None and state.enabled:
        late = state.next_at
    elif each.times is not None and last is not None and (state is None or state.enabled):
        changed_at = state.changed_at if state is not None else None
        late = each.times.next_after(max(last.tick, changed_at or last.tick))
    sent: dict[str, Any] = {}
    if last is not None and last.message_id:
        sent = {"last_tick": last.tick, "last_sent_at": last.sent_at, "last_message_id": last.message_id}
        sent["last_endpoint"] = last.endpoint
    return replace(
        each,
        next_ticks=() if each.times is None else tuple(each.times.following(now, _NEXT_TICKS)),
        is_seen=last is not None or each.origin is Origin.DATABASE,
        late_since=late if late is not None and late <= now - LATE_FROM else None,
        state=state,
        **sent,
    )
