"""The pages of sagas in Django's admin: a read-only list for each class, and each saga with its history."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.sagas.model import Saga, saga_classes
from sqlqueue_app.status.texts import path_of

_WORDS: Final = {
    "started": gettext_lazy("Saga started"),
    "continued": gettext_lazy("Saga continued"),
    "timeout": gettext_lazy("Timeout arrived"),
}
# Columns of our own are shown in another form.
_HIDDEN: Final = ("timeouts", "history", "conversation_id")


class StateFilter(admin.SimpleListFilter):
    """Filters sagas by whether they run."""

    title = gettext_lazy("State")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        """The states."""
        return [("running", _("Running")), ("overdue", _("Timeout overdue")), ("completed", _("Saga completed"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The sagas in the chosen state."""
        if self.value() == "completed":
            return queryset.filter(completed_at__isnull=False)
        if self.value() == "overdue":
            return queryset.filter(completed_at=None, next_timeout_at__lt=timezone.now())
        return queryset.filter(completed_at=None) if self.value() == "running" else queryset


class SagaAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """The list and the pages of one class of sagas, for users who may view its model. Nothing can be changed."""

    # Django shows a field of the model instead of a method of this class with the same name.
    list_display: Any = ("saga_value", "saga_state", "started_at", "updated_at", "next_timeout_at")
    list_filter: ClassVar[Any] = (StateFilter, "started_at")
    ordering: ClassVar = ("-started_at",)
    show_full_result_count = False
    list_per_page = 50

    class Media:
        css: ClassVar = {"all": ["sqlqueue_app/dashboard.css"]}

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Always False: a saga changes only with its messages."""
        return False

    has_add_permission = has_delete_permission = has_change_permission

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        """The beginning of the correlation, unless it is the key of another model."""
        field = self.model.correlation_field()
        return [] if field.is_relation else [f"{field.name}__startswith"]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """The state that the project defines, then the facts of the process."""
        ours = [field.name for field in Saga._meta.get_fields() if field.name not in _HIDDEN]
        state = [field.name for field in self.model.own_fields()]
        return [
            (None, {"fields": ["saga_state", *state]}),
            (_("Long-running process"), {"fields": [*ours, "saga_conversation", "saga_timeouts"]}),
            (_("History"), {"fields": ["saga_messages"]}),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """All fields."""
        return [name for _label, options in self.get_fieldsets(request, obj) for name in options["fields"]]

    @admin.display(description=gettext_lazy("Saga"))
    def saga_value(self, saga: Saga) -> str:
        """The value of the correlation field."""
        return str(saga.correlation)

    @admin.display(description=gettext_lazy("State"))
    def saga_state(self, saga: Saga) -> str:
        """Whether the saga runs, or its next timeout is overdue."""
        if saga.completed_at is not None:
            return _("Saga completed")
        is_late = saga.next_timeout_at is not None and saga.next_timeout_at < timezone.now()
        return _("Timeout overdue") if is_late else _("Running")

    @admin.display(description=gettext_lazy("Conversation"))
    def saga_conversation(self, saga: Saga) -> str:
        """The id of the conversation, with a link to its page for users of the dashboard."""
        if not saga.conversation_id:
            return "–"
        try:
            name = "admin:sqlqueue_app_conversation_conversation"
            url = reverse(name, args=[path_of(saga.conversation_id)], current_app=self.admin_site.name)
        except NoReverseMatch:
            return saga.conversation_id
        return format_html('<a href="{}">{}</a>', url, saga.conversation_id)

    @admin.display(description=gettext_lazy("Waiting timeouts"))
    def saga_timeouts(self, saga: Saga) -> str:
        """The timeouts that were requested and have not arrived, those due first at the top."""
        rows = sorted((each["due"], each["type"], each["id"]) for each in saga.timeouts)
        return _table([_("Due"), _("Message type"), _("Message id")], [(_time(due), *others) for due, *others in rows])

    @admin.display(description=gettext_lazy("Messages"))
    def saga_messages(self, saga: Saga) -> str:
        """The messages that the saga has handled, newest first."""
        rows = [
            (_time(each["at"]), _what(each), each["type"], each["id"], _changes(each.get("changed", {})))
            for each in reversed(saga.history)
        ]
        return _table([_("Time"), _("Event"), _("Message type"), _("Message id"), _("Changes")], rows)


def _time(text: str) -> str:
    """An instant in the current time zone, with seconds."""
    instant = timezone.localtime(datetime.fromisoformat(text))
    return f"{date_format(instant)} {instant:%H:%M:%S}"


def _what(entry: dict[str, Any]) -> str:
    words = [str(_WORDS.get(entry["what"], entry["what"])), *([_("Saga completed")] if entry.get("completed") else [])]
    return ", ".join(words)


def _changes(changed: dict[str, str]) -> str:
    return format_html_join("", "{}: {}<br>", changed.items())


def _table(heads: list[str], rows: list[tuple[Any, ...]]) -> str:
    """A table whose rows are cards on a small screen, by the style of the dashboard."""
    if not rows:
        return "–"
    head = format_html_join("", '<th scope="col">{}</th>', ((each,) for each in heads))
    cell = '<td data-label="{}"><span class="sq-long">{}</span></td>'
    lines = ((format_html_join("", cell, zip(heads, row, strict=True)),) for row in rows)
    body = format_html_join("", "<tr>{}</tr>", lines)
    return format_html(
        '<div class="sq-scroll"><table class="sq-table"><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>', head, body
    )


def register_sagas(site: AdminSite) -> None:
    """List all sagas on a site, except those that the project has registered."""
    for saga in saga_classes():
        if not site.is_registered(saga):
            site.register(saga, SagaAdmin)
