"""Actions on failed messages: bulk operations with a dry run, edit and retry, and notes on groups. Each asks for confirmation."""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern
from django.utils import timezone, translation
from django.utils.functional import Promise
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from sqlqueue_app.browsing.bodies import decode_body
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, may, refusal
from sqlqueue_app.dashboard.actions import Action, ActionOutcome, begin_operation
from sqlqueue_app.dashboard.formats import number
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, found_or_404, number_of
from sqlqueue_app.failures import editing
from sqlqueue_app.failures.operation_batches import OperationRefused
from sqlqueue_app.failures.operation_kinds import FAILURE_KINDS, FailureKind, error_queue_refusal
from sqlqueue_app.failures.operations import Preview, preview
from sqlqueue_app.failures.selection import MAX_IDS, FailureSelection
from sqlqueue_app.messages import headers as names
from sqlqueue_app.models import FailedMessage, FailureGroup, FailureStatus, Redirect, managed_alias
from sqlqueue_app.status.endpoints import reasons_to_wait
from sqlqueue_app.status.queues import queue_name_at

_REASONS_SHOWN: Final = 20
# Default number of messages for a trial retry.
SAMPLE: Final = 10


# The texts on the page of each kind: title, text, the messages that it takes, and the reason if there are none.
_WORDS: Final = {
    "retry": (
        gettext_lazy("Retry failed messages"),
        gettext_lazy("They return to the queue where they failed, or to the target of its redirect, and leave the error queue."),
        gettext_lazy("Will be retried"),
        gettext_lazy("None of these messages can be retried."),
    ),
    "archive": (
        gettext_lazy("Archive failed messages"),
        gettext_lazy("They stay in the error queue, but no longer count as failed. They can be unarchived."),
        gettext_lazy("Will be archived"),
        gettext_lazy("None of these messages can be archived."),
    ),
    "unarchive": (
        gettext_lazy("Unarchive messages"),
        gettext_lazy("They count as failed again, and can be retried."),
        gettext_lazy("Will be unarchived"),
        gettext_lazy("None of these messages is archived."),
    ),
    "complete": (
        gettext_lazy("Mark retried messages as resolved"),
        gettext_lazy("For messages that were retried and whose endpoint does not acknowledge that it has handled them."),
        gettext_lazy("Will be resolved"),
        gettext_lazy("None of these messages waits for the result of a retry."),
    ),
    "redirect": (
        gettext_lazy("Apply redirects to pending retries"),
        gettext_lazy(
            "Messages that still wait in a queue with a redirect move to its target, once each. A message that was already "
            "received is not sent again: it may have been handled, and would be handled twice."
        ),
        gettext_lazy("Will be moved if they still wait"),
        gettext_lazy("None of these messages was sent to a queue whose retries are redirected."),
    ),
    "delete": (
        gettext_lazy("Delete failed messages"),
        gettext_lazy("They are deleted from the error queue. This cannot be undone."),
        gettext_lazy("Will be deleted"),
        gettext_lazy("None of these messages can be deleted."),
    ),
}


def failure_buttons(
    request: HttpRequest, pages: PageAdmin, selection: FailureSelection, message: FailedMessage | None = None
) -> list[Button]:
    """The actions for a selection by its statuses, or by that of `message`, its only message. At most one statement."""
    statuses = {message.status} if message else set(selection.statuses or FailureStatus)
    left_out = set() if message else {EditFailure.name}
    if FailureStatus.RETRY_ISSUED in statuses and not Redirect.objects.using(managed_alias()).exists():
        left_out.add("redirect")
    return _buttons(request, pages, statuses, selection.to_query(), left_out)


def row_buttons(request: HttpRequest, pages: PageAdmin, back: str) -> Callable[[FailedMessage], list[Button]]:
    """The actions on each message of a list, except delete; they lead back to the URL `back`. No statement."""
    found = cache(lambda status, reason: _buttons(request, pages, {status}, "", {"redirect", "delete"}, reason, is_row=True))

    def buttons(message: FailedMessage) -> list[Button]:
        query = urlencode({"ids": message.pk, "back": back})
        offered = found(message.status, _("This row cannot be read as a failed message.") if message.poison else "")
        return [replace(each, url=f"{each.url}?{query}", about=message.message_id) for each in offered]

    return buttons


def group_buttons(request: HttpRequest, pages: PageAdmin, selection: FailureSelection, title: str, back: str) -> list[Button]:
    """The actions on a group in a list, except delete, as in `row_buttons`. No statement."""
    query = f"{selection.to_query()}&{urlencode({'back': back})}"
    found = _buttons(request, pages, selection.statuses, query, {EditFailure.name, "redirect", "delete"})
    return [replace(each, about=title) for each in found]


