"""The page that finds messages everywhere; its form is in the head of every page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django import forms
from django.http import HttpRequest
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.browsing.conversations import ConversationMessage
from sqlqueue_app.browsing.search import MOST_OF_A_GROUP, ArchiveSearch, Place, SearchResult, search_messages
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Permission, may, refusal_text
from sqlqueue_app.dashboard.conversations import message_url, outcome_state, scan_texts
from sqlqueue_app.dashboard.formats import Grade, State, number, stamp_html, stamp_of
from sqlqueue_app.dashboard.lists import WIDE, HtmlTable, TableColumn, link_html, message_html, table, with_notes
from sqlqueue_app.dashboard.page import PageAdmin, path_of
from sqlqueue_app.models import DelayedMessage, FailedMessage, LakeSearch, TaskResult
from sqlqueue_app.tables.queue import LAST_ROW_VERSION

LONGEST_TEXT: Final = 400
# Links to search one queue further back.
MOST_FURTHER: Final = 10
_TITLES: Final = {
    Place.QUEUES: gettext_lazy("Queues"),
    Place.DELAYED: gettext_lazy("Delayed"),
    Place.FAILED: gettext_lazy("Failed"),
    Place.ARCHIVE: gettext_lazy("Archive"),
}
_TASK_STATES: Final = {
    "READY": (Grade.INFO, gettext_lazy("waiting")),
    "RUNNING": (Grade.INFO, gettext_lazy("running")),
    "FAILED": (Grade.ERROR, gettext_lazy("failed")),
}
_ENDED: Final = (Grade.OK, gettext_lazy("handled"))


class SearchForm(forms.Form):
    """The text, and the queue that is searched further back."""

    q = forms.CharField(required=False, max_length=LONGEST_TEXT)
    queue = forms.CharField(required=False)
    before = forms.IntegerField(required=False, min_value=1, max_value=LAST_ROW_VERSION)


@dataclass(frozen=True, slots=True)
class Unsearched:
    """Something that was not searched, with a link to go on where there is one."""

    text: str
    url: str = ""
    action: str = ""


class SearchAdmin(PageAdmin):
    """The search, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The results."""
        return [self.readonly_view("", self.changelist_view)]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """What was found, by where it was found, what was searched, and what was not."""
        form = SearchForm(request.GET)
        text = form.cleaned_data["q"] if form.is_valid() else ""
        bodies = may(request, Permission.VIEW_BODY)
        shown: dict[str, Any] = {}
        if text:
            queue, before = form.cleaned_data["queue"], form.cleaned_data["before"] or LAST_ROW_VERSION
            found = search_messages(get_settings(), text, bodies=bodies, queue=queue, before=before)
            shown = {
                "tables": self._tables(found),
                "queue": queue,
                "everything": f"?{urlencode({'q': text})}",
                "searched": _searched(found, bodies=bodies, queue=queue),
                "fresh": stamp_of(found.archive.lake.committed_at) if found.archive else None,
                "unsearched": [*self._further(text, found), *([] if bodies else [_no_bodies()])],
                "problems": found.problems,
            }
        title = _("Search for “%(text)s”") % {"text": text} if text else ""
        return self.page(request, "search", title=title, form=form, search_text=text, **shown, **(extra_context or {}))

    def _tables(self, found: SearchResult) -> list[HtmlTable]:
        """One of each place, and one of tasks."""
        columns: list[TableColumn[ConversationMessage]] = [
            TableColumn(_("Message"), lambda each: message_html(message_url(self, each), each.message_type, each.message_id), WIDE),
            TableColumn(_("Time"), lambda each: each.ended or each.sent),
            TableColumn(_("State"), lambda each: with_notes(outcome_state(each.outcome), each.due and _until(each.due))),
            TableColumn(_("Endpoint"), lambda each: each.receiving),
            TableColumn(_("Queue"), lambda each: each.queue),
            TableColumn(
                _("Conversation"),
                lambda each: each.conversation and link_html(self.conversation_url(each.conversation), each.conversation),
            ),
        ]
        of_tasks: list[TableColumn[TaskResult]] = [
            TableColumn(_("Task"), lambda each: each.task, WIDE),
            TableColumn(_("Enqueued"), lambda each: each.enqueued_at),
            TableColumn(_("State"), lambda each: _task_state(each.status)),
            TableColumn(_("Queue"), lambda each: each.queue_name),
            TableColumn(_("Message"), lambda each: link_html(f"?{urlencode({'q': each.pk})}", each.pk)),
        ]
        tables = [
            table(_caption(_TITLES[place], len(rows)), columns, rows, lambda each: each.key)
            for place, rows in found.messages.items()
        ]
        tasks = [table(_caption(_("Tasks"), len(found.tasks)), of_tasks, found.tasks, lambda each: each.pk)] if found.tasks else []
        return [*tables, *tasks]

    def _further(self, text: str, found: SearchResult) -> list[Unsearched]:
        """What was left out for its length or for lack of time."""
        further = []
        for name, before in list(found.extent.longer.items())[:MOST_FURTHER]:
            if before:
                url = f"?{urlencode({'q': text, 'queue': name, 'before': before})}"
                further.append(Unsearched(_("Older messages of %(queue)s.") % {"queue": name}, url, _("Search further back")))
            else:
                url = self.url_of(DelayedMessage, "table", path_of(name))
                further.append(
                    Unsearched(_("Messages of %(queue)s that are due later.") % {"queue": name}, url, _("Show the table"))
                )
        if (left := len(found.extent.longer) - MOST_FURTHER) > 0:
            older = ngettext("Older messages of %(count)s more queue.", "Older messages of %(count)s more queues.", left)
            further.append(Unsearched(older % {"count": number(left)}))
        if found.extent.late:
            names = ", ".join(found.extent.late[:MOST_FURTHER]) + (", …" if len(found.extent.late) > MOST_FURTHER else "")
            further.append(Unsearched(_("Not reached within the time limit: %(queues)s.") % {"queues": names}))
        if found.archive is not None:
            url = f"{self.url_of(FailedMessage, 'messages')}?{urlencode({'q': text})}"
            further.append(Unsearched(_("Exceptions of all failed messages."), url, _("Search failed messages")))
            further += self._further_in_archive(text, found.archive)
        return further

    def _further_in_archive(self, text: str, archive: ArchiveSearch) -> list[Unsearched]:
        results = archive.results
        if archive.problem:
            return [Unsearched(_("Archive: %(problem)s") % {"problem": archive.problem})]
        if results is None:
            return [Unsearched(_("Archive: not configured, or still empty."))]
        found = [Unsearched(_("Archive: %(problem)s") % {"problem": each}) for each in results.problems[:MOST_FURTHER]]
        if results.next is not None or results.is_partial:
            query = {"text": text, "period": "all", **({"after": str(results.next)} if results.next is not None else {})}
            url = f"{self.url_of(LakeSearch)}?{urlencode(query)}"
            found.append(Unsearched(_("Older messages of the archive."), url, _("Search further back")))
        return found


def _caption(title: object, rows: int) -> str:
    if rows < MOST_OF_A_GROUP:
        return str(title)
    return _("%(place)s (the newest %(count)s)") % {"place": title, "count": number(rows)}


def _until(due: datetime) -> SafeString:
    return format_html("{} {}", _("until"), stamp_html(due))


def _task_state(status: str) -> State:
    level, word = _TASK_STATES.get(status, _ENDED)
    return State(level, str(word))


def _no_bodies() -> Unsearched:
    bodies = _("Bodies.")
    return Unsearched(f"{bodies} {refusal_text(Permission.VIEW_BODY)}")


def _searched(found: SearchResult, *, bodies: bool, queue: str) -> list[str]:
    """What was searched, in sentences."""
    texts = [_("In headers and the first 64 KiB of bodies.") if bodies else _("In headers.")]
    if queue:
        older = _("Queue %(queue)s: up to %(rows)s older messages.") if found.extent.queues else _("There is no queue %(queue)s.")
        return [*texts, older % {"queue": queue, "rows": number(found.extent.rows)}]
    texts += [*scan_texts(found.extent), _("Failed messages: all, by message id and conversation.")]
    archive = found.archive
    if archive is not None and archive.results is not None:
        files = archive.results.files
        texts.append(ngettext("Archive: %(count)s file.", "Archive: %(count)s files.", files) % {"count": number(files)})
    if get_settings().task_backends:
        texts.append(_("Tasks: all by id, the newest also by name."))
    return texts
