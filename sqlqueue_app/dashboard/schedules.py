"""The pages of recurring messages: their state and runs, running one now, enabling, and defining those of the database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Final
from zoneinfo import available_timezones

from django.db import IntegrityError
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.browsing.conversations import MessageOutcome
from sqlqueue_app.browsing.messages import find_sent_message
from sqlqueue_app.browsing.runs import outcomes_of_runs
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard import lists
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, not_found
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.conversations import OUTCOME_STATES
from sqlqueue_app.dashboard.formats import Grade, State
from sqlqueue_app.dashboard.lists import WIDE, FileColumns, HtmlTable, TableColumn, link_html, table, template_html, with_notes
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, name_of_path, path_of
from sqlqueue_app.failures.operations import is_worker_alive
from sqlqueue_app.models import FailedMessage, Queue, Schedule, ScheduleTick, managed_alias
from sqlqueue_app.status.schedule_definitions import ScheduleForm, adoptable_row, delete, save_definition, times_of
from sqlqueue_app.status.schedules import (
    Origin,
    ScheduleStatus,
    cancel_run,
    last_runs,
    read_all_schedules,
    request_run,
    set_enabled,
)  # fmt: skip
from sqlqueue_app.status.texts import in_units, two_units
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.rows import without_nul

_ONE = "<str:name>/<str:message_type>/"
_NEXT_SHOWN: Final = 10
_ORIGINS: Final = {
    Origin.SETTINGS: gettext_lazy("Settings"),
    Origin.DATABASE: gettext_lazy("Database"),
    Origin.ELSEWHERE: gettext_lazy("Elsewhere"),
}


class ScheduleAction(Action):
    """An action on a recurring message."""

    permission = Permission.SETTINGS
    schedule: ScheduleStatus

    def find(self, **key: Any) -> None:
        found = self.schedule = _find(self.request, self.permission, **key)
        self.words = {"name": found.name}
        self.target, self.back_url = f"{found.name} ({found.send})", self.pages.url()
        self.facts = ((_("Message type"), found.send), (_("Schedule"), found.when or "–"))
        self.crumbs = (Crumb(found.name, _url(self.pages, "schedule", found)),)


class RunSchedule(ScheduleAction):
    """Requests a worker to send the message now."""

    name, page, route = "run schedule", "run", f"{_ONE}run/"
    logged_as = gettext_lazy("Run a schedule")
    label, title, submit = gettext_lazy("Run now"), gettext_lazy("Run %(name)s now"), gettext_lazy("Run it now")
    text = gettext_lazy("A worker sends the message once, even if the schedule is disabled. Its regular ticks continue.")

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.warnings = warnings = []
        if not is_worker_alive():
            warnings.append(_("No worker is alive: the message is sent when one starts."))
        if self.schedule.origin is Origin.ELSEWHERE:
            warnings.append(_("It is not in the settings of this site: it is sent only if a worker has it in its own."))

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        if not request_run(self.schedule.name, self.schedule.send):
            raise ValueError(_("A run is requested already, and no worker has sent it yet."))
        return ActionOutcome(_("A run of %(name)s is requested: a worker sends it within 10 seconds.") % self.words, self.back_url)


class CancelRun(ScheduleAction):
    """Withdraws the request for a run."""

    name, page, route = "cancel run of schedule", "cancel_run", f"{_ONE}cancel-run/"
    logged_as = gettext_lazy("Cancel the run of a schedule")
    label, title = gettext_lazy("Cancel the run"), gettext_lazy("Cancel the run of %(name)s")
    text = gettext_lazy("If no worker has sent the message yet, it is not sent.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        if not cancel_run(self.schedule.name, self.schedule.send):
            raise ValueError(_("No run is requested: a worker has sent the message, or the run was cancelled already."))
        return ActionOutcome(_("The run of %(name)s is cancelled.") % self.words, self.back_url)


class EnableSchedule(ScheduleAction):
    name, page, route = "enable schedule", "enable", f"{_ONE}enable/"
    logged_as = gettext_lazy("Enable a schedule")
    label, title = gettext_lazy("Enable"), gettext_lazy("Enable %(name)s")
    text = gettext_lazy("Its message is sent again from the next tick on. Missed ticks are skipped.")
    enabled, done, unchanged = True, gettext_lazy("%(name)s is enabled."), gettext_lazy("It is enabled already.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        if not set_enabled(self.schedule.name, self.schedule.send, enabled=self.enabled, actor=actor_of(self.request)):
            raise ValueError(str(self.unchanged))
        return ActionOutcome(str(self.done) % self.words, self.back_url)


class DisableSchedule(EnableSchedule):
    name, page, route = "disable schedule", "disable", f"{_ONE}disable/"
    logged_as = gettext_lazy("Disable a schedule")
    label, title = gettext_lazy("Disable"), gettext_lazy("Disable %(name)s")
    text = gettext_lazy("Workers do not send its message until it is enabled again. You can still run it now.")
    enabled, done, unchanged = False, gettext_lazy("%(name)s is disabled."), gettext_lazy("It is disabled already.")


class MakeSchedule(ScheduleAction):
    """Creates a schedule of the database, and previews its times."""

    name, page, route = "create schedule", "make", "make/"
    label, submit = gettext_lazy("Create a schedule"), gettext_lazy("Create the schedule")
    text = gettext_lazy("Workers send the message at each of its times once, however many run. Preview shows the next ten times.")
    done = gettext_lazy("The schedule %(name)s is stored.")
    preview_label = gettext_lazy("Preview")
    previewed: HtmlTable | None = None

    def find(self, **key: Any) -> None:
        # PostgreSQL refuses NUL, which the form reports.
        name, message_type = (without_nul(self.request.POST.get(each, "")) for each in ("name", "message_type"))
        self.row = adoptable_row(name, message_type) or Schedule()
        self.target, self.back_url = f"{name} ({message_type})", self.pages.url()

    def make_form(self) -> Form:
        self.suggestions = sorted(available_timezones())
        data = self.request.POST if self.is_confirmed or "preview" in self.request.POST else None
        self.form = form = ScheduleForm(data, instance=self.row, auto_id="sq-%s", label_suffix="")
        form.fields["name"].disabled = bool(self.row.kind)
        if data is not None and form.is_valid():
            self.previewed = _times_table(self.row, database_now(managed_alias()))
        return form  # type: ignore[return-value]

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        try:
            save_definition(self.row, database_now(managed_alias()))
        except IntegrityError as error:
            raise ValueError(_("There is a schedule of this name.")) from error
        url = self.pages.url("schedule", path_of(self.row.name), path_of(self.row.message_type))
        return ActionOutcome(str(self.done) % {"name": self.row.name}, url)


class ChangeSchedule(MakeSchedule):
    """Changes a schedule of the database."""

    name, page, route = "change schedule", "edit", f"{_ONE}change/"
    logged_as = gettext_lazy("Change a schedule")
    label, title, submit = gettext_lazy("Change"), gettext_lazy("Change %(name)s"), gettext_lazy("Change the schedule")

    def find(self, **key: Any) -> None:
        ScheduleAction.find(self, **key)
        self.row, self.facts = self.schedule.state or Schedule(), ()
        self.start_with(**{name: getattr(self.row, name) for name in ScheduleForm.base_fields})
        self.blocked = _undefinable(self.schedule)


class DeleteSchedule(ScheduleAction):
    """Deletes a schedule of the database."""

    name, page, route = "delete schedule", "delete", f"{_ONE}delete/"
    logged_as = gettext_lazy("Delete a schedule")
    label, title = gettext_lazy("Delete"), gettext_lazy("Delete %(name)s")
    text = gettext_lazy("The record of its runs is deleted too. Messages that were sent stay.")
    is_dangerous = True

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.blocked = _undefinable(self.schedule)

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        if not delete(self.schedule.name):
            raise ValueError(_("There is no such recurring message."))
        return ActionOutcome(_("The schedule %(name)s is deleted.") % self.words, self.back_url)


def _undefinable(each: ScheduleStatus) -> str:
    """Why a schedule cannot be changed or deleted here."""
    return "" if each.origin is Origin.DATABASE else _("It is not defined in the database: change the settings.")


def _times_table(row: Schedule, now: datetime) -> HtmlTable:
    """The next times of a valid row."""
    times = times_of(row)
    columns: list[TableColumn[datetime]] = [
        TableColumn(_("In its time zone"), lambda each: f"{each.astimezone(times.zone):%Y-%m-%d %H:%M:%S %Z (%z)}"),
        TableColumn("UTC", lambda each: f"{each:%Y-%m-%d %H:%M:%S}"),
    ]
    return table(_("Next ten times"), columns, times.following(now, _NEXT_SHOWN))


def _url(pages: PageAdmin, name: str, each: ScheduleStatus) -> str:
    return pages.url(name, path_of(each.name), path_of(each.send))


def _when(each: ScheduleStatus) -> SafeString:
    """The times in a few words, and the time zone if it is its own."""
    times = each.times
    zone = each.state.time_zone if each.state is not None and each.origin is Origin.DATABASE else ""
    if times is None or times.cron:
        return with_notes(format_html('<code class="sq-nowrap">{}</code>', "–" if times is None else times.cron), zone)
    if times.every is not None:
        return with_notes(_("every %(duration)s") % {"duration": in_units(part for part in two_units(times.every)[1] if part[0])})
    return with_notes(_("once"), times.at)


def _find(request: HttpRequest, permission: Permission, name: str, message_type: str) -> ScheduleStatus:
    """The schedule that two URL parts name; raises `not_found` if it does not exist."""
    for each in read_all_schedules(get_settings())[1]:
        if name_of_path(name, [each.name]) and name_of_path(message_type, [each.send]):
            return each
    raise not_found(request, permission, _("There is no such recurring message."))


class ScheduleAdmin(PageAdmin):
    """The pages of recurring messages. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = (MakeSchedule, RunSchedule, CancelRun, EnableSchedule, DisableSchedule, ChangeSchedule, DeleteSchedule)
    routes: ClassVar = {"schedule": _ONE, "message": f"{_ONE}message/"}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The schedules of the settings, those of the database, then others that it knows."""
        now, found, problem = read_all_schedules(get_settings())
        if lists.wanted_format(request):
            return lists.export(request, "schedules", COLUMNS, found)
        caption = _("Messages that workers send at certain times, defined in the settings or in the database")
        return self.page(
            request,
            "schedules",
            live_seconds=LIVE_SECONDS,
            table=table(caption, self._columns(request, now), found, lambda each: f"schedule {each.name} {each.send}"),
            problem=problem,
            buttons=[MakeSchedule.button(self, request)],
            **(extra_context or {}),
        )

    def schedule_view(self, request: HttpRequest, name: str, message_type: str) -> HttpResponse:
        """One schedule: its next times, and its last runs with their outcomes."""
        each = _find(request, Permission.VIEW, name, message_type)
        now = database_now(managed_alias())
        row = each.state if each.origin is Origin.DATABASE else None
        runs = last_runs(each.key)
        destination = "" if row is None else row.destination
        outcomes = outcomes_of_runs(get_settings(), runs, each.send, destination)
        columns = [column for column in self._columns(request, now) if column.label not in (_("Next"), _("Last"), _("Actions"))]
        if row is not None:
            columns += [
                TableColumn(_("Missed times"), lambda _each: row.get_missed_display(), WIDE),
                TableColumn(_("Start"), lambda _each: row.starts_at),
                TableColumn(_("End"), lambda _each: row.ends_at),
                TableColumn(_("Destination"), lambda _each: row.destination, WIDE),
            ]
        return self.page(
            request,
            "schedule",
            live_seconds=LIVE_SECONDS,
            crumbs=(Crumb(each.name),),
            facts=lists.facts(columns, each),
            buttons=self._buttons(request, each, *([ChangeSchedule, DeleteSchedule] if row is not None else ())),
            times=_times_table(row, now) if row is not None and each.times is not None and each.is_enabled else None,
            table=table(_("Last runs, newest first"), self._run_columns(each, outcomes), runs, lambda run: f"run {run.pk}"),
        )

    def _run_columns(self, each: ScheduleStatus, outcomes: Mapping[str, MessageOutcome]) -> list[TableColumn[ScheduleTick]]:
        url = _url(self, "message", each)

        def outcome(run: ScheduleTick) -> State:
            found = outcomes.get(run.message_id)
            return State(Grade.OK, _("done")) if found is None else OUTCOME_STATES[found]

        return [
            TableColumn(_("Due"), lambda run: with_notes(run.tick, _("run manually") if run.manual_run else "")),
            TableColumn(_("Sent"), lambda run: with_notes(run.sent_at, run.endpoint)),
            TableColumn(_("Message"), lambda run: link_html(f"{url}?id={run.message_id}", run.message_id), WIDE),
            TableColumn(_("Outcome"), outcome),
        ]

    def message_view(self, request: HttpRequest, name: str, message_type: str) -> HttpResponse:
        """Redirect to the last message of a schedule, or to that of the run with this `id`, wherever it is."""
        each = _find(request, Permission.VIEW, name, message_type)
        message_id = request.GET.get("id") or each.last_message_id or ""
        to = each.state.destination if each.state else ""
        found = find_sent_message(get_settings(), message_id, each.send, each.last_endpoint or "", to) if message_id else None
        url = ""
        if found is not None and found.failure is not None:
            url = self.url_of(FailedMessage, "message", found.failure)
        elif found is not None:
            url = self.url_of(Queue, "message", path_of(found.queue), found.row_version)
        if url:
            return HttpResponseRedirect(url)
        text = _("The message %(id)s is not in any queue in which it may be, and has not failed: it was handled or deleted.")
        if not message_id:
            text = _("It has not sent a message yet.")
        crumbs = (Crumb(each.name, _url(self, "schedule", each)), Crumb(_("Message not found")))
        return self.message_gone(request, text % {"id": message_id}, crumbs, status=200)

    def _columns(self, request: HttpRequest, now: datetime) -> list[TableColumn[ScheduleStatus]]:
        def last(each: ScheduleStatus) -> SafeString:
            return template_html("schedule_last", schedule=each, url=_url(self, "message", each))

        def name(each: ScheduleStatus) -> SafeString:
            return with_notes(link_html(_url(self, "schedule", each), each.name), each.send, str(_ORIGINS[each.origin]))

        return [
            TableColumn(_("Schedule"), name, WIDE),
            TableColumn(_("When"), _when),
            TableColumn(_("State"), lambda each: template_html("schedule_state", schedule=each, state=_state(each), now=now), WIDE),
            TableColumn(_("Next"), lambda each: with_notes(*each.next_ticks) if each.is_enabled and each.next_ticks else None),
            TableColumn(_("Last"), last, WIDE),
            TableColumn(_("Actions"), lambda each: self._buttons(request, each)),
        ]

    def _buttons(self, request: HttpRequest, each: ScheduleStatus, *more: type[Action]) -> list[Button]:
        is_requested = each.state is not None and each.state.run_requested_at is not None
        offered = (CancelRun if is_requested else RunSchedule, DisableSchedule if each.is_enabled else EnableSchedule, *more)
        return [action.button(self, request, path_of(each.name), path_of(each.send)) for action in offered]


COLUMNS: Final[FileColumns] = {
    "schedule": "name", "message_type": "send", "cron": "cron", "when": "when", "defined_in": "origin",
    "in_settings": lambda each: each.origin is Origin.SETTINGS, "enabled": "is_enabled", "changed_by": "state.changed_by",
    "changed_at": "state.changed_at", "next_tick": "next_tick", "last_tick": "last_tick", "last_sent_at": "last_sent_at",
    "last_message_id": "last_message_id", "last_endpoint": "last_endpoint", "late_since": "late_since",
    "error": lambda each: each.error or None, "failed_at": "state.failed_at", "run_requested_at": "state.run_requested_at",
    "ran_at": "state.ran_at", "ran_message_id": lambda each: (each.state and each.state.ran_message_id) or None,
}  # fmt: skip


def _state(each: ScheduleStatus) -> State:
    if each.error:
        return State(Grade.ERROR, _("Failing"))
    if not each.is_enabled:
        return State(Grade.INFO, _("Disabled"))
    if each.late_since is not None:
        return State(Grade.WARNING, _("Late"))
    if each.origin is Origin.ELSEWHERE:
        return State(Grade.INFO, _("Not in the settings"))
    if each.is_over:
        return State(Grade.INFO, _("Finished"))
    return State(Grade.OK, _("OK")) if each.is_seen else State(Grade.INFO, _("New"))
