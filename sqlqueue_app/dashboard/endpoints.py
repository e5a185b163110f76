"""The pages of endpoints: the list, one endpoint with charts, processes, queues and handlers, and the registered instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.conf.validation import keys_of
from sqlqueue_app.dashboard import formats, lists
from sqlqueue_app.dashboard.charts import PERIODS, Chart, Period, Series, line_chart, period_of
from sqlqueue_app.dashboard.endpoint_actions import ENDPOINT_ACTIONS, SetMinimum, instance_buttons, pausing_buttons
from sqlqueue_app.dashboard.formats import Grade, State, ago_html, bounded_number, depth_number, duration, number, rate
from sqlqueue_app.dashboard.lists import NUMBER, WIDE, HtmlTable, TableColumn, cell_html, link_html, table, text_html, with_notes
from sqlqueue_app.dashboard.live import LIVE_SECONDS, is_live
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, ReadOnlyAdmin, label_of_page, name_of_path, navigation, shared
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.errors import ConnectionLost, SqlQueueError
from sqlqueue_app.messages.types import plain_name
from sqlqueue_app.models import DelayedMessage, Endpoint, FailedMessage, Instance, Queue, Subscription, managed_alias
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.receiving.instances import HEARTBEAT_SECONDS, gone_instances
from sqlqueue_app.status import endpoints
from sqlqueue_app.status.endpoints import EndpointStatus, Measured
from sqlqueue_app.status.instances import InstanceState, InstanceStatus, is_received, read_instances, status_of_row, threads_on
from sqlqueue_app.status.queues import HeadAge, ProblemKind, QueueKind, QueueStatus
from sqlqueue_app.status.samples import read_page_samples
from sqlqueue_app.status.subscriptions import SubscriptionState, read_subscriptions
from sqlqueue_app.status.texts import first_names, path_of
from sqlqueue_app.tables.connections import guarded_read, optional_read
from sqlqueue_app.tables.queue import Depth

_CAPTION: Final = gettext_lazy("Rates and mean times are those of the last minute")


class EndpointAdmin(PageAdmin):
    """The pages of endpoints. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = ENDPOINT_ACTIONS
    routes: ClassVar = {"endpoint": "<str:name>/"}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The endpoints of the settings, and others with a registered process."""
        found = endpoints.read_endpoints(get_settings())
        if lists.wanted_format(request):
            return lists.export(request, "endpoints", COLUMNS, found.endpoints)
        return self.page(
            request,
            "endpoints",
            table=table(_CAPTION, self._columns(found.endpoints), found.endpoints, lambda each: f"endpoint {each.name}"),
            problem=found.problem,
            live_seconds=LIVE_SECONDS,
            **(extra_context or {}),
        )

    def endpoint_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """One endpoint."""
        settings = get_settings()
        known = name_of_path(name, settings.senders)
        if known is None:
            known = name_of_path(name, {*(each.endpoint for each in read_instances()[0]), *endpoints.read_minimums()})
        found = endpoints.read_endpoints(settings, known or name)
        if not found.endpoints:
            text = _("There is no endpoint “%(name)s”: neither the settings nor a registered process name it.")
            raise Http404(text % {"name": name})
        each, period = found.endpoints[0], period_of(request)
        charts, by_type, by_instance = self._history(each, period, found.now)
        if lists.wanted_format(request):
            lines = ([name, *(getattr(measured, of) for of, _head in _MEASURES.values())] for name, measured in by_type.items())
            return lists.export(request, f"{each.name} {period.name}", ("message_type", *_MEASURES), lines)
        handlers, handlers_problem = _handlers(settings, each)
        minimum = SetMinimum.button(self, request, path_of(each.name))
        # The page of queues has the other callback queues of this machine.
        held = {instance.callback_queue for instance in each.instances}
        queues = [item for item in each.queues if item.queue.kind is not QueueKind.CALLBACK or item.queue.address.table in held]
        return self.page(
            request,
            "endpoint",
            title=_("Endpoint %(name)s") % {"name": each.name},
            crumbs=(Crumb(each.name),),
            facts=lists.facts(self._columns([each])[1:], each),
            caption=_CAPTION,
            buttons=[*pausing_buttons(self, request, each.name, each.instances), minimum],
            delayed_url=self.url_of(DelayedMessage, "table", path_of(each.name)) if each.is_in_settings else "",
            subscriptions_url=self.url_of(Subscription),
            live_seconds=period.refresh_seconds,
            charts=charts,
            by_type=_measures(_("By message type, in the period of the charts"), _("Message type"), by_type, period),
            by_instance=_measures(_("By instance, in the period of the charts"), _("Instance"), by_instance, period),
            period=period,
            periods=PERIODS,
            processes=self._processes(request, each),
            queues=queues_table(_("Queues for its messages, failures and audits"), queue_columns(self, each.instances), queues),
            problems=[item.problem for item in queues if item.problem is not None],
            subscriptions=_subscriptions(settings, each.name),
            handlers=handlers,
            handlers_problem=handlers_problem,
            configuration=_configuration(settings, each.name),
        )

    def _columns(self, rows: Sequence[EndpointStatus]) -> list[TableColumn[EndpointStatus]]:
        def rated(label: str, name: str) -> TableColumn[EndpointStatus]:
            return TableColumn(label, lambda each: each.measured and rate(getattr(each.measured, name)), NUMBER)

        def failed(each: EndpointStatus) -> SafeString:
            return link_html(failures_url(self, each.name), _("not known") if each.failed is None else number(each.failed))

        def linked(each: EndpointStatus) -> SafeString:
            note = "" if each.is_in_settings else _("not in the settings of this site")
            return with_notes(link_html(endpoint_url(self, each.name), each.name), note)

        found = [each.measured for each in rows if each.measured is not None]
        processing, critical = (_time_of(name, found) for name in ("processing_mean", "critical_mean"))
        return [
            TableColumn(_("Endpoint"), linked),
            TableColumn(_("State"), lambda each: paused_html(_state(each), each.instances, (each.name,))),
            TableColumn(_("Messages"), lambda each: depth_cell(each.depth), NUMBER),
            rated(_("Handled per second"), "throughput"),
            TableColumn(_("Processing time"), lambda each: processing(each.measured), NUMBER),
            TableColumn(_("Critical time"), lambda each: critical(each.measured), NUMBER),
            rated(_("Retries per second"), "retry_rate"),
            TableColumn(_("Failed messages"), failed, NUMBER),
            TableColumn(_("Processes alive"), _alive, NUMBER),
            TableColumn(_("Busy / max"), lambda each: each.alive and f"{number(each.busy_threads)} / {number(each.limit)}", NUMBER),
        ]

    def _processes(self, request: HttpRequest, each: EndpointStatus) -> HtmlTable | None:
        actions = TableColumn(_("Actions"), partial(instance_buttons, self, request))
        columns = [*instance_columns(self, [item for item in each.queues if item.queue.kind is QueueKind.CALLBACK]), actions]
        caption = _("Each process reports its threads and carries out requests every 10 seconds, with its heartbeat")
        return table(caption, columns, each.instances, lambda instance: f"process {instance.id}") if each.instances else None

    def _history(
        self, each: EndpointStatus, period: Period, now: datetime | None
    ) -> tuple[list[Chart], Mapping[str, Measured], Mapping[str, Measured]]:
        """The charts of the period, and the measures by message type and by instance; nothing before `migrate`."""
        if now is None:
            return [], {}, {}
        alias = managed_alias()
        names = [status.name for status in each.queues if status.queue.is_receiving]
        with optional_read(alias, "read the samples of an endpoint"):
            over_time = endpoints.measures_over_time(alias, each.name, period.length, now)
            started = {one.name: one.started_at for one in each.instances}
            by_type, by_instance = endpoints.measures_by_type_and_instance(alias, each.name, period.length, now, started)
            queued = read_page_samples(alias, names, period.length, each.instances, now)
            waiting: Counter[datetime] = Counter()
            for sample in chain.from_iterable(queued.values()):
                waiting[sample.taken_at] += sample.waiting
            return _charts(over_time, waiting, period, now), by_type, by_instance
        return [], {}, {}


def _subscriptions(settings: Settings, name: str) -> HtmlTable | str:
    """The subscriptions of the endpoint, or the reason why there are none."""
    try:
        with guarded_read(settings.database, "read the subscriptions"):
            found = read_subscriptions(settings, name)
    except ConnectionLost:
        raise
    except Exception:  # noqa: BLE001 - the table is missing, or an import of handlers fails, which the page shows
        return _("The table of subscriptions is missing.")
    missing, unhandled = _("the queue does not exist"), _("no handler for it")
    columns: list[TableColumn[SubscriptionState]] = [
        TableColumn(_("Event"), lambda each: each.subscription.topic),
        TableColumn(_("Queue"), lambda each: each.subscription.address),
        TableColumn(_("Remarks"), lambda each: missing if not each.queue_exists else unhandled if each.handled is False else ""),
    ]
    return table(_("Subscribed events"), columns, found) if found else _("No subscriptions.")


def _handlers(settings: Settings, each: EndpointStatus) -> tuple[list[tuple[str, object, object]], str]:
    """The message types with handlers in this process, their own retries and rate limits, or the error."""
    if not each.is_in_settings:
        return [], _("The endpoint is not in the settings of this site.")
    try:
        handlers = ReceivingEndpoint(settings, each.name).handlers
        keys = {name: plain_name(name) for name in handlers.message_types}
        return [(name, handlers.retries.get(key, ""), handlers.rates.get(key, "")) for name, key in keys.items()], ""
    except Exception as error:  # noqa: BLE001 - importing user modules may raise anything
        return [], str(error) if isinstance(error, SqlQueueError) else f"{type(error).__name__}: {error}"


def _configuration(settings: Settings, name: str) -> list[tuple[str, str]]:
    """The effective settings of the endpoint in this process; none of them is secret."""
    section = settings.senders.get(name)
    if section is None:
        return []
    return [(key, _as_text(getattr(section, field.name))) for key, field in keys_of(type(section)).items()]


def _as_text(value: object) -> str:
    if isinstance(value, tuple | Mapping):
        return ", ".join(map(_as_text, value)) or "–"
    if callable(value):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}"
    return "–" if value is None else str(value)


# --- Rows and exports -------------------------------------------------------------------------------------------------

COLUMNS: Final[Mapping[str, str | Callable[[EndpointStatus], object]]] = {
    "endpoint": "name", "in_settings": "is_in_settings", "messages": "depth.waiting", "exact": "depth.exact",
    "handled_per_second": "measured.throughput", "processing_seconds": "measured.processing_mean",
    "critical_seconds": "measured.critical_mean", "retries_per_second": "measured.retry_rate",
    "failures_per_second": "measured.failure_rate", "failed_messages": "failed", "alive": lambda each: len(each.alive),
    "dead": "dead", "busy_threads": "busy_threads", "limit": "limit",
    "versions": lambda each: sorted({instance.version for instance in each.alive}),
    "minimum": lambda each: each.minimum or None,
}  # fmt: skip
# The measures of a message type or an instance, by their columns in a file: the attribute, the heading of a table.
_MEASURES: Final = {
    "handled": ("handled", gettext_lazy("Handled")),
    "handled_per_second": ("throughput", gettext_lazy("per second")),
    "processing_seconds": ("processing_mean", gettext_lazy("Processing time")),
    "processing_max": ("processing_max", gettext_lazy("longest")),
    "critical_seconds": ("critical_mean", gettext_lazy("Critical time")),
    "critical_max": ("critical_max", gettext_lazy("longest")),
    "failures": ("failures", gettext_lazy("Failed attempts")),
    "immediate_retries": ("immediate_retries", gettext_lazy("Immediate retries")),
    "delayed_retries": ("delayed_retries", gettext_lazy("Delayed retries")),
    "moved_to_error": ("moved_to_error", gettext_lazy("To the error queue")),
}
_TIMES: Final = ("processing_mean", "processing_max", "critical_mean", "critical_max")


def _time_of(name: str, found: Iterable[Measured]) -> Callable[[Measured | None], object]:
    """The cells of a column of times, all in one unit; empty if no message has one."""
    scale = formats.times([getattr(each, name) for each in found])

    def cell(measured: Measured | None) -> object:
        seconds = None if measured is None or not measured.handled else getattr(measured, name)
        if seconds is None or seconds >= 0:
            return seconds if seconds is None else scale.text(seconds)
        state = cell_html(State(Grade.WARNING, scale.text(seconds)))
        return lists.titled_html(state, _("negative: the clock of a sender is ahead"))

    return cell


def _measures(caption: str, head: str, found: Mapping[str, Measured], period: Period) -> HtmlTable | None:
    """The table of measures by name; a rate over less than the period shows its own time."""

    def per_second(measured: Measured) -> SafeString:
        length = timedelta(seconds=measured.length)
        over = _("over %(length)s") % {"length": duration(length)} if length < 0.95 * period.length else ""
        return with_notes(rate(measured.throughput), over)

    def cell(name: str) -> Callable[[Measured], object]:
        if name in _TIMES:
            return _time_of(name, found.values())
        return per_second if name == "throughput" else attrgetter(name)

    columns: list[TableColumn[tuple[str, Measured]]] = [
        TableColumn(head, lambda row: row[0] or _("no type in the headers"), WIDE),
        *(TableColumn(str(label), partial(lambda of, row: of(row[1]), cell(name)), NUMBER) for name, label in _MEASURES.values()),
    ]
    return table(caption, columns, found.items(), lambda row: f"{head} {row[0]}") if found else None


def _alive(each: EndpointStatus) -> SafeString:
    """The number of live processes, of all processes, the dead ones, and the versions."""
    alive = number(len(each.alive))
    expected = _("%(alive)s of %(minimum)s expected") % {"alive": alive, "minimum": number(each.minimum)}
    dead = _("%(count)s dead") % {"count": number(each.dead)} if each.dead else ""
    versions = ", ".join(sorted({instance.version for instance in each.alive if instance.version}))
    version = _("version %(version)s") % {"version": versions} if versions else ""
    return with_notes(expected if each.minimum else alive, dead, version)


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
    if lost := sum(instance.is_lost for instance in each.instances):
        return State(Grade.WARNING, _("Dead processes: %(count)s") % {"count": number(lost)})
    return State(Grade.OK, _("Alive"))


def _charts(
    over_time: Sequence[tuple[datetime, Measured]], waiting: Counter[datetime], period: Period, now: datetime
) -> list[Chart]:
    """Throughput with failures and retries, processing time, critical time, and messages waiting in its queues."""
    step = timedelta(seconds=endpoints.resolution_of(period.length).seconds)
    draw = partial(line_chart, begin=now - period.length, end=now, step=step)

    def line(label: str, name: str) -> Series:
        return Series(label, [(at, getattr(each, name)) for at, each in over_time])

    charts = []
    if any(each.handled or each.failures or each.retries for _at, each in over_time):
        flow = [line(_("handled"), "throughput"), line(_("failed attempts"), "failure_rate"), line(_("retries"), "retry_rate")]
        longest = Series(_("longest"), [(at, each.processing_max if each.handled else None) for at, each in over_time])
        critical = [line(_("mean"), "critical_mean"), line(_("longest"), "critical_max")]
        charts += [
            draw(_("Handled and failed"), flow, scale=formats.per_second, least_top=1.0),
            draw(_("Processing time"), [line(_("mean"), "processing_mean"), longest], scale=formats.times, least_top=0.01),
            draw(_("Critical time"), critical, scale=formats.times, least_top=0.01),
        ]
    if waiting:
        charts.append(draw(_("Waiting in its queues"), [Series(_("messages"), sorted(waiting.items()))], scale=formats.counts))
    return charts


# --- Instances --------------------------------------------------------------------------------------------------------


class InstanceAdmin(ReadOnlyAdmin):
    """Registered instances, read-only: processes write their rows themselves."""

    list_display = ("endpoint_name", "name", "state", "heartbeat", "live_threads", "process", "callback_queue", "started")
    fields = readonly_fields = list_display  # of the page of one instance
    search_fields = ("endpoint", "name", "host", "callback_queue")
    # With an empty list of actions, Django's page would have an inline style, which a strict policy refuses.
    actions_on_top = True
    change_list_template = change_form_template = "admin/sqlqueue_app/instances.html"

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Django's list, below our navigation; it refreshes itself."""
        base = "admin/sqlqueue_app/fragment.html" if is_live(request) else "admin/change_list.html"
        frame = {"base_template": base, "live_seconds": LIVE_SECONDS, "navigation": navigation(self.admin_site, request)}
        context = {"title": label_of_page(Instance), **frame, **(extra_context or {})}
        if not self.has_view_permission(request):
            raise PermissionDenied
        return shared(request, partial(super().changelist_view, request, context))

    def change_view(self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Django's page of one instance, below our navigation."""
        frame = {"base_template": "admin/change_form.html", "navigation": navigation(self.admin_site, request)}
        return super().change_view(request, object_id, form_url, {**frame, **(extra_context or {})})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """The rows with the clock of the database, which also wrote the heartbeats; without rows that wait to be deleted."""
        rows: QuerySet[Any] = super().get_queryset(request).annotate(database_now=Now())
        return rows.exclude(pk__in=[each.pk for each in gone_instances(managed_alias())])

    @admin.display(description=gettext_lazy("endpoint"), ordering="endpoint")
    def endpoint_name(self, row: Instance) -> SafeString:
        """The endpoint, whose name may be long."""
        return text_html(row.endpoint)

    @admin.display(description=gettext_lazy("state"))
    def state(self, row: Instance) -> str:
        """The state of the process."""
        return str(INSTANCE_STATES[status_of_row(row).state].word)

    @admin.display(description=gettext_lazy("live threads"))
    def live_threads(self, row: Instance) -> SafeString | None:
        """The receive threads of each queue at the last heartbeat; None for a dead process."""
        return _threads(status_of_row(row))

    @admin.display(description=gettext_lazy("last heartbeat"), ordering="heartbeat_at")
    def heartbeat(self, row: Instance) -> SafeString:
        """The last heartbeat and its age."""
        each = status_of_row(row)
        return with_notes(each.heartbeat_at, heartbeat_html(None, each.heartbeat_age))

    @admin.display(description=gettext_lazy("Machine and process"), ordering="host")
    def process(self, row: Instance) -> SafeString:
        """The machine, the process id and the version."""
        return _process(status_of_row(row))

    @admin.display(description=gettext_lazy("started"), ordering="started_at")
    def started(self, row: Instance) -> str:
        """The start time of the process."""
        return ago_html(row.started_at)


# --- Columns of queues and instances --------------------------------------------------------------------------------------

INSTANCE_STATES: Final = {
    InstanceState.ALIVE: State(Grade.OK, gettext_lazy("Alive")),
    InstanceState.PAUSING: State(Grade.WARNING, gettext_lazy("Pausing")),
    InstanceState.PAUSED: State(Grade.WARNING, gettext_lazy("Paused")),
    InstanceState.RESUMING: State(Grade.INFO, gettext_lazy("Resuming")),
    InstanceState.DEAD: State(Grade.ERROR, gettext_lazy("Dead")),
}
PAUSED: Final = INSTANCE_STATES[InstanceState.PAUSED]
PARTLY_PAUSED: Final = State(Grade.WARNING, gettext_lazy("Partly paused"))
GROWING: Final = State(Grade.WARNING, gettext_lazy("Growing"))


def queue_columns(
    pages: PageAdmin, instances: Sequence[InstanceStatus], growth: Mapping[str, str] = MappingProxyType({})
) -> list[TableColumn[QueueStatus]]:
    """The columns of a list of queues, which these instances may receive from or lease; `growth` is that of `read_growth`."""

    def state(each: QueueStatus) -> SafeString:
        found = queue_state(each, instances, growth)
        cell = paused_html(found, instances, each.queue.endpoints)
        return with_notes(cell, growth[each.name]) if found == GROWING else cell

    def counted(each: QueueStatus, name: str) -> object:
        if each.depth is None:
            return _("not known")
        return bounded_number(getattr(each.depth, name), exact=each.expiry_exact)

    return [
        TableColumn(_("Queue"), lambda each: link_html(pages.url_of(Queue, "messages", path_of(each.name)), each.name)),
        TableColumn(_("Kind"), lambda each: each.queue.kind.label),
        TableColumn(_("Endpoint"), lambda each: endpoints_html(pages, each.queue.endpoints)),
        TableColumn(_("State"), state),
        TableColumn(_("Messages"), lambda each: depth_cell(each.depth), NUMBER),
        TableColumn(_("With an expiry"), lambda each: counted(each, "expiring"), NUMBER),
        TableColumn(_("Expired"), lambda each: counted(each, "expired"), NUMBER),
        TableColumn(_("Oldest message"), lambda each: _age(each.head_age), NUMBER),
        TableColumn(_("Live threads"), lambda each: threads_on(each.queue.address.table, instances), NUMBER),
    ]


def queues_table(caption: object, columns: Sequence[TableColumn[QueueStatus]], rows: Sequence[QueueStatus]) -> HtmlTable | None:
    """The table of these queues; None without any."""
    return table(caption, columns, rows, lambda each: f"queue {each.name}") if rows else None


def endpoints_html(pages: PageAdmin, names: Sequence[str]) -> SafeString:
    """The first endpoints of a queue; only a single endpoint is a link, because an error queue may have hundreds."""
    return link_html(endpoint_url(pages, names[0]) if len(names) == 1 else "", first_names(names))


def depth_cell(depth: Depth | None) -> object:
    """The number of waiting messages, as a cell of a table."""
    return _("not known") if depth is None else depth_number(depth)


def queue_state(each: QueueStatus, instances: Sequence[InstanceStatus], growth: Container[str] = ()) -> State:
    """The state of a queue, which these instances may receive from or lease; `growth` has the growing ones."""
    problem = each.problem
    if problem is not None and problem.stops_work:
        return State(Grade.ERROR, problem.kind.label)
    kind = each.queue.kind
    is_waiting = bool(each.depth is not None and each.depth.waiting)
    holders = [one for one in instances if one.callback_queue == each.queue.address.table]
    is_held = any(one.alive for one in holders)
    if kind is QueueKind.ERROR and problem is None and get_settings().error_queue_owner == "servicecontrol":
        return State(Grade.INFO, _("Belongs to ServiceControl"))
    if kind is QueueKind.ERROR and is_waiting:
        return State(Grade.WARNING, _("Failed messages"))
    if each.queue.is_receiving and not is_received(each.queue, instances):
        return unreceived_state(each.queue.endpoints, instances, is_waiting=is_waiting)
    if kind is QueueKind.CALLBACK and is_waiting and not is_held:
        return State(Grade.WARNING, _("No receiver"))
    if is_waiting and each.name in growth:
        return GROWING
    if problem is not None:
        # It affects non-ASCII letters, or else the speed.
        return State(Grade.INFO if problem.kind is ProblemKind.NON_UNICODE_HEADERS else Grade.WARNING, problem.kind.label)
    if kind is not QueueKind.CALLBACK:
        return State(Grade.OK, _("OK"))
    if holders and not is_held:
        return State(Grade.INFO, _("Instance is gone"))
    return State(Grade.OK, _("Leased") if holders else _("Free"))


def unreceived_state(names: Collection[str], instances: Iterable[InstanceStatus], *, is_waiting: bool) -> State:
    """The reason why no process receives from a queue of these endpoints."""
    if any(each.endpoint in names and each.alive and each.is_worker and each.paused for each in instances):
        return PAUSED
    is_send_only = any(map(get_settings().is_send_only, names))
    return State(Grade.WARNING if is_waiting else Grade.INFO, _("Send-only") if is_send_only else _("No live worker"))


def paused_html(state: State, instances: Iterable[InstanceStatus], names: Collection[str]) -> SafeString:
    """The state of a queue or an endpoint; for a pause, with the operator and the time."""
    paused = [each for each in instances if each.endpoint in names and each.alive and each.paused and each.pause_requested_at]
    if state not in (PAUSED, PARTLY_PAUSED) or not paused:
        return cell_html(state)
    who = ", ".join(sorted({each.paused_by or _("unknown") for each in paused}))
    since = min(each.pause_requested_at for each in paused if each.pause_requested_at)
    return with_notes(state, format_html(_("by {user} since {time}"), user=who, time=formats.stamp_html(since)))


def _age(head: HeadAge | None) -> object:
    if head is None:
        return None
    if head.age is None:
        return with_notes(_("unknown"), head.unknown and head.unknown.label)
    header = {"header": head.header}
    if head.age < timedelta():
        return with_notes(head.age, _("from the header %(header)s: in the future by the clock of this site") % header)
    return lists.titled_html(duration(head.age), _("from the header %(header)s") % header)


def instance_columns(pages: PageAdmin, queues: Iterable[QueueStatus]) -> list[TableColumn[InstanceStatus]]:
    """The columns of a list of processes; `queues` are those that have a page."""
    depths = {each.queue.address.table: each.depth for each in queues}

    def callback_queue(each: InstanceStatus) -> object:
        name = each.callback_queue
        if name is None or name not in depths:
            return name
        depth = depths[name]
        waiting = "" if depth is None else _("messages in it: %(count)s") % {"count": depth_number(depth).text}
        return with_notes(link_html(pages.url_of(Queue, "messages", path_of(name)), name), waiting)

    return [
        TableColumn(_("Instance"), lambda each: each.name),
        TableColumn(_("Machine and process"), _process),
        TableColumn(_("State"), lambda each: with_notes(INSTANCE_STATES[each.state], _request(each))),
        TableColumn(_("Last heartbeat"), lambda each: heartbeat_html(each.heartbeat_at, each.heartbeat_age)),
        TableColumn(_("Started"), lambda each: ago_html(each.started_at)),
        TableColumn(_("Concurrency"), lambda each: each.concurrency, NUMBER),
        TableColumn(_("Live threads"), _threads),
        TableColumn(_("Callback queue"), callback_queue),
    ]


def _process(each: InstanceStatus) -> SafeString:
    return with_notes(f"{each.host} ({each.pid})", each.version and _("version %(version)s") % {"version": each.version})


def _threads(each: InstanceStatus) -> SafeString | None:
    """The threads of each queue, and how many of them handle a message; None for a dead process."""
    if not each.alive:
        return None
    words = _("%(live)s, %(busy)s busy")
    lines = [
        (text_html(name), words % {"live": number(live), "busy": number(each.busy.get(name, 0))})
        for name, live in each.threads.items()
    ]
    return format_html('<ul class="sq-plain">{}</ul>', format_html_join("", "<li>{}: {}</li>", lines)) if lines else None


def _request(each: InstanceStatus) -> str:
    """A request that the process has not followed yet, and the time when it will."""
    age = duration(max(each.requested_ago or timedelta(), timedelta()))
    requested = "" if each.requested_ago is None else _("requested %(age)s ago") % {"age": age}
    if each.state not in (InstanceState.PAUSING, InstanceState.RESUMING):
        # Other requests, such as another concurrency, are in the row immediately.
        return _("%(requested)s, not followed yet") % {"requested": requested} if requested and each.alive else ""
    left = min(max(0.0, HEARTBEAT_SECONDS - each.heartbeat_age.total_seconds()), HEARTBEAT_SECONDS)
    words = _("at its next heartbeat, within %(seconds)s s") % {"seconds": number(round(left + 0.5))}
    return f"{words} ({requested})" if requested else words


def heartbeat_html(at: datetime | None, age: timedelta) -> SafeString:
    """The time of a heartbeat; `age` is by the clock of its database."""
    # Only the instant determines whether the page has changed.
    text = format_html("<span data-volatile>{}</span>", _("%(age)s ago") % {"age": duration(age)})
    return text if at is None else formats.relative_html(at, text)


def endpoint_url(pages: PageAdmin, endpoint: str) -> str:
    """The page of an endpoint; empty if it is not on the site."""
    return pages.url_of(Endpoint, "endpoint", path_of(endpoint))


def failures_url(pages: PageAdmin, endpoint: str) -> str:
    """The list of the failed messages of an endpoint; empty if it is not on the site."""
    url = pages.url_of(FailedMessage, "messages")
    return f"{url}?{FailureSelection(endpoint=endpoint).to_query()}" if url else ""
