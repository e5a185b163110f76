"""The pages of notifications: rules, creating and changing them, tests, and the log of what was sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.debug import sensitive_post_parameters

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, may, refusal
from sqlqueue_app.dashboard.actions import PLAIN_INPUT, Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, State, number, stamp_html
from sqlqueue_app.dashboard.lists import (
    WIDE,
    FileColumns,
    ListAdmin,
    ListFilter,
    TableColumn,
    choices,
    link_html,
    text_html,
    with_notes,
)
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import Crumb, found_or_404
from sqlqueue_app.failures.operations import is_worker_alive
from sqlqueue_app.models import DeliveryState, NotificationChannel, NotificationDelivery, NotificationKind, NotificationRule
from sqlqueue_app.monitoring.notifying import MOST_ATTEMPTS, name_of, news_of, number_in_words, sentences_of, shown_target
from sqlqueue_app.monitoring.rules import (
    DEFAULT_THROTTLE_SECONDS,
    LONGEST_NAME,
    MOST_THROTTLE_SECONDS,
    THRESHOLDS,
    RuleValues,
    change_rule,
    make_rule,
    remove_rule,
    renew_secret,
    request_test,
    send_again,
    set_enabled,
)
from sqlqueue_app.monitoring.webhooks import (
    LEAST_SECRET_BYTES,
    MOST_SECRET_BYTES,
    UrlFault,
    host_is_allowed,
    key_of,
    new_secret,
    url_fault,
)
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.status.retention import NOTIFICATIONS_KEPT

# --- Forms ------------------------------------------------------------------------------------------------------------

MOST_ADDRESSES: Final = 20
_FAULTS: Final = {
    UrlFault.UNREADABLE: gettext_lazy("This is not a URL such as https://hooks.example.com/sqlqueue."),
    UrlFault.NO_WEB_ADDRESS: gettext_lazy("A webhook URL begins with https:// or http:// and a host."),
    UrlFault.HAS_USER: gettext_lazy("A webhook URL must not contain a user name and password."),
    UrlFault.TOO_LONG: gettext_lazy("A webhook URL has at most 2,000 characters."),
    UrlFault.NOT_PLAIN: gettext_lazy("Write characters that are not ASCII, and spaces, percent-encoded."),
}
_SEPARATORS: Final = re.compile(r"[\s,;]+")


def _one_line(text: str) -> None:
    if not text.isprintable():
        raise ValidationError(_("Expected one line of printable characters."))


class SecretField(forms.CharField):
    """The secret of a webhook; no error shows it."""

    widget = forms.TextInput(PLAIN_INPUT)

    def clean(self, value: Any) -> str:
        """The secret; empty if it is not required."""
        text = super().clean(value)
        try:
            if text:
                key_of(text)
        except ValueError:
            words = {"least": LEAST_SECRET_BYTES, "most": MOST_SECRET_BYTES}
            text = _("Expected “whsec_” and the base64 of %(least)s to %(most)s bytes.") % words
            raise ValidationError(text) from None
        return str(text)


class SecretForm(forms.Form):
    """A secret."""

    secret = SecretField(label=gettext_lazy("Secret"))


class RuleForm(forms.Form):
    """A rule. `has_secret`: one is stored, so that the field may stay empty."""

    has_secret = False

    name = forms.CharField(label=gettext_lazy("Name"), max_length=LONGEST_NAME, validators=[_one_line])
    kind = forms.ChoiceField(
        label=gettext_lazy("Condition"), choices=[(value, capfirst(label)) for value, label in NotificationKind.choices]
    )
    subject = forms.CharField(
        label=gettext_lazy("Applies to"), max_length=400, required=False, validators=[_one_line],
        help_text=gettext_lazy("The name of a queue, an endpoint or a check; empty for all."),
    )  # fmt: skip
    threshold = forms.FloatField(
        label=gettext_lazy("Alert above"), required=False,
        help_text=gettext_lazy("A number of messages or seconds, or the least number of instances. Empty for groups and checks."),
    )  # fmt: skip
    channel = forms.ChoiceField(
        label=gettext_lazy("Channel"), choices=[(value, capfirst(label)) for value, label in NotificationChannel.choices]
    )
    target = forms.CharField(
        label=gettext_lazy("Recipients"), widget=forms.Textarea({"rows": 3}),
        help_text=gettext_lazy("Email addresses, one per line; or the URL of a webhook, which begins with https://."),
    )  # fmt: skip
    throttle_seconds = forms.IntegerField(
        label=gettext_lazy("Minimum interval (s)"), min_value=0, max_value=MOST_THROTTLE_SECONDS,
        initial=DEFAULT_THROTTLE_SECONDS,
        help_text=gettext_lazy("Changes within the interval are collected into the next notification."),
    )  # fmt: skip
    secret = SecretField(label=gettext_lazy("Secret"), required=False)

    def clean(self) -> dict[str, Any]:
        """The values; what fits a kind or a channel is checked here."""
        values = self.cleaned_data
        if "kind" in values and "threshold" in values:
            values["threshold"] = self._threshold(values["kind"], values["threshold"])
        is_webhook = values.get("channel") == NotificationChannel.WEBHOOK
        if "channel" in values and "target" in values:
            values["target"] = self._url(values["target"]) if is_webhook else self._addresses(values["target"])
        if not is_webhook:
            values["secret"] = ""
            self.errors.pop("secret", None)
        elif not values.get("secret") and not self.has_secret and "secret" not in self.errors:
            self.add_error("secret", _("A webhook needs a secret, which signs what is sent."))
        return values

    def _threshold(self, kind: str, value: float | None) -> float | None:
        takes = THRESHOLDS.get(NotificationKind(kind))
        if takes is None or (value is None and not takes.is_required):
            return None  # of some kinds there is nothing to count
        if value is None or not takes.least <= value <= takes.most or (takes.is_whole and value % 1):
            self.add_error("threshold", _("Expected %(expected)s.") % {"expected": takes.words})
        return value

    def _addresses(self, text: str) -> str:
        found = list(dict.fromkeys(each for each in _SEPARATORS.split(text) if each))
        if not 0 < len(found) <= MOST_ADDRESSES:
            self.add_error("target", _("Expected 1 to %(count)s email addresses, one per line.") % {"count": MOST_ADDRESSES})
        for each in found:
            try:
                validate_email(each)
            except ValidationError:
                error = _("“%(text)s” is not an email address such as ops@example.com.")
                self.add_error("target", error % {"text": Truncator(each).chars(200)})
        return "\n".join(found)

    def _url(self, text: str) -> str:
        fault = url_fault(text)
        hosts = get_settings().webhook_hosts
        if fault is not None:
            self.add_error("target", str(_FAULTS[fault]))
        elif not host_is_allowed(text, hosts):
            error = _("The setting WEBHOOK_HOSTS does not allow this host, only: %(hosts)s.")
            self.add_error("target", error % {"hosts": ", ".join(hosts or ()) or "–"})
        return text


# --- Actions ----------------------------------------------------------------------------------------------------------


class RuleAction(Action):
    """An action on a rule."""

    permission = Permission.SETTINGS
    rule: NotificationRule

    def find(self, **key: Any) -> None:
        found = _rule(key["pk"])
        self.rule, self.target = found, f"{found.name}: {shown_target(found.channel, found.target)}"
        self.back_url = self.pages.url("rule", found.pk)
        self.facts = (
            (_("Condition"), condition_of(found)),
            (_("Applies to"), found.subject or _("all")),
            (_("Recipients"), target_for(self.request, found.channel, found.target)),
        )
        self.crumbs = (Crumb(found.name, self.back_url),)


class MakeRule(RuleAction):
    """Creates a rule. A generated secret is on this page and on no other."""

    name, page, route = "make notification rule", "make", "make/"
    label, submit = gettext_lazy("Create a rule"), gettext_lazy("Create the rule")
    text = gettext_lazy("A worker evaluates all rules every ten seconds, and notifies of changes.")
    form_class = RuleForm

    def find(self, **key: Any) -> None:
        self.target, self.back_url = self.request.POST.get("name", ""), self.pages.url()

    def make_form(self) -> forms.Form:
        form = super().make_form()
        form.initial["secret"] = new_secret()
        form.fields["secret"].help_text = _(
            "For a webhook: copy it to the receiver now, it is not shown again. Or enter the one that the receiver has."
        )
        return form

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        made = make_rule(_values(data), data["secret"], by=actor_of(self.request).name)
        return ActionOutcome(_("The rule is created."), self.pages.url("rule", made.pk))


class EditRule(RuleAction):
    """Changes a rule. Its secret stays unless another is entered."""

    name, page, route = "change notification rule", "edit", "<int:pk>/edit/"
    label, title, submit = gettext_lazy("Change"), gettext_lazy("Change a rule"), gettext_lazy("Change the rule")
    text = gettext_lazy("If its condition changes, the rule starts over, and notifies again of what is above its threshold.")
    form_class = RuleForm

    def find(self, **key: Any) -> None:
        super().find(**key)
        threshold = "" if self.rule.threshold is None else f"{self.rule.threshold:.15g}"
        shown = {name: getattr(self.rule, name) for name in ("name", "kind", "subject", "channel", "target", "throttle_seconds")}
        self.initial, self.facts = {**shown, "threshold": threshold}, ()
        self.target = self.rule.name

    def make_form(self) -> forms.Form:
        form = super().make_form()
        form.has_secret = bool(self.rule.secret)  # type: ignore[attr-defined]
        form.initial["secret"] = "" if self.rule.secret else new_secret()
        form.fields["secret"].help_text = _("For a webhook. Empty keeps the present secret.")
        return form

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        change_rule(self.rule.pk, _values(data), data["secret"], by=actor_of(self.request).name)
        return ActionOutcome(_("The rule is changed."), self.back_url)


class ReplaceSecret(RuleAction):
    """Shows a new secret, which replaces the present one."""

    name, page, route = "replace notification secret", "secret", "<int:pk>/secret/"
    label = gettext_lazy("Replace the secret")
    text = gettext_lazy("Copy it to the receiver now, it is not shown again. Whatever is sent from now on is signed with it.")
    form_class = SecretForm

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.target, self.facts = self.rule.name, ()
        if self.rule.channel != NotificationChannel.WEBHOOK:
            self.blocked = _("The rule sends mail, which is not signed.")

    def make_form(self) -> forms.Form:
        form = super().make_form()
        form.initial["secret"] = new_secret()
        return form

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        renew_secret(self.rule.pk, data["secret"], by=actor_of(self.request).name)
        return ActionOutcome(_("Webhooks of the rule are signed with the new secret from now on."), self.back_url)


class SendTest(RuleAction):
    """Has a worker send a test."""

    name, page, route = "test notification rule", "test", "<int:pk>/test/"
    label, submit = gettext_lazy("Send a test"), gettext_lazy("Send the test")
    text = gettext_lazy("It is sent like a real notification, even if the rule is disabled, and is marked as a test.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        request_test(self.rule.pk)
        alive = _("A worker sends the test: its result is in the list below within half a minute.")
        dead = _("The test waits in the list below: no worker is alive, and the first one that starts sends it.")
        return ActionOutcome(alive if is_worker_alive() else dead, self.back_url)


class EnableRule(RuleAction):
    """Enables a rule."""

    name, page, route = "enable notification rule", "enable", "<int:pk>/enable/"
    label, title, submit = gettext_lazy("Enable"), gettext_lazy("Enable a rule"), gettext_lazy("Enable the rule")
    text = gettext_lazy("It starts over: it notifies of everything that is above its threshold now.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        set_enabled(self.rule.pk, True, by=actor_of(self.request).name)
        return ActionOutcome(_("The rule is enabled."), self.back_url)


class DisableRule(RuleAction):
    """Disables a rule."""

    name, page, route = "disable notification rule", "disable", "<int:pk>/disable/"
    label, title, submit = gettext_lazy("Disable"), gettext_lazy("Disable a rule"), gettext_lazy("Disable the rule")
    text = gettext_lazy("It sends no notifications until it is enabled again.")

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        set_enabled(self.rule.pk, False, by=actor_of(self.request).name)
        return ActionOutcome(_("The rule is disabled."), self.back_url)


class DeleteRule(RuleAction):
    """Deletes a rule."""

    name, page, route = "delete notification rule", "delete", "<int:pk>/delete/"
    label, title, submit = gettext_lazy("Delete"), gettext_lazy("Delete a rule"), gettext_lazy("Delete the rule")
    text = gettext_lazy("What it has sent stays in the log. Notifications that still wait are not sent.")
    is_dangerous = True

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        remove_rule(self.rule.pk)
        return ActionOutcome(_("The rule is deleted."), self.pages.url())


class SendAgain(Action):
    """Has a worker try a notification again that was given up."""

    name, page, route = "send notification again", "again", "deliveries/<uuid:pk>/again/"
    permission = Permission.SETTINGS
    label, title, submit = gettext_lazy("Send again"), gettext_lazy("Send a notification again"), gettext_lazy("Send it again")
    text = gettext_lazy("It goes to the rule's present recipients under the same id, so that a receiver can recognize a duplicate.")

    def find(self, **key: Any) -> None:
        found = NotificationDelivery.objects.using(managed_alias()).select_related("rule").filter(**key)
        delivery = found_or_404(found, _("There is no such notification: old ones are deleted."))
        self.delivery, rule = delivery, delivery.rule
        self.target = f"{delivery.rule_name}: {shown_target(delivery.channel, delivery.target)}"
        self.back_url = self.pages.url("deliveries")
        self.facts = [(_("Notification"), delivery.rule_name), (_("Text"), news_of(delivery)), (_("Error"), delivery.error)]
        self.crumbs = (Crumb(_("Log of notifications"), self.back_url),)
        if delivery.state != DeliveryState.FAILED:
            self.blocked = _("It has not failed: only failed notifications are sent again.")
        elif rule is None:
            self.blocked = _("Its rule was deleted: it has no recipients any more.")
        else:
            self.facts.append((_("Recipients"), target_for(self.request, rule.channel, rule.target)))

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        send_again(self.delivery.pk)
        return ActionOutcome(_("A worker sends it again."), self.back_url)


def _rule(pk: int) -> NotificationRule:
    return found_or_404(NotificationRule.objects.using(managed_alias()).filter(pk=pk), _("There is no such rule: it was deleted."))


def _values(data: Mapping[str, Any]) -> RuleValues:
    return RuleValues(**{name: value for name, value in data.items() if name != "secret"})


# --- Pages ------------------------------------------------------------------------------------------------------------

_LAST_DELIVERIES: Final = 20


class WithRecipients(ListAdmin[Any]):
    """A list whose rows have recipients, which may be secret."""

    def exported(self, request: HttpRequest, found: QuerySet[Any]) -> Iterator[Any]:
        for each in super().exported(request, found):
            each.recipients = target_for(request, each.channel, each.target)
            yield each


class NotificationAdmin(WithRecipients):
    """The pages of notifications. They need the permission `sqlqueue_app.view_queue`."""

    caption = gettext_lazy("Rules: which conditions notify whom")
    nothing = gettext_lazy("There are no rules, so no notifications are sent.")
    instant = "changed_at"
    file_name = "notification-rules"
    file_columns: ClassVar[FileColumns] = {
        "id": "id", "name": "name", "enabled": "enabled", "kind": "kind", "of": "subject", "threshold": "threshold",
        "by": "channel", "to": "recipients", "throttle_seconds": "throttle_seconds", "raised": lambda rule: sorted(rule.raised),
        "notified_at": "notified_at", "changed_by": "changed_by", "changed_at": "changed_at",
    }  # fmt: skip

    action_classes = (MakeRule, EditRule, ReplaceSecret, SendTest, EnableRule, DisableRule, DeleteRule, SendAgain)

    def pages(self) -> list[URLPattern]:
        """The list of rules, the log, one rule."""
        return [
            *super().pages(),
            self.readonly_view("deliveries/", DeliveryAdmin(self).changelist_view, "deliveries"),
            self.readonly_view("<int:pk>/", self.rule_view, "rule"),
        ]

    def action_view(self, route: str, view: Any, name: str) -> URLPattern:
        """As for all pages; error reports show no secrets."""
        return super().action_view(route, sensitive_post_parameters("secret", "target")(view), name)

    def columns(self, request: HttpRequest) -> list[TableColumn[NotificationRule]]:
        def of(rule: NotificationRule) -> SafeString:
            return format_html(_("Applies to {}"), text_html(rule.subject)) if rule.subject else SafeString("")

        return [
            TableColumn(_("Rule"), lambda rule: link_html(self.url("rule", rule.pk), rule.name), WIDE),
            TableColumn(_("Condition"), lambda rule: with_notes(condition_of(rule), of(rule)), WIDE),
            TableColumn(_("Recipients"), lambda rule: _to(request, rule), WIDE),
            TableColumn(_("State"), lambda rule: with_notes(_state_of_rule(rule), _raised(rule))),
            TableColumn(_("Last notification"), lambda rule: with_notes(rule.notified_at, _last_result(rule))),
        ]

    def table(self, request: HttpRequest, rows: Iterable[NotificationRule], caption: object = "") -> Any:
        """With the last notification of each rule; two statements."""
        rules = list(rows)
        deliveries = NotificationDelivery.objects.using(managed_alias())
        newest = deliveries.filter(rule=OuterRef("pk")).order_by("-created_at", "-pk").values("pk")[:1]
        wanted = NotificationRule.objects.using(managed_alias()).filter(pk__in=[rule.pk for rule in rules])
        last = deliveries.filter(pk__in=[key for key in wanted.values_list(Subquery(newest), flat=True) if key])
        by_rule = {each.rule_id: each for each in last}
        for rule in rules:
            rule.last = by_rule.get(rule.pk)  # type: ignore[attr-defined]
        return super().table(request, rules, caption)

    def more(self, request: HttpRequest, rows: Sequence[NotificationRule]) -> dict[str, Any]:
        note = _("Notifications have no links to these pages: the setting ADMIN_URL does not say where the admin is.")
        return {
            "buttons": [MakeRule.button(self, request)],
            "links": [(self.url("deliveries"), _("Log of notifications"))],
            "note": "" if get_settings().admin_url is not None else note,
            **no_sender(any_rules=bool(rows)),
        }

    def rule_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One rule, its actions, and its last notifications."""
        rule = _rule(pk)
        newest = NotificationDelivery.objects.using(managed_alias()).filter(rule=pk).order_by("-created_at", "-pk")
        deliveries = list(newest[: _LAST_DELIVERIES + 1])
        log, caption = DeliveryAdmin(self), _("Last notifications of this rule, newest first")
        waiting = number(len(rule.pending.get("changes", ())) + rule.pending.get("more", 0)) if rule.pending else ""
        return self.page(
            request,
            "notification",
            live_seconds=LIVE_SECONDS,
            title=rule.name,
            crumbs=(Crumb(rule.name),),
            rule=rule,
            state=_state_of_rule(rule),
            condition=condition_of(rule),
            to=_to(request, rule),
            raised=_raised(rule),
            pending=waiting,
            delivered_at=newest.filter(state=DeliveryState.SENT).values_list("finished_at", flat=True).first(),
            buttons=self._buttons(request, rule),
            table=log.table(request, deliveries[:_LAST_DELIVERIES], caption) if deliveries else None,
            log_url=f"{self.url('deliveries')}?rule={pk}" if len(deliveries) > _LAST_DELIVERIES else "",
            **no_sender(any_rules=True),
        )

    def _buttons(self, request: HttpRequest, rule: NotificationRule) -> list[Button]:
        turn: type[RuleAction] = DisableRule if rule.enabled else EnableRule
        offered: list[type[RuleAction]] = [EditRule, SendTest, turn]
        if rule.channel == NotificationChannel.WEBHOOK:
            offered.append(ReplaceSecret)
        offered.append(DeleteRule)
        return [each.button(self, request, rule.pk) for each in offered]


