"""Issues for `sqlqueue_health` and the overview, each with its own texts, and measures compared with limits for the command.

A limit replaces the check of the same condition; all other checks stay.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.translation import gettext as _

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.conf.validation import suggestion
from sqlqueue_app.messages.errors import ConfigurationError, counted
from sqlqueue_app.models import CheckResult, Severity, managed_alias
from sqlqueue_app.monitoring import checks
from sqlqueue_app.monitoring.check_results import CheckResults, last_run, read_results
from sqlqueue_app.monitoring.checks import (
    CHECKS,
    FAILURES,
    GROWING,
    MINIMUMS,
    MOVER,
    PURGING,
    RECEIVERS,
    REGISTRY,
    SAMPLES,
    Check,
    ProbeOutcome,
    Reader,
    describe_finding,
    is_growth_explained,
    words_of,
)
from sqlqueue_app.monitoring.snapshot import Snapshot
from sqlqueue_app.status.endpoints import read_minimums
from sqlqueue_app.status.events import fitting_subject
from sqlqueue_app.status.overview import Status, read_status
from sqlqueue_app.status.queues import QueueKind, QueueStatus
from sqlqueue_app.status.texts import duration, number
from sqlqueue_app.tables.connections import database_now, optional_read
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT

# One probe finds every subject of these checks, so other results do not count.
_ALL_SEEN: Final = {check.name for check in CHECKS.values() if check.covers_all and Reader.STATUS in check.read_by}
_URGENCY: Final = (Severity.ERROR, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True, slots=True)
class Issue:
    """A problem that the check of this name found; `since` is its start, as far as the state or a worker shows it.

    `is_live`: the snapshot shows it; otherwise it is the last result of a worker, or of the process itself.
    """

    name: str
    outcome: ProbeOutcome
    since: datetime | None
    is_live: bool = False

    @property
    def check(self) -> Check | None:
        """The check; None for one of the project."""
        return CHECKS.get(self.name)

    @property
    def severity(self) -> Severity:
        """That of the outcome, else of the check; ERROR for a check of the project."""
        return self.outcome.severity or (Severity.ERROR if self.check is None else self.check.severity)

    @property
    def code(self) -> str:
        return self.outcome.code or (self.check.code if self.check is not None else "check")

    @property
    def line(self) -> str:
        check = self.check
        if check is not None and self.is_live and check.line:
            return str(check.line % {**self.outcome.now, **(self.outcome.details or {}), "subject": self.outcome.subject})
        about = f"check {self.name}" if check is None else self.outcome.queue and f"queue {self.outcome.queue}"
        return f"{about}: {self._finding()}" if about else self._finding()

    def text(self, words: Mapping[str, str]) -> str:
        """The cause in the language of the reader; `words` fill placeholders that the details do not."""
        check = self.check
        if check is None:
            return self._finding()
        known = words_of(self.outcome.subject, {**self.outcome.now, **words, **(self.outcome.details or {})})
        return (str((self.is_live and check.now) or check.finding) % known).strip()

    def _finding(self) -> str:
        return describe_finding(self.name, self.outcome.subject, self.outcome.details)


def text_of_issue(issue: Issue, status: Status) -> str:
    """The cause of an issue, with the current numbers if the status shows it."""
    outcome = issue.outcome
    queue = next((each for each in status.queues if each.name == (outcome.queue or outcome.endpoint)), None)
    words = {name: duration(value) for name, value in outcome.now.items() if isinstance(value, timedelta)}
    # The length of a queue is estimated beyond a limit; other numbers are counted up to one.
    is_estimate = queue is not None and queue.depth is not None and not queue.depth.exact
    if not outcome.now.get("exact", not is_estimate):
        words["count"] = f"{'≥' if 'exact' in outcome.now else '≈'} {number(outcome.now.get('count', 0))}"
    if "age" not in outcome.now:
        age = queue.head_age.age if queue is not None and queue.head_age is not None else None
        words["age"] = "" if age is None or age < timedelta() else ", " + _("the first is %(age)s old") % {"age": duration(age)}
    return issue.text({**words, "queue": outcome.queue, "endpoint": outcome.endpoint})


def current_issues(snapshot: Snapshot, results: CheckResults) -> list[Issue]:
    """Issues that are not muted, most urgent first: from the snapshot, else stored results. Raises database errors."""
    snapshot.checked_at = results.checked_at
    live = _live_outcomes(snapshot)
    known = {(each.name, each.subject): each for each in results.failing}
    found = []
    for key, outcome in live.items():
        if outcome.details is not None and not outcome.is_explained and key not in results.muted:
            found.append(_live_issue(key[0], outcome, known.get(key)))
    kept = (each for each in results.failing if each.name not in _ALL_SEEN and (each.name, each.subject) not in live)
    found += [Issue(each.name, _kept(each), each.since) for each in kept if not _is_over(each, snapshot)]
    return sorted(found, key=lambda issue: _URGENCY.index(issue.severity))


def _live_issue(name: str, outcome: ProbeOutcome, stored: CheckResult | None) -> Issue:
    """An issue that the snapshot shows, with the start and the details of the failing result if there is one."""
    kept = _details(stored)
    details = {**kept, **(outcome.details or {})}
    if isinstance(then := kept.get("waiting"), int) and isinstance(grown := kept.get("grown"), int):
        # Only workers measure the growth: it is extended to the current number, which is shown next to it.
        details["grown"] = grown + outcome.now.get("count", then) - then
        details["more"] = "grown" if details["grown"] > 0 else ""
    return Issue(name, replace(outcome, details=details), stored.since if stored else outcome.since, is_live=True)


def _live_outcomes(snapshot: Snapshot) -> dict[tuple[str, str], ProbeOutcome]:
    """The outcomes of the snapshot itself, by check and subject, in the order of the checks."""
    probed = (check for check in CHECKS.values() if check.probe is not None and Reader.STATUS in check.read_by)
    return {(check.name, fitting_subject(each.subject)): each for check in probed for each in check.probe(snapshot)}  # type: ignore[misc]


def _kept(result: CheckResult) -> ProbeOutcome:
    is_of_queue = result.name in (PURGING.name, GROWING.name)
    return ProbeOutcome(result.subject, _details(result), queue=result.subject if is_of_queue else "")


def _details(result: CheckResult | None) -> dict[str, Any]:
    return result.details if result is not None and isinstance(result.details, dict) else {}


def _is_over(result: CheckResult, snapshot: Snapshot) -> bool:
    """Whether the snapshot shows that it is over, or a cause that no worker has detected yet."""
    if result.name == PURGING.name:
        queues = () if snapshot.status is None else snapshot.status.queues
        return any(is_purged(each) for each in queues if each.name == result.subject)
    return result.name == GROWING.name and is_growth_explained(snapshot, result.subject)


def is_purged(queue: QueueStatus) -> bool:
    """Whether the queue certainly has no more expired messages than the check of the purge allows."""
    return queue.depth is not None and queue.expiry_exact and queue.depth.expired <= checks.EXPIRED_LIMIT


def current_results(
    snapshot: Snapshot, results: Sequence[CheckResult]
) -> tuple[list[CheckResult], Mapping[tuple[str, str], Issue]]:
    """The current results, and the issues of the failing ones by check and subject. Raises database errors.

    Outcomes of the snapshot replace stored results. Results that no worker has written are not saved: they have no key.
    """
    snapshot.checked_at = last_run(results)
    live = _live_outcomes(snapshot)
    problems = {key: each for key, each in live.items() if each.details is not None}
    failing = {key: each for key, each in problems.items() if not each.is_explained}
    problem_names = {name for name, _subject in problems}
    rows = {(each.name, each.subject): each for each in results}
    stored = {key: row for key, row in rows.items() if row.failing}
    issues = {key: _live_issue(key[0], each, stored.get(key)) for key, each in failing.items()}
    for (name, subject), row in list(rows.items()):
        is_probed = name in CHECKS and Reader.STATUS in CHECKS[name].read_by
        is_current = is_probed and ((name, subject) in live or name in _ALL_SEEN or not subject)
        if (name, subject) in failing:
            row.details, row.failing = dict(failing[name, subject].details or {}), True
        elif is_current and (row.failing or (name, subject) in problems or (not subject and name in problem_names)):
            # A problem that another check explains neither fails nor passes.
            del rows[name, subject]
        if is_current:
            row.checked_at = snapshot.now
    for (name, subject), each in failing.items():
        if (name, subject) not in rows:
            row = CheckResult(name=name, subject=subject, failing=True, details=dict(each.details or {}))
            row.checked_at, row.every_seconds = snapshot.now, CHECKS[name].every_seconds
            rows[name, subject] = row
    current = {key: each for key, each in rows.items() if not each.failing or not _is_over(each, snapshot)}
    kept = {key: Issue(each.name, _kept(each), each.since) for key, each in current.items() if each.failing}
    return list(current.values()), {**kept, **issues}


class Level(enum.IntEnum):
    """The state; the numbers are the exit codes of monitoring plugins, and the greatest one counts."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a warning and of a critical level; None: never. With `least`, a lower bound, else an upper bound."""

    warning: float | None = None
    critical: float | None = None
    least: bool = False

    def level(self, value: float) -> Level:
        if self._is_beyond(value, self.critical):
            return Level.CRITICAL
        return Level.WARNING if self._is_beyond(value, self.warning) else Level.OK

    def _is_beyond(self, value: float, bound: float | None) -> bool:
        if bound is None:
            return False
        return value < bound if self.least else value > bound


