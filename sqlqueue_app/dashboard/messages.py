"""One message: its row in lists, headers and body as text, the body as a file, deleting and moving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.browsing.bodies import BodyKind, DecodedBody
from sqlqueue_app.browsing.messages import (
    LARGEST_BODY,
    PAGE_SIZES,
    Flag,
    GroupName,
    MessageDetail,
    MessageSummary,
    PageQuery,
    delete_message,
    move_message,
    read_body,
)
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, button, may, refusal, refusal_text, require
from sqlqueue_app.dashboard.actions import ActionOutcome, Confirmation, Field
from sqlqueue_app.dashboard.formats import Grade, Stamp, State, precise_duration, size, size_of, stamp_of
from sqlqueue_app.dashboard.page import Crumb, PageAdmin
from sqlqueue_app.failures.queries import traces_of
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import message_times
from sqlqueue_app.status.queues import KnownQueue
from sqlqueue_app.tables.queue import LAST_ROW_VERSION, QueueTable

if TYPE_CHECKING:
    from sqlqueue_app.dashboard.queues import QueueAdmin


# A jump reads the index from its start: a few tenths of a second for a million rows.
FARTHEST_JUMP: Final = 1_000_000
LONGEST_SEARCH: Final = 200

GROUP_TITLES = {
    GroupName.FAILURE: gettext_lazy("Failure"),
    GroupName.MESSAGE: gettext_lazy("Message"),
    GroupName.ROUTING: gettext_lazy("Routing"),
    GroupName.TIMES: gettext_lazy("Times"),
    GroupName.OTHER: gettext_lazy("Other headers"),
}
_FLAGS = {
    Flag.POISON: (Grade.ERROR, gettext_lazy("Poison")),
    Flag.NULL_BODY: (Grade.ERROR, gettext_lazy("Body is NULL")),
    Flag.FAILED: (Grade.WARNING, gettext_lazy("Failed")),
    Flag.EXPIRED: (Grade.WARNING, gettext_lazy("Expired")),
}
_BODY_KINDS = {
    BodyKind.JSON: gettext_lazy("JSON, indented"),
    BodyKind.XML: gettext_lazy("XML, indented"),
    BodyKind.TEXT: gettext_lazy("text"),
    BodyKind.HEX: gettext_lazy("bytes in hexadecimal"),
    BodyKind.EMPTY: gettext_lazy("empty"),
    BodyKind.NULL: gettext_lazy("NULL"),
}


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A row of the messages of a queue."""

    summary: MessageSummary
    url: str
    more_types: int
    time_sent: Stamp | None
    expires: Stamp | None
    size: str
    flags: tuple[State, ...]
    note: str
    failure_url: str = ""


@dataclass(frozen=True, slots=True)
class BodyText:
    """A body with descriptions of kind, size and truncation."""

    text: str
    kind: str
    size: str
    cut: str
    is_hex: bool


def message_row(each: MessageSummary, url: str, failure_url: str = "") -> MessageRow:
    """The row of a message; `failure_url` is its page as a failed message."""
    return MessageRow(
        summary=each,
        url=url,
        more_types=max(len(each.types) - 1, 0),
        time_sent=stamp_of(each.time_sent),
        expires=stamp_of(each.expires),
        size=size_of(each.size),
        flags=flag_states(each),
        note=each.unreadable or each.failure or "",
        failure_url=failure_url,
    )


def flag_states(each: MessageSummary) -> tuple[State, ...]:
    """The flags of a message as states, worst first."""
    return tuple(State(level, str(word)) for flag, (level, word) in _FLAGS.items() if flag in each.flags)


def body_text(body: DecodedBody) -> BodyText:
    """The body as a page shows it."""
    cut = ""
    if body.is_cut:
        cut = _("Cut: the first %(shown)s of %(size)s are shown.") % {"shown": size(body.shown_bytes), "size": size(body.size)}
    return BodyText(body.text, str(_BODY_KINDS[body.kind]), size(body.size), cut, body.kind is BodyKind.HEX)