class DeliveryFilter(ListFilter):
    """The filter of the log."""

    rule = forms.TypedChoiceField(label=gettext_lazy("Rule"), coerce=int, empty_value=None)
    state = forms.ChoiceField(label=gettext_lazy("State"), choices=choices(DeliveryState.choices))

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request)
        rules = NotificationRule.objects.using(managed_alias()).order_by("name").values_list("pk", "name")[:500]
        self.fields["rule"].choices = choices(((str(key), name) for key, name in rules), _("all"))  # type: ignore[attr-defined]


class DeliveryAdmin(WithRecipients):
    """The log of notifications, one of the pages of the rules."""

    caption = gettext_lazy("Notifications, newest first")
    nothing = gettext_lazy("No matching notifications.")
    instant = "created_at"
    filter_form = DeliveryFilter
    file_name = "notifications"
    file_columns: ClassVar[FileColumns] = {
        "id": "id", "created_at": "created_at", "rule": "rule_name", "by": "channel", "to": "recipients", "is_test": "is_test",
        "text": news_of, "state": "state", "attempts": "attempts", "next_attempt_at": "next_attempt_at",
        "finished_at": "finished_at", "error": "error",
    }  # fmt: skip

    def __init__(self, rules: NotificationAdmin) -> None:
        super().__init__(NotificationDelivery, rules.admin_site)
        # Its addresses, breadcrumbs and menu entry are those of the rules.
        self.rules, self.opts = rules, rules.opts

    def crumbs(self, *more: Crumb) -> tuple[Crumb, ...]:
        """Below the rules."""
        return super().crumbs(*more, Crumb(_("Log of notifications")))

    def columns(self, request: HttpRequest) -> list[TableColumn[NotificationDelivery]]:
        of = _("%(count)s of %(most)s")

        def rule(each: NotificationDelivery) -> SafeString:
            return link_html("" if each.rule_id is None else self.rules.url("rule", each.rule_id), each.rule_name)

        def again(each: NotificationDelivery) -> list[Button]:
            if each.state != DeliveryState.FAILED:
                return []
            reason = "" if each.rule_id is not None else _("The rule was deleted.")
            return [SendAgain.button(self.rules, request, each.pk, reason=reason)]

        return [
            TableColumn(_("Time"), lambda each: each.created_at),
            TableColumn(_("Rule"), rule),
            TableColumn(_("Text"), _text, WIDE),
            TableColumn(_("Recipients"), lambda each: _to(request, each), WIDE),
            TableColumn(_("State"), _delivery_notes, WIDE),
            TableColumn(_("Attempts"), lambda each: of % {"count": number(each.attempts), "most": number(MOST_ATTEMPTS)}),
            TableColumn(_("Actions"), again),
        ]

    def more(self, request: HttpRequest, rows: Sequence[NotificationDelivery]) -> dict[str, Any]:
        days = NOTIFICATIONS_KEPT.days
        text = ngettext("Notifications are kept for %(days)s day.", "Notifications are kept for %(days)s days.", days)
        return {"note": f"{text % {'days': days}} {refusal(request, Permission.SETTINGS)}"}


