"""The pages of failed messages: groups, lists with a query bar, one message, pending retries.

Each page updates the index first, with a bound, so that it is right even if no worker is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, may, refusal, refusal_text
from sqlqueue_app.dashboard.actions import Action
from sqlqueue_app.dashboard.failure_actions import FAILURE_ACTIONS, SAMPLE, WriteNote, failure_buttons, found_group
from sqlqueue_app.dashboard.formats import Grade, Number, Stamp, State, bounded_number, duration, number, size_of, stamp, stamp_of
from sqlqueue_app.dashboard.life import life_table
from sqlqueue_app.dashboard.lists import export, wanted_format
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.messages import body_text, header_groups, message_row
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, Tab, path_of
from sqlqueue_app.failures.index import IndexState, catch_up
from sqlqueue_app.failures.operation_kinds import error_queue_refusal
from sqlqueue_app.failures.queries import (
    PAGE_SIZES,
    PIECE,
    PIECES,
    FailureDetail,
    GroupRow,
    PageKey,
    RetryLocation,
    Whereabouts,
    count_failures,
    find_retries,
    read_failure,
    read_failures,
    read_groups,
    traces_of,
)
from sqlqueue_app.failures.selection import LONGEST, MOST_IDS, FailureSelection, read_query, write_query
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import Endpoint, FailedMessage, FailureStatus, Operation, Queue
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.status.retention import FAILURES_KEPT

# New rows that are indexed before a page is shown; a worker reads the rest.
READ_BY_A_PAGE: Final = 500
QUEUES_OF_A_PAGE: Final = 2
# Of a group.
OPERATIONS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of messages with certain statuses. `is_poison`: only messages with unreadable headers."""

    title: object
    text: object
    statuses: tuple[FailureStatus, ...]
    is_fixed: bool = True
    is_poison: bool = False


LISTINGS: Final[dict[str, Listing]] = {
    "messages": Listing(
        gettext_lazy("Messages"),
        gettext_lazy("Messages in an error queue that wait to be retried, archived or deleted."),
        (FailureStatus.UNRESOLVED,),
        is_fixed=False,
    ),
    "archived": Listing(
        gettext_lazy("Archived"),
        gettext_lazy("Archived messages. They are still in their error queue, and can be unarchived."),
        (FailureStatus.ARCHIVED,),
    ),
    "resolved": Listing(
        gettext_lazy("Resolved"), gettext_lazy("Messages that were handled after a retry."), (FailureStatus.RESOLVED,)
    ),
    "gone": Listing(
        gettext_lazy("Removed"),
        gettext_lazy("Messages that were deleted here, or taken out of their error queue by other means."),
        (FailureStatus.DELETED, FailureStatus.GONE),
    ),
    "unreadable": Listing(
        gettext_lazy("Unreadable"),
        gettext_lazy("Rows of an error queue that do not tell what failed, or where. They cannot be retried."),
        (FailureStatus.UNRESOLVED,),
        is_poison=True,
    ),
}


