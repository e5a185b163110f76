"""The pages that search messages: everywhere, with the form in the header of every page, and in the archive of the lake."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any, ClassVar, Final, TypeVar

from django import forms
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.browsing.analytics import KnownLake, known_lake
from sqlqueue_app.browsing.conversations import ConversationMessage, MessageOutcome
from sqlqueue_app.browsing.messages import detail_of_lake
from sqlqueue_app.browsing.search import MAX_PER_GROUP, SearchResult, search_messages
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard import lists
from sqlqueue_app.dashboard.access import Permission, may, refusal, refusal_text
from sqlqueue_app.dashboard.analytics import MAX_LENGTH, empty_lake
from sqlqueue_app.dashboard.charts import LONG_PERIODS
from sqlqueue_app.dashboard.conversations import OUTCOME_STATES, message_url
from sqlqueue_app.dashboard.formats import number, precise_duration, size_of, stamp_html
from sqlqueue_app.dashboard.lists import NUMBER, WIDE, TableColumn, link_html, message_html, table, with_notes
from sqlqueue_app.dashboard.messages import message_page_context
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, path_of, text_of_path
from sqlqueue_app.dashboard.tasks import task_state
from sqlqueue_app.lake.columns import FAILURES, MESSAGES
from sqlqueue_app.lake.data_files import SEARCHED, LakeEngineMissing, LakeError
from sqlqueue_app.lake.search import SECONDS, Cursor, FoundMessage, Results, SearchQuery, read_message, search
from sqlqueue_app.models import PipelineRun, TaskResult
from sqlqueue_app.status.texts import PLAIN_INPUT, in_utc
from sqlqueue_app.tables.queue import LAST_ROW_VERSION

_Found = TypeVar("_Found")


class SearchForm(forms.Form):
    """The text, and the queue to search further back."""

    q = forms.CharField(required=False, max_length=MAX_LENGTH)
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
            queue = form.cleaned_data["queue"]
            before = form.cleaned_data["before"] or LAST_ROW_VERSION
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

    def _tables(self, found: SearchResult) -> list[lists.HtmlTable]:
        """One table for each place, and one for tasks."""
        columns: list[TableColumn[ConversationMessage]] = [
            TableColumn(_("Message"), lambda each: message_html(message_url(self, each), each.message_type, each.message_id), WIDE),
            TableColumn(_("Time"), lambda each: each.ended or each.sent),
            TableColumn(_("State"), _state),
            TableColumn(_("Endpoint"), lambda each: each.receiving),
            TableColumn(_("Queue"), lambda each: each.queue),
            TableColumn(_("Conversation"), lambda each: link_html(self.conversation_url(each.conversation), each.conversation)),
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
    if rows < MAX_PER_GROUP:
        return str(title)
    return _("%(place)s (the newest %(count)s)") % {"place": title, "count": number(rows)}


# --- Archive ----------------------------------------------------------------------------------------------------------

PAGE_SIZE: Final = 50
# Limits of a file: number of messages, and time of the search.
EXPORTED: Final = 5_000
EXPORT_SECONDS: Final = 20.0
COLUMNS: Final = {name: name for name in (
    "counted_at", "kind", "queue", "row_version", "message_id", "conversation_id", "related_to", "message_type", "intent",
    "sending_endpoint", "endpoint", "sent_at", "started_at", "ended_at", "processing_seconds", "critical_seconds", "body_bytes",
    "is_retried", "exception_type", "exception_message",
)}  # fmt: skip


class LakeSearchAdmin(PageAdmin):
    """The pages of old messages, for users with the permission `sqlqueue_app.view_queue`."""

    routes: ClassVar = {"message": "<str:table>/<str:queue>/<str:day>/<int:row_version>/"}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The matching messages, newest first; those of the last six hours without a query."""
        form = LakeSearchForm(request)
        if not form.is_valid():
            return self.page(request, "lake_search", form=form, **(extra_context or {}))
        is_file = bool(lists.wanted_format(request))
        query = form.query(in_utc(timezone.now()), Cursor.read(request.GET.get("after", "")), EXPORTED if is_file else PAGE_SIZE)
        lake = known_lake(get_settings(), since=query.since and query.since.date(), until=query.until and query.until.date())
        found, problem = _read(lake, lambda where: search(where, lake.files, query, seconds=EXPORT_SECONDS if is_file else SECONDS))
        results = found or Results()
        if is_file:
            answer = lists.export(request, "old messages", COLUMNS, results.messages)
            if results.is_partial or results.next is not None or results.problems or problem:
                answer["X-Sqlqueue-Partial"] = "true"
            return answer
        return self.page(
            request,
            "lake_search",
            form=form,
            lake=lake,
            problem=problem,
            results=results,
            matched=len(results.messages) if results.count is None else results.count,
            is_first=query.after is None,
            exported=EXPORTED,
            table=table(_("Archived messages, newest first"), self._columns(), results.messages) if results.messages else None,
            **(empty_lake(self) if lake.is_empty else {"runs_url": self.url_of(PipelineRun)}),
            **(extra_context or {}),
        )

    def _columns(self) -> list[TableColumn[FoundMessage]]:
        differ = _("the clocks of two machines differ")
        return [
            TableColumn(_("Message"), lambda each: message_html(self.message_url(each), each.message_type, each.message_id), WIDE),
            TableColumn(_("Time"), lambda each: each.counted_at),
            TableColumn(_("State"), lambda each: with_notes(OUTCOME_STATES[MessageOutcome(each.kind)], each.exception_type)),
            TableColumn(_("Endpoint"), lambda each: each.endpoint),
            TableColumn(
                _("Conversation"), lambda each: link_html(self.conversation_url(each.conversation_id), each.conversation_id)
            ),
            TableColumn(_("Processing time"), lambda each: precise_duration(each.processing_seconds), NUMBER),
            TableColumn(
                _("Critical time"),
                lambda each: with_notes(precise_duration(each.critical_seconds), (each.critical_seconds or 0) < 0 and differ),
                NUMBER,
            ),
            TableColumn(_("Body"), lambda each: size_of(each.body_bytes), NUMBER),
        ]

    def message_view(self, request: HttpRequest, table: str, queue: str, day: str, row_version: int) -> HttpResponseBase:
        """One message in full."""
        name = text_of_path(queue)
        crumbs = (Crumb(name), Crumb(f"#{row_version}"))
        try:
            on = parse_date(day)
        except ValueError:  # such as February 30
            on = None
        if table not in SEARCHED or on is None or not 0 < row_version <= LAST_ROW_VERSION:
            return self._gone(request, crumbs)
        lake = known_lake(get_settings(), since=on, until=on, path=f"{table}/")
        files = [each for each in lake.files if each.queue == name]
        with_body = may(request, Permission.VIEW_BODY)
        found, problem = _read(lake, lambda where: read_message(where, files, row_version, with_body=with_body) if files else None)
        if problem:
            return self.problem(request, title=_("The message cannot be read"), text=problem, status=409, crumbs=crumbs)
        if found is None:
            return self._gone(request, crumbs)
        detail = detail_of_lake(found, as_hex="hex" in request.GET)
        return self.page(
            request,
            "lake_message",
            title=f"{found.message_type or _('Message')} {found.message_id}",
            crumbs=crumbs,
            found=found,
            state=OUTCOME_STATES[MessageOutcome(found.kind)],
            archive_url=self.url(),
            **message_page_context(self, request, detail),
        )

    def _gone(self, request: HttpRequest, crumbs: tuple[Crumb, ...]) -> HttpResponse:
        text = _("There is no such message in the lake: its retention may have removed it.")
        return self.message_gone(request, text, crumbs)

    def message_url(self, each: FoundMessage) -> str:
        """The page of a message."""
        return self.url("message", each.table, path_of(each.queue), each.day.isoformat(), each.row_version)