_NO_BOUNDS = Bounds()
_NONE_IS_FINE = Bounds(warning=0)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the caller. Ages are in seconds."""

    length: Bounds | None = None
    age: Bounds | None = None
    failed: Bounds | None = None
    expired: Bounds | None = None
    overdue: Bounds | None = None
    instances: Bounds | None = None

    @property
    def counted_to(self) -> int:
        """The minimum number of messages to count to detect an exceeded limit."""
        bounds = [each for each in (self.length, self.failed, self.expired, self.overdue) if each is not None]
        numbers = [number for each in bounds for number in (each.warning, each.critical) if number is not None]
        return max([EXACT_COUNT_LIMIT, *(int(number) + 1 for number in numbers)])


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a queue or an endpoint, with the bounds that it was compared with. `exact`: False for an estimate."""

    subject: str
    name: str
    value: float
    bounds: Bounds
    unit: str = ""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """A problem: the check that found it, its subject, and its text."""

    level: Level
    check: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Health:
    """The findings, worst first, and all measures."""

    findings: tuple[HealthFinding, ...]
    measures: tuple[Measure, ...] = ()
    taken_at: datetime | None = None

    @property
    def level(self) -> Level:
        """The level of the worst finding; CRITICAL outranks UNKNOWN, because a known problem is certain."""
        levels = {each.level for each in self.findings}
        return Level.CRITICAL if Level.CRITICAL in levels else max(levels, default=Level.OK)


