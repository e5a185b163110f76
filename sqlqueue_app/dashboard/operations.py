"""The pages of bulk operations: the list, one operation with its progress, cancelling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.access import Button, Permission, button
from sqlqueue_app.dashboard.actions import ActionOutcome, Confirmation
from sqlqueue_app.dashboard.exporting import export, wanted_format
from sqlqueue_app.dashboard.formats import WORKER_COMMAND, Grade, Stamp, State, duration, number, stamp_of
from sqlqueue_app.dashboard.live import LIVE_SECONDS
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, keyset_page
from sqlqueue_app.failures.operation_batches import reason_in_words
from sqlqueue_app.failures.operation_kinds import KINDS
from sqlqueue_app.failures.operations import cancel_operation, is_worker_alive
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import Operation, OperationState
from sqlqueue_app.models.operations import OPEN
from sqlqueue_app.receiving.instances import managed_alias
from sqlqueue_app.tables.connections import database_now

PAGE_SIZE: Final = 50
COLUMNS: Final = (
    *("id", "kind", "description", "state", "total", "done", "skipped", "failed", "error"),
    *("user_name", "requested_at", "started_at", "finished_at", "worker"),
)
# Users watch an operation that runs.
_LIVE_SECONDS: Final = 1
_STATES: Final = {
    OperationState.WAITING: (Grade.INFO, gettext_lazy("waiting")),
    OperationState.RUNNING: (Grade.INFO, gettext_lazy("running")),
    OperationState.CANCELLED: (Grade.WARNING, gettext_lazy("cancelled")),
    OperationState.FAILED: (Grade.ERROR, gettext_lazy("failed")),
    OperationState.COMPLETED: (Grade.OK, gettext_lazy("completed")),
}


@dataclass(frozen=True, slots=True)
class OperationRow:
    """A row of an operation. `rate` and `left` are empty if unknown."""

    operation: Operation
    url: str
    kind: str
    state: State
    is_open: bool
    looked_at: int
    most: int
    percent: str
    so_far: str
    requested: Stamp | None
    started: Stamp | None
    finished: Stamp | None
    rate: str = ""
    left: str = ""
    took: str = ""


class OperationAdmin(PageAdmin):
    """The pages of bulk operations. They need the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The list, one operation, cancelling."""
        return [
            self.readonly_view("", self.changelist_view),
            self.readonly_view("<uuid:pk>/", self.operation_view, "operation"),
            self.action_view("<uuid:pk>/cancel/", self.cancel_view, "cancel"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The operations, newest first, or all of the state as a file."""
        now = database_now(managed_alias())
        found = Operation.objects.using(managed_alias()).order_by("-requested_at", "-pk")
        state = request.GET.get("state", "")
        if state in OperationState.values:
            found = found.filter(state=state)
        else:
            state = ""
        if wanted_format(request):
            return export(request, "operations", COLUMNS, found.values_list(*COLUMNS).iterator(chunk_size=1_000))
        keyset = keyset_page(request, found, "requested_at", size=PAGE_SIZE)
        shown = [self._row(each, now) for each in keyset.rows]
        return self.page(
            request,
            "operations",
            live_seconds=LIVE_SECONDS,
            rows=shown,
            states=[("", _("all")), *((value, str(_STATES[OperationState(value)][1])) for value in OperationState.values)],
            state=state,
            **keyset.links(),
            no_worker=self._no_worker(shown),
            worker_command=WORKER_COMMAND,
            **(extra_context or {}),
        )

    def operation_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """One operation: progress, skipped messages with reasons, the user."""
        operation = Operation.objects.using(managed_alias()).filter(pk=pk).first()
        if operation is None:
            return self._unknown(request)
        row = self._row(operation, database_now(managed_alias()))
        return self.page(
            request,
            "operation",
            live_seconds=_LIVE_SECONDS if row.is_open else None,
            title=_("%(kind)s: %(on)s") % {"kind": row.kind, "on": operation.description},
            crumbs=(Crumb(_name(row)),),
            row=row,
            numbers=[
                (_("Messages when it was asked for"), operation.total, number(operation.total)),
                (_("Done"), operation.done, number(operation.done)),
                (_("Stayed as they were"), operation.skipped, number(operation.skipped)),
                (_("Failed"), operation.failed, number(operation.failed)),
            ],
            reasons=_reasons(operation.log),
            buttons=self._buttons(request, operation),
            no_worker=self._no_worker([row]),
            worker_command=WORKER_COMMAND,
        )

    def cancel_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """Confirm, then cancel before the next batch."""
        operation = Operation.objects.using(managed_alias()).filter(pk=pk).first()
        if operation is None:
            return self._unknown(request)
        row = self._row(operation, database_now(managed_alias()))
        back_url = self.url("operation", pk)
        return Confirmation(
            action="cancel",
            permission=_permission_of(operation),
            target=f"{row.kind}: {operation.description}",
            title=_("Cancel the operation"),
            text=_("It ends before its next batch. What is done stays done; the rest stays as it is."),
            submit=_("Cancel the operation"),
            perform=lambda: self._cancel(operation, back_url),
            back_url=back_url,
            facts=((_("Operation"), f"{row.kind}: {operation.description}"), (_("Done so far"), number(operation.done))),
            blocked="" if row.is_open else _("The operation has ended: there is nothing to cancel."),
            is_dangerous=True,
            crumbs=(Crumb(_name(row), back_url),),
        ).answer(self, request)

    def _cancel(self, operation: Operation, back_url: str) -> ActionOutcome:
        if not cancel_operation(operation.pk):
            raise ConfigurationError(_("The operation has ended: there is nothing to cancel."))
        left = max(0, operation.total - operation.done - operation.skipped - operation.failed)
        return ActionOutcome(_("The operation will end before its next batch."), back_url, left)

    def _row(self, operation: Operation, now: datetime) -> OperationRow:
        state = OperationState(operation.state)
        level, word = _STATES[state]
        text = str(word)
        if state in OPEN and operation.cancel_requested:
            level, text = Grade.WARNING, _("being cancelled")
        kind = KINDS.get(operation.kind)
        looked_at = operation.done + operation.skipped + operation.failed
        most = max(operation.total, looked_at, 1)
        return OperationRow(
            operation,
            self.url("operation", operation.pk),
            str(kind.label) if kind is not None else operation.kind,
            State(level, text),
            state in OPEN,
            looked_at,
            most,
            f"{looked_at * 100 // most}%",
            _("%(done)s of %(total)s") % {"done": number(looked_at), "total": number(operation.total)},
            stamp_of(operation.requested_at),
            stamp_of(operation.started_at),
            stamp_of(operation.finished_at),
            *_speed(operation, looked_at, now),
        )

    def _buttons(self, request: HttpRequest, operation: Operation) -> list[Button]:
        reason = "" if OperationState(operation.state) in OPEN else _("It has ended.")
        if not reason and operation.cancel_requested:
            reason = _("It is being cancelled.")
        url = self.url("cancel", operation.pk)
        return [button(request, _permission_of(operation), _("Cancel the operation"), url, dangerous=True, reason=reason)]

    def _no_worker(self, rows: Sequence[OperationRow]) -> bool:
        return any(row.is_open for row in rows) and not is_worker_alive()

    def _unknown(self, request: HttpRequest) -> HttpResponse:
        return self.missing(
            request, _("Operation not found"), _("There is no such operation: it may be of another database, or have been deleted.")
        )


