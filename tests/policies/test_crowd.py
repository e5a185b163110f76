"""Which announcements make a crowd, so that receivers poll instead of having senders announce."""

from __future__ import annotations

import pytest

from sqlqueue_app.policies.polling import CROWD_ANNOUNCEMENTS, CROWD_OTHER_SESSION_SECONDS, CROWD_SECONDS, Crowd


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
    assert [crowd.announced(100 + number * pause, 7) for number in range(CROWD_ANNOUNCEMENTS + 2)] == expected


@pytest.mark.parametrize(
    ("sessions", "pause", "expected"),
    [
        ([1, 2, 3, 1, 2, 3], CROWD_OTHER_SESSION_SECONDS / 2, True),
        ([1, 2, 1, 2, 1, 2], CROWD_OTHER_SESSION_SECONDS / 2, True),
        ([1, 2, 2, 1, 2, 1], CROWD_OTHER_SESSION_SECONDS / 2, False),
        ([1, 2, 3, 1, 2, 3], CROWD_OTHER_SESSION_SECONDS * 2, False),
    ],
)
def test_senders_that_commit_in_turn_are_a_crowd_however_slow_their_commits(
    sessions: list[int], pause: float, expected: bool
) -> None:
    crowd = Crowd()
    assert [crowd.announced(100 + number * pause, session) for number, session in enumerate(sessions)][-1] is expected


def test_a_pause_begins_anew() -> None:
    crowd = Crowd()
    for now in (0.0, 1.0):
        assert not any(crowd.announced(now, 7) for _ in range(CROWD_ANNOUNCEMENTS - 1))
    assert crowd.announced(1.0, 7)
