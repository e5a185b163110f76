"""The pages of subscriptions: events with their subscribers, problems, and unsubscribing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, not_found
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, State, number
from sqlqueue_app.dashboard.lists import export, wanted_format
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, name_of_path, path_of
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, QueueNotFound
from sqlqueue_app.models import Endpoint
from sqlqueue_app.status.queues import INSTALL_COMMAND, ProblemKind, QueueProblem
from sqlqueue_app.status.subscriptions import SubscribedEvent, Subscriber, read_matrix, remove_subscriptions
from sqlqueue_app.tables.connections import optional_read

PAGE_SIZE: Final = 50
COLUMNS: Final = ("event", "endpoint", "address", "queue_exists", "in_settings", "handled", "live_processes", "orphan")
_LONGEST_SEARCH: Final = 200


@dataclass(frozen=True, slots=True)
class SubscriberRow:
    """A subscriber; `remarks` are its problems."""

    endpoint: str
    url: str
    address: str
    remarks: tuple[State, ...]
    buttons: list[Button]


@dataclass(frozen=True, slots=True)
class SubscribedEventRow:
    """A row of the list of events."""

    topic: str
    remark: State | None
    subscribers: list[SubscriberRow]


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
        for event in read_matrix(settings):
            if name_of_path(topic, [event.topic]) is not None:
                for each in event.subscribers:
                    if name_of_path(endpoint, [each.subscription.endpoint]) is not None:
                        return each
    return None


class SubscriptionAdmin(PageAdmin):
    """The pages of subscriptions. They need the permission `sqlqueue_app.view_queue`."""

    def action_classes(self) -> Sequence[type[Action]]:
        return (Unsubscribe,)

    def pages(self) -> list[URLPattern]:
        """The list."""
        return [self.readonly_view("", self.changelist_view)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """A page of events with subscribers; `q` searches, `orphans` shows only problems."""
        try:
            everything, problem = read_matrix(get_settings()), None
        except ConnectionLost:
            raise
        except DatabaseError as error:
            everything, problem = [], _problem_of(error)
        text = request.GET.get("q", "").strip()[:_LONGEST_SEARCH]
        only_orphans = "orphans" in request.GET
        found = list(_chosen(everything, text.casefold(), only_orphans=only_orphans))
        if wanted_format(request):
            return export(request, "subscriptions", COLUMNS, _exported(found))
        after = request.GET.get("after", "")
        left = [each for each in found if each.topic > after]
        shown = left[:PAGE_SIZE]
        kept = {**({"q": text} if text else {}), **({"orphans": "1"} if only_orphans else {})}
        orphans = sum(each.is_orphan for event in everything for each in event.subscribers)
        return self.page(
            request,
            "subscriptions",
            problem=problem,
            rows=[self._row(request, each) for each in shown],
            is_empty=not everything,
            summary=_summary(everything, orphans),
            text=text,
            only_orphans=only_orphans,
            orphans=orphans,
            is_first=not after,
            first_query=urlencode(kept),
            next_query=urlencode({**kept, "after": shown[-1].topic}) if len(left) > PAGE_SIZE else "",
            **(extra_context or {}),
        )

    def _row(self, request: HttpRequest, event: SubscribedEvent) -> SubscribedEventRow:
        remark = None if event.is_handled else State(Grade.WARNING, _("Nobody handles it"))
        return SubscribedEventRow(event.topic, remark, [self._subscriber(request, each) for each in event.subscribers])

    def _subscriber(self, request: HttpRequest, each: Subscriber) -> SubscriberRow:
        row = each.subscription
        is_known = each.is_in_settings or bool(each.live)
        return SubscriberRow(
            endpoint=row.endpoint,
            url=self.url_of(Endpoint, "endpoint", path_of(row.endpoint)) if is_known else "",
            address=row.address,
            remarks=tuple(_remarks(each)),
            buttons=[Unsubscribe.button(self, request, path_of(row.topic), path_of(row.endpoint))],
        )


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


def _summary(events: list[SubscribedEvent], orphans: int) -> list[State]:
    count = sum(len(each.subscribers) for each in events)
    words = ngettext("%(count)s event", "%(count)s events", len(events)) % {"count": number(len(events))}
    found = [State(Grade.OK, words)]
    found.append(State(Grade.OK, ngettext("%(count)s subscription", "%(count)s subscriptions", count) % {"count": number(count)}))
    odd = ngettext("%(count)s of them leads to nobody", "%(count)s of them lead to nobody", orphans) % {"count": number(orphans)}
    return [*found, State(Grade.WARNING, odd)] if orphans else found


def _problem_of(error: DatabaseError) -> QueueProblem:
    if isinstance(error, QueueNotFound):
        return QueueProblem(ProblemKind.MISSING, str(error), command=INSTALL_COMMAND)
    return QueueProblem(ProblemKind.UNREADABLE, str(error))


def _exported(events: Iterable[SubscribedEvent]) -> Iterator[tuple[Any, ...]]:
    for event in events:
        for each in event.subscribers:
            row = each.subscription
            columns = (each.queue_exists, each.is_in_settings, each.handled, each.live, each.is_orphan)
            yield (event.topic, row.endpoint, row.address, *columns)
