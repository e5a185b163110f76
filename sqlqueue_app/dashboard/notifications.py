"""The pages of notifications: rules, creating and changing them, tests, and the delivery log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from django import forms
from django.db.models import QuerySet
from django.forms.models import model_to_dict
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, ngettext
from django.views.decorators.debug import sensitive_post_parameters

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard import lists
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, may, refusal
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, State, number, stamp_html
from sqlqueue_app.dashboard.lists import WIDE, ListAdmin, TableColumn, link_html, template_html, with_notes
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import Crumb, found_or_404
from sqlqueue_app.failures.operations import is_worker_alive
from sqlqueue_app.models import (
    DeliveryState,
    NotificationChannel,
    NotificationDelivery,
    NotificationKind,
    NotificationRule,
    managed_alias,
)
from sqlqueue_app.monitoring import notifying, rules, webhooks
from sqlqueue_app.monitoring.notifying import RuleForm, SecretForm, change_summary, sentences_of, shown_target
from sqlqueue_app.status.retention import NOTIFICATIONS_KEPT
from sqlqueue_app.status.texts import first_names

_LAST_DELIVERIES: Final = 20
_RETRYING: Final = "retrying"
# A notification that waits after an attempt is being retried.
_STATES: Final[Mapping[str, State]] = {
    DeliveryState.WAITING: State(Grade.INFO, gettext_lazy("waiting")),
    _RETRYING: State(Grade.WARNING, gettext_lazy("retrying")),
    DeliveryState.SENT: State(Grade.OK, gettext_lazy("delivered")),
    DeliveryState.FAILED: State(Grade.ERROR, gettext_lazy("failed")),
}


class RuleAction(Action):
    """An action on a rule. Its form shows a new secret, unless it `keeps_secret` of the rule."""

    permission = Permission.SETTINGS
    rule: NotificationRule
    keeps_secret = False
    secret_help: Any = ""

    def find(self, **key: Any) -> None:
        found = _rule(key["pk"])
        self.rule, self.target = found, f"{found.name}: {shown_target(found.channel, found.target)}"
        self.back_url = self.pages.url("rule", found.pk)
        self.facts = (
            (_("Condition"), notifying.describe_condition(found)),
            (_("Applies to"), found.subject or _("all")),
            (_("Recipients"), target_for(self.request, found)),
        )
        self.crumbs = (Crumb(found.name, self.back_url),)

    def make_form(self) -> forms.Form:
        form = super().make_form()
        if "secret" in form.fields:
            # Overrides the query string.
            form.initial["secret"] = "" if self.keeps_secret else webhooks.new_secret()
            form.fields["secret"].help_text = self.secret_help
        return form


class MakeRule(RuleAction):
    """Creates a rule. Only this page shows the generated secret."""

    name, page, route = "make notification rule", "make", "make/"
    label, submit = gettext_lazy("Create a rule"), gettext_lazy("Create the rule")
    text = gettext_lazy("A worker evaluates all rules every ten seconds, and notifies of changes.")
    form_class = RuleForm
    secret_help = gettext_lazy(
        "For a webhook: copy it to the receiver now, because it is not shown again. Or enter the receiver's own."
    )

    def find(self, **key: Any) -> None:
        self.target, self.back_url = self.request.POST.get("name", ""), self.pages.url()

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        made = rules.create_rule(_values(data), data["secret"], by=actor_of(self.request).name)
        return ActionOutcome(_("The rule is created."), self.pages.url("rule", made.pk))


class EditRule(RuleAction):
    """Changes a rule. Its secret stays unless another is entered."""

    name, page, route = "change notification rule", "edit", "<int:pk>/edit/"
    label, title, submit = gettext_lazy("Change"), gettext_lazy("Change a rule"), gettext_lazy("Change the rule")
    text = gettext_lazy("If its condition changes, the rule starts over, and reports everything above its threshold again.")
    form_class = RuleForm
    secret_help = gettext_lazy("For a webhook. Empty keeps the present secret.")

    def find(self, **key: Any) -> None:
        super().find(**key)
        threshold = "" if self.rule.threshold is None else f"{self.rule.threshold:.15g}"
        self.start_with(**{**model_to_dict(self.rule, RuleForm.base_fields, ["secret"]), "threshold": threshold})
        self.target, self.facts, self.keeps_secret = self.rule.name, (), bool(self.rule.secret)

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        rules.change_rule(self.rule.pk, _values(data), data["secret"], by=actor_of(self.request).name)
        return ActionOutcome(_("The rule is changed."), self.back_url)


class ReplaceSecret(RuleAction):
    """Shows a new secret, which replaces the present one."""

    name, page, route = "replace notification secret", "secret", "<int:pk>/secret/"
    logged_as = gettext_lazy("Replace the secret of a rule")
    label = gettext_lazy("Replace the secret")
    text = gettext_lazy("Copy it to the receiver now: it is not shown again. Everything sent from now on is signed with it.")
    form_class = SecretForm

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.target, self.facts = self.rule.name, ()
        if self.rule.channel != NotificationChannel.WEBHOOK:
            self.blocked = _("The rule sends mail, which is not signed.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        rules.renew_secret(self.rule.pk, data["secret"], by=actor_of(self.request).name)
        return ActionOutcome(_("Webhooks of the rule are signed with the new secret from now on."), self.back_url)


class SendTest(RuleAction):
    """Requests a test notification from a worker."""

    name, page, route = "test notification rule", "test", "<int:pk>/test/"
    logged_as = gettext_lazy("Send a test notification")
    label, submit = gettext_lazy("Send a test"), gettext_lazy("Send the test")
    text = gettext_lazy("It is sent like a real notification, even if the rule is disabled, and is marked as a test.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        rules.request_test(self.rule.pk)
        alive = _("A worker sends the test: its result is in the list below within half a minute.")
        dead = _("The test waits in the list below: no worker is alive, and the first one that starts sends it.")
        return ActionOutcome(alive if is_worker_alive() else dead, self.back_url)


class EnableRule(RuleAction):
    name, page, route = "enable notification rule", "enable", "<int:pk>/enable/"
    label, title, submit = gettext_lazy("Enable"), gettext_lazy("Enable a rule"), gettext_lazy("Enable the rule")
    text = gettext_lazy("It starts over, and reports everything that is above its threshold.")
    enabled, done = True, gettext_lazy("The rule is enabled.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        rules.set_enabled(self.rule.pk, self.enabled, by=actor_of(self.request).name)
        return ActionOutcome(str(self.done), self.back_url)


class DisableRule(EnableRule):
    name, page, route = "disable notification rule", "disable", "<int:pk>/disable/"
    label, title, submit = gettext_lazy("Disable"), gettext_lazy("Disable a rule"), gettext_lazy("Disable the rule")
    text = gettext_lazy("It sends no notifications until it is enabled again.")
    enabled, done = False, gettext_lazy("The rule is disabled.")


class DeleteRule(RuleAction):
    name, page, route = "delete notification rule", "delete", "<int:pk>/delete/"
    label, title, submit = gettext_lazy("Delete"), gettext_lazy("Delete a rule"), gettext_lazy("Delete the rule")
    text = gettext_lazy("Sent notifications stay in the log; waiting ones are not sent.")
    is_dangerous = True

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        rules.remove_rule(self.rule.pk)
        return ActionOutcome(_("The rule is deleted."), self.pages.url())


class SendAgain(Action):
    """Requests another attempt at an abandoned notification."""

    name, page, route = "send notification again", "again", "deliveries/<uuid:pk>/again/"
    permission = Permission.SETTINGS
    label, title, submit = gettext_lazy("Send again"), gettext_lazy("Send a notification again"), gettext_lazy("Send it again")
    text = gettext_lazy("It goes to the rule's present recipients under the same id, so that a receiver can recognize a duplicate.")

    def find(self, **key: Any) -> None:
        found = NotificationDelivery.objects.using(managed_alias()).select_related("rule").filter(**key)
        delivery = self.delivery = found_or_404(found, _("There is no such notification: old ones are deleted."))
        self.target = f"{delivery.rule_name}: {shown_target(delivery.channel, delivery.target)}"
        self.back_url = self.pages.url("deliveries")
        self.facts = [(_("Notification"), delivery.rule_name), (_("Text"), change_summary(delivery)), (_("Error"), delivery.error)]
        self.crumbs = (Crumb(_("Log of notifications"), self.back_url),)
        if delivery.state != DeliveryState.FAILED:
            self.blocked = _("It has not failed: only failed notifications are sent again.")
        elif delivery.rule is None:
            self.blocked = _("Its rule was deleted, so it no longer has recipients.")
        else:
            self.facts.append((_("Recipients"), target_for(self.request, delivery.rule)))

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        rules.send_again(self.delivery.pk)
        return ActionOutcome(_("A worker sends it again."), self.back_url)


def _rule(pk: int) -> NotificationRule:
    return found_or_404(NotificationRule.objects.using(managed_alias()).filter(pk=pk), _("There is no such rule: it was deleted."))


def _values(data: Mapping[str, Any]) -> rules.RuleValues:
    return rules.RuleValues(**{name: value for name, value in data.items() if name != "secret"})


class WithRecipients(ListAdmin[Any]):
    """A list whose rows have recipients, which may be secret."""

    def exported(self, request: HttpRequest, found: QuerySet[Any]) -> Iterator[Any]:
        for each in super().exported(request, found):
            each.recipients = target_for(request, each)
            yield each


class NotificationAdmin(WithRecipients):
    """The pages of notifications. They need the permission `sqlqueue_app.view_queue`."""

    caption = gettext_lazy("Rules: conditions and recipients")
    nothing = gettext_lazy("There are no rules, so no notifications are sent.")
    instant = "changed_at"
    file_name = "notification-rules"
    file_columns: ClassVar[lists.FileColumns] = {
        "id": "id", "name": "name", "enabled": "enabled", "kind": "kind", "of": "subject", "threshold": "threshold",
        "by": "channel", "to": "recipients", "throttle_seconds": "throttle_seconds", "raised": lambda rule: sorted(rule.raised),
        "notified_at": "notified_at", "changed_by": "changed_by", "changed_at": "changed_at",
    }  # fmt: skip

    action_classes = (MakeRule, EditRule, ReplaceSecret, SendTest, EnableRule, DisableRule, DeleteRule, SendAgain)
    routes: ClassVar = {"rule": "<int:pk>/"}

    def pages(self) -> list[URLPattern]:
        """The list of rules, one rule, the log."""
        return [*super().pages(), self.readonly_view("deliveries/", DeliveryAdmin(self).changelist_view, "deliveries")]

    def action_view(self, route: str, view: Any, name: str) -> URLPattern:
        """An action view whose error reports show no secrets."""
        return super().action_view(route, sensitive_post_parameters("secret", "target")(view), name)

    def columns(self, request: HttpRequest) -> list[TableColumn[NotificationRule]]:
        def of(rule: NotificationRule) -> str:
            return _("Applies to {}").format(rule.subject) if rule.subject else ""

        conditions = rules.present_conditions()
        return [
            TableColumn(_("Rule"), lambda rule: link_html(self.url("rule", rule.pk), rule.name), WIDE),
            TableColumn(_("Condition"), lambda rule: with_notes(notifying.describe_condition(rule), of(rule)), WIDE),
            TableColumn(_("Recipients"), lambda rule: _to(request, rule), WIDE),
            TableColumn(_("State"), lambda rule: with_notes(_state_of_rule(rule, conditions), _raised(rule))),
            TableColumn(_("Last notification"), lambda rule: with_notes(rule.notified_at, _last_result(rule))),
        ]

    def table(self, request: HttpRequest, rows: Iterable[NotificationRule], caption: object = "") -> Any:
        """The table, with the last notification of each rule."""
        found = list(rows)
        last = notifying.last_deliveries(found)
        for rule in found:
            rule.last = last.get(rule.pk)  # type: ignore[attr-defined]
        return super().table(request, found, caption)

    def more(self, request: HttpRequest, rows: Sequence[NotificationRule]) -> dict[str, Any]:
        note = _("Notifications have no links to these pages: set ADMIN_URL to the address of the admin.")
        return {
            "buttons": [MakeRule.button(self, request)],
            "links": [(self.url("deliveries"), _("Log of notifications"))],
            "note": "" if get_settings().admin_url is not None else note,
            "no_sender": bool(rows) and not is_worker_alive(),
        }

    def rule_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One rule, its actions, and its last notifications."""
        rule = _rule(pk)
        newest = NotificationDelivery.objects.using(managed_alias()).filter(rule=pk).order_by("-created_at", "-pk")
        deliveries = list(newest[: _LAST_DELIVERIES + 1])
        turn = DisableRule if rule.enabled else EnableRule
        of_webhook = [ReplaceSecret] if rule.channel == NotificationChannel.WEBHOOK else []
        offered: list[type[RuleAction]] = [EditRule, SendTest, turn, *of_webhook, DeleteRule]
        log = DeliveryAdmin(self)
        caption = _("Last notifications of this rule, newest first")
        return self.page(
            request,
            "notification",
            live_seconds=LIVE_SECONDS,
            crumbs=(Crumb(rule.name),),
            rule=rule,
            state=_state_of_rule(rule, rules.present_conditions()),
            condition=notifying.describe_condition(rule),
            to=_to(request, rule),
            raised=_raised(rule),
            pending=len(rule.pending.get("changes", ())) + rule.pending.get("more", 0),
            delivered_at=newest.filter(state=DeliveryState.SENT).values_list("finished_at", flat=True).first(),
            buttons=[each.button(self, request, pk) for each in offered],
            table=log.table(request, deliveries[:_LAST_DELIVERIES], caption),
            log_url=f"{self.url('deliveries')}?rule={pk}" if len(deliveries) > _LAST_DELIVERIES else "",
            no_sender=not is_worker_alive(),
        )


