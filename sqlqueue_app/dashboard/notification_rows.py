"""Rules and notifications as the pages show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.access import Button, Power, button, may
from sqlqueue_app.dashboard.formats import Stamp, number, stamp_of
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.models import DeliveryState, NotificationChannel, NotificationDelivery, NotificationKind, NotificationRule
from sqlqueue_app.operations.notifications.sending import MOST_ATTEMPTS, shown_target
from sqlqueue_app.operations.notifications.texts import name_of, news_of, number_in_words, sentences_of

_SUBJECTS_SHOWN: Final = 5
_STATES: Final = {
    DeliveryState.WAITING: (Level.INFO, gettext_lazy("waiting")),
    DeliveryState.SENT: (Level.OK, gettext_lazy("sent")),
    DeliveryState.FAILED: (Level.ERROR, gettext_lazy("failed")),
}


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """A notification. `changes` are told one by one where there are several."""

    delivery: NotificationDelivery
    rule_url: str
    made: Stamp | None
    news: str
    changes: list[str]
    channel: str
    target: str
    state: State
    attempts: str
    next_attempt: Stamp | None
    finished: Stamp | None
    buttons: list[Button]


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule, with what has become of its last notification. `raised` names what is not over yet, `pending` is told next."""

    rule: NotificationRule
    url: str
    condition: str
    of: str
    channel: str
    target: str
    state: State
    raised: str
    pending: str
    notified: Stamp | None
    last: DeliveryRow | None
    buttons: list[Button]


def rule_row(pages: PageAdmin, request: HttpRequest, rule: NotificationRule, last: NotificationDelivery | None = None) -> RuleRow:
    """A rule as this user may see it."""
    kind = NotificationKind(rule.kind) if rule.kind in NotificationKind.values else None
    return RuleRow(
        rule,
        pages.url("rule", rule.pk),
        condition_of(rule),
        rule.subject or _("all"),
        _channel(rule.channel),
        target_for(request, rule.channel, rule.target),
        _state_of_rule(rule),
        _some([name_of(kind or "", each) for each in sorted(rule.raised)]),
        number(len(rule.pending.get("changes", ())) + rule.pending.get("more", 0)) if rule.pending else "",
        stamp_of(rule.notified_at),
        None if last is None else delivery_row(pages, request, last),
        _buttons(pages, request, rule),
    )


def _buttons(pages: PageAdmin, request: HttpRequest, rule: NotificationRule) -> list[Button]:
    turn = ("disable", _("Disable")) if rule.enabled else ("enable", _("Enable"))
    acts = [("edit", _("Change")), ("test", _("Send a test")), turn]
    if rule.channel == NotificationChannel.WEBHOOK:
        acts.append(("secret", _("Replace the secret")))
    found = [button(request, Power.SETTINGS, label, pages.url(name, rule.pk)) for name, label in acts]
    return [*found, button(request, Power.SETTINGS, _("Delete"), pages.url("delete", rule.pk), dangerous=True)]


def condition_of(rule: NotificationRule) -> str:
    """When the rule tells, in words."""
    label = str(NotificationKind(rule.kind).label) if rule.kind in NotificationKind.values else rule.kind
    if rule.threshold is not None:
        unit = _("%(n)s s") if rule.kind == NotificationKind.QUEUE_OLDER else "%(n)s"
        return f"{label} {unit % {'n': number_in_words(rule.threshold)}}"
    if rule.kind == NotificationKind.INSTANCES_BELOW:
        return label + " " + _("the minimum of the endpoint")
    return label


def target_for(request: HttpRequest, channel: str, target: str) -> str:
    """Where it goes: whole for those who may change it, else without what may be a secret."""
    return ", ".join(target.split()) if may(request, Power.SETTINGS) else shown_target(channel, target)


def delivery_row(pages: PageAdmin, request: HttpRequest, delivery: NotificationDelivery) -> DeliveryRow:
    """A notification as this user may see it."""
    level, word = _STATES.get(DeliveryState(delivery.state), (Level.INFO, delivery.state))
    is_waiting, is_failed = delivery.state == DeliveryState.WAITING, delivery.state == DeliveryState.FAILED
    if is_waiting and delivery.attempts:
        level, word = Level.WARNING, _("is tried again")
    reason = "" if delivery.rule_id is not None else _("The rule was deleted.")
    again = button(request, Power.SETTINGS, _("Send again"), pages.url("again", delivery.pk), reason=reason)
    sentences = sentences_of(delivery)
    return DeliveryRow(
        delivery,
        "" if delivery.rule_id is None else pages.url("rule", delivery.rule_id),
        stamp_of(delivery.created_at),
        news_of(delivery),
        sentences if len(sentences) > 1 else [],
        _channel(delivery.channel),
        target_for(request, delivery.channel, delivery.target),
        State(level, str(word)),
        _("%(count)s of %(most)s") % {"count": number(delivery.attempts), "most": number(MOST_ATTEMPTS)},
        stamp_of(delivery.next_attempt_at) if is_waiting and delivery.attempts else None,
        stamp_of(delivery.finished_at),
        [again] if is_failed else [],
    )


def with_last_delivery(
    rules: QuerySet[NotificationRule], alias: str, most: int
) -> list[tuple[NotificationRule, NotificationDelivery | None]]:
    """The rules and the last notification of each; two statements."""
    deliveries = NotificationDelivery.objects.using(alias)
    newest = deliveries.filter(rule=OuterRef("pk")).order_by("-created_at", "-pk").values("pk")[:1]
    found = list(rules.annotate(last_id=Subquery(newest))[:most])
    last = deliveries.in_bulk([each.last_id for each in found if each.last_id is not None])
    return [(each, last.get(each.last_id)) for each in found]


def _state_of_rule(rule: NotificationRule) -> State:
    if not rule.enabled:
        return State(Level.INFO, _("disabled"))
    return State(Level.WARNING, _("raised")) if rule.raised else State(Level.OK, _("enabled"))


def _channel(channel: str) -> str:
    return str(NotificationChannel(channel).label) if channel in NotificationChannel.values else channel


def _some(names: Iterable[str]) -> str:
    """The first few of the names, and how many more there are."""
    found = list(names)
    text = ", ".join(found[:_SUBJECTS_SHOWN])
    left = len(found) - _SUBJECTS_SHOWN
    return text if left <= 0 else _("%(names)s and %(count)s more") % {"names": text, "count": number(left)}
