"""The pages of the delayed messages in the admin: the tables in which they wait, the messages of one, one message."""

from __future__ import annotations

from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.http import urlencode
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Power, may, reason_of
from sqlqueue_app.dashboard.delayed_actions import delayed_action_pages, delayed_buttons
from sqlqueue_app.dashboard.delayed_texts import (
    MESSAGE_COLUMNS,
    TABLE_COLUMNS,
    delayed_row,
    exported_delayed,
    exported_tables,
    table_row,
)
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.formats import size
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.messages import body_text, flag_states, header_groups
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paths import name_of_path, path_of
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError, QueueNotFound
from sqlqueue_app.operations.delayed_messages import DelayedPage, read_delayed_message, read_delayed_page
from sqlqueue_app.operations.delayed_status import read_delayed
from sqlqueue_app.operations.known_delayed import KnownDelayed, known_delayed_tables
from sqlqueue_app.operations.queue_looks import listed_tables, utc_now
from sqlqueue_app.operations.queue_problems import INSTALL_COMMAND, ProblemKind, QueueProblem
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.delayed_rows import key_of, place_of

PAGE_SIZE: Final = 50


class DelayedAdmin(PageAdmin):
    """The pages about delayed messages, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The tables, what can be done with messages, the messages of a table, one message."""
        return [
            self.looks("", self.changelist_view),
            *delayed_action_pages(self),
            self.looks("<str:table>/", self.table_view, "table"),
            self.looks("<str:table>/<str:key>/", self.message_view, "message"),
        ]

    # --- pages ----------------------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Every table of delayed messages: those of the endpoints, then others of the database."""
        settings = get_settings()
        found = read_delayed(settings, listed=listed_tables(settings.database))
        if wanted_format(request):
            return export(request, "delayed", TABLE_COLUMNS, exported_tables(found))
        now = database_now(settings.database) if found else utc_now()
        return self.page(
            request,
            "delayed_tables",
            live_seconds=LIVE_SECONDS,
            title=capfirst(str(self.opts.verbose_name_plural)),
            rows=[table_row(each, self.table_url(each.name), now) for each in found],
            install_command=INSTALL_COMMAND if any(each.exists is False for each in found) else "",
            **(extra_context or {}),
        )

    def table_view(self, request: HttpRequest, table: str) -> HttpResponseBase:
        """The messages of one table by their due times, a page at a time."""
        known = self.find(table)
        if known is None:
            return self._unknown(request, table)
        delayed = known.table(get_settings().database)
        after = place_of(delayed, request.GET.get("due", ""), request.GET.get("after", ""))
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
            next_query=_next_query(found),
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
            message=detail,
            size=_("NULL") if detail.summary.size is None else size(detail.summary.size),
            flags=flag_states(detail.summary),
            groups=header_groups(detail, request.GET.get("header", "")),
            header=request.GET.get("header", ""),
            buttons=delayed_buttons(self, request, known, message.key),
            body=body_text(detail.body) if may(request, Power.VIEW_BODY) else None,
            body_refused=reason_of(Power.VIEW_BODY),
            table_url=self.table_url(known.name),
            **self.conversation_link(detail.headers),
        )

    # --- what can be wrong ----------------------------------------------------------------------------------------------------

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

    # --- small parts ----------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> KnownDelayed | None:
        """The table that a part of an address names, by its name or that of its endpoint; one of the settings before any other."""
        settings = get_settings()
        found = _named(path, known_delayed_tables(settings))
        return found or _named(path, known_delayed_tables(settings, listed_tables(settings.database)))

    def found(self, path: str) -> KnownDelayed:
        """The same; Http404 if there is none."""
        known = self.find(path)
        if known is None:
            raise Http404(_("There is no table of delayed messages “%(name)s”.") % {"name": path})
        return known

    def table_url(self, name: str) -> str:
        """The address of the messages of a table."""
        return self.url("table", path_of(name))

    def message_url(self, known: KnownDelayed, key: str, page: str = "message") -> str:
        """The address of a page of one message."""
        return self.url(page, path_of(known.name), key)


def _named(path: str, tables: list[KnownDelayed]) -> KnownDelayed | None:
    for names in ({each.name: each for each in tables}, {each.endpoint: each for each in tables}):
        name = name_of_path(path, names)
        if name is not None:
            return names[name]
    return None


def _next_query(found: DelayedPage) -> str:
    return "" if found.next is None else urlencode({"due": found.next.due, "after": found.next.key})
