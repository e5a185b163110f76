"""Actions: confirmed on a page of their own, which works without JavaScript, then performed once and recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Permission, actor_of, may, refusal_text
from sqlqueue_app.dashboard.formats import number
from sqlqueue_app.dashboard.page import Crumb, PageAdmin
from sqlqueue_app.failures.operation_kinds import Scope
from sqlqueue_app.failures.operations import request_operation
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.models import ActionResult, Operation, OperationState
from sqlqueue_app.models.operations import OPEN
from sqlqueue_app.status.events import record_action

CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """The result of an action: a message for the user, the next page, the count, and an operation that continues it."""

    message: str
    url: str
    count: int = 1
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The confirmation page of an action.

    `facts` are pairs of a label and a text. `hidden` are form fields that are posted back unchanged, `fields` further inputs.
    `typed` must be typed in to confirm. `blocked` is the reason why the action is impossible now. `changes` are shown as removed
    and added lines.
    """

    action: str
    permission: Permission
    target: str
    title: str
    text: str
    submit: str
    perform: Callable[[], ActionOutcome]
    back_url: str
    count: int = 1
    facts: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    hidden: Sequence[tuple[str, str]] = ()
    fields: Sequence[Field] = ()
    typed: str = ""
    blocked: str = ""
    is_dangerous: bool = False
    crumbs: tuple[Crumb, ...] = ()
    errors: Sequence[str] = ()
    changes: Sequence[Change] = ()

    def answer(self, pages: PageAdmin, request: HttpRequest) -> HttpResponse:
        """Show the confirmation page, or perform the action if the POST contains `confirmed`.

        A user without the permission gets 403, and a confirmed attempt is recorded. An SqlQueueError or ValueError of the action is
        shown on the page and recorded as failed.
        """
        if not (request.method == "POST" and CONFIRMED in request.POST):
            return self.show(pages, request)
        self._check(request)
        if self.blocked:
            return self._page(pages, request, status=409)
        if self.typed and request.POST.get("typed", "").strip() != self.typed:
            return self._page(pages, request, [_("Type “%(text)s” to confirm.") % {"text": self.typed}], status=400)
        if self.errors:
            return self._page(pages, request, self.errors, status=400)
        try:
            done = self.perform()
        except (SqlQueueError, ValueError) as error:
            self._record(request, ActionResult.FAILED, 0, str(error))
            return self._page(pages, request, [str(error)], status=409)
        result = _result_of(done.operation)
        self._record(request, result, done.count, done.operation.error if done.operation else "", done.operation)
        notify = messages.error if result == ActionResult.FAILED else messages.success
        notify(request, done.message)
        return HttpResponseRedirect(done.url)

    def show(self, pages: PageAdmin, request: HttpRequest, errors: Sequence[str] = (), status: int = 200) -> HttpResponse:
        """Show the page without performing the action: for the first of two pages. 403 as by `answer`."""
        self._check(request)
        return self._page(pages, request, errors, status)

    def _check(self, request: HttpRequest) -> None:
        if may(request, self.permission):
            return
        if request.method == "POST" and CONFIRMED in request.POST:
            self._record(request, ActionResult.DENIED, 0, refusal_text(self.permission))
        raise PermissionDenied(refusal_text(self.permission))

    def _record(
        self, request: HttpRequest, result: ActionResult, count: int, reason: str, operation: Operation | None = None
    ) -> None:
        record_action(
            actor_of(request),
            self.action,
            self.target,
            result=result,
            permission=str(self.permission),
            count=count,
            reason=reason,
            operation=operation,
        )

    def _page(self, pages: PageAdmin, request: HttpRequest, errors: Sequence[str] = (), status: int = 200) -> HttpResponse:
        crumbs = (*self.crumbs, Crumb(self.title))
        context = {"confirmation": self, "errors": errors, "confirmed": CONFIRMED}
        response = pages.page(request, "confirm", title=self.title, crumbs=crumbs, **context)
        response.status_code = status
        return response


@dataclass(frozen=True, slots=True)
class Change:
    """A line of a difference: `sign` is ``+``, ``-`` or empty."""

    sign: str
    text: str


@dataclass(frozen=True, slots=True)
class Field:
    """An input on a confirmation page.

    `kind` is the type of the input, or ``textarea``; with `choices`, pairs of a value and a label, it is a list. Browsers are asked
    not to store an `is_private` field.
    """

    name: str
    label: str
    value: str = ""
    kind: str = "text"
    help: str = ""
    choices: Sequence[tuple[str, str]] = ()
    is_required: bool = True
    minimum: int | None = None
    maximum: int | None = None
    rows: int = 8
    is_private: bool = False


def typed_text(request: HttpRequest, name: str) -> str:
    """What was typed into a field, or before the form is sent, what the query string says for it."""
    source = request.POST if request.method == "POST" else request.GET
    return source.get(name, "").strip().replace("\x00", "")


def _result_of(operation: Operation | None) -> ActionResult:
    """The recorded result of an action that started an operation."""
    if operation is None or operation.state == OperationState.COMPLETED:
        return ActionResult.DONE
    return ActionResult.REQUESTED if operation.state in (OperationState.WAITING, OperationState.RUNNING) else ActionResult.FAILED


# --- Bulk operations --------------------------------------------------------------------------------------------------


def begin_operation(admin: PageAdmin, request: HttpRequest, kind: str, scope: Scope, back_url: str) -> ActionOutcome:
    """Start an operation; the outcome leads to its page unless it is complete. Raises as `request_operation`."""
    operation = request_operation(get_settings(), kind, scope, actor=actor_of(request))
    page = admin.url_of(Operation, "operation", operation.pk) or back_url
    done = operation.state == OperationState.COMPLETED and not operation.skipped and not operation.failed
    count = operation.total if operation.state in OPEN else operation.done
    return ActionOutcome(_result_message(operation), back_url if done else page, count, operation)


def _result_message(operation: Operation) -> str:
    if operation.state in OPEN:
        return _("The operation has begun: a worker goes on with it.")
    done = ngettext("Done with %(count)s message.", "Done with %(count)s messages.", operation.done)
    text = done % {"count": number(operation.done)}
    left = operation.skipped + operation.failed
    if left:
        stayed = ngettext("%(count)s stayed as it was.", "%(count)s stayed as they were.", left)
        text = f"{text} {stayed % {'count': number(left)}}"
    return f"{text} {operation.error}".strip()
