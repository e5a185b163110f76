"""Schedules that are defined in the database: their times, the check of a definition, its form, storing and deleting it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from typing import Any, ClassVar, Final
from zoneinfo import ZoneInfo

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.conf import TASK_MESSAGE, EndpointSettings, ScheduleSettings, Settings, get_settings
from sqlqueue_app.conf.crontab import cron_fault
from sqlqueue_app.conf.kinds import load_callable
from sqlqueue_app.conf.schedule_times import FIRST, LAST, ScheduleTimes
from sqlqueue_app.messages.errors import AddressError, ConfigurationError, MessageBodyError
from sqlqueue_app.messages.serializers import serialize
from sqlqueue_app.messages.types import full_name, name_fault, plain_name
from sqlqueue_app.models import Schedule, ScheduleKind, ScheduleTick, managed_alias
from sqlqueue_app.receiving.handlers import Handler, handlers_of, takes_tasks
from sqlqueue_app.sending.composer import Routes
from sqlqueue_app.sending.middleware import load_middleware
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.status.texts import PLAIN_INPUT
from sqlqueue_app.tables.connections import database_now

MAX_INTERVAL: Final = 366 * 24 * 3600
_INSTANTS: Final = ("at", "starts_at", "ends_at")
_TIMING: Final = ("kind", "cron", "every_seconds", "at", "time_zone", "starts_at", "ends_at")
_DEFINITION: Final = ("message_type", "destination", "body", "missed", *_TIMING)
# The column of each kind.
_COLUMNS: Final = {ScheduleKind.CRON: "cron", ScheduleKind.INTERVAL: "every_seconds", ScheduleKind.ONCE: "at"}


def times_of(row: Schedule) -> ScheduleTimes:
    """The times of a valid row. ValueError if this machine cannot compute them, for example for an unknown time zone."""
    return ScheduleTimes(
        zone_of(row.time_zone),
        cron=row.cron,
        every=None if row.every_seconds is None else timedelta(seconds=row.every_seconds),
        at=row.at,
        start=row.starts_at,
        end=row.ends_at,
    )


def zone_of(name: str) -> tzinfo:
    """The time zone of this name, Django's TIME_ZONE without one. ValueError if this machine does not know it."""
    if not name:
        return timezone.get_default_timezone()
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise ValueError(f"there is no time zone {name!r}: expected a name such as 'Europe/Berlin'") from error


def clean_definition(row: Schedule) -> Iterator[tuple[str, str]]:
    """The wrong columns of a row, each with the error; without one the times can be computed. Clears those of other kinds.

    Does not check whether a route leads to a queue: that depends on the settings of the workers.
    """
    yield from _clean_times(row)
    if row.body is not None and not isinstance(row.body, dict):
        yield "body", _("Expected a JSON object, such as %(example)s.") % {"example": '{"book": true}'}
    elif row.body:
        try:
            serialize(row.body)
        except MessageBodyError as error:
            yield "body", str(error)
    if row.message_type and (fault := name_fault(row.message_type)):
        yield "message_type", f"the message type {row.message_type!r} {fault}"
    if any(each.name == row.name for each in get_settings().schedules.values()):
        yield "name", _("The settings have a schedule of this name.")
    if row.destination:
        try:
            book = address_book_of(get_settings())
            book.canonical(book.parse(row.destination))
        except AddressError as error:
            yield "destination", str(error)


def _clean_times(row: Schedule) -> Iterator[tuple[str, str]]:
    for kind, column in _COLUMNS.items():
        if kind != row.kind:
            setattr(row, column, "" if column == "cron" else None)
        elif getattr(row, column) in ("", None):
            yield column, _("This field is required.")
    if row.cron and (fault := cron_fault(row.cron)) is not None:
        yield "cron", _("Expected %(expected)s.") % {"expected": fault}
    if row.every_seconds is not None and not 1 <= row.every_seconds <= MAX_INTERVAL:
        yield "every_seconds", _("Expected a number of seconds from 1 to %(limit)s.") % {"limit": MAX_INTERVAL}
    try:
        zone_of(row.time_zone)
    except ValueError:
        yield "time_zone", _("There is no time zone %(zone)s: enter a name such as Europe/Berlin.") % {"zone": row.time_zone}
    yield from _outside_of_calendar(row)
    if row.starts_at is not None and row.ends_at is not None and row.ends_at < row.starts_at:
        yield "ends_at", _("The end is before the start.")


