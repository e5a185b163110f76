"""The results of checks as pages show them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.access import Button
from sqlqueue_app.dashboard.formats import Stamp, duration, stamp_of
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.models import CheckResult
from sqlqueue_app.operations.watching.catalogue import advice_in_words, finding_in_words, label_of
from sqlqueue_app.operations.watching.results import is_muted, is_stale


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A result as the page shows it; `stale` says since when it was not run, `sql` what mends it, where there is such."""

    result: CheckResult
    label: str
    state: State
    finding: str
    advice: str
    sql: str
    since: Stamp | None
    checked: Stamp | None
    stale: str
    muted: Stamp | None
    buttons: tuple[Button, ...] = ()


def check_row(result: CheckResult, now: datetime, buttons: tuple[Button, ...] = ()) -> CheckRow:
    """The row of a result, `now` by the clock of its database. Never raises, whatever stands in it."""
    details = result.details if isinstance(result.details, dict) else {}
    told = (result.name, result.subject, details)
    return CheckRow(
        result=result,
        label=label_of(result.name),
        state=check_state(result, now),
        finding=finding_in_words(*told) if result.failing else "",
        advice=advice_in_words(*told) if result.failing else "",
        sql=str(details.get("sql", "")) if result.failing else "",
        since=stamp_of(result.since),
        checked=stamp_of(result.checked_at),
        stale=_stale(result, now),
        muted=stamp_of(result.muted_until) if is_muted(result, now) else None,
        buttons=buttons,
    )


def check_state(result: CheckResult, now: datetime) -> State:
    """How it is, in a word."""
    if result.failing:
        return State(Level.INFO, _("Fails, muted")) if is_muted(result, now) else State(Level.ERROR, _("Fails"))
    return State(Level.WARNING, _("Not run")) if is_stale(result, now) else State(Level.OK, _("Passes"))


def _stale(result: CheckResult, now: datetime) -> str:
    if not is_stale(result, now) or result.checked_at is None:
        return ""
    return _("It was not run for %(time)s: what it says may be over.") % {"time": duration(now - result.checked_at)}
