"""The page of checks: failing ones with their begin and remedy; muting, and running one now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from django import forms
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, not_found
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, State, duration, number, stamp
from sqlqueue_app.dashboard.history import severity_state
from sqlqueue_app.dashboard.lists import WIDE, FileColumns, TableColumn, export, table, template_html, wanted_format, with_notes
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import PageAdmin
from sqlqueue_app.failures.operations import is_worker_alive
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import CheckResult, managed_alias
from sqlqueue_app.monitoring.check_results import can_be_run_now, is_muted, is_stale, mute, request_check_run
from sqlqueue_app.monitoring.checks import describe_advice, describe_finding, label_of
from sqlqueue_app.monitoring.health import Issue, current_results, text_of_issue
from sqlqueue_app.monitoring.snapshot import Snapshot
from sqlqueue_app.status.overview import read_status
from sqlqueue_app.tables.connections import database_now

SHOWN: Final = 300
_GONE: Final = gettext_lazy("This check no longer has this result: it passed, or its subject is gone.")


class CheckAction(Action):
    """An action on a check, on the page of its results."""

    permission = Permission.SETTINGS
    result: CheckResult

    def find(self, **key: Any) -> None:
        pk = key["pk"]
        # No column holds a greater number; SQLite and PostgreSQL reject it with different errors.
        found = CheckResult.objects.using(managed_alias()).filter(pk=pk).first() if pk < 2**63 else None
        if found is None:
            raise not_found(self.request, self.permission, str(_GONE))
        self.result, self.words = found, {"check": label_of(found.name)}
        self.target = f"{found.name}: {found.subject}" if found.subject else found.name
        self.back_url = self.pages.url()
        facts = {_("Subject"): found.subject, _("Result"): _finding(found)}
        self.facts = [(label, text) for label, text in facts.items() if text]

    def mute(self, until: datetime | None, done: str) -> ActionOutcome:
        """Mute the result, or unmute it with None. ConfigurationError if it is gone."""
        if not mute(managed_alias(), self.result.pk, until, actor_of(self.request).name):
            raise ConfigurationError(str(_GONE))
        return ActionOutcome(done, self.back_url)


class MuteForm(forms.Form):
    hours = forms.ChoiceField(
        label=gettext_lazy("For how long"), initial="8",
        choices=[
            ("1", gettext_lazy("1 hour")), ("8", gettext_lazy("8 hours")), ("24", gettext_lazy("1 day")),
            ("168", gettext_lazy("1 week")),
        ],
    )  # fmt: skip


class MuteCheck(CheckAction):
    name, page, route = "mute_check", "mute", "<int:pk>/mute/"
    logged_as = gettext_lazy("Mute a check")
    label, title = gettext_lazy("Mute"), gettext_lazy("Mute the check “%(check)s”")
    text = gettext_lazy(
        "It still runs, and its changes are still recorded as events. Until then it does not count on the overview, in "
        "sqlqueue_health or in the metrics, and sends no notifications."
    )
    form_class = MuteForm

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        until = database_now(managed_alias()) + timedelta(hours=int(data["hours"]))
        return self.mute(until, _("The check is muted until %(until)s.") % {"until": stamp(until)})


class UnmuteCheck(CheckAction):
    name, page, route = "unmute_check", "unmute", "<int:pk>/unmute/"
    logged_as = gettext_lazy("Unmute a check")
    label, title = gettext_lazy("Unmute"), gettext_lazy("Unmute the check “%(check)s”")
    text = gettext_lazy("It counts again immediately.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        return self.mute(None, _("The check counts again."))


class RunCheck(CheckAction):
    """Requests a run of the check by a worker."""

    name, page, route = "run_check", "run", "<int:pk>/run/"
    logged_as = gettext_lazy("Run a check")
    label, title = gettext_lazy("Run now"), gettext_lazy("Run the check “%(check)s” now")
    text = gettext_lazy("A worker runs it within 20 seconds, and then at its usual interval.")

    def find(self, **key: Any) -> None:
        super().find(**key)
        if not can_be_run_now(self.result.name):
            self.blocked = _("Each process runs this check by itself.")
        elif not is_worker_alive():
            self.blocked = _("No worker is alive.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        request_check_run(managed_alias(), self.result.name)
        return ActionOutcome(_("A worker runs it within 20 seconds."), self.back_url)


class CheckAdmin(PageAdmin):
    """The pages of checks. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = (MuteCheck, UnmuteCheck, RunCheck)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The results, failing ones first; a file has all of them."""
        found = CheckResult.objects.using(managed_alias()).order_by("-failing", "name", "subject")
        if wanted_format(request):
            return export(request, "checks", _file_columns(database_now(managed_alias())), found.iterator(chunk_size=1_000))
        status = read_status()
        now = status.managed_now or database_now(managed_alias())
        # Current outcomes replace results, as on the overview. One more than is shown; muted ones come last.
        results, issues = current_results(Snapshot(get_settings(), now, status=status), list(found[: SHOWN + 1]))
        texts = {key: (text_of_issue(each, status), each.since or _("not known")) for key, each in issues.items()}
        is_cut = len(results) > SHOWN
        results.sort(key=lambda each: (not each.failing, is_muted(each, now), not is_stale(each, now)))
        caption = _("Results of checks, failing ones first")
        columns = self._columns(request, issues, texts, now)
        return self.page(
            request,
            "checks",
            live_seconds=LIVE_SECONDS,
            table=table(caption, columns, results[:SHOWN], lambda each: f"check {each.name} {each.subject}"),
            note=_("Showing the first %(count)s; a download has all.") % {"count": number(SHOWN)} if is_cut else "",
            alert_count=None if is_cut else sum(each.failing and not is_muted(each, now) for each in results),
            no_worker=not any(each.works_for_all for each in status.instances),
            nothing=_("No check has run yet: workers run them."),
            **(extra_context or {}),
        )

    def _columns(
        self, request: HttpRequest, issues: Mapping[Any, Issue], texts: Mapping[Any, tuple[str, object]], now: datetime
    ) -> list[TableColumn[CheckResult]]:
        def current(each: CheckResult) -> tuple[str, object]:
            return texts.get((each.name, each.subject), ("", each.since))

        def state(each: CheckResult) -> State:
            if each.failing and is_muted(each, now):
                return State(Grade.INFO, _("Fails, muted"))
            if each.failing:
                return State(severity_state(issues[each.name, each.subject].severity).level, _("Fails"))
            return State(Grade.WARNING, _("Outdated")) if is_stale(each, now) else State(Grade.OK, _("Passes"))

        return [
            TableColumn(_("Check"), lambda each: with_notes(label_of(each.name), each.subject), WIDE),
            TableColumn(_("State"), lambda each: with_notes(state(each), _muted(each, now))),
            TableColumn(_("Result and remedy"), lambda each: _finding_and_remedy(each, current(each)[0], now), WIDE),
            TableColumn(_("Since"), lambda each: current(each)[1]),
            TableColumn(_("Last run"), lambda each: each.checked_at),
            TableColumn(_("Actions"), lambda each: self._buttons(request, each, now)),
        ]

    def _buttons(self, request: HttpRequest, result: CheckResult, now: datetime) -> list[Button]:
        found: list[type[CheckAction]] = []
        if is_muted(result, now):
            found.append(UnmuteCheck)
        elif result.failing and result.pk:
            found.append(MuteCheck)
        if result.pk and can_be_run_now(result.name):
            found.append(RunCheck)
        about = f"{label_of(result.name)} {result.subject}".strip()
        return [replace(each.button(self, request, result.pk), about=about) for each in found]


def _file_columns(now: datetime) -> FileColumns:
    return {
        "check": "name", "subject": "subject", "failing": "failing", "stale": lambda each: is_stale(each, now), "since": "since",
        "checked_at": "checked_at", "every_seconds": "every_seconds", "text": _finding, "muted_until": "muted_until",
        "muted_by": "muted_by", "details": "details",
    }  # fmt: skip


def _muted(result: CheckResult, now: datetime) -> str:
    if result.muted_until is None or not is_muted(result, now):
        return ""
    words = {"until": stamp(result.muted_until), "user": result.muted_by}
    return (_("until %(until)s, by %(user)s") if result.muted_by else _("until %(until)s")) % words


def _finding(result: CheckResult) -> str:
    return describe_finding(result.name, result.subject, result.details) if result.failing else ""


def _finding_and_remedy(result: CheckResult, text: str, now: datetime) -> SafeString:
    """The finding of a failing check, the remedy, and its SQL; for a stale result, its age."""
    silent = _("It has not run for %(time)s: its result may be outdated.") % {"time": duration(now - result.checked_at)}
    note = silent if is_stale(result, now) else ""
    if not result.failing:
        return with_notes("", note)
    advice = describe_advice(result.name, result.subject, result.details)
    sql = result.details.get("sql") if isinstance(result.details, dict) else None
    return with_notes(text, advice, sql and template_html("sql", sql=sql), note)
