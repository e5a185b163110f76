"""Results of checks: the jobs that run checks, including a project's own, their last results, and muting."""

from __future__ import annotations

import hashlib
import inspect
import logging
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import Count, Q, Value
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from sqlqueue_app.conf import Settings
from sqlqueue_app.health_checks import HealthCheck, registry
from sqlqueue_app.messages.errors import TransientError
from sqlqueue_app.models import CheckResult, Claim, FailedMessage, FailureStatus, Severity, managed_alias
from sqlqueue_app.monitoring.checks import (
    BUILT_IN,
    CHECKS,
    CLOCKS,
    GROWING,
    INSTANCES,
    NORMAL_INTERVAL,
    POOLS,
    SLOW_INTERVAL,
    STALE_AFTER,
    URGENT_INTERVAL,
    Check,
    Details,
    Reader,
    Report,
    describe_finding,
    run,
)
from sqlqueue_app.monitoring.snapshot import FAILURES_COUNTED, Snapshot
from sqlqueue_app.receiving.background import BackgroundJob
from sqlqueue_app.receiving.instances import due, one_at_a_time
from sqlqueue_app.status.events import EventKind, NewEvent, fitting_subject, record_events
from sqlqueue_app.status.in_doubt import InDoubt
from sqlqueue_app.status.queues import utc_now
from sqlqueue_app.status.samples import one_transaction, start_of
from sqlqueue_app.tables.connections import database_now, errors_of_alias, guarded_read, leave_no_transaction

_LOCK: Final = "results of checks are written"
# A subject without reports for this time no longer exists: another project on this database would report it.
UNSEEN: Final = timedelta(minutes=15)
# A result that passes again stays visible for this time.
PASSED_KEPT: Final = timedelta(days=1)
# The retention of checks that no worker has any more.
UNKNOWN_KEPT: Final = timedelta(days=1)

# Alerts that only the overview finds, such as replies that no process awaits, count on other pages for this time.
_LIVE_KEPT_SECONDS: Final = 600.0

_READ: Final = 1_000


def write_reports(alias: str, reports: Sequence[Report], now: datetime) -> None:
    """Write the findings of checks, and the events of changes, in one transaction. Raises the database's errors.

    Each change is one event, however many processes report it at once. `now` is an instant of the database's clock. A failing
    subject has a row, as does one that passes again for a day; a built-in check without failures has one without a subject.
    While nothing changes, a run is one SELECT and one UPDATE, however many checks report.
    """
    reports = [_fitting(each) for each in reports]
    if not reports:
        return
    changes = _changes(alias, reports, now)
    same = [pk for each in changes if not each.is_any for pk in each.seen_rows]
    with transaction.atomic(using=alias):
        if changing := [each.report for each in changes if each.is_any]:
            one_at_a_time(alias, _LOCK, now)
            for change in _changes(alias, changing, now):
                change.write(alias)
        CheckResult.objects.using(alias).filter(pk__in=same).update(checked_at=now)


def forget_unknown(alias: str, now: datetime) -> None:
    """Delete the results of checks that were not run for a day and four intervals: the project no longer has them."""
    results = CheckResult.objects.using(alias)
    old = results.filter(checked_at__lt=now - UNKNOWN_KEPT)
    gone = [each.pk for each in old if _silent(each, now) > UNKNOWN_KEPT + timedelta(seconds=4 * each.every_seconds)]
    if gone:
        results.filter(pk__in=gone).delete()


@dataclass(frozen=True, slots=True)
class CheckResults:
    """The failing results that count, by check and subject, and the check and subject of muted ones.

    `checked_at` is when a worker last ran checks, None if none ever has.
    """

    failing: Sequence[CheckResult] = ()
    muted: frozenset[tuple[str, str]] = frozenset()
    checked_at: datetime | None = None


class LiveAlerts:
    """The number of alerts on the last overview of this process that no worker ever writes, kept for ten minutes.

    Safe from any thread.
    """

    def __init__(self) -> None:
        self._found = (0, 0.0)

    def remember(self, checks: Iterable[str]) -> None:
        """Remember the alerts of an overview, by the names of their checks."""
        count = sum(name in CHECKS and name not in BUILT_IN for name in checks)
        self._found = (count, time.monotonic() + _LIVE_KEPT_SECONDS)

    def count(self) -> int:
        count, until = self._found
        return count if time.monotonic() < until else 0


