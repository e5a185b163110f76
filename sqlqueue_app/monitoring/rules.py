"""Notification rules: their conditions, their evaluation, and creating, changing and removing them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, Final
from uuid import UUID

from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.health_checks import registry
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import (
    CheckResult,
    DeliveryState,
    FailedMessage,
    FailureGroup,
    FailureStatus,
    NotificationDelivery,
    NotificationKind,
    NotificationRule,
    QueueSample,
    managed_alias,
)
from sqlqueue_app.monitoring.check_results import is_muted
from sqlqueue_app.monitoring.checks import CHECKS
from sqlqueue_app.monitoring.snapshot import Snapshot
from sqlqueue_app.receiving.instances import DEAD_AFTER_SECONDS, claim
from sqlqueue_app.status.events import fitting_subject
from sqlqueue_app.status.queues import QueueKind, address_of_queue
from sqlqueue_app.status.samples import start_of
from sqlqueue_app.tables.connections import database_now, errors_of_alias
from sqlqueue_app.tables.installation import DELAYED_SUFFIX

Clock = Callable[[], datetime] | None


class RuleRefused(SqlQueueError):
    """The rule, or its notification, does not allow the request; the message is the reason."""


def create_rule(values: RuleValues, secret: str = "", *, by: str = "", now: Clock = None) -> NotificationRule:
    """Create a rule, which is watched from now on. RuleRefused if the name is taken."""
    alias = managed_alias()
    at = _now(alias, now)
    rule = NotificationRule(**asdict(values), secret=secret, watched_from=at, changed_at=at, changed_by=by[:255])
    try:
        with transaction.atomic(using=alias):
            rule.save(using=alias, force_insert=True)
    except IntegrityError as error:
        raise _name_is_taken(values.name) from error
    return rule


def change_rule(rule_id: int, values: RuleValues, secret: str = "", *, by: str = "", now: Clock = None) -> None:
    """Change the condition or the recipient of a rule; an empty secret keeps the present one. RuleRefused, also if it is gone.

    A rule with a new condition reports everything above its threshold. Waiting notifications go to the new target.
    """
    alias = managed_alias()
    try:
        with transaction.atomic(using=alias):
            rule = _locked(alias, rule_id)
            watched = (rule.kind, rule.subject, rule.threshold)
            for name, value in asdict(values).items():
                setattr(rule, name, value)
            rule.secret = secret or rule.secret
            rule.changed_by, rule.changed_at = by[:255], _now(alias, now)
            if (rule.kind, rule.subject, rule.threshold) != watched:
                _begin_again(rule)
            rule.save(using=alias)
            _waiting(alias, rule).update(channel=rule.channel, target=rule.target)
    except IntegrityError as error:
        raise _name_is_taken(values.name) from error


def renew_secret(rule_id: int, secret: str, *, by: str) -> None:
    """Replace the secret for signatures from now on. RuleRefused if the rule is gone."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        rule = _locked(alias, rule_id)
        rule.secret, rule.changed_by, rule.changed_at = secret, by[:255], database_now(alias)
        rule.save(using=alias, update_fields=["secret", "changed_by", "changed_at"])


def set_enabled(rule_id: int, enabled: bool, *, by: str = "", now: Clock = None) -> None:
    """Enable a rule, which then reports everything above its threshold, or disable it: waiting notifications are not sent.

    RuleRefused if it is gone.
    """
    alias = managed_alias()
    with transaction.atomic(using=alias):
        rule = _locked(alias, rule_id)
        if rule.enabled != enabled:
            rule.enabled, rule.changed_by, rule.changed_at = enabled, by[:255], _now(alias, now)
            _begin_again(rule)
            rule.save(using=alias)
            if not enabled:
                _give_up(_waiting(alias, rule).filter(is_test=False), "the rule was disabled", rule.changed_at)