def _outside_of_calendar(row: Schedule) -> Iterator[tuple[str, str]]:
    for column in _INSTANTS:
        for is_within in (MinValueValidator(FIRST), MaxValueValidator(LAST)):
            try:
                if (instant := getattr(row, column)) is not None:
                    is_within(instant)
            except ValidationError as error:
                yield column, error.messages[0]


def save_definition(row: Schedule, now: datetime) -> bool:
    """Store a checked row, in the caller's transaction. Returns whether anything has changed.

    The next time is computed from `now` only if the times have changed, so that a missed one is not forgotten. An interval starts
    now unless it has a start. IntegrityError if there is another schedule of this name.
    """
    alias = managed_alias()
    before = Schedule.objects.using(alias).filter(pk=row.pk).first() if row.pk else None
    if row.kind == ScheduleKind.INTERVAL and row.starts_at is None:
        is_same = before is not None and (before.kind, before.every_seconds) == (row.kind, row.every_seconds)
        row.starts_at = before.starts_at if is_same and before is not None else now
    # The text has whole seconds, so the times have too.
    for name in _INSTANTS:
        if (instant := getattr(row, name)) is not None:
            setattr(row, name, instant.replace(microsecond=0))
    if not (changed := [name for name in _DEFINITION if before is None or getattr(before, name) != getattr(row, name)]):
        return False
    if before is None or not set(changed).isdisjoint(_TIMING):
        row.next_at = times_of(row).next_after(now)
        changed.append("next_at")
    with transaction.atomic(using=alias):
        if before is not None and before.message_type != row.message_type:
            runs = ScheduleTick.objects.using(alias).filter(schedule=row.name, message_type=before.message_type)
            runs.update(message_type=row.message_type)
        row.save(using=alias, update_fields=None if before is None else changed)
    return True


def store(name: str, message_type: str, now: datetime, **values: Any) -> bool:
    """Create or update the schedule of this name, as `schedule()` describes it."""
    alias = managed_alias()
    # If another process creates it in the meantime, the second attempt updates that row.
    for _attempt in range(2):
        row = stored_row(name) or adoptable_row(name, message_type) or Schedule(name=name)
        row.message_type = message_type
        for column, value in values.items():
            setattr(row, column, value)
        _check(row)
        with suppress(IntegrityError), transaction.atomic(using=alias):
            return save_definition(row, now)
    raise ConfigurationError(f"schedule {name!r} cannot be stored: another schedule has its name and type {message_type!r}")


def _check(row: Schedule) -> None:
    what = f"schedule {row.name!r} cannot be stored"
    try:
        row.clean_fields()
    except ValidationError as error:
        column, texts = next(iter(error.message_dict.items()))
        raise ConfigurationError(f"{what}, {column}: {texts[0]}") from error
    for column, text in clean_definition(row):
        raise ConfigurationError(f"{what}, {column}: {text}")