live_alerts = LiveAlerts()


@dataclass(frozen=True, slots=True)
class NavigationCounts:
    """Alerts that workers have written or only the overview finds, and unresolved failures up to 10,000.

    `is_current`: a worker has run checks within two minutes; otherwise there may be more alerts.
    """

    alerts: int
    failures: int
    exact: bool
    is_current: bool


def count_alerts_and_failures(alias: str) -> NavigationCounts:
    """The numbers that the navigation shows. One statement."""
    results, now = CheckResult.objects.using(alias), timezone.now()
    failing = results.filter(failing=True).exclude(muted_until__gt=now)
    runs = results.filter(name=INSTANCES.name, checked_at__gt=now - STALE_AFTER)
    unresolved = FailedMessage.objects.using(alias).filter(status=FailureStatus.UNRESOLVED)
    first = unresolved.order_by()[: FAILURES_COUNTED + 1].values("pk")
    failed = FailedMessage.objects.using(alias).filter(pk__in=first)
    alerts, *others = (
        found.order_by().values(what=Value(what)).annotate(number=Count("pk")).values_list("what", "number")
        for what, found in (("alerts", failing), ("failed", failed), ("runs", runs))
    )
    counts = dict(alerts.union(*others, all=True))
    failures, exact = min(counts["failed"], FAILURES_COUNTED), counts["failed"] <= FAILURES_COUNTED
    return NavigationCounts(counts["alerts"] + live_alerts.count(), failures, exact, counts["runs"] > 0)


def read_results(alias: str, now: datetime) -> CheckResults:
    """The results that count and the muted ones, a thousand at most. One statement. Raises the errors of the database."""
    # The most frequent check determines when a worker last ran checks.
    wanted = Q(failing=True) | Q(muted_until__isnull=False, muted_until__gt=now) | Q(name=INSTANCES.name)
    found = list(CheckResult.objects.using(alias).filter(wanted).order_by("name", "subject")[:_READ])
    muted = frozenset((each.name, each.subject) for each in found if is_muted(each, now))
    failing = [each for each in found if each.failing and not is_muted(each, now)]
    return CheckResults(failing, muted, last_run(found))


def read_growth(alias: str, now: datetime) -> dict[str, str]:
    """The findings about growing queues by queue, without muted ones. One statement. Raises the errors of the database."""
    found = CheckResult.objects.using(alias).filter(name=GROWING.name, failing=True)[:_READ]
    return {each.subject: describe_finding(each.name, each.subject, each.details) for each in found if not is_muted(each, now)}


def last_run(results: Iterable[CheckResult]) -> datetime | None:
    """The time when a worker last ran checks, from the most frequent check; None if it has no results."""
    return max((each.checked_at for each in results if each.name == INSTANCES.name), default=None)


def is_stale(row: CheckResult, now: datetime) -> bool:
    """Whether the check was not run for three of its intervals: no worker is alive, or it is prevented from running."""
    return _silent(row, now) > timedelta(seconds=3 * row.every_seconds + URGENT_INTERVAL)


def is_muted(row: CheckResult, now: datetime) -> bool:
    """Whether it is muted, and the time has not expired."""
    return row.muted_until is not None and row.muted_until > now


def _silent(row: CheckResult, now: datetime) -> timedelta:
    return now - row.checked_at


def _fitting(report: Report) -> Report:
    failing = {fitting_subject(subject): details for subject, details in report.failing.items()}
    since = {fitting_subject(subject): at for subject, at in report.since.items()}
    severities = {fitting_subject(subject): severity for subject, severity in report.severities.items()}
    explained = frozenset(map(fitting_subject, report.explained)) - failing.keys()
    passing = frozenset(map(fitting_subject, report.passing)) - failing.keys() - explained
    return replace(report, failing=failing, passing=passing, since=since, explained=explained, severities=severities)


