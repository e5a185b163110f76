"""The pages of notifications in the admin: rules, making and changing them, tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.views.decorators.debug import sensitive_post_parameters

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Power, actor_of, button, refusal
from sqlqueue_app.dashboard.confirming import Confirmation, Done, Field, confirm
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.notification_log import LogFilter, log_pages
from sqlqueue_app.dashboard.notification_rows import condition_of, delivery_row, rule_row, target_for, with_last_delivery
from sqlqueue_app.dashboard.operation_admin import WORKER_COMMAND
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import NotificationChannel, NotificationKind, NotificationRule
from sqlqueue_app.operations.bulk.requesting import is_worker_alive
from sqlqueue_app.operations.notifications.rule_form import (
    DEFAULT_THROTTLE_SECONDS,
    MOST_THROTTLE_SECONDS,
    RuleForm,
    checked_secret,
)
from sqlqueue_app.operations.notifications.rules import (
    change_rule,
    make_rule,
    remove_rule,
    renew_secret,
    request_test,
    set_enabled,
)
from sqlqueue_app.operations.notifications.sending import shown_target
from sqlqueue_app.operations.notifications.webhooks import new_secret

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
            self.looks("", self.changelist_view),
            self.acts("make/", hiding(self.make_view), "make"),
            *log_pages(self),
            self.looks("<int:pk>/", self.rule_view, "rule"),
            self.acts("<int:pk>/edit/", hiding(self.edit_view), "edit"),
            self.acts("<int:pk>/secret/", hiding(self.secret_view), "secret"),
            self.acts("<int:pk>/test/", self.test_view, "test"),
            self.acts("<int:pk>/enable/", self.enable_view, "enable"),
            self.acts("<int:pk>/disable/", self.disable_view, "disable"),
            self.acts("<int:pk>/delete/", self.remove_view, "delete"),
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
            title=capfirst(str(NotificationRule._meta.verbose_name_plural)),
            rows=[rule_row(self, request, rule, last) for rule, last in rules],
            buttons=[button(request, Power.SETTINGS, _("Make a rule"), self.url("make"))],
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
            refused=refusal(request, Power.SETTINGS),
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

        def perform() -> Done:
            made = make_rule(values, secret, by=actor_of(request).name)
            return Done(_("The rule is made."), self.url("rule", made.pk))

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

        def perform() -> Done:
            change_rule(pk, values, secret, by=actor_of(request).name)
            return Done(_("The rule is changed."), self.url("rule", pk))

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

        def perform() -> Done:
            renew_secret(pk, secret, by=actor_of(request).name)
            return Done(_("Webhooks of the rule are signed with the new secret from now on."), self.url("rule", pk))

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

        def perform() -> Done:
            request_test(pk)
            alive = _("A worker sends the test: its result is in the list below within half a minute.")
            dead = _("The test waits in the list below: no worker is alive, and it is sent as soon as one is.")
            return Done(alive if is_worker_alive() else dead, self.url("rule", pk))

        text = _("It goes the way of a real notification, also while the rule is disabled, and says that it is a test.")
        words = (_("Send a test"), text, _("Send the test"))
        return self._act(request, pk, "test notification rule", words, perform)

    def enable_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Asks, then has the rule looked at."""

        def perform() -> Done:
            set_enabled(pk, True, by=actor_of(request).name)
            return Done(_("The rule is enabled."), self.url("rule", pk))

        text = _("It begins anew: what is over its threshold now is told.")
        return self._act(request, pk, "enable notification rule", (_("Enable a rule"), text, _("Enable the rule")), perform)

    def disable_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Asks, then has the rule left alone."""

        def perform() -> Done:
            set_enabled(pk, False, by=actor_of(request).name)
            return Done(_("The rule is disabled."), self.url("rule", pk))

        text = _("Nobody is told of anything by it until it is enabled again.")
        return self._act(request, pk, "disable notification rule", (_("Disable a rule"), text, _("Disable the rule")), perform)

    def remove_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Asks, then deletes the rule."""

        def perform() -> Done:
            remove_rule(pk)
            return Done(_("The rule is deleted."), self.url())

        text = _("What it has sent stays in the log. What waits to be sent is not sent.")
        words = (_("Delete a rule"), text, _("Delete the rule"))
        return self._act(request, pk, "delete notification rule", words, perform, is_dangerous=True)

    def _act(
        self, request: HttpRequest, pk: int, action: str, words: tuple[str, str, str], perform: Callable[[], Done], **more: Any
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
        self, request: HttpRequest, action: str, target: str, *, rule: NotificationRule | None = None, **asked: Any
    ) -> HttpResponse:
        if rule is not None:
            asked["back_url"] = self.url("rule", rule.pk)
            asked["crumbs"] = (Crumb(rule.name, asked["back_url"]),)
        return confirm(self, request, Confirmation(action=action, power=Power.SETTINGS, target=target, **asked))

    def _unknown(self, request: HttpRequest) -> HttpResponse:
        title = _("Rule not found")
        text = _("There is no such rule: it was deleted.")
        return self.problem(request, title=title, text=text, status=404, crumbs=(Crumb(title),))


def _rule(pk: int) -> NotificationRule | None:
    return NotificationRule.objects.using(managed_alias()).filter(pk=pk).first()


def _typed(request: HttpRequest) -> dict[str, str]:
    """What was typed into the form, or stands in the query string by the names of its fields."""
    source = request.POST if request.method == "POST" else request.GET
    return {name: source.get(name, "").strip().replace("\x00", "") for name in _TEXTS}


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
        told = (each.pk, each.name, each.enabled, each.kind, each.subject, each.threshold, each.channel, to)
        yield *told, each.throttle_seconds, sorted(each.raised), each.notified_at, each.changed_by, each.changed_at
