"""The queue tables themselves in the admin's menu: rows as the table has them, to look at.

What the messages mean is on the dashboard's pages; these lists are for those who want the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.queue_models.base import QueueMessage
from sqlqueue_app.queue_models.factory import queue_models
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[QueueMessage]
    _Paginator = Paginator[QueueMessage]
else:
    _ModelAdmin = admin.ModelAdmin
    _Paginator = Paginator


class BoundedPaginator(_Paginator):
    """Counts no further than the exact depth of the overview: a queue with millions of rows is not scanned for a page of it."""

    @cached_property
    def count(self) -> int:
        """The rows, at most one more than are counted exactly."""
        rows: Any = self.object_list
        return len(rows.values_list("pk", flat=True)[: EXACT_COUNT_LIMIT + 1])


class QueueMessageAdmin(_ModelAdmin):
    """Read-only, for people who may view the queues or this table."""

    list_display = ("row_version", "id", "expires")
    ordering = ("row_version",)
    exclude = ("body",)
    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50

    def get_queryset(self, request: HttpRequest) -> QuerySet[QueueMessage]:
        """Without the bodies, which may be large."""
        return super().get_queryset(request).defer("body")

    def has_view_permission(self, request: HttpRequest, obj: QueueMessage | None = None) -> bool:
        """The permission of the queue pages, or that of this model."""
        return bool(request.user.has_perm("sqlqueue_app.view_queue")) or super().has_view_permission(request, obj)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the menu shows the table."""
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: QueueMessage | None = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: QueueMessage | None = None) -> bool:
        """Nobody."""
        return False


def register_tables(site: admin.AdminSite) -> None:
    """List the tables of the known queues on a site, but for those that it has already: a project's own admin goes before ours.

    Called for the default site when the app is ready, after the projects' `admin` modules were found. With wrong settings nothing
    is listed; the system checks report them.
    """
    try:
        tables = queue_models()
    except ConfigurationError:
        return
    for table in tables:
        if not site.is_registered(table):
            site.register(table, QueueMessageAdmin)
