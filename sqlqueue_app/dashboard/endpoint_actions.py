"""Actions on endpoints and processes: pause, resume, concurrency, minimum of processes, removing a dead process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from django import forms
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _, gettext_lazy, ngettext_lazy

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, not_found
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.formats import duration, number
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, name_of_path, path_of
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import Endpoint
from sqlqueue_app.receiving.instances import HEARTBEAT_SECONDS
from sqlqueue_app.status.control import pause, resume, set_concurrency
from sqlqueue_app.status.endpoints import MAX_MINIMUM, read_minimums, set_minimum
from sqlqueue_app.status.instances import InstanceStatus, forget_dead, read_instances

_FOLLOWS: Final = gettext_lazy("A process follows at its next heartbeat, within %(seconds)s seconds.")


class EndpointAction(Action):
    """An action on all processes of an endpoint."""

    permission = Permission.CONTROL
    endpoint: str
    instances: list[InstanceStatus]
    # The machine and process id of a single process.
    only: Mapping[str, Any] = {}

    def find(self, **key: Any) -> None:
        instances, _rows, problem = read_instances()
        if problem is not None:
            raise ConfigurationError(problem.text)
        known = {*get_settings().senders, *(each.endpoint for each in instances), *read_minimums()}
        name = name_of_path(key["name"], known)
        if name is None:
            raise not_found(self.request, self.permission, _("There is no endpoint “%(name)s”.") % {"name": key["name"]})
        self.endpoint = name
        self.instances = [each for each in instances if each.endpoint == name]
        self.target, self.back_url = name, self.pages.url("endpoint", path_of(name))
        self.words = {"name": name, "seconds": number(int(HEARTBEAT_SECONDS))}
        self.crumbs = (Crumb(name, self.back_url),)
        self.count = sum(each.alive for each in self.instances)
        self.facts = ((_("Live processes"), number(self.count)),)

    def outcome(self, text: str | Promise) -> ActionOutcome:
        """The outcome of a request to this many live processes."""
        words = {**self.words, "count": number(self.count), "number": self.count}
        return ActionOutcome(f"{text % words} {_FOLLOWS % words}", self.back_url, self.count)

    def start_from(self, field: str, present: int) -> None:
        """Show the present value in the form, and name the change in the audit log."""
        self.start_with(**{field: present or ""})
        self.target += f": {present} → {self.request.POST.get(field, str(present))[:20] or 0}"


class InstanceAction(EndpointAction):
    """An action on one process."""

    instance: InstanceStatus

    def find(self, **key: Any) -> None:
        super().find(**key)
        found = next((each for each in self.instances if each.id == key["instance"]), None)
        if found is None:
            raise not_found(self.request, self.permission, _("The process is no longer registered."))
        self.instance = found
        self.target = f"{found.endpoint} on {found.host} ({found.pid})"
        self.count = 1
        self.only = {"host": found.host, "pid": found.pid}
        self.words = {**self.words, "pid": found.pid}
        self.blocked = "" if found.alive else _("The process is dead.")
        self.facts = (
            (_("Instance"), found.name),
            (_("Machine and process"), f"{found.host} ({found.pid})"),
            (_("Last heartbeat"), _("%(age)s ago") % {"age": duration(found.heartbeat_age)}),
            (_("Live threads"), number(found.live_threads)),
        )


class PauseEndpoint(EndpointAction):
    name, page, route = "pause", "pause", "<str:name>/pause/"
    logged_as = gettext_lazy("Pause an endpoint")
    label, title = gettext_lazy("Pause"), gettext_lazy("Pause %(name)s")
    text = gettext_lazy(
        "Messages that are being handled are finished. Then nothing more is received from the main queue and the satellites; "
        "replies are still received, and background work continues. A process that starts later receives. "
        "A process follows at its next heartbeat, within %(seconds)s seconds."
    )
    request_change: Callable[..., int] = staticmethod(pause)
    done = ngettext_lazy("Pause requested for %(count)s process.", "Pause requested for %(count)s processes.", "number")

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.blocked = self.blocked or ("" if self.count else _("No live process."))

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        self.request_change(self.endpoint, **self.only, by=actor_of(self.request).name)
        return self.outcome(self.done)


class ResumeEndpoint(PauseEndpoint):
    name, page, route = "resume", "resume", "<str:name>/resume/"
    logged_as = gettext_lazy("Resume an endpoint")
    label, title = gettext_lazy("Resume"), gettext_lazy("Resume %(name)s")
    text = gettext_lazy("It receives again. A process follows at its next heartbeat, within %(seconds)s seconds.")
    request_change = staticmethod(resume)
    done = ngettext_lazy("Resume requested for %(count)s process.", "Resume requested for %(count)s processes.", "number")


_ONE: Final = "<str:name>/instances/<int:instance>"


class PauseInstance(PauseEndpoint, InstanceAction):
    page, route = "pause_instance", f"{_ONE}/pause/"
    title = gettext_lazy("Pause the process %(pid)s of %(name)s")


class ResumeInstance(ResumeEndpoint, InstanceAction):
    page, route = "resume_instance", f"{_ONE}/resume/"
    title = gettext_lazy("Resume the process %(pid)s of %(name)s")


class ConcurrencyForm(forms.Form):
    """The number of messages that a process handles at once."""

    # Each is a thread with its own connection; databases rarely allow more.
    concurrency = forms.IntegerField(
        label=gettext_lazy("Concurrency"), min_value=1, max_value=1000,
        help_text=gettext_lazy("Each needs a thread and a connection to the database. To receive nothing, pause."),
    )  # fmt: skip


class SetConcurrency(InstanceAction):
    name, page, route = "concurrency", "concurrency", f"{_ONE}/concurrency/"
    logged_as = gettext_lazy("Set the concurrency")
    label, title = gettext_lazy("Concurrency"), gettext_lazy("Concurrency of the process %(pid)s of %(name)s")
    text = gettext_lazy(
        "The maximum number of messages that it handles at once until it restarts; then the settings apply again. "
        "A process follows at its next heartbeat, within %(seconds)s seconds."
    )
    submit = gettext_lazy("Change")
    form_class = ConcurrencyForm

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.start_from("concurrency", self.instance.concurrency)

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        set_concurrency(self.endpoint, data["concurrency"], **self.only)
        self.words = {**self.words, "concurrency": number(data["concurrency"])}
        return self.outcome(_("Concurrency %(concurrency)s requested for 1 process."))


class RemoveInstance(InstanceAction):
    """Deletes the row of a dead process."""

    name, page, route = "remove_instance", "remove_instance", f"{_ONE}/remove/"
    logged_as = gettext_lazy("Remove a process")
    label, title = gettext_lazy("Remove"), gettext_lazy("Remove the process %(pid)s of %(name)s")
    text = gettext_lazy("It is dead, and its row is deleted. Its callback queue becomes free; the replies in it stay.")
    is_dangerous = True

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.blocked = _("The process is alive: stop it first.") if self.instance.alive else ""

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        if not forget_dead(self.instance.id):
            raise ConfigurationError(_("The process is alive again, or its row is gone: nothing was removed."))
        return ActionOutcome(_("The row of the process was removed."), self.back_url)


class MinimumForm(forms.Form):
    """The expected number of live processes."""

    minimum = forms.IntegerField(
        label=gettext_lazy("Minimum of live processes"), required=False, min_value=0, max_value=MAX_MINIMUM,
        help_text=gettext_lazy("0 or empty: none is expected."),
    )  # fmt: skip


class SetMinimum(EndpointAction):
    """Sets the expected number of live processes of an endpoint."""

    name, page, route = "minimum", "minimum", "<str:name>/minimum/"
    label, title = gettext_lazy("Set the minimum of processes"), gettext_lazy("Minimum of processes of %(name)s")
    text = gettext_lazy("With fewer live processes the endpoint is below its minimum: an alert here and in sqlqueue_health.")
    submit = gettext_lazy("Set the minimum")
    form_class = MinimumForm

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.start_from("minimum", read_minimums().get(self.endpoint, 0))

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        minimum = data["minimum"] or 0
        set_minimum(self.endpoint, minimum, actor=actor_of(self.request))
        words = {"count": number(minimum), "name": self.endpoint}
        done = _("%(name)s: at least %(count)s live processes.") if minimum else _("%(name)s no longer has a minimum of processes.")
        return ActionOutcome(done % words, self.back_url)


ENDPOINT_ACTIONS: Final = (
    *(PauseEndpoint, ResumeEndpoint, SetMinimum),
    *(PauseInstance, ResumeInstance, SetConcurrency, RemoveInstance),
)


def pausing_buttons(
    pages: PageAdmin, request: HttpRequest, name: str, instances: Iterable[InstanceStatus], labels: tuple[str, str] = ("", "")
) -> list[Button]:
    """Pause and resume for all processes of an endpoint, of which `instances` are, on any page of a site with endpoints."""
    paused = {each.paused for each in instances if each.alive}
    none = "" if paused else _("No live process.")
    no_pause, no_resume = "" if False in paused else _("Paused."), "" if True in paused else _("Not paused.")
    endpoints: Any = pages.admin_site.get_model_admin(Endpoint)
    return [
        PauseEndpoint.button(endpoints, request, path_of(name), label=labels[0], reason=none or no_pause),
        ResumeEndpoint.button(endpoints, request, path_of(name), label=labels[1], reason=none or no_resume),
    ]


def instance_buttons(pages: PageAdmin, request: HttpRequest, each: InstanceStatus) -> list[Button]:
    """The actions on one process that apply to its state."""
    usual: tuple[type[Action], ...] = (ResumeInstance if each.paused else PauseInstance, SetConcurrency)
    offered = usual if each.alive else (RemoveInstance,)
    return [action.button(pages, request, path_of(each.endpoint), each.id) for action in offered]
