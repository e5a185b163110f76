"""Counters of an endpoint: numbers, times and retries of its messages, in memory and written by its worker."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError as DjangoDatabaseError

from sqlqueue_app.messages import headers as names
from sqlqueue_app.messages.times import format_time
from sqlqueue_app.models import EndpointSample
from sqlqueue_app.policies.recoverability import Discard, MoveToError, RetryLater, RetryNow
from sqlqueue_app.receiving.handlers import handles
from sqlqueue_app.receiving.measures import MAX_TYPES, OTHER_TYPES, Measures, done
from sqlqueue_app.status.samples import Measuring, read_endpoint_totals
from tests.support.bench import Bench, Calls
from tests.support.databases import QueueDatabase
from tests.support.waiting import join_all

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def headers(message_type: str = "Test.Message", **more: str) -> dict[str, str | None]:
    return {names.ENCLOSED_MESSAGE_TYPES: message_type, **more}


def handled(measures: Measures, took: float = 0.5, at: datetime = NOON, **given: str) -> None:
    measures.handled([done(headers(**given), 0.0, took)], at.timestamp() - took)


def near(seconds: float) -> Any:
    """Equal apart from rounding."""
    return pytest.approx(seconds)


def sent(at: datetime, name: str = names.TIME_SENT) -> dict[str, Any]:
    return {name: format_time(at)}


def test_times_are_summed_per_type_and_the_longest_is_kept() -> None:
    measures = Measures()
    handled(measures, 0.5, **sent(NOON - 3 * SECOND))
    handled(measures, 2.0, **sent(NOON - 90 * SECOND))
    handled(measures, 0.25, message_type="Test.Other, Assembly, Version=1.0.0.0", **sent(NOON))
    taken = measures.take()
    assert set(taken) == {"Test.Message", "Test.Other"}
    mine = taken["Test.Message"]
    assert (mine.handled, mine.processing_seconds, mine.processing_max) == (2, 2.5, 2.0)
    assert (mine.critical_measured, mine.critical_seconds, mine.critical_max) == (2, near(93), near(90))
    assert measures.take() == {}


def test_critical_time_begins_at_delivery_and_may_be_negative() -> None:
    measures = Measures()
    handled(measures, **sent(NOON - 60 * SECOND), **sent(NOON - SECOND, names.DELIVER_AT))
    assert measures.take()["Test.Message"].critical_seconds == near(1)
    handled(measures, **sent(NOON + 5 * SECOND))
    (ahead,) = measures.take().values()
    assert (ahead.critical_seconds, ahead.critical_max) == (near(-5), near(-5))


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-11-21 12:00:00:12345x Z", "2026-11-21 12:00:6", "2026-13-41 25:00:00:000000 Z"]
)
def test_unreadable_time_gives_no_critical_time(text: str) -> None:
    measures = Measures()
    handled(measures, **sent(NOON))
    given: dict[str, Any] = {names.TIME_SENT: text}
    handled(measures, **given)
    (counted,) = measures.take().values()
    assert (counted.handled, counted.critical_measured) == (2, 1)


def test_failures_and_their_outcomes_are_counted() -> None:
    measures = Measures()
    for _ in range(4):
        measures.failed(headers())
    for action in (RetryNow(), RetryLater(SECOND), MoveToError("error"), Discard("no")):
        measures.decided(headers(), action)
    (counted,) = measures.take().values()
    assert (counted.failures, counted.immediate_retries, counted.delayed_retries, counted.moved_to_error) == (4, 1, 1, 1)
    assert (counted.handled, counted.processing_seconds, counted.critical_max) == (0, 0.0, None)


def test_number_of_types_is_limited_and_names_are_storable() -> None:
    measures = Measures()
    for number in range(MAX_TYPES + 50):
        handled(measures, message_type=f"Test.Type{number}")
    taken = measures.take()
    assert len(taken) == MAX_TYPES + 1
    assert taken[OTHER_TYPES].handled == 50
    handled(measures, message_type="Test.Type7")
    handled(measures, message_type="Test.New")
    assert set(measures.take()) == {"Test.Type7", OTHER_TYPES}
    odd = Measures()
    handled(odd, message_type="Nul\0." + "x" * 5000)
    measures.failed({})
    (name,) = odd.take()
    assert len(name) == 255
    assert "\0" not in name


def test_concurrent_threads_lose_no_counts() -> None:
    measures = Measures()
    taken: list[int] = []
    stop = threading.Event()

    def count() -> None:
        for _ in range(500):
            handled(measures, **sent(NOON))

    def take() -> None:
        while not stop.is_set():
            taken.extend(each.handled for each in measures.take().values())

    taker = threading.Thread(target=take)
    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in (taker, *threads):
        thread.start()
    join_all(threads)
    stop.set()
    join_all([taker])
    assert sum(taken) + sum(each.handled for each in measures.take().values()) == 2000


def rows(database: QueueDatabase, **chosen: Any) -> list[EndpointSample]:
    return list(EndpointSample.objects.using(database.alias).filter(**chosen).order_by("taken_at", "message_type"))


def test_counters_are_written_once(queue_database: QueueDatabase) -> None:
    measures = Measures()
    measuring = Measuring([("Sales", "here", measures)], now=lambda: NOON + 7 * SECOND)
    assert measuring.write() == 0
    handled(measures, **sent(NOON - 2 * SECOND))
    measures.failed(headers("Test.Other"))
    assert measuring.write() == 2
    assert measuring.write() == 0
    first, second = rows(queue_database)
    assert (first.endpoint, first.instance, first.message_type, first.taken_at, first.seconds) == (
        "Sales", "here", "Test.Message", NOON, 10,
    )  # fmt: skip
    assert (first.handled, first.processing_seconds, first.critical_max) == (1, 0.5, near(2))
    assert (second.handled, second.failures, second.critical_max) == (0, 1, None)


def test_totals_grow_by_the_written_counters(queue_database: QueueDatabase) -> None:
    for instance, fails in (("here", 1), ("there", 0), ("here", 2)):
        measures = Measures()
        handled(measures, 0.5)
        for _ in range(fails):
            measures.failed(headers("Test.Other"))
        Measuring([("Sales", instance, measures)], now=lambda: NOON).write()

    totals = [(each.endpoint, each.instance, each.handled, each.failures) for each in read_endpoint_totals(queue_database.alias)]
    assert totals == [("Sales", "here", 2, 3), ("Sales", "there", 1, 0)]
    assert read_endpoint_totals(queue_database.alias)[0].processing_seconds == near(1.0)


def test_unwritable_counters_are_kept_for_the_next_time(sqlite_database: QueueDatabase, caplog: pytest.LogCaptureFixture) -> None:
    measures = Measures()
    broken = [True]

    def now() -> datetime:
        if broken[0]:
            raise DjangoDatabaseError("away")
        return NOON

    measuring = Measuring([("Sales", "here", measures)], now=now)
    handled(measures, 0.5, **sent(NOON - 4 * SECOND))
    with pytest.raises(Exception, match="away"):
        measuring.write()
    measuring.write_at_exit()
    assert "could not be written: " in caplog.text
    handled(measures, 1.5, **sent(NOON - 2 * SECOND))
    broken[0] = False
    measuring.write()
    (row,) = rows(sqlite_database)
    assert (row.handled, row.processing_seconds, row.processing_max) == (2, 2.0, 1.5)
    assert (row.critical_seconds, row.critical_max) == (near(6), near(4))


@pytest.mark.parametrize("batch_size", [1, 10])
def test_worker_counts_its_messages(bench: Bench, calls: Calls, batch_size: int) -> None:
    bench.configure(IMMEDIATE_RETRIES=1, DELAYED_RETRIES=0, INSTANCE="here", BATCH_SIZE=batch_size)

    @handles("Test.Measured")
    def measured(message: Any, context: Any) -> None:
        if message["fails"] >= calls.add(message) - message["before"]:
            raise ValueError("not yet")

    old = format_time(datetime.now(UTC) - timedelta(hours=2))
    bench.put_message("Test.Measured", {"fails": 0, "before": 0}, **{names.TIME_SENT: old})
    bench.run()
    bench.put_message("Test.Measured", {"fails": 1, "before": 1})
    bench.put_message_of(1, "Test.Nobody")
    bench.run()
    found = {
        name: [sum(getattr(row, column) for row in rows(bench.database, message_type=name)) for column in COLUMNS]
        for name in ("Test.Measured", "Test.Nobody")
    }
    assert found == {"Test.Measured": [2, 1, 1, 0, 0, 1], "Test.Nobody": [0, 1, 0, 0, 1, 0]}
    longest = max(row.critical_max or 0 for row in rows(bench.database, message_type="Test.Measured"))
    assert 7200 <= longest < 7400
    assert {(row.endpoint, row.instance) for row in rows(bench.database)} == {("Sales", "here")}


COLUMNS = ("handled", "failures", "immediate_retries", "delayed_retries", "moved_to_error", "critical_measured")


def test_delayed_retries_and_mode_none_are_counted(bench: Bench) -> None:
    @handles("Test.AlwaysFails")
    def fails(message: Any, context: Any) -> None:
        raise ValueError("never")

    @handles("Test.Fine")
    def fine(message: Any, context: Any) -> None:
        return

    bench.configure(DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=3600, INSTANCE="here")
    bench.put_message("Test.AlwaysFails")
    bench.run()
    assert sums(bench.database, "Test.AlwaysFails") == (0, 1, 1, 0)
    bench.configure(TRANSACTION_MODE="none", INSTANCE="here")
    bench.put_message_of(1, "Test.AlwaysFails")
    bench.put_message_of(2, "Test.Fine")
    bench.run()
    assert sums(bench.database, "Test.AlwaysFails") == (0, 2, 1, 1)
    assert sums(bench.database, "Test.Fine") == (1, 0, 0, 0)


def sums(database: QueueDatabase, message_type: str) -> tuple[int, ...]:
    """Sum over all rows: the counters of one message may be split over two writes."""
    found = rows(database, message_type=message_type)
    return tuple(sum(getattr(row, name) for row in found) for name in ("handled", "failures", "delayed_retries", "moved_to_error"))
