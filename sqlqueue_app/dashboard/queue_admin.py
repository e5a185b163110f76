"""The pages of the queues in the admin: overview, messages of a queue, one message. They only look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.messages import PageRequest, body_text, flag_states, header_groups, message_row
from sqlqueue_app.dashboard.overview import overview_of, queue_row, send_command
from sqlqueue_app.dashboard.pages import Crumb, database_away_page, is_database_away, page, problem_page
from sqlqueue_app.dashboard.paths import path_of, queue_of_path
from sqlqueue_app.messages.errors import ConfigurationError, ConnectionLost, DatabaseError
from sqlqueue_app.models import Queue
from sqlqueue_app.operations.browse import PAGE_SIZES, read_message, read_page
from sqlqueue_app.operations.instance_status import InstanceStatus, read_instances, threads_on
from sqlqueue_app.operations.known_queues import KnownQueue, known_queues
from sqlqueue_app.operations.status import QueueStatus, read_queue, read_status
from sqlqueue_app.tables.queue import queue_table

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Queue]
else:
    _ModelAdmin = admin.ModelAdmin

_View = Callable[..., HttpResponse]


class QueueAdmin(_ModelAdmin):
    """Queues for people with the permission `sqlqueue_app.view_queue`. Nobody adds, changes or deletes anything here."""

    def has_view_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        """The one permission that these pages know."""
        return bool(request.user.has_perm("sqlqueue_app.view_queue"))

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the menu shows the queues."""
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        """Nobody."""
        return False

    def get_urls(self) -> list[URLPattern]:
        """Our pages alone: those of a model would look for a table that does not exist."""
        return [
            path("", self._protected(self.changelist_view), name="sqlqueue_app_queue_changelist"),
            path("<str:name>/", self._protected(self.messages_view), name="sqlqueue_app_queue_messages"),
            path("<str:name>/<int:row_version>/", self._protected(self.message_view), name="sqlqueue_app_queue_message"),
        ]

    def _protected(self, view: _View) -> Any:
        """The view for logged-in staff with the permission; a database that is away becomes a page of its own."""

        def permitted(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            try:
                return view(request, *args, **kwargs)
            except ConfigurationError as error:
                return self._wrong_settings(request, error)

        checked = self.admin_site.admin_view(require_safe(permitted))

        def reachable(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            try:
                response = checked(request, *args, **kwargs)
                # The admin's menu asks for permissions while it is rendered.
                render = getattr(response, "render", None)
                return render() if render is not None else response
            except Exception as error:
                if is_database_away(error):
                    return database_away_page(self.admin_site, request, error)
                raise

        whole: Any = update_wrapper(reachable, checked)
        # With ATOMIC_REQUESTS, a page on SQLite would take the write lock that workers need.
        for alias in connections:
            whole = transaction.non_atomic_requests(alias)(whole)
        return whole

    # --- pages ----------------------------------------------------------------------------------------------------------------

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The overview: every queue, every instance."""
        return page(
            self.admin_site,
            request,
            "overview",
            title=capfirst(str(Queue._meta.verbose_name_plural)),
            crumbs=(Crumb(capfirst(str(Queue._meta.verbose_name_plural))),),
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
        return page(
            self.admin_site,
            request,
            "messages",
            title=_("Queue %(name)s") % {"name": queue.name},
            crumbs=self._crumbs(Crumb(queue.name)),
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
        return page(
            self.admin_site,
            request,
            "message",
            title=_("Message %(row_version)s in %(queue)s") % {"row_version": row_version, "queue": queue.name},
            crumbs=self._crumbs(Crumb(queue.name, self._url(queue.name)), Crumb(f"#{row_version}")),
            row=message_row(summary, request.path),
            table=queue_table(get_settings().database, queue.address).qualified,
            message=found,
            flags=flag_states(summary),
            groups=header_groups(found),
            body=body_text(found.body),
            queue_url=self._url(queue.name),
            previous_url=self._message_url(queue, found.previous),
            next_url=self._message_url(queue, found.next),
        )

    # --- what can be wrong ----------------------------------------------------------------------------------------------------

    def _unknown_queue(self, request: HttpRequest, name: str) -> HttpResponse:
        text = _("There is no queue “%(name)s”: neither the settings nor a running instance name it.") % {"name": name}
        return problem_page(
            self.admin_site, request, title=_("Queue not found"), text=text, status=404, crumbs=self._crumbs(Crumb(name))
        )

    def _broken_queue(self, request: HttpRequest, status: QueueStatus) -> HttpResponse:
        return problem_page(
            self.admin_site,
            request,
            title=_("Queue %(name)s") % {"name": status.name},
            text=_("The messages of this queue cannot be shown."),
            status=404 if status.exists is False else 500,
            crumbs=self._crumbs(Crumb(status.name)),
            problem=status.problem,
        )

    def _unreadable(self, request: HttpRequest, queue: KnownQueue, error: DatabaseError) -> HttpResponse:
        # The first look at the queue tells more than the error does: what is missing, and the SQL that makes it.
        status = read_queue(get_settings(), queue)
        if status.problem is not None and status.problem.stops_work:
            return self._broken_queue(request, status)
        text = _("The messages of this queue cannot be shown: %(error)s") % {"error": error}
        title = _("Queue %(name)s") % {"name": queue.name}
        return problem_page(self.admin_site, request, title=title, text=text, status=500, crumbs=self._crumbs(Crumb(queue.name)))

    def _message_gone(self, request: HttpRequest, queue: KnownQueue, row_version: int) -> HttpResponse:
        text = _("Message %(row_version)s is not in the queue “%(queue)s”: it was received or deleted, or never was there.") % {
            "row_version": row_version,
            "queue": queue.name,
        }
        crumbs = self._crumbs(Crumb(queue.name, self._url(queue.name)), Crumb(f"#{row_version}"))
        return problem_page(self.admin_site, request, title=_("Message not found"), text=text, status=404, crumbs=crumbs)

    def _wrong_settings(self, request: HttpRequest, error: ConfigurationError) -> HttpResponse:
        return problem_page(
            self.admin_site, request, title=_("The settings are wrong"), text=str(error), status=500, crumbs=self._crumbs()
        )

    # --- small parts ----------------------------------------------------------------------------------------------------------

    def _find(self, name: str) -> tuple[KnownQueue | None, Sequence[InstanceStatus]]:
        instances, rows, _problem = read_instances()
        return queue_of_path(name, known_queues(get_settings(), rows)), instances

    def _url(self, name: str) -> str:
        return reverse("admin:sqlqueue_app_queue_messages", args=(path_of(name),), current_app=self.admin_site.name)

    def _message_url(self, queue: KnownQueue, row_version: int | None) -> str:
        if row_version is None:
            return ""
        return reverse(
            "admin:sqlqueue_app_queue_message", args=(path_of(queue.name), row_version), current_app=self.admin_site.name
        )

    def _crumbs(self, *more: Crumb) -> tuple[Crumb, ...]:
        url = reverse("admin:sqlqueue_app_queue_changelist", current_app=self.admin_site.name)
        return (Crumb(capfirst(str(Queue._meta.verbose_name_plural)), url), *more)
