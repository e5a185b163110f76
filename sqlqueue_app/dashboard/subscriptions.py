"""The pages of subscriptions: events with their subscribers, problems, and unsubscribing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace
from typing import Any, Final

from django import forms
from django.http import HttpRequest
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard import lists
from sqlqueue_app.dashboard.access import Button, Permission, not_found
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, State
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, name_of_path, path_of
from sqlqueue_app.models import Endpoint
from sqlqueue_app.status.subscriptions import SubscribedEvent, Subscriber, read_events, remove_subscriptions

PAGE_SIZE: Final = 50
COLUMNS: Final[lists.FileColumns] = {
    "event": "subscription.topic", "endpoint": "subscription.endpoint", "address": "subscription.address",
    "queue_exists": "queue_exists", "in_settings": "is_in_settings", "handled": "handled", "live_processes": "live",
    "orphan": "is_orphan",
}  # fmt: skip
_NONE: Final = gettext_lazy("No subscriptions yet. Workers subscribe to the events that they handle when they start.")


class SubscriptionFilter(lists.ListFilter):
    q = forms.CharField(label=gettext_lazy("Event, endpoint or queue"), max_length=200)
    orphans = forms.BooleanField(label=gettext_lazy("Without receivers"))

    def matching(self, events: list[SubscribedEvent]) -> Iterator[SubscribedEvent]:
        """The events with their subscribers that match; a text in the name of an event matches all of its subscribers."""
        self.is_valid()
        text = self.cleaned_data.get("q", "").casefold()
        only_orphans = self.cleaned_data.get("orphans")
        for event in events:
            found = (each for each in event.subscribers if each.is_orphan or not only_orphans)
            kept = tuple(each for each in found if text in "\n".join(astuple(each.subscription)).casefold())
            if kept:
                yield SubscribedEvent(event.topic, kept)


class Unsubscribe(Action):
    name, page, route = "unsubscribe", "unsubscribe", "<str:topic>/<str:endpoint>/unsubscribe/"
    permission = Permission.SETTINGS
    label = gettext_lazy("Unsubscribe")
    title = gettext_lazy("End the subscription of %(endpoint)s")
    text = gettext_lazy("Events published from now on are not sent to it. Other processes see the change within a few seconds.")
    is_dangerous = True

    def find(self, **key: Any) -> None:
        found = self._found(**key)
        row = self.subscription = found.subscription
        self.target, self.back_url = f"{row.endpoint}: {row.topic}", self.pages.url()
        self.words = {"endpoint": row.endpoint, "event": row.topic}
        self.facts = ((_("Event"), row.topic), (_("Queue"), row.address))
        self.crumbs = (Crumb(row.topic),)
        if found.subscribes_again:
            self.warnings = [_("A worker of the endpoint subscribes again when it starts: it has a handler for the event.")]

    def _found(self, topic: str, endpoint: str) -> Subscriber:
        for each in (each for event in read_events(get_settings())[0] for each in event.subscribers):
            row = each.subscription
            if name_of_path(topic, [row.topic]) and name_of_path(endpoint, [row.endpoint]):
                return each
        raise not_found(self.request, self.permission, _("There is no such subscription."))

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        if not remove_subscriptions(get_settings(), [self.subscription]):
            raise ValueError(_("The subscription no longer exists."))
        return ActionOutcome(_("%(endpoint)s no longer gets %(event)s.") % self.words, self.back_url)


class SubscriptionAdmin(PageAdmin):
    """The pages of subscriptions. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = (Unsubscribe,)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """A page of events with subscribers; `q` searches, `orphans` shows only problems."""
        events, problem = read_events(get_settings())
        subscribers = [each for event in events for each in event.subscribers]
        chosen = SubscriptionFilter(request)
        found = list(chosen.matching(events))
        if lists.wanted_format(request):
            return lists.export(request, "subscriptions", COLUMNS, [each for event in found for each in event.subscribers])
        after = request.GET.get("after", "")
        left = [event for event in found if event.topic > after]
        shown = left[:PAGE_SIZE]
        caption = _("Events and their subscribers: a copy of each published event goes to every queue")
        return self.page(
            request,
            "subscriptions",
            problem=problem,
            table=lists.table(caption, self._columns(request), shown, lambda event: f"event {event.topic}"),
            nothing=_("No matching subscriptions.") if events else _NONE,
            events=len(events),
            subscriptions=len(subscribers),
            orphans=sum(each.is_orphan for each in subscribers),
            filter=chosen if events else None,
            first_query=urlencode(chosen.data) if after else None,
            next_query=urlencode({**chosen.data, "after": shown[-1].topic}) if len(left) > PAGE_SIZE else None,
            **(extra_context or {}),
        )

    def _columns(self, request: HttpRequest) -> list[lists.TableColumn[SubscribedEvent]]:
        def topic(event: SubscribedEvent) -> SafeString:
            return lists.with_notes(event.topic, None if event.is_handled else State(Grade.WARNING, _("No handler")))

        def subscribers(event: SubscribedEvent) -> SafeString:
            return lists.template_html("subscribers", subscribers=[self._subscriber(request, each) for each in event.subscribers])

        return [lists.TableColumn(_("Event"), topic, lists.WIDE), lists.TableColumn(_("Subscribers"), subscribers, lists.WIDE)]

    def _subscriber(self, request: HttpRequest, each: Subscriber) -> tuple[Subscriber, str, list[Button]]:
        """The subscriber with the URL of its endpoint, and the unsubscribe button."""
        row = each.subscription
        is_known = each.is_in_settings or bool(each.live)
        url = self.url_of(Endpoint, "endpoint", path_of(row.endpoint)) if is_known else ""
        end = Unsubscribe.button(self, request, path_of(row.topic), path_of(row.endpoint))
        return each, url, [replace(end, is_dangerous=False)]
