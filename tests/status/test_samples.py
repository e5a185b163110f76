"""Queue samples: taken once for the whole cluster, rolled up, deleted in time, and correct."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import Claim, EndpointSample, Instance, QueueSample
from sqlqueue_app.receiving.instances import MAX_CLAIM_AHEAD, InstanceLease, claim, lease_instance
from sqlqueue_app.status import retention, samples as sampling
from sqlqueue_app.status.queues import address_book_of
from sqlqueue_app.status.samples import RESOLUTIONS, Sampling, read_samples, resolution_for, roll_up_samples, write_samples
from sqlqueue_app.tables.delayed import DelayedTable
from sqlqueue_app.tables.installation import delayed_address
from sqlqueue_app.tables.queue import EXACT_COUNT_LIMIT
from tests.support.databases import QueueDatabase
from tests.support.filling import install, message, table
from tests.support.waiting import run_in_threads

START = datetime(2026, 11, 21, 12, 0, 3, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ENDPOINTS: dict[str, Any] = {
    "Sales": {"CALLBACKS": True, "SATELLITES": {"Sales.Priority": {}}, "INSTANCE": "here", "CALLBACK_QUEUES": 2}
}
QUEUES = {"Sales", "Sales.Priority", "error", "Sales.Delayed"}


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def samples(database: QueueDatabase, **chosen: Any) -> list[QueueSample]:
    return list(QueueSample.objects.using(database.alias).filter(**chosen).order_by("taken_at", "queue"))


def lease(database: QueueDatabase) -> InstanceLease:
    return lease_instance(get_settings().endpoint("Sales"), alias=database.alias, concurrency=2, exists=lambda name: True, make=str)


def test_sample_counts_each_queue(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    lease(queue_database)
    age = datetime.now(UTC) - START + timedelta(minutes=5)
    table(queue_database, "Sales").send([message(age=age), message(), message(lifetime_ms=-60_000)])
    book = address_book_of(get_settings())
    delayed = DelayedTable(queue_database.alias, delayed_address(book, "Sales"))
    for due in (datetime.now(UTC) - HOUR, datetime.now(UTC) + HOUR, datetime.now(UTC) + HOUR):
        delayed.add("{}", b"", due)

    assert Sampling(get_settings(), now=Clock()).sample() == 5

    found = {sample.queue: sample for sample in samples(queue_database)}
    assert found.keys() == QUEUES | {"Sales.here"}
    assert {(each.taken_at, each.seconds, each.samples, each.exact) for each in found.values()} == {
        (START - 3 * SECOND, 10, 1, True)
    }
    sales = found["Sales"]
    assert (sales.waiting, sales.most_waiting, sales.expired, sales.overdue) == (3, 3, 1, 0)
    assert sales.head_age_seconds == pytest.approx(300, abs=60)
    assert (found["Sales.Delayed"].waiting, found["Sales.Delayed"].overdue) == (3, 1)
    assert (found["error"].waiting, found["error"].head_age_seconds) == (0, None)


def test_callback_queues_of_dead_instances_are_not_counted(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    lease(queue_database)
    Instance.objects.using(queue_database.alias).update(heartbeat_at="2020-01-01T00:00:00Z")
    Sampling(get_settings(), now=Clock()).sample()
    assert {sample.queue for sample in samples(queue_database)} == QUEUES


def test_only_one_of_many_workers_counts(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    clock, rounds, workers = Clock(), 4, 5
    written: list[int] = []
    # The last thread to arrive advances the clock; then all sample at once.
    together = threading.Barrier(workers, action=lambda: setattr(clock, "now", clock.now + 10 * SECOND))

    def work() -> None:
        mine = Sampling(get_settings(), now=clock)
        try:
            for _ in range(rounds):
                together.wait(60)
                written.extend(mine.sample() for _ in range(2))
        finally:
            connections.close_all()

    run_in_threads(work, workers)
    assert Counter(written) == {0: 2 * rounds * workers - rounds, len(QUEUES): rounds}
    per_time = Counter(sample.taken_at for sample in samples(queue_database))
    assert per_time == {START + (10 * n - 3) * SECOND: len(QUEUES) for n in range(1, rounds + 1)}


def test_early_and_late_runs_miss_no_interval(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    clock = Clock()
    worker = Sampling(get_settings(), now=clock)
    for passed in (0, 5.2, 9.9, 15.1, 20.3, 25.0, 30.4):
        clock.now = START + passed * SECOND
        worker.sample()
    assert len({sample.taken_at for sample in samples(queue_database)}) == 4
    assert RESOLUTIONS[0].seconds == sampling.SAMPLE_SECONDS * 2


def test_job_queries_the_database_once_in_ten_seconds(postgresql_database: QueueDatabase) -> None:
    install(postgresql_database, ENDPOINTS=ENDPOINTS)
    clock = Clock()
    began = clock.now
    worker = Sampling(get_settings(), now=clock, clock=lambda: (clock.now - began).total_seconds())
    call = worker.job().call
    queried = []
    for passed in range(0, 60, 5):
        clock.now = began + passed * SECOND
        with CaptureQueriesContext(postgresql_database.connection) as statements:
            call()
        queried.append(bool(statements.captured_queries))
    assert sum(queried) == 6
    assert len({sample.taken_at for sample in samples(postgresql_database, seconds=10)}) == 6


def test_two_projects_on_one_database_count_their_own_queues(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Billing": {"CALLBACKS": False}}, SEND_AS="Web")
    theirs = Sampling(get_settings(), now=Clock())
    install(queue_database, ENDPOINTS=ENDPOINTS, SEND_AS=None)
    ours = Sampling(get_settings(), now=Clock())
    theirs.sample()
    ours.sample()
    assert Counter(sample.queue for sample in samples(queue_database)) == {
        **dict.fromkeys(QUEUES, 1), "Billing": 1, "Billing.Delayed": 1, "Web": 1, "Web.Delayed": 1,
    }  # fmt: skip


def test_missing_queue_is_left_out(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS=ENDPOINTS)
    queue_database.configure(ENDPOINTS={**ENDPOINTS, "Missing": {"CALLBACKS": False}})
    assert Sampling(get_settings(), now=Clock()).sample() == len(QUEUES)


def test_long_queue_is_marked_as_an_estimate(queue_database: QueueDatabase) -> None:
    install(queue_database, ENDPOINTS={"Sales": {"CALLBACKS": False}})
    table(queue_database, "Sales").send([message() for _ in range(EXACT_COUNT_LIMIT + 50)])
    Sampling(get_settings(), now=Clock()).sample()
    (sales,) = samples(queue_database, queue="Sales")
    assert (sales.waiting, sales.exact) == (EXACT_COUNT_LIMIT + 50, False)


def test_late_worker_runs_two_statements_and_then_none(postgresql_database: QueueDatabase) -> None:
    database = postgresql_database
    install(database, ENDPOINTS=ENDPOINTS)
    Sampling(get_settings(), now=Clock()).sample()
    late = Sampling(get_settings(), now=Clock())
    with CaptureQueriesContext(database.connection) as first:
        assert late.sample() == 0
    with CaptureQueriesContext(database.connection) as second:
        assert late.sample() == 0
    queried = [[sql for each in captures if (sql := each["sql"]) not in ("BEGIN", "COMMIT")] for captures in (first, second)]
    assert [len(each) for each in queried] == [1, 0], "in addition to the statement that reads the clock"


# --- rolling up and deleting ---------------------------------------------------------------------------------------------------


def fill(database: QueueDatabase, seconds: int, moments: list[datetime], **values: Any) -> None:
    QueueSample.objects.using(database.alias).bulk_create(
        QueueSample(**{"queue": "Sales", "taken_at": moment, "seconds": seconds, "waiting": 0, "most_waiting": 0, **values})
        for moment in moments
    )


def every(seconds: int, begin: datetime, end: datetime) -> list[datetime]:
    count = int((end - begin).total_seconds() / seconds)
    return [begin + n * seconds * SECOND for n in range(count)]


def test_complete_minute_is_rolled_up_once(queue_database: QueueDatabase) -> None:
    noon = START - 3 * SECOND
    for n, waiting in enumerate((10, 20, 30, 40, 50, 61)):
        values = {"waiting": waiting, "most_waiting": waiting, "expired": n, "head_age_seconds": n or None, "exact": n != 3}
        fill(queue_database, 10, [noon + 10 * n * SECOND], **values)
    fill(queue_database, 10, [noon], queue="error", waiting=7, most_waiting=9)

    roll_up_samples(queue_database.alias, noon + 69 * SECOND)
    assert samples(queue_database, seconds=60) == []
    for _ in range(2):
        roll_up_samples(queue_database.alias, noon + 70 * SECOND)

    assert len(samples(queue_database, seconds=60)) == 2
    (sales,) = samples(queue_database, seconds=60, queue="Sales")
    (error,) = samples(queue_database, seconds=60, queue="error")
    assert (sales.taken_at, sales.samples, sales.waiting, sales.most_waiting) == (noon, 6, 35, 61)
    assert (sales.expired, sales.head_age_seconds, sales.exact) == (2, 5.0, False)
    assert (error.samples, error.waiting, error.most_waiting) == (1, 7, 9)


def test_means_are_weighted_by_the_number_of_samples(queue_database: QueueDatabase) -> None:
    noon = START - 3 * SECOND
    fill(queue_database, 60, [noon], waiting=100, most_waiting=120, samples=1)
    fill(queue_database, 60, every(60, noon + 60 * SECOND, noon + 600 * SECOND), waiting=10, samples=6)
    roll_up_samples(queue_database.alias, noon + 659 * SECOND)
    assert samples(queue_database, seconds=600) == []
    roll_up_samples(queue_database.alias, noon + 660 * SECOND)
    (rolled,) = samples(queue_database, seconds=600)
    assert (rolled.samples, rolled.waiting, rolled.most_waiting) == (55, round((100 + 54 * 10) / 55), 120)


def test_endpoint_samples_are_summed_by_instance_and_type(queue_database: QueueDatabase) -> None:
    noon = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
    common = {"endpoint": "Sales", "message_type": "A", "seconds": 10, "handled": 3, "processing_seconds": 1.5}
    ahead = {"critical_measured": 1, "critical_seconds": -2, "critical_max": -2}
    EndpointSample.objects.using(queue_database.alias).bulk_create(
        [
            EndpointSample(**common, **ahead, instance="one", taken_at=noon, processing_max=1),
            EndpointSample(**common, instance="one", taken_at=noon, processing_max=0.5, failures=2),
            EndpointSample(**common, instance="one", taken_at=noon + 50 * SECOND, immediate_retries=4),
            EndpointSample(**common, instance="two", taken_at=noon + 10 * SECOND),
            EndpointSample(**common, instance="two", taken_at=noon + 60 * SECOND),
        ]
    )  # fmt: skip
    roll_up_samples(queue_database.alias, noon + 75 * SECOND)
    one, two = EndpointSample.objects.using(queue_database.alias).filter(seconds=60).order_by("instance")
    assert (one.taken_at, one.handled, one.failures, one.immediate_retries) == (noon, 9, 2, 4)
    assert (one.processing_seconds, one.processing_max) == (4.5, 1.0)
    assert (one.critical_measured, one.critical_seconds, one.critical_max) == (1, -2.0, -2.0)
    assert (two.instance, two.handled, two.critical_max) == ("two", 3, None)
    roll_up_samples(queue_database.alias, noon + 2 * HOUR)
    assert not EndpointSample.objects.using(queue_database.alias).filter(seconds=10).exists()


def test_remaining_samples_are_rolled_up_after_a_pause(queue_database: QueueDatabase) -> None:
    noon = START - 3 * SECOND
    fill(queue_database, 10, every(10, noon, noon + 120 * SECOND), waiting=5)
    roll_up_samples(queue_database.alias, noon + 30 * 60 * SECOND)
    assert [sample.taken_at for sample in samples(queue_database, seconds=60)] == [noon, noon + 60 * SECOND]
    fill(queue_database, 10, every(10, noon + 1800 * SECOND, noon + 1860 * SECOND), waiting=5)
    roll_up_samples(queue_database.alias, noon + 1900 * SECOND)
    assert len(samples(queue_database, seconds=60)) == 3


def test_old_samples_are_deleted_in_batches(queue_database: QueueDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "DELETE_BATCH", 7)
    noon = START - 3 * SECOND
    for resolution in RESOLUTIONS:
        oldest, length = noon - resolution.kept, resolution.seconds * SECOND
        fill(queue_database, resolution.seconds, every(resolution.seconds, oldest - 20 * length, oldest))
        fill(queue_database, resolution.seconds, [oldest, noon - length])
    Claim.objects.using(queue_database.alias).create(name="of long ago", until=noon - 31 * DAY)
    # The rolled-up rows are not checked here.
    roll_up_samples(queue_database.alias, noon)
    for resolution in RESOLUTIONS:
        kept = [sample.taken_at for sample in samples(queue_database, seconds=resolution.seconds)]
        assert kept[0] == noon - resolution.kept
    assert not Claim.objects.using(queue_database.alias).filter(name="of long ago").exists()


def test_two_hours_of_samples_keep_the_expected_number_of_rows(sqlite_database: QueueDatabase) -> None:
    noon = START - 3 * SECOND
    fill(sqlite_database, 10, every(10, noon - 2 * HOUR, noon), waiting=3)
    for minute in every(60, noon - 2 * HOUR, noon + 60 * SECOND):
        roll_up_samples(sqlite_database.alias, minute + 10 * SECOND)
    counts = Counter(sample.seconds for sample in samples(sqlite_database))
    # At ten seconds past noon the oldest sample is over an hour old and the last ten minutes are not rolled up yet.
    assert counts == {10: 359, 60: 120, 600: 11, 3600: 1}
    assert {sample.waiting for sample in samples(sqlite_database)} == {3}


def test_charts_read_the_resolution_of_their_period(queue_database: QueueDatabase) -> None:
    noon = START - 3 * SECOND
    for resolution in RESOLUTIONS:
        fill(queue_database, resolution.seconds, every(resolution.seconds, noon - 1200 * SECOND, noon), waiting=resolution.seconds)
    fill(queue_database, 10, [noon], queue="error", waiting=1)
    found = read_samples(queue_database.alias, ["Sales", "Billing"], timedelta(minutes=5), noon)
    assert found["Billing"] == []
    assert [sample.taken_at for sample in found["Sales"]] == every(10, noon - 290 * SECOND, noon)
    assert len(read_samples(queue_database.alias, ["Sales"], DAY, noon)["Sales"]) == 20
    assert len(read_samples(queue_database.alias, ["Sales"], 7 * DAY, noon)["Sales"]) == 2
    wanted = [(timedelta(minutes=1), 10), (HOUR, 10), (2 * HOUR, 60), (DAY, 60), (2 * DAY, 600), (365 * DAY, 3600)]
    assert [resolution_for(period).seconds for period, _ in wanted] == [seconds for _, seconds in wanted]


def test_sample_of_another_project_is_not_overwritten(queue_database: QueueDatabase) -> None:
    fill(queue_database, 10, [START], queue="error", waiting=1)
    mine = [QueueSample(queue=name, taken_at=START, seconds=10, waiting=2, most_waiting=2) for name in ("Sales", "error")]
    write_samples(queue_database.alias, mine)
    assert {sample.queue: sample.waiting for sample in samples(queue_database)} == {"Sales": 2, "error": 1}


# --- claims --------------------------------------------------------------------------------------------------------------------


def test_claim_is_granted_again_after_the_clock_was_set_back(queue_database: QueueDatabase) -> None:
    def queried(at: datetime) -> bool:
        return claim(queue_database.alias, "work", at)

    assert [queried(START), queried(START), queried(START - SECOND), queried(START + SECOND)] == [True, False, False, True]
    far = START + MAX_CLAIM_AHEAD + 2 * SECOND
    assert [queried(far), queried(START), queried(START)] == [True, True, False]


def test_first_claim_is_granted_once(queue_database: QueueDatabase) -> None:
    granted: list[bool] = []
    together = threading.Barrier(6)

    def work() -> None:
        try:
            together.wait(60)
            granted.append(claim(queue_database.alias, "work", START))
        finally:
            connections.close_all()

    run_in_threads(work, 6)
    assert sorted(granted) == [False] * 5 + [True]
