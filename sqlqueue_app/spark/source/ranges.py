"""Cutting a table into ranges of RowVersion with about equal numbers of rows, without counting it.

RowVersions have holes: rows that were received, rolled back, given out in blocks. So a few looks at short stretches of the index
tell how densely they stand where; where it is thin and many rows may be, it is looked closer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

ROWS_OF_A_LOOK = 100
_SLICES = 64
_FINER = 8
_DENSE = 0.9
# Enough to find a few rows anywhere among all numbers; as a rule one or none is needed.
_ROUNDS = 16

Look = Callable[[int, int], tuple[int, int]]
"""How many rows are from one RowVersion to another, at most ROWS_OF_A_LOOK, and the last one that was counted."""

Default = Callable[[float], int]
"""How many ranges for about so many rows."""


@dataclass(frozen=True, slots=True)
class _Slice:
    lowest: int
    highest: int
    rows: float
    is_thin: bool = False
    """Whether `rows` is a guess: there are many, and at one of the ends not every number is a row."""

    @property
    def width(self) -> int:
        return self.highest - self.lowest + 1


def even_ranges(lowest: int, highest: int, partitions: int | None, look: Look, default: Default) -> list[tuple[int, int]]:
    """At most so many ranges, ascending, which cover all from `lowest` to `highest`; both ends of each are included.

    `default` counts where `partitions` is None.
    """
    if partitions == 1:
        return [(lowest, highest)]
    slices = _sliced(lowest, highest, max(_SLICES, 2 * (partitions or 1)), look)
    # Once wherever rows stand thin, for there may be a heap of them in the middle; then only where there are too many for a share.
    slices = [finer for each in slices for finer in (_refined(each, look) if each.is_thin else [each])]
    for _ in range(_ROUNDS):
        rows = sum(each.rows for each in slices)
        most = rows / (partitions or default(rows)) / 8
        if not any(each.is_thin and each.rows > most for each in slices):
            break
        slices = [finer for each in slices for finer in (_refined(each, look) if each.is_thin and each.rows > most else [each])]
    count = partitions or default(sum(each.rows for each in slices))
    return _cut(slices, min(count, highest - lowest + 1))


def _refined(each: _Slice, look: Look) -> list[_Slice]:
    return _sliced(each.lowest, each.highest, _FINER, look)


def _sliced(lowest: int, highest: int, count: int, look: Look) -> list[_Slice]:
    width = max(1, -(-(highest - lowest + 1) // count))
    return [_looked_at(start, min(start + width - 1, highest), look) for start in range(lowest, highest + 1, width)]


def _looked_at(lowest: int, highest: int, look: Look) -> _Slice:
    """A slice as its ends let expect it; the denser one counts, because too many rows are looked at closer and too few are not."""
    rows, last = look(lowest, highest)
    width = highest - lowest + 1
    if rows < ROWS_OF_A_LOOK:
        return _Slice(lowest, highest, rows)
    at_start = rows / (last - lowest + 1)
    stretch = min(width, ROWS_OF_A_LOOK)
    at_end = look(highest - stretch + 1, highest)[0] / stretch
    return _Slice(lowest, highest, max(at_start, at_end) * width, is_thin=min(at_start, at_end) < _DENSE and width > stretch)


def _cut(slices: Iterable[_Slice], count: int) -> list[tuple[int, int]]:
    slices = list(slices)
    total = sum(each.rows for each in slices)
    ends: list[int] = []
    passed = 0.0
    for each in slices:
        while len(ends) < count - 1 and each.rows and passed + each.rows >= (wanted := total * (len(ends) + 1) / count):
            inside = max(0, round((wanted - passed) / each.rows * each.width) - 1)
            ends.append(min(each.lowest + inside, each.highest))
        passed += each.rows
    highest = slices[-1].highest
    starts = [slices[0].lowest]
    for end in ends:
        if starts[-1] <= end < highest:
            starts.append(end + 1)
    return [(start, following - 1) for start, following in zip(starts, [*starts[1:], highest + 1], strict=True)]
