"""Failed commits and lost commit responses, of the receive or of a joined database: both commit or neither does."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from sqlqueue_app import handles
from sqlqueue_app.status.in_doubt import InDoubt
from sqlqueue_app.tables.managed import TransactionLog
from sqlqueue_app.tables.postgresql_receive import PostgresReceiveTransaction
from sqlqueue_app.tables.two_phase import Participant
from tests.distributed.conftest import OtherDatabase, reasons
from tests.support.bench import Bench, Calls, write_instance, written

pytestmark = pytest.mark.usefixtures("no_background_resolution")


def test_a_commit_of_the_receive_that_fails_rolls_the_branches_back(bench: Bench, second: OtherDatabase) -> None:
    if bench.database.vendor != "postgresql":
        pytest.skip("a constraint that is looked at by the commit")
    with bench.database.connection.cursor() as cursor:
        cursor.execute("CREATE TABLE own (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        second.write("there")
        with bench.database.connection.cursor() as cursor:
            cursor.execute("INSERT INTO own VALUES (1), (1)")

    bench.put_message("Test.Message")
    bench.run()
    assert (second.effects(), second.prepared(), len(reasons(bench))) == ([], [], 1)


@pytest.fixture
def breaking_line(bench: Bench, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut the connection of the first receive between prepare and commit; handlers must add to `calls` first."""
    if bench.database.vendor != "postgresql":
        pytest.skip("there is no line to SQLite")
    prepare = Participant.prepare

    def prepare_and_cut_the_receive(self: Participant, *arguments: Any) -> Any:
        hooks = prepare(self, *arguments)
        if len(calls.seen) == 1:
            with connections["postgresql"].cursor() as cursor, contextlib.suppress(OperationalError):
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return hooks

    monkeypatch.setattr(Participant, "prepare", prepare_and_cut_the_receive)


@pytest.mark.usefixtures("breaking_line")
def test_connection_lost_at_the_commit_leaves_no_branch(bench: Bench, second: OtherDatabase, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        second.write("there")

    bench.configure(IMMEDIATE_RETRIES=2)
    bench.put_message("Test.Message")
    bench.run()
    # The branch of the first attempt is rolled back at once; otherwise the second would wait for its lock.
    assert (calls.seen, second.effects(), second.prepared(), reasons(bench)) == ([1, 2], ["there"], [], [])


@pytest.mark.usefixtures("breaking_line")
def test_undecided_branch_is_left_to_the_later_check(
    bench: Bench, second: OtherDatabase, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = TransactionLog.is_committed

    def still_open(self: TransactionLog, transaction_id: uuid.UUID) -> bool | None:
        return None if len(calls.seen) == 1 else original(self, transaction_id)

    monkeypatch.setattr(TransactionLog, "is_committed", still_open)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        second.write(f"attempt {context.attempt}")

    bench.configure(IMMEDIATE_RETRIES=2)
    bench.put_message("Test.Message")
    bench.run()
    InDoubt(bench.database.alias).end_branches()
    assert (second.effects(), second.prepared(), reasons(bench)) == (["attempt 2"], [], [])


@pytest.mark.parametrize("elsewhere", [True, False])
def test_lost_commit_answer_moves_no_handled_message(
    bench: Bench,
    second: OtherDatabase,
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
    events: Callable[[], list[str]],
    elsewhere: bool,
) -> None:
    if bench.database.vendor != "postgresql":
        pytest.skip("there is no line to SQLite")
    commit = PostgresReceiveTransaction._commit

    def commit_and_lose_the_answer(self: PostgresReceiveTransaction, atomic: Any) -> None:
        commit(self, atomic)
        if calls.seen:
            self.connection.close()
            raise OperationalError("the answer is lost")

    monkeypatch.setattr(PostgresReceiveTransaction, "_commit", commit_and_lose_the_answer)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        write_instance(bench, "here")
        # With a hook, the next receive is not combined with the commit.
        transaction.on_commit(lambda: calls.add("hook"), using=bench.database.alias)
        if elsewhere:
            second.write("there")

    bench.put_message("Test.Message")
    bench.run()
    assert (calls.seen, written(bench), second.prepared()) == ([1], ["here"], [])
    assert second.effects() == (["there"] if elsewhere else [])
    assert (bench.rows("Sales"), bench.rows("error")) == ([], [])
    assert "transaction_ended" not in events()


def test_a_branch_whose_database_is_lost_after_the_decision_is_committed_later(
    bench: Bench, second: OtherDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepare = Participant.prepare

    def prepare_and_be_cut(self: Participant, *arguments: Any) -> Any:
        hooks = prepare(self, *arguments)
        second.cut()
        return hooks

    caplog.set_level(logging.INFO, logger="sqlqueue")
    monkeypatch.setattr(Participant, "prepare", prepare_and_be_cut)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        write_instance(bench, "here")
        second.write("there")

    bench.put_message("Test.Message")
    bench.run()
    assert written(bench) == ["here"]
    connections["second"].close()
    InDoubt(bench.database.alias).end_branches()
    assert (second.effects(), second.prepared(), bench.rows("error")) == (["there"], [], [])
    assert "branch_in_doubt" in {getattr(record, "event", "") for record in caplog.records}