def header_groups(detail: MessageDetail, wanted: str = "") -> list[tuple[str, tuple[tuple[str, str | None], ...]]]:
    """The groups of headers with their titles; with `wanted` only headers whose name or value contains it."""
    folded = wanted.strip().casefold()
    found = []
    for group in detail.groups:
        held = tuple(each for each in group.headers if folded in each[0].casefold() or folded in (each[1] or "").casefold())
        if held:
            found.append((str(GROUP_TITLES[group.name]), held))
    return found


@dataclass(frozen=True, slots=True)
class FailureText:
    """A failure by its headers; `dotnet` is the stack trace in that form, `python` the traceback."""

    title: str
    message: str
    dotnet: str
    python: str
    failed_queue: str


def failure_text(detail: MessageDetail) -> FailureText | None:
    """The failure of a message in an error queue; None for any other message."""
    headers = detail.headers or {}
    kind = headers.get(names.EXCEPTION_TYPE)
    if not kind and names.FAILED_QUEUE not in headers:
        return None
    dotnet, python = traces_of(detail)
    return FailureText(
        title=kind or _("unknown"),
        message=headers.get(names.EXCEPTION_MESSAGE) or "",
        dotnet=dotnet,
        python=python,
        failed_queue=headers.get(names.FAILED_QUEUE) or "",
    )


def message_context(pages: PageAdmin, request: HttpRequest, detail: MessageDetail) -> dict[str, Any]:
    """Template variables for flags, headers and body of one message; the body only with the permission to see it."""
    wanted = request.GET.get("header", "")
    return {
        "message": detail,
        "flags": flag_states(detail.summary),
        "groups": header_groups(detail, wanted),
        "header": wanted,
        "body": body_text(detail.body) if may(request, Permission.VIEW_BODY) else None,
        "body_refused": refusal_text(Permission.VIEW_BODY),
        **pages.conversation_link(detail.headers),
    }