def _changes(alias: str, reports: Sequence[Report], now: datetime) -> list[_Change]:
    """The changes of the reports. One statement."""
    found: defaultdict[str, dict[str, CheckResult]] = defaultdict(dict)
    names = {INSTANCES.name, *(each.name for each in reports)}
    for row in CheckResult.objects.using(alias).filter(name__in=names).order_by("pk"):
        found[row.name][row.subject] = row
    last = last_run(found[INSTANCES.name].values())
    is_resumed = last is not None and now - last > STALE_AFTER
    return [_Change(each, found[each.name], now, is_resumed=is_resumed) for each in reports]


class _Change:
    """The changes of a report to the rows of its check, by subject. `is_resumed`: no worker has run checks for a while."""

    def __init__(self, report: Report, known: Mapping[str, CheckResult], now: datetime, *, is_resumed: bool) -> None:
        self.report = report
        self._known = known
        self._now = now
        self._is_resumed = is_resumed
        self._check = report.check
        failing = {subject for subject, row in known.items() if row.failing}
        self._failed = sorted(report.failing.keys() - failing)
        self._changed = [each for each in sorted(report.failing.keys() & failing) if known[each].details != report.failing[each]]
        self._passed = sorted(report.passing & failing)
        gone = {subject for subject, row in known.items() if subject and self._is_gone(row)}
        # A built-in check has a row without a subject while nothing fails.
        passes = self._check is not None and not report.failing and not failing - report.passing - gone
        self._gone = sorted(gone | (known.keys() & {""} if self._check is not None and not passes else set()))
        new = {""} if passes else report.passing if self._check is None else set()
        self._new = sorted(new - known.keys())
        # No worker could report them: after an outage their time begins again.
        kept = [subject for subject, row in known.items() if is_resumed and row.failing]
        self._seen = {*report.failing, *report.passing, *kept, *([""] if passes else [])} - set(self._gone)

    @property
    def is_any(self) -> bool:
        seen = [row for subject, row in self._known.items() if subject in self._seen]
        is_other = any(row.every_seconds != self.report.every_seconds for row in seen)
        return bool(self._failed or self._changed or self._passed or self._new or self._gone or is_other)

    @property
    def seen_rows(self) -> list[int]:
        """The keys of the rows that the report leaves unchanged."""
        return [row.pk for subject, row in self._known.items() if subject in self._seen]

    def write(self, alias: str) -> None:
        results = CheckResult.objects.using(alias)
        common = {"checked_at": self._now, "every_seconds": self.report.every_seconds}
        mine = results.filter(name=self.report.name)
        mine.filter(subject__in=self._gone).delete()
        mine.filter(subject__in=self._seen).update(**common)
        for subject in (*self._failed, *self._changed):
            since = self.report.since.get(subject, self._now)
            begun = {"failing": True, "since": since} if subject in self._failed else {}
            values = {"details": dict(self.report.failing[subject]), **begun}
            if subject in self._known:
                mine.filter(subject=subject).update(**values)
            else:
                results.create(name=self.report.name, subject=subject, **values, **common)
        mine.filter(subject__in=self._passed).update(failing=False, since=self._now, details={})
        for subject in self._new:
            results.create(name=self.report.name, subject=subject, since=self._now, **common)
        record_events(self._new_events(), now=self._now)

    def _new_events(self) -> list[NewEvent]:
        failed: EventKind | None = EventKind.CHECK_FAILED
        passed: EventKind | None = EventKind.CHECK_PASSED
        gone: EventKind | None = None
        if self._check is not None:
            failed, passed, gone = self._check.failed, self._check.passed, self._check.gone
        known = {subject: row.details for subject, row in self._known.items()}
        lost = [subject for subject in self._gone if self._known[subject].failing]
        changed = ((failed, self._failed, self.report.failing), (passed, self._passed, known), (gone, lost, known))
        return [
            self._new_event(kind, each, details[each], self.report.severities.get(each) if kind is failed else None)
            for kind, subjects, details in changed
            if kind
            for each in subjects
        ]

    def _new_event(self, kind: EventKind, subject: str, details: object, severity: Severity | None) -> NewEvent:
        values = {**(details if isinstance(details, dict) else {}), "check": self.report.name}
        return NewEvent(kind, subject, values, severity)

    def _is_gone(self, row: CheckResult) -> bool:
        """Whether the subject no longer exists, or has passed for long enough."""
        if row.subject in self.report.failing:
            return False
        if row.subject in self.report.explained:
            return not is_muted(row, self._now)
        if row.subject in self.report.passing:
            has_passed = not row.failing and self._now - row.since > PASSED_KEPT and not is_muted(row, self._now)
            return self._check is not None and has_passed
        if self._check is not None and self._check.covers_all:
            return True
        is_silent = _silent(row, self._now) > max(UNSEEN, timedelta(seconds=4 * row.every_seconds))
        return is_silent and not (self._is_resumed and row.failing)


