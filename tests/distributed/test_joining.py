"""Other databases in the receive transaction: writes of handlers commit with the message or not at all.

See docs/internals/decisions.md#two-phase-commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction

from sqlqueue_app import handles, send_many
from sqlqueue_app.models import DistributedTransaction
from sqlqueue_app.policies.priorities import PRIORITIES
from sqlqueue_app.status.in_doubt import InDoubt
from tests.distributed.conftest import OtherDatabase, reasons
from tests.support.bench import Bench, Calls, write_instance, written

pytestmark = pytest.mark.usefixtures("no_background_resolution")


def recorded(bench: Bench) -> list[list[str]]:
    """The aliases of the transactions in the log."""
    return list(DistributedTransaction.objects.using(bench.database.alias).values_list("branches", flat=True))


def test_work_commits_with_the_message(bench: Bench, second: OtherDatabase, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        write_instance(bench, "here")
        second.write("there")
        connection = connections["second"]
        transaction.on_commit(lambda: calls.add(("committed", second.effects())), using="second")
        calls.add((connection.in_atomic_block, second.effects()))

    bench.put_message("Test.Message")
    bench.run()
    assert (written(bench), second.effects()) == (["here"], ["there"])
    assert calls.seen == [(True, []), ("committed", ["there"])]
    assert bench.rows("Sales") == bench.rows("error") == []


def test_two_other_databases_may_join(bench: Bench, second: OtherDatabase, third: OtherDatabase) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        third.write("three")
        second.write("two")

    bench.put_message("Test.Message")
    bench.run()
    assert (second.effects(), third.effects()) == (["two"], ["three"])


def test_work_joins_messages_of_every_priority(bench: Bench, second: OtherDatabase, calls: Calls) -> None:
    """The receive transactions of all priorities use one connection of the other database in turn."""
    bench.configure(routes={"Test.*": "Sales"}, PRIORITIES=True, IMMEDIATE_RETRIES=1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        second.write(message["text"])
        if context.attempt == 1:
            raise ValueError("not yet")

    for priority in PRIORITIES:
        send_many("Test.Message", [{"text": f"{priority} {number}"} for number in range(3)], priority=priority)
    bench.run(max_concurrency=1)
    assert sorted(second.effects()) == sorted(f"{priority} {number}" for priority in PRIORITIES for number in range(3))


def test_ended_transactions_are_deleted_from_the_log(bench: Bench, second: OtherDatabase) -> None:
    handles("Test.Message")(lambda message, context: second.write("there"))
    bench.put_message("Test.Message")
    bench.run()
    InDoubt(bench.database.alias).end_branches()
    assert recorded(bench) == []


def test_failure_rolls_back_both_and_a_retry_commits_both_once(bench: Bench, second: OtherDatabase, calls: Calls) -> None:
    bench.configure(IMMEDIATE_RETRIES=2)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        write_instance(bench, f"attempt {context.attempt}")
        second.write(f"attempt {context.attempt}")
        transaction.on_commit(lambda: calls.add(context.attempt), using="second")
        if context.attempt < 3:
            raise ValueError("not yet")

    bench.put_message("Test.Message")
    bench.run()
    assert (written(bench), second.effects(), calls.seen) == (["attempt 3"], ["attempt 3"], [3])


def test_finally_failed_message_leaves_nothing(bench: Bench, second: OtherDatabase) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        second.write("there")
        raise ValueError("always")

    bench.put_message("Test.Message")
    bench.run()
    assert (second.effects(), reasons(bench)) == ([], ["always"])


def test_reading_handler_prepares_nothing(bench: Bench, second: OtherDatabase, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        transaction.on_commit(lambda: calls.add("hook"), using="second")
        with transaction.atomic(using="second"):
            calls.add(second.count())

    bench.put_message("Test.Message")
    bench.run()
    assert (calls.seen, recorded(bench)) == ([0, "hook"], [])


def test_unused_database_is_not_connected(bench: Bench, second: OtherDatabase, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        transaction.on_commit(lambda: calls.add("hook"), using="second")
        calls.add(second.sessions())

    bench.put_message("Test.Message")
    second.cut()
    bench.run()
    assert calls.seen == [0, "hook"]


def test_nested_blocks_are_savepoints(bench: Bench, second: OtherDatabase) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        with transaction.atomic(using="second"):
            second.write("outer")
            with contextlib.suppress(LookupError), transaction.atomic(using="second"):
                second.write("inner")
                raise LookupError
        with transaction.atomic(using="second", savepoint=False):
            second.write("merged")

    bench.put_message("Test.Message")
    bench.run()
    assert second.effects() == ["merged", "outer"]


def test_only_failed_messages_of_a_batch_are_rolled_back(bench: Bench, second: OtherDatabase, calls: Calls) -> None:
    bench.configure(BATCH_SIZE=4)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        transaction.on_commit(lambda: calls.add(message["n"]), using="second")
        if message["n"] == 1:
            return
        second.write(f"effect {message['n']}")
        if message["n"] == 3:
            raise ValueError("the third")

    for number in (1, 2, 3, 4):
        bench.put_message_of(number, "Test.Message", {"n": number})
    bench.run(max_concurrency=1)
    assert second.effects() == ["effect 2", "effect 4"]
    assert (sorted(calls.seen), len(recorded(bench)), reasons(bench)) == ([1, 2, 4], 1, ["the third"])


def test_batch_whose_other_database_is_cut_is_received_again(
    bench: Bench, second: OtherDatabase, calls: Calls, events: Callable[[], list[str]]
) -> None:
    bench.configure(BATCH_SIZE=3, MAX_CONCURRENCY=1, IMMEDIATE_RETRIES=1)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        second.write(f"of {message['n']}")
        if calls.add(message["n"]) == 2:
            second.cut()
            second.write("never")

    for number in range(3):
        bench.put_message_of(number, "Test.Message", {"n": number})
    bench.run()
    assert second.effects() == ["of 0", "of 1", "of 2"]
    assert calls.seen == [0, 1, 0, 1, 2]
    assert bench.rows("error") == []
    assert "transaction_lost" in events()


def test_swallowed_error_fails_the_message(bench: Bench, second: OtherDatabase) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        write_instance(bench, "here")
        try:
            second.write(None)  # type: ignore[arg-type]
        except IntegrityError:
            pass

    bench.put_message("Test.Message")
    bench.run()
    assert written(bench) == []
    assert "the transaction on 'second' cannot be committed" in reasons(bench)[0]


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (lambda: transaction.Atomic("second", True, False).__enter__(), "left an atomic() on 'second' open"),
        (lambda: transaction.set_rollback(True, using="second"), "the transaction on 'second' cannot be committed"),
        (lambda: connections["second"].close(), "the transaction on 'second' cannot be committed"),
    ],
)
def test_open_transaction_of_a_handler_fails_the_message(
    bench: Bench, second: OtherDatabase, left: Callable[[], object], expected: str
) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        second.write("there")
        left()

    handles("Test.After")(lambda message, context: second.write("after"))
    bench.put_message_of(1, "Test.Message")
    bench.put_message_of(2, "Test.After")
    bench.run(max_concurrency=1)
    assert (len(reasons(bench)), second.effects()) == (1, ["after"])
    assert expected in reasons(bench)[0]


def test_failed_prepare_fails_the_message_before_any_commit(bench: Bench, second: OtherDatabase) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        write_instance(bench, "here")
        with connections["second"].cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE own (n integer)")
            cursor.execute("INSERT INTO own VALUES (1)")

    bench.put_message("Test.Message")
    bench.run()
    assert (written(bench), recorded(bench)) == ([], [])
    assert "temporary objects" in reasons(bench)[0]


def test_failure_of_the_second_database_rolls_back_the_first(bench: Bench, second: OtherDatabase, third: OtherDatabase) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        write_instance(bench, "here")
        second.write("there")
        third.write("same")
        # A deferred constraint, checked by the prepare.
        third.write("same")

    bench.put_message("Test.Message")
    bench.run()
    assert (written(bench), second.effects(), third.effects(), second.prepared()) == ([], [], [], [])
    assert "effects_name_key" in reasons(bench)[0]


def test_other_modes_commit_independently(bench: Bench, second: OtherDatabase, calls: Calls) -> None:
    bench.configure(TRANSACTION_MODE="sends_atomic_with_receive")

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        second.write("there")
        calls.add((connections["second"].in_atomic_block, second.effects()))
        raise ValueError("too late")

    bench.put_message("Test.Message")
    bench.run()
    assert (calls.seen, second.effects()) == ([(False, ["there"])], ["there"])


@pytest.mark.parametrize("mode", ["sends_atomic_with_receive", "receive_only", "none"])
def test_other_modes_pass_no_open_transaction_on_to_the_next_message(bench: Bench, second: OtherDatabase, mode: str) -> None:
    bench.configure(TRANSACTION_MODE=mode)

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        transaction.atomic(using="second").__enter__()
        second.write("never")

    handles("Test.After")(lambda message, context: second.write("after"))
    bench.put_message_of(1, "Test.Message")
    bench.put_message_of(2, "Test.After")
    bench.run(max_concurrency=1)
    assert (reasons(bench), second.effects()) == ([], ["after"])


def test_database_without_prepare_is_read_only(postgresql_bench: Bench, calls: Calls) -> None:
    bench = postgresql_bench
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE effects (name text)")

    @handles("Test.Read")
    def read(message: Any, context: Any) -> None:
        with transaction.atomic(using="default"), connections["default"].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM effects WHERE name <> 'INSERT INTO'")
            calls.add(cursor.fetchone()[0])

    @handles("Test.Write")
    def write(message: Any, context: Any) -> None:
        write_instance(bench, "here")
        with connections["default"].cursor() as cursor:
            cursor.execute("INSERT INTO effects VALUES ('there')")

    bench.put_message_of(1, "Test.Read")
    bench.put_message_of(2, "Test.Write")
    bench.put_message_of(3, "Test.Read")
    bench.run(max_concurrency=1)
    assert (calls.seen, written(bench), bench.rows("Sales")) == ([0, 0], [], [])
    (reason,) = reasons(bench)
    assert "'default' (SQLite) cannot prepare a transaction" in reason
    assert "Enable" not in reason
    assert "sends_atomic_with_receive" in reason
