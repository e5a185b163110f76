"""What operators do with failed messages: each action has a page that says what it would do, and confirms it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.dashboard.access import Button, Power, button, may
from sqlqueue_app.dashboard.confirming import Confirmation, confirm
from sqlqueue_app.dashboard.edit_pages import edit_view
from sqlqueue_app.dashboard.formats import number
from sqlqueue_app.dashboard.operation_requests import begin_operation
from sqlqueue_app.dashboard.page_admin import PageAdmin
from sqlqueue_app.instances import managed_alias
from sqlqueue_app.models import FailureStatus, Redirect
from sqlqueue_app.operations.bulk.batches import OperationRefused
from sqlqueue_app.operations.bulk.kinds import FAILURE_KINDS, FailureKind, not_ours
from sqlqueue_app.operations.bulk.preview import Preview, preview
from sqlqueue_app.operations.failure_selection import MOST_IDS, FailureSelection

_REASONS_SHOWN: Final = 20
# So many messages of a group are offered to be tried first.
SAMPLE: Final = 10


@dataclass(frozen=True, slots=True)
class _Words:
    """What the page of a kind says."""

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
    """The pages of all kinds by their names, and `edit`; each takes a selection from its query or form."""
    pages = [admin.acts(f"{kind.name}/", partial(_act, admin, kind), kind.name) for kind in FAILURE_KINDS.values()]
    return [*pages, admin.acts("edit/", partial(edit_view, admin), "edit")]


def failure_buttons(request: HttpRequest, admin: PageAdmin, selection: FailureSelection) -> list[Button]:
    """What can be done with a selection, by the statuses that it has; for one chosen message by its own. At most two statements."""
    statuses = _statuses(selection)
    refused = not_ours(get_settings())
    query = selection.to_query()
    found = []
    for kind in FAILURE_KINDS.values():
        if statuses.isdisjoint(kind.statuses) or (kind.name == "redirect" and not Redirect.objects.using(managed_alias()).exists()):
            continue
        reason = refused if kind.takes else ""
        url = f"{admin.url(kind.name)}?{query}"
        is_dangerous = _WORDS[kind.name].is_dangerous
        found.append(button(request, Power(kind.permission), str(kind.label), url, dangerous=is_dangerous, reason=reason))
    if len(selection.ids) == 1 and FailureStatus.UNRESOLVED in statuses:
        reason = refused or ("" if may(request, Power.VIEW_BODY) else _("You may not see the bodies of messages."))
        found.insert(1, button(request, Power.EDIT, _("Edit and retry"), f"{admin.url('edit')}?{query}", reason=reason))
    return found


def selection_of(request: HttpRequest) -> FailureSelection:
    """The selection that the address and the form of a request say; the form goes before the address."""
    query: QueryDict = request.GET.copy()
    for name in request.POST if request.method == "POST" else ():
        query.setlist(name, request.POST.getlist(name))
    return FailureSelection.from_query(query)


def _sample_of(request: HttpRequest, kind: FailureKind, selection: FailureSelection) -> FailureSelection:
    """Of a selection the messages that have failed last, as many as the address asks for with `sample`; without it, all."""
    asked = request.GET.get("sample", "").strip()
    if not asked or selection.ids:
        return selection
    count = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else 0
    if not 0 < count <= MOST_IDS:
        text = _("“%(value)s” is no number of messages: ask for 1 to %(most)d.")
        return selection.with_problems(text % {"value": asked[:80], "most": MOST_IDS})
    last = selection.or_statuses(*kind.statuses).queryset().order_by("-failed_at", "-pk")
    ids = tuple(last.values_list("pk", flat=True)[:count])
    return FailureSelection(ids=ids) if ids else selection


def page_of(admin: PageAdmin, selection: FailureSelection) -> str:
    """Where a selection is looked at: its message, its group, or a list."""
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
    if may(request, Power(kind.permission)):
        found, blocked = _look(settings, kind, selection)
    label = str(kind.label)
    return confirm(
        admin,
        request,
        Confirmation(
            action=kind.name,
            power=Power(kind.permission),
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
        ),
    )


def _look(settings: Settings, kind: FailureKind, selection: FailureSelection) -> tuple[Preview, str]:
    """The dry run, and why the action cannot be done, if it cannot."""
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
    """Why nothing is done with some, each with how many."""
    return [
        ngettext("%(count)s message: %(reason)s", "%(count)s messages: %(reason)s", count)
        % {"count": number(count), "reason": reason}
        for reason, count in found.in_words()[:_REASONS_SHOWN]
    ]


def _to_type(kind: FailureKind, selection: FailureSelection, found: Preview) -> str:
    """What must be typed: for everything, and for deleting more than one, how many there are."""
    if selection.is_everything or (_WORDS[kind.name].is_dangerous and found.eligible > 1):
        return str(found.eligible)
    return ""