def remove_rule(rule_id: int, *, now: Clock = None) -> bool:
    """Delete a rule; sent notifications stay in the log, waiting ones are not sent. False if it was already gone."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        rule = NotificationRule.objects.using(alias).filter(pk=rule_id).select_for_update().first()
        if rule is None:
            return False
        _give_up(_waiting(alias, rule), "the rule was deleted", _now(alias, now))
        rule.delete(using=alias)
    return True


def request_test(rule_id: int, *, now: Clock = None) -> UUID:
    """Request a test notification to the target of a rule, enabled or not. Returns its id. RuleRefused if the rule is gone."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        delivery = new_delivery(_locked(alias, rule_id), {}, _now(alias, now), is_test=True)
        delivery.save(using=alias, force_insert=True)
    return delivery.pk


def send_again(delivery_id: UUID, *, now: Clock = None) -> None:
    """Request another attempt for an abandoned notification, to the rule's current target, under the same id. RuleRefused."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        failed = NotificationDelivery.objects.using(alias).filter(pk=delivery_id, state=DeliveryState.FAILED)
        rule_id = failed.values_list("rule", flat=True).first()
        # Lock the rule before its notification, the order of all writers.
        rule = None if rule_id is None else _locked(alias, rule_id)
        delivery = failed.select_for_update().first()
        if delivery is None:
            raise RuleRefused(_("It was not given up: only deliveries that were given up can be sent again."))
        if rule is None:
            raise RuleRefused(_("Its rule was deleted, and with it the recipient."))
        delivery.state, delivery.attempts, delivery.error = DeliveryState.WAITING, 0, ""
        delivery.channel, delivery.target = rule.channel, rule.target
        delivery.next_attempt_at, delivery.finished_at = _now(alias, now), None
        delivery.save(using=alias)


def _begin_again(rule: NotificationRule) -> None:
    rule.raised, rule.pending, rule.seen, rule.watched_from = {}, {}, {}, rule.changed_at


def _locked(alias: str, rule_id: int) -> NotificationRule:
    rule = NotificationRule.objects.using(alias).filter(pk=rule_id).select_for_update().first()
    if rule is None:
        raise RuleRefused(_("The rule has since been deleted."))
    return rule


def _waiting(alias: str, rule: NotificationRule) -> QuerySet[NotificationDelivery]:
    return NotificationDelivery.objects.using(alias).filter(rule=rule, state=DeliveryState.WAITING)


def _give_up(waiting: QuerySet[NotificationDelivery], error: str, at: datetime) -> None:
    waiting.update(state=DeliveryState.FAILED, error=error, next_attempt_at=None, finished_at=at)


def _name_is_taken(name: str) -> RuleRefused:
    return RuleRefused(_("There is a rule named “%(name)s” already: choose another name.") % {"name": name})


def _now(alias: str, now: Clock) -> datetime:
    return now() if now is not None else database_now(alias)


# Failures are counted up to this number; further only if the threshold is higher.
MAX_COUNTED: Final = 10_000
GROUPED_BY: Final = CLASSIFIERS["exception"]
# Messages in these are not a backlog, unless a rule names them (as in sqlqueue_health).
_NO_BACKLOG: Final = (QueueKind.ERROR, QueueKind.AUDIT)


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of a subject, whether the rule fires for it, and the compared limit; `more` for the notification."""

    is_over: bool
    value: float | None = None
    threshold: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Readings:
    """The values that a rule watches, by subject. A subject without a reading passes if they are complete, else it is unknown.

    `muted` subjects cause no notifications.
    """

    by_subject: Mapping[str, Reading]
    is_complete: bool = False
    muted: frozenset[str] = frozenset()


