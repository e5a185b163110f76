"""Rows received with the commit of the last message: none is lost, none is held during a wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sqlqueue_app import handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.receiving.endpoint import endpoints_of
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.tables.postgresql_receive import PostgresReceiveTransaction
from sqlqueue_app.tables.rows import NewRow, ReceivedRow
from tests.receiving.batches import configure, put_rows
from tests.support.bench import Bench, Calls


def test_stop_returns_rows_received_ahead(postgresql_bench: Bench, calls: Calls) -> None:
    bench = postgresql_bench
    configure(bench, BATCH_SIZE=1)
    put_rows(bench, range(3))
    stop = StopSignal()

    def handle(message: Any, context: Any) -> None:
        if calls.add(message["number"]) == 2:
            stop.set()

    handles("Test.Message")(handle)
    runner = threading.Thread(target=lambda: bench.run(stop, until_empty=False), name="runner")
    runner.start()
    runner.join(60)
    assert calls.seen == [0, 1]
    assert [row.id.int for row in bench.rows("Sales")] == [2]


def test_failing_receive_after_a_commit_loses_no_row(
    postgresql_bench: Bench, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit succeeds, the receive in the same round trip fails: the message is done."""
    bench = postgresql_bench
    configure(bench, BATCH_SIZE=1)
    put_rows(bench, range(2))

    def handle(message: Any, context: Any) -> None:
        if calls.add(message["number"]) == 1:
            with context.connection.cursor() as cursor:
                cursor.execute("DEALLOCATE ALL")

    handles("Test.Message")(handle)
    bench.run()
    assert calls.seen == [0, 1]
    assert bench.rows("Sales") == bench.rows("error") == []


def test_no_row_is_held_while_the_model_waits(postgresql_bench: Bench, counting: None, calls: Calls) -> None:
    """An expired message counts as an empty poll, and the model then waits: the row received with its commit is returned."""
    bench = postgresql_bench
    configure(bench, BATCH_SIZE=1)
    bench.table("Sales").send([NewRow("00000000-0000-0000-0000-000000000009", "{}", b"late", time_to_be_received_ms=-1)])
    put_rows(bench, range(1))
    (endpoint,) = endpoints_of(get_settings(), None)
    poller = endpoint.receiver(endpoint.receiving_queues(None)[0], StopSignal())._new_poller()
    assert poller.poll() is False
    assert not bench.database.connection.in_atomic_block
    assert len(bench.rows("Sales")) == 1
    assert poller.poll() is True
    assert [message["number"] for message in calls.seen] == [0]
    poller.close()


def test_unreadable_rows_after_a_commit_do_not_undo_it(
    postgresql_bench: Bench, counting: None, calls: Calls, monkeypatch: pytest.MonkeyPatch, events: Callable[[], list[str]]
) -> None:
    bench = postgresql_bench
    configure(bench, BATCH_SIZE=1)
    put_rows(bench, range(3))
    read = PostgresReceiveTransaction._row
    failed: list[int] = []

    def out_of_memory_once(self: PostgresReceiveTransaction, result: Any, index: int) -> ReceivedRow:
        row = read(self, result, index)
        if row.id.int == 1 and not failed:
            failed.append(1)
            raise MemoryError
        return row

    monkeypatch.setattr(PostgresReceiveTransaction, "_row", out_of_memory_once)
    bench.run()
    assert failed == [1]
    assert [message["number"] for message in calls.seen] == [0, 1, 2]
    assert bench.rows("Sales") == bench.rows("error") == []
    assert "receive_failed" in events()
