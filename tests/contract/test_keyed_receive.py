"""Receiving one message of a key at a time, by two processes with a session each. Bodies are a key and a number, as in `7:1`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
from django.db import connections

from sqlqueue_app.tables.connections import SecondConnections
from sqlqueue_app.tables.key_window import KeyWindow
from sqlqueue_app.tables.keyed_receive import KeyedReceive
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import receive_transaction
from sqlqueue_app.tables.rows import PeekedRow
from tests.support.databases import QueueDatabase
from tests.support.tables import execute, make_table, row, server_cases
from tests.support.waiting import poll_until


class Clock:
    """A clock that advances with each reading, far enough for another scan."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def lock_of(found: PeekedRow) -> int:
    return int((found.body or b"").partition(b":")[0])


class Session:
    """A process with one session."""

    def __init__(self, table: QueueTable, second: SecondConnections | None = None) -> None:
        self._second = second
        self.window = KeyWindow(lock_of, clock=Clock())
        with self._connection():
            opened = receive_transaction(table, keys=self.window)
        assert isinstance(opened, KeyedReceive)
        self.receiving: KeyedReceive = opened

    def _connection(self) -> AbstractContextManager[object]:
        return self._second.used() if self._second is not None else nullcontext()

    def take(self) -> str | None:
        with self._connection():
            found = self.receiving.receive()
        return None if found is None else (found.body or b"").decode()

    def commit(self) -> None:
        with self._connection():
            self.receiving.check_usable()
            self.receiving.commit()

    def commit_and_receive(self) -> str | None:
        with self._connection():
            self.receiving.commit(then_receive=lambda: 1)
        return self.take()

    def roll_back(self) -> None:
        with self._connection():
            self.receiving.abandon()

    def take_all(self) -> list[str]:
        found = []
        while (body := self.take()) is not None:
            found.append(body)
            self.commit()
        return found


class Sessions:
    def __init__(self, table: QueueTable) -> None:
        self.table = table
        self.second = SecondConnections(table.alias)
        self.one, self.two = Session(table), Session(table, self.second)
        assert self.one.receiving.connection is not self.two.receiving.connection

    def send(self, *bodies: str) -> None:
        self.table.send([row(body.encode()) for body in bodies])


pytestmark = pytest.mark.parametrize("case", server_cases(), indirect=True, ids="-".join)


@pytest.fixture
def sessions(queue: QueueTable) -> Iterator[Sessions]:
    made = Sessions(queue)
    yield made
    made.one.roll_back()
    made.two.roll_back()
    made.second.close()
    connections[queue.alias].close()


def test_key_that_another_session_has_does_not_delay_others(sessions: Sessions) -> None:
    sessions.send("7:1", "7:2", "8:1", "7:3", "9:1")
    assert sessions.one.take() == "7:1"
    assert sessions.two.take_all() == ["8:1", "9:1"]
    assert sessions.two.window.is_blocked
    sessions.one.commit()
    assert sessions.two.take_all() == ["7:2", "7:3"]
    assert not sessions.two.window.is_blocked


def test_rolled_back_row_is_the_next_of_its_key(sessions: Sessions) -> None:
    sessions.send("7:1", "7:2")
    assert sessions.one.take() == "7:1"
    assert sessions.two.take() is None
    sessions.one.roll_back()
    assert sessions.two.take_all() == ["7:1", "7:2"]
    assert sessions.one.take() is None


def test_row_that_came_back_unseen_is_the_next_of_its_key(sessions: Sessions) -> None:
    sessions.send("7:1", "8:1", "7:2")
    assert sessions.one.take() == "7:1"
    # Where readers skip locked rows, this process has never seen 7:1.
    assert sessions.two.take() == "8:1"
    sessions.one.roll_back()
    assert sessions.two.commit_and_receive() == "7:1"
    sessions.two.commit()
    assert sessions.two.take_all() == ["7:2"]


def test_rows_that_another_process_handled_are_not_waited_for(sessions: Sessions) -> None:
    sessions.send("7:1", "7:2", "7:3")
    assert sessions.two.take() == "7:1"
    sessions.two.roll_back()
    assert sessions.one.take() == "7:1"
    sessions.one.commit()
    assert sessions.one.take() == "7:2"
    sessions.one.commit()
    assert sessions.two.take_all() == ["7:3"]


def test_commit_receives_the_next_row_with_its_lock(sessions: Sessions) -> None:
    sessions.send(*(f"7:{number}" for number in range(1, 6)))
    assert sessions.one.take() == "7:1"
    for number in range(2, 6):
        assert sessions.one.commit_and_receive() == f"7:{number}"
        assert sessions.two.take() is None
    assert sessions.one.commit_and_receive() is None


def test_rows_received_ahead_return_to_their_places(sessions: Sessions) -> None:
    sessions.send("7:1", "7:2", "7:3")
    sessions.one.window = KeyWindow(lock_of)
    sessions.one.receiving.window = sessions.one.window
    assert sessions.one.take() == "7:1"
    sessions.one.receiving.commit(then_receive=lambda: 1)
    sessions.one.receiving.give_back()
    assert sessions.two.take_all() == ["7:2", "7:3"]


@pytest.mark.parametrize("name", ["100%", "%s 'it''s' %%"])
def test_name_with_percent_signs_and_quotes(database: QueueDatabase, layout: str, name: str) -> None:
    # The table of an NServiceBus endpoint is recorded with one name.
    session = Session(make_table(database, layout if database.vendor == "sqlserver" else "ours", name))
    session.receiving.table.send([row(b"7:1"), row(b"7:2")])
    assert session.take_all() == ["7:1", "7:2"]


def test_ended_session_frees_its_key(sessions: Sessions, database: QueueDatabase) -> None:
    sessions.send("7:1", "7:2")
    assert sessions.two.take() == "7:1"
    sessions.two.receiving.connection.close()
    sessions.second.close()
    sessions.two.roll_back()
    # The server frees the locks when it notices that the session has ended.
    assert poll_until(sessions.one.take_all) == ["7:1", "7:2"]


def test_table_that_was_created_again_is_read_again(sessions: Sessions, database: QueueDatabase) -> None:
    if database.vendor != "postgresql":
        pytest.skip("one statement restarts the numbers on PostgreSQL")
    sessions.send("7:1", "8:1")
    assert sessions.one.take() == "7:1"
    sessions.one.roll_back()
    execute(database, f"TRUNCATE {sessions.table.qualified} RESTART IDENTITY")
    sessions.send("8:2", "7:2")
    sessions.one.window._scanned_at = float("inf")
    assert sessions.one.take_all() == ["8:2", "7:2"]


def test_keys_behind_more_rows_of_one_key_than_are_known_wait(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue_app.tables.key_window.KNOWN_ROWS", 300)
    sessions.send(*(f"7:{number}" for number in range(300)), "8:1")
    assert sessions.two.take() == "7:0"
    assert sessions.one.take() is None
    sessions.two.commit()
    assert sessions.two.take() == "7:1"
    assert sessions.one.take() == "8:1"


def test_large_body_is_read_whole_for_its_key(sessions: Sessions) -> None:
    lengths: list[int] = []

    def lock_of_length(found: PeekedRow) -> int:
        lengths.append(len(found.body or b""))
        return 7

    window = KeyWindow(lock_of_length)
    receiving = receive_transaction(sessions.table, keys=window)
    sessions.table.send([row(b"x" * 200_000), row(b"small")])
    received = receiving.receive()
    receiving.abandon()
    assert received is not None
    assert len(received.body or b"") == 200_000
    assert lengths == [200_000, 5]
