"""The pages of the failed messages in the admin: groups, lists with a query bar, one message, notes, retries that are pending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Power, button, may, reason_of, refusal
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.failure_actions import SAMPLE, failure_action_pages, failure_buttons
from sqlqueue_app.dashboard.failure_exports import GROUP_COLUMNS, MESSAGE_COLUMNS, exported_failures, exported_groups
from sqlqueue_app.dashboard.failure_notes import note_page
from sqlqueue_app.dashboard.failure_requests import ListRequest
from sqlqueue_app.dashboard.failures import (
    CLASSIFIER_WORDS,
    TREND_HEIGHT,
    TREND_WIDTH,
    attempt_text,
    group_text,
    instant,
    listed_failure,
    note_of,
    pending_text,
    scope_in_words,
    size_text,
    state_of,
)
from sqlqueue_app.dashboard.formats import number, stamp
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.messages import body_text, header_groups, message_row
from sqlqueue_app.dashboard.navigation import Tab
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paths import path_of
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.failure_groups import CLASSIFIERS
from sqlqueue_app.models import FailedMessage, FailureGroup, FailureStatus, Queue
from sqlqueue_app.operations.bulk.kinds import not_ours
from sqlqueue_app.operations.failure_detail import FailureDetail, read_failure, traces_of
from sqlqueue_app.operations.failure_index import IndexState, catch_up
from sqlqueue_app.operations.failure_lists import PAGE_SIZES, GroupRow, Key, count_failures, read_failures, read_groups
from sqlqueue_app.operations.failure_retention import KEPT
from sqlqueue_app.operations.failure_selection import MOST_IDS, FailureSelection
from sqlqueue_app.operations.pending_retries import find_retries

# So many new rows are read into the index before a page is shown; a worker reads the rest.
READ_BY_A_PAGE: Final = 500
QUEUES_OF_A_PAGE: Final = 2


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of messages in some states. `is_poison`: those alone whose headers cannot be read."""

    title: object
    text: object
    statuses: tuple[FailureStatus, ...]
    is_fixed: bool = True
    is_poison: bool = False


LISTINGS: Final[dict[str, Listing]] = {
    "messages": Listing(
        gettext_lazy("Messages"),
        gettext_lazy("Messages that lie in an error queue and wait for somebody to retry, archive or delete them."),
        (FailureStatus.UNRESOLVED,),
        is_fixed=False,
    ),
    "archived": Listing(
        gettext_lazy("Archived"),
        gettext_lazy("Messages that somebody has put away. They lie in their error queue still, and can be brought back."),
        (FailureStatus.ARCHIVED,),
    ),
    "resolved": Listing(
        gettext_lazy("Resolved"),
        gettext_lazy("Messages that were handled after a retry."),
        (FailureStatus.RESOLVED,),
    ),
    "gone": Listing(
        gettext_lazy("Deleted or gone"),
        gettext_lazy("Messages that were deleted here, or that somebody has taken out of their error queue by other means."),
        (FailureStatus.DELETED, FailureStatus.GONE),
    ),
    "unreadable": Listing(
        gettext_lazy("Cannot be read"),
        gettext_lazy("Rows of an error queue of which nobody can tell what failed, or where. They cannot be retried."),
        (FailureStatus.UNRESOLVED,),
        is_poison=True,
    ),
}