def delete(name: str) -> bool:
    """Delete the schedule of this name and the record of its runs. Returns whether there was one."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        if (row := stored_row(name)) is None:
            return False
        ScheduleTick.objects.using(alias).filter(schedule=name, message_type=row.message_type).delete()
        row.delete(using=alias)
    return True


def stored_row(name: str) -> Schedule | None:
    """The schedule of the database of this name."""
    return Schedule.objects.using(managed_alias()).filter(name=name, kind__gt="").first()


def adoptable_row(name: str, message_type: str) -> Schedule | None:
    """The state of a schedule that was in the settings before, which a new schedule of the database takes over."""
    return Schedule.objects.using(managed_alias()).filter(name=name, message_type=message_type, kind="").first()


def has_route(settings: Settings, message_type: str) -> bool:
    """Whether a route leads to a queue for this type, or an endpoint handles it; imports handlers, does not connect."""
    name = full_name(message_type)
    if Routes(settings.routes).find(name) is not None:
        return True
    return any(full_name(each.message_type) == name for named in settings.endpoints.values() for each in handlers_or_none(named))


def schedules_without_route(settings: Settings) -> list[ScheduleSettings]:
    """The schedules whose message type has no route and no handling endpoint; imports handlers, does not connect."""
    return [each for each in settings.schedules.values() if not has_route(settings, each.send)]


def handlers_or_none(endpoint: EndpointSettings) -> list[Handler]:
    """The handlers of an endpoint, whose modules are imported; none if that raises."""
    try:
        return handlers_of(endpoint.handlers)
    except Exception:  # noqa: BLE001 - user modules may raise anything; the endpoint's worker reports it
        return []


def why_no_worker(endpoint: EndpointSettings) -> str:
    """Why the code that an endpoint's settings name cannot be imported, so that its worker does not start; empty if it can."""
    try:
        handlers_of(endpoint.handlers)
        load_middleware(endpoint.middleware, setting="MIDDLEWARE")
        if endpoint.recoverability is not None:
            load_callable(endpoint.recoverability, setting="RECOVERABILITY")
    except ConfigurationError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - user modules may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def types_handled(settings: Settings, endpoint: str) -> set[str]:
    """The message types that an endpoint handles; none if it has no handlers of its own or their import raises."""
    handlers = handlers_or_none(settings.endpoints[endpoint])
    of_tasks = {TASK_MESSAGE} if handlers and takes_tasks(settings, endpoint) else set()
    return of_tasks | {plain_name(handler.message_type) for handler in handlers}


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    """A schedule of the database. Its instants are read and shown in its own time zone."""

    kind = forms.ChoiceField(label=gettext_lazy("Kind"), choices=ScheduleKind.choices)

    class Meta:
        model = Schedule
        fields = (
            "name", "message_type", "body", "destination", "kind", "cron", "every_seconds", "at", "time_zone",
            "starts_at", "ends_at", "missed",
        )  # fmt: skip
        labels: ClassVar = {"name": gettext_lazy("Name"), "message_type": gettext_lazy("Message type")}
        widgets: ClassVar = {
            **{name: forms.TextInput(PLAIN_INPUT) for name in ("name", "message_type", "destination", "cron")},
            **{name: forms.DateTimeInput({"type": "datetime-local", "step": "1"}, "%Y-%m-%dT%H:%M:%S") for name in _INSTANTS},
            "body": forms.Textarea({"rows": 3, "spellcheck": "false"}),
            "time_zone": forms.TextInput({**PLAIN_INPUT, "list": "sq-suggestions"}),
        }
        help_texts: ClassVar = {
            "body": gettext_lazy("A JSON object."),
            "destination": gettext_lazy(
                "The address of a queue. Empty: the queue of the route, or of the endpoint that handles it."
            ),
            "cron": gettext_lazy("For a crontab line: minute, hour, day of the month, month, weekday, such as 0 2 * * *."),
            "every_seconds": gettext_lazy("For an interval, which counts from the start."),
            "at": gettext_lazy("For a message that is sent once."),
            "time_zone": gettext_lazy("For the times on this page and for a crontab line. Empty: the zone of the settings."),
        }

    def full_clean(self) -> None:
        """Read instants in the zone of the form."""
        with timezone.override(self._zone(self.data.get("time_zone", ""))):
            super().full_clean()

    def get_initial_for_field(self, field: forms.Field, field_name: str) -> Any:
        """The value to show; an instant in the zone of the schedule, an empty body as an object."""
        value = super().get_initial_for_field(field, field_name)
        if isinstance(value, datetime):
            return value.astimezone(self._zone(self.instance.time_zone)).replace(tzinfo=None)
        return {} if field_name == "body" and value is None else value

    def clean(self) -> dict[str, Any]:
        """The values; errors unless the schedule has times, and its message a queue."""
        # Without it, Django 6.1 does not look at the constraints of the model.
        super().clean()
        now, row = database_now(managed_alias()), self.instance
        for name, value in self.cleaned_data.items():
            is_naive = isinstance(value, datetime) and timezone.is_naive(value)  # as Django leaves it without USE_TZ
            setattr(row, name, timezone.make_aware(value) if is_naive else value)
        if row.kind == ScheduleKind.INTERVAL and row.starts_at is None and "starts_at" not in self.errors:
            row.starts_at = now
        for name, text in clean_definition(row):
            if name not in self.errors:
                self.add_error(name, text)
        if not self.errors and not row.destination and not has_route(get_settings(), row.message_type):
            self.add_error(
                "destination", _("No route leads to a queue for this type, and no endpoint handles it: enter an address.")
            )
        if not self.errors and times_of(row).next_after(now) is None:
            self.add_error(None, _("The schedule has no time in the future."))
        return {name: getattr(row, name) for name in self.cleaned_data}

    def _zone(self, name: str) -> tzinfo:
        try:
            return zone_of(name.strip())
        except ValueError:
            return timezone.get_default_timezone()
