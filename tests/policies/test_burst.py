"""Announcements that form a burst, so that receivers poll instead."""

from __future__ import annotations

import pytest

from sqlqueue_app.policies.polling import BURST_ANNOUNCEMENTS, BURST_OTHER_SESSION_SECONDS, BURST_SECONDS, BurstDetector


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
