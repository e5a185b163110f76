"""Announcements that form a burst, so that receivers poll instead."""

from __future__ import annotations

import pytest

from sqlqueue_app.policies.polling import (
    BURST_ANNOUNCEMENTS,
    BURST_OTHER_SESSION_SECONDS,
    BURST_SECONDS,
    BURST_WAIT_SECONDS,
    QUIET_SECONDS,
    BurstDetector,
    wait_in_burst,
)


@pytest.mark.parametrize(
    ("pause", "expected"),
    [
        (0.0, [False] * (BURST_ANNOUNCEMENTS - 1) + [True] * 3),
        (BURST_SECONDS / 2, [False] * (BURST_ANNOUNCEMENTS - 1) + [True] * 3),
        (BURST_SECONDS * 2, [False] * (BURST_ANNOUNCEMENTS + 2)),
    ],
)
def test_only_close_announcements_form_a_burst(pause: float, expected: list[bool]) -> None:
    burst = BurstDetector()
    assert [burst.announced(100 + number * pause, 7) for number in range(BURST_ANNOUNCEMENTS + 2)] == expected


@pytest.mark.parametrize(
    ("sessions", "pause", "expected"),
    [
        ([1, 2, 3, 1, 2, 3], BURST_OTHER_SESSION_SECONDS / 2, True),
        ([1, 2, 1, 2, 1, 2], BURST_OTHER_SESSION_SECONDS / 2, True),
        ([1, 2, 2, 1, 2, 1], BURST_OTHER_SESSION_SECONDS / 2, False),
        ([1, 2, 3, 1, 2, 3], BURST_OTHER_SESSION_SECONDS * 2, False),
    ],
)
def test_alternating_senders_form_a_burst_at_any_speed(sessions: list[int], pause: float, expected: bool) -> None:
    burst = BurstDetector()
    assert [burst.announced(100 + number * pause, session) for number, session in enumerate(sessions)][-1] is expected


def test_pause_restarts_the_count() -> None:
    burst = BurstDetector()
    for now in (0.0, 1.0):
        assert not any(burst.announced(now, 7) for _ in range(BURST_ANNOUNCEMENTS - 1))
    assert burst.announced(1.0, 7)


@pytest.mark.parametrize(
    ("found", "seconds", "expected"),
    [
        (0, 0.005, BURST_WAIT_SECONDS),
        (1, 0.006, BURST_WAIT_SECONDS),  # requests one after the other
        (4, 0.006, QUIET_SECONDS),
        (4, 0.05, BURST_WAIT_SECONDS),
        (100, 0.05, QUIET_SECONDS),
    ],
)
def test_waits_are_short_in_a_slow_burst(found: int, seconds: float, expected: float) -> None:
    assert wait_in_burst(found, seconds) == expected
