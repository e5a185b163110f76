"""The overview: alerts, the numbers with their scope, the queues and the instances."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.charts import MOST_ENDPOINTS, PERIODS, Chart, Period, Series, line_chart, period_of, traffic_table
from sqlqueue_app.dashboard.formats import (
    Grade,
    Number,
    State,
    ago_html,
    bounded_number,
    counts,
    depth_number,
    duration,
    number,
    relative_html,
    stamp_html,
)
from sqlqueue_app.dashboard.history import ActionAdmin, EventAdmin, severity_state
from sqlqueue_app.dashboard.lists import NUMBER, HtmlTable, TableColumn, cell_html, link_html, table, titled_html, with_notes
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import PageAdmin, path_of
from sqlqueue_app.failures.index import catch_up_for_page, has_new_failures
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.models import (
    CheckResult,
    DelayedMessage,
    DistributedTransaction,
    Endpoint,
    Event,
    FailedMessage,
    Operation,
    OperatorAction,
    Queue,
    Schedule,
    Severity,
)
from sqlqueue_app.monitoring.check_results import CheckResults, read_results
from sqlqueue_app.monitoring.checks import BRANCHES, FAILURES, INSTANCES, MOVER, SAMPLES, SCHEDULES, TABLES
from sqlqueue_app.monitoring.health import Issue, current_issues
from sqlqueue_app.monitoring.snapshot import Snapshot
from sqlqueue_app.receiving.instances import HEARTBEAT_SECONDS, managed_alias
from sqlqueue_app.status.endpoints import failed_and_minimums
from sqlqueue_app.status.instances import InstanceState, InstanceStatus, is_received, threads_on
from sqlqueue_app.status.overview import Status, read_status
from sqlqueue_app.status.queues import HeadAge, NoAge, ProblemKind, QueueKind, QueueStatus
from sqlqueue_app.status.samples import FINEST, page_sampling, resolution_for
from sqlqueue_app.status.traffic import GROWN_IN, RECEIVED, Traffic, endpoint_queues, read_traffic
from sqlqueue_app.tables.connections import database_now, optional_read
from sqlqueue_app.tables.queue import Depth

# Of actions and of events.
_SHOWN = 10


class DashboardAdmin(PageAdmin):
    """The overview. It needs the permission `sqlqueue_app.view_queue`."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The overview; without what the managed tables hold if they are missing."""
        status, period, alias = read_status(), period_of(request), managed_alias()
        now, results, running = status.managed_now or status.taken_at, CheckResults(), 0
        minimums: dict[str, int] = {}
        shown: dict[str, Any] = {}
        with optional_read(alias, "read the tables of the dashboard"):
            now = status.managed_now or database_now(alias)
            _catch_up(status, now)
            failed, minimums, running = failed_and_minimums(alias, list(endpoint_queues(status, {})))
            endpoints = endpoint_queues(status, failed)
            traffic = self._traffic(status, dict(list(endpoints.items())[:MOST_ENDPOINTS]), period, now)
            results = read_results(alias, now)
            shown = {
                "charts": _charts(traffic, period, now),
                "grown_in": number(GROWN_IN // timedelta(minutes=1)),
                "traffic": traffic_table(endpoints, traffic, failed, now, partial(endpoint_url, self), partial(failures_url, self)),
                "events": _recent(EventAdmin(Event, self.admin_site), request),
                "actions": _recent(ActionAdmin(OperatorAction, self.admin_site), request),
            }
        snapshot = Snapshot(get_settings(), now, status=status, minimums=minimums)
        issues = current_issues(snapshot, results)
        unresolved = bounded_number(snapshot.indexed_failures.count, exact=snapshot.indexed_failures.exact) if shown else None
        return self.page(
            request,
            "dashboard",
            live_seconds=LIVE_SECONDS,
            title=capfirst(str(self.opts.verbose_name)),
            counted=status,
            alert_count=len(issues),
            failure_count=unresolved,
            tiles=tiles(status, self.url_of, failed=unresolved, running=running, failing=len(issues)),
            alerts=alerts(snapshot, status, issues, self.url_of),
            endpoints_url=self.url_of(Endpoint),
            period=period,
            periods=PERIODS,
            events_url=self.url_of(Event),
            actions_url=self.url_of(OperatorAction),
            **shown,
        )

    def _traffic(self, status: Status, endpoints: Mapping[str, Sequence[QueueStatus]], period: Period, now: datetime) -> Traffic:
        """The samples of the page. It takes them itself where no worker does."""
        groups = [[each.name for each in status.queues if each.queue.kind in kinds] for _title, kinds in _CHARTS]
        queues = [each.name for found in endpoints.values() for each in found]
        traffic = read_traffic(managed_alias(), queues, groups, period.length, endpoints, now)
        taken = page_sampling.take(status.instances, traffic.newest, now, status)
        traffic.add(taken, groups if resolution_for(period.length) is FINEST else ())
        return traffic


def endpoint_url(pages: PageAdmin, endpoint: str) -> str:
    """The page of an endpoint; empty if the project has taken it off the site."""
    return pages.url_of(Endpoint, "endpoint", path_of(endpoint))


def failures_url(pages: PageAdmin, endpoint: str) -> str:
    """The list of the failed messages of an endpoint; empty if the project has taken it off the site."""
    url = pages.url_of(FailedMessage, "messages")
    return f"{url}?{FailureSelection(endpoint=endpoint).to_query()}" if url else ""


def _catch_up(status: Status, now: datetime) -> None:
    """Index new failures where no worker does, as the pages of failed messages do."""
    is_failing = any(each.queue.kind is QueueKind.ERROR and each.depth and each.depth.waiting for each in status.queues)
    is_unindexed = is_failing and not any(each.works_for_all for each in status.instances)
    if is_unindexed and has_new_failures(get_settings()):
        catch_up_for_page(get_settings(), now)


def _recent(pages: EventAdmin | ActionAdmin, request: HttpRequest) -> HtmlTable | None:
    """The newest rows of this list with relative times, which this page keeps up to date; None without rows."""
    columns: list[TableColumn[Any]] = [*pages.columns(request)]
    columns[0] = TableColumn(columns[0].label, lambda row: ago_html(row.at))
    rows: list[Any] = list(pages.rows().order_by("-at", "-id")[:_SHOWN])
    return table(pages.caption, columns, rows, lambda row: f"{row._meta.model_name} {row.pk}") if rows else None


# The lengths of the endpoint queues and of the error queues.
_CHARTS: Final = (
    (gettext_lazy("Waiting in main queues and satellites"), RECEIVED),
    (gettext_lazy("Waiting in error queues"), (QueueKind.ERROR,)),
)


def _charts(traffic: Traffic, period: Period, now: datetime) -> list[Chart]:
    begin, step = now - period.length, timedelta(seconds=resolution_for(period.length).seconds)
    return [
        line_chart(str(title), [Series(_("messages"), points)], begin=begin, end=now, step=step, scale=counts)
        for (title, _kinds), points in zip(_CHARTS, traffic.totals, strict=True)
        if points
    ]


# --- Alerts and tiles -------------------------------------------------------------------------------------------------

UrlOf = Callable[..., str]


def tiles(status: Status, url_of: UrlOf, *, failed: Number | None, running: int, failing: int) -> list[tuple[str, str, State, str]]:
    """Label, page, value with its grade, and scope of each number; elsewhere are counted `failed` unresolved messages (None: not
    known), `running` operations and `failing` checks.
    """
    main = [each.depth for each in status.queues if each.queue.kind in RECEIVED and each.depth]
    waiting = f"{'' if all(each.exact for each in main) else '≈ '}{number(sum(each.waiting for each in main))}"
    expired = sum(each.depth.expired for each in status.queues if each.depth)
    overdue = sum(each.overdue or 0 for each in status.delayed)
    delayed = number(sum(each.waiting or 0 for each in status.delayed))
    alive = sum(each.alive for each in status.instances)
    dead = len(status.instances) - alive
    is_lost = any(each.is_lost for each in status.instances)
    ours = status.error_queue_owner == "sqlqueue"
    queues, is_bad = url_of(Queue), failed is not None and failed.value and ours
    late = ngettext("%(count)s overdue", "%(count)s overdue", overdue) % {"count": number(overdue)}
    gone = ngettext("alive; %(count)s dead", "alive; %(count)s dead", dead) % {"count": number(dead)}
    unresolved = _("unresolved, in the error queues") if ours else _("in the error queues, which belong to ServiceControl")
    failures = State(Grade.WARNING if is_bad else Grade.OK, "?" if failed is None else failed.text)
    backlog = State(Grade.INFO if expired else Grade.OK, number(expired))
    with_expired = f"{queues}?expired=1" if expired and queues else queues
    life = State(Grade.ERROR if is_lost else Grade.OK if alive else Grade.WARNING, number(alive))
    checks = State(Grade.ERROR if failing else Grade.OK, number(failing))
    operations = State(Grade.INFO if running else Grade.OK, number(running))
    return [
        (_("Failed messages"), url_of(FailedMessage) or queues, failures, unresolved),
        (_("Waiting"), queues, State(Grade.OK, waiting), _("in main queues and satellites")),
        (_("Expired"), with_expired, backlog, _("expired, not yet purged, in all queues")),
        (_("Delayed"), url_of(DelayedMessage) or queues, State(Grade.WARNING if overdue else Grade.OK, delayed), late),
        (_("Instances"), url_of(Endpoint) or queues, life, gone),
        (_("Checks"), url_of(CheckResult), checks, _("failing and not muted")),
        (_("Operations"), url_of(Operation), operations, _("not completed yet")),
    ]


def alerts(
    snapshot: Snapshot, status: Status, issues: Iterable[Issue], url_of: UrlOf
) -> list[tuple[Issue, State, str, str, str, timedelta | None]]:
    """Each issue with its severity, subject, cause, the page where it is fixed, and for how long it has lasted."""
    queues = {each.name: each for each in status.queues}
    delayed = {each.endpoint: each.name for each in status.delayed}
    return [
        (
            each,
            severity_state(each.severity),
            _subject(each),
            each.text(_words(each, queues.get(each.outcome.queue or each.outcome.endpoint))),
            _page(each, url_of, delayed) or url_of(Queue),
            None if each.since is None else max(snapshot.now - each.since, timedelta()),
        )
        for each in issues
    ]


_SUBJECTS = {
    INSTANCES.name: gettext_lazy("Process %(name)s"),
    SCHEDULES.name: gettext_lazy("Schedule %(name)s"),
    BRANCHES.name: gettext_lazy("In-doubt transaction"),
    SAMPLES.name: gettext_lazy("Workers"),
}


def _subject(issue: Issue) -> str:
    """What an issue is about."""
    found = issue.outcome
    if issue.check is None:
        return _("Check %(name)s") % {"name": issue.name}
    name = found.queue or found.endpoint or found.subject
    template = _SUBJECTS.get(issue.name)
    if template is not None:
        return str(template) % {"name": found.subject}
    if found.queue:
        return _("Queue %(name)s") % {"name": name}
    return _("Endpoint %(name)s") % {"name": name} if found.endpoint else name or str(issue.check.label)


def _words(issue: Issue, queue: QueueStatus | None) -> dict[str, str]:
    """What an issue's text takes besides its details."""
    outcome = issue.outcome
    words = {name: _in_words(value) for name, value in outcome.now.items()}
    if queue is not None and queue.depth is not None:
        words["count"] = f"{'' if queue.depth.exact else '≈ '}{words.get('count', '')}"
    if "age" not in words:
        age = queue.head_age.age if queue is not None and queue.head_age is not None else None
        words["age"] = "" if age is None or age < timedelta() else ", " + _("the first is %(age)s old") % {"age": duration(age)}
    return {**words, "queue": outcome.queue, "endpoint": outcome.endpoint}


def _in_words(value: object) -> str:
    if isinstance(value, timedelta):
        return duration(value)
    return number(value) if isinstance(value, int) else str(value)


def _page(issue: Issue, url_of: UrlOf, delayed: Mapping[str, str]) -> str:
    """The page about an issue; empty where the project has taken it off the site."""
    queue, endpoint = issue.outcome.queue, issue.outcome.endpoint
    if issue.name == FAILURES.name:
        group = issue.outcome.now.get("group")
        return url_of(FailedMessage, "group", group) if group else url_of(FailedMessage)
    if issue.name == BRANCHES.name:
        return url_of(DistributedTransaction)
    if not issue.is_live and not queue:
        return url_of(CheckResult)
    if issue.name == SCHEDULES.name:
        return url_of(Schedule)
    if queue:
        # A table that cannot be worked with has no page.
        is_broken = issue.name == TABLES.name and issue.severity == Severity.ERROR
        return url_of(Queue) if is_broken else url_of(Queue, "messages", path_of(queue))
    if issue.name == MOVER.name:
        return url_of(DelayedMessage, "table", path_of(delayed[endpoint]))
    if issue.name == TABLES.name:
        return url_of(DelayedMessage)
    return url_of(Endpoint, "endpoint", path_of(endpoint)) if endpoint else url_of(Endpoint)


# --- Columns of queues and instances --------------------------------------------------------------------------------------

KINDS: Final = {
    QueueKind.MAIN: gettext_lazy("main"),
    QueueKind.SATELLITE: gettext_lazy("satellite"),
    QueueKind.ERROR: gettext_lazy("error"),
    QueueKind.AUDIT: gettext_lazy("audit"),
    QueueKind.CALLBACK: gettext_lazy("callback"),
    QueueKind.OTHER: gettext_lazy("other"),
}
INSTANCE_STATES: Final = {
    InstanceState.ALIVE: State(Grade.OK, gettext_lazy("Alive")),
    InstanceState.PAUSING: State(Grade.WARNING, gettext_lazy("Pausing")),
    InstanceState.PAUSED: State(Grade.WARNING, gettext_lazy("Paused")),
    InstanceState.RESUMING: State(Grade.INFO, gettext_lazy("Resuming")),
    InstanceState.DEAD: State(Grade.ERROR, gettext_lazy("Dead")),
}
PAUSED: Final = INSTANCE_STATES[InstanceState.PAUSED]
PARTLY_PAUSED: Final = State(Grade.WARNING, gettext_lazy("Partly paused"))
_PROBLEMS: Final = {
    ProblemKind.MISSING: State(Grade.ERROR, gettext_lazy("Missing")),
    ProblemKind.MISMATCH: State(Grade.ERROR, gettext_lazy("Not a queue")),
    ProblemKind.UNREADABLE: State(Grade.ERROR, gettext_lazy("Unreadable")),
    ProblemKind.NO_EXPIRES_INDEX: State(Grade.WARNING, gettext_lazy("No index on Expires")),
    ProblemKind.NON_UNICODE_HEADERS: State(Grade.INFO, gettext_lazy("Headers not in Unicode")),
    ProblemKind.DEAD_ROWS: State(Grade.WARNING, gettext_lazy("Dead rows pile up")),
}
_AGE_NOTES: Final = {
    NoAge.UNREADABLE_HEADERS: gettext_lazy("the headers of the first message cannot be read"),
    NoAge.NO_TIME: gettext_lazy("the headers of the first message have no time"),
    NoAge.UNREADABLE_TIME: gettext_lazy("the time in the headers of the first message cannot be read"),
}


def queue_columns(pages: PageAdmin, instances: Sequence[InstanceStatus]) -> list[TableColumn[QueueStatus]]:
    """The columns of a list of queues, which these instances may receive from or lease."""

    def counted(each: QueueStatus, name: str) -> object:
        if each.depth is None:
            return _("not known")
        return bounded_number(getattr(each.depth, name), exact=each.expiry_exact)

    return [
        TableColumn(_("Queue"), lambda each: link_html(pages.url_of(Queue, "messages", path_of(each.name)), each.name)),
        TableColumn(_("Kind"), lambda each: str(KINDS[each.queue.kind])),
        TableColumn(_("Endpoint"), lambda each: endpoints_html(pages, each.queue.endpoints)),
        TableColumn(_("State"), lambda each: paused_html(queue_state(each, instances), instances, each.queue.endpoints)),
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
    """The endpoints of a queue; an endpoint alone is a link, for an error queue may have hundreds."""
    return link_html(endpoint_url(pages, names[0]) if len(names) == 1 else "", ", ".join(names))


def depth_cell(depth: Depth | None) -> object:
    """How many messages wait, as a cell of a table."""
    return _("not known") if depth is None else depth_number(depth)


def queue_state(each: QueueStatus, instances: Sequence[InstanceStatus]) -> State:
    """The state of a queue, which these instances may receive from or lease."""
    problem = None if each.problem is None else _PROBLEMS[each.problem.kind]
    if problem is not None and problem.level is Grade.ERROR:
        return problem
    kind, is_waiting = each.queue.kind, bool(each.depth is not None and each.depth.waiting)
    holders = [one for one in instances if one.callback_queue == each.queue.address.table]
    is_held = any(one.alive for one in holders)
    if kind is QueueKind.ERROR and problem is None and get_settings().error_queue_owner == "servicecontrol":
        return State(Grade.INFO, _("Belongs to ServiceControl"))
    if kind is QueueKind.ERROR and is_waiting:
        return State(Grade.WARNING, _("Failed messages"))
    if kind in RECEIVED and not is_received(each.queue, instances):
        return unreceived_state(each.queue.endpoints, instances, is_waiting=is_waiting)
    if kind is QueueKind.CALLBACK and is_waiting and not is_held:
        return State(Grade.WARNING, _("No receiver"))
    if problem is not None:
        return problem
    if kind is QueueKind.CALLBACK and holders and not is_held:
        return State(Grade.INFO, _("Instance is gone"))
    if kind is QueueKind.CALLBACK:
        return State(Grade.OK, _("Leased") if holders else _("Free"))
    return State(Grade.OK, _("OK"))


def unreceived_state(endpoints: Iterable[str], instances: Iterable[InstanceStatus], *, is_waiting: bool) -> State:
    """Why no process receives from a queue of these endpoints."""
    names = set(endpoints)
    if any(each.endpoint in names and each.alive and each.is_worker and each.paused for each in instances):
        return PAUSED
    is_send_only = any(map(get_settings().is_send_only, names))
    return State(Grade.WARNING if is_waiting else Grade.INFO, _("Send-only") if is_send_only else _("No live worker"))


def paused_html(state: State, instances: Iterable[InstanceStatus], endpoints: Collection[str]) -> SafeString:
    """The state of a queue or an endpoint; if that is a pause, with who paused its processes, and since when."""
    paused = [each for each in instances if each.endpoint in endpoints and each.alive and each.paused and each.asked_to_pause_at]
    if state not in (PAUSED, PARTLY_PAUSED) or not paused:
        return cell_html(state)
    who = ", ".join(sorted({each.paused_by or _("unknown") for each in paused}))
    since = min(each.asked_to_pause_at for each in paused if each.asked_to_pause_at)
    return with_notes(state, format_html(_("by {user} since {time}"), user=who, time=stamp_html(since)))


def _age(head: HeadAge | None) -> object:
    if head is None:
        return None
    if head.age is None:
        return with_notes(_("unknown"), "" if head.unknown is None else str(_AGE_NOTES[head.unknown]))
    if head.age < timedelta():
        note = _("from the header %(header)s: in the future by our clock") % {"header": head.header}
        return with_notes(head.age, note)
    return titled_html(duration(head.age), _("from the header %(header)s") % {"header": head.header})


def instance_columns(pages: PageAdmin, depths: Mapping[str, Depth | None]) -> list[TableColumn[InstanceStatus]]:
    """The columns of a list of processes; `depths` has what waits in each callback queue that has a page."""

    def callback_queue(each: InstanceStatus) -> object:
        name = each.callback_queue
        if name is None or name not in depths:
            return name
        depth = depths[name]
        waiting = "" if depth is None else _("messages in it: %(count)s") % {"count": depth_number(depth).text}
        return with_notes(link_html(pages.url_of(Queue, "messages", path_of(name)), name), waiting)

    return [
        TableColumn(_("Instance"), lambda each: each.name),
        TableColumn(_("Machine and process"), lambda each: with_notes(f"{each.host} ({each.pid})", _version(each.version))),
        TableColumn(_("State"), lambda each: with_notes(INSTANCE_STATES[each.state], _request(each))),
        TableColumn(_("Last heartbeat"), lambda each: heartbeat_html(each.heartbeat_at, each.heartbeat_age)),
        TableColumn(_("Started"), lambda each: ago_html(each.started_at)),
        TableColumn(_("Concurrency"), lambda each: each.concurrency, NUMBER),
        TableColumn(_("Live threads"), _threads),
        TableColumn(_("Callback queue"), callback_queue),
    ]


def _version(version: str) -> str:
    return _("version %(version)s") % {"version": version} if version else ""


def _threads(each: InstanceStatus) -> SafeString | None:
    """The threads of each queue, and how many of them handle a message."""
    words = _("%(live)s, %(busy)s busy")
    lines = [
        (queue, words % {"live": number(live), "busy": number(each.busy.get(queue, 0))}) for queue, live in each.threads.items()
    ]
    return format_html('<ul class="sq-plain">{}</ul>', format_html_join("", "<li><bdi>{}</bdi>: {}</li>", lines)) if lines else None


def _request(each: InstanceStatus) -> str:
    """A request that the process has not followed yet, and when it will."""
    asked = "" if each.asked_ago is None else _("requested %(age)s ago") % {"age": duration(max(each.asked_ago, timedelta()))}
    if each.state not in (InstanceState.PAUSING, InstanceState.RESUMING):
        # Other requests, as for another concurrency, are in the row immediately.
        return _("%(requested)s, not followed yet") % {"requested": asked} if asked and each.alive else ""
    left = min(max(0.0, HEARTBEAT_SECONDS - each.heartbeat_age.total_seconds()), HEARTBEAT_SECONDS)
    words = _("at its next heartbeat, within %(seconds)s s") % {"seconds": number(round(left + 0.5))}
    return f"{words} ({asked})" if asked else words


def heartbeat_html(at: datetime | None, age: timedelta) -> SafeString | str:
    """When a heartbeat was, which is so old by the clock of its database."""
    text = _("%(age)s ago") % {"age": duration(age)}
    return text if at is None else relative_html(at, text)