class RuleConditions:
    """The conditions of one evaluation. Values shared by several rules are read once. Raises the database's errors."""

    def __init__(self, snapshot: Snapshot, alias: str) -> None:
        self._snapshot = snapshot
        self._alias = alias
        self._of_kind: dict[str, Callable[[NotificationRule], Readings]] = {
            NotificationKind.FAILURES_ABOVE: self._failures,
            NotificationKind.INSTANCES_BELOW: self._instances,
            NotificationKind.QUEUE_LONGER: self._longer,
            NotificationKind.QUEUE_OLDER: self._older,
            NotificationKind.CHECK_FAILED: self._checks,
        }

    def read(self, rule: NotificationRule) -> Readings:
        """The readings of the rule; empty for a kind that this version does not know. For new groups, see `new_groups`."""
        of_kind = self._of_kind.get(rule.kind)
        return Readings({}) if of_kind is None else of_kind(rule)

    def has_data(self, rule: NotificationRule) -> bool:
        """Whether the rule can fire; False for one whose queue, endpoint or check is not known, and for queues without samples."""
        if rule.kind in (NotificationKind.NEW_GROUP, NotificationKind.FAILURES_ABOVE):
            snapshot = self._snapshot
            known = {"", *snapshot.settings.endpoints, *snapshot.newest_samples, *(each.endpoint for each in snapshot.instances)}
            return rule.subject in known or FailedMessage.objects.using(self._alias).filter(_of(rule.subject)).exists()
        if rule.kind == NotificationKind.CHECK_FAILED:
            checks = CheckResult.objects.using(self._alias).filter(name=rule.subject)
            return rule.subject in {"", *CHECKS, *(each.name for each in registry.all())} or checks.exists()
        return bool(self.read(rule).by_subject)

    def new_groups(self, rule: NotificationRule, since: datetime) -> dict[UUID, datetime]:
        """The groups by exception and place first seen since then, of the rule's endpoint if it names one."""
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
        return dict(FailureGroup.objects.using(self._alias).filter(pk__in=groups).values_list("pk", "title"))

    def _failures(self, rule: NotificationRule) -> Readings:
        threshold = rule.threshold or 0.0
        found = FailedMessage.objects.using(self._alias).filter(status=FailureStatus.UNRESOLVED)
        if rule.subject:
            found = found.filter(_of(rule.subject))
        limit = max(int(threshold) + 1, MAX_COUNTED)
        count = found.order_by()[: limit + 1].count()
        more = {"exact": False} if count > limit else {}
        return Readings({rule.subject: Reading(count > threshold, min(count, limit), threshold, more)})

    def _instances(self, rule: NotificationRule) -> Readings:
        snapshot = self._snapshot
        if snapshot.registry_problem is not None:
            return Readings({})
        minimums: Mapping[str, float] = snapshot.minimums
        if rule.threshold is not None:
            # Nothing should receive for endpoints that only send.
            run = {name for name in snapshot.settings.endpoints if not snapshot.settings.is_send_only(name)}
            known = {*run, *(each.endpoint for each in snapshot.instances if each.is_worker), *minimums}
            minimums = dict.fromkeys({rule.subject} if rule.subject else known, rule.threshold)
        else:
            wanted = {name: minimum for name, minimum in minimums.items() if rule.subject in ("", name)}
            # An endpoint whose minimum was removed passes.
            minimums = {**dict.fromkeys(rule.raised, 0), **wanted}
        counts = ((name, snapshot.workers(name), minimum) for name, minimum in minimums.items())
        return Readings({name: Reading(live < least, live, least) for name, live, least in counts})

    def _longer(self, rule: NotificationRule) -> Readings:
        threshold = rule.threshold or 0.0
        found = self._samples(rule)
        return Readings({name: Reading(each.waiting > threshold, each.waiting, threshold) for name, each in found.items()})

    def _older(self, rule: NotificationRule) -> Readings:
        threshold = rule.threshold or 0.0
        samples = self._samples(rule)
        # A first message without a time says nothing about the age.
        ages = {
            name: each.head_age_seconds for name, each in samples.items() if each.head_age_seconds is not None or not each.waiting
        }
        return Readings({name: Reading((age or 0.0) > threshold, age, threshold) for name, age in ages.items()})

    def _checks(self, rule: NotificationRule) -> Readings:
        named = (each for each in self._failing if not rule.subject or each.name == rule.subject)
        found = {f"{each.name}: {each.subject}" if each.subject else each.name: each for each in named}
        muted = frozenset(subject for subject, each in found.items() if is_muted(each, self._snapshot.now))
        readings = {
            subject: Reading(is_over=True, more={"check": each.name, "check_of": each.subject, "details": each.details})
            for subject, each in found.items()
            if subject not in muted
        }
        gone = {subject: entry for subject, entry in rule.raised.items() if subject not in found}
        explained = {name: self._explained(name) for name in {entry.get("check", "") for entry in gone.values()}}
        kept = {
            subject: Reading(is_over=True)
            for subject, entry in gone.items()
            if entry.get("check_of") in explained[entry.get("check", "")]
        }
        return Readings({**readings, **kept}, is_complete=True, muted=muted)

    def _explained(self, name: str) -> frozenset[str]:
        """The subjects whose problems last, although the check does not report them because another reports their cause."""
        check = CHECKS.get(name)
        outcomes = () if check is None or check.probe is None else check.probe(self._snapshot)
        return frozenset(fitting_subject(each.subject) for each in outcomes if each.is_explained and each.details is not None)

    def _samples(self, rule: NotificationRule) -> Mapping[str, QueueSample]:
        """The newest samples: of the rule's queue, else of all queues with a backlog."""
        found = self._snapshot.newest_samples
        if rule.subject:
            return {name: each for name, each in found.items() if name == rule.subject}
        quiet = {each.name for each in self._snapshot.known_queues if each.kind in _NO_BACKLOG}
        return {name: each for name, each in found.items() if name not in quiet and not name.endswith(DELAYED_SUFFIX)}

    @cached_property
    def _failing(self) -> list[CheckResult]:
        return list(CheckResult.objects.using(self._alias).filter(failing=True))


