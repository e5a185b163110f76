"""The pages of endpoints: the list, one endpoint with charts, processes, queues and handlers, and the registered instances."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.conf.validation import keys_of
from sqlqueue_app.dashboard.access import Permission, may, refusal_text
from sqlqueue_app.dashboard.actions import Action
from sqlqueue_app.dashboard.charts import PERIODS, Chart, Period, Points, Series, line_chart, period_of
from sqlqueue_app.dashboard.endpoint_actions import ENDPOINT_ACTIONS, endpoint_buttons, instance_buttons
from sqlqueue_app.dashboard.formats import (
    WORKER_COMMAND,
    Grade,
    Number,
    State,
    ago_html,
    counts,
    depth_number,
    duration,
    number,
    per_second,
    rate,
    times,
)
from sqlqueue_app.dashboard.lists import export, wanted_format
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.overview import (
    InstanceRow,
    QueueRow,
    heartbeat_html,
    instance_row,
    instance_state,
    queue_row,
    unreceived_state,
)
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, ReadOnlyAdmin, label_of_page, name_of_path, navigation, path_of
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.errors import ConnectionLost, SqlQueueError
from sqlqueue_app.models import DelayedMessage, FailedMessage, Instance, Queue, QueueSample, Subscription
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.receiving.instances import HEARTBEAT_SECONDS, gone_instances, is_dead, managed_alias
from sqlqueue_app.status.endpoints import (
    Endpoints,
    EndpointStatus,
    Measured,
    measures_by_type_and_instance,
    measures_over_time,
    read_endpoints,
    read_minimums,
    resolution_of,
)
from sqlqueue_app.status.instances import InstanceState, InstanceStatus, read_instances, state_of, threads_of_row
from sqlqueue_app.status.queues import QueueKind
from sqlqueue_app.status.samples import FINEST, page_sampling, read_samples, resolution_for
from sqlqueue_app.status.subscriptions import SubscriptionState, read_subscriptions
from sqlqueue_app.tables.connections import guarded_read, optional_read


@dataclass(frozen=True, slots=True)
class History:
    """The measurements of an endpoint over a period."""

    measured: Mapping[str, Measured]
    charts: list[Chart]
    by_type: list[MeasureRow]
    by_instance: list[MeasureRow]


class EndpointAdmin(PageAdmin):
    """The pages of endpoints. They need the permission `sqlqueue_app.view_queue`."""

    def action_classes(self) -> Sequence[type[Action]]:
        return ENDPOINT_ACTIONS

    def pages(self) -> list[URLPattern]:
        """The list of endpoints, one endpoint."""
        return [
            self.readonly_view("", self.changelist_view),
            self.readonly_view("<str:name>/", self.endpoint_view, "endpoint"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The endpoints of the settings, and others with a registered process."""
        found = read_endpoints(get_settings())
        if wanted_format(request):
            return export(request, "endpoints", COLUMNS, exported_endpoints(found))
        return self.page(
            request,
            "endpoints",
            rows=self._rows(found.endpoints),
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
            endpoint=self._rows([each])[0],
            buttons=endpoint_buttons(self, request, each.name, each.instances),
            failures_url=self._failures_url(each.name),
            delayed_url=self.url_of(DelayedMessage, "table", path_of(each.name)) if each.is_in_settings else "",
            subscriptions_url=self.url_of(Subscription),
            live_seconds=period.refresh_seconds,
            history=history,
            period=period,
            periods=PERIODS,
            processes=self._processes(request, each),
            refused="" if may(request, Permission.CONTROL) else refusal_text(Permission.CONTROL),
            worker_command=WORKER_COMMAND,
            queues=self._queue_rows(each),
            subscriptions=_subscriptions(settings, each.name),
            handlers=handlers,
            handlers_problem=handlers_problem,
            configuration=_configuration(settings, each.name),
        )

    def _rows(self, found: Sequence[EndpointStatus]) -> list[EndpointRow]:
        measured = measure_rows({each.name: each.measured for each in found if each.measured is not None})
        return [endpoint_row(each, self.endpoint_url(each.name), measured.get(each.name)) for each in found]

    def endpoint_url(self, name: str) -> str:
        """The URL of an endpoint."""
        return self.url("endpoint", path_of(name))

    def _unknown(self, request: HttpRequest, name: str) -> HttpResponse:
        text = _("There is no endpoint “%(name)s”: neither the settings nor a registered process name it.") % {"name": name}
        return self.problem(request, title=_("Endpoint not found"), text=text, status=404, crumbs=(Crumb(name),))

    def _failures_url(self, name: str) -> str:
        url = self.url_of(FailedMessage, "messages")
        return f"{url}?{FailureSelection(endpoint=name).to_query()}" if url else ""

    def _queue_url(self, name: str) -> str:
        return self.url_of(Queue, "messages", path_of(name)) if self.admin_site.is_registered(Queue) else ""

    def _processes(self, request: HttpRequest, each: EndpointStatus) -> list[InstanceRow]:
        depths = {
            status.queue.address.table: depth_number(status.depth)
            for status in each.queues
            if status.queue.kind is QueueKind.CALLBACK and status.depth is not None
        }
        return [
            instance_row(
                instance,
                self._queue_url(instance.callback_queue) if instance.callback_queue in depths else "",
                depths.get(instance.callback_queue or ""),
                _note(instance),
                instance_buttons(self, request, instance),
            )
            for instance in each.instances
        ]

    def _queue_rows(self, each: EndpointStatus) -> list[QueueRow]:
        held = {instance.callback_queue for instance in each.instances}
        return [
            queue_row(look, self._queue_url, each.instances)
            for look in each.queues
            # Of the pool of callback queues of this machine, those that are nobody's are shown by the page of the queues.
            if look.queue.kind is not QueueKind.CALLBACK or look.queue.address.table in held
        ]

    def _history(self, each: EndpointStatus, period: Period, now: datetime | None) -> History | None:
        if now is None:
            return None  # the tables of `migrate` are missing
        alias = managed_alias()
        names = [status.name for status in each.queues if status.queue.kind in (QueueKind.MAIN, QueueKind.SATELLITE)]
        with optional_read(alias, "read the samples of an endpoint"):
            over_time = measures_over_time(alias, each.name, period.length, now)
            by_type, by_instance = measures_by_type_and_instance(
                alias, each.name, period.length, now, {one.name: one.started_at for one in each.instances}
            )
            queued = read_samples(alias, names, period.length, now)
            samples = [sample for taken in queued.values() for sample in taken]
            newest = max((sample.taken_at for sample in samples), default=None)
            taken = page_sampling.take(each.instances, newest, now)
            samples += [sample for sample in taken if sample.queue in queued and resolution_for(period.length) is FINEST]
            return History(
                by_type,
                endpoint_charts(over_time, samples, period, now),
                list(measure_rows(by_type, period.length).values()),
                list(measure_rows(by_instance, period.length).values()),
            )
        return None