def _buttons(
    request: HttpRequest, pages: PageAdmin, statuses: Collection[int], query: str, left_out: Collection[str],
    unreadable: str = "", *, is_row: bool = False,
) -> list[Button]:  # fmt: skip
    refused = error_queue_refusal(get_settings()) or unreadable
    no_body: dict[Any, str] = {EditFailure: refusal(request, Permission.VIEW_BODY)}
    edit: dict[Any, str] = {EditFailure: _("Edit…")} if is_row else {}
    return [
        each.button(pages, request, query=query, label=edit.get(each, ""), reason=(each.takes and refused) or no_body.get(each, ""))
        for each in _OFFERED
        if each.name not in left_out and not set(each.statuses).isdisjoint(statuses)
    ]


def _selection_of(request: HttpRequest, statuses: Collection[int]) -> FailureSelection:
    """The selection of a request, whose form overrides the query string; with `sample` that many of its latest failures."""
    query: QueryDict = request.GET.copy()
    for name in request.POST:
        query.setlist(name, request.POST.getlist(name))
    selection = FailureSelection.from_query(query)
    wanted = request.GET.get("sample", "").strip()
    if not wanted or selection.ids:
        return selection
    count = number_of(wanted, MAX_IDS)
    if not count:
        text = _("“%(value)s” is not a number of messages: expected 1 to %(most)d.")
        return selection.with_problems(text % {"value": wanted[:80], "most": MAX_IDS})
    last = selection.or_statuses(*map(FailureStatus, statuses)).queryset().order_by("-failed_at", "-pk")
    ids = tuple(last.values_list("pk", flat=True)[:count])
    return FailureSelection(ids=ids) if ids else selection


def page_of(admin: PageAdmin, selection: FailureSelection) -> str:
    """The URL of a selection: its message, its group, or a list."""
    if len(selection.ids) == 1:
        return admin.url("message", selection.ids[0])
    if selection.ids:
        return admin.url("messages")
    if selection == FailureSelection(group=selection.group, classifier=selection.classifier, statuses=selection.statuses):
        return admin.url("messages") if selection.group is None else admin.url("group", selection.group)
    return f"{admin.url('messages')}?{selection.to_query()}"


class FailureAction(Action):
    """An action on messages with one of `statuses`. `takes`: they leave their error queue, so sqlqueue must own it."""

    statuses: ClassVar[Collection[int]]
    takes: ClassVar[bool] = True


class BulkAction(FailureAction):
    """A bulk operation on the failed messages of a selection, which the query string or the form names, after a dry run."""

    eligible: ClassVar[str | Promise]
    nothing: ClassVar[str | Promise]
    selection: FailureSelection

    def find(self, **key: Any) -> None:
        self.selection = _selection_of(self.request, self.statuses)
        with translation.override(None):
            self.target = self.selection.in_words()
        self.back_url = page_of(self.pages, replace(self.selection, newest=None))
        back = self.request.POST.get("back") or self.request.GET.get("back", "")
        found = Preview()
        # Nothing is counted for a user without the permission.
        if may(self.request, self.permission):
            # Messages that fail while the user reads the page are left out.
            self.selection = self.selection.as_of_now()
            found, self.blocked = self._dry_run()
        self.hidden = self.selection.to_fields()
        if back.startswith(self.pages.url()):
            self.back_url = back
            self.hidden.append(("back", back))
        self.count, self.submit = found.eligible, f"{self.label} ({number(found.eligible)})"
        facts = [(_("Messages"), self.selection.in_words()), (str(self.eligible), number(found.eligible))]
        targets = found.targets.most_common(_REASONS_SHOWN)
        facts += [(_("to %(queue)s") % {"queue": queue_name_at(target)}, number(count)) for target, count in targets]
        if found.not_eligible:
            facts.append((_("Will stay as they are"), number(found.not_eligible)))
        self.facts = facts
        self.warnings = [
            ngettext("%(count)s message: %(reason)s", "%(count)s messages: %(reason)s", count)
            % {"count": number(count), "reason": reason}
            for reason, count in found.in_words()[:_REASONS_SHOWN]
        ] + reasons_to_wait(get_settings(), (target for target, _count in targets))
        # For everything, and for deleting more than one message.
        if self.selection.is_everything or (self.is_dangerous and found.eligible > 1):
            self.typed = str(found.eligible)

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        return begin_operation(self.pages, self.request, self.name, self.selection, self.back_url)

    def _dry_run(self) -> tuple[Preview, str]:
        """The dry run, and the reason if the action is blocked."""
        try:
            FAILURE_KINDS[self.name].check(get_settings())
            found = preview(get_settings(), self.name, self.selection)
        except OperationRefused as error:
            return Preview(), str(error)
        if found.total == 0:
            return found, _("No matching messages.")
        return found, "" if found.eligible else str(self.nothing)


