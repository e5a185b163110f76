"""The pages of history: events of queues, endpoints and operations, and actions of operators."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.formats import Grade, Stamp, State, stamp_of
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import PageAdmin, day_of, keyset_page, path_of, within
from sqlqueue_app.messages.failure_groups import guid_of
from sqlqueue_app.models import (
    ActionResult,
    CheckResult,
    Endpoint,
    Event,
    FailedMessage,
    NotificationRule,
    Operation,
    OperatorAction,
    Queue,
    Schedule,
    Severity,
)
from sqlqueue_app.monitoring.checks import finding_in_words, label_of
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.status.events import CATALOGUE, About, EventKind, KindOfEvent
from sqlqueue_app.status.retention import EVENTS_KEPT
from sqlqueue_app.status.texts import Words

# --- Events -----------------------------------------------------------------------------------------------------------

PAGE_SIZE: Final = 100
COLUMNS: Final = ("at", "severity", "kind", "subject", "text", "details")


_Found = TypeVar("_Found", bound=Model)


def filtered(
    request: HttpRequest, found: QuerySet[_Found], lookups: Mapping[str, str], choices: Mapping[str, Container[str]]
) -> tuple[QuerySet[_Found], dict[str, Any]]:
    """The rows that match a query string, newest first, and its filters; invalid values are ignored.

    `lookups` by parameter, of which `choices` take only these values. `since` and `until` are inclusive days in the current time
    zone.
    """
    filters = {name: request.GET.get(name, "").strip().replace("\x00", "") for name in lookups}
    filters.update((name, "") for name, known in choices.items() if filters[name] not in known)
    since, until = (day_of(request.GET.get(name, "")) for name in ("since", "until"))
    chosen = {lookups[name]: value for name, value in filters.items() if value}
    found = found.filter(within("at", since, until), **chosen).order_by("-at", "-pk")
    return found, {**filters, "since": since, "until": until}


class EventAdmin(PageAdmin):
    """The page of events. It needs the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list."""
        return [self.readonly_view("", self.changelist_view)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The events, newest first, or all matching events as a file."""
        lookups = {"severity": "severity", "kind": "kind", "subject": "subject__icontains"}
        choices = {"severity": Severity.values, "kind": set(EventKind)}
        found, filters = filtered(request, Event.objects.using(managed_alias()), lookups, choices)
        if wanted_format(request):
            return export(request, "events", COLUMNS, _lines(found))
        keyset = keyset_page(request, found, "at", size=PAGE_SIZE)
        return self.page(
            request,
            "events",
            live_seconds=LIVE_SECONDS if keyset.is_first else None,
            rows=[event_row(self, each) for each in keyset.rows],
            filters=filters,
            severities=[("", _("any")), *((value, str(label)) for value, label in Severity.choices)],
            kinds=[("", _("any")), *((kind.value, capfirst(str(known.label))) for kind, known in CATALOGUE.items())],
            kept_days=EVENTS_KEPT.days,
            **keyset.links(),
            **(extra_context or {}),
        )


def _lines(found: QuerySet[Event]) -> Iterator[tuple[object, ...]]:
    for each in found.iterator(chunk_size=1_000):
        yield each.at, each.severity, each.kind, each.subject, text_of_event(each), each.details


# --- Event rows -------------------------------------------------------------------------------------------------------

_LEVELS: Final = {Severity.INFO: Grade.INFO, Severity.WARNING: Grade.WARNING, Severity.ERROR: Grade.ERROR}


@dataclass(frozen=True, slots=True)
class EventRow:
    """A row of the table of events; `url` is empty if its subject has no page."""

    key: str
    at: Stamp | None
    severity: State
    kind: str
    text: str
    url: str


def event_row(pages: PageAdmin, event: Event) -> EventRow:
    """The row of an event. Never raises."""
    known = kind_of_event(event)
    return EventRow(
        key=f"event {event.pk}",
        at=stamp_of(event.at),
        severity=severity_state(event.severity),
        kind=event.kind if known is None else str(known.label),
        text=text_of_event(event),
        url="" if known is None else _LINKS[known.about](pages, event),
    )


def severity_state(severity: str) -> State:
    """A severity as a word with its grade."""
    if severity not in Severity.values:
        return State(Grade.INFO, severity)
    return State(_LEVELS[Severity(severity)], str(Severity(severity).label))


