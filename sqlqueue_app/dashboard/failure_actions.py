"""Actions on failed messages: bulk operations with a dry run, edit and retry, and notes on groups. Each asks for confirmation."""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.browsing.bodies import decode_body
from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.dashboard.access import Button, Permission, actor_of, button, may
from sqlqueue_app.dashboard.actions import CONFIRMED, ActionOutcome, Change, Confirmation, Field, begin_operation
from sqlqueue_app.dashboard.formats import number
from sqlqueue_app.dashboard.page import Crumb, PageAdmin
from sqlqueue_app.failures.editing import (
    SENSITIVE,
    Editable,
    EditRefused,
    check_body,
    edit_and_retry,
    read_editable,
    read_edited_headers,
)
from sqlqueue_app.failures.operation_batches import OperationRefused
from sqlqueue_app.failures.operation_kinds import FAILURE_KINDS, FailureKind, error_queue_refusal
from sqlqueue_app.failures.operations import Preview, preview
from sqlqueue_app.failures.selection import MOST_IDS, FailureSelection
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.headers import Headers
from sqlqueue_app.models import FailureGroup, FailureStatus, Redirect
from sqlqueue_app.receiving.instances import managed_alias

_REASONS_SHOWN: Final = 20
# Default number of messages for a trial retry.
SAMPLE: Final = 10


@dataclass(frozen=True, slots=True)
class _Words:
    """The texts on the page of a kind."""

    title: str | Promise
    text: str | Promise
    eligible: str | Promise
    nothing: str | Promise
    is_dangerous: bool = False


_WORDS: Final = {
    "retry": _Words(
        gettext_lazy("Retry failed messages"),
        gettext_lazy("They go back to the queues in which they failed, or where a redirect says, and leave the error queue."),
        gettext_lazy("Will be retried"),
        gettext_lazy("None of these messages can be retried."),
    ),
    "archive": _Words(
        gettext_lazy("Archive failed messages"),
        gettext_lazy("They stay in the error queue, and are not counted as failed any more. They can be brought back."),
        gettext_lazy("Will be archived"),
        gettext_lazy("None of these messages can be archived."),
    ),
    "unarchive": _Words(
        gettext_lazy("Bring back archived messages"),
        gettext_lazy("They count as failed again, and can be retried."),
        gettext_lazy("Will be brought back"),
        gettext_lazy("None of these messages is archived."),
    ),
    "complete": _Words(
        gettext_lazy("Mark retried messages as resolved"),
        gettext_lazy("For messages that were retried and whose endpoint does not tell that it has handled them."),
        gettext_lazy("Will be resolved"),
        gettext_lazy("None of these messages waits for the result of a retry."),
    ),
    "redirect": _Words(
        gettext_lazy("Apply redirects to pending retries"),
        gettext_lazy(
            "What waits in a queue whose retries are redirected moves to where they go, each message once. One that was received "
            "already is not sent again: it may have been handled, and would be handled twice."
        ),
        gettext_lazy("Will be moved, if they wait still"),
        gettext_lazy("None of these messages was sent to a queue whose retries are redirected."),
    ),
    "delete": _Words(
        gettext_lazy("Delete failed messages"),
        gettext_lazy("They are deleted from the error queue for good, and cannot be brought back."),
        gettext_lazy("Will be deleted"),
        gettext_lazy("None of these messages can be deleted."),
        is_dangerous=True,
    ),
}


def failure_action_pages(admin: PageAdmin) -> list[URLPattern]:
    """The pages of all kinds by name, and `edit`; each takes a selection from its query string or form."""
    pages = [admin.action_view(f"{kind.name}/", partial(_act, admin, kind), kind.name) for kind in FAILURE_KINDS.values()]
    return [*pages, admin.action_view("edit/", partial(edit_view, admin), "edit")]