def no_sender(*, any_rules: bool) -> dict[str, Any]:
    """Template variables: whether rules wait for a worker."""
    return {"no_sender": any_rules and not is_worker_alive()}


# --- Cells ------------------------------------------------------------------------------------------------------------

_SUBJECTS_SHOWN: Final = 5


def delivery_state(delivery: NotificationDelivery) -> State:
    """The state of a notification."""
    if delivery.state == DeliveryState.WAITING and delivery.attempts:
        return State(Grade.WARNING, _("retrying"))
    if delivery.state == DeliveryState.SENT:
        return State(Grade.OK, _("delivered"))
    return State(Grade.ERROR if delivery.state == DeliveryState.FAILED else Grade.INFO, delivery.get_state_display())


def _delivery_notes(delivery: NotificationDelivery) -> SafeString:
    finished = stamp_html(delivery.finished_at) if delivery.finished_at else ""
    following = ""
    if delivery.state == DeliveryState.WAITING and delivery.attempts and delivery.next_attempt_at:
        following = format_html("{} {}", _("next attempt:"), stamp_html(delivery.next_attempt_at))
    return with_notes(delivery_state(delivery), finished, following, delivery.error)


def _text(delivery: NotificationDelivery) -> SafeString:
    """What it says; several changes fold out."""
    news, sentences = news_of(delivery), sentences_of(delivery)
    if len(sentences) < 2:
        return text_html(Truncator(news).chars(300))
    items = format_html_join("", "<li>{}</li>", ((text_html(each),) for each in sentences))
    return format_html('<details><summary>{}</summary><ul class="sq-plain">{}</ul></details>', news, items)


