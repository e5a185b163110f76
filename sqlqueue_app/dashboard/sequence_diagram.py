"""The sequence of a conversation: a lane for each endpoint, an arrow for each message. Numbers alone, no words. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from sqlqueue_app.operations.conversations.message import Kind
from sqlqueue_app.operations.conversations.tree import Forest

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
class Arrow:
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
    arrows: tuple[Arrow, ...]
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
    middle = {endpoint: number * LANE_WIDTH + LANE_WIDTH // 2 for number, endpoint in enumerate(endpoints)}
    last = list(range(len(forest.branches)))
    for number, branch in enumerate(forest.branches):
        if branch.parent is not None:
            last[branch.parent] = number
    arrows = []
    open_until: defaultdict[str, list[int]] = defaultdict(list)
    for number, branch in enumerate(forest.branches):
        message = branch.message
        y = _FIRST_ROW + number * ROW_HEIGHT
        open_until[message.receiving] = [end for end in open_until[message.receiving] if end >= y]
        nested = min(len(open_until[message.receiving]), 3)
        height = max(_LEAST_BAR, (last[number] - number) * ROW_HEIGHT + 8)
        x = middle[message.receiving]
        bar = (x - BAR_WIDTH // 2 + nested * 4, y - 2, height)
        open_until[message.receiving].append(y + height)
        start = middle[message.sending] if message.sending else None
        arrows.append(_arrow(start, x, y, bar, message.kind is Kind.EVENT))
    # The label of a loop on the last lane stands right of it.
    width = max(1, len(endpoints)) * LANE_WIDTH + LANE_WIDTH // 2
    lanes = tuple(Lane(endpoint, x) for endpoint, x in middle.items())
    return SequenceDiagram(lanes, tuple(arrows), width, _FIRST_ROW + len(arrows) * ROW_HEIGHT)


def _arrow(start: int | None, end: int, y: int, bar: tuple[int, int, int], is_event: bool) -> Arrow:
    if start == end:
        right = bar[0] + BAR_WIDTH
        path = f"M{right} {y - 12}h{_LOOP}v14h-{_LOOP - 2}"
        head = f"M{right + 9} {y - 2}l-8 4l8 4z"
        return Arrow(path, head, right + 6, y - 17, LANE_WIDTH - 40, bar, is_event)
    begin = end - _STUB if start is None else start
    to_right = begin < end
    tip = bar[0] if to_right else bar[0] + BAR_WIDTH
    path = f"M{begin} {y}H{tip}"
    head = f"M{tip - 8} {y - 4}l8 4l-8 4z" if to_right else f"M{tip + 8} {y - 4}l-8 4l8 4z"
    left = min(begin, tip) + 8
    return Arrow(path, head, left, y - 7, abs(tip - begin) - 16 if start is not None else LANE_WIDTH // 2, bar, is_event)