def _detail(event: Event, name: str) -> str:
    return str(event.details.get(name, "")) if isinstance(event.details, dict) else ""


def _group(pages: PageAdmin, event: Event) -> str:
    group = guid_of(_detail(event, "group"))
    return "" if group is None else pages.url_of(FailedMessage, "group", group)


def _operation(pages: PageAdmin, event: Event) -> str:
    operation = guid_of(_detail(event, "operation"))
    return "" if operation is None else pages.url_of(Operation, "operation", operation)


def _queue(pages: PageAdmin, event: Event) -> str:
    return pages.url_of(Queue, "messages", path_of(event.subject)) if event.subject else ""


def _endpoint(pages: PageAdmin, event: Event) -> str:
    name = _detail(event, "endpoint") or event.subject
    return pages.url_of(Endpoint, "endpoint", path_of(name)) if name else ""


_LINKS: Final[dict[About, Callable[[PageAdmin, Event], str]]] = {
    About.GROUP: _group,
    About.OPERATION: _operation,
    About.QUEUE: _queue,
    About.ENDPOINT: _endpoint,
    About.SCHEDULE: lambda pages, _event: pages.url_of(Schedule),
    About.CHECK: lambda pages, _event: pages.url_of(CheckResult),
    About.NOTIFICATION: lambda pages, _event: pages.url_of(NotificationRule, "deliveries"),
}


def kind_of_event(event: Event) -> KindOfEvent | None:
    """The description of its kind; None for a kind of another version."""
    try:
        return CATALOGUE[EventKind(event.kind)]
    except ValueError:
        return None


def text_of_event(event: Event) -> str:
    """The event as a sentence in the current language. Never raises."""
    kind = kind_of_event(event)
    words = Words(event.subject, event.details)
    if kind is None:
        words["kind"] = event.kind
        return _("An event of a kind that this version does not know: %(kind)s, %(subject)s") % words
    check = words["check"]
    words["finding"] = finding_in_words(check, event.subject, event.details)
    words["check"] = f"{label_of(check)}: {event.subject}" if event.subject else label_of(check)
    return str(kind.text) % words


# --- Actions of operators ---------------------------------------------------------------------------------------------

ACTION_COLUMNS: Final = ("at", "who", "user", "address", "action", "on", "count", "result", "reason", "permission", "operation")
_ACTION_FIELDS: Final = (
    *("at", "user_name", "user_key", "address", "action", "target", "count", "result", "reason", "permission", "operation_id"),
)
_RESULTS: Final = {
    ActionResult.DONE: (Grade.OK, gettext_lazy("done")),
    ActionResult.REQUESTED: (Grade.INFO, gettext_lazy("requested")),
    ActionResult.DENIED: (Grade.WARNING, gettext_lazy("denied")),
    ActionResult.FAILED: (Grade.ERROR, gettext_lazy("failed")),
}


@dataclass(frozen=True, slots=True)
class ActionRow:
    """A row of the table of actions."""

    action: OperatorAction
    at: Stamp | None
    result: State
    operation_url: str


class ActionAdmin(PageAdmin):
    """The page of actions. It needs the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list."""
        return [self.readonly_view("", self.changelist_view)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The actions, newest first, or all matching actions as a file."""
        lookups = {"user": "user_name", "action": "action", "result": "result"}
        everything = OperatorAction.objects.using(managed_alias())
        found, filters = filtered(request, everything, lookups, {"result": ActionResult.values})
        if wanted_format(request):
            return export(request, "actions", ACTION_COLUMNS, found.values_list(*_ACTION_FIELDS).iterator(chunk_size=1_000))
        keyset = keyset_page(request, found, "at", size=PAGE_SIZE)
        return self.page(
            request,
            "actions",
            rows=[self._row(each) for each in keyset.rows],
            filters=filters,
            results=[("", _("any")), *((value, str(_RESULTS[ActionResult(value)][1])) for value in ActionResult.values)],
            **keyset.links(),
            **(extra_context or {}),
        )

    def _row(self, action: OperatorAction) -> ActionRow:
        level, word = _RESULTS.get(ActionResult(action.result), (Grade.INFO, action.result))
        url = "" if action.operation_id is None else self.url_of(Operation, "operation", action.operation_id)
        return ActionRow(action, stamp_of(action.at), State(level, str(word)), url)