logger = logging.getLogger("sqlqueue.background")


# The database's clock has whole seconds, and the answer takes time; delays and expiry are measured in seconds.
DRIFT_SECONDS: Final = 5
# Like psycopg_pool.
_POOL_DEFAULT: Final = 4
# Heartbeats, samples and similar jobs, which share four threads, and the mover of delayed messages.
BACKGROUND_CONNECTIONS: Final = 5


@dataclass(slots=True)
class ProcessChecks:
    """The checks that one process runs on itself. `connections_needed`: maximum connections of the alias for its threads.

    A process without findings writes nothing, unless its machine has failing results.
    """

    alias: str
    connections_needed: int = 0
    host: str = field(default_factory=lambda: platform.node() or "unknown")
    _last: dict[str, tuple[datetime, bool]] = field(default_factory=dict)

    def reports(self, managed: str, now: datetime, local: datetime) -> list[Report]:
        """The reports to write: failing ones at the interval of the check, and those that pass again. One statement at first.

        `now` is the clock of the managed tables' database, `local` that of the machine.
        """
        found = {CLOCKS: self._clock(managed, now, local), POOLS: self._pool()}
        if not self._last:
            mine = CheckResult.objects.using(managed).filter(
                subject=self.host, failing=True, name__in=[each.name for each in found]
            )
            self._last = dict.fromkeys(mine.values_list("name", flat=True), (now, True))
            self._last.setdefault("", (now, False))
            due = {check for check, details in found.items() if details is not None or check.name in self._last}
        else:
            due = {check for check, details in found.items() if self._is_due(check, details, now)}
        for check in due:
            self._last[check.name] = (now, found[check] is not None)
        return [_report(check, self.host, found[check]) for check in found if check in due]

    def _is_due(self, check: Check, details: Details | None, now: datetime) -> bool:
        last = self._last.get(check.name)
        if last is None:
            return details is not None
        at, failed = last
        if (details is not None) != failed:
            return True
        return details is not None and (now - at).total_seconds() >= check.every_seconds

    def _clock(self, managed: str, now: datetime, local: datetime) -> Details | None:
        drift = round((local - now).total_seconds())
        if connections[managed].vendor == "sqlite" or abs(drift) <= DRIFT_SECONDS:
            return None
        return {"seconds": drift}

    def _pool(self) -> Details | None:
        pool_limit = pool_size(connections.settings[self.alias])
        if pool_limit is None or pool_limit >= self.connections_needed:
            return None
        return {"most": pool_limit, "needed": self.connections_needed, "alias": self.alias}


def _report(check: Check, host: str, details: Details | None) -> Report:
    if details is None:
        return Report(check.name, check.every_seconds, {}, frozenset({host}))
    return Report(check.name, check.every_seconds, {host: details}, severities={host: check.severity})


def pool_size(entry: Mapping[str, Any]) -> int | None:
    """The maximum number of connections in the pool of an entry of DATABASES; None without a pool, or if unknown."""
    pool = entry.get("OPTIONS", {}).get("pool")
    if not pool or entry.get("ENGINE") != "django.db.backends.postgresql":
        return None
    options = pool if isinstance(pool, dict) else {}
    size = options.get("max_size") or options.get("min_size", _POOL_DEFAULT)
    return size if isinstance(size, int) else None


