"""The pages of delayed messages: their tables, the messages of a table, one message, delivering and cancelling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.browsing.delayed_messages import (
    MOST_CHOSEN,
    DelayedEntry,
    DelayedPage,
    DelayKind,
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
from sqlqueue_app.dashboard.formats import Grade, State, bounded_number, duration, number, stamp_html
from sqlqueue_app.dashboard.lists import (
    NUMBER,
    WIDE,
    HtmlTable,
    TableColumn,
    cell_html,
    export,
    link_html,
    message_html,
    wanted_format,
    with_notes,
)
from sqlqueue_app.dashboard.lists import table as rows_table
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.messages import body_file, message_context
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, name_of_path, path_of
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, QueueNotFound
from sqlqueue_app.models import DelayedMessage
from sqlqueue_app.status.delayed import DelayedStatus, KnownDelayed, known_delayed_tables, read_delayed
from sqlqueue_app.status.queues import INSTALL_COMMAND, ProblemKind, QueueProblem, listed_tables, utc_now
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.delayed import DelayedTable, key_of, position_of

PAGE_SIZE: Final = 50


# --- Actions ----------------------------------------------------------------------------------------------------------

_REASONS_SHOWN = 20
_GONE: Final = gettext_lazy("None of them is there any more: they were delivered or cancelled, or a worker is moving them.")


class DelayedAction(Action):
    """An action on delayed messages: those whose keys are `ids` in the query string or in the form."""

    known: KnownDelayed
    keys: list[str]

    def find(self, **key: Any) -> None:
        pages: DelayedAdmin = self.pages  # type: ignore[assignment]
        known = pages.find(key["table"])
        if known is None:
            raise not_found(self.request, self.permission, _no_table(key["table"]))
        delayed = known.table(get_settings().database)
        posted = self.request.POST.getlist("ids") if self.request.method == "POST" else []
        wanted = (key_of(delayed, text) for text in posted or self.request.GET.getlist("ids"))
        self.known, self.keys = known, list(dict.fromkeys(each for each in wanted if each is not None))[:MOST_CHOSEN]
        self.target = f"{known.name} #{self.keys[0]}" if len(self.keys) == 1 else known.name
        self.back_url = pages.table_url(known.name)
        self.crumbs = (Crumb(known.name, self.back_url),)
        self.hidden = [("ids", each) for each in self.keys]
        bound: Sequence[PlannedDelivery] = ()
        # Nothing is read for a user without the permission.
        if may(self.request, self.permission):
            try:
                bound = plan_deliveries(get_settings(), known, self.keys)
            except ConnectionLost:
                raise
            except DatabaseError as error:
                self.blocked = str(error)
        self._describe(bound)

    def _describe(self, bound: Sequence[PlannedDelivery]) -> None:
        """What would happen with these messages, which are there."""
        ready = self.ready(bound)
        self.count = len(ready)
        self.title = self.titled(self.count)
        facts = [(_("Endpoint"), self.known.endpoint), (_("Messages"), number(len(bound)))]
        facts += [(_("Due"), time_left(bound[0].row.seconds))] if len(bound) == 1 else []
        facts += [(_("Not there any more"), number(len(self.keys) - len(bound)))] if len(bound) < len(self.keys) else []
        for to, count in Counter(each.to or "?" for each in ready).most_common(_REASONS_SHOWN):
            facts.append((_("To the queue"), to if len(ready) == 1 else f"{to} ({number(count)})"))
        self.facts = tuple(facts)
        if not ready and not self.blocked:
            none = _("None of these messages is in the table: they were delivered or cancelled, or none was chosen.")
            self.blocked = _("None of these messages can be delivered.") if bound else none

    def ready(self, bound: Sequence[PlannedDelivery]) -> Sequence[PlannedDelivery]:
        """Those of the messages with which something can be done."""
        return bound

    def titled(self, count: int) -> str:
        """The title for so many messages."""
        raise NotImplementedError


class DeliverNow(DelayedAction):
    """Puts delayed messages into their queues."""

    name, page, route = "deliver_now", "deliver", "<str:table>/deliver/"
    permission = Permission.RETRY
    label = gettext_lazy("Deliver now")
    text = gettext_lazy(
        "They are put into their queues at once, in one transaction, whenever they are due. "
        "Messages that a worker moves meanwhile are left to it."
    )

    def ready(self, bound: Sequence[PlannedDelivery]) -> Sequence[PlannedDelivery]:
        self.warnings = [_("Stays: %(reason)s") % {"reason": each.refusal} for each in bound if each.refusal][:_REASONS_SHOWN]
        return [each for each in bound if each.target is not None]

    def titled(self, count: int) -> str:
        return ngettext("Deliver %(count)s message now", "Deliver %(count)s messages now", count) % {"count": number(count)}

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        done = deliver_now(get_settings(), self.known, self.keys)
        if not done.done:
            raise ValueError(done.refused[0].refusal if done.refused else _GONE)
        words = [
            ngettext("%(count)s message was delivered.", "%(count)s messages were delivered.", done.done)
            % {"count": number(done.done)}
        ]
        if done.gone:
            gone = ngettext("%(count)s was not there any more.", "%(count)s were not there any more.", done.gone)
            words.append(gone % {"count": number(done.gone)})
        if done.refused:
            left = ngettext("%(count)s stays: %(reason)s", "%(count)s stay: %(reason)s", len(done.refused))
            words.append(left % {"count": number(len(done.refused)), "reason": done.refused[0].refusal})
        return ActionOutcome(" ".join(words), self.back_url, done.done)


class CancelDelayed(DelayedAction):
    """Deletes delayed messages."""

    name, page, route = "cancel_delayed", "cancel", "<str:table>/cancel/"
    permission = Permission.DELETE
    label, submit = gettext_lazy("Cancel"), gettext_lazy("Delete them")
    text = gettext_lazy("They are deleted, never delivered, and cannot be brought back; a saga may wait forever for its timeout.")
    is_dangerous = True

    def titled(self, count: int) -> str:
        words = ngettext("Cancel %(count)s delayed message", "Cancel %(count)s delayed messages", count)
        return words % {"count": number(count)}

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        deleted = cancel_delayed(self.known.table(get_settings().database), self.keys)
        if not deleted:
            raise ValueError(_GONE)
        words = ngettext("%(count)s delayed message was cancelled.", "%(count)s delayed messages were cancelled.", deleted)
        return ActionOutcome(words % {"count": number(deleted)}, self.back_url, deleted)


DELAYED_ACTIONS: Final = (DeliverNow, CancelDelayed)


# --- Pages ------------------------------------------------------------------------------------------------------------


class DelayedAdmin(PageAdmin):
    """The pages of delayed messages. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = DELAYED_ACTIONS
    routes: ClassVar = {"table": "<str:table>/", "message": "<str:table>/<str:key>/", "body": "<str:table>/<str:key>/body/"}

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
            table=delayed_table(self, found, now),
            nothing=_("The settings name no endpoint, and the database has no table of delayed messages."),
            install_command=INSTALL_COMMAND if any(each.exists is False for each in found) else "",
            **(extra_context or {}),
        )

    def table_view(self, request: HttpRequest, table: str) -> HttpResponseBase:
        """One page of the messages of a table, by due time."""
        known = self.found(table)
        return self._read(request, known, lambda: self._messages(request, known))

    def _messages(self, request: HttpRequest, known: KnownDelayed) -> HttpResponseBase:
        delayed = known.table(get_settings().database)
        after = position_of(delayed, request.GET.get("due", ""), request.GET.get("after", ""))
        found = read_delayed_page(delayed, PAGE_SIZE, after=after)
        if wanted_format(request):
            return export(request, known.name, MESSAGE_COLUMNS, exported_delayed(delayed, known.endpoint, found))
        columns: list[TableColumn[DelayedEntry]] = [
            TableColumn(_("Message"), partial(self._choice, known), WIDE),
            TableColumn(_("Due"), due_html),
            TableColumn(_("Kind"), _kind_html),
            TableColumn(_("Destination"), lambda each: each.destination or known.endpoint, WIDE),
        ]
        caption = _("Waiting messages, next due first. Viewing does not receive them.")
        return self.page(
            request,
            "delayed_messages",
            live_seconds=LIVE_SECONDS,
            title=_("Delayed messages of %(endpoint)s") % {"endpoint": known.endpoint},
            crumbs=(Crumb(known.name),),
            known=known,
            qualified=delayed.qualified,
            table=rows_table(caption, columns, found.messages, lambda each: each.key) if found.messages else None,
            chosen=delayed_buttons(self, request, known) if found.messages else [],
            is_first=after is None,
            next=found.next,
        )

    def _choice(self, known: KnownDelayed, each: DelayedEntry) -> SafeString:
        box = '<input type="checkbox" name="ids" value="{}" aria-label="{}"> {}'
        words = _("Choose %(id)s") % {"id": each.message.message_id}
        link = message_html(self.message_url(known, each.key), each.message.message_type or "", each.message.message_id)
        return format_html(box, each.key, words, link)

    def message_view(self, request: HttpRequest, table: str, key: str) -> HttpResponseBase:
        """One message in full."""
        known = self.found(table)
        return self._read(request, known, lambda: self._message(request, known, key))

    def _message(self, request: HttpRequest, known: KnownDelayed, key: str) -> HttpResponse:
        delayed = known.table(get_settings().database)
        wanted = key_of(delayed, key)
        found = None if wanted is None else read_delayed_message(delayed, wanted, as_hex="hex" in request.GET)
        if found is None:
            return self._message_gone(request, known)
        entry, detail = found
        return self.page(
            request,
            "delayed_message",
            title=_("Delayed message in %(table)s") % {"table": known.name},
            crumbs=(Crumb(known.name, self.table_url(known.name)), Crumb(entry.key)),
            known=known,
            entry=entry,
            due=due_html(entry),
            kind=_kind(entry),
            buttons=delayed_buttons(self, request, known, entry.key),
            table_url=self.table_url(known.name),
            **message_context(self, request, detail),
        )

    def body_view(self, request: HttpRequest, table: str, key: str) -> HttpResponse:
        """The body of a message as a file."""
        require(request, Permission.EXPORT, Permission.VIEW_BODY)
        delayed = self.found(table).table(get_settings().database)
        wanted = key_of(delayed, key)
        return body_file(None if wanted is None else read_delayed_body(delayed, wanted), wanted)

    def _read(self, request: HttpRequest, known: KnownDelayed, show: Callable[[], HttpResponseBase]) -> HttpResponseBase:
        """The page, or an error page if the table cannot be read."""
        try:
            return show()
        except ConnectionLost:
            raise
        except DatabaseError as error:
            is_missing = isinstance(error, QueueNotFound)
            kind = ProblemKind.MISSING if is_missing else ProblemKind.UNREADABLE
            return self.problem(
                request,
                title=_("Delayed messages of %(endpoint)s") % {"endpoint": known.endpoint},
                text=_("The messages of this table cannot be shown."),
                status=404 if is_missing else 500,
                crumbs=(Crumb(known.name),),
                problem=QueueProblem(kind, str(error), command=INSTALL_COMMAND if is_missing and known.is_in_settings else ""),
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
        if known := self.find(path):
            return known
        raise Http404(_no_table(path))

    def table_url(self, name: str) -> str:
        """The URL of the messages of a table."""
        return self.url("table", path_of(name))

    def message_url(self, known: KnownDelayed, key: str, page: str = "message") -> str:
        """The URL of a page of one message."""
        return self.url(page, path_of(known.name), key)


def _no_table(name: str) -> str:
    return _("There is no table of delayed messages “%(name)s” in the database, and the settings name none.") % {"name": name}


def _named(path: str, tables: list[KnownDelayed]) -> KnownDelayed | None:
    names = {each.endpoint: each for each in tables} | {each.name: each for each in tables}
    return names.get(name_of_path(path, names) or "")


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


def delayed_table(pages: PageAdmin, found: Sequence[DelayedStatus], now: datetime | None = None) -> HtmlTable | None:
    """The tables of delayed messages, with the clock of the database also when their next message is due; None without any."""

    def endpoint(each: DelayedStatus) -> SafeString:
        url = "" if each.exists is False else pages.url_of(DelayedMessage, "table", path_of(each.name))
        return with_notes(link_html(url, each.endpoint), "" if each.is_in_settings else _("not in the settings of this site"))

    def state(each: DelayedStatus) -> SafeString:
        shown = _state(each, now)
        return with_notes(shown, _("no worker moves them") if shown.level is Grade.WARNING else "")

    def count(each: DelayedStatus, value: int | None) -> object:
        return _("not known") if value is None else bounded_number(value, exact=each.exact)

    def next_due(each: DelayedStatus) -> SafeString | None:
        due = each.next_due
        return with_notes(time_left((due - now).total_seconds()), stamp_html(due)) if due and now else None

    columns: list[TableColumn[DelayedStatus]] = [
        TableColumn(_("Endpoint"), endpoint),
        TableColumn(_("State"), state),
        TableColumn(_("Messages"), lambda each: count(each, each.waiting), NUMBER),
        TableColumn(_("Overdue"), lambda each: count(each, each.overdue), NUMBER),
        *([TableColumn(_("Next due"), next_due)] if now else []),
        TableColumn(_("Table"), lambda each: each.table, WIDE),
    ]
    caption = _(
        "Messages wait here for their time: deferred ones, timeouts of sagas, delayed retries. "
        "Any worker moves them into their queues."
    )
    return rows_table(caption, columns, found, lambda each: f"delayed {each.name}") if found else None


def _state(each: DelayedStatus, now: datetime | None) -> State:
    if each.exists is False:
        return State(Grade.ERROR, _("Missing"))
    if each.waiting is None or each.overdue is None:
        return State(Grade.ERROR, _("Unreadable"))
    due = each.next_due
    is_moving = now is not None and due is not None and (now - due).total_seconds() <= OVERDUE_SECONDS
    return State(Grade.OK, _("OK")) if is_moving or not each.overdue else State(Grade.WARNING, _("Overdue"))


def time_left(seconds: float | None) -> str:
    """The time until a message is due, or since it was."""
    if seconds is None:
        return _("never")
    if seconds > 0:
        return _("in %(time)s") % {"time": duration(timedelta(seconds=seconds))}
    if seconds >= -OVERDUE_SECONDS:
        return _("now")
    return _("overdue for %(time)s") % {"time": duration(timedelta(seconds=-seconds))}


def due_html(each: DelayedEntry) -> SafeString:
    """When a message is due, marked if it is overdue."""
    seconds, left = each.row.seconds, time_left(each.row.seconds)
    is_overdue = seconds is not None and seconds < -OVERDUE_SECONDS
    due = stamp_html(each.row.due) if each.row.due else each.row.due_text
    return with_notes(State(Grade.WARNING, left) if is_overdue else left, due)


def _kind(each: DelayedEntry) -> str:
    return _("unknown") if each.kind is None else str(KINDS[each.kind])


def _kind_html(each: DelayedEntry) -> SafeString:
    if not each.message.unreadable:
        return cell_html(_kind(each))
    return with_notes(_kind(each), cell_html(State(Grade.ERROR, _("Poison"))), Truncator(each.message.unreadable).chars(120))


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


def delayed_buttons(pages: DelayedAdmin, request: HttpRequest, known: KnownDelayed, key: str = "") -> list[Button]:
    """The actions on one message as links; without a key those on the selected messages, which the form lists."""
    query = urlencode({"ids": key}) if key else ""
    found = [each.button(pages, request, path_of(known.name), query=query) for each in DELAYED_ACTIONS]
    if key:
        refused = refusal(request, Permission.EXPORT, Permission.VIEW_BODY)
        found.insert(0, Button(_("Save the body as a file"), pages.message_url(known, key, "body"), refused))
    return found
