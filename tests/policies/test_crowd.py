"""Which announcements make a crowd, so that receivers poll instead of having senders announce."""

from __future__ import annotations

import pytest

from sqlqueue_app.policies.polling import CROWD_ANNOUNCEMENTS, CROWD_SECONDS, Crowd


@pytest.mark.parametrize(
    ("pause", "expected"),
    [
        (0.0, [False] * (CROWD_ANNOUNCEMENTS - 1) + [True] * 3),
        (CROWD_SECONDS / 2, [False] * (CROWD_ANNOUNCEMENTS - 1) + [True] * 3),
        (CROWD_SECONDS * 2, [False] * (CROWD_ANNOUNCEMENTS + 2)),
    ],
)
def test_only_announcements_that_follow_each_other_closely_are_a_crowd(pause: float, expected: list[bool]) -> None:
    crowd = Crowd()
    assert [crowd.announced(100 + number * pause) for number in range(CROWD_ANNOUNCEMENTS + 2)] == expected


def test_a_pause_begins_anew() -> None:
    crowd = Crowd()
    for now in (0.0, 1.0):
        assert not any(crowd.announced(now) for _ in range(CROWD_ANNOUNCEMENTS - 1))
    assert crowd.announced(1.0)
