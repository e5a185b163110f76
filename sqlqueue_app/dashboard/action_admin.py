"""The page of what operators have done: who, what, when, on how many, also what was denied."""

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
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.days import day_of, within
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.formats import Stamp, number, stamp_of
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.paging import newest_first
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import ActionResult, Operation, OperatorAction

PAGE_SIZE: Final = 100
COLUMNS: Final = ("at", "who", "user", "address", "action", "on", "count", "result", "reason", "permission", "operation")
_RESULTS: Final = {
    ActionResult.DONE: (Level.OK, gettext_lazy("done")),
    ActionResult.REQUESTED: (Level.INFO, gettext_lazy("requested")),
    ActionResult.DENIED: (Level.WARNING, gettext_lazy("denied")),
    ActionResult.FAILED: (Level.ERROR, gettext_lazy("failed")),
}


@dataclass(frozen=True, slots=True)
class ActionRow:
    """An action as the page shows it."""

    action: OperatorAction
    at: Stamp | None
    result: State
    count: str
    operation_url: str


@dataclass(frozen=True, slots=True)
class ActionFilter:
    """What the query string asks for; `since` and `until` are days in the current time zone, both included."""

    user: str = ""
    action: str = ""
    result: str = ""
    since: date | None = None
    until: date | None = None

    @classmethod
    def read(cls, request: HttpRequest) -> ActionFilter:
        """The filter of a query string; what cannot be read is not looked at."""
        said = {name: request.GET.get(name, "").strip().replace("\x00", "") for name in ("user", "action", "result")}
        if said["result"] not in ActionResult.values:
            said["result"] = ""
        return cls(**said, since=day_of(request.GET.get("since", "")), until=day_of(request.GET.get("until", "")))

    def queryset(self) -> QuerySet[OperatorAction]:
        """The actions, the newest first."""
        found = OperatorAction.objects.using(managed_alias()).order_by("-at", "-pk")
        if self.user:
            found = found.filter(user_name=self.user)
        if self.action:
            found = found.filter(action=self.action)
        if self.result:
            found = found.filter(result=self.result)
        return found.filter(within("at", self.since, self.until))


class ActionAdmin(PageAdmin):
    """The page about actions, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list."""
        return [self.looks("", self.changelist_view)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The actions, the newest first; as a file all that the filter lets through."""
        asked = ActionFilter.read(request)
        found = asked.queryset()
        if wanted_format(request):
            return export(request, "actions", COLUMNS, _lines(found))
        portion = newest_first(request, found, "at", size=PAGE_SIZE)
        return self.page(
            request,
            "actions",
            title=capfirst(str(OperatorAction._meta.verbose_name_plural)),
            rows=[self._row(each) for each in portion.rows],
            asked=asked,
            results=[("", _("any")), *((value, str(_RESULTS[ActionResult(value)][1])) for value in ActionResult.values)],
            **portion.links(),
            **(extra_context or {}),
        )

    def _row(self, action: OperatorAction) -> ActionRow:
        level, word = _RESULTS.get(ActionResult(action.result), (Level.INFO, action.result))
        url = "" if action.operation_id is None else self.url_of(Operation, "operation", action.operation_id)
        return ActionRow(action, stamp_of(action.at), State(level, str(word)), number(action.count), url)


def _lines(found: QuerySet[OperatorAction]) -> Iterator[tuple[object, ...]]:
    for each in found.iterator(chunk_size=1_000):
        yield (
            each.at,
            each.user_name,
            each.user_key,
            each.address,
            each.action,
            each.target,
            each.count,
            each.result,
            each.reason,
            each.permission,
            each.operation_id,
        )