def failure_buttons(request: HttpRequest, admin: PageAdmin, selection: FailureSelection) -> list[Button]:
    """The actions for a selection by its statuses, or by the status of one message. At most two statements."""
    statuses = _statuses(selection)
    refused = error_queue_refusal(get_settings())
    query = selection.to_query()
    found = []
    for kind in FAILURE_KINDS.values():
        if statuses.isdisjoint(kind.statuses) or (kind.name == "redirect" and not Redirect.objects.using(managed_alias()).exists()):
            continue
        reason = refused if kind.takes else ""
        url = f"{admin.url(kind.name)}?{query}"
        is_dangerous = _WORDS[kind.name].is_dangerous
        found.append(button(request, Permission(kind.permission), str(kind.label), url, dangerous=is_dangerous, reason=reason))
    if len(selection.ids) == 1 and FailureStatus.UNRESOLVED in statuses:
        reason = refused or ("" if may(request, Permission.VIEW_BODY) else _("You may not see the bodies of messages."))
        found.insert(1, button(request, Permission.EDIT, _("Edit and retry"), f"{admin.url('edit')}?{query}", reason=reason))
    return found


def selection_of(request: HttpRequest) -> FailureSelection:
    """The selection of a request; form values override the query string."""
    query: QueryDict = request.GET.copy()
    for name in request.POST if request.method == "POST" else ():
        query.setlist(name, request.POST.getlist(name))
    return FailureSelection.from_query(query)


def _sample_of(request: HttpRequest, kind: FailureKind, selection: FailureSelection) -> FailureSelection:
    """The most recent failures of the selection, as many as `sample` in the query string; without it the selection."""
    wanted = request.GET.get("sample", "").strip()
    if not wanted or selection.ids:
        return selection
    count = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 6 else 0
    if not 0 < count <= MOST_IDS:
        text = _("“%(value)s” is no number of messages: ask for 1 to %(most)d.")
        return selection.with_problems(text % {"value": wanted[:80], "most": MOST_IDS})
    last = selection.or_statuses(*kind.statuses).queryset().order_by("-failed_at", "-pk")
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


def _statuses(selection: FailureSelection) -> set[int]:
    if len(selection.ids) == 1:
        return set(selection.queryset().values_list("status", flat=True))
    return set(selection.statuses or FailureStatus)


def _act(admin: PageAdmin, kind: FailureKind, request: HttpRequest) -> HttpResponse:
    settings, selection = get_settings(), _sample_of(request, kind, selection_of(request))
    words = _WORDS[kind.name]
    back_url = page_of(admin, selection)
    found, blocked = Preview(), ""
    if may(request, Permission(kind.permission)):
        found, blocked = _dry_run(settings, kind, selection)
    label = str(kind.label)
    return Confirmation(
        action=kind.name,
        permission=Permission(kind.permission),
        target=selection.in_words(),
        title=str(words.title),
        text=str(words.text),
        submit=f"{label} ({number(found.eligible)})",
        perform=lambda: begin_operation(admin, request, kind.name, selection, back_url),
        back_url=back_url,
        count=found.eligible,
        facts=_facts(found, words, selection),
        warnings=_warnings(found),
        hidden=selection.to_fields(),
        typed=_to_type(kind, selection, found),
        blocked=blocked,
        is_dangerous=words.is_dangerous,
    ).answer(admin, request)


def _dry_run(settings: Settings, kind: FailureKind, selection: FailureSelection) -> tuple[Preview, str]:
    """The dry run, and why the action is blocked, if it is."""
    try:
        kind.check(settings)
        found = preview(settings, kind.name, selection)
    except OperationRefused as error:
        return Preview(), str(error)
    if found.total == 0:
        return found, _("There is no such message.")
    return found, "" if found.eligible else str(_WORDS[kind.name].nothing)


def _facts(found: Preview, words: _Words, selection: FailureSelection) -> Sequence[tuple[str, str]]:
    facts = [(_("Messages"), selection.in_words()), (str(words.eligible), number(found.eligible))]
    facts += [(_("to %(queue)s") % {"queue": target}, number(count)) for target, count in found.targets.most_common(_REASONS_SHOWN)]
    if found.not_eligible:
        facts.append((_("Will stay as they are"), number(found.not_eligible)))
    return facts


