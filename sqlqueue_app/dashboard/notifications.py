"""The pages of notifications: rules, making and changing them, tests, and the log of what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.debug import sensitive_post_parameters

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, button, may, refusal
from sqlqueue_app.dashboard.actions import ActionOutcome, Confirmation, Field, typed_text
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.formats import WORKER_COMMAND, Grade, Stamp, State, number, stamp_of
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, keyset_page
from sqlqueue_app.failures.operations import is_worker_alive
from sqlqueue_app.models import DeliveryState, NotificationChannel, NotificationDelivery, NotificationKind, NotificationRule
from sqlqueue_app.monitoring.notifying import MOST_ATTEMPTS, name_of, news_of, number_in_words, sentences_of, shown_target
from sqlqueue_app.monitoring.rules import (
    DEFAULT_THROTTLE_SECONDS,
    MOST_THROTTLE_SECONDS,
    RuleForm,
    change_rule,
    checked_secret,
    make_rule,
    remove_rule,
    renew_secret,
    request_test,
    send_again,
    set_enabled,
)
from sqlqueue_app.monitoring.webhooks import new_secret
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.status.retention import NOTIFICATIONS_KEPT

COLUMNS: Final = (
    *("id", "name", "enabled", "kind", "of", "threshold", "by", "to", "throttle_seconds", "raised", "notified_at"),
    *("changed_by", "changed_at"),
)
_TEXTS: Final = ("name", "kind", "subject", "threshold", "channel", "target", "throttle_seconds", "secret")
_SHOWN: Final = 500
_LAST_DELIVERIES: Final = 20


class NotificationAdmin(PageAdmin):
    """The pages about notifications, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list of rules, the log, one rule, and what is done with it."""
        hiding = sensitive_post_parameters("secret", "target")
        return [
            self.readonly_view("", self.changelist_view),
            self.action_view("make/", hiding(self.make_view), "make"),
            *log_pages(self),
            self.readonly_view("<int:pk>/", self.rule_view, "rule"),
            self.action_view("<int:pk>/edit/", hiding(self.edit_view), "edit"),
            self.action_view("<int:pk>/secret/", hiding(self.secret_view), "secret"),
            self.action_view("<int:pk>/test/", self.test_view, "test"),
            self.action_view("<int:pk>/enable/", partial(self.enable_view, enabled=True), "enable"),
            self.action_view("<int:pk>/disable/", partial(self.enable_view, enabled=False), "disable"),
            self.action_view("<int:pk>/delete/", self.remove_view, "delete"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Every rule; there are few."""
        alias = managed_alias()
        found = NotificationRule.objects.using(alias).order_by("name")
        if wanted_format(request):
            return export(request, "notification-rules", COLUMNS, _lines(request, found))
        rules = with_last_delivery(found, alias, _SHOWN)
        return self.page(
            request,
            "notifications",
            live_seconds=LIVE_SECONDS,
            rows=[rule_row(self, request, rule, last) for rule, last in rules],
            buttons=[button(request, Permission.SETTINGS, _("Make a rule"), self.url("make"))],
            log_url=self.url("deliveries"),
            has_links=get_settings().admin_url is not None,
            no_worker=bool(rules) and not is_worker_alive(),
            worker_command=WORKER_COMMAND,
            **(extra_context or {}),
        )

    def rule_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """One rule, what is done with it, and its last notifications."""
        rule = _rule(pk)
        if rule is None:
            return self._unknown(request)
        row = rule_row(self, request, rule)
        deliveries = list(LogFilter(rule=pk).queryset()[: _LAST_DELIVERIES + 1])
        return self.page(
            request,
            "notification",
            live_seconds=LIVE_SECONDS,
            title=rule.name,
            crumbs=(Crumb(rule.name),),
            row=row,
            rows=[delivery_row(self, request, each) for each in deliveries[:_LAST_DELIVERIES]],
            buttons=row.buttons,
            refused=refusal(request, Permission.SETTINGS),
            log_url=f"{self.url('deliveries')}?rule={pk}" if len(deliveries) > _LAST_DELIVERIES else "",
            no_worker=not is_worker_alive(),
            worker_command=WORKER_COMMAND,
        )

    def make_view(self, request: HttpRequest) -> HttpResponse:
        """Asks of what and whom, and makes the rule. A secret that was made is on this page and on no other."""
        texts = _typed(request)
        if request.method != "POST":
            texts = {
                **texts,
                "secret": new_secret(),
                "throttle_seconds": texts["throttle_seconds"] or str(DEFAULT_THROTTLE_SECONDS),
            }
        form = RuleForm(texts, get_settings())
        values, secret = form.read(), form.secret(is_required=True)

        def perform() -> ActionOutcome:
            made = make_rule(values, secret, by=actor_of(request).name)
            return ActionOutcome(_("The rule is made."), self.url("rule", made.pk))

        help_of_secret = _("Of a webhook: copy it to the receiver now, it is not shown again. Or put in one that the receiver has.")
        return self._confirm(
            request,
            "make notification rule",
            values.name,
            title=_("Make a rule"),
            text=_("A worker looks at all rules every ten seconds, and tells of what has changed."),
            submit=_("Make the rule"),
            perform=perform,
            fields=_fields(texts, help_of_secret),
            errors=form.problems,
            back_url=self.url(),
        )

    def edit_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Asks for other values. The secret stays unless another is put in."""
        rule = _rule(pk)
        if rule is None:
            return self._unknown(request)
        texts = _typed(request) if request.method == "POST" else _texts_of(rule)
        form = RuleForm(texts, get_settings())
        values, secret = form.read(), form.secret(is_required=not rule.secret)

        def perform() -> ActionOutcome:
            change_rule(pk, values, secret, by=actor_of(request).name)
            return ActionOutcome(_("The rule is changed."), self.url("rule", pk))

        help_of_secret = _("Of a webhook. The secret that there is stays where nothing is put in here.")
        return self._confirm(
            request,
            "change notification rule",
            rule.name,
            title=_("Change a rule"),
            text=_("Where it looks at something else than before, what is over its threshold is told again."),
            submit=_("Change the rule"),
            perform=perform,
            fields=_fields(texts, help_of_secret),
            errors=form.problems,
            rule=rule,
        )

    def secret_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Shows a new secret, and puts it in the place of the one that there is."""
        problems: list[str] = []
        is_post = request.method == "POST"
        text = _typed(request)["secret"] if is_post else new_secret()
        secret = checked_secret(text, problems)
        rule = _rule(pk)
        if rule is None:
            return self._unknown(request)
        is_webhook = rule.channel == NotificationChannel.WEBHOOK

        def perform() -> ActionOutcome:
            renew_secret(pk, secret, by=actor_of(request).name)
            return ActionOutcome(_("Webhooks of the rule are signed with the new secret from now on."), self.url("rule", pk))

        return self._confirm(
            request,
            "replace notification secret",
            rule.name,
            title=_("Replace the secret"),
            text=_("Copy it to the receiver now, it is not shown again. What is sent from now on is signed with it."),
            submit=_("Replace the secret"),
            perform=perform,
            fields=(Field("secret", _("Secret"), text, is_private=True),),
            errors=problems,
            blocked="" if is_webhook else _("The rule sends mail, which is not signed."),
            rule=rule,
        )

    def test_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Asks, then has a worker send a test."""

        def perform() -> ActionOutcome:
            request_test(pk)
            alive = _("A worker sends the test: its result is in the list below within half a minute.")
            dead = _("The test waits in the list below: no worker is alive, and it is sent as soon as one is.")
            return ActionOutcome(alive if is_worker_alive() else dead, self.url("rule", pk))

        text = _("It goes the way of a real notification, also while the rule is disabled, and says that it is a test.")
        words = (_("Send a test"), text, _("Send the test"))
        return self._act(request, pk, "test notification rule", words, perform)

    def enable_view(self, request: HttpRequest, pk: int, *, enabled: bool) -> HttpResponse:
        """Asks, then enables or disables the rule."""

        def perform() -> ActionOutcome:
            set_enabled(pk, enabled, by=actor_of(request).name)
            return ActionOutcome(_("The rule is enabled.") if enabled else _("The rule is disabled."), self.url("rule", pk))

        words = (_("Enable a rule"), _("It begins anew: what is over its threshold now is told."), _("Enable the rule"))
        if not enabled:
            text = _("Nobody is told of anything by it until it is enabled again.")
            words = (_("Disable a rule"), text, _("Disable the rule"))
        action = "enable notification rule" if enabled else "disable notification rule"
        return self._act(request, pk, action, words, perform)

    def remove_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Asks, then deletes the rule."""

        def perform() -> ActionOutcome:
            remove_rule(pk)
            return ActionOutcome(_("The rule is deleted."), self.url())

        text = _("What it has sent stays in the log. What waits to be sent is not sent.")
        words = (_("Delete a rule"), text, _("Delete the rule"))
        return self._act(request, pk, "delete notification rule", words, perform, is_dangerous=True)

    def _act(
        self,
        request: HttpRequest,
        pk: int,
        action: str,
        words: tuple[str, str, str],
        perform: Callable[[], ActionOutcome],
        **more: Any,
    ) -> HttpResponse:
        """Ask, then do something with a rule; `words`: the title, the text and the button."""
        rule = _rule(pk)
        if rule is None:
            return self._unknown(request)
        title, text, submit = words
        facts = (
            (_("When there is"), condition_of(rule)),
            (_("Of"), rule.subject or _("all")),
            (_("To"), target_for(request, rule.channel, rule.target)),
        )
        named: dict[str, Any] = {"title": title, "text": text, "submit": submit, "perform": perform, "facts": facts, "rule": rule}
        return self._confirm(request, action, f"{rule.name}: {shown_target(rule.channel, rule.target)}", **named, **more)

    def _confirm(
        self, request: HttpRequest, action: str, target: str, *, rule: NotificationRule | None = None, **more: Any
    ) -> HttpResponse:
        if rule is not None:
            more["back_url"] = self.url("rule", rule.pk)
            more["crumbs"] = (Crumb(rule.name, more["back_url"]),)
        return Confirmation(action=action, permission=Permission.SETTINGS, target=target, **more).answer(self, request)

    def _unknown(self, request: HttpRequest) -> HttpResponse:
        return self.missing(request, _("Rule not found"), _("There is no such rule: it was deleted."))


