"""The pages of conversations: finding one, and all of its messages in diagrams and a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.browsing.conversations import (
    MOST_MESSAGES,
    ConversationMessage,
    Forest,
    Kind,
    MessageOutcome,
    ScanExtent,
    cut,
    forest,
    newest_conversations,
    read_conversation,
)
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.failures import READ_BY_A_PAGE
from sqlqueue_app.dashboard.formats import Grade, Stamp, State, column, number, precise_duration, stamp, stamp_of, times
from sqlqueue_app.dashboard.lists import export, wanted_format
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, path_of, text_of_path
from sqlqueue_app.failures.index import catch_up
from sqlqueue_app.models import DelayedMessage, FailedMessage, LakeSearch, Queue, Search

# So many messages are drawn, and stand on one page of the table.
MOST_DRAWN: Final = 200
LONGEST_ID: Final = 400


class ConversationAdmin(PageAdmin):
    """The pages about conversations, for people with the permission `sqlqueue_app.view_queue`."""

    def pages(self) -> list[URLPattern]:
        """The newest ones, and one of them."""
        return [
            self.readonly_view("", self.changelist_view),
            self.readonly_view("<str:name>/", self.conversation_view, "conversation"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The newest conversations in which something has failed. An id is searched for everywhere."""
        if wanted := request.GET.get("id", "").strip():
            return HttpResponseRedirect(f"{self.url_of(Search)}?{urlencode({'q': wanted[:LONGEST_ID]})}")
        # The list is right also where no worker is alive.
        catch_up(get_settings(), limit=READ_BY_A_PAGE, now=timezone.now(), queues_at_most=1)
        newest = newest_conversations()
        return self.page(
            request,
            "conversations",
            newest=[(each, self.conversation_url(each.id), number(each.failed), stamp(each.last)) for each in newest],
            **(extra_context or {}),
        )

    def conversation_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """All messages of one conversation that can be found."""
        conversation = text_of_path(name)
        read = read_conversation(get_settings(), conversation)
        whole = forest(read.messages)
        if wanted_format(request):
            return export(request, f"conversation {conversation}"[:100], COLUMNS, export_rows(whole))
        title = _("Conversation %(id)s") % {"id": conversation}
        crumbs = (Crumb(conversation),)
        shown = self._drawn(request, whole) if read.messages else {}
        looked, most = extent_texts(read.extent), number(MOST_MESSAGES)
        return self.page(request, "conversation", title=title, crumbs=crumbs, read=read, looked=looked, most=most, **shown)

    def _drawn(self, request: HttpRequest, whole: Forest) -> dict[str, Any]:
        urgent = [
            place
            for place, each in enumerate(whole.branches)
            if each.message.outcome not in (MessageOutcome.HANDLED, MessageOutcome.GONE)
        ]
        drawn = cut(whole, MOST_DRAWN, first=urgent)
        count = len(whole.branches)
        begin = _first_row(request, count)
        return {
            "summary": summary_of([each.message for each in whole.branches]),
            "flow": flow_of(drawn, self._message_url),
            "sequence": sequence_of(drawn, self._message_url),
            "left_out": number(count - len(drawn.branches)) if drawn is not whole else "",
            "drawn": number(len(drawn.branches)),
            "rows": message_rows(whole, self._message_url, range(begin, min(begin + MOST_DRAWN, count))),
            "previous_url": f"?from={max(begin - MOST_DRAWN, 0) + 1}" if begin else "",
            "next_url": f"?from={begin + MOST_DRAWN + 1}" if begin + MOST_DRAWN < count else "",
        }

    def _message_url(self, message: ConversationMessage) -> str:
        return message_url(self, message)


def message_url(pages: PageAdmin, message: ConversationMessage) -> str:
    """The page of a message, as far as it has one: that of the failed message, of its row, or of the delayed message."""
    if message.failure is not None:
        return pages.url_of(FailedMessage, "message", message.failure)
    if message.lake and message.day is not None:
        place = (message.lake, path_of(message.queue), message.day.isoformat(), message.row_version)
        return pages.url_of(LakeSearch, "message", *place)
    if message.outcome is MessageOutcome.DELAYED:
        return pages.url_of(DelayedMessage, "message", path_of(message.queue), message.delayed)
    if message.row_version is None:
        return ""
    return pages.url_of(Queue, "message", path_of(message.queue), message.row_version)


