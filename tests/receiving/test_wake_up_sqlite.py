"""New messages wake idle receivers on SQLite: the worker detects that another connection has changed the file."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from sqlqueue_app.receiving.waiting import WakeUp
from sqlqueue_app.tables.announcements import Interrupted, WatchedFile
from tests.receiving.wake_ups import HEADERS, NEVER, at_rest, by_command, by_own_send, wakes_an_idle_worker
from tests.support.bench import Bench, Calls, Running
from tests.support.waiting import done_within, poll_until


@pytest.fixture
def bench(sqlite_bench: Bench) -> Bench:
    sqlite_bench.configure()
    return sqlite_bench


def file_of(bench: Bench) -> str:
    return str(bench.database.connection.settings_dict["NAME"])


def by_insert(bench: Bench, number: int) -> None:
    """Insert from a program that does not use sqlqueue."""
    with closing(sqlite3.connect(file_of(bench))) as connection, connection:
        values = ("11111111-2222-3333-4444-555555555555", HEADERS, json.dumps({"n": number}).encode())
        connection.execute("INSERT INTO Sales (Id, Recoverable, Headers, Body) VALUES (?, 1, ?, ?)", values)


@pytest.mark.parametrize("model", ["fixed", "adaptive", "monitor"])
@pytest.mark.parametrize("sent", [by_command, by_insert, by_own_send])
def test_any_sender_wakes_an_idle_worker_without_settings(
    bench: Bench, calls: Calls, counting: object, wake_ups: list[WakeUp], model: str, sent: Callable[[Bench, int], None]
) -> None:
    bench.configure(CONCURRENCY_MODEL=model, MAX_CONCURRENCY=2)
    wakes_an_idle_worker(bench, calls, at_rest(wake_ups, 2 if model == "fixed" else 1), sent)


def test_wake_up_can_be_turned_off(bench: Bench, wake_ups: list[WakeUp], events: Callable[[], list[str]]) -> None:
    bench.configure(WAKE_UP=False)
    with Running(bench):
        poll_until(lambda: "worker_started" in events())
    assert wake_ups == []
    assert "wake_up_on" not in events()


# --- the file -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def watched(bench: Bench) -> Iterator[WatchedFile]:
    file = WatchedFile(bench.database.alias)
    file.open(["a", "b"])
    yield file
    file.dispose()


@pytest.fixture(params=["wal", "delete"])
def writer(request: pytest.FixtureRequest, bench: Bench) -> Iterator[sqlite3.Connection]:
    """Another connection, in this journal mode, with autocommit."""
    bench.database.connection.close()
    with closing(sqlite3.connect(file_of(bench), isolation_level=None)) as connection:
        assert connection.execute(f"PRAGMA journal_mode = {request.param}").fetchone() == (request.param,)
        connection.execute("CREATE TABLE other (n integer)")
        yield connection


def test_commit_of_another_connection_is_detected_once(writer: sqlite3.Connection, watched: WatchedFile) -> None:
    writer.execute("INSERT INTO other VALUES (1)")
    assert watched.wait(60) == [("a", 0), ("b", 0)]
    assert watched.wait(0) == []


def test_uncommitted_change_is_not_detected(writer: sqlite3.Connection, watched: WatchedFile) -> None:
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO other VALUES (1)")
    assert watched.wait(0) == []
    writer.execute("ROLLBACK")
    assert watched.wait(0) == []


def test_locked_file_is_checked_again(writer: sqlite3.Connection, watched: WatchedFile) -> None:
    writer.execute("BEGIN EXCLUSIVE")
    assert watched.wait(0) == []
    writer.execute("INSERT INTO other VALUES (1)")
    writer.execute("COMMIT")
    assert watched.wait(60) == [("a", 0), ("b", 0)]


def test_interrupt_ends_a_wait_at_once(bench: Bench) -> None:
    watched = WatchedFile(bench.database.alias)
    opened = threading.Event()

    def watch() -> None:
        watched.open(["a"])
        opened.set()
        try:
            with pytest.raises(Interrupted):
                watched.wait(NEVER)
        finally:
            watched.dispose()

    thread = threading.Thread(target=watch)
    thread.start()
    assert opened.wait(60)
    watched.interrupt()
    done_within(thread.join, what="the wait ends")