def _rule(pk: int) -> NotificationRule | None:
    return NotificationRule.objects.using(managed_alias()).filter(pk=pk).first()


def _typed(request: HttpRequest) -> dict[str, str]:
    return {name: typed_text(request, name) for name in _TEXTS}


def _texts_of(rule: NotificationRule) -> dict[str, str]:
    threshold = "" if rule.threshold is None else f"{rule.threshold:.15g}"
    texts = {name: str(getattr(rule, name)) for name in _TEXTS}
    return {**texts, "threshold": threshold, "secret": "" if rule.secret else new_secret()}


def _fields(texts: dict[str, str], help_of_secret: str) -> tuple[Field, ...]:
    kinds = [(value, capfirst(str(label))) for value, label in NotificationKind.choices]
    channels = [(value, capfirst(str(label))) for value, label in NotificationChannel.choices]
    of = _("A queue, an endpoint or a check by its name; nothing for all.")
    how_much = _("How many are still well, the least number of instances, or seconds. Nothing for new groups and checks.")
    to = _("Addresses of mail, one in a line; or the address of a webhook, which begins with https://.")
    throttle = _("Seconds. What comes in between is put together and told in the next one.")
    return (
        Field("name", _("Name"), texts["name"]),
        Field("kind", _("When there is"), texts["kind"], choices=kinds),
        Field("subject", _("Of"), texts["subject"], is_required=False, help=of),
        Field("threshold", _("Threshold"), texts["threshold"], is_required=False, help=how_much),
        Field("channel", _("By"), texts["channel"], choices=channels),
        Field("target", _("To"), texts["target"], kind="textarea", rows=3, help=to),
        Field(
            "throttle_seconds",
            _("At most one in"),
            texts["throttle_seconds"],
            kind="number",
            minimum=0,
            maximum=MOST_THROTTLE_SECONDS,
            help=throttle,
        ),
        Field("secret", _("Secret"), texts["secret"], is_required=False, help=help_of_secret, is_private=True),
    )