def _read(lake: KnownLake, read: Callable[[str], _Found]) -> tuple[_Found | None, str]:
    """The result of reading the lake, and the reason if it failed."""
    if not lake.lake or lake.problem:
        return None, lake.problem
    try:
        return read(lake.lake), ""
    except (LakeError, LakeEngineMissing) as error:
        return None, str(error)


ALL: Final = "all"
KINDS: Final = lists.choices(
    ((MESSAGES.name, gettext_lazy("handled")), (FAILURES.name, gettext_lazy("failed"))), gettext_lazy("handled and failed")
)


def _text(label: Any, **attributes: str) -> forms.CharField:
    return forms.CharField(label=label, max_length=MAX_LENGTH, widget=forms.TextInput({**PLAIN_INPUT, **attributes}))


class LakeSearchForm(lists.DaysFilter):
    """The fields of the search; bodies are only searched with the permission to view them."""

    id = _text(gettext_lazy("Message id"))
    conversation = _text(gettext_lazy("Conversation"))
    type = _text(gettext_lazy("Message type"), **{"aria-describedby": "sq-help"})
    endpoint = _text(gettext_lazy("Endpoint"), **{"aria-describedby": "sq-help"})
    text = _text(gettext_lazy("Text in headers or body"))
    kind = forms.ChoiceField(label=gettext_lazy("State"), choices=KINDS)
    period = forms.ChoiceField(
        label=gettext_lazy("Period"),
        choices=[*((each.name, each.label) for each in LONG_PERIODS), (ALL, gettext_lazy("all times"))],
    )
    field_order = ("id", "conversation", "type", "endpoint", "text", "kind", "period", "since", "until")

    def __init__(self, request: HttpRequest) -> None:
        """Default to the last six hours; for an id, to all times."""
        super().__init__(request)
        if not self.data.get("period"):
            is_by_id = self.data.get("id") or self.data.get("conversation")
            self.data = {**self.data, "period": ALL if is_by_id else "6h"}
        self.bodies = may(request, Permission.VIEW_BODY)
        if not self.bodies:
            self.fields["text"].label = _("Text in headers")
            self.fields["text"].help_text = _("Bodies are not searched.") + " " + refusal_text(Permission.VIEW_BODY)

    def query(self, now: datetime, after: Cursor | None, size: int) -> SearchQuery:
        """The query of a valid form."""
        values = self.cleaned_data
        since, until = values["since"], values["until"]
        length = next((each.length for each in LONG_PERIODS if each.name == values["period"]), None)
        begin = None if length is None or since is not None or until is not None else now - length
        return SearchQuery(
            values["conversation"],
            values["id"],
            values["type"],
            values["endpoint"],
            values["text"],
            tables=(values["kind"],) if values["kind"] else SEARCHED,
            since=begin if since is None else lists.start_of(since),
            until=None if until is None or until >= date.max else lists.start_of(until + timedelta(days=1)),
            after=after,
            size=size,
            bodies=self.bodies,
        )
