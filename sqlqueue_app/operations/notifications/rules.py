"""Making, changing and removing rules of notifications, and asking for a notification to be sent: what operators do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.models import DeliveryState, NotificationDelivery, NotificationRule
from sqlqueue_app.operations.notifications.evaluation import new_delivery
from sqlqueue_app.operations.notifications.rule_form import RuleValues
from sqlqueue_app.tables.clock import database_now

Clock = Callable[[], datetime] | None


class RuleRefused(SqlQueueError):
    """What is asked for cannot be done to the rule, or to what it has sent; the message says why."""


def make_rule(values: RuleValues, secret: str = "", *, by: str = "", now: Clock = None) -> NotificationRule:
    """Tell of this from now on. RuleRefused if there is a rule of the name."""
    alias = managed_alias()
    at = _now(alias, now)
    rule = NotificationRule(**values.columns(), secret=secret, watched_from=at, changed_at=at, changed_by=by[:255])
    try:
        with transaction.atomic(using=alias):
            rule.save(using=alias, force_insert=True)
    except IntegrityError as error:
        raise _name_is_taken(values.name) from error
    return rule


def change_rule(rule_id: int, values: RuleValues, secret: str = "", *, by: str = "", now: Clock = None) -> None:
    """Change what a rule tells of, or whom; an empty secret keeps the one that there is. RuleRefused, also if it is gone.

    Where it looks at something else now, what was over its threshold is told again. What waits to be sent goes to the new target.
    """
    alias = managed_alias()
    try:
        with transaction.atomic(using=alias):
            rule = _locked(alias, rule_id)
            looked_at = (rule.kind, rule.subject, rule.threshold)
            for name, value in values.columns().items():
                setattr(rule, name, value)
            rule.secret = secret or rule.secret
            rule.changed_by, rule.changed_at = by[:255], _now(alias, now)
            if (rule.kind, rule.subject, rule.threshold) != looked_at:
                _begin_again(rule)
            rule.save(using=alias)
            _waiting(alias, rule).update(channel=rule.channel, target=rule.target)
    except IntegrityError as error:
        raise _name_is_taken(values.name) from error


def renew_secret(rule_id: int, secret: str, *, by: str = "", now: Clock = None) -> None:
    """Sign with another secret from now on. RuleRefused if the rule is gone."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        rule = _locked(alias, rule_id)
        rule.secret, rule.changed_by, rule.changed_at = secret, by[:255], _now(alias, now)
        rule.save(using=alias, update_fields=["secret", "changed_by", "changed_at"])


def set_enabled(rule_id: int, enabled: bool, *, by: str = "", now: Clock = None) -> None:
    """Begin or end to look at a rule. One that begins tells of all that is over its threshold then. RuleRefused if it is gone."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        rule = _locked(alias, rule_id)
        if rule.enabled != enabled:
            rule.enabled, rule.changed_by, rule.changed_at = enabled, by[:255], _now(alias, now)
            _begin_again(rule)
            rule.save(using=alias)


def remove_rule(rule_id: int, *, now: Clock = None) -> bool:
    """Delete a rule; what it has sent stays in the log, what waits to be sent is not sent. False if it was gone already."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        rule = NotificationRule.objects.using(alias).filter(pk=rule_id).select_for_update().first()
        if rule is None:
            return False
        given_up = {"state": DeliveryState.FAILED, "error": "the rule was deleted", "next_attempt_at": None}
        _waiting(alias, rule).update(finished_at=_now(alias, now), **given_up)
        rule.delete(using=alias)
    return True


def request_test(rule_id: int, *, now: Clock = None) -> UUID:
    """Have a worker send a test to the target of a rule, enabled or not; the id of it. RuleRefused if the rule is gone."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        delivery = new_delivery(_locked(alias, rule_id), {}, _now(alias, now), is_test=True)
        delivery.save(using=alias, force_insert=True)
    return delivery.pk


def send_again(delivery_id: UUID, *, now: Clock = None) -> None:
    """Have a worker try what was given up once more, to the target that the rule has now, under the same id. RuleRefused."""
    alias = managed_alias()
    with transaction.atomic(using=alias):
        failed = NotificationDelivery.objects.using(alias).filter(pk=delivery_id, state=DeliveryState.FAILED)
        rule_id = failed.values_list("rule", flat=True).first()
        # The rule before what it has sent, as everybody locks them.
        rule = None if rule_id is None else _locked(alias, rule_id)
        delivery = failed.select_for_update().first()
        if delivery is None:
            raise RuleRefused(_("It was not given up: only what was is sent again."))
        if rule is None:
            raise RuleRefused(_("Its rule was deleted: there is nobody to send it to."))
        delivery.state, delivery.attempts, delivery.error = DeliveryState.WAITING, 0, ""
        delivery.channel, delivery.target = rule.channel, rule.target
        delivery.next_attempt_at, delivery.finished_at = _now(alias, now), None
        delivery.save(using=alias)


def _begin_again(rule: NotificationRule) -> None:
    """Forget what was told."""
    rule.raised, rule.pending, rule.seen, rule.watched_from = {}, {}, {}, rule.changed_at


def _locked(alias: str, rule_id: int) -> NotificationRule:
    rule = NotificationRule.objects.using(alias).filter(pk=rule_id).select_for_update().first()
    if rule is None:
        raise RuleRefused(_("The rule has been deleted meanwhile."))
    return rule


def _waiting(alias: str, rule: NotificationRule) -> QuerySet[NotificationDelivery]:
    return NotificationDelivery.objects.using(alias).filter(rule=rule, state=DeliveryState.WAITING)


def _name_is_taken(name: str) -> RuleRefused:
    return RuleRefused(_("There is a rule named “%(name)s” already: choose another name.") % {"name": name})


def _now(alias: str, now: Clock) -> datetime:
    return now() if now is not None else database_now(alias)