def _lines(request: HttpRequest, found: QuerySet[NotificationRule]) -> Iterator[tuple[object, ...]]:
    for each in found.iterator(chunk_size=1_000):
        to = target_for(request, each.channel, each.target)
        columns = (each.pk, each.name, each.enabled, each.kind, each.subject, each.threshold, each.channel, to)
        yield *columns, each.throttle_seconds, sorted(each.raised), each.notified_at, each.changed_by, each.changed_at


# --- Log --------------------------------------------------------------------------------------------------------------

PAGE_SIZE: Final = 50
LOG_COLUMNS: Final = (
    "id",
    "created_at",
    "rule",
    "by",
    "to",
    "is_test",
    "text",
    "state",
    "attempts",
    "next_attempt_at",
    "finished_at",
    "error",
)


@dataclass(frozen=True, slots=True)
class LogFilter:
    """What the query string asks for."""

    rule: int | None = None
    state: str = ""

    @classmethod
    def read(cls, request: HttpRequest) -> LogFilter:
        """The filter of a query string; what cannot be read is not looked at."""
        rule, state = request.GET.get("rule", ""), request.GET.get("state", "")
        is_number = rule.isascii() and rule.isdigit() and len(rule) < 19
        return cls(int(rule) if is_number else None, state if state in DeliveryState.values else "")

    def queryset(self) -> QuerySet[NotificationDelivery]:
        """The notifications, the newest first."""
        found = NotificationDelivery.objects.using(managed_alias()).order_by("-created_at", "-pk")
        if self.rule is not None:
            found = found.filter(rule=self.rule)
        return found.filter(state=self.state) if self.state else found


