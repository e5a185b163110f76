"""The pages of the queues in the admin: overview, messages of a queue, one message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Power, may, reason_of
from sqlqueue_app.dashboard.messages import PageRequest, body_text, flag_states, header_groups, message_row
from sqlqueue_app.dashboard.overview import overview_of, queue_row, send_command
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.dashboard.paths import path_of, queue_of_path
from sqlqueue_app.messages.errors import ConnectionLost, DatabaseError
from sqlqueue_app.models import Queue
from sqlqueue_app.operations.browse import PAGE_SIZES, read_message, read_page
from sqlqueue_app.operations.instance_status import InstanceStatus, read_instances, threads_on
from sqlqueue_app.operations.known_queues import KnownQueue, known_queues
from sqlqueue_app.operations.queue_looks import QueueStatus, read_queue
from sqlqueue_app.operations.status import read_status
from sqlqueue_app.tables.queue import queue_table


class QueueAdmin(PageAdmin):
    """The pages about queues, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list of queues, the messages of one, one message."""
        return [
            self.looks("", self.changelist_view),
            self.looks("<str:name>/", self.messages_view, "messages"),
            self.looks("<str:name>/<int:row_version>/", self.message_view, "message"),
        ]

    # --- pages ----------------------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Every queue, every instance."""
        return self.page(
            request,
            "queues",
            title=capfirst(str(Queue._meta.verbose_name_plural)),
            overview=overview_of(read_status(), self._url),
            **(extra_context or {}),
        )

    def messages_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """The messages of one queue, a page at a time."""
        queue, instances = self._find(name)
        if queue is None:
            return self._unknown_queue(request, name)
        status = read_queue(get_settings(), queue)
        if status.problem is not None and status.problem.stops_work:
            return self._broken_queue(request, status)
        asked = PageRequest.read(request.GET)
        try:
            found = read_page(queue_table(get_settings().database, queue.address), after=asked.after, size=asked.size)
        except ConnectionLost:
            raise
        except DatabaseError as error:
            return self._unreadable(request, queue, error)
        url_of_message = partial(self._message_url, queue)
        alive = {each.endpoint for each in instances if each.alive}
        holder = next((each for each in instances if each.callback_queue == queue.address.table), None)
        return self.page(
            request,
            "messages",
            title=_("Queue %(name)s") % {"name": queue.name},
            crumbs=(Crumb(queue.name),),
            queue=queue_row(status, self._url, alive, holder, threads=threads_on(queue.address.table, instances)),
            rows=[message_row(each, url_of_message(each.row_version)) for each in found.messages],
            found=found,
            sizes=PAGE_SIZES,
            send_command=send_command(queue.name),
        )

    def message_view(self, request: HttpRequest, name: str, row_version: int) -> HttpResponse:
        """One message in full."""
        queue, _instances = self._find(name)
        if queue is None:
            return self._unknown_queue(request, name)
        try:
            found = read_message(queue_table(get_settings().database, queue.address), row_version)
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
            row=message_row(summary, request.path),
            table=queue_table(get_settings().database, queue.address).qualified,
            message=found,
            flags=flag_states(summary),
            groups=header_groups(found),
            body=body_text(found.body) if may(request, Power.VIEW_BODY) else None,
            body_refused=reason_of(Power.VIEW_BODY),
            queue_url=self._url(queue.name),
            previous_url=self._message_url(queue, found.previous),
            next_url=self._message_url(queue, found.next),
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

    def _find(self, name: str) -> tuple[KnownQueue | None, Sequence[InstanceStatus]]:
        instances, rows, _problem = read_instances()
        return queue_of_path(name, known_queues(get_settings(), rows)), instances

    def _url(self, name: str) -> str:
        return self.url("messages", path_of(name))

    def _message_url(self, queue: KnownQueue, row_version: int | None) -> str:
        return "" if row_version is None else self.url("message", path_of(queue.name), row_version)
