"""The built-in checks: one list, with the texts, the severity and the probe of each.

`sqlqueue_health` and the overview evaluate them on the current state. One worker of the cluster runs them periodically and stores
the results. A process reports the checks that only it can run.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.conf import Settings
from sqlqueue_app.conf.crontab import cron_times
from sqlqueue_app.dialects.schema import TableKind
from sqlqueue_app.health_checks import OWN_PREFIX
from sqlqueue_app.installation import planned_tables
from sqlqueue_app.models import RunState, Severity
from sqlqueue_app.monitoring.snapshot import GROWTH_PERIOD, MINUTES, RECENT, Snapshot
from sqlqueue_app.receiving.instances import DEAD_AFTER_SECONDS
from sqlqueue_app.status.events import EventKind
from sqlqueue_app.status.instances import threads_on
from sqlqueue_app.status.queues import INSTALL_COMMAND, KnownQueue, ProblemKind, QueueKind, QueueProblem, table_key
from sqlqueue_app.status.texts import Words
from sqlqueue_app.tables.connections import connection_of, dialect_of_connection
from sqlqueue_app.tables.installation import FindingKind, findings_of_layout, inspect_tables
from sqlqueue_app.tables.listing import current_catalog, list_tables
from sqlqueue_app.tables.rows import cut_text

Details = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """The result of a probe for one subject: the `details` of the problem, None without one.

    `details` are stored in the results and stay the same while nothing changes. `now` holds changing values for the current
    texts. The subject belongs to the `queue` or the `endpoint`; `code` and `severity` replace those of the check. `since`: the
    start, as far as the state shows it. `is_explained`: another check reports the cause, so this one adds nothing.
    """

    subject: str
    details: Details | None = None
    now: Details = field(default_factory=dict)
    queue: str = ""
    endpoint: str = ""
    code: str = ""
    severity: Severity | None = None
    since: datetime | None = None
    is_explained: bool = False


Probe = Callable[[Snapshot], Iterator[ProbeOutcome]]


class Reader(enum.Flag):
    """The evaluator of a check: each reader of the status, one worker for the cluster, or each process for itself."""

    STATUS = enum.auto()
    WORKER = enum.auto()
    PROCESS = enum.auto()


@dataclass(frozen=True, slots=True)
class Check:
    """A built-in check. Texts have placeholders for the `subject` and the details of a result.

    `finding` is the text of a stored result, `now` that of the overview for the current state, and `line` that of
    `sqlqueue_health` under the id `code`; `finding` is the default of both.
    `failed`, `passed` and `gone` are the events of its subjects; `gone` is for a failing subject that no longer exists;
    None: no event, or other events cover it. `covers_all`: one probe finds every subject that any process finds.
    """

    name: str
    every_seconds: int
    label: Promise
    finding: Promise | str
    advice: Promise | str
    probe: Probe | None = None
    read_by: Reader = Reader.STATUS | Reader.WORKER
    severity: Severity = Severity.WARNING
    code: str = "check"
    line: str = ""
    now: Promise | str = ""
    failed: EventKind | None = EventKind.CHECK_FAILED
    passed: EventKind | None = EventKind.CHECK_PASSED
    gone: EventKind | None = None
    covers_all: bool = False


# The probes: few statements each in a worker, and none that reads a queue table.
EXPIRED_LIMIT: Final = 1_000
# A purge is late after two of its intervals; workers purge every five minutes by default.
PURGES_MISSED: Final = 3
MIN_PURGE_GRACE: Final = timedelta(minutes=15)
# A live worker sends the tick of a schedule within seconds, or later after an outage of the database.
TICK_GRACE: Final = timedelta(minutes=2)
# A pause without waiting messages concerns only the operator who started it, up to this time.
MAX_UNREPORTED_PAUSE: Final = timedelta(minutes=5)
STALE_AFTER: Final = timedelta(minutes=2)
# The reasons why nothing receives, in the words of `sqlqueue_health`.
_WHY: Final = {
    "no_worker": "no live instance receives from it",
    "send_only": "the endpoint is send-only: no process receives from it",
}
# Texts of causes and effects: outcomes hold their names.
PHRASES: Final[Mapping[str, Promise]] = {
    "no_worker": gettext_lazy("No live worker"),
    "send_only": gettext_lazy("Send-only endpoint: no process receives"),
    "unmanned": gettext_lazy("No worker is alive: nothing is sampled or checked, and charts end there"),
    "unsampled": gettext_lazy("Workers are alive, but have not run checks since then: their logs show why"),
    "waiting": gettext_lazy("Messages waiting that no process receives: %(waiting)s."),
    "newest": gettext_lazy("The newest: %(newest)s"),
    "grown": gettext_lazy(", %(grown)s more than 10 minutes ago"),
    "groups": gettext_lazy(" in %(groups)s groups"),
    "run_failed": gettext_lazy("failed: %(error)s"),
    "run_killed": gettext_lazy("was killed, or its machine was lost."),
    "run_missed": gettext_lazy("was due at %(tick)s and did not start."),
}


def _registry(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    problem = snapshot.registry_problem
    yield ProbeOutcome("instances", None if problem is None else {"text": problem.text})


def _instances(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    for (host, pid), instances in snapshot.processes.items():
        names = ", ".join(sorted({each.endpoint for each in instances}))
        lost = [each for each in instances if each.is_lost]
        outcome = ProbeOutcome(f"{names} on {host} ({pid})", endpoint=instances[0].endpoint)
        if lost:
            waiting_in = {each.endpoint: snapshot.count_unreceived(each.endpoint) for each in lost}
            waiting = sum(waiting_in.values())
            fullest = max(waiting_in, key=waiting_in.__getitem__)
            # Without the age, which would change the row at every run.
            silent = {"endpoint": lost[0].endpoint, "seconds": int(DEAD_AFTER_SECONDS)}
            age = min(each.heartbeat_age for each in lost)
            words = {"name": names, "host": host, "pid": pid, "age": age, "silent": f"{age.total_seconds():.0f}"}
            words["endpoints"] = tuple(each.endpoint for each in lost)
            since = max(each.heartbeat_at for each in lost)
            is_error = waiting or any(snapshot.is_below_minimum(each.endpoint) for each in lost)
            severity = Severity.ERROR if is_error else None
            now = {**words, **_waiting(waiting)}
            outcome = replace(outcome, details=silent, now=now, endpoint=fullest, since=since, severity=severity)
        yield outcome


def _waiting(waiting: int) -> Details:
    """The number of waiting messages, as an addition to other texts."""
    words = f"; messages waiting: {waiting}, and no live instance receives them" if waiting else ""
    return {"waiting": waiting, "effect": "waiting" if waiting else "", "also": words}


def _grown(snapshot: Snapshot, queues: Iterable[KnownQueue], waiting: int) -> dict[str, Any]:
    """The growth of these queues, with the number of messages that it belongs to; empty without growth."""
    grown = sum(snapshot.growth.get(each.name, 0) for each in queues)
    return {"waiting": waiting, "grown": grown, "more": "grown"} if grown else {}


def _minimums(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    if snapshot.registry_problem:
        return
    for endpoint, minimum in sorted(snapshot.minimums.items()):
        if minimum > 0:
            alive = snapshot.workers(endpoint)
            is_explained = endpoint in snapshot.lost
            details = {"alive": alive, "minimum": minimum} if alive < minimum else None
            waiting = snapshot.count_unreceived(endpoint) if details and not alive else 0
            yield ProbeOutcome(endpoint, details, _waiting(waiting), endpoint=endpoint, is_explained=is_explained)


def _paused(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    for endpoint in dict.fromkeys(each.endpoint for each in snapshot.instances):
        details, since, now = None, None, {}
        if (last := snapshot.paused.get(endpoint)) is not None:
            since = last.pause_requested_at
            waiting = snapshot.count_unreceived(endpoint)
            if waiting or (since is not None and snapshot.now - since >= MAX_UNREPORTED_PAUSE):
                details = {"by": last.paused_by or "?", "at": _in_zone(since or snapshot.now, snapshot)}
                details |= _grown(snapshot, snapshot.queues_of(endpoint), waiting)
                now = {"count": waiting}
        yield ProbeOutcome(endpoint, details, now, endpoint=endpoint, since=since)


def _in_zone(instant: datetime, snapshot: Snapshot) -> str:
    return f"{instant.astimezone(snapshot.zone):%Y-%m-%d %H:%M %Z}"


def _tables(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    status = snapshot.status
    if status is None:
        yield from _planned_tables(snapshot.settings)
        return
    for each in status.queues:
        outcome = ProbeOutcome(each.table, now={"of": each.name, "where": f"queue {each.name}"}, queue=each.name)
        yield _with_problem(outcome, each.problem)
    for table in snapshot.delayed:
        outcome = ProbeOutcome(table.table, now={"of": table.endpoint, "where": table.endpoint}, endpoint=table.endpoint)
        its_table = f"its table of delayed messages {table.table}"
        problem = None
        if table.exists is False:
            problem = QueueProblem(ProblemKind.MISSING, f"{its_table} is missing: run {INSTALL_COMMAND}")
        elif table.overdue is None:
            problem = QueueProblem(ProblemKind.UNREADABLE, f"{its_table} cannot be read")
        yield _with_problem(outcome, problem)


def _with_problem(outcome: ProbeOutcome, problem: QueueProblem | None) -> ProbeOutcome:
    if problem is None or problem.kind is ProblemKind.NON_UNICODE_HEADERS:
        return outcome
    severity = Severity.ERROR if problem.stops_work else Severity.WARNING
    return replace(outcome, details={"text": problem.text, "sql": problem.sql}, code=problem.kind.value, severity=severity)


def _planned_tables(settings: Settings) -> Iterator[ProbeOutcome]:
    """The findings of `sqlqueue_install --check`, except callback queues: only their machine knows their owners."""
    alias, layout = settings.database, settings.table_layout
    connection = connection_of(alias)
    dialect = dialect_of_connection(connection)
    listed = {table_key(each.address): each for each in list_tables(alias)}
    for table in planned_tables(settings, dialect.name, current_catalog(connection), instance_names=()):
        found = listed.get(table_key(table.address))
        if found is not None and table.kind is TableKind.QUEUE and found.layout is not None:
            findings = findings_of_layout(dialect, table, found.layout, layout)
        elif found is not None and table.kind is TableKind.DELAYED and found.is_delayed:
            findings = []
        else:
            findings = inspect_tables(alias, [table], layout=layout)
        wrong = next((each for each in findings if each.kind is not FindingKind.NON_UNICODE_HEADERS), None)
        yield ProbeOutcome(dialect.qualified(table.address), None if wrong is None else {"text": wrong.text, "sql": wrong.sql})


def _receivers(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    """One outcome for an endpoint without workers, else one for each of its queues."""
    if snapshot.registry_problem:
        return
    for endpoint in snapshot.settings.senders:
        queues, workers = snapshot.queues_of(endpoint), snapshot.workers(endpoint)
        if not queues and snapshot.status is None:
            continue  # too few samples, as after a restart of all workers: the last result stays
        is_explained = (not workers and snapshot.is_below_minimum(endpoint)) or endpoint in {*snapshot.lost, *snapshot.paused}
        cause = "send_only" if snapshot.settings.is_send_only(endpoint) else "no_worker"
        for subject, group in [(each.name, [each]) for each in queues] if workers else [(endpoint, queues)]:
            waiting = sum(snapshot.unreceived.get(each, 0) for each in group)
            details = {"waiting": waiting, "cause": cause, **_grown(snapshot, group, waiting)} if waiting else None
            now = {"count": waiting, "why": _WHY[cause]}
            since = snapshot.waiting_since(group) if waiting else None
            yield ProbeOutcome(subject, details, now, subject if workers else "", endpoint, since=since, is_explained=is_explained)
        if workers:
            continue
        for each in queues:
            if each.name != endpoint:
                waiting = snapshot.unreceived.get(each, 0)
                yield ProbeOutcome(each.name, {"waiting": waiting} if waiting else None, is_explained=True)


def is_growth_explained(snapshot: Snapshot, name: str) -> bool:
    """Whether a queue grows because no process receives from it, which another check reports."""
    queues = [each for each in snapshot.known_queues if each.name == name]
    causes = {*snapshot.lost, *snapshot.paused}
    return snapshot.has_no_workers or any(causes & {*each.endpoints} or each in snapshot.unreceived for each in queues)


def _growing(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    for queue, waiting in snapshot.waiting.items():
        if queue.name not in snapshot.growth:
            continue  # the last result stays
        grown = snapshot.growth[queue.name]
        threads = threads_on(queue.address.table, snapshot.instances)
        details = {"waiting": waiting, "grown": grown, "threads": threads or 0} if grown else None
        is_explained = details is not None and is_growth_explained(snapshot, queue.name)
        yield ProbeOutcome(queue.name, details, queue=queue.name, since=snapshot.now - GROWTH_PERIOD, is_explained=is_explained)


def _replies(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    for queue, waiting in snapshot.replies:
        details = {"waiting": waiting} if waiting else None
        is_explained = bool(snapshot.lost & {*queue.queue.endpoints})
        yield ProbeOutcome(queue.name, details, {"count": waiting}, queue.name, is_explained=is_explained)


def _failures(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    if snapshot.settings.error_queue_owner != "sqlqueue":
        return  # ServiceControl is about to fetch them
    found = snapshot.failures
    queues = [each.name for each in snapshot.known_queues if each.kind is QueueKind.ERROR]
    now = {"count": found.count, "exact": found.exact, "newest": found.newest, "effect": "newest" if found.newest else ""}
    line = {"about": "" if found.exact else "at least ", "also": f"; the newest: {found.newest}" if found.newest else ""}
    groups = {"groups": found.groups, "more": "groups"} if found.groups > 1 else {"group": found.group}
    yield ProbeOutcome(
        ", ".join(queues),
        {"failed": found.count} if found.count else None,
        {**now, **line, **groups},
        queue=queues[0] if len(queues) == 1 else "",
        since=found.since,
    )


def _mover(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    due = {each.endpoint: each.next_due for each in snapshot.delayed}
    counted_in_part = {each.endpoint for each in snapshot.delayed if not each.overdue_exact}
    for endpoint, overdue in snapshot.overdue.items():
        now = {"count": overdue, "exact": endpoint not in counted_in_part, "endpoint": endpoint}
        details = {"overdue": overdue} if overdue else None
        is_explained = overdue > 0 and snapshot.has_no_workers and snapshot.is_reported(endpoint)
        yield ProbeOutcome(endpoint, details, now, endpoint=endpoint, since=due.get(endpoint), is_explained=is_explained)


def _purging(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    settings = snapshot.settings.endpoints
    periods: defaultdict[timedelta, list[str]] = defaultdict(list)
    for queue in snapshot.known_queues:
        every = [each.purge_expired_every_seconds for name, each in settings.items() if name in queue.endpoints]
        if snapshot.is_run_by_workers(queue) and min(every):
            periods[max(timedelta(seconds=PURGES_MISSED * min(every)), MIN_PURGE_GRACE)].append(queue.name)
    for period, queues in periods.items():
        if period >= MINUTES.kept:
            continue
        minutes = round(period.total_seconds() / MINUTES.seconds)
        for name, samples, expired in snapshot.expired(queues, period):
            # The last minute is not rolled up yet, and one may be missing where a worker has taken over from another.
            is_late = expired > EXPIRED_LIMIT and samples >= minutes - 3
            details = {"limit": EXPIRED_LIMIT, "minutes": minutes} if is_late else None
            yield ProbeOutcome(name, details, queue=name, since=snapshot.now - period)


def _schedules(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    for each in snapshot.schedules:
        since = each.late_since
        if since is not None and since > snapshot.now - TICK_GRACE:
            since = None
        if each.error and each.state is not None:
            since = since or each.state.failed_at
        if not each.is_seen and since is None:
            continue
        late = None if since is None else {"tick": _in_zone(since, snapshot), "error": each.error}
        yield ProbeOutcome(each.name, late, since=since, is_explained=snapshot.is_lack_of_workers_reported)


def _pipeline(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    """The result of the last run, or a start that workers have missed. A run that has just started does not count yet."""
    if (settings := snapshot.settings.pipeline) is None:
        return
    runs, now = snapshot.pipeline_runs, snapshot.now
    is_running = bool(runs) and runs[0].state == RunState.RUNNING and not runs[0].is_silent(now)
    is_new = is_running and now - runs[0].started_at < timedelta(seconds=SLOW_INTERVAL)
    last = next(iter(runs[is_new:]), None)
    tick = None if is_running or settings.cron is None else _missed_tick(settings.cron, snapshot)
    if last is not None and last.state == RunState.FAILED:
        yield ProbeOutcome("pipeline", {"cause": "run_failed", "error": cut_text(last.error, 300)}, since=last.ended_at)
    elif last is not None and last.is_silent(now):
        yield ProbeOutcome("pipeline", {"cause": "run_killed"}, since=last.heartbeat_at)
    elif tick is not None:
        yield ProbeOutcome("pipeline", {"cause": "run_missed", "tick": _in_zone(tick, snapshot)}, since=tick)
    elif last is not None:
        yield ProbeOutcome("pipeline")


def _missed_tick(cron: str, snapshot: Snapshot) -> datetime | None:
    """The first tick without a run since the last one, while a worker was alive to start it."""
    workers = [each.started_at for each in snapshot.instances if each.works_for_all]
    # The clock of the worker that started the last run may differ from the database's, by which its start is recorded.
    after = max([min(workers, default=snapshot.now), *(each.started_at + TICK_GRACE for each in snapshot.pipeline_runs[:1])])
    tick = cron_times(cron).next_after(after, snapshot.zone)
    return None if tick is None or tick > snapshot.now - TICK_GRACE else tick


def _branches(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    """Branches that outlive the attempts of the workers, which finish branches in doubt every few seconds."""
    for each in snapshot.branches:
        details = {"alias": each.alias, "prepared": _in_zone(each.prepared_at, snapshot)}
        is_old = each.prepared_at < snapshot.now - RECENT
        yield ProbeOutcome(str(each.id), details if is_old else None, since=each.prepared_at)


def _samples(snapshot: Snapshot) -> Iterator[ProbeOutcome]:
    """Samples and checks end with the last worker; unknown if there never was one."""
    last = snapshot.checked_at
    is_old = last is not None and snapshot.now - last > STALE_AFTER
    details = {"at": _in_zone(last or snapshot.now, snapshot), "cause": "unmanned" if snapshot.has_no_workers else "unsampled"}
    late = snapshot.has_no_workers and (any(snapshot.overdue.values()) or any(each.details for each in _schedules(snapshot)))
    is_explained = bool(late) or snapshot.is_lack_of_workers_reported
    yield ProbeOutcome("samples", details if is_old else None, since=last, is_explained=is_explained)


# Short intervals for urgent problems; the others change slowly, or have existed for minutes before they are reported.
URGENT_INTERVAL: Final = 20
NORMAL_INTERVAL: Final = 60
SLOW_INTERVAL: Final = 300

REGISTRY: Final = Check(
    f"{OWN_PREFIX}registry",
    URGENT_INTERVAL,
    gettext_lazy("Processes"),
    "%(text)s",
    "",
    _registry,
    read_by=Reader.STATUS,
    severity=Severity.ERROR,
    code="instances",
)
INSTANCES: Final = Check(
    f"{OWN_PREFIX}instances",
    URGENT_INTERVAL,
    gettext_lazy("Processes"),
    gettext_lazy("No heartbeat from the process %(subject)s for more than %(seconds)s seconds."),
    gettext_lazy("Start it again, or remove it on the page of its endpoint."),
    _instances,
    code="dead_instances",
    line="the process %(pid)s of %(name)s on %(host)s is dead: no heartbeat for %(silent)s s%(also)s",
    now=gettext_lazy("No heartbeat for %(age)s: it ended without signing off. %(effect)s"),
    failed=EventKind.INSTANCE_LOST,
    passed=EventKind.INSTANCE_BACK,
    gone=EventKind.INSTANCE_GONE,
    covers_all=True,
)
MINIMUMS: Final = Check(
    f"{OWN_PREFIX}minimums",
    URGENT_INTERVAL,
    gettext_lazy("Live instances"),
    gettext_lazy("Live instances of %(subject)s: %(alive)s, expected at least %(minimum)s."),
    gettext_lazy("Start workers of the endpoint, or change its minimum."),
    _minimums,
    code="instances",
    line="live instances of %(subject)s: %(alive)s, expected at least %(minimum)s%(also)s",
    now=gettext_lazy("Below its minimum: %(alive)s of %(minimum)s expected processes are alive. %(effect)s"),
    failed=EventKind.ENDPOINT_BELOW,
    passed=EventKind.ENDPOINT_ENOUGH,
    covers_all=True,
    severity=Severity.ERROR,
)
PAUSED: Final = Check(
    f"{OWN_PREFIX}paused",
    URGENT_INTERVAL,
    gettext_lazy("Paused endpoints"),
    gettext_lazy("%(subject)s has been paused by %(by)s since %(at)s."),
    gettext_lazy("Resume it on the page of the endpoint."),
    _paused,
    code="paused",
    line="endpoint %(subject)s has been paused by %(by)s since %(at)s; messages waiting: %(count)s",
    now=gettext_lazy("Paused by %(by)s; messages waiting: %(count)s%(more)s."),
    failed=None,
    passed=None,
    covers_all=True,
)
RECEIVERS: Final = Check(
    f"{OWN_PREFIX}receivers",
    NORMAL_INTERVAL,
    gettext_lazy("Receivers"),
    gettext_lazy("%(cause)s. Messages that have been waiting for %(subject)s for a minute: %(waiting)s."),
    gettext_lazy(
        "Start a worker of the endpoint: python manage.py run_sqlqueue_worker. A send-only endpoint needs handlers first."
    ),
    _receivers,
    code="no_live_instance",
    line="messages waiting in queue %(subject)s: %(waiting)s, and %(why)s",
    now=gettext_lazy("%(cause)s; messages waiting: %(count)s%(age)s%(more)s."),
    severity=Severity.ERROR,
)
GROWING: Final = Check(
    f"{OWN_PREFIX}growing",
    NORMAL_INTERVAL,
    gettext_lazy("Growing queues"),
    gettext_lazy("Growing: messages waiting: %(waiting)s, %(grown)s more than 10 minutes ago; receiving threads: %(threads)s."),
    gettext_lazy("Start more workers, raise their concurrency, or find out why the handlers have become slow."),
    _growing,
    read_by=Reader.WORKER,
    code="growing",
)
REPLIES: Final = Check(
    f"{OWN_PREFIX}replies",
    NORMAL_INTERVAL,
    gettext_lazy("Callback queues"),
    gettext_lazy("Replies that no process awaits: %(waiting)s."),
    gettext_lazy("Remove the callback queue, or purge it: the process that sent the requests is gone."),
    _replies,
    read_by=Reader.STATUS,
    code="no_live_instance",
    line="replies waiting in queue %(subject)s: %(waiting)s, and no live process holds it",
)
FAILURES: Final = Check(
    f"{OWN_PREFIX}failures",
    NORMAL_INTERVAL,
    gettext_lazy("Failed messages"),
    gettext_lazy("Failed messages that wait for a decision: %(failed)s."),
    gettext_lazy("Retry or archive them on the pages of failed messages, once their cause is fixed."),
    _failures,
    code="failed",
    line="failed messages in %(subject)s: %(about)s%(failed)s%(also)s",
    now=gettext_lazy("Failed messages that wait for a decision: %(count)s%(more)s. %(effect)s"),
    failed=None,
    passed=None,
    covers_all=True,
)
MOVER: Final = Check(
    f"{OWN_PREFIX}mover",
    NORMAL_INTERVAL,
    gettext_lazy("Delayed messages"),
    gettext_lazy("Delayed messages of %(subject)s that are due and were not moved for a minute: %(overdue)s."),
    gettext_lazy("Any worker can move them: the logs of the workers show why none does."),
    _mover,
    code="overdue",
    line="overdue delayed messages of %(subject)s: %(overdue)s; no worker moves them",
    now=gettext_lazy("Overdue delayed messages that no worker moves: %(count)s."),
)
PURGING: Final = Check(
    f"{OWN_PREFIX}purging",
    NORMAL_INTERVAL,
    gettext_lazy("Purge of expired messages"),
    gettext_lazy("More than %(limit)s expired messages have been waiting for %(minutes)s minutes."),
    gettext_lazy("The logs of the workers show why they do not purge. You can also purge them on the page of the queue."),
    _purging,
    read_by=Reader.WORKER,
    code="expired",
)
SCHEDULES: Final = Check(
    f"{OWN_PREFIX}schedules",
    NORMAL_INTERVAL,
    gettext_lazy("Recurring messages"),
    gettext_lazy("The recurring message %(subject)s that was due at %(tick)s was not sent. %(error)s"),
    gettext_lazy("The logs of the workers show why (event schedule_failed); often its type has no route."),
    _schedules,
    code="late_schedule",
    failed=EventKind.SCHEDULE_FAILED,
    passed=EventKind.SCHEDULE_SENDS,
    severity=Severity.ERROR,
)
TABLES: Final = Check(
    f"{OWN_PREFIX}tables",
    SLOW_INTERVAL,
    gettext_lazy("Tables"),
    "%(text)s",
    gettext_lazy("python manage.py sqlqueue_install --check lists what is missing, with the SQL that adds it."),
    _tables,
    line="%(where)s: %(text)s",
    now="%(text)s",
)
CLOCKS: Final = Check(
    f"{OWN_PREFIX}clocks",
    NORMAL_INTERVAL,
    gettext_lazy("Clocks"),
    gettext_lazy("The clock of the machine %(subject)s differs from that of the database by %(seconds)s seconds."),
    gettext_lazy("Synchronize both clocks by NTP: until then, times in message headers are wrong."),
    read_by=Reader.PROCESS,
)
POOLS: Final = Check(
    f"{OWN_PREFIX}pools",
    SLOW_INTERVAL,
    gettext_lazy("Connection pools"),
    gettext_lazy("The connection pool of %(subject)s has at most %(most)s connections, and the worker needs %(needed)s."),
    gettext_lazy('Raise "max_size" of "pool" in the OPTIONS of the database %(alias)s, or receive with fewer threads.'),
    read_by=Reader.PROCESS,
)
PIPELINE: Final = Check(
    f"{OWN_PREFIX}pipeline",
    SLOW_INTERVAL,
    gettext_lazy("Pipeline"),
    gettext_lazy("The last run of the pipeline %(cause)s"),
    gettext_lazy(
        "The page of pipeline runs shows the error; the logs of the workers show why no run started (event pipeline_failed)."
    ),
    _pipeline,
    code="pipeline",
    covers_all=True,
)
BRANCHES: Final = Check(
    f"{OWN_PREFIX}branches",
    NORMAL_INTERVAL,
    gettext_lazy("In-doubt transactions"),
    gettext_lazy("A transaction has been prepared in the database %(alias)s since %(prepared)s and keeps its locks: %(subject)s."),
    gettext_lazy(
        "Workers commit it or roll it back as the transaction log decided: their logs show why they cannot (event branch_in_doubt)."
    ),
    _branches,
    read_by=Reader.WORKER,
    code="in_doubt",
    covers_all=True,
    severity=Severity.ERROR,
)
SAMPLES: Final = Check(
    f"{OWN_PREFIX}samples",
    NORMAL_INTERVAL,
    gettext_lazy("Samples"),
    "%(cause)s.",
    gettext_lazy("Start a worker: python manage.py run_sqlqueue_worker"),
    _samples,
    read_by=Reader.STATUS,
    code="stale",
    line="no worker has sampled the queues since %(at)s: rates, charts and the results of checks are out of date",
)

# Issues of one severity are shown in this order.
_IN_ORDER: Final = (
    *(REGISTRY, INSTANCES, MINIMUMS, PAUSED, TABLES, RECEIVERS, GROWING, REPLIES, FAILURES, MOVER, PURGING, SCHEDULES),
    *(PIPELINE, CLOCKS, POOLS, BRANCHES, SAMPLES),
)
CHECKS: Final[Mapping[str, Check]] = {each.name: each for each in _IN_ORDER}
# Checks with stored results; the others store nothing.
BUILT_IN: Final[Mapping[str, Check]] = {name: each for name, each in CHECKS.items() if each.read_by & ~Reader.STATUS}


def label_of(name: str) -> str:
    """The label of a check: its name, if it is one of the project's."""
    return str(CHECKS[name].label) if name in CHECKS else name


