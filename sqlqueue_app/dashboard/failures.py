"""The pages of failed messages: groups, lists with a query bar, one message, pending retries.

Each page updates the index first, with a limit, so that it is correct even if no worker is alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.encoding import escape_uri_path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard import failure_actions, lists
from sqlqueue_app.dashboard.access import Button, Permission, refusal
from sqlqueue_app.dashboard.failure_actions import SAMPLE, WriteNote, found_group
from sqlqueue_app.dashboard.formats import Grade, State, ago_html, bounded_number, number, precise_duration
from sqlqueue_app.dashboard.lists import NUMBER, WIDE, HtmlTable, TableColumn, link_html, table, text_html, with_notes
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.messages import message_context
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, Tab, path_of, query_of
from sqlqueue_app.failures import queries
from sqlqueue_app.failures.index import IndexState, catch_up_for_page
from sqlqueue_app.failures.operation_kinds import error_queue_refusal, label_of_kind
from sqlqueue_app.failures.queries import FailureDetail, GroupRow, PageKey, RetryLocation, RetryPlace
from sqlqueue_app.failures.selection import MAX_IDS, MAX_QUERY_LENGTH, FailureSelection, read_query, write_query
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import FailedAttempt, FailedMessage, FailureStatus, Operation, Queue, Search
from sqlqueue_app.status.queues import known_queue_at, queue_name_at, utc_now
from sqlqueue_app.status.retention import FAILURES_KEPT

# Of a group.
OPERATIONS_SHOWN: Final = 5


# For each list the title, its content, and the statuses of its messages, which a search in the first one may change.
LISTINGS: Final[dict[str, tuple[object, object, tuple[FailureStatus, ...]]]] = {
    "messages": (
        gettext_lazy("Failed messages"),
        gettext_lazy("Failed messages waiting for a decision: retry, archive or delete."),
        (FailureStatus.UNRESOLVED,),
    ),
    "pending": (
        gettext_lazy("Pending retries"),
        gettext_lazy("Messages that were sent for retry. Their endpoint has not acknowledged that it has handled them."),
        (FailureStatus.RETRY_ISSUED,),
    ),
    "archived": (
        gettext_lazy("Archived"),
        gettext_lazy("Archived messages. They are still in their error queue, and can be unarchived."),
        (FailureStatus.ARCHIVED,),
    ),
    "resolved": (gettext_lazy("Resolved"), gettext_lazy("Messages that were handled after a retry."), (FailureStatus.RESOLVED,)),
    "gone": (
        gettext_lazy("Removed"),
        gettext_lazy("Messages that were deleted here, or taken out of their error queue by other means."),
        (FailureStatus.DELETED, FailureStatus.GONE),
    ),
    "unreadable": (
        gettext_lazy("Unreadable"),
        gettext_lazy("Rows of an error queue without a record of what failed or where. They cannot be retried."),
        (FailureStatus.UNRESOLVED,),
    ),
}


class FailureAdmin(PageAdmin):
    """The pages of failed messages. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = failure_actions.FAILURE_ACTIONS

    def pages(self) -> list[URLPattern]:
        """Groups, lists, pending retries, one group, one message."""
        return [
            *super().pages(),
            *(self.readonly_view(f"{name}/", partial(self.list_view, name=name), name) for name in LISTINGS),
            self.readonly_view("group/<uuid:unique>/", self.group_view, "group"),
            self.readonly_view("<uuid:unique>/", self.message_view, "message"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The groups of the unresolved messages by a classifier."""
        now, state = utc_now(), catch_up_for_page(get_settings())
        list_request = ListRequest.read(request.GET, now, FailureStatus.UNRESOLVED)
        selection = list_request.selection
        by = request.GET.get("by", "")
        by = by if by in CLASSIFIERS else next(iter(CLASSIFIERS))
        also = request.GET.get("and", "")
        also = also if also in CLASSIFIERS and also != by else ""
        if lists.wanted_format(request):
            rows = queries.read_groups(selection, by, now=now, also=also, whole=True).groups
            return lists.export(request, f"failure groups by {by} {also}", GROUP_COLUMNS, rows)
        found = queries.read_groups(selection, by, now=now, after=list_request.after, also=also)
        back = f"{escape_uri_path(request.path)}?{query_of(request)}"
        return self._page(
            request,
            "failed_groups",
            state,
            list_request=list_request,
            table=self._groups(request, selection, by, found.groups, back),
            **_counted(queries.count_failures(selection.queryset()), selection),
            classifiers=CLASSIFIER_WORDS.items(),
            by=by,
            also=also,
            first_query=query_of(request, after=None) if list_request.after else None,
            next_query=query_of(request, after=found.next) if found.next else None,
            **(extra_context or {}),
        )

    def _groups(self, request: HttpRequest, selection: FailureSelection, by: str, rows: Sequence[GroupRow], back: str) -> HtmlTable:
        def chosen(row: GroupRow) -> FailureSelection | None:
            """The messages of a row; None if it takes three groups to name them, because a selection has two."""
            named = [each for each in (row.group.pk, row.also and row.also.pk, selection.group, selection.also) if each]
            found = replace(selection, group=named[0], classifier=by, also=named[1] if len(named) > 1 else None)
            return found if len(named) <= 2 else None

        def link(row: GroupRow) -> SafeString:
            found = chosen(row) or FailureSelection(group=row.group.pk, classifier=by, also=row.also.pk if row.also else None)
            is_page = found.statuses == (FailureStatus.UNRESOLVED,)
            url = failure_actions.page_of(self, found) if is_page else f"{self.url('messages')}?{found.to_query()}"
            title, also = (Truncator(each.title if each else "").chars(300) for each in (row.group, row.also))
            note = format_html("{}: {}", row.group.noted_by, row.group.note) if row.group.note else ""
            return with_notes(link_html(url, title), also and text_html(also), note)

        def buttons(row: GroupRow) -> list[Button]:
            return failure_actions.group_buttons(request, self, found, row.group.title, back) if (found := chosen(row)) else []

        columns: list[TableColumn[GroupRow]] = [
            TableColumn(_("Group"), link, WIDE),
            TableColumn(_("Messages"), lambda row: row.count, NUMBER),
            TableColumn(_("Last 24 hours"), lambda row: trend_html(row.trend)),
            TableColumn(_("First"), lambda row: ago_html(row.first)),
            TableColumn(_("Last"), lambda row: ago_html(row.last)),
            TableColumn(_("Actions"), buttons),
        ]
        caption = _("Groups of failures, newest failure first. “Last 24 hours” counts only the latest failure of each message.")
        return table(caption, columns, rows, lambda row: f"{row.group.pk} {row.also.pk if row.also else ''}")

    def group_view(self, request: HttpRequest, unique: UUID) -> HttpResponseBase:
        """The unresolved messages of one group, with its numbers, its newest exception and its note."""
        now, state = utc_now(), catch_up_for_page(get_settings())
        group = found_group(unique)
        key = next((key for key, each in CLASSIFIERS.items() if each.name == group.classifier), "")
        list_request = ListRequest.of(FailureSelection(group=unique, classifier=key), request.GET, FailureStatus.UNRESOLVED)
        selection = list_request.selection
        found = queries.read_group(group, selection, now=now)
        return self._list(
            request,
            list_request,
            state,
            text=_("Group by %(classifier)s") % {"classifier": CLASSIFIER_WORDS.get(key, group.classifier)},
            crumbs=(Crumb(group.title),),
            group=group,
            counted=(found.count if found else 0, True),
            numbers=found,
            trend=trend_html(found.trend) if found else "",
            operations=[(label_of_kind(each.kind), each) for each in queries.read_operations(selection, limit=OPERATIONS_SHOWN)],
            note_buttons=[WriteNote.button(self, request, unique, label=_("Change the note") if group.note else "")],
            sample_url=self.url("retry"),
            sample_refused=refusal(request, Permission.RETRY) or error_queue_refusal(get_settings()),
            sample=SAMPLE,
            max_sample=MAX_IDS,
        )

    def list_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """One of LISTINGS."""
        title, text, statuses = LISTINGS[name]
        now, state = utc_now(), catch_up_for_page(get_settings())
        list_request = ListRequest.read(request.GET, now, *statuses, fixed=name != "messages")
        return self._list(request, list_request, state, name=name, text=text, crumbs=(Crumb(str(title)),))

    def _list(
        self,
        request: HttpRequest,
        list_request: ListRequest,
        state: IndexState,
        *,
        name: str = "",
        counted: tuple[int, bool] | None = None,
        **context: Any,
    ) -> HttpResponseBase:
        """A page of messages with the query bar, or all of them as a file."""
        selection = list_request.selection
        messages: QuerySet[FailedMessage] = selection.queryset()
        if name == "unreadable":
            messages = messages.exclude(poison="")
        if lists.wanted_format(request):
            file_name = "pending retries" if name == "pending" else f"failed {name or 'messages'}"
            return lists.export(request, file_name, MESSAGE_COLUMNS, _exported_failures(messages))
        found = queries.read_failures(messages, after=list_request.after, size=list_request.size)
        # A selection cannot express that headers are unreadable.
        actions = failure_actions.failure_buttons(request, self, selection) if found.messages else []
        is_selected = request.GET.get("select") == "page"
        back = f"{escape_uri_path(request.path)}?{query_of(request, select=None)}"
        return self._page(
            request,
            "failed_messages",
            state,
            name,
            list_request=list_request,
            bar_url=self.url(name or "messages"),
            table=self._messages(request, name, found.messages, back, is_selected if actions else None),
            **_counted(counted or queries.count_failures(messages, None if list_request.after else found), selection),
            buttons=[] if name == "unreadable" else actions,
            chosen=[replace(each, url=each.url.partition("?")[0]) for each in actions],
            newest=found.messages[0] if found.messages and not list_request.after else None,
            is_selected=is_selected,
            back=back,
            sizes=queries.PAGE_SIZES,
            first_query=query_of(request, after=None, select=None) if list_request.after else None,
            next_query=query_of(request, after=found.next, select=None) if found.next else None,
            **context,
        )

    def _messages(
        self, request: HttpRequest, name: str, messages: Sequence[FailedMessage], back: str, is_selected: bool | None
    ) -> HtmlTable:
        """The table of a list; its rows can be selected unless `is_selected` is None."""

        def message(each: FailedMessage) -> SafeString:
            box = '<input type="checkbox" name="ids" value="{}" aria-label="{}"{}> '
            label, checked = _("Select %(id)s") % {"id": each.message_id}, SafeString(" checked" if is_selected else "")
            link = link_html(self.url("message", each.pk), Truncator(each.message_type or _("without a type")).chars(200))
            cell = with_notes(link, format_html('<span class="sq-mono">{}</span>', text_html(each.message_id)))
            return cell if is_selected is None else format_html(box, each.pk, label, checked) + cell

        def exception(each: FailedMessage) -> SafeString:
            return with_notes(each.exception_type, Truncator(each.poison or each.exception_message).chars(200))

        columns: list[TableColumn[FailedMessage]] = [TableColumn(_("Message"), message, WIDE)]
        if name == "pending":
            where = queries.find_retries(get_settings(), messages)
            columns += [
                TableColumn(_("Sent to"), lambda each: queue_name_at(each.retried_to), WIDE),
                TableColumn(_("Sent for retry"), lambda each: ago_html(each.status_at)),
                TableColumn(_("Why it is pending"), lambda each: _reason(each, where[each.pk]), WIDE),
            ]
        else:
            columns += [
                TableColumn(_("Endpoint"), lambda each: each.endpoint),
                TableColumn(_("Exception"), exception, WIDE),
                TableColumn(_("Failures"), lambda each: each.attempts, NUMBER),
                TableColumn(_("Last failed"), lambda each: ago_html(each.failed_at)),
                TableColumn(_("State"), state_of),
            ]
        columns.append(TableColumn(_("Actions"), failure_actions.row_buttons(request, self, back)))
        return table(_("Messages, newest failure first"), columns, messages, lambda each: each.pk)

    def message_view(self, request: HttpRequest, unique: UUID) -> HttpResponse:
        """One failed message in full."""
        state = catch_up_for_page(get_settings())
        found = queries.read_failure(get_settings(), unique, as_hex="hex" in request.GET)
        if found is None:
            raise Http404(_("There is no such failed message: it was deleted from the index, or was never in it."))
        message, failed_in = found.message, known_queue_at(get_settings(), found.message.failed_q)
        return self._page(
            request,
            "failed_message",
            state,
            title=_("Failed message %(id)s") % {"id": message.message_id},
            crumbs=(Crumb(message.message_id),),
            failure=message,
            failed_in=queue_name_at(message.failed_q),
            failed_in_url=self.url_of(Queue, "messages", path_of(failed_in.name)) if failed_in else "",
            buttons=failure_actions.failure_buttons(request, self, FailureSelection(ids=(message.pk,)), message),
            failure_state=state_of(message),
            kept_days=FAILURES_KEPT.days,
            life=life_table(self, found, state_of(message), _reason(message, found.location) if found.location else None),
            groups=[(str(CLASSIFIER_WORDS[key]), each, self.url("group", each.pk)) for key, each in found.groups],
            found=found,
            table=found.table and found.table.qualified,
            **(message_context(request, found.row) if found.row else {"message": None}),
        )

    def _page(self, request: HttpRequest, template: str, state: IndexState, name: str = "", **context: Any) -> HttpResponse:
        tabs = [
            Tab(_("Groups"), self.url(), template == "failed_groups"),
            *(Tab(str(title), self.url(key), key == name) for key, (title, _text, _statuses) in LISTINGS.items()),
        ]
        is_ours = get_settings().error_queue_owner == "sqlqueue"
        # Pages of one message, and pages with selected messages, do not refresh: the selection would grow.
        live = None if template == "failed_message" or context.get("is_selected") else LIVE_SECONDS
        return self.page(request, template, lists=tabs, index=state, is_ours=is_ours, live_seconds=live, **context)


# --- Rows -------------------------------------------------------------------------------------------------------------

# Link texts of the classifiers.
CLASSIFIER_WORDS: Mapping[str, object] = {
    "exception": gettext_lazy("Exception and stack trace"), "type": gettext_lazy("Message type"),
    "address": gettext_lazy("Queue"), "instance": gettext_lazy("Instance"), "endpoint": gettext_lazy("Endpoint"),
}  # fmt: skip
_STATUSES: Final[Mapping[int, Grade]] = {
    FailureStatus.UNRESOLVED: Grade.ERROR, FailureStatus.RESOLVED: Grade.OK, FailureStatus.GONE: Grade.WARNING,
}  # fmt: skip
_PLACES: Final = {RetryPlace.TAKEN: Grade.WARNING, RetryPlace.NO_QUEUE: Grade.ERROR, RetryPlace.UNREADABLE: Grade.ERROR}
_LONGEST_BAR = 20


def trend_html(pieces: Sequence[int]) -> SafeString:
    """The failures of the last 24 hours as bars with a text."""
    highest, failures = max(pieces, default=0) or 1, sum(pieces)
    text = ngettext("%(count)s failure in 24 hours", "%(count)s failures in 24 hours", failures) % {"count": number(failures)}
    if failures:
        hours = queries.PIECE // timedelta(hours=1)
        text += _("; %(recent)s in the last %(hours)d h") % {"hours": hours, "recent": number(pieces[-1])}
    heights = [(place * 5, max(round(each * _LONGEST_BAR / highest), 1)) for place, each in enumerate(pieces) if each]
    bars = [(x, _LONGEST_BAR - height, height) for x, height in heights]
    return lists.template_html("trend", bars=bars, text=text, width=queries.PIECES * 5, height=_LONGEST_BAR)


def state_of(message: FailedMessage) -> State:
    """The state of the message as text."""
    if message.poison and message.status == FailureStatus.UNRESOLVED:
        return State(Grade.ERROR, _("Unreadable"))
    if message.attempts > 1 and message.status == FailureStatus.UNRESOLVED:
        return State(Grade.ERROR, _("Failed again"))
    return State(_STATUSES.get(message.status, Grade.INFO), capfirst(str(FailureStatus(message.status).label)))


def _reason(message: FailedMessage, found: RetryLocation) -> State:
    """Why a retry is pending."""
    queue = queue_name_at(message.retried_to) or _("its queue")
    words = {"queue": queue, "number": found.row_version, "error": found.detail}
    return State(_PLACES.get(found.where, Grade.INFO), str(found.where.label) % words)


def _counted(counted: tuple[int, bool], selection: FailureSelection) -> dict[str, str]:
    """Template variables: the number of matching messages, and that number with a description of what it counts."""
    count, exact = counted
    text = bounded_number(count, exact=exact).text
    words = ngettext("%(count)s message: %(scope)s", "%(count)s messages: %(scope)s", count)
    return {"matching": text, "scope": words % {"count": text, "scope": selection.in_words()}}


# --- History ----------------------------------------------------------------------------------------------------------


class LifeStep(NamedTuple):
    """A step in the life of a message: when, what, where, duration, and details."""

    at: datetime | None
    state: State
    place: object = ""
    took: str = ""
    details: object = ""


def life_table(pages: PageAdmin, found: FailureDetail, state: State, location: State | None) -> HtmlTable:
    """The steps, newest first. `state` is the message's own, `location` the place of a pending retry."""
    columns: list[TableColumn[LifeStep]] = [
        TableColumn(_("When"), lambda each: each.at),
        TableColumn(_("What"), lambda each: each.state),
        TableColumn(_("Where"), lambda each: each.place),
        TableColumn(_("Duration"), lambda each: each.took),
        TableColumn(_("Details"), lambda each: each.details, WIDE),
    ]
    return table(_("What happened to the message, the newest first."), columns, _life_steps(pages, found, state, location))


def _life_steps(pages: PageAdmin, found: FailureDetail, state: State, location: State | None) -> Iterator[LifeStep]:
    yield _present_step(pages, found, state, location)
    for attempt in found.attempts:
        if attempt.retried_at is not None:
            what, details = _reaction(pages, found, attempt)
            yield LifeStep(attempt.retried_at, State(Grade.INFO, what), details=details)
        took = precise_duration(attempt.failed_at - attempt.started_at) if attempt.started_at else ""
        exception = with_notes(attempt.exception_type, attempt.exception_message[:300])
        queue = queue_name_at(attempt.failed_q)
        yield LifeStep(attempt.failed_at, State(Grade.ERROR, _("Failed")), with_notes(queue, attempt.worker), took, exception)
        if attempt.delayed_at is not None:
            delayed, last = State(Grade.INFO, _("Delayed retry")), _("the last one before it failed")
            yield LifeStep(attempt.delayed_at, delayed, queue, details=last)
    if found.message.sent_at is not None:
        headers = (found.row.headers if found.row else None) or {}
        yield LifeStep(found.message.sent_at, State(Grade.INFO, _("Sent")), headers.get(names.ORIGINATING_ENDPOINT))


def _present_step(pages: PageAdmin, found: FailureDetail, state: State, location: State | None) -> LifeStep:
    message = found.message
    if message.row_version is not None:
        return LifeStep(message.state_since, State(state.level, _("In the error queue")), message.queue, details=state.word)
    newest = next((each.copy_id for each in found.attempts if each.copy_id), "")
    details: object = location
    if message.status == FailureStatus.RESOLVED:
        details = _search_link(pages, newest or message.message_id, _("Search for the handled message"))
    elif message.status == FailureStatus.RETRY_ISSUED and newest in found.copies:
        details = _("Its edited copy has failed. This message is resolved when the copy is handled.")
    is_removed = message.status in (FailureStatus.DELETED, FailureStatus.GONE)
    place = message.queue if is_removed else queue_name_at(message.retried_to)
    return LifeStep(message.status_at, state, place, details=details)


def _reaction(pages: PageAdmin, found: FailureDetail, attempt: FailedAttempt) -> tuple[str, object]:
    """The reaction to a failure, with its author or the new message."""
    if text := attempt.copy_id:
        copy = found.copies.get(text)
        link = link_html(pages.url("message", copy.pk), text) if copy else _search_link(pages, text, text)
        return _("Edited and retried"), format_html(_("As message {}"), link)
    operation = found.operations.get(attempt.operation) if attempt.operation else None
    if operation is None:
        return _("Retried"), ""
    by = _("Requested by %(user)s") % {"user": operation.user_name or "–"}
    return _("Retried"), format_html("{}. {}", by, link_html(pages.url_of(Operation, "operation", operation.pk), _("Results")))


def _search_link(pages: PageAdmin, message_id: str, text: str) -> SafeString:
    return link_html(f"{pages.url_of(Search)}?{urlencode({'q': message_id})}", text)


# --- List requests ----------------------------------------------------------------------------------------------------

# The parameter of the query bar; without it the URL contains the parts of a selection.
BAR: Final = "q"
# More than the query bar accepts, so that it reports a too long query.
MAX_BAR_LENGTH: Final = 2 * MAX_QUERY_LENGTH


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A selection and a page of it. `text` is the content of the query bar."""

    selection: FailureSelection
    text: str
    after: PageKey | None
    size: int

    @classmethod
    def read(cls, query: QueryDict, now: datetime, *statuses: FailureStatus, fixed: bool = False) -> ListRequest:
        """Parse a query string. `statuses` are the default, or with `fixed` always used."""
        text = query.get(BAR, "").strip()[:MAX_BAR_LENGTH]
        parsed = read_query(text, now) if BAR in query else FailureSelection.from_query(query)
        found = cls.of(parsed, query, *statuses)
        selection = replace(parsed, statuses=statuses) if fixed else found.selection
        return replace(found, selection=selection, text=text if BAR in query else found.text)

    @classmethod
    def of(cls, selection: FailureSelection, query: QueryDict, *statuses: FailureStatus) -> ListRequest:
        """A page of a selection that the URL path defines."""
        size = next((each for each in queries.PAGE_SIZES if query.get("size") == str(each)), queries.PAGE_SIZES[0])
        return cls(selection.or_statuses(*statuses), write_query(selection), PageKey.read(query.get("after", "")), size)


# --- Exports ----------------------------------------------------------------------------------------------------------

# Without headers and bodies, which are only in the error queue.
MESSAGE_COLUMNS: Final = (
    "id", "status", "message_id", "message_type", "endpoint", "failed_q", "queue", "exception_type", "exception_message", "poison",
    "attempts", "first_failed_at", "failed_at", "sent_at", "status_at", "conversation_id", "size", "retried_to",
)  # fmt: skip
GROUP_COLUMNS: Final = {
    "id": "group.pk", "classifier": "group.classifier", "title": "group.title", "messages": "count", "first": "first",
    "last": "last", "note": "group.note", "noted_by": "group.noted_by", "noted_at": "group.noted_at",
    "also_id": "also.pk", "also_classifier": "also.classifier", "also_title": "also.title",
}  # fmt: skip


def _exported_failures(messages: QuerySet[FailedMessage]) -> Iterator[tuple[Any, ...]]:
    """One row per message, newest failure first."""
    for row in messages.order_by("-failed_at", "-pk").values_list(*MESSAGE_COLUMNS).iterator(chunk_size=1_000):
        yield row[0], FailureStatus(row[1]).name.lower(), *row[2:]
