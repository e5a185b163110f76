"""The pages of conversations: the search, and all messages of one conversation in diagrams and a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _, ngettext

from sqlqueue_app.browsing import conversations
from sqlqueue_app.browsing.conversations import ConversationMessage, Forest, Kind, MessageOutcome
from sqlqueue_app.conf import get_settings
from sqlqueue_app.dashboard.formats import Grade, State, number
from sqlqueue_app.dashboard.lists import NUMBER, WIDE, FileColumns, TableColumn, export, link_html, table, wanted_format
from sqlqueue_app.dashboard.page import Crumb, PageAdmin, number_of, path_of, text_of_path
from sqlqueue_app.failures.index import catch_up_for_page
from sqlqueue_app.models import DelayedMessage, FailedMessage, LakeSearch, Queue, Search

# The number of messages in a diagram and on one page of the table.
MAX_DRAWN: Final = 50
MAX_ID_LENGTH: Final = 400
_GRADES: Final = {MessageOutcome.HANDLED: Grade.OK, MessageOutcome.FAILED: Grade.ERROR, MessageOutcome.GONE: Grade.WARNING}
OUTCOME_STATES: Final = {each: State(_GRADES.get(each, Grade.INFO), each.label) for each in MessageOutcome}
# Final outcomes.
_OVER: Final = (MessageOutcome.HANDLED, MessageOutcome.GONE)
COLUMNS: Final[FileColumns] = {
    "message_id": "message_id", "related_to": lambda each: each.related_to or None, "message_type": "message_type", "kind": "kind",
    "sending": "sending", "receiving": "receiving", "state": "outcome", "sent": "sent", "processing_started": "started",
    "processing_ended": "ended", "processing_seconds": "processing", "critical_seconds": "critical",
    "queue": lambda each: each.queue or None, "row_version": "row_version", "failure": "failure", "found_in": "found_in",
}  # fmt: skip


class ConversationAdmin(PageAdmin):
    """The pages of conversations, for users with the permission `sqlqueue_app.view_queue`."""

    routes: ClassVar = {"conversation": "<str:name>/"}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The newest conversations with failures. An id is searched for everywhere."""
        if wanted := request.GET.get("id", "").strip():
            return HttpResponseRedirect(f"{self.url_of(Search)}?{urlencode({'q': wanted[:MAX_ID_LENGTH]})}")
        # Keeps the list correct even if no worker is alive.
        catch_up_for_page(get_settings(), max_queues=1)
        columns: list[TableColumn[conversations.FailingConversation]] = [
            TableColumn(_("Conversation"), lambda each: link_html(self.conversation_url(each.id), each.id), WIDE),
            TableColumn(_("Failed messages"), lambda each: each.failed, NUMBER),
            TableColumn(_("Last failed"), lambda each: each.last),
            TableColumn(_("Type"), lambda each: each.message_type, WIDE),
        ]
        newest = conversations.newest_conversations()
        shown = table(_("Conversations of the newest unresolved failed messages"), columns, newest, lambda each: each.id)
        nothing = _("No unresolved failed message belongs to a conversation.")
        return self.page(request, "list", table=shown if newest else None, nothing=nothing, **(extra_context or {}))

    def conversation_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """All messages of one conversation that can be found."""
        conversation = text_of_path(name)
        read = conversations.read_conversation(get_settings(), conversation)
        whole = conversations.forest(read.messages)
        if wanted_format(request):
            return export(request, f"conversation {conversation}"[:100], COLUMNS, (each.message for each in whole.branches))
        return self.page(
            request, "conversation", title=_("Conversation %(id)s") % {"id": conversation}, crumbs=(Crumb(conversation),),
            read=read, extent=read.extent, longer=list(read.extent.longer.items()), max_messages=conversations.MAX_MESSAGES,
            **(self._drawn(request, whole) if read.messages else {}),
        )  # fmt: skip

    def _drawn(self, request: HttpRequest, whole: Forest) -> dict[str, Any]:
        urgent = [place for place, each in enumerate(whole.branches) if each.message.outcome not in _OVER]
        drawn = conversations.cut(whole, MAX_DRAWN, first=urgent)
        count = len(whole.branches)
        shown = self._nodes(drawn, 0)
        flow = flow_diagram(drawn)
        sequence = sequence_diagram(drawn)
        begin = min(max(number_of(request.GET.get("from", "")) - 1, 0), count - 1)
        return {
            "summary": summary_of([each.message for each in whole.branches]),
            "flow": flow,
            "flow_nodes": [(node, *place) for node, place in zip(shown, flow.boxes, strict=True)],
            "sequence": sequence,
            "sequence_nodes": list(zip(shown, sequence.arrows, strict=True)),
            "drawn": len(shown),
            "left_out": count - len(shown),
            "rows": self._nodes(whole, begin),
            "previous_url": f"?from={max(begin - MAX_DRAWN, 0) + 1}" if begin else "",
            "next_url": f"?from={begin + MAX_DRAWN + 1}" if begin + MAX_DRAWN < count else "",
        }

    def _nodes(self, found: Forest, begin: int) -> list[Node]:
        """The drawn messages, from this one on."""
        causes: defaultdict[int, list[int]] = defaultdict(list)
        for cause, effect in found.links:
            causes[effect].append(cause + 1)
        return [
            Node(place + 1, each, message_url(self, each.message), OUTCOME_STATES[each.message.outcome], causes[place])
            for place, each in enumerate(found.branches[begin : begin + MAX_DRAWN], begin)
        ]


