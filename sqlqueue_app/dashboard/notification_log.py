"""The log of notifications: what was sent to whom, what was not and why, sending it again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.access import Power, refusal
from sqlqueue_app.dashboard.confirming import Confirmation, Done, confirm
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.notification_rows import delivery_row, target_for
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paging import newest_first
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import DeliveryState, NotificationDelivery, NotificationRule
from sqlqueue_app.operations.notifications.retention import KEPT
from sqlqueue_app.operations.notifications.rules import send_again
from sqlqueue_app.operations.notifications.sending import shown_target
from sqlqueue_app.operations.notifications.texts import news_of

PAGE_SIZE: Final = 50
COLUMNS: Final = (
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

    def log(request: HttpRequest) -> HttpResponseBase:
        return _log(pages, request)

    def again(request: HttpRequest, pk: UUID) -> HttpResponse:
        return _again(pages, request, pk)

    return [pages.looks("deliveries/", log, "deliveries"), pages.acts("deliveries/<uuid:pk>/again/", again, "again")]


def _log(pages: PageAdmin, request: HttpRequest) -> HttpResponseBase:
    asked = LogFilter.read(request)
    found = asked.queryset()
    if wanted_format(request):
        return export(request, "notifications", COLUMNS, _lines(request, found))
    alias = managed_alias()
    portion = newest_first(request, found, "created_at", size=PAGE_SIZE)
    rules = NotificationRule.objects.using(alias).order_by("name").values_list("pk", "name")[:500]
    title = _("Log of notifications")
    return pages.page(
        request,
        "notification_log",
        live_seconds=LIVE_SECONDS if portion.is_first else None,
        title=title,
        crumbs=(Crumb(title),),
        rows=[delivery_row(pages, request, each) for each in portion.rows],
        refused=refusal(request, Power.SETTINGS),
        asked=asked,
        rules=[("", _("all")), *((str(key), name) for key, name in rules)],
        asked_rule="" if asked.rule is None else str(asked.rule),
        states=[("", _("any")), *((value, str(label)) for value, label in DeliveryState.choices)],
        kept_days=KEPT.days,
        **portion.links(),
    )


def _again(pages: PageAdmin, request: HttpRequest, pk: UUID) -> HttpResponse:
    """Asks, then has a worker try again what was given up."""
    found = NotificationDelivery.objects.using(managed_alias()).select_related("rule")
    delivery = found.filter(pk=pk).first()
    if delivery is None:
        title = _("Notification not found")
        text = _("There is no such notification: it may have been too old to be kept.")
        return pages.problem(request, title=title, text=text, status=404, crumbs=(Crumb(title),))
    rule = delivery.rule
    back_url = pages.url("deliveries")

    def perform() -> Done:
        send_again(pk)
        return Done(_("A worker tries again to send it."), back_url)

    blocked = ""
    if delivery.state != DeliveryState.FAILED:
        blocked = _("It was not given up: only what was is sent again.")
    elif rule is None:
        blocked = _("Its rule was deleted: there is nobody to send it to.")
    facts = [(_("Notification"), delivery.rule_name), (_("What"), news_of(delivery)), (_("Error"), delivery.error)]
    if rule is not None:
        facts.append((_("To"), target_for(request, rule.channel, rule.target)))
    asked = Confirmation(
        action="send notification again",
        power=Power.SETTINGS,
        target=f"{delivery.rule_name}: {shown_target(delivery.channel, delivery.target)}",
        title=_("Send a notification again"),
        text=_("It goes to where the rule sends now, under the same id as before, so that a receiver can tell that it has had it."),
        submit=_("Send it again"),
        perform=perform,
        back_url=back_url,
        facts=facts,
        blocked=blocked,
        crumbs=(Crumb(_("Log of notifications"), back_url),),
    )
    return confirm(pages, request, asked)


def _lines(request: HttpRequest, found: QuerySet[NotificationDelivery]) -> Iterator[tuple[object, ...]]:
    for each in found.iterator(chunk_size=1_000):
        to = target_for(request, each.channel, each.target)
        told = (each.pk, each.created_at, each.rule_name, each.channel, to, each.is_test, news_of(each), each.state)
        yield *told, each.attempts, each.next_attempt_at, each.finished_at, each.error