def connections_needed(threads: Iterable[tuple[int, bool]]) -> int:
    """The maximum number of connections of a worker. Pairs: number of threads, and whether each also sends on a second one."""
    return sum(number * (2 if second else 1) for number, second in threads) + BACKGROUND_CONNECTIONS


# A run that is later than this, as after an outage of the database, skips the checks of processes, which renew their
# heartbeats every ten seconds and so before the next run.
OUTAGE_GAP: Final = timedelta(seconds=1.5 * URGENT_INTERVAL)
CLAIM_PREFIX: Final = "checks every "


class CheckRunner:
    """Runs the built-in checks. One object serves one thread at a time; others may compete with it.

    `now` is the clock of the managed tables' database unless given, `local` the clock of the machine.
    While nothing is due, a run is one transaction with two statements; the process that runs the checks has another transaction.
    """

    def __init__(
        self,
        settings: Settings,
        own: ProcessChecks,
        in_doubt: InDoubt,
        *,
        now: Callable[[], datetime] | None = None,
        local: Callable[[], datetime] = utc_now,
    ) -> None:
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)
        self._settings = settings
        self._own = own
        self._in_doubt = in_doubt
        self._local = local
        self._ran_at: datetime | None = None
        # Another project on this database has its own queues and its own claim.
        names = "\n".join([*sorted(settings.senders), *sorted(settings.schedules)])
        self._hash = hashlib.sha256(names.encode()).hexdigest()[:16]

    def job(self) -> BackgroundJob:
        return BackgroundJob("checks", URGENT_INTERVAL, self.run_due, retries_silently=True)

    def run_due(self) -> list[str]:
        """Run the due checks. A check that cannot run is logged, and reports nothing until it can."""
        with errors_of_alias(self._alias, "run checks"):
            with one_transaction(self._alias):
                now = self._now()
                claims = {
                    claims_prefix(seconds) + self._hash: seconds for seconds in (URGENT_INTERVAL, NORMAL_INTERVAL, SLOW_INTERVAL)
                }
                taken = due(self._alias, {name: start_of(now, seconds) for name, seconds in claims.items()})
            intervals = {claims[name] for name in taken}
            last, self._ran_at = self._ran_at, now
            if last is not None and now - last > OUTAGE_GAP:
                intervals.discard(URGENT_INTERVAL)
            checks = [each for each in BUILT_IN.values() if Reader.WORKER in each.read_by and each.every_seconds in intervals]
            own = self._own.reports(self._alias, now, self._local())
            if not checks and not own:
                return []
            with one_transaction(self._alias):
                snapshot = Snapshot(self._settings, now, in_doubt=self._in_doubt)
                found = [report for check in checks if (report := self._run_one(check, snapshot)) is not None]
                found += _passing_where_unreported(own, intervals)
                write_reports(self._alias, [*found, *own], now)
                if SLOW_INTERVAL in intervals:
                    forget_unknown(self._alias, now)
        return [each.name for each in checks]

    def _run_one(self, check: Check, snapshot: Snapshot) -> Report | None:
        try:
            with guarded_read(self._alias, f"run the check {check.name}"):
                return run(check, snapshot)
        except TransientError:
            raise
        except Exception as error:  # noqa: BLE001 - a check that fails on its settings must not stop the others
            logger.warning("the check %s could not be run: %s", check.name, error, extra={"event": "check_not_run"})
            return None


def claims_prefix(seconds: int) -> str:
    """The prefix of the claims of checks with this interval in seconds: one claim for each project on the database."""
    return f"{CLAIM_PREFIX}{seconds} s "


def _passing_where_unreported(own: Sequence[Report], intervals: set[int]) -> list[Report]:
    """Passing reports for the checks that processes run on themselves, where none has reported anything."""
    names = {each.name for each in own}
    checks = [each for each in BUILT_IN.values() if Reader.PROCESS in each.read_by and each.every_seconds in intervals]
    return [Report(each.name, each.every_seconds) for each in checks if each.name not in names]