def _name(row: OperationRow) -> str:
    return row.kind if row.requested is None else f"{row.kind} {row.requested}"


def _permission_of(operation: Operation) -> Permission:
    """The permission of its kind; SETTINGS for an unknown kind."""
    kind = KINDS.get(operation.kind)
    return Permission.SETTINGS if kind is None else Permission(kind.permission)


def _reasons(log: object) -> list[tuple[str, str, str]]:
    """The entries of the log: what, why, how many."""
    words = {"skipped": _("stayed as they were"), "failed": _("failed")}
    entries = [entry for entry in log if isinstance(entry, dict)] if isinstance(log, list) else []
    return [
        (
            words.get(str(entry.get("what")), str(entry.get("what"))),
            reason_in_words(str(entry.get("reason")), str(entry.get("detail") or "")),
            number(entry["count"]) if isinstance(entry.get("count"), int) else "",
        )
        for entry in entries
    ]


def _speed(operation: Operation, looked_at: int, now: datetime) -> tuple[str, str, str]:
    """Messages per second, remaining time, elapsed time."""
    if operation.started_at is None:
        return "", "", ""
    end = operation.finished_at or now
    took = max(end - operation.started_at, timedelta(seconds=1))
    rate = looked_at / took.total_seconds()
    text = _("%(count)s per second") % {"count": number(round(rate))} if rate >= 1 else ""
    if operation.finished_at is not None or not looked_at:
        return text, "", duration(took)
    return text, duration(timedelta(seconds=max(0, operation.total - looked_at) / rate)), duration(took)
