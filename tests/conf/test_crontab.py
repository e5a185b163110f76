"""The five fields of a crontab line."""

from __future__ import annotations

import pytest

from sqlqueue_app.conf.crontab import cron_fault


@pytest.mark.parametrize(
    "line",
    [
        "* * * * *",
        "0 2 * * *",
        "*/15 0-6,20-23 1,15 JAN,jul-sep Mon-Fri",
        "5/20 0 * * 0",
        "0 0 * * 7",
        "0 0 29 2 *",
        "0 0 31 2 5",
        "0 0 30,31 2,3 *",
        "0   0  1-31/2   *  sun",
    ],
)
def test_sound_lines(line: str) -> None:
    assert cron_fault(line) is None


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("", "expected the five fields minute, hour, day of month, month and day of week, found 0"),
        ("@daily", "expected the five fields minute, hour, day of month, month and day of week, found 1"),
        ("0 0 0 * * *", "expected the five fields minute, hour, day of month, month and day of week, found 6"),
        ("60 * * * *", "expected 0 to 59 for the minute, not '60'"),
        ("*/0 * * * *", "expected 0 to 59 for the minute, not '*/0'"),
        ("-1 * * * *", "expected 0 to 59 for the minute, not '-1'"),
        ("1,,2 * * * *", "expected 0 to 59 for the minute, not '1,,2'"),
        ("²  * * * *", "expected 0 to 59 for the minute, not '²'"),
        ("*-5 * * * *", "expected 0 to 59 for the minute, not '*-5'"),
        ("* 24 * * *", "expected 0 to 23 for the hour, not '24'"),
        ("* 9-5 * * *", "expected 0 to 23 for the hour, not '9-5'"),
        ("* * 0 * *", "expected 1 to 31 for the day of month, not '0'"),
        ("* * L * *", "expected 1 to 31 for the day of month, not 'L'"),
        ("* * * 13 *", "expected 1 to 12 or jan to dec for the month, not '13'"),
        ("* * * mon *", "expected 1 to 12 or jan to dec for the month, not 'mon'"),
        ("* * * * 8", "expected 0 to 7 or sun to sat for the day of week, not '8'"),
        ("* * * * funday", "expected 0 to 7 or sun to sat for the day of week, not 'funday'"),
        ("0 0 30 2 *", "expected a day that the month has; this one never comes"),
        ("0 0 31 4,6,9,11 *", "expected a day that the month has; this one never comes"),
    ],
)
def test_wrong_lines(line: str, fault: str) -> None:
    assert cron_fault(line) == fault
