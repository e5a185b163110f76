"""The registered instances in the admin, to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from sqlqueue_app.dashboard.formats import duration
from sqlqueue_app.dashboard.overview import instance_state
from sqlqueue_app.instances import is_dead
from sqlqueue_app.models import Instance
from sqlqueue_app.operations.instance_status import state_of, threads_of_row

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Instance]
else:
    _ModelAdmin = admin.ModelAdmin


class InstanceAdmin(_ModelAdmin):
    """Instances, read-only: the processes write their rows themselves."""

    list_display = ("endpoint", "name", "host", "pid", "callback_queue", "state", "live_threads", "heartbeat", "started_at")
    search_fields = ("endpoint", "name", "host", "callback_queue")
    show_full_result_count = False
    # An empty list of actions would leave Django's page with an inline style, which a strict policy refuses.
    actions_on_top = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Instance]:
        """With the database's clock beside each row: it also wrote the heartbeats."""
        return super().get_queryset(request).annotate(database_now=Now())

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Instance | None = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Instance | None = None) -> bool:
        """Nobody."""
        return False

    @admin.display(description=_("state"))
    def state(self, row: Instance) -> str:
        """What the process does, in a word."""
        alive = not is_dead(row, row.database_now)  # type: ignore[attr-defined]
        return instance_state(state_of(alive=alive, paused=row.paused, followed=row.paused_since is not None)).word

    @admin.display(description=_("live threads"))
    def live_threads(self, row: Instance) -> str:
        """The receive threads of each queue, as of the last heartbeat."""
        return ", ".join(f"{queue}: {count}" for queue, count in threads_of_row(row).items())

    @admin.display(description=_("last heartbeat"), ordering="heartbeat_at")
    def heartbeat(self, row: Instance) -> str:
        """How long ago."""
        age = duration(row.database_now - row.heartbeat_at)  # type: ignore[attr-defined]
        return str(_("%(age)s ago") % {"age": age})
