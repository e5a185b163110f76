"""The overview: alerts, the numbers with their scope, the queues and the instances."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button
from sqlqueue_app.dashboard.charts import (
    MOST_ENDPOINTS,
    PERIODS,
    RECEIVED,
    Chart,
    Period,
    Series,
    TrafficTable,
    endpoint_queues,
    line_chart,
    period_of,
    traffic_table,
)
from sqlqueue_app.dashboard.delayed import DelayedTableRow, table_row
from sqlqueue_app.dashboard.failures import QUEUES_OF_A_PAGE, READ_BY_A_PAGE
from sqlqueue_app.dashboard.formats import (
    WORKER_COMMAND,
    Grade,
    Number,
    Stamp,
    State,
    ago_html,
    bounded_number,
    counts,
    depth_number,
    duration,
    number,
    rate,
    relative_html,
    stamp,
    stamp_of,
)
from sqlqueue_app.dashboard.history import ActionAdmin, EventAdmin
from sqlqueue_app.dashboard.lists import HtmlTable, TableColumn, table
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import PageAdmin, path_of
from sqlqueue_app.failures.index import catch_up, has_new_failures
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.models import (
    CheckResult,
    DelayedMessage,
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
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.status.endpoints import failed_and_minimums
from sqlqueue_app.status.instances import InstanceState, InstanceStatus, is_received, threads_on
from sqlqueue_app.status.overview import Status, callback_queues, read_status, working_queues
from sqlqueue_app.status.queues import HeadAge, NoAge, ProblemKind, QueueKind, QueueProblem, QueueStatus
from sqlqueue_app.status.samples import FINEST, Traffic, page_sampling, read_traffic, resolution_for
from sqlqueue_app.tables.connections import database_now, optional_read

# Of actions and of events.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Managed:
    """Data of the managed tables as of `now`; None if they are missing."""

    now: datetime | None = None
    running: int = 0
    minimums: Mapping[str, int] = field(default_factory=dict)
    actions: Sequence[OperatorAction] = ()
    events: Sequence[Event] = ()
    results: CheckResults = field(default_factory=CheckResults)
    charts: Sequence[Chart] = ()
    traffic: TrafficTable | None = None

    def snapshot(self, status: Status) -> Snapshot:
        return Snapshot(get_settings(), self.now or status.taken_at, status=status, minimums=self.minimums)


class DashboardAdmin(PageAdmin):
    """The overview. It needs the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The one page."""
        return [self.readonly_view("", self.overview_view)]

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """The overview."""
        status = read_status()
        overview = overview_of(status, lambda name: self.url_of(Queue, "messages", path_of(name)))
        managed = self._read(status, period_of(request))
        snapshot = managed.snapshot(status)
        issues = current_issues(snapshot, managed.results)
        unresolved = snapshot.indexed_failures
        failed = bounded_number(unresolved.count, exact=unresolved.exact) if managed.now else None
        return self.page(
            request,
            "dashboard",
            live_seconds=LIVE_SECONDS,
            title=capfirst(str(self.opts.verbose_name)),
            overview=overview,
            alert_count=len(issues),
            failure_count=failed,
            tiles=tiles(status, self.url_of, failed=failed, running=managed.running, failing=len(issues)),
            alerts=alerts(snapshot, status, issues, self.url_of),
            charts=managed.charts,
            traffic=managed.traffic,
            endpoints_url=self.url_of(Endpoint),
            period=period_of(request),
            periods=PERIODS,
            events=_recent(EventAdmin(Event, self.admin_site), request, managed.events),
            events_url=self.url_of(Event),
            actions=_recent(ActionAdmin(OperatorAction, self.admin_site), request, managed.actions),
            actions_url=self.url_of(OperatorAction),
        )

    def _read(self, status: Status, period: Period) -> _Managed:
        """Read the managed tables; empty if they are missing."""
        alias = managed_alias()
        with optional_read(alias, "read the tables of the dashboard"):
            now = status.managed_now or database_now(alias)
            # Right also where no worker is alive, as the pages of the failed messages, which look closer.
            is_failing = any(each.queue.kind is QueueKind.ERROR and each.depth and each.depth.waiting for each in status.queues)
            is_indexed = not is_failing or any(each.works_for_all for each in status.instances)
            if not is_indexed and has_new_failures(get_settings(), QUEUES_OF_A_PAGE):
                catch_up(get_settings(), limit=READ_BY_A_PAGE, now=now, queues_at_most=QUEUES_OF_A_PAGE)
            by_endpoint, minimums, running = failed_and_minimums(alias, list(endpoint_queues(status, {})))
            endpoints = endpoint_queues(status, by_endpoint)
            traffic = self._traffic(status, dict(list(endpoints.items())[:MOST_ENDPOINTS]), period, now)
            actions = OperatorAction.objects.using(alias).order_by("-at", "-id")[:_SHOWN]
            events = Event.objects.using(alias).order_by("-at", "-id")[:_SHOWN]
            return _Managed(
                now,
                running,
                minimums,
                list(actions),
                list(events),
                read_results(alias, now),
                _charts(traffic, period, now),
                traffic_table(endpoints, traffic, by_endpoint, now, self._endpoint_url, self._failures_url),
            )
        return _Managed()

    def _traffic(self, status: Status, endpoints: Mapping[str, Sequence[QueueStatus]], period: Period, now: datetime) -> Traffic:
        """The samples of the page. It takes them itself where no worker does."""
        groups = [[each.name for each in status.queues if each.queue.kind in kinds] for _title, kinds in _CHARTS]
        queues = [each.name for found in endpoints.values() for each in found]
        traffic = read_traffic(managed_alias(), queues, groups, period.length, endpoints, now)
        taken = page_sampling.take(status.instances, traffic.newest, now, status)
        traffic.add(taken, groups if resolution_for(period.length) is FINEST else ())
        return traffic

    def _endpoint_url(self, name: str) -> str:
        return self.url_of(Endpoint, "endpoint", path_of(name))

    def _failures_url(self, name: str) -> str:
        url = self.url_of(FailedMessage, "messages")
        return f"{url}?{FailureSelection(endpoint=name).to_query()}" if url else ""


def _recent(pages: EventAdmin | ActionAdmin, request: HttpRequest, rows: Sequence[Any]) -> HtmlTable | None:
    """The list of these pages with relative times, which this page keeps up to date; None without rows."""
    columns: list[TableColumn[Any]] = [*pages.columns(request)]
    columns[0] = TableColumn(columns[0].label, lambda row: ago_html(row.at))
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


@dataclass(frozen=True, slots=True)
class Tile:
    """A number with the scope that it counts, in words; its page; how good it is."""

    label: str
    value: str
    scope: str
    url: str
    level: Grade


@dataclass(frozen=True, slots=True)
class Alert:
    """An issue in words: of what, the cause, since when and for how long, and the page where it is fixed."""

    level: Grade
    severity: str
    subject: str
    cause: str
    since: Stamp | None
    lasting: str
    url: str


def tiles(status: Status, url_of: UrlOf, *, failed: Number | None, running: int, failing: int) -> list[Tile]:
    """The tiles; elsewhere are counted `failed` unresolved messages (None: not known), `running` operations, `failing` checks."""
    main = [each for each in status.queues if each.queue.kind in (QueueKind.MAIN, QueueKind.SATELLITE) and each.depth]
    waiting = sum(each.depth.waiting for each in main if each.depth)
    exact = all(each.depth.exact for each in main if each.depth)
    expired = sum(each.depth.expired for each in status.queues if each.depth)
    overdue = sum(each.overdue or 0 for each in status.delayed)
    delayed = sum(each.waiting or 0 for each in status.delayed)
    alive = sum(1 for each in status.instances if each.alive)
    dead = len(status.instances) - alive
    missed = any(not each.alive and not each.replaced for each in status.instances)
    ours = status.error_queue_owner == "sqlqueue"
    queues, checks = url_of(Queue), url_of(CheckResult)
    return [
        Tile(
            _("Failed messages"),
            "?" if failed is None else failed.text,
            _("unresolved, in the error queues") if ours else _("in the error queues, which belong to ServiceControl"),
            url_of(FailedMessage) or queues,
            Grade.WARNING if failed is not None and failed.value and ours else Grade.OK,
        ),
        Tile(_("Waiting"), f"{'' if exact else '≈ '}{number(waiting)}", _("in main queues and satellites"), queues, Grade.OK),
        Tile(
            _("Expired"),
            number(expired),
            _("expired, not yet purged, in all queues"),
            f"{queues}?expired=1" if expired and queues else queues,
            Grade.INFO if expired else Grade.OK,
        ),
        Tile(
            _("Delayed"),
            number(delayed),
            ngettext("%(count)s overdue", "%(count)s overdue", overdue) % {"count": number(overdue)},
            url_of(DelayedMessage) or queues,
            Grade.WARNING if overdue else Grade.OK,
        ),
        Tile(
            _("Instances"),
            number(alive),
            ngettext("alive; %(count)s dead", "alive; %(count)s dead", dead) % {"count": number(dead)},
            url_of(Endpoint) or queues,
            Grade.ERROR if missed else Grade.OK if alive else Grade.WARNING,
        ),
        Tile(_("Checks"), number(failing), _("failing and not muted"), checks, Grade.ERROR if failing else Grade.OK),
        Tile(_("Operations"), number(running), _("not completed yet"), url_of(Operation), Grade.INFO if running else Grade.OK),
    ]


_LEVELS = {Severity.ERROR: Grade.ERROR, Severity.WARNING: Grade.WARNING, Severity.INFO: Grade.INFO}


def alerts(snapshot: Snapshot, status: Status, issues: Iterable[Issue], url_of: UrlOf) -> list[Alert]:
    """The issues in their order."""
    queues = {each.name: each for each in status.queues}
    delayed = {each.endpoint: each.name for each in status.delayed}
    return [
        Alert(
            _LEVELS[each.severity],
            str(Severity(each.severity).label),
            _subject(each),
            each.text(_words(each, queues.get(each.outcome.queue or each.outcome.endpoint))),
            stamp_of(each.since),
            "" if each.since is None else duration(max(snapshot.now - each.since, timedelta())),
            _page(each, url_of, delayed) or url_of(Queue),
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
    age = None if queue is None else _age(queue.head_age)
    if "age" not in words:
        words["age"] = "" if age is None or age.is_odd else ", " + _("the first is %(age)s old") % {"age": age.text}
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


# --- Rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgeText:
    """The age of the first message with a note on its source; `is_odd` if the note is important."""

    text: str
    note: str
    is_odd: bool = False


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A row of the table of queues. Numbers are None if they could not be counted."""

    status: QueueStatus
    url: str
    kind: str
    state: State
    depth: Number | None
    expiring: Number | None
    expired: Number | None
    age: AgeText | None
    threads: int | None
    rates: tuple[float, float] | None = None

    @property
    def flow(self) -> tuple[str, str] | None:
        """Messages per second in and out, as text."""
        return None if self.rates is None else (rate(self.rates[0]), rate(self.rates[1]))


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """A process; `threads` are queue, busy and live threads; `note` is a pending request."""

    instance: InstanceStatus
    state: State
    heartbeat: SafeString | str
    started: datetime
    threads: tuple[tuple[str, int, int], ...]
    callback_url: str
    callback_depth: Number | None
    note: str
    buttons: tuple[Button, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything on the page."""

    queues: tuple[QueueRow, ...]
    others: tuple[QueueRow, ...]
    delayed: tuple[DelayedTableRow, ...]
    callbacks: tuple[QueueRow, ...]
    callbacks_open: bool
    instances: tuple[InstanceRow, ...]
    instances_problem: QueueProblem | None
    taken_at: Stamp
    database: str
    summary: tuple[State, ...]
    worker_command: str = WORKER_COMMAND


KINDS = {
    QueueKind.MAIN: gettext_lazy("main"),
    QueueKind.SATELLITE: gettext_lazy("satellite"),
    QueueKind.ERROR: gettext_lazy("error"),
    QueueKind.AUDIT: gettext_lazy("audit"),
    QueueKind.CALLBACK: gettext_lazy("callback"),
    QueueKind.OTHER: gettext_lazy("other"),
}
_INSTANCE_STATES = {
    InstanceState.ALIVE: (Grade.OK, gettext_lazy("Alive")),
    InstanceState.PAUSING: (Grade.WARNING, gettext_lazy("Pausing")),
    InstanceState.PAUSED: (Grade.WARNING, gettext_lazy("Paused")),
    InstanceState.RESUMING: (Grade.INFO, gettext_lazy("Resuming")),
    InstanceState.DEAD: (Grade.ERROR, gettext_lazy("Dead")),
}
_PROBLEM_WORDS = {
    ProblemKind.MISSING: gettext_lazy("Missing"),
    ProblemKind.MISMATCH: gettext_lazy("Not a queue"),
    ProblemKind.UNREADABLE: gettext_lazy("Unreadable"),
    ProblemKind.NO_EXPIRES_INDEX: gettext_lazy("No index on Expires"),
    ProblemKind.NON_UNICODE_HEADERS: gettext_lazy("Headers not in Unicode"),
    ProblemKind.DEAD_ROWS: gettext_lazy("Dead rows pile up"),
}
_AGE_NOTES = {
    NoAge.UNREADABLE_HEADERS: gettext_lazy("the headers of the first message cannot be read"),
    NoAge.NO_TIME: gettext_lazy("the headers of the first message hold no time"),
    NoAge.UNREADABLE_TIME: gettext_lazy("the time in the headers of the first message cannot be read"),
}


def overview_of(
    status: Status,
    url_of: Callable[[str], str],
    rates: Mapping[str, tuple[float, float]] | None = None,
    *,
    delayed_url: Callable[[str], str] = lambda _name: "",
) -> Overview:
    """The page of a status; `url_of` gives the URL of a queue, `rates` messages per second in and out by queue.

    `delayed_url` gives the URL of a table of delayed messages, empty if there is none.
    """

    def row(each: QueueStatus) -> QueueRow:
        found = queue_row(each, url_of, status.instances)
        found = replace(found, rates=(rates or {}).get(each.name))
        if each.queue.kind is QueueKind.ERROR and each.problem is None and status.error_queue_owner == "servicecontrol":
            return replace(found, state=State(Grade.INFO, _("Belongs to ServiceControl")))
        return found

    def instance(each: InstanceStatus) -> InstanceRow:
        queue = status.callback_of(each)
        depth = None if queue is None or queue.depth is None else depth_number(queue.depth)
        return instance_row(each, "" if queue is None else url_of(queue.name), depth)

    callbacks = tuple(map(row, callback_queues(status)))
    return Overview(
        queues=tuple(row(each) for each in working_queues(status) if each.queue.kind is not QueueKind.OTHER),
        others=tuple(row(each) for each in status.queues if each.queue.kind is QueueKind.OTHER),
        delayed=tuple(table_row(each, delayed_url(each.name) if each.exists else "") for each in status.delayed),
        callbacks=callbacks,
        # Opened if something is wrong: unfetched replies, missing tables.
        callbacks_open=any(each.state.level is not Grade.OK for each in callbacks),
        instances=tuple(map(instance, status.instances)),
        instances_problem=status.instances_problem,
        taken_at=stamp(status.taken_at),
        database=status.database,
        summary=_summary(status),
    )


def queue_row(each: QueueStatus, url_of: Callable[[str], str], instances: Sequence[InstanceStatus]) -> QueueRow:
    """The row of one queue, which these instances may receive from or lease."""
    depth = each.depth
    return QueueRow(
        status=each,
        url=url_of(each.name),
        kind=str(KINDS[each.queue.kind]),
        state=queue_state(each, instances),
        depth=None if depth is None else depth_number(depth),
        expiring=None if depth is None else bounded_number(depth.expiring, exact=each.expiry_exact),
        expired=None if depth is None else bounded_number(depth.expired, exact=each.expiry_exact),
        age=_age(each.head_age),
        threads=threads_on(each.queue.address.table, instances),
    )


def send_command(queue: str) -> str:
    """A command that sends a message to the queue."""
    return f"python manage.py sqlqueue_send {shlex.quote(queue)} --type Example.Hello --body '{{}}'"


def queue_state(each: QueueStatus, instances: Sequence[InstanceStatus]) -> State:
    """The state of a queue, which these instances may receive from or lease."""
    if each.problem is not None and each.problem.stops_work:
        return State(Grade.ERROR, str(_PROBLEM_WORDS[each.problem.kind]))
    kind = each.queue.kind
    waiting = each.depth.waiting if each.depth is not None else 0
    holders = [one for one in instances if one.callback_queue == each.queue.address.table]
    if kind is QueueKind.ERROR and waiting:
        return State(Grade.WARNING, _("Failed messages"))
    if kind in (QueueKind.MAIN, QueueKind.SATELLITE) and not is_received(each.queue, instances):
        return unreceived_state(each.queue.endpoints, instances, is_waiting=bool(waiting))
    if kind is QueueKind.CALLBACK and waiting and not any(one.alive for one in holders):
        return State(Grade.WARNING, _("No receiver"))
    if each.problem is not None:
        level = Grade.INFO if each.problem.kind is ProblemKind.NON_UNICODE_HEADERS else Grade.WARNING
        return State(level, str(_PROBLEM_WORDS[each.problem.kind]))
    if kind is QueueKind.CALLBACK:
        if holders and not any(one.alive for one in holders):
            return State(Grade.INFO, _("Instance is gone"))
        return State(Grade.OK, _("Leased")) if holders else State(Grade.OK, _("Free"))
    return State(Grade.OK, _("OK"))


def unreceived_state(endpoints: Iterable[str], instances: Iterable[InstanceStatus], *, is_waiting: bool) -> State:
    """Why no process receives from a queue of these endpoints."""
    names = set(endpoints)
    if any(each.endpoint in names and each.alive and each.is_worker and each.paused for each in instances):
        return State(Grade.WARNING, _("Paused"))
    is_send_only = any(map(get_settings().is_send_only, names))
    return State(Grade.WARNING if is_waiting else Grade.INFO, _("Send-only") if is_send_only else _("No live worker"))


def _age(age: HeadAge | None) -> AgeText | None:
    if age is None:
        return None
    if age.age is None:
        return AgeText(_("unknown"), str(_AGE_NOTES[age.unknown]) if age.unknown is not None else "", is_odd=True)
    if age.age.total_seconds() < 0:
        note = _("from the header %(header)s: in the future by our clock") % {"header": age.header}
        return AgeText(duration(age.age), note, is_odd=True)
    return AgeText(duration(age.age), _("from the header %(header)s") % {"header": age.header})


def heartbeat_html(at: datetime | None, age: timedelta) -> SafeString | str:
    """When a heartbeat was, which is so old by the clock of its database."""
    text = _("%(age)s ago") % {"age": duration(age)}
    return text if at is None else relative_html(at, text)


def instance_row(
    each: InstanceStatus, callback_url: str, callback_depth: Number | None, note: str = "", buttons: tuple[Button, ...] = ()
) -> InstanceRow:
    """The row of a process, with the URL of its callback queue and the messages in it."""
    return InstanceRow(
        instance=each,
        state=instance_state(each.state),
        heartbeat=heartbeat_html(each.heartbeat_at, each.heartbeat_age),
        started=each.started_at,
        threads=tuple((name, each.busy.get(name, 0), live) for name, live in each.threads.items()),
        callback_url=callback_url,
        callback_depth=callback_depth,
        note=note,
        buttons=buttons,
    )


def instance_state(state: InstanceState) -> State:
    """The state of a process."""
    level, word = _INSTANCE_STATES[state]
    return State(level, str(word))


def _summary(status: Status) -> tuple[State, ...]:
    """The overall state in a few phrases."""
    broken = sum(1 for each in status.queues if each.problem is not None and each.problem.stops_work)
    failed = sum(each.depth.waiting for each in status.queues if each.queue.kind is QueueKind.ERROR and each.depth is not None)
    approximately = any(
        each.depth is not None and not each.depth.exact for each in status.queues if each.queue.kind is QueueKind.ERROR
    )
    alive = sum(1 for each in status.instances if each.alive)
    dead = sum(1 for each in status.instances if not each.alive and not each.replaced)
    phrases = [
        State(Grade.ERROR if broken else Grade.OK, _("tables with errors: %(count)s") % {"count": number(broken)}),
        State(
            Grade.OK if not failed else Grade.INFO if status.error_queue_owner == "servicecontrol" else Grade.WARNING,
            _("messages in error queues: %(count)s") % {"count": f"{'≈ ' if approximately else ''}{number(failed)}"},
        ),
        State(Grade.OK if alive else Grade.WARNING, _("live instances: %(count)s") % {"count": number(alive)}),
    ]
    if dead:
        phrases.append(State(Grade.ERROR, _("dead instances: %(count)s") % {"count": number(dead)}))
    return tuple(phrases)
