"""Actions: each has a confirmation page, which works without JavaScript, then runs once and is recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from zlib import crc32

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils import translation
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext as _, ngettext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, button, refusal, refusal_text
from sqlqueue_app.dashboard.formats import number
from sqlqueue_app.dashboard.lists import text_html
from sqlqueue_app.dashboard.page import Crumb, PageAdmin
from sqlqueue_app.failures.operation_kinds import Scope
from sqlqueue_app.failures.operations import request_operation
from sqlqueue_app.messages.errors import SqlQueueError
from sqlqueue_app.models import ActionResult, Operation, OperationState
from sqlqueue_app.status.events import record_action
from sqlqueue_app.status.texts import PLAIN_INPUT

CONFIRMED: Final = "confirmed"


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """A message for the user, shown as a warning if `is_partial`; the next page, the count, and an operation that continues it."""

    message: str
    url: str
    count: int = 1
    operation: Operation | None = None
    is_partial: bool = False


# By their names in the audit log. An action on one object shares its name with the one on all.
_ACTIONS: dict[str, type[Action]] = {}


class Action:
    """An action on the pages of one model, made for one request.

    A subclass declares the class variables, looks up its target in `find`, and acts in `run`. `title`, `text` and `submit` may
    have placeholders for `words`. `name` is its name in the audit log, `page` its name in URLs, `route` its address.
    """

    name: ClassVar[str]
    page: ClassVar[str]
    route: ClassVar[str]
    permission: Permission
    label: ClassVar[str | Promise]
    # In the audit log, where neither label nor title names the object.
    logged_as: ClassVar[str | Promise] = ""
    is_dangerous: ClassVar[bool] = False

    # The label is the default of title and submit button.
    title: str | Promise = ""
    text: str | Promise
    submit: str | Promise = ""
    form_class: type[forms.Form] = forms.Form
    # The target: its name in the audit log, the page it belongs to, the number of objects, and the details that the page shows.
    target: str
    back_url: str
    count: int = 1
    words: Mapping[str, object] = {}
    facts: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    # The lines of a difference: ``+``, ``-`` or nothing, and the text.
    changes: Sequence[tuple[str, str]] = ()
    crumbs: tuple[Crumb, ...] = ()
    # Posted back unchanged.
    hidden: Sequence[tuple[str, str]] = ()
    initial: Mapping[str, object] = {}
    # For an input whose `list` is ``sq-suggestions``.
    suggestions: Sequence[str] = ()
    # Must be typed to confirm.
    typed: str = ""
    # Why the action is impossible now.
    blocked: str = ""
    # Of the stored values that the form starts from, posted back.
    version: str = ""

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "name"):
            _ACTIONS.setdefault(cls.name, cls)

    def __init__(self, pages: PageAdmin, request: HttpRequest) -> None:
        self.pages = pages
        self.request = request
        self.is_confirmed = request.method == "POST" and CONFIRMED in request.POST

    def find(self, **key: Any) -> None:
        """Look up the target named by the address, and set what the page shows; `not_found` if it does not exist.

        Called before the permission is checked, because the audit log names the target of a refused action.
        """
        raise NotImplementedError

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        """Perform the action with the cleaned data of the form. SqlQueueError and ValueError are shown and recorded as failed."""
        raise NotImplementedError

    def start_with(self, **stored: object) -> None:
        """Start the form with these values. Confirming it warns the user if another operator has changed them since."""
        self.initial, self.version = stored, f"{crc32(repr(stored).encode()):x}"

    @classmethod
    def button(
        cls, pages: PageAdmin, request: HttpRequest, *key: object, label: str = "", reason: str = "", query: str = ""
    ) -> Button:
        """The button that leads to the page; `key` completes its address. Disabled without permission or for another reason."""
        url = pages.url(cls.page, *key) + (f"?{query}" if query else "")
        return button(request, cls.permission, label or str(cls.label), url, dangerous=cls.is_dangerous, reason=reason)

    @classmethod
    def url_pattern(cls, pages: PageAdmin) -> URLPattern:
        """The address of the page."""

        def view(request: HttpRequest, **key: Any) -> HttpResponse:
            action = cls(pages, request)
            action.find(**key)
            return action.answer()

        return pages.action_view(cls.route, view, cls.page)

    def answer(self) -> HttpResponse:
        """Show the page, or perform the action if the POST contains `confirmed`.

        A user without the permission gets 403, and a confirmed attempt is recorded.
        """
        self.check_permission()
        form = self.make_form()
        stored, self.version = self.version, self.request.POST.get("version", self.version)
        if not self.is_confirmed:
            return self.show(form)
        if self.blocked:
            return self.show(form, status=409)
        if stored != self.version:
            self.version = stored
            text = _("It was changed after you opened this page. Confirm again to replace these changes, or cancel to see them.")
            return self.show(form, [text], status=409)
        if not form.is_valid():
            return self.show(form, status=400)
        try:
            done = self.run(form.cleaned_data)
        except (SqlQueueError, ValueError) as error:
            self._record(ActionResult.FAILED, 0, str(error))
            return self.show(form, [str(error)], status=409)
        result = _result_of(done.operation)
        self._record(result, done.count, done.operation.error if done.operation else "", done.operation)
        level = messages.ERROR if result == ActionResult.FAILED else messages.WARNING if done.is_partial else messages.SUCCESS
        messages.add_message(self.request, level, done.message)
        return HttpResponseRedirect(done.url)

    def check_permission(self) -> None:
        """Raise PermissionDenied without the permission; a confirmed attempt is recorded."""
        if reason := refusal(self.request, self.permission):
            if self.is_confirmed:
                with translation.override(None):
                    self._record(ActionResult.DENIED, 0, refusal_text(self.permission))
            raise PermissionDenied(reason)

    def make_form(self) -> forms.Form:
        """The form: bound if the action is confirmed, else with the values of the query string, or of the posting list."""
        submitted = self.request.POST if self.request.method == "POST" else self.request.GET
        form = self.form_class(
            self.request.POST if self.is_confirmed else None,
            initial={**self.initial, **submitted.dict()},
            auto_id="sq-%s",
            label_suffix="",
        )
        if self.typed:
            # Against confirming by habit.
            wrong = dict.fromkeys(("required", "invalid"), _("Type “%(text)s” to confirm.") % {"text": self.typed})
            label = format_html(_("Type {} to confirm:"), format_html("<strong>{}</strong>", text_html(self.typed)))
            # Browsers show several spaces as one, and neither line ends nor spaces at the ends.
            words = r"\s*".join(map(re.escape, self.typed.split()))
            widget = forms.TextInput(PLAIN_INPUT)
            pattern = rf"\A{words}\Z"
            form.fields["typed"] = forms.RegexField(pattern, strip=True, label=label, widget=widget, error_messages=wrong)
        return form

    def show(self, form: forms.Form, errors: Sequence[str] = (), status: int = 200) -> HttpResponse:
        """The page that asks for confirmation."""
        texts = (self.title or self.label, self.text, self.submit or self.label)
        title, text, submit = (str(each) % self.words if self.words else str(each) for each in texts)
        errors = [*errors, *form.non_field_errors()]
        shown: dict[str, Any] = {"action": self, "text": text, "submit": submit, "form": form, "errors": errors}
        return self.pages.page(self.request, "confirm", crumbs=(*self.crumbs, Crumb(title)), status=status, **shown)

    def _record(self, result: ActionResult, count: int, reason: str, operation: Operation | None = None) -> None:
        recorded: dict[str, Any] = {"result": result, "count": count, "reason": reason, "operation": operation}
        record_action(actor_of(self.request), self.name, self.target, permission=str(self.permission), **recorded)


def words_of_actions() -> dict[str, str]:
    """The words for every action, by its name in the audit log."""
    # A title with a placeholder names a target, which the log has in another column.
    return {
        name: str(each.logged_as or (each.label if "%(" in str(each.title) else each.title or each.label))
        for name, each in _ACTIONS.items()
    }


def _result_of(operation: Operation | None) -> ActionResult:
    """The recorded result of an action that started an operation."""
    if operation is None or operation.state == OperationState.COMPLETED:
        return ActionResult.DONE
    return ActionResult.REQUESTED if operation.is_open else ActionResult.FAILED


def begin_operation(admin: PageAdmin, request: HttpRequest, kind: str, scope: Scope, back_url: str) -> ActionOutcome:
    """Start an operation; the outcome leads to its page unless it is complete. Raises as `request_operation`."""
    operation = request_operation(get_settings(), kind, scope, actor=actor_of(request))
    page = admin.url_of(Operation, "operation", operation.pk) or back_url
    count = operation.total if operation.is_open else operation.done
    # The outcome of retried messages is not known yet: the page of the operation counts it.
    is_partial = operation.skipped + operation.failed > 0
    is_final = kind != "retry" and operation.state == OperationState.COMPLETED and not is_partial
    return ActionOutcome(_result_message(operation), back_url if is_final else page, count, operation, is_partial)


def _result_message(operation: Operation) -> str:
    if operation.is_open:
        return _("The operation has started: a worker continues it.")
    count = operation.done
    texts = {
        "retry": ngettext("%(count)s message sent for retry.", "%(count)s messages sent for retry.", count),
        "archive": ngettext("%(count)s message archived.", "%(count)s messages archived.", count),
        "unarchive": ngettext("%(count)s message unarchived.", "%(count)s messages unarchived.", count),
        "complete": ngettext("%(count)s message marked as resolved.", "%(count)s messages marked as resolved.", count),
        "redirect": ngettext("%(count)s pending retry redirected.", "%(count)s pending retries redirected.", count),
        "move_queue": ngettext("%(count)s message moved.", "%(count)s messages moved.", count),
    }
    deleted = ngettext("%(count)s message deleted.", "%(count)s messages deleted.", count)
    text = texts.get(operation.kind, deleted) % {"count": number(count)}
    if left := operation.skipped + operation.failed:
        text += " " + ngettext("%(count)s was skipped.", "%(count)s were skipped.", left) % {"count": number(left)}
    return f"{text} {_(operation.error)}".strip()
