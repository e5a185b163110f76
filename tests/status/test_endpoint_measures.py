"""Measures of endpoints over a period: means per message, rates per time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sqlqueue_app.models import EndpointSample
from sqlqueue_app.status.endpoints import (
    Measured,
    measures_by_type_and_instance,
    measures_over_time,
    recent_measures,
    resolution_of,
)
from tests.support.databases import QueueDatabase

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def sample(database: QueueDatabase, at: datetime, **values: Any) -> None:
    known = {"endpoint": "Sales", "instance": "one", "message_type": "A", "seconds": 10}
    EndpointSample.objects.using(database.alias).create(**{**known, "taken_at": at, **values})


def test_last_minute_ends_with_the_last_complete_sample(queue_database: QueueDatabase) -> None:
    sample(queue_database, NOON - 70 * SECOND, handled=1000)
    sample(queue_database, NOON - 60 * SECOND, handled=1)
    sample(queue_database, NOON - 10 * SECOND, handled=2, instance="two")
    sample(queue_database, NOON - 10 * SECOND, handled=4, endpoint="Billing")
    sample(queue_database, NOON, handled=2000)
    found = recent_measures(queue_database.alias, NOON + 9 * SECOND)
    assert {name: each.handled for name, each in found.items()} == {"Sales": 3, "Billing": 4}
    assert found["Sales"].throughput == 3 / 60


def test_means_are_weighted_by_message(queue_database: QueueDatabase) -> None:
    common = {"critical_measured": 1, "failures": 1}
    sample(queue_database, NOON - 30 * SECOND, handled=1, processing_seconds=10, critical_seconds=7, critical_max=7, **common)
    sample(queue_database, NOON - 20 * SECOND, handled=9, processing_seconds=0, critical_seconds=-1, critical_max=-1, **common)
    sample(queue_database, NOON - 20 * SECOND, handled=2, instance="two", message_type="B", processing_max=3)
    by_type, by_instance = measures_by_type_and_instance(queue_database.alias, "Sales", 5 * MINUTE, NOON, {})
    assert list(by_type) == ["A", "B"]
    assert (by_type["A"].processing_mean, by_type["A"].critical_mean, by_type["A"].critical_max) == (1.0, 3.0, 7.0)
    assert (by_type["B"].critical_mean, by_type["B"].critical_max, by_type["B"].processing_max) == (None, None, 3.0)
    assert {name: (each.handled, each.failures) for name, each in by_instance.items()} == {"one": (10, 2), "two": (2, 0)}
    assert Measured(length=60).processing_mean is None


def test_measures_are_summed_by_type_and_instance(queue_database: QueueDatabase) -> None:
    for message_type in ("A", "B"):
        sample(queue_database, NOON - 20 * SECOND, handled=3, message_type=message_type)
        sample(queue_database, NOON - 20 * SECOND, handled=1, message_type=message_type, instance="two")
    by_type, by_instance = measures_by_type_and_instance(queue_database.alias, "Sales", MINUTE, NOON, {})
    assert [each.handled for each in by_type.values()] == [4, 4]
    assert [each.handled for each in by_instance.values()] == [6, 2]


def test_young_process_is_measured_over_its_lifetime(queue_database: QueueDatabase) -> None:
    for name in ("young", "again", "gone", "old"):
        sample(queue_database, NOON - 20 * SECOND, handled=6, instance=name)
    sample(queue_database, NOON - 3 * MINUTE, handled=6, instance="again")
    started = {"young": NOON - 2 * MINUTE, "again": NOON - MINUTE, "idle": NOON - 4 * MINUTE}
    by_type, by_instance = measures_by_type_and_instance(queue_database.alias, "Sales", 5 * MINUTE, NOON, started)
    lengths = {name: each.length for name, each in by_instance.items()}
    assert lengths == {"young": 120.0, "again": 180.0, "gone": 20.0, "old": 20.0}
    assert by_instance["young"].throughput == 6 / 120
    assert [each.length for each in by_type.values()] == [240.0]
    long_ago = {**started, "old": NOON - HOUR}
    by_type, by_instance = measures_by_type_and_instance(queue_database.alias, "Sales", 5 * MINUTE, NOON, long_ago)
    assert (by_instance["old"].length, by_type["A"].length) == (300.0, 300.0)


def test_empty_intervals_are_included_and_the_current_one_is_not(queue_database: QueueDatabase) -> None:
    sample(queue_database, NOON - 40 * SECOND, handled=5)
    sample(queue_database, NOON - 40 * SECOND, handled=5, instance="two")
    sample(queue_database, NOON, handled=7)
    found = measures_over_time(queue_database.alias, "Sales", MINUTE, NOON + 5 * SECOND)
    assert [(at, each.handled) for at, each in found] == [
        (NOON - 50 * SECOND, 0),
        (NOON - 40 * SECOND, 10),
        *[(NOON - ago * SECOND, 0) for ago in (30, 20, 10)],
    ]
    assert found[1][1].throughput == 1.0


@pytest.mark.parametrize(
    ("period", "length", "late"),
    [(6 * HOUR, MINUTE, 70 * SECOND), (7 * DAY, 10 * MINUTE, 2 * MINUTE), (30 * DAY, HOUR, 11 * MINUTE)],
)
def test_newest_interval_is_one_that_is_rolled_up(
    queue_database: QueueDatabase, period: timedelta, length: timedelta, late: timedelta
) -> None:
    """Roll-ups wait for the next finer samples: those of an hour for ten minutes."""
    before, after = (measures_over_time(queue_database.alias, "Sales", period, NOON + each) for each in (late - SECOND, late))
    assert (before[-1][0], after[-1][0]) == (NOON - 2 * length, NOON - length)


PERIODS = [(5 * MINUTE, 10), (HOUR, 10), (6 * HOUR, 60), (DAY, 60), (7 * DAY, 600), (30 * DAY, 3600)]


@pytest.mark.parametrize(("period", "seconds"), PERIODS)
def test_chart_has_a_bounded_number_of_points(period: timedelta, seconds: int) -> None:
    assert resolution_of(period).seconds == seconds
    assert period / timedelta(seconds=seconds) <= 1500