def words_of(subject: str, details: object) -> Words:
    """The values for the texts of a check, with the texts of named causes and effects."""
    words = Words(subject, details)
    for name in ("cause", "effect", "more"):
        words[name] = str(PHRASES.get(words.get(name, ""), "")) % words
    return words


def describe_finding(name: str, subject: str, details: object) -> str:
    """The text of a failing check in the language of the reader. Never raises, whatever the row contains."""
    words = words_of(subject, details)
    return (str(CHECKS[name].finding) % words).strip() if name in CHECKS else words["text"]


def describe_advice(name: str, subject: str, details: object) -> str:
    """The remedy."""
    if name in CHECKS:
        return str(CHECKS[name].advice) % Words(subject, details)
    return _("This check belongs to the project: see its code for the remedy.")


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a check: failing subjects with their details, severity, and start if known, and passing ones.

    `explained` are the subjects whose cause another check reports: neither failing nor passing.
    """

    name: str
    every_seconds: int
    failing: Mapping[str, Details] = field(default_factory=dict)
    passing: frozenset[str] = frozenset()
    since: Mapping[str, datetime] = field(default_factory=dict)
    explained: frozenset[str] = frozenset()
    severities: Mapping[str, Severity] = field(default_factory=dict)

    @property
    def check(self) -> Check | None:
        return BUILT_IN.get(self.name)


def run(check: Check, snapshot: Snapshot) -> Report:
    """Run a check. Raises the errors of the database."""
    found = {} if check.probe is None else {each.subject: each for each in check.probe(snapshot)}
    explained = frozenset(subject for subject, each in found.items() if each.is_explained)
    failing = {each.subject: each.details for each in found.values() if each.details is not None and not each.is_explained}
    since = {subject: at for subject in failing if (at := found[subject].since) is not None}
    passing = frozenset(found.keys() - failing.keys() - explained)
    severities = {subject: found[subject].severity or check.severity for subject in failing}
    return Report(check.name, check.every_seconds, failing, passing, since, explained, severities)
