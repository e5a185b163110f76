"""Pages take samples while no worker is alive: once per interval, without slowing the page."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue_app.conf import get_settings
from sqlqueue_app.models import QueueSample
from sqlqueue_app.status.overview import read_status
from sqlqueue_app.status.samples import PageSampling, Sampling
from tests.support.databases import QueueDatabase
from tests.support.filling import install, instance, message, table
from tests.support.waiting import join_all

NOW = datetime(2026, 11, 21, 12, 0, 3, tzinfo=UTC)
SECOND = timedelta(seconds=1)
BEGIN = NOW - 3 * SECOND


def counted() -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in QueueSample.objects.filter(seconds=10).order_by("taken_at"):
        found.setdefault(each.queue, []).append(each.waiting)
    return found


def test_page_stores_the_numbers_that_it_has_read(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance(silent=timedelta(hours=1))
    table(queue_database, "Sales").send([message(), message()])
    status = read_status(others=True)
    with CaptureQueriesContext(queue_database.connection) as own:
        taken = PageSampling().take(status.instances, None, NOW, status)
    assert {each.taken_at for each in taken} == {BEGIN}
    assert counted() == {"Sales": [2], "Sales.Priority": [0], "Sales.Delayed": [0], "error": [0]}
    assert not [query["sql"] for query in own if '"Sales"' in query["sql"] or "[Sales]" in query["sql"]], "a queue is counted twice"


def test_page_without_numbers_counts_the_queues(queue_database: QueueDatabase) -> None:
    install(queue_database)
    table(queue_database, "Sales").send([message()])
    PageSampling().take((), None, NOW)
    assert counted() == {"Sales": [1], "Sales.Priority": [0], "Sales.Delayed": [0], "error": [0]}


def test_sample_is_taken_once_per_interval(queue_database: QueueDatabase) -> None:
    install(queue_database)
    sampling = PageSampling()
    assert sampling.take((), None, NOW)
    with CaptureQueriesContext(queue_database.connection) as statements:
        assert not sampling.take((), BEGIN, NOW + 6 * SECOND)
    assert len(statements) == 0, "the page has seen the sample"
    assert not PageSampling().take((), None, NOW + 6 * SECOND), "another process has taken it"
    assert not Sampling(get_settings(), now=lambda: NOW).take()
    assert sampling.take((), BEGIN, NOW + 7 * SECOND)
    assert counted()["Sales"] == [0, 0]


def test_only_one_of_many_pages_takes_the_sample(queue_database: QueueDatabase) -> None:
    install(queue_database)
    together, found = threading.Barrier(6), []
    shared = PageSampling()

    def serve(sampling: PageSampling) -> None:
        try:
            together.wait(60)
            found.append(len(sampling.take((), None, NOW)))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=serve, args=(each,)) for each in (*[shared] * 3, *(PageSampling() for _ in range(3)))]
    for thread in threads:
        thread.start()
    join_all(threads)
    assert sorted(found) == [0, 0, 0, 0, 0, 4]
    assert {len(values) for values in counted().values()} == {1}


def test_page_takes_no_sample_while_a_worker_is_alive(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance()
    assert PageSampling().take(read_status().instances, None, NOW) == []
    assert counted() == {}


def test_page_takes_samples_beside_a_process_that_only_receives_replies(queue_database: QueueDatabase) -> None:
    install(queue_database)
    instance(threads={"Sales.here": 1})
    status = read_status()
    assert PageSampling().take(status.instances, None, NOW, status)
    assert set(counted()) == {"Sales", "Sales.Priority", "Sales.Delayed", "Sales.here", "error"}


def test_page_in_a_transaction_takes_no_sample(queue_database: QueueDatabase) -> None:
    install(queue_database)
    with transaction.atomic(using=queue_database.alias), CaptureQueriesContext(queue_database.connection) as statements:
        assert PageSampling().take((), None, NOW) == []
    assert len(statements) == 0


@pytest.mark.parametrize("fixture", ["sqlite_database", "postgresql_database"])
def test_read_only_database_is_tried_again_after_a_minute(fixture: str, request: pytest.FixtureRequest) -> None:
    database: QueueDatabase = request.getfixturevalue(fixture)
    install(database)
    clock = [100.0]
    sampling = PageSampling(clock=lambda: clock[0])
    switch = {"sqlite": "PRAGMA query_only = %s", "postgresql": "SET default_transaction_read_only = %s"}[database.vendor]
    with database.connection.cursor() as cursor:
        cursor.execute(switch % "on")
        assert sampling.take((), None, NOW) == []
        cursor.execute(switch % "off")
    clock[0] = 159.0
    with CaptureQueriesContext(database.connection) as statements:
        assert sampling.take((), None, NOW) == []
    assert len(statements) == 0
    clock[0] = 160.0
    assert len(sampling.take((), None, NOW)) == 4


def test_minutes_are_rolled_up_once_a_minute(queue_database: QueueDatabase) -> None:
    install(queue_database)
    sampling = PageSampling()
    for number in range(9):
        sampling.take((), None, NOW + 10 * number * SECOND)
    (rolled,) = QueueSample.objects.filter(seconds=60, queue="Sales")
    assert (rolled.taken_at, rolled.samples) == (BEGIN, 6)
    with CaptureQueriesContext(queue_database.connection) as statements:
        sampling.take((), None, NOW + 90 * SECOND)
    assert not [query["sql"] for query in statements if "roll-up" in query["sql"]]
