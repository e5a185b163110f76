"""Tables are split into ranges of about equal numbers of rows with few probes."""

from __future__ import annotations

import bisect
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.spark.source.batch_reader import ROWS_PER_PROBE, even_ranges


def cut(rows: list[int], partitions: int | None, probes: list[int] | None = None, default: int = 1) -> list[tuple[int, int]]:
    """The ranges of a table with these RowVersions."""

    def probe(lowest: int, highest: int) -> tuple[int, int]:
        start, end = bisect.bisect_left(rows, lowest), bisect.bisect_right(rows, highest)
        seen = rows[start : min(end, start + ROWS_PER_PROBE)]
        if probes is not None:
            probes.append(len(seen))
        return len(seen), seen[-1] if seen else lowest

    return even_ranges(rows[0], rows[-1], partitions, probe, lambda rows: default)


def sizes(rows: list[int], ranges: list[tuple[int, int]]) -> list[int]:
    return [bisect.bisect_right(rows, highest) - bisect.bisect_left(rows, lowest) for lowest, highest in ranges]


SHAPES = {
    "consecutive": list(range(1, 50_001)),
    "every tenth": list(range(0, 500_000, 10)),
    "an old row": [1, *range(10**9, 10**9 + 50_000)],
    "three clusters": [*range(1, 1001), *range(500_000_000, 500_030_000), *range(10**9, 10**9 + 10_000)],
    "two clusters": [*range(1, 25_001), *range(2**40, 2**40 + 25_000)],
    "increasingly sparse": [number**2 for number in range(1, 50_001)],
    "negative": list(range(-40_000, 10_000)),
}


@pytest.mark.parametrize("partitions", [2, 4, 10])
@pytest.mark.parametrize("shape", SHAPES)
def test_ranges_hold_about_equal_numbers_of_rows(shape: str, partitions: int) -> None:
    rows = SHAPES[shape]
    probes: list[int] = []

    ranges = cut(rows, partitions, probes)

    assert len(ranges) == partitions
    share = len(rows) / partitions
    assert all(0.8 * share <= size <= 1.2 * share for size in sizes(rows, ranges))
    assert sum(probes) < 100_000


def test_single_range_needs_no_probe_and_few_rows_make_few_ranges() -> None:
    probes: list[int] = []
    assert cut([3, 900], 1, probes) == [(3, 900)]
    assert probes == []
    assert cut([7], 4) == [(7, 7)]
    assert cut([7, 8], 4) == [(7, 7), (8, 8)]
    assert cut([1, 50_000], None) == [(1, 50_000)]


@given(st.sets(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=300), st.integers(1, 12))
def test_ranges_cover_everything_once(rows: set[int], partitions: int) -> None:
    ordered = sorted(rows)

    ranges = cut(ordered, partitions)

    assert ranges[0][0] == ordered[0]
    assert ranges[-1][1] == ordered[-1]
    assert all(lowest <= highest for lowest, highest in ranges)
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
    assert len(ranges) <= partitions