def _bulk_action(kind: FailureKind) -> type[BulkAction]:
    declared = {
        "name": kind.name, "page": kind.name, "route": f"{kind.name}/", "permission": Permission(kind.permission),
        "label": kind.label, "statuses": kind.statuses, "takes": kind.takes, "is_dangerous": kind.name == "delete",
        **dict(zip(("title", "text", "eligible", "nothing"), _WORDS[kind.name], strict=True)),
    }  # fmt: skip
    return type(f"{kind.name.title()}Failures", (BulkAction,), declared)


# --- Edit and retry ---------------------------------------------------------------------------------------------------

# The form field that confirms the differences.
SEEN: Final = "seen"
_MAX_COMPARED: Final = 4_000


class EditForm(forms.Form):
    """The headers and the body of a message as text. Neither is stripped: a body may begin or end with spaces."""

    headers = forms.CharField(
        label=gettext_lazy("Headers"), strip=False, widget=forms.Textarea({"rows": 20}),
        help_text=gettext_lazy("A JSON object with string values."),
    )  # fmt: skip
    body = forms.CharField(label=gettext_lazy("Body"), strip=False, required=False, widget=forms.Textarea({"rows": 20}))

    def clean(self) -> dict[str, Any]:
        """The texts, and the parsed headers as `edited`."""
        values = self.cleaned_data
        if values.keys() >= {"headers", "body"}:
            try:
                values["edited"] = editing.read_edited_headers(values["headers"])
                editing.check_body(values["body"], values["edited"].get(names.CONTENT_TYPE))
            except editing.EditRefused as error:
                raise ValidationError(str(error)) from None
        return values


class EditFailure(FailureAction):
    """Sends an edited copy of a failed message: a form, then a page with the differences to confirm, then the retry."""

    name, page, route = "edit", "edit", "edit/"
    permission = Permission.EDIT
    label = gettext_lazy("Edit and retry")
    statuses = (FailureStatus.UNRESOLVED,)

    def find(self, **key: Any) -> None:
        query = self.request.POST if self.request.POST.get("ids") else self.request.GET
        selection = FailureSelection.from_query(query)
        if len(selection.ids) != 1 or selection.problems:
            raise editing.EditRefused(_("Choose one message to edit."))
        self.failure_id = selection.ids[0]
        self.target, self.back_url = f"the message {self.failure_id}", self.pages.url("message", self.failure_id)

    @classmethod
    def url_pattern(cls, pages: PageAdmin) -> URLPattern:
        def view(request: HttpRequest) -> HttpResponse:
            action, status = cls(pages, request), 400
            try:
                action.find()
                status = 409
                return action.answer()
            except editing.EditRefused as error:
                title = str(cls.label)
                return pages.problem(request, title=title, text=str(error), status=status, crumbs=(Crumb(title),))

        return pages.action_view(cls.route, view, cls.page)

    def answer(self) -> HttpResponse:
        if may(self.request, Permission.EDIT) and not may(self.request, Permission.VIEW_BODY):
            self.permission = Permission.VIEW_BODY
        self.check_permission()
        self.editable = editable = editing.read_editable(get_settings(), self.failure_id)
        posted = self.request.POST if self.request.POST.keys() >= {"headers", "body"} else None
        initial = {"headers": editable.headers_text, "body": editable.body}
        form = EditForm(posted, initial=initial, auto_id="sq-%s", label_suffix="")
        if form.is_valid():
            self.edited = form.cleaned_data
            self._show_changes()
            return super().answer() if SEEN in self.request.POST else self.show(forms.Form())
        self.text = _("A copy with your changes is sent to the queue where the message failed, under an id of its own.")
        self.submit = _("Preview changes")
        self.facts = ((_("Cannot be changed"), ", ".join(sorted(editable.locked))),)
        self.hidden = (("ids", str(self.failure_id)), ("row_version", str(editable.failure.row_version)))
        return self.show(form, status=400 if form.is_bound else 200)

    def _show_changes(self) -> None:
        """Set the variables of the second page."""
        editable, edited, headers = self.editable, self.edited, self.edited["edited"]
        # Keep the original order, which means nothing, so that it is not a difference.
        ordered = {name: headers[name] for name in (*editable.headers, *headers) if name in headers}
        after = editing.Editable(editable.failure, ordered, editable.locked, edited["body"])
        self.changes = (*_changes(editable.headers_text, after.headers_text), *_changes(*_bodies(editable, after)))
        unchanged = _("There are no changes: the message is sent again as it is, under another id.")
        self.text = _("These are your changes.") if self.changes else unchanged
        self.submit = _("Send the edited message")
        self.row_version = number_of(self.request.POST.get("row_version", ""))
        sensitive = sorted(name for name in editing.SENSITIVE if editable.headers.get(name) != headers.get(name))
        if sensitive:
            warning = _("These headers decide where replies go, or how the message is handled: %(names)s")
            self.warnings = (warning % {"names": ", ".join(sensitive)},)
        typed = (("headers", edited["headers"]), ("body", edited["body"]), (SEEN, "1"))
        self.hidden = (("ids", str(self.failure_id)), ("row_version", str(self.row_version)), *typed)

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        headers, body = self.edited["edited"], self.edited["body"]
        message_id = editing.edit_and_retry(
            get_settings(), self.failure_id, row_version=self.row_version, headers=headers, body=body
        )
        return ActionOutcome(_("The edited message was sent with the id %(id)s.") % {"id": message_id}, self.back_url)