def log_pages(pages: PageAdmin) -> list[URLPattern]:
    """The log, and sending one of it again."""
    return [
        pages.readonly_view("deliveries/", partial(_log, pages), "deliveries"),
        pages.action_view("deliveries/<uuid:pk>/again/", partial(_again, pages), "again"),
    ]


def _log(pages: PageAdmin, request: HttpRequest) -> HttpResponseBase:
    filters = LogFilter.read(request)
    found = filters.queryset()
    if wanted_format(request):
        return export(request, "notifications", LOG_COLUMNS, _log_lines(request, found))
    alias = managed_alias()
    keyset = keyset_page(request, found, "created_at", size=PAGE_SIZE)
    rules = NotificationRule.objects.using(alias).order_by("name").values_list("pk", "name")[:500]
    title = _("Log of notifications")
    return pages.page(
        request,
        "notification_log",
        live_seconds=LIVE_SECONDS if keyset.is_first else None,
        title=title,
        crumbs=(Crumb(title),),
        rows=[delivery_row(pages, request, each) for each in keyset.rows],
        refused=refusal(request, Permission.SETTINGS),
        filters=filters,
        rules=[("", _("all")), *((str(key), name) for key, name in rules)],
        chosen_rule="" if filters.rule is None else str(filters.rule),
        states=[("", _("any")), *((value, str(label)) for value, label in DeliveryState.choices)],
        kept_days=NOTIFICATIONS_KEPT.days,
        **keyset.links(),
    )


