"""Actions: each is confirmed on a page of its own, which works without JavaScript, then done once, and recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from sqlqueue_app.dashboard.access import Power, actor_of, may, reason_of
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.models import ActionResult, Operation, OperationState
from sqlqueue_app.operations.actions import record_action

CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True)
class Done:
    """What an action has done: how many, in words for the user, and where he goes now; an operation that goes on with it."""

    message: str
    url: str
    count: int = 1
    operation: Operation | None = None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What is asked before an action.

    `facts` are pairs of a label and a text: on what, how many. `hidden` are fields of the form that come back as they are. With
    `typed` that text must be typed in. `fields` are further questions: see `Field`. `blocked` says why it cannot be done now.
    `changes` are shown as lines that go and lines that come.
    """

    action: str
    power: Power
    target: str
    title: str
    text: str
    submit: str
    perform: Callable[[], Done]
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


@dataclass(frozen=True, slots=True)
class Change:
    """A line of a difference: `sign` is ``+`` or ``-``, or empty for one that is the same."""

    sign: str
    text: str


@dataclass(frozen=True, slots=True)
class Field:
    """A question on the page of a confirmation: its name in the form, its label, its value.

    `kind` is the type of the input, or ``textarea``; with `choices`, pairs of a value and a label, it is a list to choose from.
    What `is_private` the browser is asked not to keep.
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


def confirm(pages: PageAdmin, request: HttpRequest, asked: Confirmation) -> HttpResponse:
    """Ask, or act if it is confirmed. Who lacks the power gets 403, and a row in the record if he tried.

    The action is done where POST carries the field `confirmed`; any other request shows the page. An error of ours that the action
    raises is shown on the page again, and recorded as failed.
    """
    if not (request.method == "POST" and CONFIRMED in request.POST):
        return ask(pages, request, asked)
    _check(request, asked)
    if asked.blocked:
        return _page(pages, request, asked, status=409)
    if asked.typed and request.POST.get("typed", "").strip() != asked.typed:
        return _page(pages, request, asked, [_("Type “%(text)s” to confirm.") % {"text": asked.typed}], status=400)
    if asked.errors:
        return _page(pages, request, asked, asked.errors, status=400)
    try:
        done = asked.perform()
    except (SqlQueueError, ValueError) as error:
        _record(request, asked, ActionResult.FAILED, 0, str(error))
        return _page(pages, request, asked, [str(error)], status=409)
    result = _result_of(done.operation)
    _record(request, asked, result, done.count, done.operation.error if done.operation else "", done.operation)
    tell = messages.error if result == ActionResult.FAILED else messages.success
    tell(request, done.message)
    return HttpResponseRedirect(done.url)


def ask(pages: PageAdmin, request: HttpRequest, asked: Confirmation, errors: Sequence[str] = (), status: int = 200) -> HttpResponse:
    """Show the page, and act in no case: for a first of two pages. Who lacks the power gets 403 as by `confirm`."""
    _check(request, asked)
    return _page(pages, request, asked, errors, status)


def _check(request: HttpRequest, asked: Confirmation) -> None:
    if may(request, asked.power):
        return
    if request.method == "POST" and CONFIRMED in request.POST:
        _record(request, asked, ActionResult.DENIED, 0, reason_of(asked.power))
    raise PermissionDenied(reason_of(asked.power))


def _result_of(operation: Operation | None) -> ActionResult:
    """What an action is that has begun an operation, which may have ended already."""
    if operation is None or operation.state == OperationState.COMPLETED:
        return ActionResult.DONE
    return ActionResult.REQUESTED if operation.state in (OperationState.WAITING, OperationState.RUNNING) else ActionResult.FAILED


def _record(
    request: HttpRequest, asked: Confirmation, result: ActionResult, count: int, reason: str, operation: Operation | None = None
) -> None:
    record_action(
        actor_of(request),
        asked.action,
        asked.target,
        result=result,
        permission=str(asked.power),
        count=count,
        reason=reason,
        operation=operation,
    )


def _page(
    pages: PageAdmin, request: HttpRequest, asked: Confirmation, errors: Sequence[str] = (), status: int = 200
) -> HttpResponse:
    response = pages.page(
        request,
        "confirm",
        title=asked.title,
        crumbs=(*asked.crumbs, Crumb(asked.title)),
        asked=asked,
        errors=errors,
        confirmed=CONFIRMED,
    )
    response.status_code = status
    return response
