"""Quantiles that add up: counts of durations in buckets whose borders grow by 5 %.

A sketch is a mapping of bucket to count. Bucket *n* has what is longer than 1.05 ** (n - 1) seconds, up to 1.05 ** n; durations of
zero and below are in `BELOW`. Two sketches are merged by adding their counts, in any order and with the same result as one sketch
of all durations. A quantile is within 2.5 % of the duration that has that rank, for durations of a microsecond up; one of zero or
below is given as 0. A duration of a microsecond to a year is in one of 638 buckets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Final

Sketch = dict[int, int]
"""Counts by bucket; what is not in it is zero."""

STEP: Final = 1.05
LOG_OF_STEP: Final = 0.04879016416943205
"""ln(1.05); a number, so that Spark and Python divide by the same."""

SLACK: Final = 1e-9
"""Lets a duration that is exactly a border be in the bucket below it, whatever the last bit of the logarithm is."""

LOWEST: Final = -283
"""The bucket of a microsecond, and of what is shorter."""

BELOW: Final = -1_000
"""The bucket of zero and of negative durations."""


def bucket_of(seconds: float) -> int:
    """The bucket of a duration. Raises ValueError for what is no finite number."""
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
    """One sketch of the durations of all; what is given stays as it is."""
    found: Sketch = {}
    for sketch in sketches:
        for bucket, count in sketch.items():
            found[bucket] = found.get(bucket, 0) + count
    return found


def quantile(sketch: Mapping[int, int], fraction: float) -> float | None:
    """The duration in seconds that `fraction` of all do not exceed, within 2.5 %; None of an empty sketch.

    It is that of the rank `ceil(fraction * count)`, the first for a fraction of 0. ValueError for a fraction outside 0 to 1.
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
    """The duration that is equally far, in proportion, from both borders of the bucket: 2.44 % at most."""
    return 0.0 if bucket == BELOW else float(2 * STEP**bucket / (1 + STEP))


def to_json(sketch: Mapping[int, int]) -> dict[str, int]:
    """As an object of JSON, whose keys are texts, in the order of the buckets."""
    return {str(bucket): sketch[bucket] for bucket in sorted(sketch)}


def from_json(value: Mapping[str, int] | None) -> Sketch:
    """Of an object of JSON; None is the empty sketch. ValueError for a key that is no bucket."""
    return {int(bucket): count for bucket, count in (value or {}).items()}


def to_text(sketch: Mapping[int, int]) -> str:
    """As the text of JSON."""
    return json.dumps(to_json(sketch), separators=(",", ":"))


def from_text(text: str | None) -> Sketch:
    """Of the text of JSON; None and the empty text are the empty sketch. ValueError for other text."""
    return from_json(json.loads(text)) if text else {}