def present_conditions() -> RuleConditions:
    """The conditions at this instant, for pages that show rules."""
    alias = managed_alias()
    return RuleConditions(Snapshot(get_settings(), database_now(alias)), alias)


def _of(subject: str) -> Q:
    """The condition for failures of an endpoint, of a queue that it failed in, or in an error queue."""
    return Q(endpoint=subject) | Q(failed_q__in=(subject, address_of_queue(subject))) | Q(queue=subject)


logger = logging.getLogger("sqlqueue.notifications")

EVERY_SECONDS: Final = 10.0
# The maximum number of changes that a notification lists; the rest is counted.
MAX_LISTED: Final = 100
# A subject without data, such as a dropped queue, is given up after this time.
MAX_ABSENCE: Final = timedelta(hours=1)
# A group may be committed after one that was seen later: re-read groups that are older than the last one by up to this time.
MAX_DELAY: Final = timedelta(minutes=10)
# Instances come and go with each deployment: they have this time to return, like a silent one.
HELD: Final[Mapping[str, timedelta]] = {NotificationKind.INSTANCES_BELOW: timedelta(seconds=DEAD_AFTER_SECONDS)}
RAISED, RESOLVED, GONE, NEW = "raised", "resolved", "gone", "new"
# Subjects that need more than their name.
_NAMED: Final = ("check", "check_of")

Change = dict[str, Any]