_LEVELS = {Severity.ERROR: Level.CRITICAL, Severity.WARNING: Level.WARNING, Severity.INFO: Level.OK}


@dataclass(frozen=True, slots=True)
class _Scope:
    """The checked queues and endpoints; `named` are the queues that the caller names, `is_all`: the caller names none."""

    queues: tuple[QueueStatus, ...]
    endpoints: tuple[str, ...]
    named: frozenset[str] = frozenset()
    is_all: bool = True

    def covers(self, issue: Issue, errors: frozenset[str]) -> bool:
        """Whether the issue concerns the checked queues and endpoints; `errors` are the error queues with failed messages."""
        found, names = issue.outcome, {each.name for each in self.queues}
        if found.queue:
            return found.queue in names
        if issue.name == FAILURES.name and errors:
            # One issue is about the failed messages of all error queues.
            return not errors.isdisjoint(names)
        # A process may run several endpoints.
        concerned = {found.endpoint, *found.now.get("endpoints", ())} & {*self.endpoints}
        return self.is_all or issue.name == REGISTRY.name or bool(concerned)


def read_health(
    settings: Settings | None = None, limits: Limits | None = None, *, queues: Sequence[str] = (), endpoints: Sequence[str] = ()
) -> Health:
    """Check all queues and endpoints of the settings, or the named ones. Takes nothing, writes nothing, locks nothing.

    As many statements as `read_status`, one for the minimums of instances, two for the results of checks, one for the failed
    messages, and up to two where messages are in error queues. Raises ConnectionLost; ConfigurationError for wrong settings, for
    settings without endpoints, and for an unknown name.
    """
    settings = settings or get_settings()
    limits = limits or Limits()
    if not settings.senders:
        raise ConfigurationError('SQLQUEUE["ENDPOINTS"] names no endpoint: there is nothing to check')
    for name in endpoints:
        if name not in settings.senders:
            settings.endpoint(name)  # raises, with the nearest name
    status = read_status(settings, limit=limits.counted_to, others=bool(queues))
    scope = _scope(settings, status, queues, endpoints)
    results, now = _results()
    snapshot = Snapshot(settings, status.managed_now or now or status.taken_at, status=status, minimums=read_minimums())
    # A measure compared with a limit replaces its check.
    limited = {
        *([FAILURES.name] if limits.failed else ()),
        *([MOVER.name] if limits.overdue else ()),
        *([MINIMUMS.name, RECEIVERS.name, SAMPLES.name] if limits.instances else ()),
    }
    errors = frozenset(queue.name for queue, failed in snapshot.failed if failed)
    issues = [each for each in current_issues(snapshot, results) if each.name not in limited and scope.covers(each, errors)]
    found = [*_of_queues(scope, limits), *_of_failures(snapshot, scope, limits), *_of_endpoints(snapshot, scope, limits)]
    findings = [*map(_finding, issues), *(each for each in found if isinstance(each, HealthFinding))]
    measures = tuple(each for each in found if isinstance(each, Measure))
    return Health(tuple(sorted(findings, key=lambda each: -each.level)), measures, status.taken_at)


