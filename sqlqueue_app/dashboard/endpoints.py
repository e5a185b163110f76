"""The pages of endpoints: the list, one endpoint with charts, processes, queues and handlers, and the registered instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.conf.validation import keys_of
from sqlqueue_app.dashboard.charts import PERIODS, Chart, Period, Series, line_chart, period_of
from sqlqueue_app.dashboard.endpoint_actions import ENDPOINT_ACTIONS, endpoint_buttons, instance_buttons
from sqlqueue_app.dashboard.formats import Grade, State, ago_html, counts, duration, number, per_second, rate, times
from sqlqueue_app.dashboard.lists import (
    NUMBER,
    WIDE,
    HtmlTable,
    TableColumn,
    cell_html,
    export,
    facts,
    link_html,
    table,
    titled_html,
    wanted_format,
    with_notes,
)
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.overview import (
    INSTANCE_STATES,
    PARTLY_PAUSED,
    PAUSED,
    depth_cell,
    endpoint_url,
    failures_url,
    heartbeat_html,
    instance_columns,
    paused_html,
    queue_columns,
    queues_table,
    unreceived_state,
)
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, ReadOnlyAdmin, label_of_page, name_of_path, navigation, path_of
from sqlqueue_app.messages.errors import ConnectionLost, SqlQueueError
from sqlqueue_app.models import DelayedMessage, Instance, QueueSample, Subscription
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.receiving.instances import gone_instances, is_dead, managed_alias
from sqlqueue_app.status.endpoints import (
    EndpointStatus,
    Measured,
    measures_by_type_and_instance,
    measures_over_time,
    read_endpoints,
    read_minimums,
    resolution_of,
)
from sqlqueue_app.status.instances import read_instances, state_of, threads_of_row
from sqlqueue_app.status.queues import QueueKind, QueueStatus
from sqlqueue_app.status.samples import read_page_samples
from sqlqueue_app.status.subscriptions import SubscriptionState, read_subscriptions
from sqlqueue_app.status.traffic import RECEIVED
from sqlqueue_app.tables.connections import guarded_read, optional_read


class EndpointAdmin(PageAdmin):
    """The pages of endpoints. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = ENDPOINT_ACTIONS
    routes: ClassVar = {"endpoint": "<str:name>/"}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The endpoints of the settings, and others with a registered process."""
        found = read_endpoints(get_settings())
        if wanted_format(request):
            return export(request, "endpoints", COLUMNS, found.endpoints)
        return self.page(
            request,
            "endpoints",
            table=table(_caption(), self._columns(found.endpoints), found.endpoints, lambda each: f"endpoint {each.name}"),
            problem=found.problem,
            live_seconds=LIVE_SECONDS,
            **(extra_context or {}),
        )

    def endpoint_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """One endpoint."""
        settings = get_settings()
        found = read_endpoints(settings, _known_name(name, settings))
        if not found.endpoints:
            text = _("There is no endpoint “%(name)s”: neither the settings nor a registered process name it.")
            raise Http404(text % {"name": name})
        each, period = found.endpoints[0], period_of(request)
        charts, by_type, by_instance = self._history(each, period, found.now)
        if wanted_format(request):
            lines = ([message_type, *(getattr(taken, of) for of in _MEASURES.values())] for message_type, taken in by_type.items())
            return export(request, f"{each.name} {period.name}", ("message_type", *_MEASURES), lines)
        handlers, handlers_problem = _handlers(settings, each)
        queues = self._queues(each)
        return self.page(
            request,
            "endpoint",
            title=_("Endpoint %(name)s") % {"name": each.name},
            crumbs=(Crumb(each.name),),
            facts=facts(self._columns([each])[1:], each),
            caption=_caption(),
            buttons=endpoint_buttons(self, request, each.name, each.instances),
            delayed_url=self.url_of(DelayedMessage, "table", path_of(each.name)) if each.is_in_settings else "",
            subscriptions_url=self.url_of(Subscription),
            live_seconds=period.refresh_seconds,
            charts=charts,
            by_type=_measures(_("By message type, in the period of the charts"), _("Message type"), by_type, period),
            by_instance=_measures(_("By instance, in the period of the charts"), _("Instance"), by_instance, period),
            period=period,
            periods=PERIODS,
            processes=self._processes(request, each),
            queues=queues_table(
                _("Queues for its messages, failures and audits"),
                queue_columns(self, each.instances),
                queues,
            ),
            problems=[look.problem for look in queues if look.problem is not None],
            subscriptions=_subscriptions(settings, each.name),
            handlers=handlers,
            handlers_problem=handlers_problem,
            configuration=_configuration(settings, each.name),
        )

    def _columns(self, rows: Sequence[EndpointStatus]) -> list[TableColumn[EndpointStatus]]:
        """The columns of these endpoints."""

        def rated(label: str, value: Callable[[Measured], float]) -> TableColumn[EndpointStatus]:
            return TableColumn(label, lambda each: "" if each.measured is None else rate(value(each.measured)), NUMBER)

        found = [each.measured for each in rows if each.measured is not None]
        processing, critical = (_time_of(name, found) for name in ("processing_mean", "critical_mean"))
        return [
            TableColumn(_("Endpoint"), self._linked),
            TableColumn(_("State"), lambda each: paused_html(_state(each), each.instances, (each.name,))),
            TableColumn(_("Messages"), lambda each: depth_cell(each.depth), NUMBER),
            rated(_("Handled per second"), lambda measured: measured.throughput),
            TableColumn(_("Processing time"), lambda each: processing(each.measured), NUMBER),
            TableColumn(_("Critical time"), lambda each: critical(each.measured), NUMBER),
            rated(_("Retries per second"), lambda measured: measured.retries / measured.length),
            TableColumn(_("Failed messages"), lambda each: link_html(failures_url(self, each.name), _failed(each)), NUMBER),
            TableColumn(_("Processes alive"), _alive, NUMBER),
            TableColumn(_("Busy / max"), _busy, NUMBER),
        ]

    def _linked(self, each: EndpointStatus) -> SafeString:
        note = "" if each.is_in_settings else _("not in the settings of this site")
        return with_notes(link_html(endpoint_url(self, each.name), each.name), note)

    def _processes(self, request: HttpRequest, each: EndpointStatus) -> HtmlTable | None:
        depths = {look.queue.address.table: look.depth for look in each.queues if look.queue.kind is QueueKind.CALLBACK}
        columns = [
            *instance_columns(self, depths),
            TableColumn(_("Actions"), lambda instance: instance_buttons(self, request, instance)),
        ]
        caption = _("Processes report their threads with each heartbeat, every 10 seconds, and then follow requests")
        return table(caption, columns, each.instances, lambda instance: f"process {instance.id}") if each.instances else None

    def _queues(self, each: EndpointStatus) -> list[QueueStatus]:
        # The other callback queues of this machine are on the page of queues.
        held = {instance.callback_queue for instance in each.instances}
        return [look for look in each.queues if look.queue.kind is not QueueKind.CALLBACK or look.queue.address.table in held]

    def _history(
        self, each: EndpointStatus, period: Period, now: datetime | None
    ) -> tuple[list[Chart], Mapping[str, Measured], Mapping[str, Measured]]:
        """The charts of the period, and the measures by message type and by instance; nothing before `migrate`."""
        if now is None:
            return [], {}, {}
        alias = managed_alias()
        names = [status.name for status in each.queues if status.queue.kind in RECEIVED]
        with optional_read(alias, "read the samples of an endpoint"):
            over_time = measures_over_time(alias, each.name, period.length, now)
            started = {one.name: one.started_at for one in each.instances}
            by_type, by_instance = measures_by_type_and_instance(alias, each.name, period.length, now, started)
            queued = read_page_samples(alias, names, period.length, each.instances, now)
            samples = [sample for taken in queued.values() for sample in taken]
            return endpoint_charts(over_time, samples, period, now), by_type, by_instance
        return [], {}, {}


def _caption() -> str:
    return _("Rates and mean times are those of the last minute")


def _known_name(path: str, settings: Settings) -> str:
    """The endpoint that a URL part names; the text itself if none matches."""
    name = name_of_path(path, settings.senders)
    if name is None:
        name = name_of_path(path, {*(each.endpoint for each in read_instances()[0]), *read_minimums()})
    return path if name is None else name


def _subscriptions(settings: Settings, name: str) -> HtmlTable | str:
    """The subscriptions of the endpoint, or why there are none to show."""
    try:
        with guarded_read(settings.database, "read the subscriptions"):
            found = read_subscriptions(settings, name)
    except ConnectionLost:
        raise
    except Exception:  # noqa: BLE001 - no such table, or handlers that cannot be imported, which the page shows
        return _("The table of subscriptions is missing.")
    columns: list[TableColumn[SubscriptionState]] = [
        TableColumn(_("Event"), lambda each: each.subscription.topic),
        TableColumn(_("Queue"), lambda each: each.subscription.address),
        TableColumn(_("Remarks"), _remark),
    ]
    return table(_("Subscribed events"), columns, found) if found else _("No subscriptions.")


def _remark(each: SubscriptionState) -> str:
    if not each.queue_exists:
        return _("the queue does not exist")
    return _("it has no handler for it") if each.handled is False else ""


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

COLUMNS: Final[Mapping[str, Callable[[EndpointStatus], object]]] = {
    "endpoint": attrgetter("name"),
    "in_settings": attrgetter("is_in_settings"),
    "messages": lambda each: getattr(each.depth, "waiting", None),
    "exact": lambda each: getattr(each.depth, "exact", None),
    "handled_per_second": lambda each: getattr(each.measured, "throughput", None),
    "processing_seconds": lambda each: getattr(each.measured, "processing_mean", None),
    "critical_seconds": lambda each: getattr(each.measured, "critical_mean", None),
    "retries_per_second": lambda each: None if each.measured is None else each.measured.retries / each.measured.length,
    "failures_per_second": lambda each: None if each.measured is None else each.measured.failures / each.measured.length,
    "failed_messages": attrgetter("failed"),
    "alive": lambda each: len(each.alive),
    "dead": attrgetter("dead"),
    "busy_threads": attrgetter("busy_threads"),
    "limit": attrgetter("limit"),
    "versions": lambda each: sorted({instance.version for instance in each.alive}),
    "minimum": lambda each: each.minimum or None,
}
# Of a file: the measures of a message type.
_MEASURES: Final = {
    "handled": "handled",
    "handled_per_second": "throughput",
    "processing_seconds": "processing_mean",
    "processing_max": "processing_max",
    "critical_seconds": "critical_mean",
    "critical_max": "critical_max",
    **{name: name for name in ("failures", "immediate_retries", "delayed_retries", "moved_to_error")},
}


def _time_of(name: str, found: Iterable[Measured]) -> Callable[[Measured | None], object]:
    """The cells of a column of times, all in one unit; empty where no message has one."""
    scale = times([getattr(each, name) for each in found])

    def cell(measured: Measured | None) -> object:
        seconds = None if measured is None or not measured.handled else getattr(measured, name)
        if seconds is None or seconds >= 0:
            return seconds if seconds is None else scale.text(seconds)
        return titled_html(cell_html(State(Grade.WARNING, scale.text(seconds))), _("negative: the clock of a sender is ahead"))

    return cell


def _measures(caption: str, head: str, found: Mapping[str, Measured], period: Period) -> HtmlTable | None:
    """The table of measures by name; a rate over less than the period has the time that it is over."""

    def per_second(measured: Measured) -> SafeString:
        length = timedelta(seconds=measured.length)
        over = _("over %(length)s") % {"length": duration(length)} if length < 0.95 * period.length else ""
        return with_notes(rate(measured.throughput), over)

    cells: list[tuple[str, Callable[[Measured], object]]] = [
        (_("Handled"), attrgetter("handled")),
        (_("per second"), per_second),
        (_("Processing time"), _time_of("processing_mean", found.values())),
        (_("longest"), _time_of("processing_max", found.values())),
        (_("Critical time"), _time_of("critical_mean", found.values())),
        (_("longest"), _time_of("critical_max", found.values())),
        (_("Failed attempts"), attrgetter("failures")),
        (_("Immediate retries"), attrgetter("immediate_retries")),
        (_("Delayed retries"), attrgetter("delayed_retries")),
        (_("To the error queue"), attrgetter("moved_to_error")),
    ]
    columns: list[TableColumn[tuple[str, Measured]]] = [
        TableColumn(head, lambda row: row[0] or _("no type in the headers"), WIDE),
        *(TableColumn(label, partial(lambda cell, row: cell(row[1]), cell), NUMBER) for label, cell in cells),
    ]
    return table(caption, columns, found.items(), lambda row: f"{head} {row[0]}") if found else None


def _failed(each: EndpointStatus) -> str:
    return _("not known") if each.failed is None else number(each.failed)


def _alive(each: EndpointStatus) -> SafeString:
    """How many processes live, of how many, the dead ones, and the versions."""
    alive = number(len(each.alive))
    expected = _("%(alive)s of %(minimum)s expected") % {"alive": alive, "minimum": number(each.minimum)}
    dead = _("%(count)s dead") % {"count": number(each.dead)} if each.dead else ""
    versions = ", ".join(sorted({instance.version for instance in each.alive if instance.version}))
    version = _("version %(version)s") % {"version": versions} if versions else ""
    return with_notes(expected if each.minimum else alive, dead, version)


def _busy(each: EndpointStatus) -> str:
    return f"{number(each.busy_threads)} / {number(each.limit)}" if each.alive else ""


def _state(each: EndpointStatus) -> State:
    if each.is_below_minimum:
        return State(Grade.ERROR, _("Below minimum"))
    workers = [instance for instance in each.alive if instance.is_worker]
    if workers and all(instance.paused for instance in workers):
        return PAUSED
    if any(instance.paused for instance in workers):
        return PARTLY_PAUSED
    if not workers and each.dead:
        return State(Grade.ERROR, _("Dead"))
    if not workers:
        return unreceived_state([each.name], (), is_waiting=bool(each.depth is not None and each.depth.waiting))
    if each.dead:
        return State(Grade.WARNING, _("Dead processes: %(count)s") % {"count": number(each.dead)})
    return State(Grade.OK, _("Alive"))


# --- Charts -----------------------------------------------------------------------------------------------------------


def endpoint_charts(
    measured: Sequence[tuple[datetime, Measured]], queued: Sequence[QueueSample], period: Period, now: datetime
) -> list[Chart]:
    """Throughput with failures and retries, processing time, critical time, queue length; `queued` of all its queues."""
    begin, step = now - period.length, timedelta(seconds=resolution_of(period.length).seconds)
    seconds = step.total_seconds()
    charts = []

    def line(label: str, value: Callable[[Measured], float | None]) -> Series:
        return Series(label, [(at, value(each)) for at, each in measured])

    if any(each.handled or each.failures or each.retries for _at, each in measured):
        flow = [
            line(_("handled"), attrgetter("throughput")),
            line(_("failed attempts"), lambda each: each.failures / seconds),
            line(_("retries"), lambda each: each.retries / seconds),
        ]
        longest = line(_("longest"), lambda each: each.processing_max if each.handled else None)
        processing = [line(_("mean"), attrgetter("processing_mean")), longest]
        critical = [line(_("mean"), attrgetter("critical_mean")), line(_("longest"), attrgetter("critical_max"))]
        charts.append(line_chart(_("Handled and failed"), flow, begin=begin, end=now, step=step, scale=per_second, least_top=1.0))
        for title, series in ((_("Processing time"), processing), (_("Critical time"), critical)):
            charts.append(line_chart(title, series, begin=begin, end=now, step=step, scale=times, least_top=0.01))
    depth: Counter[datetime] = Counter()
    for sample in queued:
        depth[sample.taken_at] += sample.waiting
    if depth:
        waiting = [Series(_("messages"), sorted(depth.items()))]
        charts.append(line_chart(_("Waiting in its queues"), waiting, begin=begin, end=now, step=step, scale=counts))
    return charts


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
        return str(INSTANCE_STATES[state_of(alive=alive, paused=row.paused, followed=row.paused_since is not None)].word)

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
