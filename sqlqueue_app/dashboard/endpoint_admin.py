"""The pages of the endpoints: all of them, and one with its charts, processes, queues, subscriptions, handlers and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.conf.containers import keys_of
from sqlqueue_app.dashboard.access import Power, may, reason_of
from sqlqueue_app.dashboard.charts import Chart
from sqlqueue_app.dashboard.endpoint_actions import endpoint_action_pages, endpoint_buttons, instance_buttons
from sqlqueue_app.dashboard.endpoint_charts import endpoint_charts
from sqlqueue_app.dashboard.endpoint_rows import (
    COLUMNS,
    TYPE_COLUMNS,
    MeasureRow,
    endpoint_row,
    exported_endpoints,
    exported_types,
    measure_row,
    process_row,
)
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.formats import depth_number
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.overview import WORKER_COMMAND, queue_row
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paths import name_of_path, path_of
from sqlqueue_app.dashboard.periods import PERIODS, Period, period_of
from sqlqueue_app.endpoint import Endpoint as RunningEndpoint
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, SqlQueueError
from sqlqueue_app.models import DelayedMessage, FailedMessage, Queue, Subscription
from sqlqueue_app.operations.endpoint_measures import Measured, measures_by_type_and_instance, measures_over_time
from sqlqueue_app.operations.endpoint_status import EndpointStatus, read_endpoints
from sqlqueue_app.operations.failure_selection import FailureSelection
from sqlqueue_app.operations.instance_status import read_instances, threads_on
from sqlqueue_app.operations.known_queues import QueueKind
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.minimums import read_minimums
from sqlqueue_app.operations.sample_storage import read_samples
from sqlqueue_app.operations.subscriptions import SubscriptionState, read_subscriptions


@dataclass(frozen=True, slots=True)
class History:
    """What an endpoint did in a period."""

    measured: Mapping[str, Measured]
    charts: list[Chart]
    by_type: list[MeasureRow]
    by_instance: list[MeasureRow]


class EndpointAdmin(PageAdmin):
    """The pages about endpoints, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list of endpoints, one endpoint, the actions."""
        return [
            self.looks("", self.changelist_view),
            self.looks("<str:name>/", self.endpoint_view, "endpoint"),
            *endpoint_action_pages(self),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Every endpoint of the settings, and others with a registered process."""
        found = read_endpoints(get_settings())
        if wanted_format(request):
            return export(request, "endpoints", COLUMNS, exported_endpoints(found))
        return self.page(
            request,
            "endpoints",
            title=capfirst(str(self.opts.verbose_name_plural)),
            rows=[endpoint_row(each, self.endpoint_url(each.name)) for each in found.endpoints],
            problem=found.problem,
            worker_command=WORKER_COMMAND,
            live_seconds=LIVE_SECONDS,
            **(extra_context or {}),
        )

    def endpoint_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """One endpoint."""
        settings = get_settings()
        found = read_endpoints(settings, _known_name(name, settings))
        if not found.endpoints:
            return self._unknown(request, name)
        each = found.endpoints[0]
        period = period_of(request)
        history = self._history(each, period, found.now)
        if wanted_format(request):
            return export(request, f"{each.name} {period.name}", TYPE_COLUMNS, exported_types(history.measured if history else {}))
        handlers, handlers_problem = _handlers(settings, each)
        return self.page(
            request,
            "endpoint",
            title=_("Endpoint %(name)s") % {"name": each.name},
            crumbs=(Crumb(each.name),),
            endpoint=endpoint_row(each, self.endpoint_url(each.name)),
            buttons=endpoint_buttons(self, request, each.name, each.instances),
            failures_url=self._failures_url(each.name),
            delayed_url=self.url_of(DelayedMessage, "table", path_of(each.name)) if each.is_in_settings else "",
            subscriptions_url=self.url_of(Subscription),
            live_seconds=period.refresh_seconds,
            history=history,
            period=period,
            periods=PERIODS,
            processes=self._processes(request, each),
            refused="" if may(request, Power.CONTROL) else reason_of(Power.CONTROL),
            worker_command=WORKER_COMMAND,
            queues=self._queue_rows(each),
            subscriptions=_subscriptions(settings, each.name),
            handlers=handlers,
            handlers_problem=handlers_problem,
            configuration=_configuration(settings, each.name),
        )

    def endpoint_url(self, name: str) -> str:
        """The address of the page of an endpoint."""
        return self.url("endpoint", path_of(name))

    # --- parts of the page ----------------------------------------------------------------------------------------------------

    def _unknown(self, request: HttpRequest, name: str) -> HttpResponse:
        text = _("There is no endpoint “%(name)s”: neither the settings nor a registered process name it.") % {"name": name}
        return self.problem(request, title=_("Endpoint not found"), text=text, status=404, crumbs=(Crumb(name),))

    def _failures_url(self, name: str) -> str:
        url = self.url_of(FailedMessage, "messages")
        return f"{url}?{FailureSelection(endpoint=name).to_query()}" if url else ""

    def _queue_url(self, name: str) -> str:
        return self.url_of(Queue, "messages", path_of(name)) if self.admin_site.is_registered(Queue) else ""

    def _processes(self, request: HttpRequest, each: EndpointStatus) -> list[Any]:
        depths = {
            look.queue.address.table: depth_number(look.depth)
            for look in each.queues
            if look.queue.kind is QueueKind.CALLBACK and look.depth is not None
        }
        return [
            process_row(instance, depths, self._queue_url, instance_buttons(self, request, instance)) for instance in each.instances
        ]

    def _queue_rows(self, each: EndpointStatus) -> list[Any]:
        alive = {each.name} if each.alive else set()
        holders = {instance.callback_queue: instance for instance in each.instances if instance.callback_queue}
        return [
            queue_row(
                look,
                self._queue_url,
                alive,
                holders.get(look.queue.address.table),
                threads=threads_on(look.queue.address.table, each.instances),
            )
            for look in each.queues
            # Of the pool of callback queues of this machine, those that are nobody's are shown by the page of the queues.
            if look.queue.kind is not QueueKind.CALLBACK or look.queue.address.table in holders
        ]

    def _history(self, each: EndpointStatus, period: Period, now: datetime | None) -> History | None:
        if now is None:
            return None  # the tables of `migrate` are missing
        alias = managed_alias()
        names = [look.name for look in each.queues if look.queue.kind in (QueueKind.MAIN, QueueKind.SATELLITE)]
        try:
            with looking(alias, "read the samples of an endpoint"):
                over_time = measures_over_time(alias, each.name, period.length, now)
                by_type, by_instance = measures_by_type_and_instance(alias, each.name, period.length, now)
                queued = read_samples(alias, names, period.length, now)
        except ConnectionLost:
            raise
        except DatabaseError:
            return None
        samples = [sample for taken in queued.values() for sample in taken]
        return History(
            by_type,
            endpoint_charts(over_time, samples, period, now),
            [measure_row(name, measured) for name, measured in by_type.items()],
            [measure_row(name, measured) for name, measured in by_instance.items()],
        )


