"""Crontab lines: which are valid, and when they tick, including days when the clocks change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.conf.crontab import cron_fault, cron_times
from tests.support.fuzzing import fuzzed

MINUTE = timedelta(minutes=1)
BERLIN = ZoneInfo("Europe/Berlin")
NEW_YORK = ZoneInfo("America/New_York")
# Clocks change at midnight: that day has no 0:00.
SAO_PAULO = ZoneInfo("America/Sao_Paulo")
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")
# Clocks change at midnight here too, in both directions.
CAIRO = ZoneInfo("Africa/Cairo")
# The islands crossed the date line and skipped 30 December 2011.
APIA = ZoneInfo("Pacific/Apia")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


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
def test_valid_lines_are_accepted(line: str) -> None:
    assert cron_fault(line) is None


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("", "the five fields minute, hour, day of month, month and day of week, found 0"),
        ("@daily", "the five fields minute, hour, day of month, month and day of week, found 1"),
        ("0 0 0 * * *", "the five fields minute, hour, day of month, month and day of week, found 6"),
        ("60 * * * *", "0 to 59 for the minute, not '60'"),
        ("*/0 * * * *", "0 to 59 for the minute, not '*/0'"),
        ("-1 * * * *", "0 to 59 for the minute, not '-1'"),
        ("1,,2 * * * *", "0 to 59 for the minute, not '1,,2'"),
        ("²  * * * *", "0 to 59 for the minute, not '²'"),
        ("*-5 * * * *", "0 to 59 for the minute, not '*-5'"),
        ("* 24 * * *", "0 to 23 for the hour, not '24'"),
        ("* 9-5 * * *", "0 to 23 for the hour, not '9-5'"),
        ("* * 0 * *", "1 to 31 for the day of month, not '0'"),
        ("* * L * *", "1 to 31 for the day of month, not 'L'"),
        ("* * * 13 *", "1 to 12 or jan to dec for the month, not '13'"),
        ("* * * mon *", "1 to 12 or jan to dec for the month, not 'mon'"),
        ("* * * * 8", "0 to 7 or sun to sat for the day of week, not '8'"),
        ("* * * * funday", "0 to 7 or sun to sat for the day of week, not 'funday'"),
        ("0 0 30 2 *", "a day that the month has; this one never comes"),
        ("0 0 31 4,6,9,11 *", "a day that the month has; this one never comes"),
        ("0 0 30 2 */7", "a day that the month has; this one never comes"),
        (f"{'9' * 5000} * * * *", f"0 to 59 for the minute, not '{'9' * 79}"),
        # cronsim accepts these, crontab does not
        ("* * LW * *", "1 to 31 for the day of month, not 'LW'"),
        ("* * * * 5L", "0 to 7 or sun to sat for the day of week, not '5L'"),
        ("* * * * mon#1", "0 to 7 or sun to sat for the day of week, not 'mon#1'"),
    ],
)
def test_invalid_lines_are_refused(line: str, fault: str) -> None:
    assert cron_fault(line) == fault


def ticks(line: str, start: str, end: str, zone: ZoneInfo) -> list[str]:
    """All ticks from one local time (inclusive) to another (exclusive), as local times with their offset in hours."""
    begin = datetime.fromisoformat(start).replace(tzinfo=zone)
    last = datetime.fromisoformat(end).replace(tzinfo=zone)
    return [f"{tick.astimezone(zone):%H:%M%z}"[:-2] for tick in all_ticks(line, begin, last, zone)]


def all_ticks(line: str, begin: datetime, end: datetime, zone: ZoneInfo) -> list[datetime]:
    """All ticks from one moment (inclusive) to another (exclusive), each computed from the one before."""
    times, found = cron_times(line), []
    tick = times.next_after(begin - MINUTE, zone)
    while tick is not None and tick < end:
        found.append(tick)
        tick = times.next_after(tick, zone)
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
    # both days are restricted: one of them must match
    ("0 0 13 * 5", "2026-11-21T10:00", "2026-11-27T00:00"),
    ("0 0 24 * 5", "2026-11-21T10:00", "2026-11-24T00:00"),
    # a field that begins with a star restricts nothing for this rule
    ("0 0 */2 * 1", "2026-11-21T10:00", "2026-11-23T00:00"),
    ("0 0 */2 * 2", "2026-11-21T10:00", "2026-12-01T00:00"),
    # Friday the 13th: the next one is in February
    ("0 0 13-13/1 2 *", "2026-11-21T10:00", "2027-02-13T00:00"),
    # a range of one value has an end, even with a step, unlike in cronsim
    ("0 0 * * mon-01/2", "2026-11-21T10:00", "2026-11-23T00:00"),
    ("0 0 * * mon-01/2", "2026-11-23T00:00", "2026-11-30T00:00"),
    ("0,30 9-17/4 * jan-mar mon", "2026-11-21T10:00", "2027-01-04T09:00"),
]


@pytest.mark.parametrize(("line", "after", "following"), ORDINARY)
def test_next_and_latest_ticks_are_computed(line: str, after: str, following: str) -> None:
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
    # This one is valid: only the star of the weekday restricts the days.
    assert cron_times("0 0 29 2 */7").next_after(utc("2026-01-01T00:00"), UTC) == utc("2032-02-29T00:00")
    with pytest.raises(ValueError, match="this one never comes"):
        cron_times("0 0 30 2 *")


SPRING = ("2026-03-29T00:00", "2026-03-29T06:00")  # clocks go from 2:00 to 3:00
AUTUMN = ("2026-10-25T00:00", "2026-10-25T06:00")  # clocks go from 3:00 to 2:00


@pytest.mark.parametrize(
    ("line", "spring", "autumn"),
    [
        # fixed: once per day, regardless of clock changes
        ("30 2 * * *", ["03:00+02"], ["02:30+02"]),
        ("0 2 * * *", ["03:00+02"], ["02:00+02"]),
        ("0,20,40 2 * * *", ["03:00+02"], ["02:00+02", "02:20+02", "02:40+02"]),
        ("30 1,2,3 * * *", ["01:30+01", "03:00+02", "03:30+02"], ["01:30+02", "02:30+02", "03:30+01"]),
        ("0 3 * * *", ["03:00+02"], ["03:00+01"]),
        ("59 1 * * *", ["01:59+01"], ["01:59+02"]),
        # follows the wall clock: nothing in the gap, everything twice in the repeated hour
        ("30 * * * *", ["00:30+01", "01:30+01", "03:30+02", "04:30+02", "05:30+02"],
         ["00:30+02", "01:30+02", "02:30+02", "02:30+01", "03:30+01", "04:30+01", "05:30+01"]),
        ("*/30 2 * * *", [], ["02:00+02", "02:30+02", "02:00+01", "02:30+01"]),
    ],
)  # fmt: skip
def test_days_with_clock_changes_are_handled(line: str, spring: list[str], autumn: list[str]) -> None:
    assert ticks(line, *SPRING, BERLIN) == spring
    assert ticks(line, *AUTUMN, BERLIN) == autumn


def test_gap_at_midnight_skips_no_day() -> None:
    assert ticks("0 0 * * *", "2018-11-03T00:00", "2018-11-06T00:00", SAO_PAULO) == ["00:00-03", "01:00-02", "00:00-02"]
    assert cron_times("0 0 4 11 *").next_after(utc("2018-10-01T00:00"), SAO_PAULO) == utc("2018-11-04T03:00")


def test_half_hour_and_full_day_changes_are_handled() -> None:
    assert ticks("15 2 * * *", "2026-10-04T00:00", "2026-10-04T06:00", LORD_HOWE) == ["02:30+11"]
    assert cron_times("0 12 30 12 *").next_after(utc("2011-12-01T00:00"), APIA) == utc("2011-12-30T10:00")
    assert ticks("0 12 * * *", "2011-12-29T00:00", "2012-01-01T00:00", APIA) == ["12:00-10", "00:00+14", "12:00+14"]


# --- any line, on days when the clocks change, compared with the rule ----- ---------------------------------------------------


@dataclass(frozen=True)
class Field:
    """The text of a field, and the values it matches."""

    text: str
    values: frozenset[int]


def star(low: int, high: int, step: int = 1) -> Field:
    return Field("*" if step == 1 else f"*/{step}", frozenset(range(low, high + 1, step)))


def at(*values: int) -> Field:
    return Field(",".join(map(str, values)), frozenset(values))


def fields(low: int, high: int) -> st.SearchStrategy[Field]:
    """Any field with values from `low` to `high`."""
    number = st.integers(low, high)
    step = st.integers(1, 30)
    pair = st.tuples(number, number).map(sorted)
    stars = step.map(lambda by: star(low, high, by))
    single = number.map(at)
    open_ended = st.tuples(number, step).map(lambda of: Field(f"{of[0]}/{of[1]}", frozenset(range(of[0], high + 1, of[1]))))
    span = pair.map(lambda of: Field(f"{of[0]}-{of[1]}", frozenset(range(of[0], of[1] + 1))))
    spans = st.tuples(pair, step).map(
        lambda of: Field(f"{of[0][0]}-{of[0][1]}/{of[1]}", frozenset(range(of[0][0], of[0][1] + 1, of[1])))
    )
    several = st.lists(st.one_of(single, span, spans, stars), min_size=2, max_size=3).map(
        lambda parts: Field(",".join(part.text for part in parts), frozenset().union(*(part.values for part in parts)))
    )
    return st.one_of(stars, single, open_ended, span, spans, several)


@dataclass(frozen=True)
class Line:
    """A crontab line, and the rule by which it ticks."""

    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def text(self) -> str:
        return " ".join(field.text for field in (self.minute, self.hour, self.day, self.month, self.weekday))

    def fits(self, wall: datetime) -> bool:
        days = (wall.day in self.day.values, bool({wall.isoweekday(), wall.isoweekday() % 7} & self.weekday.values))
        fits_day = all(days) if "*" in (self.day.text[0], self.weekday.text[0]) else any(days)
        return fits_day and wall.minute in self.minute.values and wall.hour in self.hour.values and wall.month in self.month.values

    def ticks(self, begin: datetime, end: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        """Compute the ticks by reading the wall clock minute by minute."""
        is_fixed = "*" not in (self.minute.text[0], self.hour.text[0])
        moment, shown = begin, wall_clock(begin - MINUTE, zone)
        while moment < end:
            now = wall_clock(moment, zone)
            if not is_fixed:
                fits = self.fits(now)
            else:
                # minutes that the clock shows for the first time, including those that it skips
                fits = False
                while shown < now:
                    shown += MINUTE
                    fits = fits or self.fits(shown)
            if fits:
                yield moment
            moment += MINUTE


def wall_clock(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS = star(0, 59), star(0, 23), star(1, 31), star(1, 12), star(0, 7)
KNOWN = [
    Line(at(30), at(2), DAYS, MONTHS, WEEKDAYS),
    Line(at(15), HOURS, DAYS, MONTHS, WEEKDAYS),
    Line(at(0), star(0, 23, 3), DAYS, MONTHS, WEEKDAYS),
    Line(at(0), at(0), DAYS, MONTHS, WEEKDAYS),
    Line(at(59), at(23), at(28, 29, 30, 31), MONTHS, at(0)),
    # cronsim ticks in the gap at midnight
    Line(star(0, 59, 30), at(0), at(4, 24), at(4, 11), WEEKDAYS),
]
# Mostly every day: otherwise few lines would tick on the three days.
LINES = st.builds(
    Line,
    st.just(MINUTES) | fields(0, 59),
    st.just(HOURS) | fields(0, 23),
    *(st.just(each) | st.just(each) | fields(low, high) for each, low, high in ((DAYS, 1, 31), (MONTHS, 1, 12), (WEEKDAYS, 0, 7))),
)
CHANGES = [
    (BERLIN, "2026-03-28"),
    (BERLIN, "2026-10-24"),
    (NEW_YORK, "2026-03-07"),
    (NEW_YORK, "2026-10-31"),
    (SAO_PAULO, "2018-02-17"),
    (SAO_PAULO, "2018-11-03"),
    (CAIRO, "2026-04-23"),
    (CAIRO, "2026-10-29"),
    (LORD_HOWE, "2026-04-03"),
    (LORD_HOWE, "2026-10-02"),
    (APIA, "2011-12-28"),
]


@fuzzed(60)
@given(line=LINES, change=st.sampled_from(CHANGES), until=st.integers(0, 3 * 1440))
def test_any_line_ticks_by_the_rule(line: Line, change: tuple[ZoneInfo, str], until: int) -> None:
    zone, begin = change[0], utc(change[1])
    end = begin + timedelta(days=3)
    if cron_fault(line.text) is not None:
        assert not line.weekday.text[0].isdigit() or not line.day.text[0].isdigit()
        assert min(line.day.values) > 29
        return

    found = all_ticks(line.text, begin, end, zone)

    assert found == list(line.ticks(begin, end, zone))
    assert all(earlier < later for earlier, later in pairwise(found))
    last = begin + until * MINUTE
    latest = cron_times(line.text).latest(begin - MINUTE, last, zone)
    assert latest == max((tick for tick in found if tick <= last), default=None)


@pytest.mark.parametrize(("zone", "begin"), CHANGES, ids=str)
@pytest.mark.parametrize("line", KNOWN, ids=lambda line: line.text)
def test_next_tick_is_always_valid_and_none_is_skipped(line: Line, zone: ZoneInfo, begin: str) -> None:
    start, end = utc(begin), utc(begin) + timedelta(days=4)

    assert all_ticks(line.text, start, end, zone) == list(line.ticks(start, end, zone))
