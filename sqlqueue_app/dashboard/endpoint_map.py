"""The map of endpoints as a drawing: they stand on a circle, an arrow for all messages from one to another. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

RADIUS: Final = 200
# For the names, which stand outside of the circle.
MARGIN_X: Final = 230
MARGIN_Y: Final = 40
# More than so many endpoints cannot be told apart on a circle.
MOST_NODES: Final = 24
_WIDEST: Final = 7.0
_NAME_LETTERS: Final = 26


@dataclass(frozen=True, slots=True)
class Node:
    """An endpoint: its place, its name in full and cut, where the name stands."""

    name: str
    shown: str
    x: str
    y: str
    label_x: str
    label_y: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """All messages from one endpoint to another; the wider, the more. Coordinates are texts, which no language puts commas into."""

    path: str
    head: str
    width: str


@dataclass(frozen=True, slots=True)
class EndpointMap:
    """The drawing."""

    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    width: str = str(2 * (RADIUS + MARGIN_X))
    height: str = str(2 * (RADIUS + MARGIN_Y))


def endpoint_map(edges: Sequence[tuple[str, str, int]]) -> EndpointMap:
    """Draw edges (sender, receiver, count), the most frequent first: those of the first endpoints for which there is room."""
    names: list[str] = []
    for sender, receiver, _count in edges:
        for name in (sender, receiver):
            if name not in names and len(names) < MOST_NODES:
                names.append(name)
    places = {name: 2 * math.pi * number / max(len(names), 1) - math.pi / 2 for number, name in enumerate(sorted(names))}
    most = max((count for _sender, _receiver, count in edges), default=1)
    drawn = [each for each in edges if each[0] in places and each[1] in places]
    arrows = tuple(_arrow(places[sender], places[receiver], count / most) for sender, receiver, count in drawn)
    return EndpointMap(tuple(_node(name, angle) for name, angle in places.items()), arrows)


def _point(angle: float, radius: float) -> tuple[float, float]:
    return RADIUS + MARGIN_X + radius * math.cos(angle), RADIUS + MARGIN_Y + radius * math.sin(angle)


def _node(name: str, angle: float) -> Node:
    x, y = _point(angle, RADIUS)
    label_x, label_y = _point(angle, RADIUS + 16)
    anchor = "middle" if abs(math.cos(angle)) < 0.2 else "start" if math.cos(angle) > 0 else "end"
    shown = name if len(name) <= _NAME_LETTERS else f"{name[: _NAME_LETTERS - 1]}…"
    return Node(name, shown, f"{x:.1f}", f"{y:.1f}", f"{label_x:.1f}", f"{label_y + 4:.1f}", anchor)


def _arrow(begin: float, end: float, part: float) -> Arrow:
    width = f"{1 + (_WIDEST - 1) * part:.1f}"
    if begin == end:
        # What an endpoint sends to itself goes out of the circle and back.
        x, y = _point(begin, RADIUS - 9)
        (ax, ay), (bx, by) = _point(begin - 0.25, RADIUS - 70), _point(begin + 0.25, RADIUS - 70)
        return Arrow(f"M{x:.1f} {y:.1f}C{ax:.1f} {ay:.1f} {bx:.1f} {by:.1f} {x:.1f} {y:.1f}", _head(bx, by, x, y), width)
    (x, y), (to_x, to_y) = _point(begin, RADIUS - 9), _point(end, RADIUS - 10)
    middle_x, middle_y = RADIUS + MARGIN_X, RADIUS + MARGIN_Y
    # Both ways are drawn apart: each bends to its own side, and all of them to the middle.
    along_x, along_y = to_x - x, to_y - y
    bend_x = (x + to_x) / 2 * 0.6 + middle_x * 0.4 - along_y * 0.12
    bend_y = (y + to_y) / 2 * 0.6 + middle_y * 0.4 + along_x * 0.12
    return Arrow(f"M{x:.1f} {y:.1f}Q{bend_x:.1f} {bend_y:.1f} {to_x:.1f} {to_y:.1f}", _head(bend_x, bend_y, to_x, to_y), width)


def _head(from_x: float, from_y: float, x: float, y: float) -> str:
    angle = math.atan2(y - from_y, x - from_x)
    (ax, ay), (bx, by) = ((x - 10 * math.cos(angle + turn), y - 10 * math.sin(angle + turn)) for turn in (0.4, -0.4))
    return f"M{x:.1f} {y:.1f}L{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}Z"