def _last_result(rule: NotificationRule) -> SafeString | None:
    """Whether the last one was delivered: it may have been refused."""
    last: NotificationDelivery | None = rule.last  # type: ignore[attr-defined]
    return None if last is None else with_notes(delivery_state(last), _("a test") if last.is_test else "")


def _to(request: HttpRequest, each: NotificationRule | NotificationDelivery) -> SafeString:
    return format_html("{}: {}", each.get_channel_display(), text_html(target_for(request, each.channel, each.target)))


def _raised(rule: NotificationRule) -> str:
    """The first few of what is above the threshold, and how many more there are."""
    names = [name_of(rule.kind if rule.kind in NotificationKind.values else "", each) for each in sorted(rule.raised)]
    text, left = ", ".join(names[:_SUBJECTS_SHOWN]), len(names) - _SUBJECTS_SHOWN
    return text if left <= 0 else _("%(names)s and %(count)s more") % {"names": text, "count": number(left)}


def condition_of(rule: NotificationRule) -> str:
    """When the rule tells, in words."""
    label = rule.get_kind_display()
    if rule.threshold is not None:
        unit = _("%(n)s s") if rule.kind == NotificationKind.QUEUE_OLDER else "%(n)s"
        return f"{label} {unit % {'n': number_in_words(rule.threshold)}}"
    if rule.kind == NotificationKind.INSTANCES_BELOW:
        return label + " " + _("the minimum of the endpoint")
    return label


def target_for(request: HttpRequest, channel: str, target: str) -> str:
    """Where it goes: whole for those who may change it, else without what may be a secret."""
    return ", ".join(target.split()) if may(request, Permission.SETTINGS) else shown_target(channel, target)


def _state_of_rule(rule: NotificationRule) -> State:
    if not rule.enabled:
        return State(Grade.INFO, _("disabled"))
    return State(Grade.WARNING, _("raised")) if rule.raised else State(Grade.OK, _("enabled"))
