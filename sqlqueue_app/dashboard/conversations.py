"""A conversation as texts: the boxes and arrows of its diagrams, and the rows of its table, in the language of the request."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue_app.dashboard.flow_diagram import BOX_HEIGHT, BOX_WIDTH, Line, flow_diagram
from sqlqueue_app.dashboard.formats import Stamp, number, precise_duration, stamp_of
from sqlqueue_app.dashboard.overview import Level, State
from sqlqueue_app.dashboard.sequence_diagram import BAR_WIDTH, HEAD_HEIGHT, LANE_WIDTH, Arrow, sequence_diagram
from sqlqueue_app.operations.conversations.message import Fate, Kind, TalkMessage
from sqlqueue_app.operations.conversations.reading import Looked
from sqlqueue_app.operations.conversations.tree import Forest

FATE_WORDS: Mapping[Fate, tuple[Level, object]] = {
    Fate.HANDLED: (Level.OK, gettext_lazy("handled")),
    Fate.FAILED: (Level.ERROR, gettext_lazy("failed")),
    Fate.ARCHIVED: (Level.INFO, gettext_lazy("archived")),
    Fate.RETRIED: (Level.INFO, gettext_lazy("retried")),
    Fate.WAITING: (Level.INFO, gettext_lazy("waiting")),
    Fate.DELAYED: (Level.INFO, gettext_lazy("delayed")),
    Fate.GONE: (Level.WARNING, gettext_lazy("deleted or gone")),
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
UrlOf = Callable[[TalkMessage], str]


@dataclass(frozen=True, slots=True)
class TalkRow:
    """A message in the table; `numbers` are those of the messages that caused it, `level` how far it is moved in."""

    number: str
    message: TalkMessage
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


@dataclass(frozen=True, slots=True)
class Box:
    """A message in the flow diagram; coordinates are texts, which no language puts separators into."""

    shape: Shape
    x: str
    y: str


@dataclass(frozen=True, slots=True)
class FlowText:
    """The flow diagram."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    width: str
    height: str
    box_width: str = str(BOX_WIDTH)
    box_height: str = str(BOX_HEIGHT)


@dataclass(frozen=True, slots=True)
class LaneText:
    """A lane of the sequence diagram: its endpoint in full and cut, the left and the middle."""

    name: str
    shown: str
    left: str
    x: str


@dataclass(frozen=True, slots=True)
class ArrowText:
    """A message in the sequence diagram."""

    shape: Shape
    arrow: Arrow
    x: str
    y: str
    bar_x: str
    bar_y: str
    bar_height: str


@dataclass(frozen=True, slots=True)
class SequenceText:
    """The sequence diagram."""

    lanes: tuple[LaneText, ...]
    arrows: tuple[ArrowText, ...]
    width: str
    height: str
    lane_width: str = str(LANE_WIDTH - 20)
    head_height: str = str(HEAD_HEIGHT)
    bar_width: str = str(BAR_WIDTH)


# --- the table ----------------------------------------------------------------------------------------------------------------


def talk_rows(forest: Forest, url_of: UrlOf, places: range) -> list[TalkRow]:
    """The rows of the messages at these places, in the order of the tree."""
    causes: defaultdict[int, list[str]] = defaultdict(list)
    for cause, effect in forest.links:
        causes[effect].append(str(cause + 1))
    return [
        TalkRow(
            number=str(place + 1),
            message=branch.message,
            name=_name(branch.message),
            url=url_of(branch.message),
            kind=str(KIND_WORDS[branch.message.kind]),
            state=_state(branch.message),
            sent=stamp_of(branch.message.sent),
            processing=_length(branch.message.processing),
            critical=_length(branch.message.critical),
            is_negative=branch.message.critical is not None and branch.message.critical < timedelta(),
            causes=tuple(causes[place]),
            level=min(branch.depth, _DEEPEST),
            found_in=_found_in(branch.message),
        )
        for place, branch in ((place, forest.branches[place]) for place in places)
    ]


def exported_talk(forest: Forest) -> Iterator[tuple[Any, ...]]:
    """The rows of a file, by COLUMNS."""
    for branch in forest.branches:
        each = branch.message
        found_in = "lake" if each.lake else "queue" if each.row_version is not None or each.delayed else "index"
        ends = (_seconds(each.processing), _seconds(each.critical), each.queue or None, each.row_version, each.failure, found_in)
        times = (each.sent, each.started, each.ended)
        names = (each.message_id, each.related_to or None, each.message_type, each.kind.value, each.sending, each.receiving)
        yield (*names, each.fate.value, *times, *ends)


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


# --- the diagrams -------------------------------------------------------------------------------------------------------------