def _finding(issue: Issue) -> HealthFinding:
    found = issue.outcome
    subject = issue.name if issue.check is None else found.queue or found.endpoint or found.subject
    return HealthFinding(_LEVELS[issue.severity], issue.code, subject, issue.line)


def _results() -> tuple[CheckResults, datetime | None]:
    """The results, and the clock of their database; empty before `migrate`."""
    alias = managed_alias()
    with optional_read(alias, "read the results of checks"):
        now = database_now(alias)
        return read_results(alias, now), now
    return CheckResults(), None


def _scope(settings: Settings, status: Status, queues: Sequence[str], endpoints: Sequence[str]) -> _Scope:
    known = {each.name: each for each in status.queues}
    for name in queues:
        if name not in known:
            near = suggestion(name, known) or ": sqlqueue_status lists the queues"
            raise ConfigurationError(f"there is no queue {name!r} in database {status.database!r}{near}")
    watched = tuple(each for each in status.queues if is_watched(each, status))
    if not queues and not endpoints:
        return _Scope(watched, tuple(settings.senders))
    of_endpoints = {each.name for each in watched if set(each.queue.endpoints) & set(endpoints)}
    chosen = tuple(each for each in status.queues if each.name in queues or each.name in of_endpoints)
    received = [each for each in chosen if each.name in queues and each.queue.is_receiving]
    owners = {*endpoints, *(name for each in received for name in each.queue.endpoints)}
    return _Scope(chosen, tuple(name for name in settings.senders if name in owners), frozenset(queues), is_all=False)


