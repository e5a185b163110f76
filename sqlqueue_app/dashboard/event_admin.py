"""The page of events: what has happened to queues, endpoints and operations, the newest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.days import day_of, within
from sqlqueue_app.dashboard.event_rows import event_row
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.paging import newest_first
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import Event, Severity
from sqlqueue_app.operations.event_texts import text_of_event
from sqlqueue_app.operations.events import CATALOGUE, KEPT, EventKind

PAGE_SIZE: Final = 100
COLUMNS: Final = ("at", "severity", "kind", "subject", "text", "details")


@dataclass(frozen=True, slots=True)
class EventFilter:
    """What the query string asks for; `since` and `until` are days in the current time zone, both included."""

    severity: str = ""
    kind: str = ""
    subject: str = ""
    since: date | None = None
    until: date | None = None

    @classmethod
    def read(cls, request: HttpRequest) -> EventFilter:
        """The filter of a query string; what cannot be read is not looked at."""
        said = {name: request.GET.get(name, "").strip().replace("\x00", "") for name in ("severity", "kind", "subject")}
        return cls(
            said["severity"] if said["severity"] in Severity.values else "",
            said["kind"] if said["kind"] in set(EventKind) else "",
            said["subject"],
            day_of(request.GET.get("since", "")),
            day_of(request.GET.get("until", "")),
        )

    def queryset(self) -> QuerySet[Event]:
        """The events, the newest first."""
        chosen = {"severity": self.severity, "kind": self.kind, "subject__icontains": self.subject}
        found = Event.objects.using(managed_alias()).filter(**{name: value for name, value in chosen.items() if value})
        return found.filter(within("at", self.since, self.until)).order_by("-at", "-pk")


class EventAdmin(PageAdmin):
    """The page about events, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list."""
        return [self.looks("", self.changelist_view)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The events, the newest first; as a file all that the filter lets through."""
        asked = EventFilter.read(request)
        found = asked.queryset()
        if wanted_format(request):
            return export(request, "events", COLUMNS, _lines(found))
        portion = newest_first(request, found, "at", size=PAGE_SIZE)
        return self.page(
            request,
            "events",
            live_seconds=LIVE_SECONDS if portion.is_first else None,
            title=capfirst(str(Event._meta.verbose_name_plural)),
            rows=[event_row(self, each) for each in portion.rows],
            asked=asked,
            severities=[("", _("any")), *((value, str(label)) for value, label in Severity.choices)],
            kinds=[("", _("any")), *((kind.value, capfirst(str(known.label))) for kind, known in CATALOGUE.items())],
            kept_days=KEPT.days,
            **portion.links(),
            **(extra_context or {}),
        )


def _lines(found: QuerySet[Event]) -> Iterator[tuple[object, ...]]:
    for each in found.iterator(chunk_size=1_000):
        yield each.at, each.severity, each.kind, each.subject, text_of_event(each), each.details
