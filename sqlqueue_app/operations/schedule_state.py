"""What operators have said about schedules, and workers of them: the rows of `Schedule`, by name and message type."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.db import Error as DjangoError
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from sqlqueue_app.conf import ScheduleSettings
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import Schedule
from sqlqueue_app.operations.actions import Actor
from sqlqueue_app.tables.clock import database_now

_LONGEST_ERROR: Final = 2_000

# --- by operators ---------------------------------------------------------------------------------------------------------------


def request_run(name: str, message_type: str) -> bool:
    """Ask for a run now: a worker sends the message at its next look, within 10 seconds, once. False if one is asked for already.

    Raises Django's errors of the database.
    """
    alias = managed_alias()
    now = database_now(alias)
    with transaction.atomic(using=alias):
        row = _row(alias, name, message_type)
        return _rows(alias, name, message_type).filter(pk=row.pk, run_requested_at=None).update(run_requested_at=now) == 1


def cancel_run(name: str, message_type: str) -> bool:
    """Take the request for a run back; False if a worker has followed it, or there is none."""
    asked = _rows(managed_alias(), name, message_type).filter(run_requested_at__isnull=False)
    return asked.update(run_requested_at=None) == 1


def set_enabled(name: str, message_type: str, *, enabled: bool, actor: Actor) -> bool:
    """Enable or disable a schedule; False if it is so already. Ticks up to when it is enabled are not made up for."""
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


# --- by workers -----------------------------------------------------------------------------------------------------------------


def is_skipped(alias: str, schedule: ScheduleSettings, tick: datetime) -> bool:
    """Whether a tick is left out: the schedule is disabled, or it was until after the tick. One statement."""
    said = _rows(alias, schedule.name, schedule.send).values_list("enabled", "changed_at").first()
    if said is None:
        return False
    enabled, changed_at = said
    return not enabled or (changed_at is not None and tick <= changed_at)


def requested_runs(alias: str) -> dict[tuple[str, str], Schedule]:
    """The schedules that somebody asks to be run now, by name and message type. One statement."""
    rows = Schedule.objects.using(alias).filter(run_requested_at__isnull=False)
    return {(row.name, row.message_type): row for row in rows}


def take_run(alias: str, request: Schedule, now: datetime, *, message_id: str, endpoint: str) -> bool:
    """Take a request for a run, in the transaction that sends its message; False if another process has."""
    asked = Schedule.objects.using(alias).filter(pk=request.pk, run_requested_at=request.run_requested_at)
    told = {"ran_at": now, "ran_message_id": message_id, "ran_endpoint": endpoint, "failed_at": None, "error": ""}
    return asked.update(run_requested_at=None, **told) == 1


def note_failure(alias: str, schedule: ScheduleSettings, error: Exception, now: datetime) -> None:
    """Leave for operators why a message could not be sent. Never raises an error of the database: the log has said it all."""
    told = {"failed_at": now, "error": f"{type(error).__name__}: {error}".replace("\0", "")[:_LONGEST_ERROR]}
    rows = _rows(alias, schedule.name, schedule.send)
    try:
        with transaction.atomic(using=alias):
            if not rows.update(**told):
                rows.create(name=schedule.name, message_type=schedule.send, **told)
    except IntegrityError:
        pass  # another process was faster
    except DjangoError:
        return


def clear_failure(alias: str, schedule: ScheduleSettings) -> None:
    """Forget the failure: a message was sent."""
    _rows(alias, schedule.name, schedule.send).filter(failed_at__isnull=False).update(failed_at=None, error="")
