"""The pages of subscriptions: events with their subscribers, problems, and unsubscribing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from django import forms
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Permission, not_found
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, State, number
from sqlqueue_app.dashboard.lists import (
    WIDE,
    FileColumns,
    HtmlTable,
    ListFilter,
    TableColumn,
    cell_html,
    export,
    link_html,
    table,
    text_html,
    wanted_format,
    with_notes,
)
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, name_of_path, path_of
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, QueueNotFound
from sqlqueue_app.models import Endpoint
from sqlqueue_app.status.queues import INSTALL_COMMAND, ProblemKind, QueueProblem
from sqlqueue_app.status.subscriptions import SubscribedEvent, Subscriber, read_matrix, remove_subscriptions
from sqlqueue_app.tables.connections import optional_read

PAGE_SIZE: Final = 50
COLUMNS: Final[FileColumns] = {
    "event": "subscription.topic", "endpoint": "subscription.endpoint", "address": "subscription.address",
    "queue_exists": "queue_exists", "in_settings": "is_in_settings", "handled": "handled", "live_processes": "live",
    "orphan": "is_orphan",
}  # fmt: skip
_LONGEST_SEARCH: Final = 200
_NONE: Final = gettext_lazy("No subscriptions yet. Workers subscribe to the events that they handle when they start.")


class SubscriptionFilter(ListFilter):
    """The filter of the list of subscriptions."""

    q = forms.CharField(label=gettext_lazy("Event, endpoint or queue"), max_length=_LONGEST_SEARCH)
    orphans = forms.BooleanField(label=gettext_lazy("Without receivers"))


class Unsubscribe(Action):
    """Deletes a subscription."""

    name, page, route = "unsubscribe", "unsubscribe", "<str:topic>/<str:endpoint>/unsubscribe/"
    permission = Permission.SETTINGS
    label = gettext_lazy("Unsubscribe")
    title = gettext_lazy("End the subscription of %(endpoint)s")
    text = gettext_lazy("Events that are published from now on are not sent to it; others need a few seconds to see it.")
    is_dangerous = True

    def find(self, **key: Any) -> None:
        found = _find(**key)
        if found is None:
            raise not_found(self.request, self.permission, _("There is no such subscription."))
        row = self.subscription = found.subscription
        self.target, self.back_url = f"{row.endpoint}: {row.topic}", self.pages.url()
        self.words = {"endpoint": row.endpoint, "event": row.topic}
        self.facts = ((_("Event"), row.topic), (_("Queue"), row.address))
        self.crumbs = (Crumb(row.topic),)
        if found.subscribes_again:
            self.warnings = [_("A worker of the endpoint subscribes again when it starts: it has a handler for the event.")]

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        if not remove_subscriptions(get_settings(), [self.subscription]):
            raise ValueError(_("There is no such subscription any more."))
        return ActionOutcome(_("%(endpoint)s does not get %(event)s any more.") % self.words, self.back_url)


def _find(topic: str, endpoint: str) -> Subscriber | None:
    settings = get_settings()
    with optional_read(settings.database, "look for a subscription"):
        everything = [(each, each.subscription) for event in read_matrix(settings) for each in event.subscribers]
        found = (each for each, row in everything if name_of_path(topic, [row.topic]) and name_of_path(endpoint, [row.endpoint]))
        return next(found, None)
    return None


class SubscriptionAdmin(PageAdmin):
    """The pages of subscriptions. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = (Unsubscribe,)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """A page of events with subscribers; `q` searches, `orphans` shows only problems."""
        try:
            everything, problem = read_matrix(get_settings()), None
        except ConnectionLost:
            raise
        except DatabaseError as error:
            everything, problem = [], _problem_of(error)
        chosen = SubscriptionFilter(request)
        chosen.is_valid()
        text, only_orphans = chosen.cleaned_data.get("q", ""), chosen.cleaned_data.get("orphans", False)
        found = list(_chosen(everything, text.casefold(), only_orphans=only_orphans))
        if wanted_format(request):
            return export(request, "subscriptions", COLUMNS, [each for event in found for each in event.subscribers])
        after = request.GET.get("after", "")
        left = [each for each in found if each.topic > after]
        shown = left[:PAGE_SIZE]
        kept = {**({"q": text} if text else {}), **({"orphans": "1"} if only_orphans else {})}
        return self.page(
            request,
            "subscriptions",
            problem=problem,
            table=self._table(request, shown) if shown else None,
            nothing=_("No matching subscriptions.") if everything else _NONE,
            summary=_summary(everything) if everything else (),
            filter=chosen if everything else None,
            first_query=urlencode(kept) if after else None,
            next_query=urlencode({**kept, "after": shown[-1].topic}) if len(left) > PAGE_SIZE else None,
            **(extra_context or {}),
        )

    def _table(self, request: HttpRequest, events: list[SubscribedEvent]) -> HtmlTable:
        unhandled = cell_html(State(Grade.WARNING, _("No handler")))

        def subscribers(event: SubscribedEvent) -> SafeString:
            items = format_html_join("", "<li>{}</li>", ((self._subscriber(request, each),) for each in event.subscribers))
            return format_html('<ul class="sq-subscribers">{}</ul>', items)

        columns: list[TableColumn[SubscribedEvent]] = [
            TableColumn(_("Event"), lambda event: with_notes(text_html(event.topic), "" if event.is_handled else unhandled), WIDE),
            TableColumn(_("Subscribers"), subscribers, WIDE),
        ]
        caption = _("Events and their subscribers: a copy of each published event goes to every queue")
        return table(caption, columns, events, lambda event: f"event {event.topic}")

    def _subscriber(self, request: HttpRequest, each: Subscriber) -> SafeString:
        row = each.subscription
        is_known = each.is_in_settings or bool(each.live)
        url = self.url_of(Endpoint, "endpoint", path_of(row.endpoint)) if is_known else ""
        link, remarks = link_html(url, row.endpoint), format_html_join(" ", "{}", ((cell_html(state),) for state in _remarks(each)))
        end = Unsubscribe.button(self, request, path_of(row.topic), path_of(row.endpoint))
        button = cell_html([replace(end, is_dangerous=False)])
        address = '<span>{} <bdi class="sq-quiet sq-long sq-mono">{}</bdi></span> {} {}'
        return format_html(address, link, row.address, remarks, button)