# The name of the modules imported from the installed apps.
MODULE: Final = "health_checks"
RUN_SECONDS: Final = 10.0
MAX_TEXT_LENGTH: Final = 2_000


def claim_of_custom(name: str) -> str:
    """The claim of a project's check."""
    return f"check {hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:32]}"


def custom_check_jobs() -> list[BackgroundJob]:
    """The background job for the project's checks, if there are any. Imports `health_checks` of the installed apps."""
    autodiscover_modules(MODULE)
    checks = registry.all()
    return [ProjectChecks(checks).job()] if checks else []


class ProjectChecks:
    """Runs the checks of the project. Threads and clock as for `CheckRunner`."""

    def __init__(self, checks: Sequence[HealthCheck], *, now: Callable[[], datetime] | None = None) -> None:
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)
        self._checks = {claim_of_custom(each.name): each for each in checks}

    def job(self) -> BackgroundJob:
        """`run_due` as a separate background job: a check that hangs must not stop the built-in ones."""
        return BackgroundJob("checks of the project", RUN_SECONDS, self.run_due, retries_silently=True)

    def run_due(self) -> list[str]:
        """Run the due checks. A check that is killed with its process runs again at its next time."""
        with errors_of_alias(self._alias, "find the checks that are due"):
            now = self._now()
            claims = {name: start_of(now, each.every_seconds) for name, each in self._checks.items()}
            taken = [self._checks[name] for name in due(self._alias, claims)]
        for each in taken:
            store_result(each, run_check(each), now=self._now)
        return [each.name for each in taken]


def run_check(check: HealthCheck, extra: Mapping[str, str] | None = None) -> str:
    """Call the function; returns the problem or an empty text. Logs exceptions, also SystemExit, as `check_raised` or `extra`."""
    try:
        found = check.function()
    except (Exception, SystemExit) as error:
        known = {"event": "check_raised", "check": check.name} if extra is None else dict(extra)
        logger.exception("the check %s failed by an exception", check.name, extra=known)
        # The check may have left its connections unusable.
        connections.close_all()
        return f"{type(error).__name__}: {error}"[:MAX_TEXT_LENGTH]
    for connection in connections.all(initialized_only=True):
        leave_no_transaction(connection)
    if found is None or (isinstance(found, str) and not found.strip()):
        return ""
    if not isinstance(found, str):
        if inspect.iscoroutine(found):
            found.close()  # otherwise Python warns about a coroutine that was never awaited
        text = f"{check.path} has returned {found!r}: expected None if all is well, otherwise a text that describes the problem"
        return text[:MAX_TEXT_LENGTH]
    return found[:MAX_TEXT_LENGTH]


def store_result(check: HealthCheck, text: str, subject: str = "", *, now: Callable[[], datetime] | None = None) -> None:
    """Write the result of a project's check for a subject; an empty text means that it passes. Raises DatabaseError."""
    alias = managed_alias()
    failing = {subject: {"text": text}} if text else {}
    report = Report(check.name, max(1, round(check.every_seconds)), failing, frozenset({subject}))
    with errors_of_alias(alias, "write the result of a check"):
        write_reports(alias, [report], database_now(alias) if now is None else now())


_MAX_NAME_LENGTH = 255


def mute(alias: str, key: int, until: datetime | None, by: str) -> bool:
    """Mute a result until an instant of the database, or unmute it (None); events continue. False if its row is gone."""
    values = {"muted_until": until, "muted_by": "" if until is None else by[:_MAX_NAME_LENGTH]}
    return CheckResult.objects.using(alias).filter(pk=key).update(**values) == 1


def can_be_run_now(name: str) -> bool:
    """Whether a worker can run it on request: not a check that each process runs on itself."""
    return name not in BUILT_IN or Reader.WORKER in BUILT_IN[name].read_by


def request_check_run(alias: str, name: str) -> None:
    """Request a run of the check within 20 seconds, with the checks that are run together with it."""
    claims = Claim.objects.using(alias)
    if name in BUILT_IN:
        claims.filter(name__startswith=claims_prefix(BUILT_IN[name].every_seconds)).delete()
    else:
        claims.filter(name=claim_of_custom(name)).delete()
