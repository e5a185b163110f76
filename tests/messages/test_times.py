"""Wire timestamps and TimeSpan texts, compared with every recorded one."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sqlqueue_app.messages import format_time, parse_time
from sqlqueue_app.messages.errors import WireFormatError
from sqlqueue_app.messages.times import format_iso_duration, format_timespan, parse_iso_duration, parse_timespan
from tests.support.fuzzing import fuzzed
from tests.support.golden import rows

quick = fuzzed(200)


def test_every_recorded_instant() -> None:
    recorded = [row for row in rows("times") if "instant" in row]
    assert len(recorded) == 60
    for row in recorded:
        instant = datetime.fromisoformat(row["instant"])  # 100 ns are cut, as on the wire
        assert format_time(instant) == row["wire"]
        assert parse_time(row["wire"]) == instant


@pytest.mark.parametrize("row", [row for row in rows("times") if "text" in row], ids=lambda row: ascii(row["text"]))
def test_every_recorded_text(row: dict[str, Any]) -> None:
    if row["read"].startswith("error"):
        with pytest.raises(ValueError, match=re.escape(repr(row["text"]))):
            parse_time(row["text"])
    else:
        read = parse_time(row["text"])
        assert read == datetime.fromisoformat(row["read"])
        assert read.tzinfo is UTC


def test_other_zones_become_utc() -> None:
    zone = timezone(timedelta(hours=5, minutes=45))
    assert format_time(datetime(2026, 1, 1, 3, 0, tzinfo=zone)) == "2025-12-31 21:15:00:000000 Z"


def test_naive_times_are_refused() -> None:
    with pytest.raises(WireFormatError, match="has no time zone; expected an aware datetime"):
        format_time(datetime(2026, 1, 1))  # noqa: DTZ001


def test_time_before_the_first_year_is_refused() -> None:
    with pytest.raises(WireFormatError, match="is outside the years 1 to 9999 in UTC"):
        format_time(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))))


@quick
@given(st.datetimes(timezones=st.just(UTC)))
def test_time_is_read_as_it_was_written(instant: datetime) -> None:
    assert len(format_time(instant)) == 28
    assert parse_time(format_time(instant)) == instant


@quick
@given(st.text(alphabet="0123456789-: Z²٢", min_size=26, max_size=29))
def test_any_text_is_a_time_or_a_wire_format_error(text: str) -> None:
    try:
        instant = parse_time(text)
    except WireFormatError:
        return
    assert instant.utcoffset() == timedelta(0)


@pytest.mark.parametrize("row", rows("timespans"), ids=lambda row: row["text"])
def test_every_recorded_duration(row: dict[str, Any]) -> None:
    ticks, text = row["ticks"], row["text"]
    duration = parse_timespan(text)
    assert duration == timedelta(microseconds=abs(ticks) // 10) * (1 if ticks >= 0 else -1)
    assert parse_iso_duration(row["iso"]) == duration
    if ticks % 10 == 0:
        assert format_timespan(duration) == text
        assert format_iso_duration(duration) == row["iso"]


@given(st.timedeltas(timedelta(days=-10_000_000), timedelta(days=10_000_000)))
def test_xml_duration_is_read_as_it_was_written(duration: timedelta) -> None:
    assert parse_iso_duration(format_iso_duration(duration)) == duration


def test_duration_beyond_net_has_no_xml_form() -> None:
    with pytest.raises(WireFormatError, match=r"longer than \.NET can hold"):
        format_iso_duration(timedelta.max)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        (" P1Y2M3D ", timedelta(days=365 + 60 + 3)),
        ("PT90M", timedelta(hours=1, minutes=30)),
        ("-P1DT0.5S", timedelta(days=-1, seconds=-0.5)),
        ("PT1.12345678S", timedelta(seconds=1, microseconds=123456)),
    ],
)
def test_other_xml_durations_are_read(text: str, duration: timedelta) -> None:
    assert parse_iso_duration(text) == duration


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1D", "P1H", "PT1D", "P-1D", "PT1S ago", "P99999999D", "P999999Y"])
def test_invalid_xml_duration_is_refused(text: str) -> None:
    with pytest.raises(WireFormatError, match="the duration"):
        parse_iso_duration(text)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("1:02", timedelta(hours=1, minutes=2)),
        (" 1:02:03.5 ", timedelta(hours=1, minutes=2, seconds=3.5)),
        ("-1.00:00:00", timedelta(days=-1)),
        ("-00:00:00.0000019", timedelta(microseconds=-1)),
    ],
)
def test_shorter_forms_are_read(text: str, duration: timedelta) -> None:
    assert parse_timespan(text) == duration


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "P1DT2H", "24:00:00", "00:60:00", "00:00:60", "1,00:00:00", "00:00:00.12345678", "٠٠:٠٠:٠٠"),
        *("10675199.02:48:05.4775810", "99999999.00:00:00", "999999999.00:00:00", "--00:00:01"),
    ],
)
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(WireFormatError, match=re.escape(repr(text))):
        parse_timespan(text)


def test_durations_beyond_net_are_refused() -> None:
    with pytest.raises(WireFormatError, match=r"longer than \.NET can hold"):
        format_timespan(timedelta.max)


@quick
@given(st.timedeltas(min_value=timedelta(days=-10675199), max_value=timedelta(days=10675199)))
def test_duration_is_read_as_it_was_written(duration: timedelta) -> None:
    assert parse_timespan(format_timespan(duration)) == duration
