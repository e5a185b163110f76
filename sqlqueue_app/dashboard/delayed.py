"""The pages of delayed messages: their tables, the messages of a table, one message, delivering and cancelling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _, gettext_lazy, ngettext, ngettext_lazy

from sqlqueue_app.browsing import delayed_messages
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard import lists
from sqlqueue_app.dashboard.access import Button, Permission, may, not_found, refusal, require
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, State, bounded_number, duration, number, stamp_html
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.messages import body_file, message_page_context
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, name_of_path, path_of
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, QueueNotFound
from sqlqueue_app.models import DelayedMessage
from sqlqueue_app.status.delayed import OVERDUE_AFTER, DelayedStatus, KnownDelayed, known_delayed_tables, read_delayed
from sqlqueue_app.status.queues import INSTALL_COMMAND, ProblemKind, QueueProblem, listed_tables, queue_name_at, utc_now
from sqlqueue_app.tables.connections import database_now
from sqlqueue_app.tables.delayed import DelayedTable, key_of, position_of

PAGE_SIZE: Final = 50
_JUST_DUE: Final = timedelta(seconds=2)  # workers poll every second
_REASONS_SHOWN = 20
_GONE: Final = gettext_lazy("None of them is in the table: they were delivered or cancelled, or a worker is moving them.")


class DelayedAction(Action):
    """An action on delayed messages, whose keys are the `ids` in the query string or in the form."""

    known: KnownDelayed
    table: DelayedTable
    keys: list[str]
    title_of_count: str | Promise

    def find(self, **key: Any) -> None:
        pages: DelayedAdmin = self.pages  # type: ignore[assignment]
        try:
            self.known, self.table = known, table = pages.found(key["table"])
        except Http404 as error:
            raise not_found(self.request, self.permission, str(error)) from error
        requested = self.request.POST.getlist("ids") or self.request.GET.getlist("ids")
        keys = dict.fromkeys(found for text in requested if (found := key_of(table, text)) is not None)
        self.keys = list(keys)[: delayed_messages.MAX_SELECTED]
        self.target = f"{known.name} #{self.keys[0]}" if len(self.keys) == 1 else known.name
        self.back_url = pages.table_url(known)
        self.crumbs = (Crumb(known.name, self.back_url),)
        self.hidden = [("ids", each) for each in self.keys]
        there: Sequence[delayed_messages.PlannedDelivery] = ()
        # Nothing is read for a user without the permission.
        if may(self.request, self.permission):
            try:
                there = delayed_messages.plan_deliveries(get_settings(), known, self.keys)
            except ConnectionLost:
                raise
            except DatabaseError as error:
                self.blocked = str(error)
        ready = self.ready(there)
        self.count, gone = len(ready), len(self.keys) - len(there)
        self.title = self.title_of_count % {"count": number(self.count), "number": self.count}
        self.facts = [
            (_("Endpoint"), known.endpoint),
            (_("Messages"), number(len(there))),
            *([(_("Due"), time_left(there[0].row.seconds))] if len(there) == 1 else ()),
            *([(_("No longer in the table"), number(gone))] if gone else ()),
            *(
                (_("To the queue"), to if len(ready) == 1 else f"{to} ({number(count)})")
                for to, count in Counter(each.to or "?" for each in ready).most_common(_REASONS_SHOWN)
            ),
        ]
        if not ready and not self.blocked:
            none = _("None of these messages is in the table: they were delivered or cancelled, or none was selected.")
            self.blocked = _("None of these messages can be delivered.") if there else none

    def ready(self, there: Sequence[delayed_messages.PlannedDelivery]) -> Sequence[delayed_messages.PlannedDelivery]:
        """The messages that the action can be applied to."""
        return there

    def outcome(self, text: str, done: int, gone: int, *left: str) -> ActionOutcome:
        """The outcome, with the number of messages that were no longer in the table and the reasons why others are left."""
        if gone:
            words = ngettext("%(count)s was no longer in the table.", "%(count)s were no longer in the table.", gone)
            left = (words % {"count": number(gone)}, *left)
        return ActionOutcome(" ".join((text % {"count": number(done)}, *left)), self.back_url, done, is_partial=bool(left))


class DeliverNow(DelayedAction):
    """Puts delayed messages into their queues."""

    name, page, route = "deliver_now", "deliver", "<str:table>/deliver/"
    permission = Permission.RETRY
    logged_as = gettext_lazy("Deliver delayed messages")
    label = gettext_lazy("Deliver now")
    title_of_count = ngettext_lazy("Deliver %(count)s message now", "Deliver %(count)s messages now", "number")
    text = gettext_lazy(
        "They are moved to their queues now, in one transaction, regardless of when they are due. "
        "Messages that a worker moves first are skipped."
    )

    def ready(self, there: Sequence[delayed_messages.PlannedDelivery]) -> Sequence[delayed_messages.PlannedDelivery]:
        self.warnings = [_("Stays: %(reason)s") % {"reason": each.refusal} for each in there if each.refusal][:_REASONS_SHOWN]
        return [each for each in there if each.target is not None]

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        done = delayed_messages.deliver_now(get_settings(), self.known, self.keys)
        if not done.done:
            raise ValueError(done.refused[0].refusal if done.refused else _GONE)
        text = ngettext("%(count)s message was delivered.", "%(count)s messages were delivered.", done.done)
        words = ngettext("%(count)s stays: %(reason)s", "%(count)s stay: %(reason)s", len(done.refused))
        left = [words % {"count": number(len(done.refused)), "reason": each.refusal} for each in done.refused[:1]]
        return self.outcome(text, done.done, done.gone, *left)


class CancelDelayed(DelayedAction):
    """Deletes delayed messages."""

    name, page, route = "cancel_delayed", "cancel", "<str:table>/cancel/"
    permission = Permission.DELETE
    logged_as = gettext_lazy("Cancel delayed messages")
    label, submit = gettext_lazy("Cancel"), gettext_lazy("Delete them")
    title_of_count = ngettext_lazy("Cancel %(count)s delayed message", "Cancel %(count)s delayed messages", "number")
    text = gettext_lazy("They are deleted undelivered, and cannot be restored; a saga may wait forever for its timeout.")
    is_dangerous = True

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        deleted = delayed_messages.cancel_delayed(self.table, self.keys)
        if not deleted:
            raise ValueError(_GONE)
        words = ngettext("%(count)s delayed message was cancelled.", "%(count)s delayed messages were cancelled.", deleted)
        return self.outcome(words, deleted, len(self.keys) - deleted)


class DelayedAdmin(PageAdmin):
    """The pages of delayed messages. They need the permission `sqlqueue_app.view_queue`."""

    action_classes = (DeliverNow, CancelDelayed)
    routes: ClassVar = {"table": "<str:table>/", "message": "<str:table>/<str:key>/", "body": "<str:table>/<str:key>/body/"}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """All tables of delayed messages: those of the endpoints, then others in the database."""
        settings = get_settings()
        found = read_delayed(settings, listed=listed_tables(settings.database))
        now = database_now(settings.database) if found else utc_now()
        if lists.wanted_format(request):
            return lists.export(request, "delayed", {**TABLE_COLUMNS, "overdue": lambda each: each.overdue_at(now)}, found)
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
        known, delayed = self.found(table)
        try:
            after = position_of(delayed, request.GET.get("due", ""), request.GET.get("after", ""))
            found = delayed_messages.read_delayed_page(delayed, PAGE_SIZE, after=after)
        except DatabaseError as error:
            return self._broken(request, known, error)
        if lists.wanted_format(request):
            return lists.export(request, known.name, _file_columns(known.endpoint), delayed_messages.read_from_page(delayed, found))
        return self.page(
            request, "delayed_messages", title=_("Delayed messages of %(endpoint)s") % {"endpoint": known.endpoint},
            crumbs=(Crumb(known.name),), live_seconds=LIVE_SECONDS, known=known, qualified=delayed.qualified,
            table=self._table(known, found.messages) if found.messages else None,
            chosen=self._buttons(request, known) if found.messages else [], is_first=after is None, next=found.next,
        )  # fmt: skip

    def _table(self, known: KnownDelayed, messages: Sequence[delayed_messages.DelayedEntry]) -> lists.HtmlTable:
        def message(each: delayed_messages.DelayedEntry) -> SafeString:
            box = '<input type="checkbox" name="ids" value="{}" aria-label="{}"> {}'
            words = _("Choose %(id)s") % {"id": each.message.message_id}
            url = f"{self.url('message', path_of(known.name), each.key)}?{urlencode({'id': each.message.message_id})}"
            return format_html(box, each.key, words, lists.message_html(url, each.message.message_type, each.message.message_id))

        columns: list[lists.TableColumn[delayed_messages.DelayedEntry]] = [
            lists.TableColumn(_("Message"), message, lists.WIDE),
            lists.TableColumn(_("Due"), due_html),
            lists.TableColumn(_("Kind"), _kind_html),
            lists.TableColumn(_("Destination"), lambda each: queue_name_at(each.destination) or known.endpoint, lists.WIDE),
        ]
        caption = _("Waiting messages, next due first. Viewing does not receive them.")
        return lists.table(caption, columns, messages, lambda each: each.key)

    def message_view(self, request: HttpRequest, table: str, key: str) -> HttpResponseBase:
        """One message in full."""
        known, delayed = self.found(table)
        try:
            found = delayed_messages.read_delayed_message(delayed, key, as_hex="hex" in request.GET)
        except DatabaseError as error:
            return self._broken(request, known, error)
        if found is None:
            text = _("The message is not in the table: it was delivered or cancelled, or was never in it.")
            return self.message_gone(request, text, (Crumb(known.name, self.table_url(known)), Crumb(key)))
        entry, detail = found
        refused = refusal(request, Permission.EXPORT, Permission.VIEW_BODY)
        save = Button(_("Save the body as a file"), self.url("body", path_of(known.name), entry.key), refused)
        return self.page(
            request, "delayed_message", title=_("Delayed message in %(table)s") % {"table": known.name},
            crumbs=(Crumb(known.name, self.table_url(known)), Crumb(entry.key)), known=known, entry=entry, due=due_html(entry),
            destination=queue_name_at(entry.destination) or known.endpoint,
            buttons=[save, *self._buttons(request, known, urlencode({"ids": entry.key}))],
            **message_page_context(self, request, detail),
        )  # fmt: skip

    def _broken(self, request: HttpRequest, known: KnownDelayed, error: DatabaseError) -> HttpResponse:
        """The error page of a table that cannot be read."""
        if isinstance(error, ConnectionLost):
            raise error
        is_missing = isinstance(error, QueueNotFound)
        command = INSTALL_COMMAND if is_missing and known.is_in_settings else ""
        return self.problem(
            request,
            title=_("Delayed messages of %(endpoint)s") % {"endpoint": known.endpoint},
            text=_("The messages of this table cannot be shown."),
            status=404 if is_missing else 500,
            crumbs=(Crumb(known.name),),
            problem=QueueProblem(ProblemKind.MISSING if is_missing else ProblemKind.UNREADABLE, str(error), command=command),
        )

    def _buttons(self, request: HttpRequest, known: KnownDelayed, query: str = "") -> list[Button]:
        """The actions on the messages of a query; without one on those that the form lists."""
        return [each.button(self, request, path_of(known.name), query=query) for each in self.action_classes]

    def body_view(self, request: HttpRequest, table: str, key: str) -> HttpResponse:
        """The body of a message as a file."""
        require(request, Permission.EXPORT, Permission.VIEW_BODY)
        return body_file(delayed_messages.read_delayed_body(self.found(table)[1], key), key)

    def found(self, path: str) -> tuple[KnownDelayed, DelayedTable]:
        """The table that a URL part names, by its name or its endpoint, preferring those of the settings; Http404 if none."""
        settings = get_settings()
        known = _named(path, known_delayed_tables(settings))
        known = known or _named(path, known_delayed_tables(settings, listed_tables(settings.database)))
        if known is None:
            text = _("There is no table of delayed messages “%(name)s” in the database, and the settings name none.")
            raise Http404(text % {"name": path})
        return known, known.table(settings.database)

    def table_url(self, known: KnownDelayed) -> str:
        """The URL of the messages of a table."""
        return self.url("table", path_of(known.name))


def _named(path: str, tables: list[KnownDelayed]) -> KnownDelayed | None:
    names = {each.endpoint: each for each in tables} | {each.name: each for each in tables}
    return names.get(name_of_path(path, names) or "")


TABLE_COLUMNS: Final = {
    "table": "name", "endpoint": "endpoint", "in_settings": "is_in_settings", "exists": "exists", "messages": "waiting",
    "exact": "exact", "overdue": "overdue", "next_due": "next_due",
}  # fmt: skip


def delayed_table(pages: PageAdmin, found: Sequence[DelayedStatus], now: datetime) -> lists.HtmlTable | None:
    """The tables of delayed messages, as of `now`; None without any."""

    def endpoint(each: DelayedStatus) -> SafeString:
        url = "" if each.exists is False else pages.url_of(DelayedMessage, "table", path_of(each.name))
        note = "" if each.is_in_settings else _("not in the settings of this site")
        return lists.with_notes(lists.link_html(url, each.endpoint), note)

    def state(each: DelayedStatus) -> State | SafeString:
        if each.exists is False:
            return State(Grade.ERROR, _("Missing"))
        if each.waiting is None or each.overdue is None:
            return State(Grade.ERROR, _("Unreadable"))
        if not each.overdue_at(now):
            return State(Grade.OK, _("OK"))
        return lists.with_notes(State(Grade.WARNING, _("Overdue")), _("no worker moves them"))

    def count(value: int | None, *, exact: bool) -> object:
        return _("not known") if value is None else bounded_number(value, exact=exact)

    def next_due(each: DelayedStatus) -> SafeString | None:
        due = each.next_due
        return lists.with_notes(time_left((due - now).total_seconds()), stamp_html(due)) if due else None

    columns: list[lists.TableColumn[DelayedStatus]] = [
        lists.TableColumn(_("Endpoint"), endpoint),
        lists.TableColumn(_("State"), state),
        lists.TableColumn(_("Messages"), lambda each: count(each.waiting, exact=each.exact), lists.NUMBER),
        lists.TableColumn(_("Overdue"), lambda each: count(each.overdue_at(now), exact=each.overdue_exact), lists.NUMBER),
        lists.TableColumn(_("Next due"), next_due),
        lists.TableColumn(_("Table"), lambda each: each.table, lists.WIDE),
    ]
    caption = _(
        "Messages wait here for their time: deferred ones, timeouts of sagas, delayed retries. "
        "Any worker moves them into their queues."
    )
    return lists.table(caption, columns, found, lambda each: f"delayed {each.name}") if found else None


def time_left(seconds: float | None) -> str:
    """The time until a message is due, or since it was due; overdue after a minute, as in the alert."""
    if seconds is None:
        return _("never")
    left = timedelta(seconds=seconds)
    if seconds > 0:
        return _("in %(time)s") % {"time": duration(left)}
    if -left <= _JUST_DUE:
        return _("now")
    return (_("overdue for %(time)s") if -left >= OVERDUE_AFTER else _("due for %(time)s")) % {"time": duration(-left)}


def due_html(each: delayed_messages.DelayedEntry) -> SafeString:
    """When a message is due, marked if it is overdue."""
    seconds, left = each.row.seconds, time_left(each.row.seconds)
    is_overdue = seconds is not None and timedelta(seconds=-seconds) >= OVERDUE_AFTER
    return lists.with_notes(State(Grade.WARNING, left) if is_overdue else left, each.row.due or each.row.due_text)


def _kind_html(each: delayed_messages.DelayedEntry) -> SafeString:
    kind = _("unknown") if each.kind is None else str(each.kind.label)
    reason = each.message.unreadable
    notes = (State(Grade.ERROR, _("Poison")), Truncator(reason).chars(120)) if reason else ()
    return lists.with_notes(kind, *notes)


def _file_columns(endpoint: str) -> lists.FileColumns:
    return {
        "key": "key", "due": lambda each: each.row.due or each.row.due_text, "seconds_until_due": "row.seconds",
        "kind": "kind.value", "destination": "destination", "types": lambda each: list(each.message.types),
        "message_id": "message.message_id", "endpoint": lambda _each: endpoint, "size": "message.size",
        "unreadable": "message.unreadable",
    }  # fmt: skip