class FailureAdmin(PageAdmin):
    """The pages about failed messages, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """Groups, lists, pending retries, one group and its note, what can be done with messages, one message."""
        return [
            self.looks("", self.changelist_view),
            *(self.looks(f"{name}/", self._view_of(name), name) for name in LISTINGS),
            self.looks("pending/", self.pending_view, "pending"),
            self.looks("group/<uuid:unique>/", self.group_view, "group"),
            self.acts("group/<uuid:unique>/note/", self.note_view, "note"),
            *failure_action_pages(self),
            self.looks("<uuid:unique>/", self.message_view, "message"),
        ]

    # --- groups ---------------------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The groups of the unresolved messages, by a classifier."""
        now = timezone.now()
        state = self._catch_up(now)
        asked = ListRequest.read(request.GET, now, FailureStatus.UNRESOLVED)
        by = request.GET.get("by", "")
        by = by if by in CLASSIFIERS else next(iter(CLASSIFIERS))
        also = request.GET.get("and", "")
        also = also if also in CLASSIFIERS and also != by else ""
        if wanted_format(request):
            return export(request, f"failure groups by {by} {also}", GROUP_COLUMNS, exported_groups(asked.selection, by, now, also))
        found = read_groups(asked.selection, by, now=now, after=asked.after, also=also)
        count, exact = count_failures(asked.selection.queryset())
        return self._page(
            request,
            "failed_groups",
            "",
            state,
            title=_("Groups of failures"),
            asked=asked,
            groups=[group_text(each, self._group_url(each, by)) for each in found.groups],
            scope=scope_in_words(count, asked.selection.in_words(), exact=exact),
            classifiers=[Tab(str(word), _groups_by(asked, key, also), key == by) for key, word in CLASSIFIER_WORDS.items()],
            others=[
                Tab(_("nothing else"), _groups_by(asked, by, ""), not also),
                *(Tab(str(word), _groups_by(asked, by, key), key == also) for key, word in CLASSIFIER_WORDS.items() if key != by),
            ],
            first_url=_groups_by(asked, by, also) if asked.after else "",
            next_url=_groups_by(asked, by, also, found.next) if found.next else "",
            trend_width=TREND_WIDTH,
            trend_height=TREND_HEIGHT,
            **(extra_context or {}),
        )

    def _group_url(self, row: GroupRow, by: str) -> str:
        """The messages of a group; of a pair, those that are in both."""
        if row.also is None:
            return self.url("group", row.group.pk)
        selection = FailureSelection(group=row.group.pk, classifier=by, also=row.also.pk)
        return f"{self.url('messages')}?{selection.to_query()}"

    def group_view(self, request: HttpRequest, unique: UUID) -> HttpResponseBase:
        """The unresolved messages of one group, and its note."""
        now = timezone.now()
        state = self._catch_up(now)
        group = FailureGroup.objects.using(managed_alias()).filter(pk=unique).first()
        if group is None:
            return self._missing(request, _("There is no such group: its messages were retried, deleted, or gone for long."))
        classifier = next((each for each in CLASSIFIERS.values() if each.name == group.classifier), None)
        selection = FailureSelection(group=unique, classifier=classifier.key if classifier else "")
        asked = ListRequest.of(selection, request.GET, FailureStatus.UNRESOLVED)
        note = button(request, Power.SETTINGS, _("Change the note") if group.note else _("Add a note"), self.url("note", unique))
        return self._list(
            request,
            asked,
            state,
            title=group.title,
            text=_("Group by %(classifier)s") % {"classifier": group.classifier},
            crumbs=(Crumb(group.title),),
            group=group,
            note=note_of(group),
            note_buttons=[note],
            sample_url=self.url("retry"),
            sample_refused=refusal(request, Power.RETRY) or not_ours(get_settings()),
            sample=SAMPLE,
            most=MOST_IDS,
        )

    def note_view(self, request: HttpRequest, unique: UUID) -> HttpResponse:
        """Asks for the note of a group, and writes it."""
        group = FailureGroup.objects.using(managed_alias()).filter(pk=unique).first()
        if group is None:
            return self._missing(request, _("There is no such group: its messages were retried, deleted, or gone for long."))
        return note_page(self, request, group)

    # --- lists ----------------------------------------------------------------------------------------------------------------

    def _view_of(self, name: str) -> Any:
        listing = LISTINGS[name]

        def view(request: HttpRequest) -> HttpResponseBase:
            now = timezone.now()
            state = self._catch_up(now)
            asked = ListRequest.read(request.GET, now, *listing.statuses, fixed=listing.is_fixed)
            title = str(listing.title)
            return self._list(
                request, asked, state, name=name, title=title, text=listing.text, crumbs=(Crumb(title),), poison=listing.is_poison
            )

        return view

    def _list(
        self,
        request: HttpRequest,
        asked: ListRequest,
        state: IndexState,
        *,
        name: str = "",
        poison: bool = False,
        **context: Any,
    ) -> HttpResponseBase:
        """A page of messages with its query bar, or all of them as a file."""
        messages: QuerySet[FailedMessage] = asked.selection.queryset()
        if poison:
            messages = messages.exclude(poison="")
        if wanted_format(request):
            return export(request, f"failed {name or 'messages'}", MESSAGE_COLUMNS, exported_failures(messages))
        actions = failure_buttons(request, self, asked.selection)
        found = read_failures(messages, after=asked.after, size=asked.size)
        count, exact = count_failures(messages)
        return self._page(
            request,
            "failed_messages",
            name,
            state,
            asked=asked,
            bar_url=self.url(name or "messages"),
            rows=[listed_failure(each, self.url("message", each.pk)) for each in found.messages],
            scope=scope_in_words(count, asked.selection.in_words(), exact=exact),
            # The selection says nothing of what can be read.
            buttons=() if poison or not found.messages else actions,
            chosen=_for_chosen(actions),
            **self._paging(asked, found.next),
            **context,
        )

    def _paging(self, asked: ListRequest, following: object) -> dict[str, Any]:
        return {
            "first_url": asked.address(size=asked.size) if asked.after else "",
            "next_url": asked.address(size=asked.size, after=following) if following else "",
            "sizes": [Tab(number(each), asked.address(size=each, after=asked.after), each == asked.size) for each in PAGE_SIZES],
        }

    def pending_view(self, request: HttpRequest) -> HttpResponseBase:
        """Messages that were sent again and not acknowledged, each with the reason."""
        now = timezone.now()
        state = self._catch_up(now)
        asked = ListRequest.read(request.GET, now, FailureStatus.RETRY_ISSUED, fixed=True)
        messages = asked.selection.queryset()
        if wanted_format(request):
            return export(request, "pending retries", MESSAGE_COLUMNS, exported_failures(messages))
        found = read_failures(messages, after=asked.after, size=asked.size)
        count, exact = count_failures(messages)
        actions = failure_buttons(request, self, asked.selection)
        where = find_retries(get_settings(), found.messages)
        return self._page(
            request,
            "failed_pending",
            "pending",
            state,
            title=_("Pending retries"),
            crumbs=(Crumb(_("Pending retries")),),
            asked=asked,
            bar_url=self.url("pending"),
            buttons=actions if found.messages else (),
            chosen=_for_chosen(actions),
            rows=[pending_text(each, where[each.pk], self.url("message", each.pk), now) for each in found.messages],
            scope=scope_in_words(count, asked.selection.in_words(), exact=exact),
            **self._paging(asked, found.next),
        )

    # --- one message ----------------------------------------------------------------------------------------------------------

    def message_view(self, request: HttpRequest, unique: UUID) -> HttpResponse:
        """One failed message in full."""
        state = self._catch_up(timezone.now())
        found = read_failure(get_settings(), unique, as_hex="hex" in request.GET)
        if found is None:
            return self._missing(request, _("There is no such failed message: it was forgotten, or never was there."))
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
            status_at=stamp(instant(message.status_at)),
            failed_at=stamp(instant(message.failed_at)),
            first_failed_at=stamp(instant(message.first_failed_at)),
            sent_at=stamp(message.sent_at) if message.sent_at else None,
            size=size_text(message.size),
            edit_url=self.url("message", message.edit_of) if message.edit_of else "",
            conversation_url=self.conversation_url(message.conversation_id),
            kept_days=KEPT.days,
            attempts=[attempt_text(each) for each in found.attempts],
            groups=[(str(CLASSIFIER_WORDS[key]), each, self.url("group", each.pk)) for key, each in found.groups],
            found=found,
            **self._row(request, found),
        )

    def _row(self, request: HttpRequest, found: FailureDetail) -> dict[str, Any]:
        """What the page shows of the row in the error queue."""
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
            "body": body_text(found.row.body) if may(request, Power.VIEW_BODY) else None,
            "body_refused": reason_of(Power.VIEW_BODY),
            "dotnet": dotnet,
            "python": python,
        }

    # --- small parts ----------------------------------------------------------------------------------------------------------

    def _page(self, request: HttpRequest, template: str, name: str, state: IndexState, **context: Any) -> HttpResponse:
        lists = [
            Tab(_("Groups"), self.url(), template == "failed_groups"),
            *(Tab(str(each.title), self.url(key), key == name) for key, each in LISTINGS.items()),
        ]
        lists.insert(2, Tab(_("Pending retries"), self.url("pending"), name == "pending"))
        owner = get_settings().error_queue_owner
        # One message is read, not watched.
        live = None if template == "failed_message" else LIVE_SECONDS
        return self.page(request, template, lists=lists, index=state, is_ours=owner == "sqlqueue", live_seconds=live, **context)

    def _missing(self, request: HttpRequest, text: str) -> HttpResponse:
        return self.problem(request, title=_("Not found"), text=text, status=404, crumbs=(Crumb(_("Not found")),))

    def _catch_up(self, now: datetime) -> IndexState:
        """The index is right also where no worker is alive."""
        return catch_up(get_settings(), limit=READ_BY_A_PAGE, now=now, queues_at_most=QUEUES_OF_A_PAGE)


def _groups_by(asked: ListRequest, by: str, also: str, after: Key | None = None) -> str:
    """The address of the groups by one classifier, or two. Nothing is by one and the same twice."""
    return asked.address(by=by, **{"and": "" if also == by else also, "after": after})


def _for_chosen(actions: Sequence[Button]) -> list[Button]:
    """The same actions for the messages that are ticked, which the form says."""
    return [replace(each, url=each.url.partition("?")[0]) for each in actions]
