"""Recurring messages as rows of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.access import Button
from sqlqueue_app.dashboard.formats import Stamp, duration, stamp
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.operations.schedule_status import ScheduleStatus

COLUMNS: Final = (
    *("schedule", "message_type", "cron", "in_settings", "enabled", "changed_by", "changed_at", "next_tick", "last_tick"),
    *("last_sent_at", "last_message_id", "last_endpoint", "late_since", "error", "failed_at"),
    *("run_requested_at", "ran_at", "ran_message_id"),
)


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent: at which time, by which endpoint, and where it is looked for."""

    at: Stamp
    endpoint: str
    message_id: str
    url: str


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule as the page shows it. `notes` are what is to be said of its state."""

    name: str
    message_type: str
    cron: str
    state: State
    notes: tuple[str, ...]
    next_ticks: tuple[Stamp, ...]
    last: Sent | None
    ran: Sent | None
    buttons: list[Button]


def schedule_row(each: ScheduleStatus, now: datetime, url: str, buttons: list[Button]) -> ScheduleRow:
    """The row of a schedule; `url` is where its last message is looked for."""
    said = each.state
    last = ran = None
    if each.last_tick is not None:
        last = Sent(stamp(each.last_tick), each.last_endpoint or "", each.last_message_id or "", url)
    if said is not None and said.ran_at is not None:
        ran = Sent(stamp(said.ran_at), said.ran_endpoint, said.ran_message_id, f"{url}?run=1")
    return ScheduleRow(
        name=each.name,
        message_type=each.send,
        cron=each.cron or "",
        state=_state(each),
        notes=tuple(_notes(each, now)),
        next_ticks=tuple(map(stamp, each.next_ticks)) if each.is_enabled else (),
        last=last,
        ran=ran,
        buttons=buttons,
    )


def _state(each: ScheduleStatus) -> State:
    if each.error:
        return State(Level.ERROR, _("Failing"))
    if not each.is_enabled:
        return State(Level.INFO, _("Disabled"))
    if each.late_since is not None:
        return State(Level.WARNING, _("Late"))
    if each.cron is None:
        return State(Level.INFO, _("Not in the settings"))
    return State(Level.OK, _("OK")) if each.is_seen else State(Level.INFO, _("New"))


def _notes(each: ScheduleStatus, now: datetime) -> Iterator[str]:
    said = each.state
    if said is not None and said.changed_at is not None and said.changed_by:
        when = _when(said.changed_at)
        text = _("enabled by %(who)s, %(when)s") if said.enabled else _("disabled by %(who)s, %(when)s")
        yield text % {"who": said.changed_by, "when": when}
    if each.error and said is not None and said.failed_at is not None:
        yield _("It cannot be sent since %(when)s: %(error)s") % {"when": _when(said.failed_at), "error": each.error}
    if each.late_since is not None and each.is_enabled:
        words = {"when": _when(each.late_since), "age": _ago(now - each.late_since)}
        yield _("The message of %(when)s was not sent, %(age)s late.") % words
    if each.cron is None:
        yield _("No schedule of this name with this message is in the settings of this site; the database knows it.")
    elif not each.is_seen and each.is_enabled:
        yield _("No worker has seen it yet: its first tick is the next one after that.")
    if said is not None and said.run_requested_at is not None:
        asked = _ago(now - said.run_requested_at)
        yield _("A run was asked for %(age)s ago; a worker sends it within 10 seconds.") % {"age": asked}


def _when(instant: datetime) -> str:
    found = stamp(instant)
    return f"{found.date} {found.time}"


def _ago(age: timedelta) -> str:
    return duration(max(age, timedelta()))


def exported_schedules(found: Iterable[ScheduleStatus]) -> Iterator[tuple[Any, ...]]:
    """A row for each schedule, in the order of the page."""
    for each in found:
        said = each.state
        changed = (None, None) if said is None else (said.changed_by, said.changed_at)
        failed = None if said is None else said.failed_at
        runs = (None, None, None) if said is None else (said.run_requested_at, said.ran_at, said.ran_message_id or None)
        last = (each.last_tick, each.last_sent_at, each.last_message_id, each.last_endpoint)
        told = (each.name, each.send, each.cron, each.cron is not None, each.is_enabled, *changed, each.next_tick)
        yield (*told, *last, each.late_since, each.error or None, failed, *runs)
