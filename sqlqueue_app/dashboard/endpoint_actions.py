"""Actions on endpoints and processes: pause, resume, concurrency, minimum of processes, removing a dead process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, button, not_found
from sqlqueue_app.dashboard.actions import CONFIRMED, ActionOutcome, Confirmation, Field
from sqlqueue_app.dashboard.formats import duration, number
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, name_of_path, path_of
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import Endpoint
from sqlqueue_app.receiving.instances import HEARTBEAT_SECONDS
from sqlqueue_app.status.control import pause, resume, set_concurrency
from sqlqueue_app.status.endpoints import MOST as MOST_MINIMUM
from sqlqueue_app.status.endpoints import read_minimums, set_minimum
from sqlqueue_app.status.instances import InstanceStatus, forget_dead, read_instances

if TYPE_CHECKING:
    from sqlqueue_app.dashboard.endpoints import EndpointAdmin

# Each is a thread with its own connection; databases rarely allow more.
MOST_CONCURRENCY: Final = 1000


def endpoint_action_pages(pages: EndpointAdmin) -> list[URLPattern]:
    """The pages of the actions on an endpoint and on one process."""
    one = "<str:name>/instances/<int:instance>/"
    return [
        pages.action_view("<str:name>/pause/", partial(_all_view, pages, paused=True), "pause"),
        pages.action_view("<str:name>/resume/", partial(_all_view, pages, paused=False), "resume"),
        pages.action_view("<str:name>/minimum/", partial(_minimum_view, pages), "minimum"),
        pages.action_view(f"{one}pause/", partial(_one_view, pages, paused=True), "pause_instance"),
        pages.action_view(f"{one}resume/", partial(_one_view, pages, paused=False), "resume_instance"),
        pages.action_view(f"{one}concurrency/", partial(_concurrency_view, pages), "concurrency"),
        pages.action_view(f"{one}remove/", partial(_remove_view, pages), "remove_instance"),
    ]


def endpoint_buttons(pages: EndpointAdmin, request: HttpRequest, name: str, instances: tuple[InstanceStatus, ...]) -> list[Button]:
    """The actions on all processes of an endpoint."""
    return [
        *pausing_buttons(pages, request, name, instances, (_("Pause"), _("Resume"))),
        button(request, Permission.CONTROL, _("Set the minimum of processes"), pages.url("minimum", path_of(name))),
    ]


def pausing_buttons(
    pages: PageAdmin, request: HttpRequest, name: str, instances: Iterable[InstanceStatus], labels: tuple[str, str]
) -> list[Button]:
    """Pause and resume for all processes of an endpoint, of which `instances` are, on any page."""
    alive = [each for each in instances if each.alive]
    nobody = "" if alive else _("No process of it is alive.")
    paused = _("All its processes are asked to pause.") if alive and all(each.paused for each in alive) else ""
    running = _("None of its processes is asked to pause.") if alive and not any(each.paused for each in alive) else ""
    pause, resume = (pages.url_of(Endpoint, page, path_of(name)) for page in ("pause", "resume"))
    return [
        button(request, Permission.CONTROL, labels[0], pause, reason=nobody or paused),
        button(request, Permission.CONTROL, labels[1], resume, reason=nobody or running),
    ]


def instance_buttons(pages: EndpointAdmin, request: HttpRequest, each: InstanceStatus) -> tuple[Button, ...]:
    """The actions on one process that apply to its state."""

    def to(label: str, page: str, *, dangerous: bool = False) -> Button:
        url = pages.url(page, path_of(each.endpoint), each.id)
        return button(request, Permission.CONTROL, label, url, dangerous=dangerous)

    if not each.alive:
        return (to(_("Remove"), "remove_instance", dangerous=True),)
    first = to(_("Resume"), "resume_instance") if each.paused else to(_("Pause"), "pause_instance")
    return (first, to(_("Concurrency"), "concurrency"))


def _all_view(pages: EndpointAdmin, request: HttpRequest, name: str, *, paused: bool) -> HttpResponse:
    endpoint, instances = _found(request, name)
    alive = [each for each in instances if each.alive]

    def perform() -> ActionOutcome:
        (pause if paused else resume)(endpoint)
        return ActionOutcome(_request_sent(len(alive)), pages.endpoint_url(endpoint), len(alive))

    title = _("Pause %(name)s") if paused else _("Resume %(name)s")
    confirmation = _pausing(pages, endpoint, endpoint, title % {"name": endpoint}, perform, paused=paused)
    blocked = "" if alive else _("No process of it is alive.")
    facts = ((_("Live processes"), number(len(alive))),)
    return replace(confirmation, blocked=blocked, facts=facts, count=len(alive)).answer(pages, request)


def _one_view(pages: EndpointAdmin, request: HttpRequest, name: str, instance: int, *, paused: bool) -> HttpResponse:
    endpoint, each = _found_one(request, name, instance)

    def perform() -> ActionOutcome:
        (pause if paused else resume)(endpoint, host=each.host, pid=each.pid)
        return ActionOutcome(_request_sent(1), pages.endpoint_url(endpoint))

    title = _("Pause the process %(pid)s of %(name)s") if paused else _("Resume the process %(pid)s of %(name)s")
    words = title % {"pid": each.pid, "name": endpoint}
    confirmation = _pausing(pages, endpoint, _target(each), words, perform, paused=paused)
    return replace(confirmation, blocked=_not_alive(each), facts=_facts(each)).answer(pages, request)


def _pausing(
    pages: EndpointAdmin, endpoint: str, target: str, title: str, perform: Callable[[], ActionOutcome], *, paused: bool
) -> Confirmation:
    text = _(
        "Messages that are being handled are finished, then nothing more is received from main queue and satellites; replies are "
        "received on, and background work goes on. A process that is started later receives."
    )
    if not paused:
        text = _("It receives again.")
    return Confirmation(
        action="pause" if paused else "resume",
        permission=Permission.CONTROL,
        target=target,
        title=title,
        text=f"{text} {_follows()}",
        submit=_("Pause") if paused else _("Resume"),
        perform=perform,
        back_url=pages.endpoint_url(endpoint),
        crumbs=(Crumb(endpoint, pages.endpoint_url(endpoint)),),
    )


def _concurrency_view(pages: EndpointAdmin, request: HttpRequest, name: str, instance: int) -> HttpResponse:
    endpoint, each = _found_one(request, name, instance)
    text = request.POST.get("concurrency", str(each.concurrency)).strip()
    wanted, errors = _read_concurrency(text) if CONFIRMED in request.POST else (each.concurrency, ())

    def perform() -> ActionOutcome:
        set_concurrency(endpoint, wanted, host=each.host, pid=each.pid)
        return ActionOutcome(_request_sent(1), pages.endpoint_url(endpoint))

    return Confirmation(
        action="concurrency",
        permission=Permission.CONTROL,
        target=f"{_target(each)}: {each.concurrency} → {text[:20]}",
        title=_("Concurrency of the process %(pid)s of %(name)s") % {"pid": each.pid, "name": endpoint},
        text=_("How many messages it handles at once, at most, until its restart, which goes back to the settings.")
        + f" {_follows()}",
        submit=_("Change"),
        perform=perform,
        back_url=pages.endpoint_url(endpoint),
        fields=(
            Field(
                "concurrency", _("Messages at once"), text, "number",
                help=_("Each needs a thread and a connection to the database."), minimum=1, maximum=MOST_CONCURRENCY,
            ),
        ),
        errors=errors,
        blocked=_not_alive(each),
        facts=_facts(each),
        crumbs=(Crumb(endpoint, pages.endpoint_url(endpoint)),),
    ).answer(pages, request)  # fmt: skip


def _read_concurrency(text: str) -> tuple[int, tuple[str, ...]]:
    wanted = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if 1 <= wanted <= MOST_CONCURRENCY:
        return wanted, ()
    error = _("The concurrency cannot be “%(text)s”: expected a whole number from 1 to %(most)s. To receive nothing, pause.")
    return 0, (error % {"text": text[:50], "most": number(MOST_CONCURRENCY)},)


def _minimum_view(pages: EndpointAdmin, request: HttpRequest, name: str) -> HttpResponse:
    endpoint, instances = _found(request, name)
    known = read_minimums().get(endpoint, 0)
    text = request.POST.get("minimum", str(known or "")).strip()
    wanted, errors = _read_minimum(text)

    def perform() -> ActionOutcome:
        set_minimum(endpoint, wanted, actor=actor_of(request))
        words = {"count": number(wanted), "name": endpoint}
        done = _("Nothing is expected of %(name)s any more.") % words
        if wanted:
            done = _("Of %(name)s at least this many live processes are expected: %(count)s.") % words
        return ActionOutcome(done, pages.endpoint_url(endpoint))

    return Confirmation(
        action="minimum",
        permission=Permission.CONTROL,
        target=f"{endpoint}: {known} → {text[:20] or 0}",
        title=_("Minimum of processes of %(name)s") % {"name": endpoint},
        text=_("With fewer live processes the endpoint is said to be below its minimum, here and by sqlqueue_health."),
        submit=_("Set the minimum"),
        perform=perform,
        back_url=pages.endpoint_url(endpoint),
        fields=(
            Field(
                "minimum", _("At least so many live processes"), text, "number",
                help=_("0 or nothing: none is expected."), is_required=False, minimum=0, maximum=MOST_MINIMUM,
            ),
        ),
        errors=errors,
        facts=((_("Live processes"), number(sum(each.alive for each in instances))),),
        crumbs=(Crumb(endpoint, pages.endpoint_url(endpoint)),),
    ).answer(pages, request)  # fmt: skip


def _read_minimum(text: str) -> tuple[int, tuple[str, ...]]:
    if not text:
        return 0, ()
    if text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= MOST_MINIMUM:
        return int(text), ()
    error = _("The minimum cannot be “%(text)s”: expected a whole number from 0 to %(most)s, or nothing.")
    return 0, (error % {"text": text[:50], "most": number(MOST_MINIMUM)},)


def _remove_view(pages: EndpointAdmin, request: HttpRequest, name: str, instance: int) -> HttpResponse:
    endpoint, each = _found_one(request, name, instance)

    def perform() -> ActionOutcome:
        if not forget_dead(each.id):
            raise ConfigurationError(_("The process was heard of meanwhile, or its row is gone: nothing was removed."))
        return ActionOutcome(_("The row of the process was removed."), pages.endpoint_url(endpoint))

    return Confirmation(
        action="remove_instance",
        permission=Permission.CONTROL,
        target=_target(each),
        title=_("Remove the process %(pid)s of %(name)s") % {"pid": each.pid, "name": endpoint},
        text=_("It is dead, and its row is deleted. Its callback queue is free then; the replies in it stay."),
        submit=_("Remove"),
        perform=perform,
        back_url=pages.endpoint_url(endpoint),
        blocked=_("The process is alive: stop it first.") if each.alive else "",
        facts=_facts(each),
        is_dangerous=True,
        crumbs=(Crumb(endpoint, pages.endpoint_url(endpoint)),),
    ).answer(pages, request)


def _found(request: HttpRequest, path: str) -> tuple[str, tuple[InstanceStatus, ...]]:
    """An endpoint of the settings, or one with a registered process or a minimum, and its processes."""
    instances, _rows, problem = read_instances()
    if problem is not None:
        raise ConfigurationError(problem.text)
    name = name_of_path(path, {*get_settings().senders, *(each.endpoint for each in instances), *read_minimums()})
    if name is None:
        raise not_found(request, Permission.CONTROL, _("There is no endpoint “%(name)s”.") % {"name": path})
    return name, tuple(each for each in instances if each.endpoint == name)


def _found_one(request: HttpRequest, path: str, instance: int) -> tuple[str, InstanceStatus]:
    endpoint, instances = _found(request, path)
    each = next((each for each in instances if each.id == instance), None)
    if each is None:
        raise not_found(request, Permission.CONTROL, _("The process is not registered any more."))
    return endpoint, each


def _target(each: InstanceStatus) -> str:
    return f"{each.endpoint} on {each.host} ({each.pid})"


def _facts(each: InstanceStatus) -> tuple[tuple[str, str], ...]:
    return (
        (_("Instance"), each.name),
        (_("Machine and process"), f"{each.host} ({each.pid})"),
        (_("Last heartbeat"), _("%(age)s ago") % {"age": duration(each.heartbeat_age)}),
        (_("Live threads"), number(each.live_threads)),
    )


def _not_alive(each: InstanceStatus) -> str:
    return "" if each.alive else _("The process is dead: it follows nothing.")


def _follows() -> str:
    return _("A process follows at its next heartbeat, within %(seconds)s seconds.") % {"seconds": number(int(HEARTBEAT_SECONDS))}


def _request_sent(count: int) -> str:
    words = ngettext("%(count)s process was asked.", "%(count)s processes were asked.", count) % {"count": number(count)}
    return f"{words} {_follows()}"