def body_file(body: bytes | None, key: object) -> HttpResponse:
    """The body of a message as a file; Http404 without one."""
    if body is None:
        raise Http404(_("The message is not there."))
    # Never with its own content type: a browser could execute it.
    response = HttpResponse(body, content_type="application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="message-{key}.body"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def time_texts(detail: MessageDetail) -> list[tuple[str, str, bool]]:
    """The times in the headers: a label, a duration, and whether it is negative because clocks differ."""
    times = message_times(detail.headers or {})
    critical = _("Until it failed") if times.failed else _("Critical time")
    found = ((_("Delivery time"), times.delivery), (_("Processing time"), times.processing), (critical, times.critical))
    return [(label, precise_duration(value), value < timedelta()) for label, value in found if value is not None]


def read_page_query(query: Mapping[str, str], table: QueueTable) -> PageQuery:
    """The page of a queue in a query string: by ``after`` or ``before``, ``at`` (a position), or the ``tail``.

    Invalid parameters give the first page of the default size. A position costs a statement. Raises DatabaseErrors.
    """
    size = _whole(query.get("size"))
    query_page = PageQuery(
        size=size if size in PAGE_SIZES else PAGE_SIZES[0], header=query.get("header", "").strip()[:LONGEST_SEARCH]
    )
    after, before, at = (_number(query.get(name)) for name in ("after", "before", "at"))
    if at is not None and at <= FARTHEST_JUMP:
        found = table.row_version_at(at - 1)
        return replace(query_page, before=LAST_ROW_VERSION) if found is None else replace(query_page, after=found - 1)
    if "tail" in query:
        return replace(query_page, before=LAST_ROW_VERSION)
    return replace(query_page, after=after or 0, before=None if after else before)


def _number(text: str | None) -> int | None:
    found = _whole(text)
    return found if found is not None and 0 < found <= LAST_ROW_VERSION else None


def _whole(text: str | None) -> int | None:
    # Digits alone: int() also takes signs, spaces, underscores and the digits of other scripts.
    if text is None or not text.isascii() or not text.isdigit() or len(text) > len(str(LAST_ROW_VERSION)):
        return None
    return int(text)


# --- Actions ----------------------------------------------------------------------------------------------------------


def message_action_pages(pages: QueueAdmin) -> list[URLPattern]:
    """The pages of the actions on one message."""
    return [
        pages.readonly_view("<str:name>/<int:row_version>/body/", partial(_body_view, pages), "message_body"),
        pages.action_view("<str:name>/<int:row_version>/delete/", partial(_delete_view, pages), "message_delete"),
        pages.action_view("<str:name>/<int:row_version>/move/", partial(_move_view, pages), "message_move"),
    ]


def message_buttons(pages: QueueAdmin, request: HttpRequest, queue: KnownQueue, row_version: int) -> list[Button]:
    """The actions on one message as links; disabled ones show the reason."""

    def url(page: str) -> str:
        return pages.message_url(queue, row_version, page)

    refused = refusal(request, Permission.EXPORT, Permission.VIEW_BODY)
    return [
        Button(_("Save the body as a file"), url("message_body"), refused),
        button(request, Permission.MOVE, _("Move to another queue"), url("message_move")),
        button(request, Permission.DELETE, _("Delete"), url("message_delete"), dangerous=True),
    ]


def _body_view(pages: QueueAdmin, request: HttpRequest, name: str, row_version: int) -> HttpResponse:
    require(request, Permission.EXPORT, Permission.VIEW_BODY)
    return body_file(read_body(pages.found(name)[1], row_version, LARGEST_BODY), row_version)


def _delete_view(pages: QueueAdmin, request: HttpRequest, name: str, row_version: int) -> HttpResponse:
    queue, table = pages.found(name)

    def delete() -> ActionOutcome:
        delete_message(table, row_version)
        return ActionOutcome(_("Message %(number)s was deleted.") % {"number": row_version}, pages.queue_url(queue))

    return Confirmation(
        action="delete_message",
        permission=Permission.DELETE,
        target=f"{queue.name} #{row_version}",
        title=_("Delete message %(number)s") % {"number": row_version},
        text=_("It cannot be brought back."),
        submit=_("Delete the message"),
        perform=delete,
        back_url=pages.message_url(queue, row_version),
        facts=((_("Queue"), queue.name),),
        is_dangerous=True,
        crumbs=_crumbs(pages, queue, row_version),
    ).answer(pages, request)


def _move_view(pages: QueueAdmin, request: HttpRequest, name: str, row_version: int) -> HttpResponse:
    queue, table = pages.found(name)
    to = request.POST.get("to", "").strip()

    def move() -> ActionOutcome:
        moved = move_message(get_settings(), table, row_version, to)
        text = _("Message %(number)s was moved to %(queue)s.") % {"number": row_version, "queue": moved.address.table}
        return ActionOutcome(text, pages.queue_url(queue))

    return Confirmation(
        action="move_message",
        permission=Permission.MOVE,
        target=f"{queue.name} #{row_version}" + (f" → {to}" if to else ""),
        title=_("Move message %(number)s") % {"number": row_version},
        text=_("It is put at the end of another queue as it is, in one transaction."),
        submit=_("Move the message"),
        perform=move,
        back_url=pages.message_url(queue, row_version),
        facts=((_("Queue"), queue.name),),
        fields=(Field("to", _("To the queue"), to, help=_("The name of its table, or an address.")),),
        errors=() if to else (_("Name the queue that the message is moved to."),),
        crumbs=_crumbs(pages, queue, row_version),
    ).answer(pages, request)


def _crumbs(pages: QueueAdmin, queue: KnownQueue, row_version: int) -> tuple[Crumb, ...]:
    return (Crumb(queue.name, pages.queue_url(queue)), Crumb(f"#{row_version}", pages.message_url(queue, row_version)))
