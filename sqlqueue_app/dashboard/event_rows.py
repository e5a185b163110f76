"""Events as pages show them: their text in the language of the request, and the page of what they are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.dashboard.formats import Stamp, stamp_of
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.paths import path_of
from sqlqueue_app.messages.failure_groups import guid_of
from sqlqueue_app.models import CheckResult, Endpoint, Event, FailedMessage, NotificationRule, Operation, Queue, Schedule, Severity
from sqlqueue_app.operations.event_texts import kind_of_event, text_of_event
from sqlqueue_app.operations.events import About

_LEVELS: Final = {Severity.INFO: Level.INFO, Severity.WARNING: Level.WARNING, Severity.ERROR: Level.ERROR}


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as a page shows it; `url` is empty where there is no page of what it is about."""

    key: str
    at: Stamp | None
    severity: State
    kind: str
    text: str
    url: str


def event_row(pages: PageAdmin, event: Event) -> EventRow:
    """The row of an event. Never raises, whatever stands in it."""
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
    """A severity in a word, with its icon."""
    if severity not in Severity.values:
        return State(Level.INFO, severity)
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
