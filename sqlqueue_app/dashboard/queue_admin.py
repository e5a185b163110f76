"""The pages of the queues in the admin: overview, messages of a queue, one message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Power, may, reason_of
from sqlqueue_app.dashboard.charts import Chart
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.message_actions import message_action_pages, message_buttons
from sqlqueue_app.dashboard.messages import (
    FARTHEST_JUMP,
    body_text,
    failure_text,
    flag_states,
    header_groups,
    message_row,
    page_asked,
    time_texts,
)
from sqlqueue_app.dashboard.overview import overview_of, queue_row, send_command
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paths import path_of, queue_of_path
from sqlqueue_app.dashboard.periods import PERIODS, Period, period_of
from sqlqueue_app.dashboard.queue_actions import queue_action_pages, queue_buttons
from sqlqueue_app.dashboard.queue_charts import queue_charts, recent_rates
from sqlqueue_app.dashboard.queue_exports import EXPORTED_COLUMNS, MESSAGE_COLUMNS, exported_messages, exported_queues
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import DelayedMessage, Endpoint, FailedMessage, Queue
from sqlqueue_app.operations.browse import PAGE_SIZES, read_message, read_page
from sqlqueue_app.operations.failure_lookup import failures_of_rows
from sqlqueue_app.operations.instance_status import InstanceStatus, read_instances, threads_on
from sqlqueue_app.operations.known_queues import KnownQueue, QueueKind, known_queues
from sqlqueue_app.operations.looking import looking
from sqlqueue_app.operations.other_queues import other_queues
from sqlqueue_app.operations.queue_looks import QueueStatus, listed_tables, read_queue
from sqlqueue_app.operations.sample_storage import read_samples
from sqlqueue_app.operations.status import read_status
from sqlqueue_app.tables.clock import database_now
from sqlqueue_app.tables.queue import QueueTable, queue_table


class QueueAdmin(PageAdmin):
    """The pages about queues, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list of queues, the messages of one, one message."""
        return [
            self.looks("", self.changelist_view),
            self.looks("<str:name>/", self.messages_view, "messages"),
            self.looks("<str:name>/<int:row_version>/", self.message_view, "message"),
            *queue_action_pages(self),
            *message_action_pages(self),
        ]

    # --- pages ----------------------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Every queue table of the database, and the tables of delayed messages."""
        status = read_status(others=True, with_schedules=False)
        found = overview_of(status, self._url, recent_rates(status), delayed_url=self._delayed_url)
        if wanted_format(request):
            return export(request, "queues", EXPORTED_COLUMNS, exported_queues(status, found))
        title = capfirst(str(Queue._meta.verbose_name_plural))
        shown: dict[str, Any] = {"overview": found, "endpoints_url": self.url_of(Endpoint), "live_seconds": LIVE_SECONDS}
        return self.page(request, "queues", title=title, **shown, **(extra_context or {}))

    def messages_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """One queue: its charts, its messages a page at a time, what can be done with it."""
        queue, instances = self.find(name)
        if queue is None:
            return self._unknown_queue(request, name)
        status = read_queue(get_settings(), queue)
        if status.problem is not None and status.problem.stops_work:
            return self._broken_queue(request, status)
        table = queue_table(get_settings().database, queue.address)
        try:
            found = read_page(table, page_asked(request.GET, table))
        except ConnectionLost:
            raise
        except DatabaseError as error:
            return self._unreadable(request, queue, error)
        if wanted_format(request):
            return export(request, queue.name, MESSAGE_COLUMNS, exported_messages(found))
        failures = self._failure_urls(queue, [each.row_version for each in found.messages])
        url_of_message = partial(self.message_url, queue)
        alive = {each.endpoint for each in instances if each.alive}
        holder = next((each for each in instances if each.callback_queue == queue.address.table), None)
        period = period_of(request)
        return self.page(
            request,
            "messages",
            live_seconds=period.refresh_seconds,
            title=_("Queue %(name)s") % {"name": queue.name},
            crumbs=(Crumb(queue.name),),
            queue=queue_row(status, self._url, alive, holder, threads=threads_on(queue.address.table, instances)),
            charts=self._charts(queue, period),
            period=period,
            periods=PERIODS,
            buttons=queue_buttons(self, request, queue, holder, instances),
            rows=[
                message_row(each, url_of_message(each.row_version), failures.get(each.row_version, "")) for each in found.messages
            ],
            found=found,
            sizes=PAGE_SIZES,
            farthest=FARTHEST_JUMP,
            send_command=send_command(queue.name),
        )

    def _charts(self, queue: KnownQueue, period: Period) -> list[Chart]:
        alias = managed_alias()
        try:
            with looking(alias, "read the samples of a queue"):
                now = database_now(alias)
                samples = read_samples(alias, [queue.name], period.length, now)[queue.name]
        except ConnectionLost:
            raise
        except DatabaseError:
            return []  # the tables of `migrate` are missing, which the overview says
        return queue_charts(samples, period, now) if samples else []

    def message_view(self, request: HttpRequest, name: str, row_version: int) -> HttpResponse:
        """One message in full."""
        queue, _instances = self.find(name)
        if queue is None:
            return self._unknown_queue(request, name)
        try:
            table = queue_table(get_settings().database, queue.address)
            found = read_message(table, row_version, as_hex="hex" in request.GET)
        except ConnectionLost:
            raise
        except DatabaseError as error:
            return self._unreadable(request, queue, error)
        if found is None:
            return self._message_gone(request, queue, row_version)
        summary = found.summary
        return self.page(
            request,
            "message",
            title=_("Message %(row_version)s in %(queue)s") % {"row_version": row_version, "queue": queue.name},
            crumbs=(
                Crumb(queue.name, self._url(queue.name)),
                Crumb(f"#{row_version}"),
            ),
            row=message_row(summary, request.path, self._failure_urls(queue, [row_version]).get(row_version, "")),
            table=table.qualified,
            message=found,
            flags=flag_states(summary),
            groups=header_groups(found, request.GET.get("header", "")),
            header=request.GET.get("header", ""),
            times=time_texts(found),
            **self.conversation_link(found.headers),
            failure=failure_text(found),
            buttons=message_buttons(self, request, queue, row_version),
            body=body_text(found.body) if may(request, Power.VIEW_BODY) else None,
            body_refused=reason_of(Power.VIEW_BODY),
            queue_url=self._url(queue.name),
            previous_url=self._neighbour_url(queue, found.previous),
            next_url=self._neighbour_url(queue, found.next),
        )

    # --- what can be wrong ----------------------------------------------------------------------------------------------------

    def _unknown_queue(self, request: HttpRequest, name: str) -> HttpResponse:
        text = _("There is no queue “%(name)s”: neither the settings nor a running instance name it.") % {"name": name}
        return self.problem(request, title=_("Queue not found"), text=text, status=404, crumbs=(Crumb(name),))

    def _broken_queue(self, request: HttpRequest, status: QueueStatus) -> HttpResponse:
        return self.problem(
            request,
            title=_("Queue %(name)s") % {"name": status.name},
            text=_("The messages of this queue cannot be shown."),
            status=404 if status.exists is False else 500,
            crumbs=(Crumb(status.name),),
            problem=status.problem,
        )

    def _unreadable(self, request: HttpRequest, queue: KnownQueue, error: DatabaseError) -> HttpResponse:
        # The first look at the queue tells more than the error does: what is missing, and the SQL that makes it.
        status = read_queue(get_settings(), queue)
        if status.problem is not None and status.problem.stops_work:
            return self._broken_queue(request, status)
        text = _("The messages of this queue cannot be shown: %(error)s") % {"error": error}
        title = _("Queue %(name)s") % {"name": queue.name}
        return self.problem(request, title=title, text=text, status=500, crumbs=(Crumb(queue.name),))

    def _message_gone(self, request: HttpRequest, queue: KnownQueue, row_version: int) -> HttpResponse:
        text = _("Message %(row_version)s is not in the queue “%(queue)s”: it was received or deleted, or never was there.") % {
            "row_version": row_version,
            "queue": queue.name,
        }
        crumbs = (Crumb(queue.name, self._url(queue.name)), Crumb(f"#{row_version}"))
        return self.problem(request, title=_("Message not found"), text=text, status=404, crumbs=crumbs)

    # --- small parts ----------------------------------------------------------------------------------------------------------

    def find(self, name: str) -> tuple[KnownQueue | None, Sequence[InstanceStatus]]:
        """The queue that a part of an address names, one of the settings before any other of the database; and the instances."""
        settings = get_settings()
        instances, rows, _problem = read_instances()
        known = known_queues(settings, rows)
        found = queue_of_path(name, known)
        if found is None:
            found = queue_of_path(name, other_queues(settings, known, listed_tables(settings.database)))
        return found, instances

    def found(self, name: str) -> tuple[KnownQueue, QueueTable]:
        """The queue that a part of an address names, and its table; Http404 if there is none."""
        queue = self.find(name)[0]
        if queue is None:
            raise Http404(_("There is no queue “%(name)s”.") % {"name": name})
        return queue, queue_table(get_settings().database, queue.address)

    def queue_url(self, queue: KnownQueue, page: str = "messages") -> str:
        """The address of a page of a queue."""
        return self.url(page, path_of(queue.name))

    def _failure_urls(self, queue: KnownQueue, row_versions: Sequence[int]) -> dict[int, str]:
        """The pages of the failed messages that lie in the rows of an error queue."""
        if queue.kind is not QueueKind.ERROR or not row_versions:
            return {}
        found = failures_of_rows(queue.name, row_versions)
        return {number: self.url_of(FailedMessage, "message", unique) for number, unique in found.items()}

    def _url(self, name: str) -> str:
        return self.url("messages", path_of(name))

    def _delayed_url(self, name: str) -> str:
        return self.url_of(DelayedMessage, "table", path_of(name))

    def message_url(self, queue: KnownQueue, row_version: int, page: str = "message") -> str:
        """The address of a page of a message."""
        return self.url(page, path_of(queue.name), row_version)

    def _neighbour_url(self, queue: KnownQueue, row_version: int | None) -> str:
        return "" if row_version is None else self.message_url(queue, row_version)
