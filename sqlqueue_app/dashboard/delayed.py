"""The pages of delayed messages: their tables, the messages of a table, one message, delivering and cancelling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.browsing.delayed_messages import (
    MOST_CHOSEN,
    DelayedEntry,
    DelayedPage,
    DelayKind,
    DeliveryResult,
    PlannedDelivery,
    cancel_delayed,
    deliver_now,
    plan_deliveries,
    read_delayed_body,
    read_delayed_message,
    read_delayed_page,
)
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, may, not_found, refusal, require
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, Number, Stamp, State, bounded_number, duration, number, size_of, stamp_of
from sqlqueue_app.dashboard.lists import export, wanted_format
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.messages import body_file, message_context
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, name_of_path, path_of
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, QueueNotFound
from sqlqueue_app.status.delayed import DelayedStatus, KnownDelayed, known_delayed_tables, read_delayed
from sqlqueue_app.status.queues import INSTALL_COMMAND, ProblemKind, QueueProblem, listed_tables, utc_now
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.delayed import DelayedTable, key_of, position_of

PAGE_SIZE: Final = 50


class DelayedAdmin(PageAdmin):
    """The pages of delayed messages. They need the permission `sqlqueue_app.view_queue`."""

    def action_classes(self) -> Sequence[type[Action]]:
        return DELAYED_ACTIONS

    def pages(self) -> list[URLPattern]:
        """The tables, actions, the messages of a table, one message."""
        return [
            self.readonly_view("", self.changelist_view),
            self.readonly_view("<str:table>/<str:key>/body/", partial(_body_view, self), "body"),
            self.readonly_view("<str:table>/", self.table_view, "table"),
            self.readonly_view("<str:table>/<str:key>/", self.message_view, "message"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """All tables of delayed messages: those of the endpoints, then others in the database."""
        settings = get_settings()
        found = read_delayed(settings, listed=listed_tables(settings.database))
        if wanted_format(request):
            return export(request, "delayed", TABLE_COLUMNS, exported_tables(found))
        now = database_now(settings.database) if found else utc_now()
        return self.page(
            request,
            "delayed_tables",
            live_seconds=LIVE_SECONDS,
            rows=[table_row(each, self.table_url(each.name) if each.exists is not False else "", now) for each in found],
            install_command=INSTALL_COMMAND if any(each.exists is False for each in found) else "",
            **(extra_context or {}),
        )

    def table_view(self, request: HttpRequest, table: str) -> HttpResponseBase:
        """One page of the messages of a table, by due time."""
        known = self.find(table)
        if known is None:
            return self._unknown(request, table)
        delayed = known.table(get_settings().database)
        after = position_of(delayed, request.GET.get("due", ""), request.GET.get("after", ""))
        try:
            found = read_delayed_page(delayed, PAGE_SIZE, after=after)
        except ConnectionLost:
            raise
        except DatabaseError as error:
            return self._unreadable(request, known, error)
        if wanted_format(request):
            return export(request, known.name, MESSAGE_COLUMNS, exported_delayed(delayed, known.endpoint, found))
        return self.page(
            request,
            "delayed_messages",
            live_seconds=LIVE_SECONDS,
            title=_("Delayed messages of %(endpoint)s") % {"endpoint": known.endpoint},
            crumbs=(Crumb(known.name),),
            known=known,
            table=delayed.qualified,
            rows=[delayed_row(each, self.message_url(known, each.key)) for each in found.messages],
            chosen=delayed_buttons(self, request, known) if found.messages else [],
            is_first=after is None,
            next_query="" if found.next is None else urlencode({"due": found.next.due, "after": found.next.key}),
        )

    def message_view(self, request: HttpRequest, table: str, key: str) -> HttpResponse:
        """One message in full."""
        known = self.find(table)
        if known is None:
            return self._unknown(request, table)
        delayed = known.table(get_settings().database)
        wanted = key_of(delayed, key)
        try:
            found = None if wanted is None else read_delayed_message(delayed, wanted, as_hex="hex" in request.GET)
        except ConnectionLost:
            raise
        except DatabaseError as error:
            return self._unreadable(request, known, error)
        if found is None:
            return self._message_gone(request, known)
        message, detail = found
        return self.page(
            request,
            "delayed_message",
            title=_("Delayed message in %(table)s") % {"table": known.name},
            crumbs=(Crumb(known.name, self.table_url(known.name)), Crumb(message.key)),
            known=known,
            row=delayed_row(message, request.path),
            size=size_of(detail.summary.size),
            buttons=delayed_buttons(self, request, known, message.key),
            table_url=self.table_url(known.name),
            **message_context(self, request, detail),
        )

    def _unknown(self, request: HttpRequest, name: str) -> HttpResponse:
        text = _("There is no table of delayed messages “%(name)s” in the database, and the settings name none.") % {"name": name}
        return self.problem(request, title=_("Table not found"), text=text, status=404, crumbs=(Crumb(name),))

    def _unreadable(self, request: HttpRequest, known: KnownDelayed, error: DatabaseError) -> HttpResponse:
        is_missing = isinstance(error, QueueNotFound)
        problem = QueueProblem(
            ProblemKind.MISSING if is_missing else ProblemKind.UNREADABLE,
            str(error),
            command=INSTALL_COMMAND if is_missing and known.is_in_settings else "",
        )
        return self.problem(
            request,
            title=_("Delayed messages of %(endpoint)s") % {"endpoint": known.endpoint},
            text=_("The messages of this table cannot be shown."),
            status=404 if is_missing else 500,
            crumbs=(Crumb(known.name),),
            problem=problem,
        )

    def _message_gone(self, request: HttpRequest, known: KnownDelayed) -> HttpResponse:
        text = _("The message is not in the table: it was delivered or cancelled, or never was there.")
        crumbs = (Crumb(known.name, self.table_url(known.name)), Crumb(_("Message not found")))
        return self.problem(request, title=_("Message not found"), text=text, status=404, crumbs=crumbs)

    def find(self, path: str) -> KnownDelayed | None:
        """The table that a URL part names, by its name or its endpoint; tables of the settings first."""
        settings = get_settings()
        found = _named(path, known_delayed_tables(settings))
        return found or _named(path, known_delayed_tables(settings, listed_tables(settings.database)))

    def found(self, path: str) -> KnownDelayed:
        """Like `find`; Http404 if there is none."""
        known = self.find(path)
        if known is None:
            raise Http404(_("There is no table of delayed messages “%(name)s”.") % {"name": path})
        return known

    def table_url(self, name: str) -> str:
        """The URL of the messages of a table."""
        return self.url("table", path_of(name))

    def message_url(self, known: KnownDelayed, key: str, page: str = "message") -> str:
        """The URL of a page of one message."""
        return self.url(page, path_of(known.name), key)


def _named(path: str, tables: list[KnownDelayed]) -> KnownDelayed | None:
    for names in ({each.name: each for each in tables}, {each.endpoint: each for each in tables}):
        name = name_of_path(path, names)
        if name is not None:
            return names[name]
    return None


# --- Rows and exports -------------------------------------------------------------------------------------------------

TABLE_COLUMNS: Final = ("table", "endpoint", "in_settings", "exists", "messages", "exact", "overdue", "next_due")
MESSAGE_COLUMNS: Final = (
    *("key", "due", "seconds_until_due", "kind", "destination", "types"),
    *("message_id", "endpoint", "size", "unreadable"),
)

# Workers poll every second; a message that is due for longer is overdue.
OVERDUE_SECONDS: Final = 2.0
_EXPORTED_AT_ONCE: Final = 500

KINDS = {
    DelayKind.RETRY: gettext_lazy("delayed retry"),
    DelayKind.TIMEOUT: gettext_lazy("timeout"),
    DelayKind.DEFERRED: gettext_lazy("deferred send"),
}


@dataclass(frozen=True, slots=True)
class DelayedTableRow:
    """A row of the list of tables. Numbers are None if they could not be counted."""

    status: DelayedStatus
    url: str
    state: State
    note: str
    waiting: Number | None
    overdue: Number | None
    next_due: Stamp | None
    left: str


@dataclass(frozen=True, slots=True)
class DelayedMessageRow:
    """A row of the list of messages."""

    entry: DelayedEntry
    url: str
    due: Stamp | None
    left: str
    is_overdue: bool
    kind: str


def table_row(each: DelayedStatus, url: str, now: datetime | None = None) -> DelayedTableRow:
    """The row of a table; `now` is the clock of the database, without which no time is left to a worker."""
    state = _state(each, now)
    return DelayedTableRow(
        status=each,
        url=url,
        state=state,
        note=_("no worker moves them") if state.level is Grade.WARNING else "",
        waiting=None if each.waiting is None else bounded_number(each.waiting, exact=each.exact),
        overdue=None if each.overdue is None else bounded_number(each.overdue, exact=each.exact),
        next_due=stamp_of(each.next_due),
        left="" if each.next_due is None or now is None else time_left((each.next_due - now).total_seconds()),
    )


def _state(each: DelayedStatus, now: datetime | None) -> State:
    if each.exists is False:
        return State(Grade.ERROR, _("Missing"))
    if each.waiting is None or each.overdue is None:
        return State(Grade.ERROR, _("Unreadable"))
    if not each.overdue:
        return State(Grade.OK, _("OK"))
    if now is not None and each.next_due is not None and (now - each.next_due).total_seconds() <= OVERDUE_SECONDS:
        return State(Grade.OK, _("OK"))
    return State(Grade.WARNING, _("Overdue"))


def time_left(seconds: float | None) -> str:
    """The time until a message is due, or since it was."""
    if seconds is None:
        return _("never")
    if seconds > 0:
        return _("in %(time)s") % {"time": duration(timedelta(seconds=seconds))}
    if seconds >= -OVERDUE_SECONDS:
        return _("now")
    return _("overdue for %(time)s") % {"time": duration(timedelta(seconds=-seconds))}


def delayed_row(each: DelayedEntry, url: str) -> DelayedMessageRow:
    """The row of a message."""
    seconds = each.row.seconds
    return DelayedMessageRow(
        entry=each,
        url=url,
        due=stamp_of(each.row.due),
        left=time_left(seconds),
        is_overdue=seconds is not None and seconds < -OVERDUE_SECONDS,
        kind=_("unknown") if each.kind is None else str(KINDS[each.kind]),
    )


def exported_tables(found: tuple[DelayedStatus, ...]) -> Iterator[tuple[Any, ...]]:
    """One row per table, in the order of the page."""
    for each in found:
        name, counted = (each.name, each.endpoint, each.is_in_settings), (each.waiting, each.exact, each.overdue)
        yield (*name, each.exists, *counted, each.next_due)


def exported_delayed(table: DelayedTable, endpoint: str, first: DelayedPage) -> Iterator[tuple[Any, ...]]:
    """One row per message from a page to the end of the table; messages that move meanwhile may be missing."""
    found = first
    while True:
        for each in found.messages:
            row, message = each.row, each.message
            kind = None if each.kind is None else each.kind.value
            columns = (row.due or row.due_text, row.seconds, kind, each.destination, list(message.types))
            yield (each.key, *columns, message.message_id, endpoint, message.size, message.unreadable)
        if found.next is None:
            return
        found = read_delayed_page(table, _EXPORTED_AT_ONCE, after=found.next)


# --- Actions ----------------------------------------------------------------------------------------------------------

_REASONS_SHOWN = 20


class DelayedAction(Action):
    """An action on delayed messages: those whose keys are `ids` in the query string or in the form."""

    known: KnownDelayed
    keys: list[str]
    bound: Sequence[PlannedDelivery] = ()

    def find(self, **key: Any) -> None:
        pages: DelayedAdmin = self.pages  # type: ignore[assignment]
        known = pages.find(key["table"])
        if known is None:
            text = _("There is no table of delayed messages “%(name)s”.") % {"name": key["table"]}
            raise not_found(self.request, self.permission, text)
        delayed = known.table(get_settings().database)
        posted = self.request.POST.getlist("ids") if self.request.method == "POST" else []
        wanted = (key_of(delayed, text) for text in posted or self.request.GET.getlist("ids"))
        self.known, self.keys = known, list(dict.fromkeys(each for each in wanted if each is not None))[:MOST_CHOSEN]
        self.target = f"{known.name} #{self.keys[0]}" if len(self.keys) == 1 else known.name
        self.back_url = pages.table_url(known.name)
        self.crumbs = (Crumb(known.name, self.back_url),)
        self.hidden = [("ids", each) for each in self.keys]
        # Nothing is read for a user without the permission.
        if may(self.request, self.permission):
            self._read()

    def _read(self) -> None:
        try:
            self.bound = plan_deliveries(get_settings(), self.known, self.keys)
        except ConnectionLost:
            raise
        except DatabaseError as error:
            self.blocked = str(error)


class DeliverNow(DelayedAction):
    """Puts delayed messages into their queues."""

    name, page, route = "deliver_now", "deliver", "<str:table>/deliver/"
    permission = Permission.RETRY
    label = gettext_lazy("Deliver now")
    text = gettext_lazy(
        "They are put into their queues at once, in one transaction, whenever they are due. "
        "Messages that a worker moves meanwhile are left to it."
    )

    def find(self, **key: Any) -> None:
        super().find(**key)
        ready = [each for each in self.bound if each.target is not None]
        self.count = len(ready)
        words = ngettext("Deliver %(count)s message now", "Deliver %(count)s messages now", len(ready))
        self.title = words % {"count": number(len(ready))}
        self.facts = (*_facts(self.known, self.bound, self.keys), *_destinations(ready))
        self.warnings = [_("Stays: %(reason)s") % {"reason": each.refusal} for each in self.bound if each.refusal][:_REASONS_SHOWN]
        self.blocked = self.blocked or ("" if ready else _none(self.bound))

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        done = deliver_now(get_settings(), self.known, self.keys)
        if not done.done:
            raise ValueError(_why_nothing(done))
        return ActionOutcome(_delivered(done), self.back_url, done.done)


class CancelDelayed(DelayedAction):
    """Deletes delayed messages."""

    name, page, route = "cancel_delayed", "cancel", "<str:table>/cancel/"
    permission = Permission.DELETE
    label, submit = gettext_lazy("Cancel"), gettext_lazy("Delete them")
    text = gettext_lazy("They are deleted, never delivered, and cannot be brought back; a saga may wait forever for its timeout.")
    is_dangerous = True

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.count = len(self.bound)
        words = ngettext("Cancel %(count)s delayed message", "Cancel %(count)s delayed messages", self.count)
        self.title = words % {"count": number(self.count)}
        self.facts = (*_facts(self.known, self.bound, self.keys), *_destinations(self.bound))
        self.blocked = self.blocked or ("" if self.bound else _none(self.bound))

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        deleted = cancel_delayed(self.known.table(get_settings().database), self.keys)
        if not deleted:
            raise ValueError(_("None of them is there any more: they were delivered or cancelled, or a worker is moving them."))
        words = ngettext("%(count)s delayed message was cancelled.", "%(count)s delayed messages were cancelled.", deleted)
        return ActionOutcome(words % {"count": number(deleted)}, self.back_url, deleted)


DELAYED_ACTIONS: Final = (DeliverNow, CancelDelayed)


def _body_view(pages: DelayedAdmin, request: HttpRequest, table: str, key: str) -> HttpResponse:
    require(request, Permission.EXPORT, Permission.VIEW_BODY)
    known = pages.found(table)
    delayed = known.table(get_settings().database)
    wanted = key_of(delayed, key)
    return body_file(None if wanted is None else read_delayed_body(delayed, wanted), wanted)


def delayed_buttons(pages: DelayedAdmin, request: HttpRequest, known: KnownDelayed, key: str = "") -> list[Button]:
    """The actions on one message as links; without a key those on the selected messages, which the form lists."""
    query = urlencode({"ids": key}) if key else ""
    found = [each.button(pages, request, path_of(known.name), query=query) for each in DELAYED_ACTIONS]
    if key:
        refused = refusal(request, Permission.EXPORT, Permission.VIEW_BODY)
        found.insert(0, Button(_("Save the body as a file"), pages.message_url(known, key, "body"), refused))
    return found


def _facts(known: KnownDelayed, bound: Sequence[PlannedDelivery], keys: Sequence[str]) -> list[tuple[str, str]]:
    found = [(_("Endpoint"), known.endpoint), (_("Messages"), number(len(bound)))]
    if len(bound) == 1:
        found.append((_("Due"), time_left(bound[0].row.seconds)))
    if len(bound) < len(keys):
        found.append((_("Not there any more"), number(len(keys) - len(bound))))
    return found


def _destinations(bound: Sequence[PlannedDelivery]) -> list[tuple[str, str]]:
    counts: dict[str, int] = {}
    for each in bound:
        counts[each.to or "?"] = counts.get(each.to or "?", 0) + 1
    shown = sorted(counts.items(), key=lambda pair: -pair[1])[:_REASONS_SHOWN]
    return [(_("To the queue"), to if len(bound) == 1 else f"{to} ({number(count)})") for to, count in shown]


def _none(bound: Sequence[PlannedDelivery]) -> str:
    if bound:
        return _("None of these messages can be delivered.")
    return _("None of these messages is in the table: they were delivered or cancelled, or none was chosen.")


def _why_nothing(done: DeliveryResult) -> str:
    if done.refused:
        return done.refused[0].refusal
    return _("None of them is there any more: they were delivered or cancelled, or a worker is moving them.")


def _delivered(done: DeliveryResult) -> str:
    words = [
        ngettext("%(count)s message was delivered.", "%(count)s messages were delivered.", done.done) % {"count": number(done.done)}
    ]
    if done.gone:
        gone = ngettext("%(count)s was not there any more.", "%(count)s were not there any more.", done.gone)
        words.append(gone % {"count": number(done.gone)})
    if done.refused:
        left = ngettext("%(count)s stays: %(reason)s", "%(count)s stay: %(reason)s", len(done.refused))
        words.append(left % {"count": number(len(done.refused)), "reason": done.refused[0].refusal})
    return " ".join(words)