class DeliveryFilter(lists.ListFilter):
    rule = forms.TypedChoiceField(label=gettext_lazy("Rule"), coerce=int, empty_value=None)
    state = forms.ChoiceField(
        label=gettext_lazy("State"), choices=lists.choices((value, state.word) for value, state in _STATES.items())
    )

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request)
        named = NotificationRule.objects.using(managed_alias()).order_by("name").values_list("pk", "name")[:500]
        self.fields["rule"].choices = lists.choices(((str(key), name) for key, name in named), _("all"))  # type: ignore[attr-defined]

    def apply(self, found: QuerySet[Any]) -> QuerySet[Any]:
        """The rows that match."""
        self.is_valid()
        if (state := self.cleaned_data.get("state")) in (DeliveryState.WAITING, _RETRYING):
            self.cleaned_data["state"] = DeliveryState.WAITING
            found = found.filter(attempts__gt=0) if state == _RETRYING else found.filter(attempts=0)
        return super().apply(found)


class DeliveryAdmin(WithRecipients):
    """The log of notifications, one of the pages of the rules."""

    caption = gettext_lazy("Notifications, newest first")
    nothing = gettext_lazy("No matching notifications.")
    instant = "created_at"
    filter_form = DeliveryFilter
    file_name = "notifications"
    file_columns: ClassVar[lists.FileColumns] = {
        "id": "id", "created_at": "created_at", "rule": "rule_name", "by": "channel", "to": "recipients", "is_test": "is_test",
        "text": change_summary, "state": "state", "attempts": "attempts", "next_attempt_at": "next_attempt_at",
        "finished_at": "finished_at", "error": "error",
    }  # fmt: skip

    def __init__(self, of_rules: NotificationAdmin) -> None:
        super().__init__(NotificationDelivery, of_rules.admin_site)
        # Its URLs, breadcrumbs and menu entry are those of the rules.
        self.of_rules, self.opts = of_rules, of_rules.opts

    def crumbs(self, *more: Crumb) -> tuple[Crumb, ...]:
        """The crumbs below the rules."""
        return super().crumbs(*more, Crumb(_("Log of notifications")))

    def columns(self, request: HttpRequest) -> list[TableColumn[NotificationDelivery]]:
        of = _("%(count)s of %(most)s")

        def rule(each: NotificationDelivery) -> SafeString:
            return link_html("" if each.rule_id is None else self.of_rules.url("rule", each.rule_id), each.rule_name)

        def again(each: NotificationDelivery) -> list[Button]:
            if each.state != DeliveryState.FAILED:
                return []
            reason = "" if each.rule_id is not None else _("The rule was deleted.")
            return [SendAgain.button(self.of_rules, request, each.pk, reason=reason)]

        return [
            TableColumn(_("Time"), lambda each: each.created_at),
            TableColumn(_("Rule"), rule),
            TableColumn(
                _("Text"), lambda each: template_html("news", news=change_summary(each), sentences=sentences_of(each)), WIDE
            ),
            TableColumn(_("Recipients"), lambda each: _to(request, each), WIDE),
            TableColumn(_("State"), _delivery_notes, WIDE),
            TableColumn(_("Attempts"), lambda each: of % {"count": number(each.attempts), "most": number(notifying.MAX_ATTEMPTS)}),
            TableColumn(_("Actions"), again),
        ]

    def more(self, request: HttpRequest, rows: Sequence[NotificationDelivery]) -> dict[str, Any]:
        days = NOTIFICATIONS_KEPT.days
        text = ngettext("Notifications are kept for %(days)s day.", "Notifications are kept for %(days)s days.", days)
        return {"note": f"{text % {'days': days}} {refusal(request, Permission.SETTINGS)}"}


