"""What the rules of notifications look at: how much there is of something, and whether that is too much.

All is read from the managed tables: whoever looks sees the same. What several rules ask for is read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from django.db.models import Q

from sqlqueue_app.conf import Settings
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import (
    CheckResult,
    EndpointExpectation,
    FailedMessage,
    FailureGroup,
    FailureStatus,
    NotificationKind,
    NotificationRule,
    QueueSample,
)
from sqlqueue_app.operations.instance_status import read_instances
from sqlqueue_app.operations.known_queues import QueueKind, known_queues
from sqlqueue_app.operations.sample_storage import FINEST
from sqlqueue_app.operations.watching.results import is_muted
from sqlqueue_app.tables.well_known import DELAYED_SUFFIX

# A sample that is older says nothing about now.
SAMPLE_IS_NEW: Final = timedelta(seconds=6 * FINEST.seconds)
# Failures are counted so far; further only where the threshold is higher.
COUNTED_AT_MOST: Final = 10_000
GROUPED_BY: Final = CLASSIFIERS["exception"]
# What lies in these is no backlog, unless somebody asks by name (as in sqlqueue_health).
_NO_BACKLOG: Final = (QueueKind.ERROR, QueueKind.AUDIT)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found of a subject, whether it is what the rule tells of, and what it was compared with; more, for its text."""

    is_over: bool
    value: float | None = None
    threshold: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """What a rule sees: readings by subject. A subject without one is well where the look `is_complete`, else not known.

    Of the `muted` subjects nobody wants to hear.
    """

    readings: Mapping[str, Reading]
    is_complete: bool = False
    muted: frozenset[str] = frozenset()


class Looks:
    """The looks of one evaluation, at `now` by the clock of the database. Raises the database's errors."""

    def __init__(self, settings: Settings, alias: str, now: datetime) -> None:
        self._settings = settings
        self._alias = alias
        self._now = now
        self._of_kind: dict[str, Callable[[NotificationRule], Look]] = {
            NotificationKind.FAILURES_ABOVE: self._failures,
            NotificationKind.INSTANCES_BELOW: self._instances,
            NotificationKind.QUEUE_LONGER: self._longer,
            NotificationKind.QUEUE_OLDER: self._older,
            NotificationKind.CHECK_FAILED: self._checks,
        }

    def look(self, rule: NotificationRule) -> Look:
        """What the rule sees; nothing for a kind that this version does not know. Not for new groups: see `new_groups`."""
        of_kind = self._of_kind.get(rule.kind)
        return Look({}) if of_kind is None else of_kind(rule)

    def new_groups(self, rule: NotificationRule, since: datetime) -> dict[UUID, datetime]:
        """The groups by exception and place that were first seen since then, of the rule's endpoint if it names one."""
        groups = FailureGroup.objects.using(self._alias).filter(classifier=GROUPED_BY.name, first_seen_at__gte=since)
        found = {key: at for key, at in groups.values_list("pk", "first_seen_at") if at is not None}
        if rule.subject and found:
            members = FailedMessage.objects.using(self._alias).filter(
                _of(rule.subject), **{"status__in": FailureStatus.values, f"{GROUPED_BY.field}__in": list(found)}
            )
            of_subject = set(members.values_list(GROUPED_BY.field, flat=True).distinct())
            found = {key: at for key, at in found.items() if key in of_subject}
        return found

    def titles(self, groups: list[UUID]) -> dict[UUID, str]:
        """What the groups have in common."""
        return dict(FailureGroup.objects.using(self._alias).filter(pk__in=groups).values_list("pk", "title"))

    def _failures(self, rule: NotificationRule) -> Look:
        threshold = rule.threshold or 0.0
        found = FailedMessage.objects.using(self._alias).filter(status=FailureStatus.UNRESOLVED)
        if rule.subject:
            found = found.filter(_of(rule.subject))
        count = found.order_by()[: max(int(threshold) + 1, COUNTED_AT_MOST)].count()
        return Look({rule.subject: Reading(count > threshold, count, threshold)})

    def _instances(self, rule: NotificationRule) -> Look:
        minimums: Mapping[str, float] = self._minimums
        if rule.threshold is not None:
            names = {*self._settings.endpoints, *self._live, *minimums}
            minimums = dict.fromkeys({rule.subject} if rule.subject else names, rule.threshold)
        elif rule.subject:
            minimums = {name: minimum for name, minimum in minimums.items() if name == rule.subject}
        counts = ((name, self._live[name], minimum) for name, minimum in minimums.items())
        # Without a threshold, an endpoint of which no minimum is expected any more is well.
        return Look({name: Reading(live < least, live, least) for name, live, least in counts}, is_complete=rule.threshold is None)

    def _longer(self, rule: NotificationRule) -> Look:
        threshold = rule.threshold or 0.0
        found = self._samples_for(rule)
        return Look({name: Reading(each.waiting > threshold, each.waiting, threshold) for name, each in found.items()})

    def _older(self, rule: NotificationRule) -> Look:
        threshold = rule.threshold or 0.0
        ages = {name: each.head_age_seconds for name, each in self._samples_for(rule).items()}
        return Look({name: Reading((age or 0.0) > threshold, age, threshold) for name, age in ages.items()})

    def _checks(self, rule: NotificationRule) -> Look:
        failing = [each for each in self._failing if not rule.subject or each.name == rule.subject]
        muted = frozenset(subject_of_check(each) for each in failing if is_muted(each, self._now))
        told = {
            subject_of_check(each): Reading(
                is_over=True, more={"check": each.name, "check_of": each.subject, "details": each.details}
            )
            for each in failing
            if not is_muted(each, self._now)
        }
        return Look(told, is_complete=True, muted=muted)

    def _samples_for(self, rule: NotificationRule) -> dict[str, QueueSample]:
        if rule.subject:
            return {name: each for name, each in self._samples.items() if name == rule.subject}
        return {name: each for name, each in self._samples.items() if name not in self._quiet and not name.endswith(DELAYED_SUFFIX)}

    @cached_property
    def _samples(self) -> dict[str, QueueSample]:
        """The newest sample of each queue."""
        times = {"taken_at__gt": self._now - SAMPLE_IS_NEW, "taken_at__lte": self._now}
        samples = QueueSample.objects.using(self._alias).filter(seconds=FINEST.seconds, **times)
        return {each.queue: each for each in samples.only("queue", "waiting", "head_age_seconds").order_by("taken_at")}

    @cached_property
    def _quiet(self) -> frozenset[str]:
        return frozenset(each.name for each in known_queues(self._settings) if each.kind in _NO_BACKLOG)

    @cached_property
    def _live(self) -> Counter[str]:
        """How many live instances each endpoint has."""
        instances, _rows, _problem = read_instances()
        found: Counter[str] = Counter(each.endpoint for each in instances if each.alive)
        found.update(dict.fromkeys((each.endpoint for each in instances if not each.alive), 0))
        return found

    @cached_property
    def _minimums(self) -> dict[str, float]:
        return dict(EndpointExpectation.objects.using(self._alias).values_list("endpoint", "minimum"))

    @cached_property
    def _failing(self) -> list[CheckResult]:
        return list(CheckResult.objects.using(self._alias).filter(failing=True))


def _of(subject: str) -> Q:
    """Failures of an endpoint, of a queue that it failed in, or in an error queue."""
    return Q(endpoint=subject) | Q(failed_q=subject) | Q(queue=subject)


def subject_of_check(check: CheckResult) -> str:
    """What a check is called in notifications."""
    return f"{check.name}: {check.subject}" if check.subject else check.name