def _known_name(path: str, settings: Settings) -> str:
    """The endpoint that a part of an address names; the text as it is where there is none of this name."""
    name = name_of_path(path, settings.senders)
    if name is None:
        name = name_of_path(path, {*(each.endpoint for each in read_instances()[0]), *read_minimums()})
    return path if name is None else name


def _subscriptions(settings: Settings, name: str) -> list[SubscriptionState] | None:
    """What the endpoint has subscribed to; None where there is no table of subscriptions."""
    try:
        with looking(settings.database, "read the subscriptions"):
            return read_subscriptions(settings, name)
    except ConnectionLost:
        raise
    except Exception:  # noqa: BLE001 - no such table; or handlers that cannot be imported, which the page says
        return None


def _handlers(settings: Settings, each: EndpointStatus) -> tuple[list[str], str]:
    """The message types that it handles, as this process knows them; or why that cannot be told."""
    if not each.is_in_settings:
        return [], _("The endpoint is not in the settings of this site.")
    try:
        return RunningEndpoint(settings, each.name).handlers.message_types, ""
    except Exception as error:  # noqa: BLE001 - modules of the project are imported, and may raise anything
        return [], str(error) if isinstance(error, SqlQueueError) else f"{type(error).__name__}: {error}"


def _configuration(settings: Settings, name: str) -> list[tuple[str, str]]:
    """The settings of the endpoint as they are in effect in this process; there are no secrets among them."""
    section = settings.senders.get(name)
    if section is None:
        return []
    return [(key, _in_words(getattr(section, field.name))) for key, field in keys_of(type(section)).items()]


def _in_words(value: object) -> str:
    if value is None or value == () or value == {}:
        return "–"
    if isinstance(value, tuple):
        return ", ".join(_in_words(each) for each in value)
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
    if hasattr(value, "items"):
        return ", ".join(str(key) for key in value)  # type: ignore[attr-defined]
    return str(value)