def _known_name(path: str, settings: Settings) -> str:
    """The endpoint that a URL part names; the text itself if none matches."""
    name = name_of_path(path, settings.senders)
    if name is None:
        name = name_of_path(path, {*(each.endpoint for each in read_instances()[0]), *read_minimums()})
    return path if name is None else name


def _subscriptions(settings: Settings, name: str) -> list[SubscriptionState] | None:
    """The subscriptions of the endpoint; None without a subscription table."""
    try:
        with guarded_read(settings.database, "read the subscriptions"):
            return read_subscriptions(settings, name)
    except ConnectionLost:
        raise
    except Exception:  # noqa: BLE001 - no such table, or handlers that cannot be imported, which the page shows
        return None


def _handlers(settings: Settings, each: EndpointStatus) -> tuple[list[str], str]:
    """The message types with handlers in this process, or the error."""
    if not each.is_in_settings:
        return [], _("The endpoint is not in the settings of this site.")
    try:
        return ReceivingEndpoint(settings, each.name).handlers.message_types, ""
    except Exception as error:  # noqa: BLE001 - modules of the project are imported, and may raise anything
        return [], str(error) if isinstance(error, SqlQueueError) else f"{type(error).__name__}: {error}"


def _configuration(settings: Settings, name: str) -> list[tuple[str, str]]:
    """The effective settings of the endpoint in this process; none of them is secret."""
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


# --- Rows and exports -------------------------------------------------------------------------------------------------

COLUMNS: Final = (
    "endpoint", "in_settings", "messages", "exact", "handled_per_second", "processing_seconds", "critical_seconds",
    "retries_per_second", "failures_per_second", "failed_messages", "alive", "dead", "busy_threads", "limit", "versions", "minimum",
)  # fmt: skip

