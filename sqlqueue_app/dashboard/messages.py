"""One message: its row in lists, headers and body as text, the body as a file, deleting and moving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.browsing.bodies import BodyKind, DecodedBody
from sqlqueue_app.browsing.conversations import failures_where
from sqlqueue_app.browsing.messages import (
    PAGE_SIZES,
    Flag,
    GroupName,
    MessageDetail,
    MessageSummary,
    PageQuery,
    delete_message,
    move_message,
)
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.access import Button, Permission, may, refusal, refusal_text
from sqlqueue_app.dashboard.actions import PLAIN_INPUT, Action, ActionOutcome
from sqlqueue_app.dashboard.formats import Grade, State, precise_duration, size_of
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, path_of
from sqlqueue_app.failures.queries import traces_of
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.envelope import message_times
from sqlqueue_app.messages.failure_groups import guid_of
from sqlqueue_app.models import FailedMessage
from sqlqueue_app.status.queues import KnownQueue, QueueKind, known_queues
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
    time_sent: datetime | None
    expires: datetime | None
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
        time_sent=each.time_sent,
        expires=each.expires,
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
    sizes = {"shown": size_of(body.shown_bytes), "size": size_of(body.size)}
    cut = _("Cut: the first %(shown)s of %(size)s are shown.") % sizes if body.is_cut else ""
    return BodyText(body.text, str(_BODY_KINDS[body.kind]), sizes["size"], cut, body.kind is BodyKind.HEX)


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
    """Template variables for flags, headers and body of one message; the body only with the permission to see it.

    A message that was retried leads to its history as a failed message.
    """
    wanted = request.GET.get("header", "")
    headers = detail.headers or {}
    conversation, retried = headers.get(names.CONVERSATION_ID) or "", guid_of(headers.get(names.RETRY_UNIQUE_MESSAGE_ID))
    is_known = retried is not None and retried in failures_where(Q(pk=retried))
    return {
        "message": detail,
        "flags": flag_states(detail.summary),
        "groups": header_groups(detail, wanted),
        "header": wanted,
        "body": body_text(detail.body) if may(request, Permission.VIEW_BODY) else None,
        "body_refused": refusal_text(Permission.VIEW_BODY),
        "history_url": pages.url_of(FailedMessage, "message", retried) if is_known else "",
        "conversation": conversation,
        "conversation_url": pages.conversation_url(conversation),
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


class MessageAction(Action):
    """An action on one message of a queue; `pages` are those of queues."""

    queue: KnownQueue
    table: QueueTable
    row_version: int

    def find(self, **key: Any) -> None:
        pages: QueueAdmin = self.pages  # type: ignore[assignment]
        self.queue, self.table = pages.found(key["name"])
        self.row_version = key["row_version"]
        self.target = f"{self.queue.name} #{self.row_version}"
        self.words = {"number": self.row_version}
        self.back_url = pages.message_url(self.queue, self.row_version)
        self.facts = ((_("Queue"), self.queue.name),)
        queue_url = pages.queue_url(self.queue)
        self.crumbs = (Crumb(self.queue.name, queue_url), Crumb(f"#{self.row_version}", self.back_url))

    @property
    def queue_url(self) -> str:
        """The page of the queue, where the message is not any more."""
        return self.crumbs[0].url or ""


class DeleteMessage(MessageAction):
    """Deletes a message."""

    name, page, route = "delete_message", "message_delete", "<str:name>/<int:row_version>/delete/"
    permission = Permission.DELETE
    label, title, submit = gettext_lazy("Delete"), gettext_lazy("Delete message %(number)s"), gettext_lazy("Delete the message")
    text = gettext_lazy("It cannot be brought back.")
    is_dangerous = True

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        delete_message(self.table, self.row_version)
        return ActionOutcome(_("Message %(number)s was deleted.") % self.words, self.queue_url)


class MoveForm(forms.Form):
    """The queue to move to."""

    to = forms.CharField(
        label=gettext_lazy("To the queue"), help_text=gettext_lazy("The name of its table, or an address."),
        widget=forms.TextInput({**PLAIN_INPUT, "list": "sq-suggestions"}),
    )  # fmt: skip


def move_targets(queue: KnownQueue) -> list[str]:
    """The queues that endpoints receive from, without this one."""
    known = known_queues(get_settings(), ())
    return [each.name for each in known if each.kind in (QueueKind.MAIN, QueueKind.SATELLITE) and each.name != queue.name]


class MoveMessage(MessageAction):
    """Moves a message to another queue."""

    name, page, route = "move_message", "message_move", "<str:name>/<int:row_version>/move/"
    permission = Permission.MOVE
    label, title = gettext_lazy("Move to another queue"), gettext_lazy("Move message %(number)s")
    submit = gettext_lazy("Move the message")
    text = gettext_lazy("It is put at the end of another queue as it is, in one transaction.")
    form_class = MoveForm

    def find(self, **key: Any) -> None:
        super().find(**key)
        self.target += moved_to(self.request)
        self.suggestions = move_targets(self.queue)

    def run(self, data: Mapping[str, Any]) -> ActionOutcome:
        moved = move_message(get_settings(), self.table, self.row_version, data["to"])
        words = {**self.words, "queue": moved.address.table}
        return ActionOutcome(_("Message %(number)s was moved to %(queue)s.") % words, self.queue_url)


MESSAGE_ACTIONS: Final = (DeleteMessage, MoveMessage)


def moved_to(request: HttpRequest) -> str:
    """What the audit log says of the target of a move."""
    to = request.POST.get("to", "").strip()
    return f" → {to}" if to else ""


def message_buttons(pages: QueueAdmin, request: HttpRequest, queue: KnownQueue, row_version: int) -> list[Button]:
    """The actions on one message as links; disabled ones show the reason."""
    refused = refusal(request, Permission.EXPORT, Permission.VIEW_BODY)
    return [
        Button(_("Save the body as a file"), pages.message_url(queue, row_version, "message_body"), refused),
        *(each.button(pages, request, path_of(queue.name), row_version) for each in (MoveMessage, DeleteMessage)),
    ]
