"""The connection pool of the background jobs: which connections are kept, which are closed, and that none is left."""

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
    """Work in threads that end, in sequence or in parallel."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.seconds = 0.0
        self.pool = ConnectionPool(clock=lambda: self.seconds)
        self.sessions: list[int] = []

    def run(self, *works: Callable[[], Any]) -> list[int]:
        """Run the works in parallel and return their sessions."""
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


def test_sequential_jobs_share_one_connection(jobs: Jobs) -> None:
    assert len({pid for _ in range(5) for pid in jobs.run(nothing)}) == 1


def test_parallel_jobs_have_their_own_and_idle_ones_are_closed(jobs: Jobs) -> None:
    both = jobs.run(nothing, nothing)
    assert len(set(both)) == 2
    (last,) = jobs.run(nothing)
    assert last in both
    jobs.seconds = POOL_IDLE_SECONDS + 1
    jobs.run(nothing)
    assert len(jobs.pool._idle) == 1


def test_connection_is_replaced_after_an_error(jobs: Jobs) -> None:
    def fail() -> None:
        with pytest.raises(DatabaseError), connections[jobs.alias].cursor() as cursor:
            cursor.execute("SELECT 1 / 0 FROM nowhere")

    assert jobs.run(fail) != jobs.run(nothing)


def test_open_transaction_is_rolled_back(jobs: Jobs) -> None:
    def leave() -> None:
        transaction.atomic(using=jobs.alias).__enter__()
        with connections[jobs.alias].cursor() as cursor:
            cursor.execute("CREATE TABLE left_open (n int)")

    jobs.run(leave)

    def query() -> None:
        with connections[jobs.alias].cursor() as cursor:
            cursor.execute("SELECT to_regclass('left_open')")
            assert cursor.fetchone() == (None,)

    jobs.run(query)


def test_frequent_jobs_share_a_connection_and_rare_ones_get_new_ones(postgresql_database: QueueDatabase) -> None:
    often: list[int] = []
    seldom: list[int] = []
    enough, once = threading.Event(), threading.Event()

    def query() -> None:
        often.append(session(postgresql_database.alias))
        if len(often) == 5:
            enough.set()

    def clean_up() -> None:
        seldom.append(session(postgresql_database.alias))
        once.set()

    jobs = BackgroundJobs([BackgroundJob("look", 0.05, query), BackgroundJob("clean up", 3600.0, clean_up)])
    jobs.start()
    try:
        assert enough.wait(60)
        assert once.wait(60)
    finally:
        jobs.stop()
    assert len(set(often)) == 1
    assert not set(often) & set(seldom)


def test_job_replaces_its_connection_after_a_failed_transaction(postgresql_database: QueueDatabase) -> None:
    """The rollback resets Django's mark of the error, but the session may be read-only since a failover."""
    alias, sessions, enough = postgresql_database.alias, list[int](), threading.Event()

    def fail() -> None:
        sessions.append(session(alias))
        if len(sessions) == 3:
            enough.set()
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            cursor.execute("SELECT 1 FROM nowhere")

    jobs = BackgroundJobs([BackgroundJob("failing", 0.05, fail)])
    jobs.start()
    assert enough.wait(60)
    jobs.stop()
    assert len(set(sessions)) == len(sessions)