TYPE_COLUMNS: Final = (
    "message_type", "handled", "handled_per_second", "processing_seconds", "processing_max", "critical_seconds", "critical_max",
    "failures", "immediate_retries", "delayed_retries", "moved_to_error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Time:
    """A formatted time; `is_negative` if a sender's clock is ahead."""

    text: str
    is_negative: bool = False


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """Measurements of a period, or of the time that `over` names. Times are None if no message has one."""

    name: str
    measured: Measured
    over: str
    throughput: str
    retries_rate: str
    processing: Time | None
    processing_max: Time | None
    critical: Time | None
    critical_max: Time | None


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """A row of the list of endpoints."""

    status: EndpointStatus
    url: str
    state: State
    depth: Number | None
    measured: MeasureRow | None
    failed: Number | None
    busy: str
    versions: str


_TIMES: Final = ("processing_mean", "processing_max", "critical_mean", "critical_max")


def measure_rows(found: Mapping[str, Measured], period: timedelta = timedelta()) -> dict[str, MeasureRow]:
    """The rows of measurements by name; the times of a column have one unit. What is shorter than the period says so."""
    rows = {}
    scales = {name: times([getattr(each, name) for each in found.values()]) for name in _TIMES}
    for name, each in found.items():
        seconds = {of: getattr(each, of) if each.handled or of != "processing_max" else None for of in _TIMES}
        shown = [None if value is None else Time(scales[of].text(value), value < 0) for of, value in seconds.items()]
        length = timedelta(seconds=each.length)
        over = duration(length) if length < 0.95 * period else ""
        rows[name] = MeasureRow(name, each, over, rate(each.throughput), rate(each.retries / each.length), *shown)
    return rows


def endpoint_row(each: EndpointStatus, url: str, measured: MeasureRow | None) -> EndpointRow:
    """The row of an endpoint."""
    return EndpointRow(
        status=each,
        url=url,
        state=_state(each),
        depth=None if each.depth is None else depth_number(each.depth),
        measured=measured,
        failed=None if each.failed is None else Number(each.failed, number(each.failed)),
        busy=f"{number(each.busy_threads)} / {number(each.limit)}" if each.alive else "",
        versions=", ".join(sorted({instance.version for instance in each.alive if instance.version})),
    )


def _state(each: EndpointStatus) -> State:
    if each.is_below_minimum:
        return State(Grade.ERROR, _("Below minimum"))
    workers = [instance for instance in each.alive if instance.is_worker]
    if workers and all(instance.paused for instance in workers):
        return State(Grade.WARNING, _("Paused"))
    if any(instance.paused for instance in workers):
        return State(Grade.WARNING, _("Partly paused"))
    if not workers and each.dead:
        return State(Grade.ERROR, _("Dead"))
    if not workers:
        return unreceived_state([each.name], (), is_waiting=bool(each.depth is not None and each.depth.waiting))
    if each.dead:
        return State(Grade.WARNING, _("Dead processes: %(count)s") % {"count": number(each.dead)})
    return State(Grade.OK, _("Alive"))


def _note(each: InstanceStatus) -> str:
    """A request that the process has not followed yet, and when it will."""
    asked = "" if each.asked_ago is None else _("asked %(age)s ago") % {"age": duration(max(each.asked_ago, timedelta()))}
    if each.state not in (InstanceState.PAUSING, InstanceState.RESUMING):
        # Other requests, as for another concurrency, are in the row immediately.
        return asked + " " + _("and has not followed yet") if asked and each.alive else ""
    left = min(max(0.0, HEARTBEAT_SECONDS - each.heartbeat_age.total_seconds()), HEARTBEAT_SECONDS)
    text = _("asked to pause; follows at its next heartbeat, within %(seconds)s s")
    if each.state is InstanceState.RESUMING:
        text = _("asked to receive again; follows at its next heartbeat, within %(seconds)s s")
    words = text % {"seconds": number(round(left + 0.5))}
    return f"{words} ({asked})" if asked else words


def exported_endpoints(found: Endpoints) -> Iterator[tuple[Any, ...]]:
    """One row per endpoint, in the order of the page."""
    for each in found.endpoints:
        depth, measured = each.depth, each.measured
        yield (
            each.name,
            each.is_in_settings,
            None if depth is None else depth.waiting,
            None if depth is None else depth.exact,
            None if measured is None else measured.throughput,
            None if measured is None else measured.processing_mean,
            None if measured is None else measured.critical_mean,
            None if measured is None else measured.retries / measured.length,
            None if measured is None else measured.failures / measured.length,
            each.failed,
            len(each.alive),
            each.dead,
            each.busy_threads,
            each.limit,
            sorted({instance.version for instance in each.alive}),
            each.minimum or None,
        )


def exported_types(found: Mapping[str, Measured]) -> Iterator[tuple[Any, ...]]:
    """One row per message type; times are means and maxima in seconds."""
    for message_type, each in found.items():
        yield (
            message_type,
            each.handled,
            each.throughput,
            each.processing_mean,
            each.processing_max,
            each.critical_mean,
            each.critical_max,
            each.failures,
            each.immediate_retries,
            each.delayed_retries,
            each.moved_to_error,
        )


# --- Charts -----------------------------------------------------------------------------------------------------------


def endpoint_charts(
    measured: Sequence[tuple[datetime, Measured]], queued: Sequence[QueueSample], period: Period, now: datetime
) -> list[Chart]:
    """Throughput with failures and retries, processing time, critical time, queue length; `queued` of all its queues."""
    begin, step = now - period.length, timedelta(seconds=resolution_of(period.length).seconds)
    seconds = step.total_seconds()
    charts = []
    if any(each.handled or each.failures or each.retries for _at, each in measured):
        flow = [
            Series(_("handled"), [(at, each.throughput) for at, each in measured]),
            Series(_("failed attempts"), [(at, each.failures / seconds) for at, each in measured]),
            Series(_("retries"), [(at, each.retries / seconds) for at, each in measured]),
        ]
        charts.append(line_chart(_("Handled and failed"), flow, begin=begin, end=now, step=step, scale=per_second, least_top=1.0))
        processing = [
            Series(_("mean"), [(at, each.processing_mean) for at, each in measured]),
            Series(_("longest"), [(at, each.processing_max if each.handled else None) for at, each in measured]),
        ]
        critical = [
            Series(_("mean"), [(at, each.critical_mean) for at, each in measured]),
            Series(_("longest"), [(at, each.critical_max) for at, each in measured]),
        ]
        for title, series in ((_("Processing time"), processing), (_("Critical time"), critical)):
            charts.append(line_chart(title, series, begin=begin, end=now, step=step, scale=times, least_top=0.01))
    if depth := _added_up(queued):
        waiting = [Series(_("messages"), depth)]
        charts.append(line_chart(_("Waiting in its queues"), waiting, begin=begin, end=now, step=step, scale=counts))
    return charts


def _added_up(samples: Sequence[QueueSample]) -> Points:
    at_time: defaultdict[datetime, float] = defaultdict(float)
    for sample in samples:
        at_time[sample.taken_at] += sample.waiting
    return sorted(at_time.items())


# --- Instances --------------------------------------------------------------------------------------------------------


class InstanceAdmin(ReadOnlyAdmin):
    """Registered instances, read-only: processes write their rows themselves."""

    list_display = ("endpoint", "name", "host", "pid", "callback_queue", "state", "live_threads", "heartbeat", "started")
    search_fields = ("endpoint", "name", "host", "callback_queue")
    show_full_result_count = False
    # An empty list of actions would leave Django's page with an inline style, which a strict policy refuses.
    actions_on_top = True

    change_list_template = "admin/sqlqueue_app/instances.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Django's list, below the navigation of our pages."""
        more = {"title": label_of_page(Instance), "navigation": navigation(self.admin_site, request)}
        return super().changelist_view(request, {**more, **(extra_context or {})})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """With the clock of the database, which also wrote the heartbeats, on each row; without rows that wait to be deleted."""
        gone = [each.pk for each in gone_instances(managed_alias())]
        rows: QuerySet[Any] = super().get_queryset(request).exclude(pk__in=gone).annotate(database_now=Now())
        return rows

    @admin.display(description=gettext_lazy("state"))
    def state(self, row: Instance) -> str:
        """The state of the process."""
        alive = not is_dead(row, row.database_now)  # type: ignore[attr-defined]
        return instance_state(state_of(alive=alive, paused=row.paused, followed=row.paused_since is not None)).word

    @admin.display(description=gettext_lazy("live threads"))
    def live_threads(self, row: Instance) -> str:
        """The receive threads of each queue at the last heartbeat."""
        return ", ".join(f"{queue}: {count}" for queue, count in threads_of_row(row).items())

    @admin.display(description=gettext_lazy("last heartbeat"), ordering="heartbeat_at")
    def heartbeat(self, row: Instance) -> str:
        """The age of the last heartbeat."""
        return heartbeat_html(row.heartbeat_at, row.database_now - row.heartbeat_at)  # type: ignore[attr-defined]

    @admin.display(description=gettext_lazy("started"), ordering="started_at")
    def started(self, row: Instance) -> str:
        """When the process started."""
        return ago_html(row.started_at)
