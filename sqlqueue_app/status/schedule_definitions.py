"""Schedules that are defined in the database: their times, the check of a definition, storing and deleting it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.conf.crontab import cron_fault
from sqlqueue_app.conf.schedule_times import ScheduleTimes
from sqlqueue_app.messages.errors import AddressError, ConfigurationError
from sqlqueue_app.models import Schedule, ScheduleKind, ScheduleTick
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.status.queues import address_book_of

MAX_INTERVAL: Final = 366 * 24 * 3600
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
    if row.starts_at is not None and row.ends_at is not None and row.ends_at < row.starts_at:
        yield "ends_at", _("The end is before the start.")


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
    for name in ("at", "starts_at", "ends_at"):
        if (instant := getattr(row, name)) is not None:
            setattr(row, name, instant.replace(microsecond=0))
    changed = [name for name in _DEFINITION if before is None or getattr(before, name) != getattr(row, name)]
    if not changed:
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
        json.dumps(row.body)
        row.clean_fields()
    except ValidationError as error:
        column, texts = next(iter(error.message_dict.items()))
        raise ConfigurationError(f"{what}, {column}: {texts[0]}") from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{what}: its body is not JSON: {error}") from error
    for column, text in clean_definition(row):
        raise ConfigurationError(f"{what}, {column}: {text}")


def delete(name: str) -> bool:
    """Delete the schedule of this name and the record of its runs. Returns whether there was one."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        row = stored_row(name)
        if row is None:
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