def _first_row(request: HttpRequest, count: int) -> int:
    first = request.GET.get("from", "")
    return min(max(int(first) - 1, 0), count - 1) if first.isascii() and first.isdigit() and len(first) < 7 else 0


# --- Flow diagram, pure geometry --------------------------------------------------------------------------------------

BOX_WIDTH: Final = 190
BOX_HEIGHT: Final = 66
_COLUMN: Final = BOX_WIDTH + 36
_ROW: Final = BOX_HEIGHT + 14
MARGIN: Final = 8


@dataclass(frozen=True, slots=True)
class Spot:
    """Where the box of a branch is."""

    x: int
    y: int


@dataclass(frozen=True, slots=True)
class FlowLine:
    """From a cause to its effect, as the data of a path; `is_event`: it was published."""

    path: str
    head: str
    is_event: bool


@dataclass(frozen=True, slots=True)
class FlowDiagram:
    """The spots of the branches, in their order, and the lines between them."""

    spots: tuple[Spot, ...]
    lines: tuple[FlowLine, ...]
    width: int
    height: int


def flow_diagram(forest: Forest) -> FlowDiagram:
    """A column for each generation, a row for each message that has caused none; a cause stands beside the first of its effects.

    So the first message is at the top left, however large the drawing is.
    """
    rows = _rows(forest)
    spots = [Spot(MARGIN + branch.depth * _COLUMN, MARGIN + rows[n] * _ROW) for n, branch in enumerate(forest.branches)]
    lines = []
    for cause, effect in forest.links:
        is_event = forest.branches[effect].message.kind is Kind.EVENT
        lines.append(_line(spots[cause], spots[effect], is_event))
    width = max((spot.x for spot in spots), default=0) + BOX_WIDTH + MARGIN
    height = max((spot.y for spot in spots), default=0) + BOX_HEIGHT + MARGIN
    return FlowDiagram(tuple(spots), tuple(lines), width, height)


def _rows(forest: Forest) -> list[int]:
    causes = {branch.parent for branch in forest.branches}
    rows = []
    row = 0
    for position in range(len(forest.branches)):
        rows.append(row)
        # What a branch has caused begins in its own row.
        row += position not in causes
    return rows


def _line(cause: Spot, effect: Spot, is_event: bool) -> FlowLine:
    x, y = cause.x + BOX_WIDTH, cause.y + BOX_HEIGHT // 2
    to_x, to_y = effect.x, effect.y + BOX_HEIGHT // 2
    middle = (x + to_x) // 2
    path = f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"
    return FlowLine(path, f"M{to_x - 8} {to_y - 4}l8 4l-8 4z", is_event)


# --- Sequence diagram, pure geometry ----------------------------------------------------------------------------------

LANE_WIDTH: Final = 210
ROW_HEIGHT: Final = 48
HEAD_HEIGHT: Final = 36
BAR_WIDTH: Final = 10
_FIRST_ROW: Final = HEAD_HEIGHT + 40
_LOOP: Final = 36
# An arrow from nobody, where it is not known who has sent the message.
_STUB: Final = 70
_LEAST_BAR: Final = 18


@dataclass(frozen=True, slots=True)
class Lane:
    """An endpoint with the middle of its lane; its name is empty where the endpoint is not known."""

    endpoint: str
    x: int


@dataclass(frozen=True, slots=True)
class SequenceArrow:
    """A message: the path of its arrow with its head, where its label stands and how wide it may be.

    `bar` is the handling: x, y and height, on the lane of the receiver; it lasts until the last message that it has sent.
    """

    path: str
    head: str
    label_x: int
    label_y: int
    label_width: int
    bar: tuple[int, int, int]
    is_event: bool


@dataclass(frozen=True, slots=True)
class SequenceDiagram:
    """The lanes from left to right, and the arrows of the branches, in their order, from top to bottom."""

    lanes: tuple[Lane, ...]
    arrows: tuple[SequenceArrow, ...]
    width: int
    height: int