def flow_of(forest: Forest, url_of: UrlOf) -> FlowText:
    """The flow diagram."""
    drawn = flow_diagram(forest)
    boxes = []
    for branch, spot in zip(forest.branches, drawn.spots, strict=True):
        message = branch.message
        times = f"{_state(message).word} · {_length(message.processing)}" if message.processing else str(_state(message).word)
        lines = (message.short_type or _("without a type"), message.receiving or "–", times)
        boxes.append(Box(_shape(message, url_of, lines, _BOX_LETTERS), str(spot.x), str(spot.y)))
    return FlowText(tuple(boxes), drawn.lines, str(drawn.width), str(drawn.height))


def sequence_of(forest: Forest, url_of: UrlOf) -> SequenceText:
    """The sequence diagram."""
    drawn = sequence_diagram(forest)
    arrows = []
    for branch, arrow in zip(forest.branches, drawn.arrows, strict=True):
        message = branch.message
        fate = "" if message.fate is Fate.HANDLED else f" · {_state(message).word}"
        shape = _shape(message, url_of, (message.short_type or _("without a type"),), int(arrow.label_width / _LETTER) - len(fate))
        shape = replace(shape, lines=(shape.lines[0] + fate,))
        left, top, height = (str(each) for each in arrow.bar)
        arrows.append(ArrowText(shape, arrow, str(arrow.label_x), str(arrow.label_y), left, top, height))
    lanes = tuple(_lane(each.endpoint or _("not known"), each.x) for each in drawn.lanes)
    return SequenceText(lanes, tuple(arrows), str(drawn.width), str(drawn.height))


def _lane(name: str, x: int) -> LaneText:
    return LaneText(name, _cut(name, int((LANE_WIDTH - 28) / _LETTER)), str(x - LANE_WIDTH // 2 + 10), str(x))


def _shape(message: TalkMessage, url_of: UrlOf, lines: tuple[str, ...], letters: int) -> Shape:
    css = f"sq-talk-{message.fate.value} sq-talk-{message.kind.value}" + (" sq-talk-queued" if message.fate.is_in_queue else "")
    return Shape(url_of(message), in_words(message), tuple(_cut(line, max(letters, 6)) for line in lines), css)


def in_words(message: TalkMessage) -> str:
    """A message in a sentence: for who points at it, or has it read aloud."""
    nobody = _("not known")
    return _("%(type)s (%(kind)s) from %(sending)s to %(receiving)s: %(state)s") % {
        "type": message.message_type or _("without a type"),
        "kind": KIND_WORDS[message.kind],
        "sending": message.sending or nobody,
        "receiving": message.receiving or nobody,
        "state": _state(message).word,
    }


# --- what is said of all of it ------------------------------------------------------------------------------------------------


def summary_of(messages: Sequence[TalkMessage]) -> str:
    """How many messages there are, between how many endpoints, and what has become of them."""
    endpoints = {each for message in messages for each in (message.sending, message.receiving) if each}
    fates = Counter(message.fate for message in messages)
    told = ", ".join(f"{number(fates[fate])} {word}" for fate, (_level, word) in FATE_WORDS.items() if fates[fate])
    count = ngettext("%(count)s message", "%(count)s messages", len(messages)) % {"count": number(len(messages))}
    among = ngettext("%(count)s endpoint", "%(count)s endpoints", len(endpoints)) % {"count": number(len(endpoints))}
    return _("%(messages)s, %(endpoints)s: %(states)s") % {"messages": count, "endpoints": among, "states": told}


def looked_at(looked: Looked) -> list[str]:
    """How far the tables were looked at, and of which not all of them was."""
    found = [
        _(
            "Failed messages are all here, as far as the index of failures has them. Of each queue and each table of delayed "
            "messages the first %(rows)s rows were looked at, of each audit queue the last %(audited)s."
        )
        % {"rows": number(looked.rows), "audited": number(looked.audited)}
    ]
    if looked.longer:
        shown = ", ".join(looked.longer[:10]) + (", …" if len(looked.longer) > 10 else "")
        text = ngettext("%(count)s table has more: %(tables)s.", "%(count)s tables have more: %(tables)s.", len(looked.longer))
        found.append(text % {"count": number(len(looked.longer)), "tables": shown})
    if looked.lake is not None:
        text = ngettext("The lake was searched: %(count)s file.", "The lake was searched: %(count)s files.", looked.lake.files)
        if looked.lake.problem:
            text = _("Not all of the lake could be searched: %(problem)s") % {"problem": looked.lake.problem}
            found.append(text)
        else:
            found.append(text % {"count": number(looked.lake.files)})
    return found


def _name(message: TalkMessage) -> str:
    return message.message_type or _("without a type")


def _found_in(message: TalkMessage) -> str:
    if message.lake:
        return _("lake, from %(queue)s") % {"queue": message.queue}
    return message.queue if message.row_version is not None or message.delayed else _("index of failures")


def _state(message: TalkMessage) -> State:
    level, word = FATE_WORDS[message.fate]
    return State(level, str(word))


def _length(length: timedelta | None) -> str:
    return "–" if length is None else precise_duration(length)


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
