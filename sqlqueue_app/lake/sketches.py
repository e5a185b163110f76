"""Mergeable quantile sketches of durations, and the arithmetic of rollup rows.

A sketch maps bucket to count. Bucket *n* holds durations above 1.05 ** (n - 1) and up to 1.05 ** n seconds; zero and negative
durations are in `BELOW`. Adding the counts of two sketches, in any order, gives the sketch of all durations. A quantile is within
2.5 % of the exact one for durations of a microsecond or more, and 0 for zero and negative ones. A duration of a microsecond to a
year is in one of 638 buckets.

A rollup row is a dictionary of the columns of a table in `lake.columns.ROLLUPS`. Its key columns identify it, all others add up.
Sums of seconds are added as whole microseconds, so the result does not depend on the order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

Sketch = dict[int, int]
"""Counts by bucket; a missing bucket counts zero."""

STEP: Final = 1.05
LOG_OF_STEP: Final = 0.04879016416943205
"""ln(1.05), as a literal so that Spark and Python divide by the same number."""

SLACK: Final = 1e-9
"""Puts a duration that is exactly a border into the lower bucket, despite rounding of the logarithm."""

LOWEST: Final = -283
"""The bucket of a microsecond and shorter."""

BELOW: Final = -1_000
"""The bucket of zero and of negative durations."""


def bucket_of(seconds: float) -> int:
    """The bucket of a duration. Raises ValueError for NaN and infinity."""
    if not math.isfinite(seconds):
        raise ValueError(f"the duration {seconds!r} is not finite; expected seconds")
    if seconds <= 0:
        return BELOW
    return max(math.ceil(math.log(seconds) / LOG_OF_STEP - SLACK), LOWEST)


def sketch_of(durations: Iterable[float]) -> Sketch:
    """The sketch of durations in seconds."""
    found: Sketch = {}
    for seconds in durations:
        bucket = bucket_of(seconds)
        found[bucket] = found.get(bucket, 0) + 1
    return found


def merged(*sketches: Mapping[int, int]) -> Sketch:
    """A new sketch with the durations of all given ones."""
    found: Sketch = {}
    for sketch in sketches:
        for bucket, count in sketch.items():
            found[bucket] = found.get(bucket, 0) + count
    return found


def quantile(sketch: Mapping[int, int], fraction: float) -> float | None:
    """The duration in seconds that `fraction` of all do not exceed, within 2.5 %; None for an empty sketch.

    Its rank is `ceil(fraction * count)`, at least 1. Raises ValueError for a fraction outside 0 to 1.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction {fraction!r} is not between 0 and 1")
    left = max(math.ceil(fraction * sum(sketch.values())), 1)
    for bucket in sorted(sketch):
        left -= sketch[bucket]
        if left <= 0:
            return _middle(bucket)
    return None


def _middle(bucket: int) -> float:
    """The duration with the same relative error to both borders: 2.44 % at most."""
    return 0.0 if bucket == BELOW else float(2 * STEP**bucket / (1 + STEP))


def to_json(sketch: Mapping[int, int]) -> dict[str, int]:
    """A JSON object with text keys, ordered by bucket."""
    return {str(bucket): sketch[bucket] for bucket in sorted(sketch)}


def from_json(value: Mapping[str, int] | None) -> Sketch:
    """Parse a JSON object; None is the empty sketch. Raises ValueError for an invalid key."""
    return {int(bucket): count for bucket, count in (value or {}).items()}


Row = dict[str, Any]
Key = tuple[Any, ...]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "minutes": ("endpoint", "message_type", "at"),
    "groups": ("group_id", "classifier", "title", "at"),
    "edges": ("sender", "receiver", "message_type", "at"),
    "endpoints": ("endpoint", "machine", "host_id", "host", "day"),
    "queues": ("queue", "day"),
    "usage": ("endpoint", "day"),
}
"""The key columns of each table. `notable` does not add up: see `top_rows`."""


def add_seconds(one: float, other: float) -> float:
    """Add two sums of seconds in whole microseconds; exact up to 70 years."""
    return (round(one * 1e6) + round(other * 1e6)) / 1e6


def _adding(column: str) -> Callable[[Any, Any], Any]:
    if column.endswith("_sketch"):
        return merged
    if column.endswith("_sum"):
        return add_seconds
    if column == "first_seen":
        return min
    if column == "last_seen":
        return max
    return lambda one, other: one + other


def add_up_rows(rows: Iterable[Mapping[str, Any]], keys: tuple[str, ...]) -> list[Row]:
    """New rows, one per key, in order of first appearance. A column that only one row of a key has is taken as it is."""
    found: dict[Key, Row] = {}
    for more in rows:
        key = tuple(more[name] for name in keys)
        row = found.setdefault(key, {})
        for name, value in more.items():
            if name not in row:
                row[name] = value
            elif name not in keys and name != "day":
                row[name] = _adding(name)(row[name], value)
    return list(found.values())


def start_of(at: datetime, seconds: int) -> datetime:
    """Round an aware datetime down to a multiple of `seconds`, in UTC."""
    length = timedelta(seconds=seconds)
    return EPOCH + (at - EPOCH) // length * length


def top_rows(rows: Iterable[Row], count: int) -> list[Row]:
    """The `count` rows with the greatest value, ranked from 1; ties go to the greater message id."""
    ordered = sorted(rows, key=lambda row: (row["value"], row["message_id"]), reverse=True)[:count]
    return [{**row, "rank": rank} for rank, row in enumerate(ordered, 1)]
