"""When crontab lines tick: ordinary days, and the days on which clocks are changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from sqlqueue_app.conf.cron_times import MINUTE
from sqlqueue_app.conf.crontab import cron_times

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
# Clocks are changed at midnight: there is no 0:00 on the day.
SAO_PAULO = ZoneInfo("America/Sao_Paulo")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")
# The islands crossed the date line: there was no 30 December 2011.
APIA = ZoneInfo("Pacific/Apia")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ticks(line: str, start: str, end: str, zone: ZoneInfo) -> list[str]:
    """All ticks from one local time to before another, as local times with their offset in hours."""
    moment = datetime.fromisoformat(start).replace(tzinfo=zone).astimezone(UTC)
    last = datetime.fromisoformat(end).replace(tzinfo=zone).astimezone(UTC)
    times, found = cron_times(line), []
    while moment < last:
        if times.ticks_at(moment, zone):
            found.append(f"{moment.astimezone(zone):%H:%M%z}"[:-2])
        moment += MINUTE
    return found


ORDINARY = [
    ("0 2 * * *", "2026-11-21T02:00", "2026-11-22T02:00"),
    ("*/15 * * * *", "2026-11-21T10:07", "2026-11-21T10:15"),
    ("0 0 * * 0", "2026-11-21T10:00", "2026-11-22T00:00"),
    ("0 0 * * 7", "2026-11-21T10:00", "2026-11-22T00:00"),
    ("0 0 * * sun", "2026-11-21T10:00", "2026-11-22T00:00"),
    ("0 0 * * 1-5", "2026-11-21T10:00", "2026-11-23T00:00"),
    ("0 0 * * 5-7", "2026-11-21T10:00", "2026-11-22T00:00"),
    ("30 8 1 * *", "2026-11-21T10:00", "2026-12-01T08:30"),
    ("0 0 29 2 *", "2026-11-21T10:00", "2028-02-29T00:00"),
    ("0 0 29 2 *", "2096-03-01T00:00", "2104-02-29T00:00"),
    # both days are restricted: one of them must fit
    ("0 0 13 * 5", "2026-11-21T10:00", "2026-11-27T00:00"),
    ("0 0 24 * 5", "2026-11-21T10:00", "2026-11-24T00:00"),
    # a field that begins with a star restricts nothing for this rule
    ("0 0 */2 * 1", "2026-11-21T10:00", "2026-11-23T00:00"),
    ("0 0 */2 * 2", "2026-11-21T10:00", "2026-12-01T00:00"),
    # the thirteenth on a Friday is February next
    ("0 0 13-13/1 2 *", "2026-11-21T10:00", "2027-02-13T00:00"),
    ("0,30 9-17/4 * jan-mar mon", "2026-11-21T10:00", "2027-01-04T09:00"),
]


@pytest.mark.parametrize(("line", "after", "following"), ORDINARY)
def test_the_next_tick_and_the_latest(line: str, after: str, following: str) -> None:
    times = cron_times(line)

    found = times.next_after(utc(after), UTC)

    assert found == utc(following)
    assert times.latest(found - timedelta(days=1), found + timedelta(seconds=59), UTC) == found
    assert times.latest(found - MINUTE, found, UTC) == found
    assert times.latest(found, found, UTC) is None


def test_times_are_those_of_the_zone() -> None:
    times = cron_times("0 2 * * *")
    assert times.next_after(utc("2026-11-21T12:00"), BERLIN) == utc("2026-11-22T01:00")
    assert times.next_after(utc("2026-07-21T12:00"), BERLIN) == utc("2026-07-22T00:00")
    assert times.next_after(utc("2026-07-21T12:00"), NEW_YORK) == utc("2026-07-22T06:00")


def test_a_line_that_never_ticks_has_no_next_time() -> None:
    # Sound by itself: the days are restricted by the weekday's star only.
    assert cron_times("0 0 29 2 */7").next_after(utc("2026-01-01T00:00"), UTC) == utc("2032-02-29T00:00")
    with pytest.raises(ValueError, match="this one never comes"):
        cron_times("0 0 30 2 *")


SPRING = ("2026-03-29T00:00", "2026-03-29T06:00")  # at 2:00 it is 3:00
AUTUMN = ("2026-10-25T00:00", "2026-10-25T06:00")  # at 3:00 it is 2:00


@pytest.mark.parametrize(
    ("line", "spring", "autumn"),
    [
        # fixed: once for each day, whatever the clocks do
        ("30 2 * * *", ["03:00+02"], ["02:30+02"]),
        ("0 2 * * *", ["03:00+02"], ["02:00+02"]),
        ("0,20,40 2 * * *", ["03:00+02"], ["02:00+02", "02:20+02", "02:40+02"]),
        ("30 1,2,3 * * *", ["01:30+01", "03:00+02", "03:30+02"], ["01:30+02", "02:30+02", "03:30+01"]),
        ("0 3 * * *", ["03:00+02"], ["03:00+01"]),
        ("59 1 * * *", ["01:59+01"], ["01:59+02"]),
        # what follows the wall: nothing in the gap, everything in the hour that comes twice
        ("30 * * * *", ["00:30+01", "01:30+01", "03:30+02", "04:30+02", "05:30+02"],
         ["00:30+02", "01:30+02", "02:30+02", "02:30+01", "03:30+01", "04:30+01", "05:30+01"]),
        ("*/30 2 * * *", [], ["02:00+02", "02:30+02", "02:00+01", "02:30+01"]),
    ],
)  # fmt: skip
def test_the_days_on_which_clocks_are_changed(line: str, spring: list[str], autumn: list[str]) -> None:
    assert ticks(line, *SPRING, BERLIN) == spring
    assert ticks(line, *AUTUMN, BERLIN) == autumn


def test_a_gap_at_midnight_swallows_no_day() -> None:
    assert ticks("0 0 * * *", "2018-11-03T00:00", "2018-11-06T00:00", SAO_PAULO) == ["00:00-03", "01:00-02", "00:00-02"]
    assert cron_times("0 0 4 11 *").next_after(utc("2018-10-01T00:00"), SAO_PAULO) == utc("2018-11-04T03:00")


def test_half_an_hour_and_a_whole_day() -> None:
    assert ticks("15 2 * * *", "2026-10-04T00:00", "2026-10-04T06:00", LORD_HOWE) == ["02:30+11"]
    assert cron_times("0 12 30 12 *").next_after(utc("2011-12-01T00:00"), APIA) == utc("2011-12-30T10:00")
    assert ticks("0 12 * * *", "2011-12-29T00:00", "2012-01-01T00:00", APIA) == ["12:00-10", "00:00+14", "12:00+14"]


@pytest.mark.parametrize("line", ["30 2 * * *", "15 * * * *", "0 */3 * * *", "0 0 * * *", "59 23 28-31 * 0"])
@pytest.mark.parametrize("zone", [BERLIN, SAO_PAULO, LORD_HOWE], ids=str)
def test_the_next_tick_is_never_one_that_is_not_and_none_is_left_out(line: str, zone: ZoneInfo) -> None:
    times = cron_times(line)
    for begin in (utc("2018-11-02T00:00"), utc("2026-03-27T00:00"), utc("2026-10-02T00:00"), utc("2026-10-23T00:00")):
        end = begin + timedelta(days=4)
        walked, moment = [], begin
        while moment < end:
            walked += [moment] if times.ticks_at(moment, zone) else []
            moment += MINUTE
        jumped, following = [], times.next_after(begin - MINUTE, zone)
        while following is not None and following < end:
            jumped.append(following)
            following = times.next_after(following, zone)
        assert jumped == walked