class FailureAdmin(PageAdmin):
    """The pages of failed messages. They need the permission `sqlqueue_app.view_queue`."""

    def action_classes(self) -> Sequence[type[Action]]:
        return FAILURE_ACTIONS

    def pages(self) -> list[URLPattern]:
        """Groups, lists, pending retries, one group, one message."""
        return [
            self.readonly_view("", self.changelist_view),
            *(self.readonly_view(f"{name}/", self._view_of(name), name) for name in LISTINGS),
            self.readonly_view("pending/", self.pending_view, "pending"),
            self.readonly_view("group/<uuid:unique>/", self.group_view, "group"),
            self.readonly_view("<uuid:unique>/", self.message_view, "message"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The groups of the unresolved messages by a classifier."""
        now = timezone.now()
        state = self._catch_up(now)
        list_request = ListRequest.read(request.GET, now, FailureStatus.UNRESOLVED)
        by = request.GET.get("by", "")
        by = by if by in CLASSIFIERS else next(iter(CLASSIFIERS))
        also = request.GET.get("and", "")
        also = also if also in CLASSIFIERS and also != by else ""
        if wanted_format(request):
            return export(
                request, f"failure groups by {by} {also}", GROUP_COLUMNS, exported_groups(list_request.selection, by, now, also)
            )
        found = read_groups(list_request.selection, by, now=now, after=list_request.after, also=also)
        count, exact = count_failures(list_request.selection.queryset())
        return self._page(
            request,
            "failed_groups",
            "",
            state,
            title=_("Groups of failures"),
            list_request=list_request,
            groups=[group_text(each, self._group_url(each, by)) for each in found.groups],
            scope=scope_in_words(count, list_request.selection.in_words(), exact=exact),
            classifiers=[Tab(str(word), _groups_by(list_request, key, also), key == by) for key, word in CLASSIFIER_WORDS.items()],
            others=[
                Tab("–", _groups_by(list_request, by, ""), not also),
                *(
                    Tab(str(word), _groups_by(list_request, by, key), key == also)
                    for key, word in CLASSIFIER_WORDS.items()
                    if key != by
                ),
            ],
            first_url=_groups_by(list_request, by, also) if list_request.after else "",
            next_url=_groups_by(list_request, by, also, found.next) if found.next else "",
            trend_width=TREND_WIDTH,
            trend_height=TREND_HEIGHT,
            **(extra_context or {}),
        )

    def _group_url(self, row: GroupRow, by: str) -> str:
        """The messages of a group; for a pair, the messages in both."""
        if row.also is None:
            return self.url("group", row.group.pk)
        selection = FailureSelection(group=row.group.pk, classifier=by, also=row.also.pk)
        return f"{self.url('messages')}?{selection.to_query()}"

    def group_view(self, request: HttpRequest, unique: UUID) -> HttpResponseBase:
        """The unresolved messages of one group, and its note."""
        now = timezone.now()
        state = self._catch_up(now)
        group = found_group(unique)
        classifier = next((each for each in CLASSIFIERS.values() if each.name == group.classifier), None)
        selection = FailureSelection(group=unique, classifier=classifier.key if classifier else "")
        list_request = ListRequest.of(selection, request.GET, FailureStatus.UNRESOLVED)
        note = WriteNote.button(self, request, unique, label=_("Change the note") if group.note else "")
        return self._list(
            request,
            list_request,
            state,
            title=group.title,
            text=_("Group by %(classifier)s") % {"classifier": group.classifier},
            crumbs=(Crumb(group.title),),
            group=group,
            operations=self._operations(selection),
            noted_at=stamp_of(group.noted_at),
            note_buttons=[note],
            sample_url=self.url("retry"),
            sample_refused=refusal(request, Permission.RETRY) or error_queue_refusal(get_settings()),
            sample=SAMPLE,
            most=MOST_IDS,
        )

    def _operations(self, selection: FailureSelection) -> list[tuple[Operation, str]]:
        """The last operations on messages of a selection, whatever became of them, with their pages."""
        alias = managed_alias()
        changed = replace(selection, statuses=tuple(FailureStatus)).queryset().exclude(operation=None).values("operation")
        found = Operation.objects.using(alias).filter(pk__in=changed).order_by("-requested_at", "-pk")[:OPERATIONS_SHOWN]
        return [(each, self.url_of(Operation, "operation", each.pk)) for each in found]

    def _view_of(self, name: str) -> Any:
        listing = LISTINGS[name]

        def view(request: HttpRequest) -> HttpResponseBase:
            now = timezone.now()
            state = self._catch_up(now)
            list_request = ListRequest.read(request.GET, now, *listing.statuses, fixed=listing.is_fixed)
            title = str(listing.title)
            return self._list(
                request,
                list_request,
                state,
                name=name,
                title=title,
                text=listing.text,
                crumbs=(Crumb(title),),
                poison=listing.is_poison,
            )

        return view

    def _list(
        self,
        request: HttpRequest,
        list_request: ListRequest,
        state: IndexState,
        *,
        name: str = "",
        poison: bool = False,
        **context: Any,
    ) -> HttpResponseBase:
        """A page of messages with the query bar, or all of them as a file."""
        messages: QuerySet[FailedMessage] = list_request.selection.queryset()
        if poison:
            messages = messages.exclude(poison="")
        if wanted_format(request):
            return export(request, f"failed {name or 'messages'}", MESSAGE_COLUMNS, exported_failures(messages))
        actions = failure_buttons(request, self, list_request.selection)
        found = read_failures(messages, after=list_request.after, size=list_request.size)
        count, exact = count_failures(messages)
        return self._page(
            request,
            "failed_messages",
            name,
            state,
            list_request=list_request,
            bar_url=self.url(name or "messages"),
            rows=[listed_failure(each, self.url("message", each.pk)) for each in found.messages],
            scope=scope_in_words(count, list_request.selection.in_words(), exact=exact),
            # A selection cannot express that headers are unreadable.
            buttons=() if poison or not found.messages else actions,
            chosen=_for_chosen(actions),
            **self._paging(list_request, found.next),
            **context,
        )

    def _paging(self, list_request: ListRequest, following: object) -> dict[str, Any]:
        return {
            "first_url": list_request.address(size=list_request.size) if list_request.after else "",
            "next_url": list_request.address(size=list_request.size, after=following) if following else "",
            "sizes": [
                Tab(number(each), list_request.address(size=each, after=list_request.after), each == list_request.size)
                for each in PAGE_SIZES
            ],
        }

    def pending_view(self, request: HttpRequest) -> HttpResponseBase:
        """Retried messages that are not acknowledged, each with the reason."""
        now = timezone.now()
        state = self._catch_up(now)
        list_request = ListRequest.read(request.GET, now, FailureStatus.RETRY_ISSUED, fixed=True)
        messages = list_request.selection.queryset()
        if wanted_format(request):
            return export(request, "pending retries", MESSAGE_COLUMNS, exported_failures(messages))
        found = read_failures(messages, after=list_request.after, size=list_request.size)
        count, exact = count_failures(messages)
        actions = failure_buttons(request, self, list_request.selection)
        where = find_retries(get_settings(), found.messages)
        return self._page(
            request,
            "failed_pending",
            "pending",
            state,
            title=_("Pending retries"),
            crumbs=(Crumb(_("Pending retries")),),
            list_request=list_request,
            bar_url=self.url("pending"),
            buttons=actions if found.messages else (),
            chosen=_for_chosen(actions),
            rows=[pending_text(each, where[each.pk], self.url("message", each.pk), now) for each in found.messages],
            scope=scope_in_words(count, list_request.selection.in_words(), exact=exact),
            **self._paging(list_request, found.next),
        )

    def message_view(self, request: HttpRequest, unique: UUID) -> HttpResponse:
        """One failed message in full."""
        state = self._catch_up(timezone.now())
        found = read_failure(get_settings(), unique, as_hex="hex" in request.GET)
        if found is None:
            raise Http404(_("There is no such failed message: it was deleted from the index, or never was in it."))
        message = found.message
        title = _("Failed message %(id)s") % {"id": message.message_id}
        return self._page(
            request,
            "failed_message",
            "",
            state,
            title=title,
            crumbs=(Crumb(message.message_id),),
            failure=message,
            buttons=failure_buttons(request, self, FailureSelection(ids=(message.pk,))),
            failure_state=state_of(message),
            status_at=stamp(message.status_at),
            size=size_of(message.size),
            edit_url=self.url("message", message.edit_of) if message.edit_of else "",
            conversation_url=self.conversation_url(message.conversation_id),
            endpoint_url=self.url_of(Endpoint, "endpoint", path_of(message.endpoint)) if message.endpoint else "",
            kept_days=FAILURES_KEPT.days,
            life=life_table(self, found, state_of(message), _reason(message, found.location).word if found.location else ""),
            groups=[(str(CLASSIFIER_WORDS[key]), each, self.url("group", each.pk)) for key, each in found.groups],
            found=found,
            **self._row(request, found),
        )

    def _row(self, request: HttpRequest, found: FailureDetail) -> dict[str, Any]:
        """Template variables for the row in the error queue."""
        if found.row is None or found.table is None or found.queue is None:
            return {"message": None}
        wanted = request.GET.get("header", "").strip()
        dotnet, python = traces_of(found.row)
        queue_page = self.url_of(Queue, "message", path_of(found.queue.name), found.row.summary.row_version)
        return {
            "message": found.row,
            "row": message_row(found.row.summary, ""),
            "table": found.table.qualified,
            "queue_url": queue_page,
            "header": wanted,
            "header_groups": header_groups(found.row, wanted),
            "body": body_text(found.row.body) if may(request, Permission.VIEW_BODY) else None,
            "body_refused": refusal_text(Permission.VIEW_BODY),
            "dotnet": dotnet,
            "python": python,
        }

    def _page(self, request: HttpRequest, template: str, name: str, state: IndexState, **context: Any) -> HttpResponse:
        lists = [
            Tab(_("Groups"), self.url(), template == "failed_groups"),
            *(Tab(str(each.title), self.url(key), key == name) for key, each in LISTINGS.items()),
        ]
        lists.insert(2, Tab(_("Pending retries"), self.url("pending"), name == "pending"))
        owner = get_settings().error_queue_owner
        # The page of one message does not refresh.
        live = None if template == "failed_message" else LIVE_SECONDS
        return self.page(request, template, lists=lists, index=state, is_ours=owner == "sqlqueue", live_seconds=live, **context)

    def _catch_up(self, now: datetime) -> IndexState:
        """Update the index."""
        return catch_up(get_settings(), limit=READ_BY_A_PAGE, now=now, queues_at_most=QUEUES_OF_A_PAGE)


def _groups_by(list_request: ListRequest, by: str, also: str, after: PageKey | None = None) -> str:
    """The URL of the groups by one or two classifiers, which must differ."""
    return list_request.address(by=by, **{"and": "" if also == by else also, "after": after})


def _for_chosen(actions: Sequence[Button]) -> list[Button]:
    """The same actions for the selected messages, which the form lists."""
    return [replace(each, url=each.url.partition("?")[0]) for each in actions]


# --- Rows -------------------------------------------------------------------------------------------------------------

# Link texts of the classifiers.
CLASSIFIER_WORDS: Mapping[str, object] = {
    "exception": gettext_lazy("Exception and stack trace"),
    "type": gettext_lazy("Message type"),
    "address": gettext_lazy("Queue"),
    "instance": gettext_lazy("Instance"),
    "endpoint": gettext_lazy("Endpoint"),
}
STATUS_WORDS: Mapping[int, tuple[Grade, object]] = {
    FailureStatus.UNRESOLVED: (Grade.ERROR, gettext_lazy("Unresolved")),
    FailureStatus.RESOLVED: (Grade.OK, gettext_lazy("Resolved")),
    FailureStatus.RETRY_ISSUED: (Grade.INFO, gettext_lazy("Retry issued")),
    FailureStatus.ARCHIVED: (Grade.INFO, gettext_lazy("Archived")),
    FailureStatus.DELETED: (Grade.INFO, gettext_lazy("Deleted")),
    FailureStatus.GONE: (Grade.WARNING, gettext_lazy("Gone from the error queue")),
}
_LONGEST_BAR = 20


@dataclass(frozen=True, slots=True)
class Trend:
    """The failures of the last 24 hours as text and as bars, each with x, y and height."""

    bars: tuple[tuple[int, int, int], ...]
    text: str


@dataclass(frozen=True, slots=True)
class GroupText:
    """A row of the table of groups."""

    found: GroupRow
    url: str
    count: Number
    first: Stamp
    last: Stamp
    trend: Trend
    noted_at: Stamp | None


@dataclass(frozen=True, slots=True)
class ListedFailure:
    """A row of a table of failed messages; `why` is set for pending retries."""

    message: FailedMessage
    url: str
    name: str
    exception_message: str
    failed_at: Stamp
    attempts: str
    state: State
    why: State | None = None
    since: str = ""


def group_text(row: GroupRow, url: str) -> GroupText:
    """The row of a group."""
    return GroupText(
        found=row,
        url=url,
        count=Number(row.count, number(row.count)),
        first=stamp(row.first),
        last=stamp(row.last),
        trend=trend_of(row.trend),
        noted_at=stamp_of(row.group.noted_at),
    )


def trend_of(pieces: tuple[int, ...]) -> Trend:
    """Bars scaled to a height of 20, and a text."""
    most = max(pieces, default=0) or 1
    heights = [max(round(each * _LONGEST_BAR / most), 1) if each else 0 for each in pieces]
    bars = tuple((place * 5, _LONGEST_BAR - height, height) for place, height in enumerate(heights) if height)
    failures, recent = sum(pieces), pieces[-1] if pieces else 0
    text = ngettext("%(count)s failure in 24 hours", "%(count)s failures in 24 hours", failures) % {"count": number(failures)}
    if failures:
        hours = PIECE // timedelta(hours=1)
        text += _("; in the last %(hours)d of them %(recent)s") % {"hours": hours, "recent": number(recent)}
    return Trend(bars, text)


TREND_WIDTH = PIECES * 5
TREND_HEIGHT = _LONGEST_BAR


def listed_failure(message: FailedMessage, url: str) -> ListedFailure:
    """The row of a message."""
    return ListedFailure(
        message=message,
        url=url,
        name=message.message_type or _("without a type"),
        exception_message=message.poison or message.exception_message,
        failed_at=stamp(message.failed_at),
        attempts=number(message.attempts),
        state=state_of(message),
    )


def state_of(message: FailedMessage) -> State:
    """The state of the message as text."""
    if message.poison and message.status == FailureStatus.UNRESOLVED:
        return State(Grade.ERROR, _("Unreadable"))
    if message.attempts > 1 and message.status == FailureStatus.UNRESOLVED:
        return State(Grade.ERROR, _("Failed again"))
    level, word = STATUS_WORDS[message.status]
    return State(level, str(word))


def pending_text(message: FailedMessage, found: RetryLocation, url: str, now: datetime) -> ListedFailure:
    """The row of a pending retry with the reason."""
    since = duration(now - message.status_at)
    return replace(listed_failure(message, url), why=_reason(message, found), since=since)


def _reason(message: FailedMessage, found: RetryLocation) -> State:
    queue = message.retried_to or _("its queue")
    reasons: Mapping[Whereabouts, tuple[Grade, Callable[[], str]]] = {
        Whereabouts.WAITING: (
            Grade.INFO,
            lambda: _("It waits in “%(queue)s” as number %(number)s.") % {"queue": queue, "number": found.row_version},
        ),
        Whereabouts.TAKEN: (
            Grade.WARNING,
            lambda: (
                _(
                    "It was received from “%(queue)s”, but not acknowledged: it is being handled, waits for a delayed retry, "
                    "or its endpoint does not acknowledge retries."
                )
                % {"queue": queue}
            ),
        ),
        Whereabouts.NOT_FOUND: (
            Grade.INFO,
            lambda: (
                _("It is not among the first messages of “%(queue)s”: it was received, or waits further back.") % {"queue": queue}
            ),
        ),
        Whereabouts.NO_QUEUE: (Grade.ERROR, lambda: _("The queue “%(queue)s” does not exist any more.") % {"queue": queue}),
        Whereabouts.UNREADABLE: (
            Grade.ERROR,
            lambda: _("The queue “%(queue)s” cannot be read: %(error)s") % {"queue": queue, "error": found.detail},
        ),
        Whereabouts.UNKNOWN: (Grade.INFO, lambda: _("It was not looked for in “%(queue)s”.") % {"queue": queue}),
    }
    level, text = reasons[found.where]
    return State(level, text())


def scope_in_words(count: int, scope: str, *, exact: bool) -> str:
    """A number of messages with a description of what it counts."""
    text = bounded_number(count, exact=exact).text
    return ngettext("%(count)s message: %(scope)s", "%(count)s messages: %(scope)s", count) % {"count": text, "scope": scope}


# --- List requests ----------------------------------------------------------------------------------------------------

# The parameter of the query bar; without it the URL contains the parts of a selection.
BAR: Final = "q"
# More than the query bar accepts, so that it reports a too long query.
LONGEST_BAR: Final = 2 * LONGEST


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A selection and a page of it. `text` is the content of the query bar, `query` the selection as URL parameters."""

    selection: FailureSelection
    text: str
    query: str
    after: PageKey | None
    size: int

    @classmethod
    def read(cls, query: QueryDict, now: datetime, *statuses: FailureStatus, fixed: bool = False) -> ListRequest:
        """Parse a query string. `statuses` are the default, or with `fixed` always used."""
        text = query.get(BAR, "").strip()
        said = read_query(text, now) if BAR in query else FailureSelection.from_query(query)
        selection = replace(said, statuses=statuses) if fixed else said.or_statuses(*statuses)
        text = text[:LONGEST_BAR] if BAR in query else write_query(said)
        address = urlencode({BAR: text}) if BAR in query else said.to_query()
        return cls(selection, text, address, _after(query), _size(query))

    @classmethod
    def of(cls, selection: FailureSelection, query: QueryDict, *statuses: FailureStatus) -> ListRequest:
        """A page of a selection that the URL path defines."""
        return cls(selection.or_statuses(*statuses), write_query(selection), "", _after(query), _size(query))

    def address(self, **more: object) -> str:
        """The query string of the list with further parameters."""
        return "?" + "&".join(filter(None, (self.query, urlencode({name: str(value) for name, value in more.items() if value}))))


def _after(query: QueryDict) -> PageKey | None:
    return PageKey.read(query.get("after", ""))


def _size(query: QueryDict) -> int:
    size = query.get("size", "")
    return next((each for each in PAGE_SIZES if size == str(each)), PAGE_SIZES[0])


# --- Exports ----------------------------------------------------------------------------------------------------------

# Without headers and bodies, which are only in the error queue.
MESSAGE_COLUMNS: Final = (
    "id", "status", "message_id", "message_type", "endpoint", "failed_q", "queue", "exception_type", "exception_message", "poison",
    "attempts", "first_failed_at", "failed_at", "sent_at", "status_at", "conversation_id", "size", "retried_to",
)  # fmt: skip
GROUP_COLUMNS: Final = (
    *("id", "classifier", "title", "messages", "first", "last", "note", "noted_by", "noted_at"),
    *("also_id", "also_classifier", "also_title"),
)
_READ_AT_ONCE: Final = 1_000


def exported_failures(messages: QuerySet[FailedMessage]) -> Iterator[tuple[Any, ...]]:
    """One row per message, read a thousand at a time."""
    after: PageKey | None = None
    while True:
        page = read_failures(messages, after=after, size=_READ_AT_ONCE)
        for each in page.messages:
            values = {name: getattr(each, name) for name in MESSAGE_COLUMNS}
            yield tuple({**values, "status": FailureStatus(each.status).name.lower()}.values())
        if (after := page.next) is None:
            return


def exported_groups(selection: FailureSelection, classifier: str, now: datetime, also: str = "") -> Iterator[tuple[Any, ...]]:
    """One row per group of a classifier, or per pair of groups."""
    after: PageKey | None = None
    while True:
        page = read_groups(selection, classifier, now=now, after=after, also=also)
        for each in page.groups:
            group = each.group
            note = (group.note, group.noted_by, group.noted_at)
            other = (None, None, None) if each.also is None else (each.also.pk, each.also.classifier, each.also.title)
            yield (group.pk, group.classifier, group.title, each.count, each.first, each.last, *note, *other)
        if (after := page.next) is None:
            return
