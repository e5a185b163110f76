"""What checks last said, in the table of results: written by one process at a time, with an event where something has changed.

A failing subject has a row, and so has one that passes again, for a day. Where nothing fails, a check that sqlqueue brings has one
row without a subject. While nothing changes, a run is one SELECT and one UPDATE, however many checks report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import Q

from sqlqueue_app.models import CheckResult
from sqlqueue_app.operations.claims import one_at_a_time
from sqlqueue_app.operations.events import EventKind, Happening, fitting_subject, record_events
from sqlqueue_app.operations.watching.catalogue import BUILT_IN, SOON, CheckKind

_LOCK: Final = "results of checks are written"
# Of what nobody has looked at for so long there is nothing more; another project on this database would have looked.
UNSEEN: Final = timedelta(minutes=15)
# That something has failed stays to be seen for a while.
PASSED_KEPT: Final = timedelta(days=1)
# Checks of which no worker knows any more.
UNKNOWN_KEPT: Final = timedelta(days=1)

_COUNTED: Final = 100

Details = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Report:
    """What a check has found: the failing subjects with their details, and those that pass."""

    name: str
    every_seconds: int
    failing: Mapping[str, Details] = field(default_factory=dict)
    passing: frozenset[str] = frozenset()

    @property
    def kind(self) -> CheckKind | None:
        """The check, if it is one that sqlqueue brings."""
        return BUILT_IN.get(self.name)


def write_reports(alias: str, reports: Sequence[Report], now: datetime) -> None:
    """Write what checks have found, and the events of what has changed, in one transaction. Raises the database's errors.

    Each change is told of once, however many processes report it at the same time. `now` is an instant of the database's clock.
    """
    reports = [_fitting(each) for each in reports]
    if not reports:
        return
    looks = [_Change(each, rows, now) for each, rows in _with_rows(alias, reports)]
    same = [pk for each in looks if not each.is_any for pk in each.seen_rows]
    with transaction.atomic(using=alias):
        if changing := [each.report for each in looks if each.is_any]:
            one_at_a_time(alias, _LOCK, now)
            for report, rows in _with_rows(alias, changing):
                _Change(report, rows, now).write(alias)
        CheckResult.objects.using(alias).filter(pk__in=same).update(checked_at=now)


def forget_unknown(alias: str, now: datetime) -> None:
    """Delete the results of checks that nobody has run for a day and four intervals: they are not in the project any more."""
    results = CheckResult.objects.using(alias)
    old = results.filter(checked_at__lt=now - UNKNOWN_KEPT)
    gone = [each.pk for each in old if _silent(each, now) > UNKNOWN_KEPT + timedelta(seconds=4 * each.every_seconds)]
    if gone:
        results.filter(pk__in=gone).delete()


def failing_checks(alias: str, now: datetime) -> list[CheckResult]:
    """The results that fail and are not muted, a hundred at most, by check and subject. One statement."""
    muted = Q(muted_until__isnull=False, muted_until__gt=now)
    found = CheckResult.objects.using(alias).filter(~muted, failing=True).order_by("name", "subject")
    return list(found[:_COUNTED])


def is_stale(row: CheckResult, now: datetime) -> bool:
    """Whether the check was not run for three of its intervals: no worker is alive, or something keeps it from running."""
    return _silent(row, now) > timedelta(seconds=3 * row.every_seconds + SOON)


def is_muted(row: CheckResult, now: datetime) -> bool:
    """Whether somebody has muted it, and the time is not over."""
    return row.muted_until is not None and row.muted_until > now


def _silent(row: CheckResult, now: datetime) -> timedelta:
    """How long ago it was run."""
    checked: datetime = row.checked_at  # type: ignore[assignment]  # never NULL
    return now - checked


def _fitting(report: Report) -> Report:
    failing = {fitting_subject(subject): details for subject, details in report.failing.items()}
    return replace(report, failing=failing, passing=frozenset(map(fitting_subject, report.passing)) - failing.keys())


def _with_rows(alias: str, reports: Sequence[Report]) -> list[tuple[Report, dict[str, CheckResult]]]:
    found: defaultdict[str, dict[str, CheckResult]] = defaultdict(dict)
    for row in CheckResult.objects.using(alias).filter(name__in=[each.name for each in reports]).order_by("pk"):
        found[row.name][row.subject] = row
    return [(each, found[each.name]) for each in reports]


class _Change:
    """What a report changes at the rows of its check, by subject."""

    def __init__(self, report: Report, known: Mapping[str, CheckResult], now: datetime) -> None:
        self.report = report
        self._known = known
        self._now = now
        self._kind = report.kind
        failing = {subject for subject, row in known.items() if row.failing}
        self._failed = sorted(report.failing.keys() - failing)
        self._told = [each for each in sorted(report.failing.keys() & failing) if known[each].details != report.failing[each]]
        self._passed = sorted(report.passing & failing)
        gone = {subject for subject, row in known.items() if subject and self._is_gone(row)}
        # One of our own has a row without a subject while nothing fails.
        is_well = self._kind is not None and not report.failing and not failing - report.passing - gone
        self._gone = sorted(gone | (known.keys() & {""} if self._kind is not None and not is_well else set()))
        new = {""} if is_well else report.passing if self._kind is None else set()
        self._new = sorted(new - known.keys())
        self._seen = {*report.failing, *report.passing, *([""] if is_well else [])} - set(self._gone)

    @property
    def is_any(self) -> bool:
        """Whether there is anything but the time of the run."""
        seen = [row for subject, row in self._known.items() if subject in self._seen]
        is_other = any(row.every_seconds != self.report.every_seconds for row in seen)
        return bool(self._failed or self._told or self._passed or self._new or self._gone or is_other)

    @property
    def seen_rows(self) -> list[int]:
        """The keys of the rows of which the report says that they are as they were."""
        return [row.pk for subject, row in self._known.items() if subject in self._seen]

    def write(self, alias: str) -> None:
        """Write it, and its events."""
        results = CheckResult.objects.using(alias)
        common = {"checked_at": self._now, "every_seconds": self.report.every_seconds}
        mine = results.filter(name=self.report.name)
        mine.filter(subject__in=self._gone).delete()
        mine.filter(subject__in=self._seen).update(**common)
        for subject in (*self._failed, *self._told):
            begun = {"failing": True, "since": self._now} if subject in self._failed else {}
            values = {"details": dict(self.report.failing[subject]), **begun}
            if subject in self._known:
                mine.filter(subject=subject).update(**values)
            else:
                results.create(name=self.report.name, subject=subject, **values, **common)
        mine.filter(subject__in=self._passed).update(failing=False, since=self._now, details={})
        for subject in self._new:
            results.create(name=self.report.name, subject=subject, since=self._now, **common)
        record_events(self._happenings(), now=self._now)

    def _happenings(self) -> list[Happening]:
        failed, passed, gone = EventKind.CHECK_FAILED, EventKind.CHECK_PASSED, None
        if self._kind is not None:
            failed, passed, gone = self._kind.failed, self._kind.passed, self._kind.gone
        found = [self._happening(failed, subject, self.report.failing[subject]) for subject in self._failed]
        found += [self._happening(passed, subject, self._known[subject].details) for subject in self._passed]
        if gone is not None:
            lost = [subject for subject in self._gone if self._known[subject].failing]
            found += [self._happening(gone, subject, self._known[subject].details) for subject in lost]
        return found

    def _happening(self, kind: EventKind, subject: str, details: object) -> Happening:
        return Happening(kind, subject, {**(details if isinstance(details, dict) else {}), "check": self.report.name})

    def _is_gone(self, row: CheckResult) -> bool:
        """Whether there is no such subject any more, or it has passed for long."""
        since: datetime = row.since  # type: ignore[assignment]  # never NULL
        if row.subject in self.report.failing:
            return False
        if row.subject in self.report.passing:
            has_passed = not row.failing and self._now - since > PASSED_KEPT and not is_muted(row, self._now)
            return self._kind is not None and has_passed
        return (self._kind is not None and self._kind.covers_all) or _silent(row, self._now) > max(
            UNSEEN, timedelta(seconds=4 * row.every_seconds)
        )
