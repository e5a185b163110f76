"""The pages of the recurring messages in the admin: how they stand, running one now, enabling and disabling one."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Power, actor_of, button, missing
from sqlqueue_app.dashboard.confirming import Confirmation, Done, confirm
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paths import name_of_path, path_of
from sqlqueue_app.dashboard.schedule_texts import COLUMNS, exported_schedules, schedule_row
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import FailedMessage, Queue
from sqlqueue_app.operations.bulk.requesting import is_worker_alive
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.message_lookup import find_sent_message
from sqlqueue_app.operations.queue_looks import utc_now
from sqlqueue_app.operations.queue_problems import MIGRATE_COMMAND, ProblemKind, QueueProblem
from sqlqueue_app.operations.schedule_state import cancel_run, request_run, set_enabled
from sqlqueue_app.operations.schedule_status import ScheduleStatus, read_schedules
from sqlqueue_app.tables.clock import database_now

_ONE = "<str:name>/<str:message_type>/"


class ScheduleAdmin(PageAdmin):
    """The pages about recurring messages, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list, the last message of one, the actions."""
        return [
            self.looks("", self.changelist_view),
            self.looks(f"{_ONE}message/", self.message_view, "message"),
            self.acts(f"{_ONE}run/", self.run_view, "run"),
            self.acts(f"{_ONE}cancel-run/", self.cancel_run_view, "cancel_run"),
            self.acts(f"{_ONE}enable/", partial(self.enable_view, enabled=True), "enable"),
            self.acts(f"{_ONE}disable/", partial(self.enable_view, enabled=False), "disable"),
        ]

    # --- pages ----------------------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Every schedule of the settings, then those that the database knows besides."""
        now, found, problem = self._read()
        if wanted_format(request):
            return export(request, "schedules", COLUMNS, exported_schedules(found))
        return self.page(
            request,
            "schedules",
            live_seconds=LIVE_SECONDS,
            title=capfirst(str(self.opts.verbose_name_plural)),
            rows=[schedule_row(each, now, self._url(each, "message"), self._buttons(request, each)) for each in found],
            problem=problem,
            **(extra_context or {}),
        )

    def message_view(self, request: HttpRequest, name: str, message_type: str) -> HttpResponse:
        """Leads to the last message of a schedule, wherever it is; `run` in the query string: to that of the last run by hand."""
        each = self._find(name, message_type)
        if each is None:
            raise Http404(_("There is no such recurring message."))
        said = each.state
        is_run = "run" in request.GET and said is not None
        message_id = (said.ran_message_id if is_run and said is not None else each.last_message_id) or ""
        sent_by = (said.ran_endpoint if is_run and said is not None else each.last_endpoint) or ""
        found = find_sent_message(get_settings(), message_id, each.send, sent_by) if message_id else None
        url = ""
        if found is not None and found.failure is not None:
            url = self.url_of(FailedMessage, "message", found.failure)
        elif found is not None:
            url = self.url_of(Queue, "message", path_of(found.queue), found.row_version)
        if url:
            return HttpResponseRedirect(url)
        text = _("The message %(id)s is in no queue that it may have gone to, and has not failed: it was handled, or deleted.")
        if not message_id:
            text = _("No message of it was sent yet.")
        crumbs = (Crumb(each.name),)
        return self.problem(request, title=_("The message is gone"), text=text % {"id": message_id}, status=200, crumbs=crumbs)

    # --- actions --------------------------------------------------------------------------------------------------------------

    def run_view(self, request: HttpRequest, name: str, message_type: str) -> HttpResponse:
        """Asks, then has a worker send the message now."""
        each = self._found(request, name, message_type)

        def perform() -> Done:
            if not request_run(each.name, each.send):
                raise ValueError(_("A run is asked for already, and no worker has followed yet."))
            return Done(
                _("A run of %(name)s was asked for: a worker sends it within 10 seconds.") % {"name": each.name}, self.url()
            )

        warnings = []
        if not is_worker_alive():
            warnings.append(_("No worker is alive: the message is sent when one starts."))
        if each.cron is None:
            warnings.append(_("It is not in the settings of this site: it is sent only if a worker has it in its own."))
        return self._confirm(
            request,
            each,
            "run schedule",
            _("Run %(name)s now") % {"name": each.name},
            _("The first worker that looks sends the message, once, whether it is enabled or not; its ticks go on as they did."),
            _("Run it now"),
            perform,
            warnings=warnings,
        )

    def cancel_run_view(self, request: HttpRequest, name: str, message_type: str) -> HttpResponse:
        """Asks, then takes a request for a run back."""
        each = self._found(request, name, message_type)

        def perform() -> Done:
            if not cancel_run(each.name, each.send):
                raise ValueError(_("No run is asked for: a worker has sent it, or somebody has taken it back."))
            return Done(_("The run of %(name)s is not asked for any more.") % {"name": each.name}, self.url())

        title, text = _("Take back the run of %(name)s") % {"name": each.name}, _("If no worker has followed yet, nothing is sent.")
        return self._confirm(request, each, "cancel run of schedule", title, text, _("Take it back"), perform)

    def enable_view(self, request: HttpRequest, name: str, message_type: str, *, enabled: bool) -> HttpResponse:
        """Asks, then enables or disables a schedule."""
        each = self._found(request, name, message_type)

        def perform() -> Done:
            if not set_enabled(each.name, each.send, enabled=enabled, actor=actor_of(request)):
                raise ValueError(_("It is enabled already.") if enabled else _("It is disabled already."))
            done = _("%(name)s is enabled.") if enabled else _("%(name)s is disabled.")
            return Done(done % {"name": each.name}, self.url())

        title = (_("Enable %(name)s") if enabled else _("Disable %(name)s")) % {"name": each.name}
        text = _("Its message is sent from its next tick on. Ticks that have passed meanwhile are not made up for.")
        if not enabled:
            text = _("Workers do not send its message any more, until it is enabled. It can be run by hand.")
        action, submit = ("enable schedule", _("Enable")) if enabled else ("disable schedule", _("Disable"))
        return self._confirm(request, each, action, title, text, submit, perform)

    def _confirm(
        self, request: HttpRequest, each: ScheduleStatus, action: str, title: str, text: str, submit: str, perform: Any, **more: Any
    ) -> HttpResponse:
        asked = Confirmation(
            action=action,
            power=Power.SETTINGS,
            target=f"{each.name} ({each.send})",
            title=title,
            text=text,
            submit=submit,
            perform=perform,
            back_url=self.url(),
            facts=((_("Message type"), each.send), (_("When"), each.cron or "–")),
            crumbs=(Crumb(each.name),),
            **more,
        )
        return confirm(self, request, asked)

    # --- small parts ----------------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[Any, list[ScheduleStatus], QueueProblem | None]:
        """The time, the schedules, and why they cannot be read."""
        alias = managed_alias()
        try:
            with looking(alias, "read the recurring messages"):
                now = database_now(alias)
                return now, read_schedules(get_settings(), now, others=True), None
        except ConnectionLost:
            raise
        except DatabaseError as error:
            return utc_now(), [], QueueProblem(ProblemKind.UNREADABLE, str(error), command=MIGRATE_COMMAND)

    def _find(self, name: str, message_type: str) -> ScheduleStatus | None:
        """The schedule that two parts of an address name."""
        for each in self._read()[1]:
            if name_of_path(name, [each.name]) is not None and name_of_path(message_type, [each.send]) is not None:
                return each
        return None

    def _found(self, request: HttpRequest, name: str, message_type: str) -> ScheduleStatus:
        each = self._find(name, message_type)
        if each is None:
            raise missing(request, Power.SETTINGS, _("There is no such recurring message."))
        return each

    def _url(self, each: ScheduleStatus, page: str) -> str:
        return self.url(page, path_of(each.name), path_of(each.send))

    def _buttons(self, request: HttpRequest, each: ScheduleStatus) -> list[Button]:
        asked = each.state is not None and each.state.run_requested_at is not None
        first = (_("Take back the run"), "cancel_run") if asked else (_("Run now"), "run")
        second = (_("Disable"), "disable") if each.is_enabled else (_("Enable"), "enable")
        return [button(request, Power.SETTINGS, label, self._url(each, page)) for label, page in (first, second)]