class Node(NamedTuple):
    """A message in the table and in the diagrams: its number, its page, its state, and the numbers of its causes."""

    number: int
    branch: conversations.Branch
    url: str
    state: State
    causes: Sequence[int]


def message_url(pages: PageAdmin, message: ConversationMessage) -> str:
    """The page of a message, if it has one: that of the failed message, of its row, or of the delayed message."""
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


# The templates contain the sizes of boxes, lane heads and bars, too.
BOX_WIDTH: Final = 190
BOX_HEIGHT: Final = 66
_COLUMN: Final = BOX_WIDTH + 36
_ROW: Final = BOX_HEIGHT + 14
MARGIN: Final = 8
LANE_WIDTH: Final = 210
ROW_HEIGHT: Final = 48
BAR_WIDTH: Final = 10
# Below the heads of the lanes.
_FIRST_ROW: Final = 76
_LOOP: Final = 36
# An arrow without a start, for an unknown sender.
_STUB: Final = 70
_MIN_BAR: Final = 18
# The maximum width of a letter in labels, and the letters reserved for a state and its separator.
_LETTER: Final = 8
_STATE_LETTERS: Final = 11


class FlowDiagram(NamedTuple):
    """The positions of the branches' boxes, in their order, and the lines between them: a path, and whether it is an event."""

    boxes: list[tuple[int, int]]
    lines: list[tuple[str, bool]]
    width: int
    height: int