def _warnings(found: Preview) -> list[str]:
    """Why messages are left out, each with a count."""
    return [
        ngettext("%(count)s message: %(reason)s", "%(count)s messages: %(reason)s", count)
        % {"count": number(count), "reason": reason}
        for reason, count in found.in_words()[:_REASONS_SHOWN]
    ]


def _to_type(kind: FailureKind, selection: FailureSelection, found: Preview) -> str:
    """The number that must be typed: for everything, and for deleting more than one message."""
    if selection.is_everything or (_WORDS[kind.name].is_dangerous and found.eligible > 1):
        return str(found.eligible)
    return ""


# --- Edit and retry ---------------------------------------------------------------------------------------------------

# The form field that confirms the differences.
SEEN: Final = "seen"
_ROWS: Final = 20
_MOST_COMPARED: Final = 4_000


def edit_view(admin: PageAdmin, request: HttpRequest) -> HttpResponse:
    """The form, then a page with the differences to confirm, then the retry. `ids` names the message."""
    query = request.POST if request.POST.get("ids") else request.GET
    selection = FailureSelection.from_query(query)
    if len(selection.ids) != 1 or selection.problems:
        return _problem(admin, request, _("Choose one message to edit."), 400)
    (failure_id,) = selection.ids
    back_url = admin.url("message", failure_id)
    if not (may(request, Permission.EDIT) and may(request, Permission.VIEW_BODY)):
        # Refuse, and record the attempt.
        lacking = Permission.EDIT if not may(request, Permission.EDIT) else Permission.VIEW_BODY
        return _edit_confirmation(lacking, failure_id, back_url).answer(admin, request)
    try:
        editable = read_editable(get_settings(), failure_id)
    except EditRefused as error:
        return _problem(admin, request, str(error), 409)
    typed = _typed(request)
    if typed is None:
        return _form(editable, back_url, editable.headers_text, editable.body).show(admin, request)
    try:
        headers = read_edited_headers(typed[0])
        check_body(typed[1], headers.get(names.CONTENT_TYPE))
    except EditRefused as error:
        return _form(editable, back_url, *typed).show(admin, request, [str(error)], status=400)
    confirmation = _show_changes(request, editable, back_url, headers, typed)
    return confirmation.answer(admin, request) if SEEN in request.POST else confirmation.show(admin, request)


def _typed(request: HttpRequest) -> tuple[str, str] | None:
    if request.method == "POST" and "headers" in request.POST and "body" in request.POST:
        return request.POST["headers"], request.POST["body"]
    return None


def _form(editable: Editable, back_url: str, headers: str, body: str) -> Confirmation:
    locked = ", ".join(sorted(editable.locked))
    fields = (
        Field("headers", _("Headers"), headers, kind="textarea", rows=_ROWS, help=_("One JSON object of texts.")),
        Field("body", _("Body"), body, kind="textarea", rows=_ROWS),
    )
    return _edit_confirmation(
        Permission.EDIT,
        editable.failure.pk,
        back_url,
        text=_("A copy with your changes is sent to where the message failed, with an id of its own; the message is resolved."),
        submit=_("Look at the changes"),
        facts=((_("Cannot be changed"), locked),),
        fields=fields,
        hidden=(*_ids(editable), ("row_version", str(editable.failure.row_version))),
    )


def _show_changes(
    request: HttpRequest, editable: Editable, back_url: str, headers: Headers, typed: tuple[str, str]
) -> Confirmation:
    # Keep the original order, which means nothing, so that it is not a difference.
    ordered = {name: headers[name] for name in (*editable.headers, *headers) if name in headers}
    after = Editable(editable.failure, ordered, editable.locked, typed[1])
    changes = (*_changes(editable.headers_text, after.headers_text), *_changes(*_bodies(editable, after)))
    sensitive = sorted(name for name in SENSITIVE if editable.headers.get(name) != headers.get(name))
    warning = _("These headers decide where replies go, or how the message is handled: %(names)s")
    row_version = _number(request.POST.get("row_version", ""))
    return _edit_confirmation(
        Permission.EDIT,
        editable.failure.pk,
        back_url,
        text=_("These are your changes.")
        if changes
        else _("Nothing is changed: the message is sent again as it is, with another id."),
        submit=_("Send the edited message"),
        hidden=(*_ids(editable), ("row_version", str(row_version)), ("headers", typed[0]), ("body", typed[1]), (SEEN, "1")),
        warnings=[warning % {"names": ", ".join(sensitive)}] if sensitive else (),
        changes=changes,
        perform=lambda: _perform(editable, back_url, headers, typed[1], row_version),
    )