def _delivery_state(delivery: NotificationDelivery) -> State:
    is_retrying = delivery.state == DeliveryState.WAITING and delivery.attempts
    return _STATES[_RETRYING if is_retrying else delivery.state]


def _delivery_notes(delivery: NotificationDelivery) -> SafeString:
    state, following = _delivery_state(delivery), ""
    if state == _STATES[_RETRYING] and delivery.next_attempt_at:
        following = format_html("{} {}", _("next attempt:"), stamp_html(delivery.next_attempt_at))
    return with_notes(state, delivery.finished_at, following, delivery.error)


def _last_result(rule: NotificationRule) -> SafeString | None:
    """The result of the last notification, which may have been refused."""
    last: NotificationDelivery | None = rule.last  # type: ignore[attr-defined]
    return None if last is None else with_notes(_delivery_state(last), _("a test") if last.is_test else "")


def _to(request: HttpRequest, each: NotificationRule | NotificationDelivery) -> str:
    return f"{each.get_channel_display()}: {target_for(request, each)}"


def _raised(rule: NotificationRule) -> str:
    """The first few subjects above the threshold, and the number of others."""
    kind = rule.kind if rule.kind in NotificationKind.values else ""
    return first_names([notifying.name_of(kind, each) for each in sorted(rule.raised)])


def target_for(request: HttpRequest, each: NotificationRule | NotificationDelivery) -> str:
    """The recipient: complete for users who may change it, else without parts that may be secret."""
    is_whole = may(request, Permission.SETTINGS)
    return ", ".join(each.target.split()) if is_whole else shown_target(each.channel, each.target)


def _state_of_rule(rule: NotificationRule, conditions: rules.RuleConditions) -> State:
    if not rule.enabled:
        return State(Grade.INFO, _("disabled"))
    if rule.raised:
        return State(Grade.WARNING, _("raised"))
    return State(Grade.OK, _("enabled")) if conditions.has_data(rule) else State(Grade.WARNING, _("no data"))
