"""The pages of bulk operations: the list, one operation with its progress, cancelling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final
from uuid import UUID

from django import forms
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _, gettext_lazy

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard import lists
from sqlqueue_app.dashboard.access import Button, Permission, button
from sqlqueue_app.dashboard.actions import Action, ActionOutcome
from sqlqueue_app.dashboard.failures import state_of
from sqlqueue_app.dashboard.formats import Grade, State, number
from sqlqueue_app.dashboard.page import Crumb, found_or_404
from sqlqueue_app.failures.index import catch_up_for_page
from sqlqueue_app.failures.operation_batches import describe_reason
from sqlqueue_app.failures.operation_kinds import KINDS, label_of_kind, words_of
from sqlqueue_app.failures.operations import cancel_operation, is_worker_alive
from sqlqueue_app.failures.selection import FailureSelection
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.models import FailedMessage, FailureStatus, Operation, OperationState, managed_alias
from sqlqueue_app.status.endpoints import reasons_to_wait
from sqlqueue_app.tables.connections import database_now

# Users watch a running operation, and the outcome of retried messages.
_LIVE_SECONDS: Final = 1
_PENDING_SECONDS: Final = 5
PAGE_SIZE: Final = 50
# The kinds that change the status of messages, which then refer to the operation.
TRACKED: Final = {"retry", "archive", "unarchive", "complete", "delete"}
_GRADES: Final[dict[str, Grade]] = {
    OperationState.CANCELLED: Grade.WARNING, OperationState.FAILED: Grade.ERROR, OperationState.COMPLETED: Grade.OK,
}  # fmt: skip
# The outcomes of a retried message, each with the list that shows it.
_RESULTS: Final = (
    (FailureStatus.RETRY_ISSUED, gettext_lazy("Pending"), "pending"),
    (FailureStatus.RESOLVED, gettext_lazy("Handled"), "resolved"),
    (FailureStatus.UNRESOLVED, gettext_lazy("Failed again"), "messages"),
    (FailureStatus.GONE, gettext_lazy("Removed"), "gone"),
)


class OperationFilter(lists.ListFilter):
    state = forms.ChoiceField(label=gettext_lazy("State"), choices=lists.choices(OperationState.choices, gettext_lazy("all")))


class CancelOperation(Action):
    """Cancels an operation before its next batch. It needs the permission of the operation."""

    name, page, route = "cancel", "cancel", "<uuid:pk>/cancel/"
    permission = Permission.SETTINGS
    label = gettext_lazy("Cancel the operation")
    text = gettext_lazy("It stops before its next batch. Completed work is kept; the other messages stay as they are.")
    is_dangerous = True

    def find(self, **key: Any) -> None:
        operation = self.operation = _operation(key["pk"])
        self.permission = _permission_of(operation)
        self.target = str(operation)
        self.back_url = self.pages.url("operation", operation.pk)
        self.facts = ((label_of_kind(operation.kind), words_of(operation)), (_("Done so far"), number(operation.done)))
        self.blocked = "" if operation.is_open else _("The operation has ended: there is nothing to cancel.")
        self.crumbs = (Crumb(label_of_kind(operation.kind), self.back_url),)

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        if not cancel_operation(self.operation.pk):
            raise ConfigurationError(_("The operation has ended: there is nothing to cancel."))
        left = max(0, self.operation.total - self.operation.processed)
        return ActionOutcome(_("The operation will stop before its next batch."), self.back_url, left)


class OperationAdmin(lists.ListAdmin[Operation]):
    """The pages of bulk operations. They need the permission `sqlqueue_app.view_queue`."""

    caption = gettext_lazy("Bulk operations, newest first. Any live worker carries them out.")
    nothing = gettext_lazy("No matching operations. Retrying, archiving and deleting failed messages starts one.")
    instant = "requested_at"
    filter_form = OperationFilter
    file_name = "operations"
    file_columns = (
        *("id", "kind", "description", "state", "total", "done", "skipped", "failed", "error"),
        *("user_name", "requested_at", "started_at", "finished_at", "worker"),
    )
    action_classes = (CancelOperation,)
    routes: ClassVar = {"operation": "<uuid:pk>/"}

    def columns(self, request: HttpRequest) -> list[lists.TableColumn[Operation]]:
        now = database_now(managed_alias())

        def name(each: Operation) -> SafeString:
            link = lists.link_html(self.url("operation", each.pk), label_of_kind(each.kind))
            return format_html("{}: {}", link, lists.text_html(Truncator(words_of(each)).chars(120)))

        return [
            lists.TableColumn(_("Operation"), name),
            lists.TableColumn(_("State"), operation_state),
            lists.TableColumn(_("Progress"), _progress),
            lists.TableColumn(_("Requested"), lambda each: each.requested_at),
            lists.TableColumn(_("Requested by"), lambda each: each.user_name),
            lists.TableColumn(_("Duration"), lambda each: _took(each, now)),
        ]

    def more(self, request: HttpRequest, rows: Sequence[Operation]) -> dict[str, Any]:
        """Whether open operations wait for a worker."""
        return {"no_worker": any(each.is_open for each in rows) and not is_worker_alive()}

    def operation_view(self, request: HttpRequest, pk: UUID) -> HttpResponse:
        """One operation: progress, skipped messages with reasons, the user."""
        operation, now = _operation(pk), database_now(managed_alias())
        catch_up_for_page(get_settings(), now)
        found = FailedMessage.objects.using(managed_alias()).filter(operation=operation.pk)
        counts: dict[int, int] = dict(found.order_by().values_list("status").annotate(Count("pk")))
        messages = list(found.order_by("-status_at", "pk")[:PAGE_SIZE])
        kind, words, more = label_of_kind(operation.kind), words_of(operation), self.more(request, [operation])
        pending = operation.kind == "retry" and counts.get(FailureStatus.RETRY_ISSUED, 0)
        waiting = found.filter(status=FailureStatus.RETRY_ISSUED).order_by("retried_to").values_list("retried_to", flat=True)
        return self.page(
            request,
            "operation",
            live_seconds=_LIVE_SECONDS if operation.is_open else _PENDING_SECONDS if pending else None,
            title=f"{kind}: {words}",
            crumbs=(Crumb(kind),),
            operation=operation,
            words=words,
            state=operation_state(operation),
            progress=_progress(operation),
            **_speed(operation, now, is_advancing=operation.is_open and not more["no_worker"]),
            results=self._results(operation, counts),
            hints=reasons_to_wait(get_settings(), waiting.distinct()[:PAGE_SIZE]) if pending else (),
            elsewhere=max(0, operation.done - sum(counts.values())) if operation.kind in TRACKED else 0,
            table=self._message_table(messages),
            all_url=self._listed(operation, "messages", *FailureStatus) if len(messages) == PAGE_SIZE else "",
            reasons=_reasons(operation.log),
            buttons=[self._cancel_button(request, operation)],
            **more,
        )

    def _results(self, operation: Operation, counts: Mapping[int, int]) -> list[tuple[str, int, str]]:
        """The outcomes of retried messages: label, number, and the URL of their list; removed ones only if there are any."""
        found = [each for each in _RESULTS if operation.kind == "retry" and (each[0] != FailureStatus.GONE or each[0] in counts)]
        return [(str(label), counts.get(status, 0), self._listed(operation, name)) for status, label, name in found]

    def _listed(self, operation: Operation, name: str, *statuses: FailureStatus) -> str:
        url = self.url_of(FailedMessage, name)
        return f"{url}?{FailureSelection(operation=operation.pk, statuses=statuses).to_query()}" if url else ""

    def _message_table(self, messages: Sequence[FailedMessage]) -> lists.HtmlTable:
        def link(each: FailedMessage) -> SafeString:
            return lists.link_html(self.url_of(FailedMessage, "message", each.pk), each.message_type or each.message_id)

        def failure(each: FailedMessage) -> str:
            return f"{each.exception_type}: {Truncator(each.exception_message).chars(120)}"

        columns = [
            lists.TableColumn(_("Message"), link, lists.WIDE),
            lists.TableColumn(_("State"), state_of),
            lists.TableColumn(_("Since"), lambda each: each.state_since),
            lists.TableColumn(_("Last failure"), failure, lists.WIDE),
        ]
        return lists.table(_("Messages of this operation, newest change first"), columns, messages, lambda each: each.pk)

    def _cancel_button(self, request: HttpRequest, operation: Operation) -> Button:
        cancelling = _("It is being cancelled.") if operation.cancel_requested else ""
        reason = cancelling if operation.is_open else _("It has ended.")
        url, label = self.url("cancel", operation.pk), str(CancelOperation.label)
        return button(request, _permission_of(operation), label, url, dangerous=True, reason=reason)


def _operation(pk: UUID) -> Operation:
    text = _("There is no such operation: it may be in another database, or have been deleted.")
    return found_or_404(Operation.objects.using(managed_alias()).filter(pk=pk), text)


def operation_state(operation: Operation) -> State:
    """The state of an operation."""
    if operation.is_open and operation.cancel_requested:
        return State(Grade.WARNING, _("being cancelled"))
    return State(_GRADES.get(operation.state, Grade.INFO), operation.get_state_display())


def _progress(operation: Operation) -> SafeString:
    total = operation.processed if operation.state == OperationState.COMPLETED else max(operation.total, operation.processed)
    return lists.template_html("progress", operation=operation, total=total, percent=operation.processed * 100 // (total or 1))


def _permission_of(operation: Operation) -> Permission:
    kind = KINDS.get(operation.kind)
    return Permission(kind.permission) if kind else Permission.SETTINGS


def _reasons(log: object) -> lists.HtmlTable:
    """The entries of the log: result, reason, number."""
    words = {"skipped": _("skipped"), "failed": _("failed")}

    def reason(entry: dict[str, Any]) -> str:
        return describe_reason(str(entry.get("reason")), str(entry.get("detail") or ""))

    columns: list[lists.TableColumn[dict[str, Any]]] = [
        lists.TableColumn(_("Result"), lambda entry: words.get(what := str(entry.get("what")), what)),
        lists.TableColumn(_("Reason"), reason, lists.WIDE),
        lists.TableColumn(_("Messages"), lambda entry: entry.get("count"), lists.NUMBER),
    ]
    entries = [entry for entry in log if isinstance(entry, dict)] if isinstance(log, list) else []
    return lists.table(_("Messages that were not changed, by reason"), columns, entries)


def _took(operation: Operation, now: datetime) -> timedelta | None:
    """The duration so far, at least a second; None before it starts."""
    begin = operation.started_at
    return max((operation.finished_at or now) - begin, timedelta(seconds=1)) if begin else None


def _speed(operation: Operation, now: datetime, *, is_advancing: bool) -> dict[str, Any]:
    """Template variables: duration, messages per second, and the estimated time left of an advancing operation."""
    took = _took(operation, now)
    if took is None:
        return {}
    rate = operation.processed / took.total_seconds()
    left = timedelta(seconds=max(0, operation.total - operation.processed) / rate) if is_advancing and rate else None
    return {"took": took, "rate": round(rate), "left": left}
