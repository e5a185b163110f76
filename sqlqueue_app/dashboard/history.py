"""The pages of history: events of queues, endpoints and operations, and actions of operators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Final

from django import forms
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from sqlqueue_app import models
from sqlqueue_app.dashboard.access import refusal_text
from sqlqueue_app.dashboard.actions import words_of_actions
from sqlqueue_app.dashboard.formats import Grade, State
from sqlqueue_app.dashboard.lists import NUMBER, WIDE, DaysFilter, ListAdmin, TableColumn, choices, link_html, with_notes
from sqlqueue_app.dashboard.operations import operation_state
from sqlqueue_app.dashboard.page import PageAdmin, path_of
from sqlqueue_app.failures.operation_kinds import KINDS, words_of
from sqlqueue_app.messages.envelope import guid_of
from sqlqueue_app.monitoring.checks import describe_finding, label_of
from sqlqueue_app.status.events import CATALOGUE, SubjectKind
from sqlqueue_app.status.retention import EVENTS_KEPT
from sqlqueue_app.status.texts import Words

# --- Events -----------------------------------------------------------------------------------------------------------


class EventFilter(DaysFilter):
    lookups: ClassVar = {"subject": "subject__icontains"}
    field_order = ("severity", "kind", "subject", "since", "until")

    severity = forms.ChoiceField(label=gettext_lazy("Severity"), choices=choices(models.Severity.choices))
    kind = forms.ChoiceField(
        label=gettext_lazy("Event"), choices=lambda: choices((kind, capfirst(str(each.label))) for kind, each in CATALOGUE.items())
    )
    subject = forms.CharField(label=gettext_lazy("Subject"))


class EventAdmin(ListAdmin[models.Event]):
    """The page of events. It needs the permission `sqlqueue_app.view_queue`."""

    caption = gettext_lazy("Events, newest first")
    nothing = gettext_lazy("No matching events.")
    list_per_page = 100
    filter_form = EventFilter
    file_name = "events"
    file_columns: ClassVar = {
        "at": "at", "severity": "severity", "kind": "kind", "subject": "subject", "text": lambda event: text_of_event(event),
        "details": "details",
    }  # fmt: skip

    def columns(self, request: HttpRequest) -> list[TableColumn[models.Event]]:
        return [
            TableColumn(_("Time"), lambda event: event.at),
            TableColumn(_("Severity"), lambda event: severity_state(event.severity)),
            TableColumn(_("Event"), lambda event: capfirst(str(kind.label if (kind := CATALOGUE.get(event.kind)) else event.kind))),
            TableColumn(_("Details"), lambda event: link_html(_url(self, event), Truncator(text_of_event(event)).chars(500)), WIDE),
        ]

    def more(self, request: HttpRequest, rows: Sequence[models.Event]) -> dict[str, Any]:
        days = EVENTS_KEPT.days
        return {"note": ngettext("Events are kept for %(days)s day.", "Events are kept for %(days)s days.", days) % {"days": days}}


_SEVERITIES: Final[dict[str, Grade]] = {models.Severity.WARNING: Grade.WARNING, models.Severity.ERROR: Grade.ERROR}


def severity_state(severity: str) -> State:
    """A severity as a word with its grade."""
    return State(_SEVERITIES.get(severity, Grade.INFO), str(dict(models.Severity.choices).get(severity, severity)))


def _url(pages: PageAdmin, event: models.Event) -> str:
    """The page of its subject; empty if there is none."""
    kind = CATALOGUE.get(event.kind)
    if kind is None:
        return ""
    details = event.details if isinstance(event.details, dict) else {}
    pages_about: Mapping[SubjectKind, tuple[Any, ...]] = {
        SubjectKind.GROUP: (models.FailedMessage, "group", guid_of(str(details.get("group")))),
        SubjectKind.OPERATION: (models.Operation, "operation", guid_of(str(details.get("operation")))),
        SubjectKind.QUEUE: (models.Queue, "messages", path_of(event.subject)),
        SubjectKind.ENDPOINT: (models.Endpoint, "endpoint", path_of(str(details.get("endpoint") or event.subject))),
        SubjectKind.SCHEDULE: (models.Schedule, "changelist"),
        SubjectKind.CHECK: (models.CheckResult, "changelist"),
        SubjectKind.NOTIFICATION: (models.NotificationRule, "deliveries"),
    }
    model, page, *key = pages_about[kind.about]
    return pages.url_of(model, page, *key) if all(key) else ""


def text_of_event(event: models.Event) -> str:
    """The event as a sentence in the current language. Never raises."""
    kind = CATALOGUE.get(event.kind)
    words = Words(event.subject, event.details)
    if kind is None:
        words["kind"] = event.kind
        return _("An event of a kind that this version does not know: %(kind)s, %(subject)s") % words
    words["what"] = str(operation.label if (operation := KINDS.get(words["kind"])) else _("Operation"))
    check = words["check"]
    words["finding"] = describe_finding(check, event.subject, event.details)
    words["check"] = f"{label_of(check)}: {event.subject}" if event.subject else label_of(check)
    return str(kind.text) % words


# --- Actions of operators ---------------------------------------------------------------------------------------------

_RESULTS: Final[dict[str, Grade]] = {
    models.ActionResult.DONE: Grade.OK, models.ActionResult.DENIED: Grade.WARNING, models.ActionResult.FAILED: Grade.ERROR,
}  # fmt: skip


class ActionFilter(DaysFilter):
    lookups: ClassVar = {"user": "user_name"}
    field_order = ("user", "action", "result", "since", "until")

    user = forms.CharField(label=gettext_lazy("User"))
    action = forms.ChoiceField(
        label=gettext_lazy("Action"), choices=lambda: choices(sorted(words_of_actions().items(), key=itemgetter(1)))
    )
    result = forms.ChoiceField(label=gettext_lazy("Result"), choices=choices(models.ActionResult.choices))


class ActionAdmin(ListAdmin[models.OperatorAction]):
    """The audit log. It needs the permission `sqlqueue_app.view_queue`."""

    caption = gettext_lazy("Actions in the admin and by commands, newest first")
    nothing = gettext_lazy("No matching actions.")
    list_per_page = 100
    filter_form = ActionFilter
    live_seconds = None
    file_name = "actions"
    file_columns: ClassVar = {
        "at": "at", "who": "user_name", "user": "user_key", "address": "address", "action": "action", "on": "target",
        "count": "count", "result": "result", "reason": "reason", "permission": "permission", "operation": "operation_id",
    }  # fmt: skip

    def rows(self) -> QuerySet[models.OperatorAction]:
        return super().rows().select_related("operation")

    def columns(self, request: HttpRequest) -> list[TableColumn[models.OperatorAction]]:
        words = words_of_actions()

        def target(action: models.OperatorAction) -> object:
            text = words_of(action.operation) if action.operation else action.target
            return link_html(self._target_url(action), Truncator(text).chars(200)) if text else None

        def result(action: models.OperatorAction) -> object:
            state = State(_RESULTS.get(action.result, Grade.INFO), action.get_result_display())
            is_refused = action.permission and action.result == models.ActionResult.DENIED and not action.operation
            reason = refusal_text(action.permission) if is_refused else _(action.reason)
            operation = action.operation if action.result == models.ActionResult.REQUESTED else None
            return with_notes(state, operation and operation_state(operation), Truncator(reason).chars(300))

        return [
            TableColumn(_("Time"), lambda action: action.at),
            TableColumn(_("User"), lambda action: with_notes(action.user_name, action.address)),
            TableColumn(_("Action"), lambda action: words.get(action.action) or capfirst(action.action.replace("_", " "))),
            TableColumn(_("Target"), target, WIDE),
            TableColumn(_("Count"), lambda action: action.count, NUMBER),
            TableColumn(_("Result"), result),
        ]

    def _target_url(self, action: models.OperatorAction) -> str:
        """The operation, or the page of the target; else the list that offers the action; empty for an unknown action."""
        if action.operation_id is not None:
            return self.url_of(models.Operation, "operation", action.operation_id)
        offered = (each for each in self.admin_site._registry.values() if isinstance(each, PageAdmin))
        pages = next((each for each in offered if action.action in {known.name for known in each.action_classes}), None)
        if pages is None:
            return ""
        page = "group" if action.action == "note" else _PAGES.get(pages.model)
        named = (_ID if pages.model is models.FailedMessage else _NAME).match(action.target)
        # A removed target no longer has a page.
        if page is None or named is None or action.action.startswith("remove"):
            return pages.url()
        return pages.url(page, path_of(named["key"]))


# The page of one target, by the model of the pages that offer the action.
_PAGES: Final[Mapping[object, str]] = {
    models.Queue: "messages", models.DelayedMessage: "table", models.Endpoint: "endpoint", models.FailedMessage: "message",
}  # fmt: skip
# The log identifies failed messages and groups by id, other targets by a name before the message, the process or the change.
_ID: Final = re.compile(r"\D*?(?P<key>[0-9a-f]{8}-[0-9a-f-]{27})\b")
_NAME: Final = re.compile(r"(?P<key>.+?)( #\d+| on .+ \(\d+\)|: \d+ → .*| → .*|\Z)")
