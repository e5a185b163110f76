"""Sketches add up in any order, and their quantiles are within 2.5 % of the durations themselves."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.lake import sketches
from sqlqueue_app.lake.sketches import BELOW, LOWEST, bucket_of, from_json, merged, quantile, sketch_of, to_json

durations = st.floats(min_value=1e-6, max_value=1e9)
any_durations = st.floats(min_value=-1e9, max_value=1e9)


@given(st.lists(durations, min_size=1, max_size=200), st.floats(min_value=0, max_value=1))
def test_quantile_is_within_two_and_a_half_percent(given_durations: list[float], fraction: float) -> None:
    ordered = sorted(given_durations)
    exact = ordered[max(math.ceil(fraction * len(ordered)), 1) - 1]

    found = quantile(sketch_of(given_durations), fraction)

    assert found is not None
    assert abs(found - exact) <= 0.025 * exact


@given(st.lists(st.lists(any_durations, max_size=20), max_size=6))
def test_sketches_add_up(parts: list[list[float]]) -> None:
    whole = sketch_of(duration for part in parts for duration in part)

    assert merged(*map(sketch_of, parts)) == whole
    assert merged(*map(sketch_of, reversed(parts))) == whole


@given(st.lists(any_durations, max_size=50))
def test_sketch_survives_json(given_durations: list[float]) -> None:
    sketch = sketch_of(given_durations)

    assert from_json(json.loads(json.dumps(to_json(sketch)))) == sketch


@pytest.mark.parametrize("power", range(4))
def test_boundary_duration_is_in_the_lower_bucket(power: int) -> None:
    border = float(Fraction(105, 100) ** power)

    assert bucket_of(border) == power
    assert bucket_of(border + 1e-6) == power + 1


def test_zero_and_negative_durations_share_the_lowest_bucket() -> None:
    sketch = sketch_of([0.0, -0.0, -5.0, 1e-6, 5e-324])

    assert sketch == {BELOW: 3, LOWEST: 2}
    assert quantile(sketch, 0.5) == 0.0


def test_empty_sketch_has_no_quantile() -> None:
    assert quantile({}, 0.5) is None
    assert from_json(None) == from_json({}) == {}


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan])
def test_non_finite_duration_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        bucket_of(seconds)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
def test_invalid_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="not between 0 and 1"):
        quantile({0: 1}, fraction)


def test_constants_match_their_documentation() -> None:
    assert math.log(sketches.STEP) == sketches.LOG_OF_STEP
    assert bucket_of(1e-6) == LOWEST
    assert f"one of {bucket_of(365 * 86_400) - LOWEST + 1} buckets" in (sketches.__doc__ or "").replace("\n", " ")
