"""One message in full, for the pages of queues, failures, delayed and archived messages; its body as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from sqlqueue_app.browsing.conversations import failures_where
from sqlqueue_app.browsing.messages import PAGE_SIZES, MessageDetail, PageQuery
from sqlqueue_app.dashboard.access import Permission, may, refusal_text
from sqlqueue_app.dashboard.page import PageAdmin, number_of
from sqlqueue_app.failures.queries import traces_of
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import guid_of, message_times
from sqlqueue_app.models import FailedMessage
from sqlqueue_app.status.queues import queue_name_at
from sqlqueue_app.tables.queue import LAST_ROW_VERSION, QueueTable

# A jump reads the index from its start: a few tenths of a second for a million rows.
FARTHEST_JUMP: Final = 1_000_000
MAX_SEARCH_LENGTH: Final = 200


def _header_groups(detail: MessageDetail, wanted: str) -> list[tuple[str, list[tuple[str, str | None]]]]:
    """The headers whose name or value contains the wanted text, in groups with their titles."""
    folded = wanted.casefold()
    found = [
        (str(group.name.label), [pair for pair in group.headers if any(folded in (text or "").casefold() for text in pair)])
        for group in detail.groups
    ]
    return [(title, headers) for title, headers in found if headers]


def message_context(request: HttpRequest, detail: MessageDetail) -> dict[str, Any]:
    """Template variables for headers, body and exception of one message; the body only with the permission to see it."""
    wanted = request.GET.get("header", "").strip()
    headers = detail.headers or {}
    dotnet, python = traces_of(detail)
    return {
        "message": detail,
        "header": wanted,
        "header_groups": _header_groups(detail, wanted),
        "body": detail.body if may(request, Permission.VIEW_BODY) else None,
        "body_refused": refusal_text(Permission.VIEW_BODY),
        "exception": headers.get(names.EXCEPTION_MESSAGE),
        "dotnet": dotnet,
        "python": python,
        "failed_queue": queue_name_at(headers.get(names.FAILED_QUEUE) or ""),
    }


def message_page_context(pages: PageAdmin, request: HttpRequest, detail: MessageDetail) -> dict[str, Any]:
    """`message_context` with the times and the conversation; a retried message links to its history of failures."""
    headers = detail.headers or {}
    retried = guid_of(headers.get(names.RETRY_UNIQUE_MESSAGE_ID))
    is_known = retried is not None and retried in failures_where(Q(pk=retried))
    return {
        **message_context(request, detail),
        "times": message_times(headers),
        "history_url": pages.url_of(FailedMessage, "message", retried) if is_known else "",
        "conversation": headers.get(names.CONVERSATION_ID),
    }


def body_file(body: bytes | None, key: object) -> HttpResponse:
    """The body of a message as a file; Http404 without one."""
    if body is None:
        raise Http404(_("The message is not there."))
    # Never with its own content type, because a browser could execute it.
    headers = {"Content-Disposition": f'attachment; filename="message-{key}.body"', "X-Content-Type-Options": "nosniff"}
    return HttpResponse(body, content_type="application/octet-stream", headers=headers)


def read_page_query(query: Mapping[str, str], table: QueueTable) -> PageQuery:
    """The page of a queue in a query string: by ``after`` or ``before``, ``at`` (a position), or the ``tail``.

    Invalid parameters give the first page of the default size. A position costs a statement. Raises DatabaseErrors.
    """

    def number(name: str, maximum: int = LAST_ROW_VERSION) -> int | None:
        return number_of(query.get(name, ""), maximum) or None

    size = number("size")
    page = PageQuery(size=size if size in PAGE_SIZES else PAGE_SIZES[0], header=query.get("header", "").strip()[:MAX_SEARCH_LENGTH])
    at = number("at", FARTHEST_JUMP)
    found = None if at is None else table.row_version_at(at - 1)
    if found is not None:
        return replace(page, after=found - 1)
    if at is not None or "tail" in query:
        return replace(page, before=LAST_ROW_VERSION)
    after = number("after")
    return replace(page, after=after or 0, before=None if after else number("before"))
