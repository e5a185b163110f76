"""Editing a failed message in a form, looking at what has changed, and retrying it."""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Iterator
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Power, may
from sqlqueue_app.dashboard.confirming import Change, Confirmation, Done, Field, ask, confirm
from sqlqueue_app.dashboard.formats import number
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.dashboard.pages import Crumb
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.headers import Headers
from sqlqueue_app.operations.bodies import decode_body
from sqlqueue_app.operations.editing import (
    SENSITIVE,
    Editable,
    EditRefused,
    check_body,
    edit_and_retry,
    read_editable,
    read_edited_headers,
)
from sqlqueue_app.operations.failure_selection import FailureSelection

# The form field of a page that shows the changes: they were seen.
SEEN: Final = "seen"
_ROWS: Final = 20
_MOST_COMPARED: Final = 4_000


def edit_view(admin: PageAdmin, request: HttpRequest) -> HttpResponse:
    """The form; then, with what was typed, its differences to confirm; then the retry. `ids` names the one message."""
    query = request.POST if request.POST.get("ids") else request.GET
    selection = FailureSelection.from_query(query)
    if len(selection.ids) != 1 or selection.problems:
        return _problem(admin, request, _("Choose one message to edit."), 400)
    (failure_id,) = selection.ids
    back_url = admin.url("message", failure_id)
    if not (may(request, Power.EDIT) and may(request, Power.VIEW_BODY)):
        # The page that refuses, and the row in the record for who has tried.
        lacking = Power.EDIT if not may(request, Power.EDIT) else Power.VIEW_BODY
        return confirm(admin, request, _asked(lacking, failure_id, back_url))
    try:
        editable = read_editable(get_settings(), failure_id)
    except EditRefused as error:
        return _problem(admin, request, str(error), 409)
    typed = _typed(request)
    if typed is None:
        return ask(admin, request, _form(editable, back_url, editable.headers_text, editable.body))
    try:
        headers = read_edited_headers(typed[0])
        check_body(typed[1], headers.get(names.CONTENT_TYPE))
    except EditRefused as error:
        return ask(admin, request, _form(editable, back_url, *typed), [str(error)], status=400)
    asked = _preview(request, editable, back_url, headers, typed)
    return confirm(admin, request, asked) if SEEN in request.POST else ask(admin, request, asked)


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
    return _asked(
        Power.EDIT,
        editable.failure.pk,
        back_url,
        text=_("A copy with your changes is sent to where the message failed, with an id of its own; the message is resolved."),
        submit=_("Look at the changes"),
        facts=((_("Cannot be changed"), locked),),
        fields=fields,
        hidden=(*_ids(editable), ("row_version", str(editable.failure.row_version))),
    )


def _preview(request: HttpRequest, editable: Editable, back_url: str, headers: Headers, typed: tuple[str, str]) -> Confirmation:
    # Their order means nothing: that of before, so that it is no difference.
    ordered = {name: headers[name] for name in (*editable.headers, *headers) if name in headers}
    after = Editable(editable.failure, ordered, editable.locked, typed[1])
    changes = (*_changes(editable.headers_text, after.headers_text), *_changes(*_bodies(editable, after)))
    sensitive = sorted(name for name in SENSITIVE if editable.headers.get(name) != headers.get(name))
    warning = _("These headers decide where replies go, or how the message is handled: %(names)s")
    row_version = _number(request.POST.get("row_version", ""))
    return _asked(
        Power.EDIT,
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


def _asked(power: Power, failure_id: uuid.UUID, back_url: str, **more: Any) -> Confirmation:
    known: dict[str, Any] = {
        "action": "edit",
        "power": power,
        "target": FailureSelection(ids=(failure_id,)).in_words(),
        "title": _("Edit and retry"),
        "text": "",
        "submit": "",
        "perform": lambda: Done("", back_url),
        "back_url": back_url,
    }
    return Confirmation(**{**known, **more})


def _perform(editable: Editable, back_url: str, headers: Headers, body: str, row_version: int) -> Done:
    message_id = edit_and_retry(get_settings(), editable.failure.pk, row_version=row_version, headers=headers, body=body)
    return Done(_("The edited message was sent with the id %(id)s.") % {"id": message_id}, back_url)


def _bodies(before: Editable, after: Editable) -> tuple[str, str]:
    """Both bodies as they are best compared: indented, unless the difference is in that."""
    shown = [
        decode_body(each.body.encode(), None, each.headers.get(names.CONTENT_TYPE)).text.replace("\r\n", "\n")
        for each in (before, after)
    ]
    return (shown[0], shown[1]) if shown[0] != shown[1] else (before.body.replace("\r\n", "\n"), after.body.replace("\r\n", "\n"))


def _changes(before: str, after: str) -> Iterator[Change]:
    old, new = before.splitlines(), after.splitlines()
    if old != new and max(len(old), len(new)) > _MOST_COMPARED:
        # To compare them all could take minutes.
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
