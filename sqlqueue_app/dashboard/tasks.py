"""The pages of Django tasks: a list of results, newest first, and one task with its attempts."""

from __future__ import annotations

import json
from typing import ClassVar, Final

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.dashboard.access import Permission, refusal
from sqlqueue_app.dashboard.formats import Grade, State
from sqlqueue_app.dashboard.lists import NUMBER, WIDE, DaysFilter, ListAdmin, TableColumn, choices, link_html, with_notes
from sqlqueue_app.dashboard.page import Crumb, found_or_404
from sqlqueue_app.models import TaskResult
from sqlqueue_app.tables.rows import without_nul

# By the values of Django's TaskResultStatus.
TASK_STATES: Final = {
    "READY": State(Grade.INFO, gettext_lazy("Waiting")), "RUNNING": State(Grade.INFO, gettext_lazy("Running")),
    "FAILED": State(Grade.ERROR, gettext_lazy("Failed")), "SUCCESSFUL": State(Grade.OK, gettext_lazy("Successful")),
}  # fmt: skip


def task_state(task: TaskResult) -> State:
    """The status of a task; after a failed attempt, that it is retried."""
    if task.status == "READY" and task.errors:
        return State(Grade.WARNING, _("Waiting for its next attempt"))
    return TASK_STATES.get(task.status) or State(Grade.INFO, task.status)


class TaskFilter(DaysFilter):
    """The filter of the list of tasks; days refer to the time of enqueuing."""

    instant = "enqueued_at"
    lookups: ClassVar = {"task": "task__icontains"}
    field_order = ("status", "task", "queue_name", "since", "until")

    status = forms.ChoiceField(
        label=gettext_lazy("State"), choices=choices((key, state.word) for key, state in TASK_STATES.items())
    )
    task = forms.CharField(label=gettext_lazy("Task"), max_length=200)
    queue_name = forms.CharField(label=gettext_lazy("Queue"), max_length=200)


class TaskAdmin(ListAdmin[TaskResult]):
    """The pages of tasks. They need the permission `sqlqueue_app.view_queue`, arguments and results also `view_body`."""

    caption = gettext_lazy("Tasks, newest first")
    nothing = gettext_lazy("No matching tasks. Tasks are listed from when they are enqueued until their results are deleted.")
    instant = "enqueued_at"
    filter_form = TaskFilter
    file_name = "tasks"
    file_columns = ("id", "backend", "task", "queue_name", "status", "enqueued_at", "started_at", "finished_at")
    routes: ClassVar = {"task": "<str:task_id>/"}

    def columns(self, request: HttpRequest) -> list[TableColumn[TaskResult]]:
        return [
            TableColumn(_("Task"), lambda each: with_notes(link_html(self.url("task", each.pk), each.task), each.pk), WIDE),
            TableColumn(_("State"), task_state),
            TableColumn(_("Queue"), lambda each: each.queue_name),
            TableColumn(_("Enqueued"), lambda each: each.enqueued_at),
            TableColumn(_("Due"), lambda each: each.run_after),
            TableColumn(_("Attempts"), lambda each: len(each.worker_ids), NUMBER),
            TableColumn(_("Duration"), lambda each: each.duration),
            TableColumn(_("Exception"), lambda each: each.errors[-1]["exception_class_path"] if each.errors else None),
        ]

    def task_view(self, request: HttpRequest, task_id: str) -> HttpResponse:
        """One task: its times, attempts, arguments and result. Http404 if its result is no longer stored."""
        text = _("There is no such task: its result was deleted, or it was never enqueued here.")
        task = found_or_404(self.rows().filter(pk=without_nul(task_id)[:64]), text)
        refused = refusal(request, Permission.VIEW_BODY)
        values = {_("Arguments"): task.args, _("Keyword arguments"): task.kwargs, _("Return value"): task.return_value}
        texts = [(label, json.dumps(value, indent=2, ensure_ascii=False)) for label, value in values.items()]
        return self.page(
            request, "task", crumbs=(Crumb(task.task),), task=task, state=task_state(task), values=[] if refused else texts,
            refused=refused, search_text=task.pk, live_seconds=None if task.finished_at else self.live_seconds,
        )  # fmt: skip
