"""Connections that background jobs hand on: which are kept, which are closed, and that none is left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction

from sqlqueue_app.receiving.background import BackgroundJob, BackgroundJobs
from sqlqueue_app.tables.connections import POOL_IDLE_SECONDS, ConnectionPool
from tests.support.databases import QueueDatabase
from tests.support.waiting import join_all


def session(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


class Jobs:
    """Work in threads that end, one after the other or at the same time."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.seconds = 0.0
        self.pool = ConnectionPool(clock=lambda: self.seconds)
        self.sessions: list[int] = []

    def run(self, *works: Callable[[], Any]) -> list[int]:
        """The sessions of the works, which run side by side."""
        sessions: list[int] = []
        together = threading.Barrier(len(works))

        def one(work: Callable[[], Any]) -> None:
            with self.pool.checkout():
                sessions.append(session(self.alias))
                together.wait(60)
                work()

        threads = [threading.Thread(target=one, args=[work]) for work in works]
        for thread in threads:
            thread.start()
        join_all(threads)
        return sessions


def nothing() -> None:
    return


@pytest.fixture
def jobs(postgresql_database: QueueDatabase) -> Any:
    jobs = Jobs(postgresql_database.alias)
    yield jobs
    jobs.pool.close()


def test_one_after_the_other_share_one(jobs: Jobs) -> None:
    assert len({pid for _ in range(5) for pid in jobs.run(nothing)}) == 1


def test_side_by_side_each_has_its_own_and_what_is_not_needed_later_is_closed(jobs: Jobs) -> None:
    both = jobs.run(nothing, nothing)
    assert len(set(both)) == 2
    (last,) = jobs.run(nothing)
    assert last in both
    jobs.seconds = POOL_IDLE_SECONDS + 1
    jobs.run(nothing)
    assert len(jobs.pool._idle) == 1


def test_after_an_error_it_is_a_new_one(jobs: Jobs) -> None:
    def fail() -> None:
        with pytest.raises(DatabaseError), connections[jobs.alias].cursor() as cursor:
            cursor.execute("SELECT 1 / 0 FROM nowhere")

    assert jobs.run(fail) != jobs.run(nothing)


def test_a_transaction_that_is_left_open_is_rolled_back(jobs: Jobs) -> None:
    def leave() -> None:
        transaction.atomic(using=jobs.alias).__enter__()
        with connections[jobs.alias].cursor() as cursor:
            cursor.execute("CREATE TABLE left_open (n int)")

    jobs.run(leave)

    def look() -> None:
        with connections[jobs.alias].cursor() as cursor:
            cursor.execute("SELECT to_regclass('left_open')")
            assert cursor.fetchone() == (None,)

    jobs.run(look)


def test_jobs_that_come_often_share_one_and_those_that_come_seldom_have_new_ones(postgresql_database: QueueDatabase) -> None:
    often: list[int] = []
    seldom: list[int] = []
    enough, once = threading.Event(), threading.Event()

    def look() -> None:
        often.append(session(postgresql_database.alias))
        if len(often) == 5:
            enough.set()

    def clean_up() -> None:
        seldom.append(session(postgresql_database.alias))
        once.set()

    jobs = BackgroundJobs([BackgroundJob("look", 0.05, look), BackgroundJob("clean up", 3600.0, clean_up)])
    jobs.start()
    try:
        assert enough.wait(60)
        assert once.wait(60)
    finally:
        jobs.stop()
    assert len(set(often)) == 1
    assert not set(often) & set(seldom)