def _bodies(before: editing.Editable, after: editing.Editable) -> tuple[str, str]:
    """Both bodies for comparison: indented, unless they differ only in indentation."""
    old, new = (decode_body(each.body.encode(), None, each.headers.get(names.CONTENT_TYPE)).text for each in (before, after))
    if old.splitlines() == new.splitlines():
        return before.body, after.body
    return old, new


def _changes(before: str, after: str) -> Iterator[tuple[str, str]]:
    old, new = before.splitlines(), after.splitlines()
    if old != new and max(len(old), len(new)) > _MAX_COMPARED:
        # Comparing them could take minutes.
        yield "-", _("%(count)s lines") % {"count": number(len(old))}
        yield "+", _("%(count)s lines, too many to be compared one by one") % {"count": number(len(new))}
        return
    for line in list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]:
        yield "" if line.startswith("@@") else line[0].strip(), line[1:] if not line.startswith("@@") else "…"


# --- Notes on groups --------------------------------------------------------------------------------------------------

MAX_NOTE_LENGTH: Final = 4_000


class NoteForm(forms.Form):
    """The note of a group; empty for none."""

    note = forms.CharField(
        label=gettext_lazy("Note"), required=False, max_length=MAX_NOTE_LENGTH, widget=forms.Textarea({"rows": 8})
    )


class WriteNote(Action):
    """Stores the note of a group with user name and time; an empty note removes it."""

    name, page, route = "note", "note", "group/<uuid:unique>/note/"
    permission = Permission.SETTINGS
    logged_as = gettext_lazy("Write a note")
    label, title, submit = gettext_lazy("Add a note"), gettext_lazy("Note"), gettext_lazy("Save the note")
    text = gettext_lazy("All users who see this group see the note, with your name and the time. An empty note removes it.")
    form_class = NoteForm

    def find(self, **key: Any) -> None:
        self.group = group = found_group(key["unique"])
        self.target, self.back_url = f"group {group.pk} “{group.title}”", self.pages.url("group", group.pk)
        self.facts = ((_("Group"), group.title),)
        self.start_with(note=group.note)
        self.crumbs = (Crumb(group.title, self.back_url),)

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        text = data["note"].replace("\r\n", "\n")
        FailureGroup.objects.using(managed_alias()).filter(pk=self.group.pk).update(
            note=text, noted_by=actor_of(self.request).name[:255] if text else "", noted_at=timezone.now() if text else None
        )
        return ActionOutcome(_("The note is saved.") if text else _("The note is removed."), self.back_url)


def found_group(unique: uuid.UUID) -> FailureGroup:
    """The group with this id; Http404 if there is none."""
    text = _("There is no such group: its messages were retried, deleted, or removed long ago.")
    return found_or_404(FailureGroup.objects.using(managed_alias()).filter(pk=unique), text)


_BULK: Final = tuple(map(_bulk_action, FAILURE_KINDS.values()))
# In the order of their buttons.
_OFFERED: Final[tuple[type[FailureAction], ...]] = (_BULK[0], EditFailure, *_BULK[1:])
FAILURE_ACTIONS: Final[tuple[type[Action], ...]] = (*_OFFERED, WriteNote)