def _remarks(each: Subscriber) -> Iterator[State]:
    if not each.queue_exists:
        yield State(Grade.ERROR, _("its queue does not exist"))
    if each.handled is False:
        yield State(Grade.WARNING, _("no handler for it"))
    if each.live == 0:
        yield State(Grade.WARNING, _("no live process"))
    if not each.is_in_settings:
        yield State(Grade.INFO, _("not in the settings of this site"))


def _chosen(events: Iterable[SubscribedEvent], text: str, *, only_orphans: bool) -> Iterator[SubscribedEvent]:
    """The events that contain the text with all subscribers, otherwise the subscribers that contain it."""
    for event in events:
        kept = tuple(
            each
            for each in event.subscribers
            if (not only_orphans or each.is_orphan) and (text in event.topic.casefold() or text in _words(each))
        )
        if kept:
            yield SubscribedEvent(event.topic, kept)


def _words(each: Subscriber) -> str:
    return f"{each.subscription.endpoint}\n{each.subscription.address}".casefold()


def _summary(events: list[SubscribedEvent]) -> list[State]:
    orphans = sum(each.is_orphan for event in events for each in event.subscribers)
    count = sum(len(each.subscribers) for each in events)
    words = ngettext("%(count)s event", "%(count)s events", len(events)) % {"count": number(len(events))}
    found = [State(Grade.OK, words)]
    found.append(State(Grade.OK, ngettext("%(count)s subscription", "%(count)s subscriptions", count) % {"count": number(count)}))
    odd = ngettext("%(count)s without a receiver", "%(count)s without receivers", orphans) % {"count": number(orphans)}
    return [*found, State(Grade.WARNING, odd)] if orphans else found


def _problem_of(error: DatabaseError) -> QueueProblem:
    if isinstance(error, QueueNotFound):
        return QueueProblem(ProblemKind.MISSING, str(error), command=INSTALL_COMMAND)
    return QueueProblem(ProblemKind.UNREADABLE, str(error))