def _again(pages: PageAdmin, request: HttpRequest, pk: UUID) -> HttpResponse:
    """Asks, then has a worker try again what was given up."""
    found = NotificationDelivery.objects.using(managed_alias()).select_related("rule")
    delivery = found.filter(pk=pk).first()
    if delivery is None:
        return pages.missing(
            request, _("Notification not found"), _("There is no such notification: it may have been too old to be kept.")
        )
    rule = delivery.rule
    back_url = pages.url("deliveries")

    def perform() -> ActionOutcome:
        send_again(pk)
        return ActionOutcome(_("A worker tries again to send it."), back_url)

    blocked = ""
    if delivery.state != DeliveryState.FAILED:
        blocked = _("It was not given up: only what was is sent again.")
    elif rule is None:
        blocked = _("Its rule was deleted: there is nobody to send it to.")
    facts = [(_("Notification"), delivery.rule_name), (_("What"), news_of(delivery)), (_("Error"), delivery.error)]
    if rule is not None:
        facts.append((_("To"), target_for(request, rule.channel, rule.target)))
    return Confirmation(
        action="send notification again",
        permission=Permission.SETTINGS,
        target=f"{delivery.rule_name}: {shown_target(delivery.channel, delivery.target)}",
        title=_("Send a notification again"),
        text=_("It goes to where the rule sends now, under the same id as before, so that a receiver can tell that it has had it."),
        submit=_("Send it again"),
        perform=perform,
        back_url=back_url,
        facts=facts,
        blocked=blocked,
        crumbs=(Crumb(_("Log of notifications"), back_url),),
    ).answer(pages, request)


def _log_lines(request: HttpRequest, found: QuerySet[NotificationDelivery]) -> Iterator[tuple[object, ...]]:
    for each in found.iterator(chunk_size=1_000):
        to = target_for(request, each.channel, each.target)
        columns = (each.pk, each.created_at, each.rule_name, each.channel, to, each.is_test, news_of(each), each.state)
        yield *columns, each.attempts, each.next_attempt_at, each.finished_at, each.error


# --- Rows -------------------------------------------------------------------------------------------------------------

_SUBJECTS_SHOWN: Final = 5
_STATES: Final = {
    DeliveryState.WAITING: (Grade.INFO, gettext_lazy("waiting")),
    DeliveryState.SENT: (Grade.OK, gettext_lazy("sent")),
    DeliveryState.FAILED: (Grade.ERROR, gettext_lazy("failed")),
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
    actions = [("edit", _("Change")), ("test", _("Send a test")), turn]
    if rule.channel == NotificationChannel.WEBHOOK:
        actions.append(("secret", _("Replace the secret")))
    found = [button(request, Permission.SETTINGS, label, pages.url(name, rule.pk)) for name, label in actions]
    return [*found, button(request, Permission.SETTINGS, _("Delete"), pages.url("delete", rule.pk), dangerous=True)]


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
    return ", ".join(target.split()) if may(request, Permission.SETTINGS) else shown_target(channel, target)


def delivery_row(pages: PageAdmin, request: HttpRequest, delivery: NotificationDelivery) -> DeliveryRow:
    """A notification as this user may see it."""
    level, word = _STATES.get(DeliveryState(delivery.state), (Grade.INFO, delivery.state))
    is_waiting, is_failed = delivery.state == DeliveryState.WAITING, delivery.state == DeliveryState.FAILED
    if is_waiting and delivery.attempts:
        level, word = Grade.WARNING, _("is tried again")
    reason = "" if delivery.rule_id is not None else _("The rule was deleted.")
    again = button(request, Permission.SETTINGS, _("Send again"), pages.url("again", delivery.pk), reason=reason)
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
        return State(Grade.INFO, _("disabled"))
    return State(Grade.WARNING, _("raised")) if rule.raised else State(Grade.OK, _("enabled"))


def _channel(channel: str) -> str:
    return str(NotificationChannel(channel).label) if channel in NotificationChannel.values else channel


def _some(names: Iterable[str]) -> str:
    """The first few of the names, and how many more there are."""
    found = list(names)
    text = ", ".join(found[:_SUBJECTS_SHOWN])
    left = len(found) - _SUBJECTS_SHOWN
    return text if left <= 0 else _("%(names)s and %(count)s more") % {"names": text, "count": number(left)}
