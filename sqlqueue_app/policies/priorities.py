"""Priorities: their names, and the order in which a thread looks for messages of each. Plain arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Priority = Literal["high", "normal", "low"]
PRIORITIES: Final[tuple[Priority, ...]] = ("high", "normal", "low")
PRIORITY_SUFFIXES: Final = {"high": ".High", "low": ".Low"}
"""The suffixes of the queues other than the main one, highest priority first."""

HIGH_IN_A_ROW: Final = 2
NORMAL_IN_A_ROW: Final = 4

_HIGH, _NORMAL, _LOW = range(len(PRIORITIES))
_ORDERS: Final = {
    # (is another priority's turn, is it that of low): the levels in the order in which to look for a message
    (False, False): (_HIGH, _NORMAL, _LOW),
    (False, True): (_HIGH, _LOW, _NORMAL),
    (True, False): (_NORMAL, _LOW, _HIGH),
    (True, True): (_LOW, _NORMAL, _HIGH),
}


@dataclass(slots=True)
class PriorityTurns:
    """The turns of one thread; a level is an index of PRIORITIES. Not thread-safe: each thread has its own.

    A high message comes next, unless the last two were high: then one of the others has its turn. After four normal ones that
    turn belongs to low. While all levels have messages, every 15 received are 10 high, 4 normal and 1 low. A level without
    messages passes its turn to the next.
    """

    highs: int = 0
    """The number of high messages since the last other one."""
    normals: int = 0
    """The number of normal messages since the last low one."""

    def order(self) -> tuple[int, int, int]:
        """The levels in the order in which to look for the next message."""
        return _ORDERS[self.highs >= HIGH_IN_A_ROW, self.normals >= NORMAL_IN_A_ROW]

    def took(self, level: int) -> None:
        """Record that a message of the level was received."""
        if level == _HIGH:
            self.highs += 1
            return
        self.highs = 0
        self.normals = self.normals + 1 if level == _NORMAL else 0
