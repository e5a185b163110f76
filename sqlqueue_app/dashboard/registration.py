"""Registration of the pages on an admin site, and read-only lists of the raw queue tables."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.admin import AdminSite
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from sqlqueue_app import models
from sqlqueue_app.dashboard.analytics import AnalyticsAdmin, PipelineAdmin
from sqlqueue_app.dashboard.checks import CheckAdmin
from sqlqueue_app.dashboard.conversations import ConversationAdmin
from sqlqueue_app.dashboard.delayed import DelayedAdmin
from sqlqueue_app.dashboard.endpoints import EndpointAdmin, InstanceAdmin
from sqlqueue_app.dashboard.failures import FailureAdmin
from sqlqueue_app.dashboard.history import ActionAdmin, EventAdmin
from sqlqueue_app.dashboard.in_doubt import InDoubtAdmin
from sqlqueue_app.dashboard.notifications import NotificationAdmin
from sqlqueue_app.dashboard.operations import OperationAdmin
from sqlqueue_app.dashboard.overview import DashboardAdmin
from sqlqueue_app.dashboard.page import ReadOnlyAdmin, order_menu
from sqlqueue_app.dashboard.queues import QueueAdmin
from sqlqueue_app.dashboard.redirects import RedirectAdmin
from sqlqueue_app.dashboard.schedules import ScheduleAdmin
from sqlqueue_app.dashboard.search import LakeSearchAdmin, SearchAdmin
from sqlqueue_app.dashboard.subscriptions import SubscriptionAdmin
from sqlqueue_app.dashboard.tasks import TaskAdmin
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models.queues import queue_models
from sqlqueue_app.tables.connections import optional_read
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT

ADMINS: Final = (
    (models.Dashboard, DashboardAdmin),
    (models.Queue, QueueAdmin),
    (models.Endpoint, EndpointAdmin),
    (models.FailedMessage, FailureAdmin),
    (models.Search, SearchAdmin),
    (models.Conversation, ConversationAdmin),
    (models.LakeSearch, LakeSearchAdmin),
    (models.Analytics, AnalyticsAdmin),
    (models.Instance, InstanceAdmin),
    (models.DelayedMessage, DelayedAdmin),
    (models.Subscription, SubscriptionAdmin),
    (models.Schedule, ScheduleAdmin),
    (models.TaskResult, TaskAdmin),
    (models.Redirect, RedirectAdmin),
    (models.CheckResult, CheckAdmin),
    (models.DistributedTransaction, InDoubtAdmin),
    (models.Event, EventAdmin),
    (models.NotificationRule, NotificationAdmin),
    (models.Operation, OperationAdmin),
    (models.PipelineRun, PipelineAdmin),
    (models.OperatorAction, ActionAdmin),
)


def register(site: AdminSite) -> None:
    """Register all pages on a site; skips registered models. Call it for each site except the default one, which has them."""
    for model, model_admin in ADMINS:
        if not site.is_registered(model):
            site.register(model, model_admin)
    order_menu(site)


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Stops counting at the limit of exact counts, so that a long queue is not scanned."""

    @cached_property
    def count(self) -> int:
        """The number of rows, at most one more than the limit."""
        rows: Any = self.object_list
        return len(rows.values_list("pk", flat=True)[: EXACT_COUNT_LIMIT + 1])


class QueueMessageAdmin(ReadOnlyAdmin):
    """Read-only, for users who may view the queues or this table."""

    list_display = ("row_version", "id", "expires")
    ordering = ("row_version",)
    exclude = ("body",)
    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Without bodies, which may be large. Http404 if the table is missing or cannot be read."""
        found: QuerySet[Any] = super().get_queryset(request).defer("body")
        with optional_read(found.db, "read the queue"):
            found.exists()
            return found
        raise Http404(_("The messages of this queue cannot be shown."))

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Not by body: the number of matches would reveal bodies letter by letter."""
        return lookup.partition("__")[0] != "body" and bool(super().lookup_allowed(lookup, value, request))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The permission of the queue pages, or that of this model."""
        return bool(request.user.has_perm("sqlqueue_app.view_queue")) or super().has_view_permission(request, obj)


def register_tables(site: AdminSite) -> None:
    """List the tables of the known queues on a site, except those that the project has registered.

    Called for the default site when the app is ready, after the `admin` modules of the project. With invalid settings nothing is
    listed; the system checks report them.
    """
    try:
        tables = queue_models()
    except ConfigurationError:
        return
    for table in tables:
        if not site.is_registered(table):
            site.register(table, QueueMessageAdmin)