class Evaluator:
    """Evaluates the enabled rules. `now` is the clock of the managed tables' database unless given.

    The claim, the state of each rule and the new notifications are one transaction: nothing is half done or sent twice.
    """

    def __init__(self, settings: Settings, *, now: Callable[[], datetime] | None = None) -> None:
        self._settings = settings
        self._alias = managed_alias()
        self._now = now or partial(database_now, self._alias)

    def evaluate(self) -> int:
        """Evaluate all rules once in ten seconds in the cluster. Returns the number of new notifications. DatabaseError."""
        with errors_of_alias(self._alias, "evaluate the rules of notifications"):
            now = self._now()
            with transaction.atomic(using=self._alias):
                if not claim(self._alias, "notifications", start_of(now, EVERY_SECONDS)):
                    return 0
                rules = NotificationRule.objects.using(self._alias).filter(enabled=True).order_by("pk")
                conditions = RuleConditions(Snapshot(self._settings, now), self._alias)
                return sum(self._evaluate(rule, conditions, now) for rule in rules.select_for_update())

    def _evaluate(self, rule: NotificationRule, conditions: RuleConditions, now: datetime) -> int:
        try:
            with transaction.atomic(using=self._alias):
                before = _kept(rule)
                _add(rule, _changes(rule, conditions, now))
                notification = _notification(rule, now)
                if notification is not None:
                    notification.save(using=self._alias, force_insert=True)
                if _kept(rule) != before:
                    rule.save(using=self._alias, update_fields=list(_KEPT))
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            extra = {"event": "notification_rule_failed"}
            logger.exception("the notification rule %r could not be evaluated", rule.name, extra=extra)
            return 0
        return int(notification is not None)


_KEPT: Final = ("raised", "pending", "seen", "notified_at")


def _kept(rule: NotificationRule) -> tuple[Any, ...]:
    return tuple(getattr(rule, name) for name in _KEPT)


def _changes(rule: NotificationRule, conditions: RuleConditions, now: datetime) -> Iterable[Change]:
    """The changes since the last evaluation, which are recorded in the rule."""
    if rule.kind == NotificationKind.NEW_GROUP:
        return _new_groups(rule, conditions)
    raised: dict[str, Any] = {name: dict(entry) for name, entry in rule.raised.items()}
    readings = conditions.read(rule)
    held = {name: at for name, at in rule.seen.get("held", {}).items() if name in readings.by_subject}
    over = dict(_held(readings, held, now, HELD.get(rule.kind, timedelta())))
    changes = [*_risen(raised, over, now), *_fallen(raised, readings, now)]
    rule.raised, rule.seen = raised, {"held": held} if held else {}
    return changes


def _held(readings: Readings, held: dict[str, str], now: datetime, hold: timedelta) -> Iterator[tuple[str, Reading]]:
    """The subjects that were over their threshold for long enough; `held` records when the others exceeded it."""
    for subject, reading in sorted(readings.by_subject.items()):
        if not reading.is_over:
            held.pop(subject, None)
        elif now - datetime.fromisoformat(held.setdefault(subject, now.isoformat())) >= hold:
            del held[subject]
            yield subject, reading


def _risen(raised: dict[str, Any], over: dict[str, Reading], now: datetime) -> Iterator[Change]:
    at = now.isoformat()
    for subject, reading in over.items():
        if subject not in raised:
            raised[subject] = {"since": at, **{name: reading.more[name] for name in _NAMED if name in reading.more}}
            numbers = {"value": reading.value, "threshold": reading.threshold}
            yield {"change": RAISED, "subject": subject, "at": at, **numbers, **reading.more}


def _fallen(raised: dict[str, Any], readings: Readings, now: datetime) -> Iterator[Change]:
    at = now.isoformat()
    for subject in sorted(raised):
        reading = readings.by_subject.get(subject)
        if reading is not None and reading.is_over:
            raised[subject].pop("missing_since", None)
        elif subject in readings.muted:
            del raised[subject]
        elif reading is not None or readings.is_complete:
            named = {name: value for name, value in raised.pop(subject).items() if name in _NAMED}
            yield {"change": RESOLVED, "subject": subject, "at": at, "value": reading.value if reading else None, **named}
        elif now - datetime.fromisoformat(raised[subject].setdefault("missing_since", at)) >= MAX_ABSENCE:
            del raised[subject]
            yield {"change": GONE, "subject": subject, "at": at}


