"""The page that searches messages everywhere; its form is in the header of every page."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _

from sqlqueue_app.browsing.conversations import ConversationMessage
from sqlqueue_app.browsing.search import MOST_OF_A_GROUP, SearchResult, search_messages
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Permission, refusal
from sqlqueue_app.dashboard.conversations import OUTCOME_STATES, message_url
from sqlqueue_app.dashboard.formats import number, stamp_html
from sqlqueue_app.dashboard.lists import WIDE, HtmlTable, TableColumn, link_html, message_html, table, with_notes
from sqlqueue_app.dashboard.page import PageAdmin
from sqlqueue_app.dashboard.tasks import task_state
from sqlqueue_app.models import TaskResult
from sqlqueue_app.tables.queue import LAST_ROW_VERSION

LONGEST_TEXT: Final = 400


class SearchForm(forms.Form):
    """The text, and the queue to search further back."""

    q = forms.CharField(required=False, max_length=LONGEST_TEXT)
    queue = forms.CharField(required=False)
    before = forms.IntegerField(required=False, min_value=1, max_value=LAST_ROW_VERSION)


class SearchAdmin(PageAdmin):
    """The search, for users with the permission `sqlqueue_app.view_queue`."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The results by place, and the searched and skipped parts."""
        form = SearchForm(request.GET)
        text = form.cleaned_data["q"] if form.is_valid() else ""
        refused = refusal(request, Permission.VIEW_BODY)
        shown: dict[str, Any] = {}
        if text:
            queue, before = form.cleaned_data["queue"], form.cleaned_data["before"] or LAST_ROW_VERSION
            found = search_messages(get_settings(), text, bodies=not refused, queue=queue, before=before)
            shown = {
                "found": found,
                "tables": self._tables(found),
                "queue": queue,
                "refused": refused,
                "longer": list(found.extent.longer.items()),
                "is_task_backend": bool(get_settings().task_backends),
            }
        title = _("Search for “%(text)s”") % {"text": text} if text else ""
        return self.page(request, "search", title=title, form=form, search_text=text, **shown, **(extra_context or {}))

    def _tables(self, found: SearchResult) -> list[HtmlTable]:
        """One table for each place, and one for tasks."""
        columns: list[TableColumn[ConversationMessage]] = [
            TableColumn(_("Message"), lambda each: message_html(message_url(self, each), each.message_type, each.message_id), WIDE),
            TableColumn(_("Time"), lambda each: each.ended or each.sent),
            TableColumn(_("State"), _state),
            TableColumn(_("Endpoint"), lambda each: each.receiving),
            TableColumn(_("Queue"), lambda each: each.queue),
            TableColumn(
                _("Conversation"),
                lambda each: each.conversation and link_html(self.conversation_url(each.conversation), each.conversation),
            ),
        ]
        of_tasks: list[TableColumn[TaskResult]] = [
            TableColumn(_("Task"), lambda each: message_html(self.url_of(TaskResult, "task", each.pk), each.task, each.pk), WIDE),
            TableColumn(_("Enqueued"), lambda each: each.enqueued_at),
            TableColumn(_("State"), task_state),
            TableColumn(_("Queue"), lambda each: each.queue_name),
        ]
        tables = [
            table(_caption(place.label, len(rows)), columns, rows, lambda each: each.key) for place, rows in found.messages.items()
        ]
        tasks = table(_caption(_("Tasks"), len(found.tasks)), of_tasks, found.tasks, lambda each: each.pk)
        return [*tables, tasks] if tasks else tables


def _state(each: ConversationMessage) -> object:
    until = format_html("{} {}", _("until"), stamp_html(each.due)) if each.due else ""
    return with_notes(OUTCOME_STATES[each.outcome], until)


def _caption(title: object, rows: int) -> str:
    if rows < MOST_OF_A_GROUP:
        return str(title)
    return _("%(place)s (the newest %(count)s)") % {"place": title, "count": number(rows)}
