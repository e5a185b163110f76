"""Messages as rows of texts: the page of a queue, and the page of one message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue_app.dashboard.formats import Stamp, precise_duration, size, stamp
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.message_times import message_times
from sqlqueue_app.operations.bodies import BodyKind, DecodedBody
from sqlqueue_app.operations.browse import PAGE_SIZES, Flag, MessageDetail, MessageSummary, PageAsked
from sqlqueue_app.operations.failure_detail import traces_of
from sqlqueue_app.operations.header_groups import GroupName
from sqlqueue_app.tables.queue import LAST_ROW_VERSION, QueueTable

# A jump walks the index from its begin: a million rows take a few tenths of a second.
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
    Flag.POISON: (Level.ERROR, gettext_lazy("Poison")),
    Flag.NULL_BODY: (Level.ERROR, gettext_lazy("Body is NULL")),
    Flag.FAILED: (Level.WARNING, gettext_lazy("Failed")),
    Flag.EXPIRED: (Level.WARNING, gettext_lazy("Expired")),
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
    """A message as the table of a queue shows it."""

    row_version: int
    url: str
    message_id: str
    message_type: str
    more_types: int
    intent: str
    time_sent: Stamp | None
    expires: Stamp | None
    size: str
    flags: tuple[State, ...]
    note: str
    failure_url: str = ""


@dataclass(frozen=True, slots=True)
class BodyText:
    """A body with what is to be said about it."""

    text: str
    kind: str
    size: str
    cut: str
    is_hex: bool


def message_row(each: MessageSummary, url: str, failure_url: str = "") -> MessageRow:
    """The row of a message; `failure_url` is the page of it as a failed message."""
    return MessageRow(
        row_version=each.row_version,
        url=url,
        message_id=each.message_id,
        message_type=each.message_type,
        more_types=max(len(each.types) - 1, 0),
        intent=each.intent,
        time_sent=stamp(each.time_sent) if each.time_sent else None,
        expires=stamp(each.expires) if each.expires else None,
        size=_("NULL") if each.size is None else size(each.size),
        flags=flag_states(each),
        note=each.unreadable or each.failure or "",
        failure_url=failure_url,
    )


def flag_states(each: MessageSummary) -> tuple[State, ...]:
    """What is special about a message, in words, the worst first."""
    return tuple(State(level, str(word)) for flag, (level, word) in _FLAGS.items() if flag in each.flags)


def body_text(body: DecodedBody) -> BodyText:
    """The body and what is shown of it."""
    cut = ""
    if body.is_cut:
        cut = _("Cut: the first %(shown)s of %(size)s are shown.") % {"shown": size(body.shown_bytes), "size": size(body.size)}
    return BodyText(body.text, str(_BODY_KINDS[body.kind]), size(body.size), cut, body.kind is BodyKind.HEX)


def header_groups(detail: MessageDetail, wanted: str = "") -> list[tuple[str, tuple[tuple[str, str | None], ...]]]:
    """The groups of headers under their titles; those headers alone that hold a text in name or value, where one is `wanted`."""
    folded = wanted.strip().casefold()
    found = []
    for group in detail.groups:
        held = tuple(each for each in group.headers if folded in each[0].casefold() or folded in (each[1] or "").casefold())
        if held:
            found.append((str(GROUP_TITLES[group.name]), held))
    return found


@dataclass(frozen=True, slots=True)
class FailureText:
    """What went wrong, by the headers of a failed message; `dotnet` is the stack trace in that form, `python` the traceback."""

    title: str
    message: str
    dotnet: str
    python: str
    failed_queue: str


def failure_text(detail: MessageDetail) -> FailureText | None:
    """The failure of a message in an error queue; None for any other."""
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


def time_texts(detail: MessageDetail) -> list[tuple[str, str, bool]]:
    """What the headers say of the times: a label, a duration, and whether it is negative, because clocks differ."""
    times = message_times(detail.headers or {})
    critical = _("Until it failed") if times.failed else _("Critical time")
    found = ((_("Delivery time"), times.delivery), (_("Processing time"), times.processing), (critical, times.critical))
    return [(label, precise_duration(value), value < timedelta()) for label, value in found if value is not None]


def page_asked(query: Mapping[str, str], table: QueueTable) -> PageAsked:
    """Which page of a queue a query string asks for: by ``after`` or ``before``, by ``at`` (a position), or the ``tail``.

    Anything that cannot be read is page one of the smallest size. A position costs a statement. Raises DatabaseErrors.
    """
    size = _whole(query.get("size"))
    asked = PageAsked(size=size if size in PAGE_SIZES else PAGE_SIZES[0], header=query.get("header", "").strip()[:LONGEST_SEARCH])
    after, before, at = (_number(query.get(name)) for name in ("after", "before", "at"))
    if at is not None and at <= FARTHEST_JUMP:
        found = table.row_version_at(at - 1)
        return replace(asked, before=LAST_ROW_VERSION) if found is None else replace(asked, after=found - 1)
    if "tail" in query:
        return replace(asked, before=LAST_ROW_VERSION)
    return replace(asked, after=after or 0, before=None if after else before)


def _number(text: str | None) -> int | None:
    found = _whole(text)
    return found if found is not None and 0 < found <= LAST_ROW_VERSION else None


def _whole(text: str | None) -> int | None:
    # Digits alone: int() also takes signs, spaces, underscores and the digits of other scripts.
    if text is None or not text.isascii() or not text.isdigit() or len(text) > len(str(LAST_ROW_VERSION)):
        return None
    return int(text)