def is_watched(queue: QueueStatus, status: Status) -> bool:
    """Whether the queue is watched; callback queues only while a live process holds them: a monitoring host may have none."""
    if queue.queue.kind is QueueKind.OTHER:
        return False
    if queue.queue.kind is not QueueKind.CALLBACK:
        return True
    return any(each.alive and each.callback_queue == queue.queue.address.table for each in status.instances)


_Found = Iterator[HealthFinding | Measure]


def _held(measure: Measure, limit: Bounds | None, noun: str, rest: str = "") -> _Found:
    """The measure, and a finding if it exceeds the caller's limit."""
    yield measure
    level = Level.OK if limit is None else limit.level(measure.value)
    if level is not Level.OK:
        number = f"{measure.value:g} {noun}" if measure.unit else counted(round(measure.value), noun)
        text = f"{measure.subject}: {'' if measure.exact else 'about '}{number}{rest}"
        yield HealthFinding(level, measure.name, measure.subject, text)


def _of_queues(scope: _Scope, limits: Limits) -> _Found:
    for each in scope.queues:
        depth = each.depth
        if depth is None:
            continue
        # Nothing receives from error and audit queues: their length and age are not a backlog, unless the caller names them.
        is_backlog = each.queue.kind not in (QueueKind.ERROR, QueueKind.AUDIT) or each.name in scope.named
        limit = limits.length if is_backlog else None
        length = Measure(each.name, "length", depth.waiting, limit or _NO_BOUNDS, exact=depth.exact)
        yield from _held(length, limit, "message", " waiting")
        yield from _of_age(each, limits.age if is_backlog else None)
        expired = Measure(each.name, "expired", depth.expired, limits.expired or _NO_BOUNDS, exact=each.expiry_exact)
        yield from _held(expired, limits.expired, "expired message", " not purged")


def _of_age(queue: QueueStatus, limit: Bounds | None) -> _Found:
    age = queue.head_age
    if age is not None and age.age is not None:
        measure = Measure(queue.name, "age", round(age.age.total_seconds(), 3), limit or _NO_BOUNDS, "s")
        yield from _held(measure, limit, "s is the age of the first message")
    elif age is not None and limit is not None:
        text = f"queue {queue.name}: the age of the first message is not known: {age.unknown}"
        yield HealthFinding(Level.UNKNOWN, "age", queue.name, text)


def _of_failures(snapshot: Snapshot, scope: _Scope, limits: Limits) -> _Found:
    names = {each.name for each in scope.queues}
    is_ours = snapshot.settings.error_queue_owner == "sqlqueue"
    bounds = limits.failed or (_NONE_IS_FINE if is_ours else _NO_BOUNDS)
    for queue, failed in snapshot.failed:
        if queue.name in names:
            exact = queue.depth is None or queue.depth.exact
            yield from _held(Measure(queue.name, "failed", failed, bounds, exact=exact), limits.failed, "failed message")


def _of_endpoints(snapshot: Snapshot, scope: _Scope, limits: Limits) -> _Found:
    counted_in_part = {each.endpoint for each in snapshot.delayed if not each.overdue_exact}
    for name, overdue in snapshot.overdue.items():
        if name in scope.endpoints:
            measure = Measure(name, "overdue", overdue, limits.overdue or _NONE_IS_FINE, exact=name not in counted_in_part)
            yield from _held(measure, limits.overdue, "overdue delayed message", " not moved by any worker")
    if snapshot.registry_problem:
        return
    minimums = {name: least for name, least in snapshot.minimums.items() if scope.is_all or name in scope.endpoints}
    for name in dict.fromkeys((*scope.endpoints, *minimums)):
        # No worker runs an endpoint that only sends: it counts only if the caller names it.
        is_run = name in snapshot.settings.endpoints and not (scope.is_all and snapshot.settings.is_send_only(name))
        if is_run or name in minimums:
            default = Bounds(critical=minimums[name], least=True) if minimums.get(name) else _NO_BOUNDS
            measure = Measure(name, "instances", snapshot.workers(name), limits.instances or default)
            yield from _held(measure, limits.instances, "live instance")