def _edit_confirmation(permission: Permission, failure_id: uuid.UUID, back_url: str, **more: Any) -> Confirmation:
    known: dict[str, Any] = {
        "action": "edit",
        "permission": permission,
        "target": FailureSelection(ids=(failure_id,)).in_words(),
        "title": _("Edit and retry"),
        "text": "",
        "submit": "",
        "perform": lambda: ActionOutcome("", back_url),
        "back_url": back_url,
    }
    return Confirmation(**{**known, **more})


def _perform(editable: Editable, back_url: str, headers: Headers, body: str, row_version: int) -> ActionOutcome:
    message_id = edit_and_retry(get_settings(), editable.failure.pk, row_version=row_version, headers=headers, body=body)
    return ActionOutcome(_("The edited message was sent with the id %(id)s.") % {"id": message_id}, back_url)


def _bodies(before: Editable, after: Editable) -> tuple[str, str]:
    """Both bodies for comparison: indented, unless they differ only in indentation."""
    shown = [
        decode_body(each.body.encode(), None, each.headers.get(names.CONTENT_TYPE)).text.replace("\r\n", "\n")
        for each in (before, after)
    ]
    return (shown[0], shown[1]) if shown[0] != shown[1] else (before.body.replace("\r\n", "\n"), after.body.replace("\r\n", "\n"))


def _changes(before: str, after: str) -> Iterator[Change]:
    old, new = before.splitlines(), after.splitlines()
    if old != new and max(len(old), len(new)) > _MOST_COMPARED:
        # Comparing them could take minutes.
        yield Change("-", _("%(count)s lines") % {"count": number(len(old))})
        yield Change("+", _("%(count)s lines, too many to be compared one by one") % {"count": number(len(new))})
        return
    for line in list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]:
        yield Change("" if line.startswith("@@") else line[0].strip(), line[1:] if not line.startswith("@@") else "…")


def _ids(editable: Editable) -> tuple[tuple[str, str]]:
    return (("ids", str(editable.failure.pk)),)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def _problem(admin: PageAdmin, request: HttpRequest, text: str, status: int) -> HttpResponse:
    title = _("Edit and retry")
    return admin.problem(request, title=title, text=text, status=status, crumbs=(Crumb(title),))


# --- Notes on groups --------------------------------------------------------------------------------------------------

LONGEST_NOTE: Final = 4_000


def note_page(pages: PageAdmin, request: HttpRequest, group: FailureGroup) -> HttpResponse:
    """Ask for the note of a group and store it with user name and time; an empty note removes it."""
    posted = request.POST.get("note", "").replace("\r\n", "\n").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
    text = posted if CONFIRMED in request.POST else group.note
    too_long = _("A note has %(most)d characters at most.") % {"most": LONGEST_NOTE}
    back = pages.url("group", group.pk)

    def write() -> ActionOutcome:
        FailureGroup.objects.using(managed_alias()).filter(pk=group.pk).update(
            note=text, noted_by=actor_of(request).name[:255] if text else "", noted_at=timezone.now() if text else None
        )
        return ActionOutcome(_("The note is written.") if text else _("The note is taken away."), back)

    return Confirmation(
        action="note",
        permission=Permission.SETTINGS,
        target=f"group {group.pk} “{group.title}”",
        title=_("Note"),
        text=_("Everybody who sees this group sees the note, with your name and the time. An empty note takes it away."),
        submit=_("Write the note"),
        perform=write,
        back_url=back,
        facts=((_("Group"), group.title),),
        fields=(Field("note", _("Note"), text, "textarea", is_required=False),),
        errors=(too_long,) if len(text) > LONGEST_NOTE else (),
        crumbs=(Crumb(group.title, back),),
    ).answer(pages, request)
