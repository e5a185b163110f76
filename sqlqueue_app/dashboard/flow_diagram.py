"""The flow of a conversation as boxes and lines: each message right of the one that caused it. Numbers alone, no words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlqueue_app.operations.conversations.message import Kind
from sqlqueue_app.operations.conversations.tree import Forest

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
class Line:
    """From a cause to its effect, as the data of a path; `is_event`: it was published."""

    path: str
    head: str
    is_event: bool


@dataclass(frozen=True, slots=True)
class FlowDiagram:
    """The spots of the branches, in their order, and the lines between them."""

    spots: tuple[Spot, ...]
    lines: tuple[Line, ...]
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
    for number in range(len(forest.branches)):
        rows.append(row)
        # What a branch has caused begins in its own row.
        row += number not in causes
    return rows


def _line(cause: Spot, effect: Spot, is_event: bool) -> Line:
    x, y = cause.x + BOX_WIDTH, cause.y + BOX_HEIGHT // 2
    to_x, to_y = effect.x, effect.y + BOX_HEIGHT // 2
    middle = (x + to_x) // 2
    path = f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"
    return Line(path, f"M{to_x - 8} {to_y - 4}l8 4l-8 4z", is_event)
