"""The page of checks: what fails, since when, what to do; muting, and asking for a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.access import Button, Permission, actor_of, button, not_found
from sqlqueue_app.dashboard.actions import CONFIRMED, ActionOutcome, Confirmation, Field
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.formats import WORKER_COMMAND, Grade, Stamp, State, duration, stamp, stamp_of
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import PageAdmin
from sqlqueue_app.failures.operations import is_worker_alive
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import CheckResult
from sqlqueue_app.monitoring.check_results import ask_to_run, can_be_run_now, is_muted, is_stale, mute
from sqlqueue_app.monitoring.checks import advice_in_words, finding_in_words, label_of
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.tables.connections import database_now

SHOWN: Final = 300
COLUMNS: Final = (
    *("check", "subject", "failing", "stale", "since", "checked_at", "every_seconds", "text", "muted_until", "muted_by", "details"),
)
_TIMES: Final = {
    "1": gettext_lazy("1 hour"),
    "8": gettext_lazy("8 hours"),
    "24": gettext_lazy("1 day"),
    "168": gettext_lazy("1 week"),
}


class CheckAdmin(PageAdmin):
    """The pages about checks, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list, and what can be asked of a check."""
        return [
            self.readonly_view("", self.changelist_view),
            self.action_view("<int:pk>/mute/", self.mute_view, "mute"),
            self.action_view("<int:pk>/unmute/", self.unmute_view, "unmute"),
            self.action_view("<int:pk>/run/", self.run_view, "run"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The results, what fails first; as a file all of them."""
        now = database_now(managed_alias())
        found = CheckResult.objects.using(managed_alias()).order_by("-failing", "name", "subject")
        if wanted_format(request):
            return export(request, "checks", COLUMNS, _lines(found.iterator(chunk_size=1_000), now))
        # One more than is shown; what is muted comes behind what is not.
        results = list(found[: SHOWN + 1])
        is_cut = len(results) > SHOWN
        results.sort(key=lambda each: (not each.failing, is_muted(each, now), not is_stale(each, now)))
        rows = [check_row(each, now, self._buttons(request, each, now)) for each in results[:SHOWN]]
        return self.page(
            request,
            "checks",
            live_seconds=LIVE_SECONDS,
            rows=rows,
            is_cut=is_cut,
            shown=SHOWN,
            refused=next((each.reason for row in rows for each in row.buttons if each.reason), ""),
            no_worker=not is_worker_alive(),
            worker_command=WORKER_COMMAND,
            **(extra_context or {}),
        )

    def _buttons(self, request: HttpRequest, result: CheckResult, now: datetime) -> tuple[Button, ...]:
        found = []
        if is_muted(result, now):
            found.append(button(request, Permission.SETTINGS, _("Unmute"), self.url("unmute", result.pk)))
        elif result.failing:
            found.append(button(request, Permission.SETTINGS, _("Mute"), self.url("mute", result.pk)))
        if can_be_run_now(result.name):
            found.append(button(request, Permission.SETTINGS, _("Run now"), self.url("run", result.pk)))
        return tuple(found)

    def mute_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Have a check not count for a while."""
        result = self._found(request, pk)
        choice = request.POST.get("hours", "8")
        hours = int(choice) if choice in _TIMES else None

        def perform() -> ActionOutcome:
            until = database_now(managed_alias()) + timedelta(hours=hours or 0)
            self._mute(result, until, actor_of(request).name)
            return ActionOutcome(_("The check is muted until %(until)s.") % {"until": stamp(until)}, self.url())

        return self._confirm(
            request,
            result,
            action="mute_check",
            title=_("Mute the check “%(check)s”") % {"check": label_of(result.name)},
            text=_(
                "It is run on, and what changes is an event. Until the time is over it does not count in the overview, "
                "in sqlqueue_health and in the metrics, and nobody is notified of it."
            ),
            submit=_("Mute"),
            perform=perform,
            fields=(Field("hours", _("For how long"), choice, choices=[(key, str(label)) for key, label in _TIMES.items()]),),
            errors=() if hours is not None or CONFIRMED not in request.POST else (_("Choose one of the times."),),
        )

    def unmute_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Have it count again."""
        result = self._found(request, pk)

        def perform() -> ActionOutcome:
            self._mute(result, None, "")
            return ActionOutcome(_("The check counts again."), self.url())

        return self._confirm(
            request,
            result,
            action="unmute_check",
            title=_("Unmute the check “%(check)s”") % {"check": label_of(result.name)},
            text=_("It counts again, at once."),
            submit=_("Unmute"),
            perform=perform,
        )

    def run_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Have a worker run it soon."""
        result = self._found(request, pk)

        def perform() -> ActionOutcome:
            ask_to_run(managed_alias(), result.name)
            return ActionOutcome(_("A worker runs it within 20 seconds."), self.url())

        if not can_be_run_now(result.name):
            blocked = _("Each process runs this check by itself.")
        else:
            blocked = "" if is_worker_alive() else _("No worker is alive.")
        return self._confirm(
            request,
            result,
            action="run_check",
            title=_("Run the check “%(check)s” now") % {"check": label_of(result.name)},
            text=_("A worker runs it at its next look, within 20 seconds, and then as ever."),
            submit=_("Run now"),
            perform=perform,
            blocked=blocked,
        )

    def _confirm(self, request: HttpRequest, result: CheckResult, **more: Any) -> HttpResponse:
        target = f"{result.name}: {result.subject}" if result.subject else result.name
        facts = [(_("Of what"), result.subject)] if result.subject else []
        if result.failing:
            facts.append((_("What it says"), finding_in_words(result.name, result.subject, result.details)))
        found = Confirmation(permission=Permission.SETTINGS, target=target, back_url=self.url(), facts=facts, **more)
        return found.answer(self, request)

    def _found(self, request: HttpRequest, pk: int) -> CheckResult:
        # No column holds a greater number; SQLite and PostgreSQL refuse it each in its way.
        result = CheckResult.objects.using(managed_alias()).filter(pk=pk).first() if pk < 2**63 else None
        if result is None:
            raise not_found(request, Permission.SETTINGS, _("There is no such result any more: the check has passed, or is gone."))
        return result

    def _mute(self, result: CheckResult, until: datetime | None, by: str) -> None:
        if not mute(managed_alias(), result.pk, until, by):
            raise ConfigurationError(_("There is no such result any more: the check has passed, or is gone."))


def _lines(results: Iterable[CheckResult], now: datetime) -> Iterator[tuple[object, ...]]:
    for each in results:
        yield (
            each.name,
            each.subject,
            each.failing,
            is_stale(each, now),
            each.since,
            each.checked_at,
            each.every_seconds,
            finding_in_words(each.name, each.subject, each.details) if each.failing else "",
            each.muted_until,
            each.muted_by,
            each.details,
        )


# --- Rows -------------------------------------------------------------------------------------------------------------


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
    outcome = (result.name, result.subject, details)
    return CheckRow(
        result=result,
        label=label_of(result.name),
        state=check_state(result, now),
        finding=finding_in_words(*outcome) if result.failing else "",
        advice=advice_in_words(*outcome) if result.failing else "",
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
        return State(Grade.INFO, _("Fails, muted")) if is_muted(result, now) else State(Grade.ERROR, _("Fails"))
    return State(Grade.WARNING, _("Not run")) if is_stale(result, now) else State(Grade.OK, _("Passes"))


def _stale(result: CheckResult, now: datetime) -> str:
    if not is_stale(result, now) or result.checked_at is None:
        return ""
    return _("It was not run for %(time)s: what it says may be over.") % {"time": duration(now - result.checked_at)}