def flow_diagram(forest: Forest) -> FlowDiagram:
    """A column for each generation, a row for each message without effects; a cause is level with its first effect.

    So the first message is always at the top left, in a drawing of any size.
    """
    causes = {branch.parent for branch in forest.branches}
    boxes, y = [], MARGIN
    for place, branch in enumerate(forest.branches):
        boxes.append((MARGIN + branch.depth * _COLUMN, y))
        # The effects of a branch begin in its own row.
        y += 0 if place in causes else _ROW
    lines = []
    for cause, effect in forest.links:
        (x, y), (to_x, to_y) = boxes[cause], boxes[effect]
        x, y, to_y = x + BOX_WIDTH, y + BOX_HEIGHT // 2, to_y + BOX_HEIGHT // 2
        middle = (x + to_x) // 2
        lines.append((f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}", forest.branches[effect].message.kind is Kind.EVENT))
    width = max((x for x, _y in boxes), default=0) + BOX_WIDTH + MARGIN
    height = max((y for _x, y in boxes), default=0) + BOX_HEIGHT + MARGIN
    return FlowDiagram(boxes, lines, width, height)


class SequenceArrow(NamedTuple):
    """A message: the path of its arrow, the position of its label, and the number of letters of its type that fit.

    `bar` is the handling: x, y and height, on the lane of the receiver; it extends to the last message that it sent.
    """

    path: str
    label_x: int
    label_y: int
    letters: int
    bar: tuple[int, int, int]


class SequenceDiagram(NamedTuple):
    """The centers of the lanes by endpoint, from left to right, and the arrows of the branches, in their order."""

    lanes: dict[str, int]
    arrows: list[SequenceArrow]
    width: int
    height: int


def lanes_of(forest: Forest) -> tuple[str, ...]:
    """The endpoints in the order of their first appearance: for each message the sender before the receiver."""
    # An unknown sender has no lane.
    ends = ((branch.message.sending or None, branch.message.receiving) for branch in forest.branches)
    return tuple(dict.fromkeys(each for pair in ends for each in pair if each is not None))


def sequence_diagram(forest: Forest) -> SequenceDiagram:
    """A row for each message, in the order of the tree: the effects of a message are directly below it."""
    lanes = {endpoint: place * LANE_WIDTH + LANE_WIDTH // 2 for place, endpoint in enumerate(lanes_of(forest))}
    last_effects = {branch.parent: place for place, branch in enumerate(forest.branches)}
    arrows = []
    open_until: defaultdict[str, list[int]] = defaultdict(list)
    for place, branch in enumerate(forest.branches):
        receiving, sending = branch.message.receiving, branch.message.sending
        y = _FIRST_ROW + place * ROW_HEIGHT
        open_until[receiving] = [end for end in open_until[receiving] if end >= y]
        nested = min(len(open_until[receiving]), 3)
        height = max(_MIN_BAR, (last_effects.get(place, place) - place) * ROW_HEIGHT + 8)
        bar = (lanes[receiving] - BAR_WIDTH // 2 + nested * 4, y - 2, height)
        open_until[receiving].append(y + height)
        taken = 0 if branch.message.outcome is MessageOutcome.HANDLED else _STATE_LETTERS
        arrows.append(_arrow(lanes[sending] if sending else None, lanes[receiving], y, bar, taken))
    # The label of a loop on the last lane is to its right.
    width = max(1, len(lanes)) * LANE_WIDTH + LANE_WIDTH // 2
    return SequenceDiagram(lanes, arrows, width, _FIRST_ROW + len(arrows) * ROW_HEIGHT)


def _arrow(start: int | None, end: int, y: int, bar: tuple[int, int, int], taken: int) -> SequenceArrow:
    """The arrow to this bar; `taken` letters of its label are used by the state after the type."""
    right = bar[0] + BAR_WIDTH
    begin = end - _STUB if start is None else start
    tip = bar[0] if begin < end else right
    if start == end:
        path, x, label_y, room = f"M{right} {y - 12}h{_LOOP}v14H{right}", right + 6, y - 17, LANE_WIDTH - 40
    else:
        room = LANE_WIDTH // 2 if start is None else abs(tip - begin) - 16
        path, x, label_y = f"M{begin} {y}H{tip}", min(begin, tip) + 8, y - 7
    return SequenceArrow(path, x, label_y, max(room // _LETTER - taken, 6), bar)


def summary_of(messages: Sequence[ConversationMessage]) -> str:
    """The number of messages and endpoints, and the outcomes of the messages."""
    endpoints = {each for message in messages for each in (message.sending, message.receiving) if each}
    counts = Counter(message.outcome for message in messages)
    states = ", ".join(f"{number(counts[each])} {state.word}" for each, state in OUTCOME_STATES.items() if counts[each])
    count = ngettext("%(count)s message", "%(count)s messages", len(messages)) % {"count": number(len(messages))}
    among = ngettext("%(count)s endpoint", "%(count)s endpoints", len(endpoints)) % {"count": number(len(endpoints))}
    return _("%(messages)s, %(endpoints)s: %(states)s") % {"messages": count, "endpoints": among, "states": states}
