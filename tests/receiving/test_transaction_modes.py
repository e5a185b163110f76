"""The four transaction modes: what is atomic with what, proved by killing the process.

See docs/internals/endpoints.md#transaction-modes, docs/internals/decisions.md#transaction-modes.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.db import connections, transaction

from sqlqueue_app import handles, send
from tests.support import kill_app
from tests.support.bench import MODES, Bench, Calls, write_instance, written
from tests.support.worker_processes import address, handled, prepare, wait_until_released, worker_process


class Left(NamedTuple):
    """Rows that remain after the kill and a second worker that empties the queue."""

    rows: int  # written by the handler
    out: int  # ordinary sends
    immediate: int  # immediate sends
    error: int


ATOMIC = {
    "after the receive": Left(1, 1, 1, 0),
    "in handler": Left(1, 1, 1, 0),
    "in an immediate send": Left(1, 1, 2, 0),
    "after an outgoing insert": Left(1, 1, 2, 0),
    "before the commit": Left(1, 1, 2, 0),
    "after the commit": Left(1, 1, 1, 0),
    "in the move to the error queue": Left(0, 0, 0, 1),
}
# SQLite has one writer: immediate sends follow the receive transaction, and a kill right after its commit loses them.
ATOMIC_ON_SQLITE = {
    **ATOMIC,
    "in an immediate send": Left(1, 1, 1, 0),
    "after an outgoing insert": Left(1, 1, 1, 0),
    "before the commit": Left(1, 1, 1, 0),
    "after the commit": Left(1, 1, 0, 0),
}
# Sends commit before the receive: a kill in between repeats them, but not the handler's rows.
RECEIVE_ONLY = {**ATOMIC, "after an outgoing insert": Left(1, 2, 2, 0), "before the commit": Left(1, 2, 2, 0)}
# The receive commits first: work interrupted by a kill is neither repeated nor finished.
NONE = {
    "after the receive": Left(1, 1, 1, 0),
    "before the commit": Left(1, 1, 1, 0),
    "after the commit": Left(0, 0, 0, 0),
    "in handler": Left(1, 0, 0, 0),
    "in an immediate send": Left(1, 0, 1, 0),
    "after an outgoing insert": Left(1, 1, 1, 0),
    "in the move to the error queue": Left(1, 0, 0, 0),
}
NONE_ON_SQLITE = {**NONE, "in an immediate send": Left(1, 0, 0, 0), "after an outgoing insert": Left(1, 1, 0, 0)}


def expected(vendor: str, mode: str, point: str) -> Left:
    if mode == "none":
        return (NONE_ON_SQLITE if vendor == "sqlite" else NONE)[point]
    if vendor == "sqlite":
        return ATOMIC_ON_SQLITE[point]
    return (RECEIVE_ONLY if mode == "receive_only" else ATOMIC)[point]


@pytest.mark.parametrize("point", list(ATOMIC))
@pytest.mark.parametrize("mode", MODES)
def test_kill_leaves_the_documented_rows(bench: Bench, tmp_path: Path, mode: str, point: str) -> None:
    prepare(bench, CALLBACKS=False, TRANSACTION_MODE=mode, HANDLERS=[kill_app.MODULE], SATELLITES={}, PURGE_EXPIRED_EVERY=0)
    bench.install_queues("out", "immediate")
    body = {
        "alias": bench.database.alias,
        "mode": mode,
        "fail": point == "in the move to the error queue",
        "out": address(bench, "out"),
        "immediate": address(bench, "immediate"),
    }
    send("Kill.Work", body, to=address(bench, "Sales"))
    trapped = {"KILL_AT": point, "KILL_ONCE": str(tmp_path / "killed")}
    with worker_process(bench, "--until-empty", **trapped) as process:
        assert process.wait(60) == -signal.SIGKILL, process.communicate()
    wait_until_released(bench)
    # the second worker runs in this process, where no kill point is set
    handles("Kill.Work")(kill_app.work)
    bench.run()
    left = Left(len(handled(bench)), len(bench.rows("out")), len(bench.rows("immediate")), len(bench.rows("error")))
    assert left == expected(bench.database.vendor, mode, point)
    assert bench.rows("Sales") == []


@pytest.mark.parametrize("mode", ["transaction_scope", "sends_atomic_with_receive", "receive_only"])
def test_failure_rolls_back_ordinary_sends_and_keeps_immediate_ones(bench: Bench, mode: str) -> None:
    bench.configure(TRANSACTION_MODE=mode)
    bench.install_queues("out", "immediate")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send("Test.Out", {}, to=address(bench, "out"))
        send("Test.Out", {}, to=address(bench, "out"))
        context.send("Test.Immediate", {}, to=address(bench, "immediate"), immediate=True)
        write_instance(bench, "undone")
        raise ValueError("after the sends")

    bench.put_message("Test.Message")
    bench.run()
    assert [len(bench.rows(name)) for name in ("out", "immediate", "error")] == [0, 1, 1]
    assert written(bench) == []


@pytest.mark.parametrize("mode", MODES)
def test_sends_become_visible_when_their_transaction_commits(postgresql_bench: Bench, calls: Calls, mode: str) -> None:
    bench = postgresql_bench
    bench.configure(TRANSACTION_MODE=mode)
    bench.install_queues("out", "immediate")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send("Test.Out", {}, to=address(bench, "out"))
        context.send("Test.Immediate", {}, to=address(bench, "immediate"), immediate=True)
        calls.add((len(bench.rows("out")), len(bench.rows("immediate")), connections[bench.database.alias].in_atomic_block))

    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == [(0, 1, mode != "none")]
    assert len(bench.rows("out")) == 1


@pytest.mark.parametrize("mode", ["transaction_scope", "receive_only"])
def test_sends_of_the_second_connection_are_committed_without_autocommit(
    postgresql_bench: Bench, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench = postgresql_bench
    bench.configure(TRANSACTION_MODE=mode)
    bench.install_queues("out", "immediate")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send("Test.Out", {}, to=address(bench, "out"))
        context.send("Test.Immediate", {}, to=address(bench, "immediate"), immediate=True)

    bench.put_message("Test.Message")
    connections[bench.database.alias].close()
    with monkeypatch.context() as patch:
        patch.setitem(connections.settings[bench.database.alias], "AUTOCOMMIT", False)
        bench.run()
        connections[bench.database.alias].close()
    assert [len(bench.rows(name)) for name in ("out", "immediate", "Sales")] == [1, 1, 0]


def test_mode_none_calls_once_outside_a_transaction_and_moves_the_failure(
    bench: Bench, calls: Calls, events: Callable[[], list[str]]
) -> None:
    bench.configure(TRANSACTION_MODE="none")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add((context.attempt, context.connection, bench.rows("Sales")))
        write_instance(bench, "stays")
        context.send("Test.Out", {}, to=address(bench, "error"))
        raise ValueError("once")

    bench.put_message("Test.Message", {"a": 1})
    bench.run()
    assert calls.seen == [(1, None, [])]
    assert written(bench) == ["stays"]
    (headers,) = bench.headers("error")
    assert headers["NServiceBus.ExceptionInfo.Message"] == "once"
    assert "moved_to_error_queue" in events()


def test_mode_none_may_discard_the_failed_message(bench: Bench, calls: Calls, events: Callable[[], list[str]]) -> None:
    bench.configure(TRANSACTION_MODE="none", ON_FAILURE_WITHOUT_TRANSACTION="discard")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(1)
        raise ValueError("once")

    bench.put_message("Test.Message")
    bench.put("not json", b"poison all the same", row_id="22222222-2222-3333-4444-555555555555")
    bench.run()
    assert calls.seen == [1]
    assert [row.headers for row in bench.rows("error")] == ["not json"]
    assert "message_discarded" in events()


def test_mode_none_survives_an_open_atomic_block(bench: Bench, calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
    bench.configure(TRANSACTION_MODE="none")
    caplog.set_level(logging.CRITICAL)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(1)
        if len(calls.seen) == 1:
            transaction.atomic(using=bench.database.alias).__enter__()
            write_instance(bench, "undone")

    bench.put_message("Test.Message")
    bench.put('{"NServiceBus.EnclosedMessageTypes":"Test.Message"}', b"{}", row_id="22222222-2222-3333-4444-555555555555")
    bench.run()
    assert calls.seen == [1, 1]
    assert written(bench) == []
    assert len(bench.rows("error")) == 1


def test_mode_none_moves_a_message_whose_handler_has_lost_its_connection(
    postgresql_bench: Bench, calls: Calls, events: Callable[[], list[str]]
) -> None:
    bench = postgresql_bench
    bench.configure(TRANSACTION_MODE="none")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        with connections[bench.database.alias].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    bench.put_message("Test.Message")
    bench.run()
    assert calls.seen == [1]
    assert len(bench.rows("error")) == 1
    assert not {"thread_died", "message_lost", "receive_failed"} & set(events())


def test_mode_none_does_not_report_a_lost_message_as_waiting(bench: Bench, events: Callable[[], list[str]]) -> None:
    bench.configure(TRANSACTION_MODE="none")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        with connections[bench.database.alias].cursor() as cursor:
            cursor.execute(f"DROP TABLE {bench.table('error').qualified}")
        raise ValueError("no")

    bench.put_message("Test.Message")
    bench.run()
    assert [event for event in events() if event in ("message_lost", "message_stays")] == ["message_lost"]
    assert bench.rows("Sales") == []


@pytest.mark.parametrize("mode", ["receive_only", "transaction_scope"])
def test_second_connection_that_was_cut_is_replaced(postgresql_bench: Bench, calls: Calls, mode: str) -> None:
    bench = postgresql_bench
    bench.configure(TRANSACTION_MODE=mode, IMMEDIATE_RETRIES=1, MAX_CONCURRENCY=1)
    bench.install_queues("out")
    cut = (
        "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity"
        ' WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE \'INSERT INTO "public"."out"%\''
    )

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        if calls.add((message["n"], context.attempt)) == 2:
            with context.connection.cursor() as cursor:
                cursor.execute(cut)
                assert cursor.fetchall() == [(1,)]
        context.send("Test.Out", {}, to=address(bench, "out"), immediate=mode != "receive_only")

    for number in (1, 2, 3):
        bench.put_message_of(number, "Test.Message", {"n": number})
    bench.run()
    assert calls.seen == [(1, 1), (2, 1), (2, 2), (3, 1)]
    assert [len(bench.rows(name)) for name in ("out", "error")] == [3, 0]


@pytest.mark.parametrize("mode", MODES)
def test_immediate_send_to_a_missing_queue_fails_the_message_and_no_other_send(
    bench: Bench, events: Callable[[], list[str]], mode: str
) -> None:
    bench.configure(TRANSACTION_MODE=mode)
    bench.install_queues("immediate")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send("Test.Immediate", {}, to=address(bench, "immediate"), immediate=True)
        context.send("Test.Immediate", {}, to="Salse", immediate=True)

    bench.put_message("Test.Message")
    bench.run()
    (headers,) = bench.headers("error")
    assert "did you mean 'Sales'?" in headers["NServiceBus.ExceptionInfo.Message"]
    assert len(bench.rows("immediate")) == 1
    assert not {"message_stays", "receive_failed"} & set(events())
