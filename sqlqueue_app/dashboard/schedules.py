"""The pages of recurring messages: their state, running one now, enabling and disabling."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.browsing.messages import find_sent_message
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, not_found
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, State
from sqlqueue_app.dashboard.lists import WIDE, FileColumns, TableColumn, export, table, template_html, wanted_format, with_notes
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, name_of_path, path_of
from sqlqueue_app.failures.operations import is_worker_alive
from sqlqueue_app.models import FailedMessage, Queue
from sqlqueue_app.status.schedules import ScheduleStatus, cancel_run, read_all_schedules, request_run, set_enabled

_ONE = "<str:name>/<str:message_type>/"


class ScheduleAction(Action):
    """An action on a recurring message."""

    permission = Permission.SETTINGS
    schedule: ScheduleStatus

    def find(self, **key: Any) -> None:
        found = self.schedule = _find(self.request, self.permission, **key)
        self.words = {"name": found.name}
        self.target, self.back_url = f"{found.name} ({found.send})", self.pages.url()
        self.facts = ((_("Message type"), found.send), (_("Schedule"), found.cron or "–"))
        self.crumbs = (Crumb(found.name),)


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
        if self.schedule.cron is None:
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
    """Enables a schedule."""

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
    """Disables a schedule."""

    name, page, route = "disable schedule", "disable", f"{_ONE}disable/"
    logged_as = gettext_lazy("Disable a schedule")
    label, title = gettext_lazy("Disable"), gettext_lazy("Disable %(name)s")
    text = gettext_lazy("Workers do not send its message until it is enabled again. You can still run it now.")
    enabled, done, unchanged = False, gettext_lazy("%(name)s is disabled."), gettext_lazy("It is disabled already.")


def _find(request: HttpRequest, permission: Permission, name: str, message_type: str) -> ScheduleStatus:
    """The schedule that two URL parts name; raises `not_found` if it does not exist."""
    for each in read_all_schedules(get_settings())[1]:
        if name_of_path(name, [each.name]) and name_of_path(message_type, [each.send]):
            return each
    raise not_found(request, permission, _("There is no such recurring message."))


class ScheduleAdmin(PageAdmin):
    """The pages of recurring messages. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = (RunSchedule, CancelRun, EnableSchedule, DisableSchedule)
    routes: ClassVar = {"message": f"{_ONE}message/"}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The schedules of the settings, then others in the database."""
        now, found, problem = read_all_schedules(get_settings())
        if wanted_format(request):
            return export(request, "schedules", COLUMNS, found)
        caption = _("Messages that workers send at certain times, by the setting SCHEDULES")
        return self.page(
            request,
            "schedules",
            live_seconds=LIVE_SECONDS,
            table=table(caption, self._columns(request, now), found, lambda each: f"schedule {each.name} {each.send}"),
            problem=problem,
            **(extra_context or {}),
        )

    def message_view(self, request: HttpRequest, name: str, message_type: str) -> HttpResponse:
        """Redirect to the last message of a schedule, wherever it is; with `run` to that of the last manual run."""
        each = _find(request, Permission.VIEW, name, message_type)
        by_hand = each.state if "run" in request.GET else None
        message_id = (by_hand.ran_message_id if by_hand else each.last_message_id) or ""
        sent_by = (by_hand.ran_endpoint if by_hand else each.last_endpoint) or ""
        found = find_sent_message(get_settings(), message_id, each.send, sent_by) if message_id else None
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
        crumbs = (Crumb(each.name),)
        return self.problem(request, title=_("The message is gone"), text=text % {"id": message_id}, status=200, crumbs=crumbs)

    def _columns(self, request: HttpRequest, now: datetime) -> list[TableColumn[ScheduleStatus]]:
        def last(each: ScheduleStatus) -> SafeString:
            url = self.url("message", path_of(each.name), path_of(each.send))
            return template_html("schedule_last", schedule=each, url=url)

        def buttons(each: ScheduleStatus) -> list[Button]:
            is_requested = each.state is not None and each.state.run_requested_at is not None
            offered = (CancelRun if is_requested else RunSchedule, DisableSchedule if each.is_enabled else EnableSchedule)
            return [action.button(self, request, path_of(each.name), path_of(each.send)) for action in offered]

        return [
            TableColumn(_("Schedule"), lambda each: with_notes(each.name, each.send), WIDE),
            TableColumn(_("When"), lambda each: format_html('<code class="sq-nowrap">{}</code>', each.cron or "–")),
            TableColumn(_("State"), lambda each: template_html("schedule_state", schedule=each, state=_state(each), now=now), WIDE),
            TableColumn(_("Next"), lambda each: with_notes(*each.next_ticks) if each.is_enabled and each.next_ticks else None),
            TableColumn(_("Last"), last, WIDE),
            TableColumn(_("Actions"), buttons),
        ]


COLUMNS: Final[FileColumns] = {
    "schedule": "name", "message_type": "send", "cron": "cron", "in_settings": lambda each: each.cron is not None,
    "enabled": "is_enabled", "changed_by": "state.changed_by", "changed_at": "state.changed_at", "next_tick": "next_tick",
    "last_tick": "last_tick", "last_sent_at": "last_sent_at", "last_message_id": "last_message_id",
    "last_endpoint": "last_endpoint", "late_since": "late_since", "error": lambda each: each.error or None,
    "failed_at": "state.failed_at", "run_requested_at": "state.run_requested_at", "ran_at": "state.ran_at",
    "ran_message_id": lambda each: (each.state and each.state.ran_message_id) or None,
}  # fmt: skip


def _state(each: ScheduleStatus) -> State:
    if each.error:
        return State(Grade.ERROR, _("Failing"))
    if not each.is_enabled:
        return State(Grade.INFO, _("Disabled"))
    if each.late_since is not None:
        return State(Grade.WARNING, _("Late"))
    if each.cron is None:
        return State(Grade.INFO, _("Not in the settings"))
    return State(Grade.OK, _("OK")) if each.is_seen else State(Grade.INFO, _("New"))