def _new_groups(rule: NotificationRule, conditions: RuleConditions) -> list[Change]:
    known: dict[str, str] = rule.seen.get("groups", {})
    last = max(map(datetime.fromisoformat, known.values()), default=None)
    begin = rule.watched_from or rule.changed_at
    since = begin if last is None else max(begin, last - MAX_DELAY)
    found = conditions.new_groups(rule, since)
    new = sorted((at, key) for key, at in found.items() if str(key) not in known)
    if not new:
        return []
    newest = new[-1][0] if last is None else max(last, new[-1][0])
    seen = {**known, **{str(key): at.isoformat() for at, key in new}}
    rule.seen = {"groups": {key: at for key, at in seen.items() if datetime.fromisoformat(at) >= newest - MAX_DELAY}}
    titles = conditions.titles([key for _at, key in new[:MAX_LISTED]])
    return [{"change": NEW, "subject": titles.get(key, ""), "group": str(key), "at": at.isoformat()} for at, key in new]


def _add(rule: NotificationRule, changes: Iterable[Change]) -> None:
    new = list(changes)
    if new:
        waiting = [*rule.pending.get("changes", ()), *new]
        rule.pending = {
            "changes": waiting[:MAX_LISTED],
            "more": rule.pending.get("more", 0) + max(0, len(waiting) - MAX_LISTED),
        }


def _notification(rule: NotificationRule, now: datetime) -> NotificationDelivery | None:
    """The notification of all recorded changes, unless the last one was too recent."""
    if not rule.pending.get("changes"):
        return None
    # A clock that was set back must not delay notifications.
    if rule.notified_at is not None and timedelta() <= now - rule.notified_at < timedelta(seconds=rule.throttle_seconds):
        return None
    raised = sorted(rule.raised)
    payload = {**rule.pending, "raised": raised[:MAX_LISTED], "raised_count": len(raised)}
    rule.pending, rule.notified_at = {}, now
    return new_delivery(rule, payload, now)


def new_delivery(rule: NotificationRule, payload: dict[str, Any], now: datetime, *, is_test: bool = False) -> NotificationDelivery:
    """A waiting notification of the rule, not saved yet."""
    return NotificationDelivery(
        pk=uuid.uuid4(),
        rule=rule,
        rule_name=rule.name,
        channel=rule.channel,
        target=rule.target,
        is_test=is_test,
        payload={"kind": rule.kind, "of": rule.subject, "threshold": rule.threshold, **payload},
        created_at=now,
        next_attempt_at=now,
    )


MAX_NAME_LENGTH: Final = 100
MAX_THROTTLE_SECONDS: Final = 7 * 86_400
DEFAULT_THROTTLE_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class ThresholdRange:
    """The allowed thresholds of a kind: from `minimum` to `maximum`, whole or not; `words` describe them."""

    minimum: float
    maximum: float
    words: Any
    is_whole: bool = True
    is_required: bool = True

    def allows(self, value: float | None) -> bool:
        """Whether a rule of the kind may have this threshold."""
        if value is None:
            return not self.is_required
        return self.minimum <= value <= self.maximum and not (self.is_whole and value % 1)


# The maximum that is counted, or makes sense.
THRESHOLDS: Final = {
    NotificationKind.FAILURES_ABOVE: ThresholdRange(0, 1_000_000, gettext_lazy("a whole number from 0 to 1,000,000")),
    NotificationKind.INSTANCES_BELOW: ThresholdRange(
        1, 10_000, gettext_lazy("a whole number from 1 to 10,000, or empty for the minimum of each endpoint"), is_required=False
    ),
    NotificationKind.QUEUE_LONGER: ThresholdRange(0, 10**12, gettext_lazy("a whole number of 0 or more")),
    NotificationKind.QUEUE_OLDER: ThresholdRange(
        1, 366 * 86_400, gettext_lazy("a number of seconds from 1 to 31,622,400"), is_whole=False
    ),
}


@dataclass(frozen=True, slots=True)
class RuleValues:
    """The condition and the recipient of a rule, without its secret."""

    name: str = ""
    kind: str = ""
    subject: str = ""
    threshold: float | None = None
    channel: str = ""
    target: str = ""
    throttle_seconds: int = DEFAULT_THROTTLE_SECONDS