def lanes_of(forest: Forest) -> tuple[str, ...]:
    """The endpoints in the order of their first appearance: of each message the sender before the receiver."""
    found: dict[str, None] = {}
    for branch in forest.branches:
        # Who has sent a message that does not say it has no lane.
        if branch.message.sending:
            found.setdefault(branch.message.sending)
        found.setdefault(branch.message.receiving)
    return tuple(found)


def sequence_diagram(forest: Forest) -> SequenceDiagram:
    """A row for each message, in the order of the tree: what a message has caused stands right below it."""
    endpoints = lanes_of(forest)
    middle = {endpoint: position * LANE_WIDTH + LANE_WIDTH // 2 for position, endpoint in enumerate(endpoints)}
    last = list(range(len(forest.branches)))
    for position, branch in enumerate(forest.branches):
        if branch.parent is not None:
            last[branch.parent] = position
    arrows = []
    open_until: defaultdict[str, list[int]] = defaultdict(list)
    for position, branch in enumerate(forest.branches):
        message = branch.message
        y = _FIRST_ROW + position * ROW_HEIGHT
        open_until[message.receiving] = [end for end in open_until[message.receiving] if end >= y]
        nested = min(len(open_until[message.receiving]), 3)
        height = max(_LEAST_BAR, (last[position] - position) * ROW_HEIGHT + 8)
        x = middle[message.receiving]
        bar = (x - BAR_WIDTH // 2 + nested * 4, y - 2, height)
        open_until[message.receiving].append(y + height)
        start = middle[message.sending] if message.sending else None
        arrows.append(_arrow(start, x, y, bar, message.kind is Kind.EVENT))
    # The label of a loop on the last lane stands right of it.
    width = max(1, len(endpoints)) * LANE_WIDTH + LANE_WIDTH // 2
    lanes = tuple(Lane(endpoint, x) for endpoint, x in middle.items())
    return SequenceDiagram(lanes, tuple(arrows), width, _FIRST_ROW + len(arrows) * ROW_HEIGHT)


def _arrow(start: int | None, end: int, y: int, bar: tuple[int, int, int], is_event: bool) -> SequenceArrow:
    if start == end:
        right = bar[0] + BAR_WIDTH
        path = f"M{right} {y - 12}h{_LOOP}v14h-{_LOOP - 2}"
        head = f"M{right + 9} {y - 2}l-8 4l8 4z"
        return SequenceArrow(path, head, right + 6, y - 17, LANE_WIDTH - 40, bar, is_event)
    begin = end - _STUB if start is None else start
    to_right = begin < end
    tip = bar[0] if to_right else bar[0] + BAR_WIDTH
    path = f"M{begin} {y}H{tip}"
    head = f"M{tip - 8} {y - 4}l8 4l-8 4z" if to_right else f"M{tip + 8} {y - 4}l-8 4l8 4z"
    left = min(begin, tip) + 8
    return SequenceArrow(path, head, left, y - 7, abs(tip - begin) - 16 if start is not None else LANE_WIDTH // 2, bar, is_event)


# --- Texts ------------------------------------------------------------------------------------------------------------

OUTCOME_WORDS: Mapping[MessageOutcome, tuple[Grade, object]] = {
    MessageOutcome.HANDLED: (Grade.OK, gettext_lazy("handled")),
    MessageOutcome.FAILED: (Grade.ERROR, gettext_lazy("failed")),
    MessageOutcome.ARCHIVED: (Grade.INFO, gettext_lazy("archived")),
    MessageOutcome.RETRIED: (Grade.INFO, gettext_lazy("retried")),
    MessageOutcome.WAITING: (Grade.INFO, gettext_lazy("waiting")),
    MessageOutcome.DELAYED: (Grade.INFO, gettext_lazy("delayed")),
    MessageOutcome.GONE: (Grade.WARNING, gettext_lazy("removed")),
}
KIND_WORDS: Mapping[Kind, object] = {
    Kind.COMMAND: gettext_lazy("command"),
    Kind.EVENT: gettext_lazy("event"),
    Kind.TIMEOUT: gettext_lazy("timeout"),
}
COLUMNS: Final = (
    "message_id", "related_to", "message_type", "kind", "sending", "receiving", "state", "sent", "processing_started",
    "processing_ended", "processing_seconds", "critical_seconds", "queue", "row_version", "failure", "found_in",
)  # fmt: skip
# A letter of the labels is at most so wide.
_LETTER: Final = 8.0
_BOX_LETTERS: Final = int((BOX_WIDTH - 18) / _LETTER)
# Deeper rows of the table are not moved further in.
_DEEPEST: Final = 8
UrlOf = Callable[[ConversationMessage], str]


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A message in the table; `numbers` are those of the messages that caused it, `level` how far it is moved in."""

    number: str
    message: ConversationMessage
    name: str
    url: str
    kind: str
    state: State
    sent: Stamp | None
    processing: str
    critical: str
    is_negative: bool
    causes: tuple[str, ...]
    level: int
    found_in: str


@dataclass(frozen=True, slots=True)
class Shape:
    """A message in a diagram: its link, its words in full, its lines cut to fit. `css` are its classes."""

    url: str
    words: str
    lines: tuple[str, ...]
    css: str


def message_rows(forest: Forest, url_of: UrlOf, places: range) -> list[ConversationRow]:
    """The rows of the messages at these places, in the order of the tree."""
    causes: defaultdict[int, list[str]] = defaultdict(list)
    for cause, effect in forest.links:
        causes[effect].append(str(cause + 1))
    shown = [forest.branches[place] for place in places]
    processing = column([_seconds(branch.message.processing) for branch in shown], times)
    critical = column([_seconds(branch.message.critical) for branch in shown], times)
    return [
        ConversationRow(
            number=str(place + 1),
            message=branch.message,
            name=branch.message.message_type or _("without a type"),
            url=url_of(branch.message),
            kind=str(KIND_WORDS[branch.message.kind]),
            state=outcome_state(branch.message),
            sent=stamp_of(branch.message.sent),
            processing=took,
            critical=waited,
            is_negative=branch.message.critical is not None and branch.message.critical < timedelta(),
            causes=tuple(causes[place]),
            level=min(branch.depth, _DEEPEST),
            found_in=_found_in(branch.message),
        )
        for place, branch, took, waited in zip(places, shown, processing, critical, strict=True)
    ]


def export_rows(forest: Forest) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, by COLUMNS."""
    for branch in forest.branches:
        each = branch.message
        found_in = "lake" if each.lake else "queue" if each.row_version is not None or each.delayed else "index"
        ends = (_seconds(each.processing), _seconds(each.critical), each.queue or None, each.row_version, each.failure, found_in)
        at = (each.sent, each.started, each.ended)
        names = (each.message_id, each.related_to or None, each.message_type, each.kind.value, each.sending, each.receiving)
        yield (*names, each.outcome.value, *at, *ends)


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


def flow_of(forest: Forest, url_of: UrlOf) -> dict[str, Any]:
    """Template variables for the flow diagram: `boxes` are shapes with their spots."""
    drawn = flow_diagram(forest)
    shapes = []
    for branch in forest.branches:
        message = branch.message
        took = f" · {precise_duration(message.processing)}" if message.processing else ""
        lines = (message.short_type or _("without a type"), message.receiving or "–", outcome_state(message).word + took)
        shapes.append(_shape(message, url_of, lines, _BOX_LETTERS))
    boxes = list(zip(shapes, drawn.spots, strict=True))
    return {"drawn": drawn, "boxes": boxes, "box_width": BOX_WIDTH, "box_height": BOX_HEIGHT}


def sequence_of(forest: Forest, url_of: UrlOf) -> dict[str, Any]:
    """Template variables for the sequence diagram: `lanes` are an endpoint in full and cut, the left and the middle."""
    drawn = sequence_diagram(forest)
    arrows = []
    for branch, arrow in zip(forest.branches, drawn.arrows, strict=True):
        message = branch.message
        outcome = "" if message.outcome is MessageOutcome.HANDLED else f" · {outcome_state(message).word}"
        shape = _shape(
            message, url_of, (message.short_type or _("without a type"),), int(arrow.label_width / _LETTER) - len(outcome)
        )
        arrows.append((replace(shape, lines=(shape.lines[0] + outcome,)), arrow))
    letters = int((LANE_WIDTH - 28) / _LETTER)
    lanes = [
        (name, _cut(name, letters), x - LANE_WIDTH // 2 + 10, x)
        for name, x in ((each.endpoint or _("not known"), each.x) for each in drawn.lanes)
    ]
    sizes = {"lane_width": LANE_WIDTH - 20, "head_height": HEAD_HEIGHT, "bar_width": BAR_WIDTH}
    return {"drawn": drawn, "lanes": lanes, "arrows": arrows, **sizes}


def _shape(message: ConversationMessage, url_of: UrlOf, lines: tuple[str, ...], letters: int) -> Shape:
    queued = " sq-talk-queued" if message.outcome.is_in_queue else ""
    css = f"sq-talk-{message.outcome.value} sq-talk-{message.kind.value}{queued}"
    return Shape(url_of(message), in_words(message), tuple(_cut(line, max(letters, 6)) for line in lines), css)


def in_words(message: ConversationMessage) -> str:
    """A message in a sentence: for who points at it, or has it read aloud."""
    nobody = _("not known")
    return _("%(type)s (%(kind)s) from %(sending)s to %(receiving)s: %(state)s") % {
        "type": message.message_type or _("without a type"),
        "kind": KIND_WORDS[message.kind],
        "sending": message.sending or nobody,
        "receiving": message.receiving or nobody,
        "state": outcome_state(message).word,
    }


def summary_of(messages: Sequence[ConversationMessage]) -> str:
    """How many messages there are, between how many endpoints, and what has become of them."""
    endpoints = {each for message in messages for each in (message.sending, message.receiving) if each}
    counts = Counter(message.outcome for message in messages)
    states = ", ".join(f"{number(counts[each])} {word}" for each, (_level, word) in OUTCOME_WORDS.items() if counts[each])
    count = ngettext("%(count)s message", "%(count)s messages", len(messages)) % {"count": number(len(messages))}
    among = ngettext("%(count)s endpoint", "%(count)s endpoints", len(endpoints)) % {"count": number(len(endpoints))}
    return _("%(messages)s, %(endpoints)s: %(states)s") % {"messages": count, "endpoints": among, "states": states}


def extent_texts(extent: ScanExtent) -> list[str]:
    """How far the tables were looked at, and of which not all of them was."""
    found = [_("Failed messages: all, by the index of failures."), *scan_texts(extent)]
    if extent.lake is not None:
        text = ngettext("The lake was searched: %(count)s file.", "The lake was searched: %(count)s files.", extent.lake.files)
        if extent.lake.problem:
            text = _("Not all of the lake could be searched: %(problem)s") % {"problem": extent.lake.problem}
            found.append(text)
        else:
            found.append(text % {"count": number(extent.lake.files)})
    return found


def scan_texts(extent: ScanExtent) -> list[str]:
    """How many rows of queues and of tables of delayed messages were searched."""
    found = []
    if extent.queues:
        text = ngettext(
            "Queues: the newest %(rows)s messages of %(count)s queue.",
            "Queues: the newest %(rows)s messages of each of %(count)s queues.",
            extent.queues,
        )
        found.append(text % {"rows": number(extent.rows), "count": number(extent.queues)})
    if extent.delayed:
        text = ngettext(
            "Delayed messages: the first %(rows)s due of %(count)s table.",
            "Delayed messages: the first %(rows)s due of each of %(count)s tables.",
            extent.delayed,
        )
        found.append(text % {"rows": number(extent.rows), "count": number(extent.delayed)})
    if extent.longer:
        shown = ", ".join(list(extent.longer)[:10]) + (", …" if len(extent.longer) > 10 else "")
        text = ngettext("%(count)s table has more: %(tables)s.", "%(count)s tables have more: %(tables)s.", len(extent.longer))
        found.append(text % {"count": number(len(extent.longer)), "tables": shown})
    return found


def _found_in(message: ConversationMessage) -> str:
    if message.lake:
        return _("lake, from %(queue)s") % {"queue": message.queue}
    return message.queue if message.row_version is not None or message.delayed else _("index of failures")


def outcome_state(message: ConversationMessage) -> State:
    """What became of the message."""
    level, word = OUTCOME_WORDS[message.outcome]
    return State(level, str(word))


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
