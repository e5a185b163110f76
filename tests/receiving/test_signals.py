"""Signals: `message_sent` in the transaction of the sender, the others after the transaction that they report."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connections, transaction
from django.dispatch import Signal

from sqlqueue_app import (
    Discard,
    MoveToError,
    RetryLater,
    RetryNow,
    handles,
    message_type,
    publish,
    send,
    send_many,
    signals,
    subscribe,
)
from sqlqueue_app.messages.errors import DatabaseError, DoomedTransaction
from sqlqueue_app.policies.recoverability import Action
from sqlqueue_app.receiving.processing import MessageProcessor
from tests.support.bench import MODES, Bench, Calls, write_instance, written
from tests.support.worker_processes import address

NAMES = ["message_sent", "message_handled", "message_failed", "message_moved_to_error"]


@message_type("Test.Signalled")
@dataclass
class Order:
    n: int = 0


@pytest.fixture
def seen() -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Connects a receiver to every signal. Returns the arguments of each call for a signal."""
    found: list[tuple[str, dict[str, Any]]] = []

    def noting(name: str) -> Callable[..., None]:
        return lambda **arguments: found.append((name, arguments))

    receivers = {name: noting(name) for name in NAMES}
    for name, receiver in receivers.items():
        getattr(signals, name).connect(receiver)
    yield lambda name: [arguments for its, arguments in found if its == name]
    for name, receiver in receivers.items():
        getattr(signals, name).disconnect(receiver)


@pytest.fixture
def connect() -> Iterator[Callable[..., None]]:
    """Connects receivers during the test."""
    connected: list[tuple[Signal, Callable[..., Any]]] = []

    def connect(signal: Signal, receiver: Callable[..., Any], **options: Any) -> None:
        signal.connect(receiver, **options)
        connected.append((signal, receiver))

    yield connect
    for signal, receiver in connected:
        signal.disconnect(receiver)


def test_signals_have_no_receivers_of_their_own() -> None:
    gc.collect()
    assert [getattr(signals, name).has_listeners() for name in NAMES] == [False] * 4


# --- message_sent -------------------------------------------------------------------------------------------------------------


def test_sent_has_the_message_of_each_row(bench: Bench, seen: Any) -> None:
    bench.configure(routes={"Test.*": "Sales"})
    first = send(Order(1), headers={"Own": "yes"})
    many = send_many([Order(2), ("Test.Plain", {})])
    subscribe("Test.Event", endpoint="Sales")
    event = publish("Test.Event", {})

    found = seen("message_sent")
    assert [each["message_id"] for each in found] == [first, *many, event]
    assert [each["sender"] for each in found] == [Order, Order, None, None]
    assert [each["message_type"] for each in found] == ["Test.Signalled", "Test.Signalled", "Test.Plain", "Test.Event"]
    assert found[0]["headers"]["Own"] == "yes"
    assert found[0]["body"] == b'{"n":1}'
    assert {each["destination"] for each in found} == {address(bench, "Sales")}
    assert found[0]["signal"] is signals.message_sent


def test_sent_reaches_receivers_of_one_class(bench: Bench, calls: Calls, connect: Any) -> None:
    def receiver(**arguments: Any) -> None:
        calls.add(arguments["message_type"])

    bench.configure(routes={"Test.*": "Sales"})
    connect(signals.message_sent, receiver, sender=Order)
    send(Order(1))
    send("Test.Plain", {})
    assert calls.seen == ["Test.Signalled"]
    signals.message_sent.disconnect(receiver, sender=Order)


def test_rows_of_a_receiver_belong_to_the_transaction_of_the_send(bench: Bench, connect: Any) -> None:
    def receiver(**arguments: Any) -> None:
        write_instance(bench, arguments["message_type"])

    bench.configure(routes={"Test.*": "Sales"})
    connect(signals.message_sent, receiver)
    send("Test.One", {})
    with transaction.atomic(using=bench.database.alias):
        send("Test.Two", {})
        assert written(bench) == ["Test.One", "Test.Two"]
        transaction.set_rollback(True, using=bench.database.alias)
    assert written(bench) == ["Test.One"]
    assert len(bench.rows("Sales")) == 1


def test_receiver_that_raises_makes_the_send_raise(bench: Bench, connect: Any) -> None:
    def receiver(**arguments: Any) -> None:
        write_instance(bench, arguments["message_type"])
        if arguments["body"] == b'{"n":2}':
            raise PermissionError("not this one")

    bench.configure(routes={"Test.*": "Sales"})
    connect(signals.message_sent, receiver)
    with pytest.raises(PermissionError):
        send(Order(2))
    with pytest.raises(PermissionError):
        send_many([Order(1), Order(2)])
    assert bench.rows("Sales") == []
    assert written(bench) == []


def test_receiver_that_swallows_a_database_error_makes_the_send_raise(bench: Bench, connect: Any) -> None:
    groups = Group.objects.using(bench.database.alias)
    groups.create(name="same")

    def receiver(**arguments: Any) -> None:
        with suppress(IntegrityError):
            groups.create(name="same")

    bench.configure(routes={"Test.*": "Sales"})
    connect(signals.message_sent, receiver)
    with pytest.raises(DoomedTransaction, match="nothing was written"):
        send(Order(1))
    with pytest.raises(DoomedTransaction, match="nothing was written"):
        send_many([Order(1)])
    assert bench.rows("Sales") == []


@pytest.mark.parametrize("mode", MODES)
def test_receiver_that_swallows_a_database_error_fails_the_attempt(bench: Bench, connect: Any, mode: str) -> None:
    groups = Group.objects.using(bench.database.alias)
    groups.create(name="same")

    def receiver(**arguments: Any) -> None:
        with suppress(IntegrityError):
            groups.create(name="same")

    out = address(bench, "out")
    bench.configure(TRANSACTION_MODE=mode)
    bench.install_queues("out")
    handles("Test.Message")(lambda message, context: context.send("Test.Out", {}, to=out) and None)
    connect(signals.message_sent, receiver)
    bench.put_message("Test.Message")
    bench.run()
    assert bench.rows("out") == []
    (headers,) = bench.headers("error")
    assert "nothing was written" in headers["NServiceBus.ExceptionInfo.Message"]


@pytest.mark.parametrize("mode", MODES)
def test_sent_by_a_handler_in_each_mode(bench: Bench, calls: Calls, connect: Any, mode: str) -> None:
    """A receiver that raises fails the attempt, which undoes what was sent."""

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send("Test.Out", {}, to=address(bench, "out"))
        send("Test.Plain", {}, to=address(bench, "out"))

    def receiver(**arguments: Any) -> None:
        calls.add(arguments["message_type"])
        if calls.seen.count("Test.Out") == 1 and arguments["message_type"] == "Test.Out":
            raise PermissionError

    connect(signals.message_sent, receiver)
    bench.configure(TRANSACTION_MODE=mode, IMMEDIATE_RETRIES=0 if mode == "none" else 1)
    bench.install_queues("out")
    bench.put_message("Test.Message")
    bench.run()
    # Mode none has no retry, and has sent the plain message outside of any transaction.
    assert len(bench.rows("out")) == (1 if mode == "none" else 2)
    assert len(bench.rows("error")) == (1 if mode == "none" else 0)


def test_copies_and_retries_are_not_sent(bench: Bench, seen: Any, connect: Any) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        if context.headers.get("fails"):
            raise LookupError
        context.forward(address(bench, "out"))

    bench.configure(AUDIT_QUEUE="audit", DELAYED_RETRIES=1, DELAYED_RETRY_INCREASE=0)
    bench.install_queues("out")
    bench.put_message("Test.Message")
    bench.run()
    bench.put_message("Test.Message", fails="yes")
    bench.run()
    assert (len(bench.rows("audit")), len(bench.rows("out")), len(bench.rows("error"))) == (1, 1, 1)
    assert seen("message_sent") == []


def test_immediate_send_whose_receiver_raises_does_not_end_the_worker(sqlite_bench: Bench, connect: Any, events: Any) -> None:
    """On SQLite, the immediate send is written after the handler."""

    def receiver(**arguments: Any) -> None:
        raise PermissionError

    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        context.send("Test.Out", {}, to=address(sqlite_bench, "out"), immediate=True)

    connect(signals.message_sent, receiver)
    sqlite_bench.install_queues("out")
    sqlite_bench.put_message_of(1, "Test.Message")
    sqlite_bench.put_message_of(2, "Test.Message")
    assert sqlite_bench.run() == 2
    assert sqlite_bench.rows("out") == []
    assert events().count("signal_receiver_failed") == 2


# --- handled, failed, moved ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", [1, 10])
def test_handled_is_sent_after_the_commit(bench: Bench, connect: Any, calls: Calls, mode: str, batch: int) -> None:
    handles(Order)(lambda message, context: write_instance(bench, str(message.n)))

    def receiver(**arguments: Any) -> None:
        connection = connections[bench.database.alias]
        assert not connection.in_atomic_block
        # The receiver's row is committed separately, and the handler's rows are already visible.
        write_instance(bench, f"after {arguments['body'].decode()}")
        calls.add((arguments["sender"], arguments["attempt"], arguments["endpoint"], arguments["queue"], len(written(bench))))

    connect(signals.message_handled, receiver)
    bench.configure(TRANSACTION_MODE=mode, BATCH_SIZE=batch, MAX_CONCURRENCY=1)
    for number in range(3):
        bench.put_message_of(number, "Test.Signalled", {"n": number})
    bench.run()
    assert [each[:4] for each in calls.seen] == [(Order, 1, "Sales", "Sales")] * 3
    assert len(written(bench)) == 6
    if batch == 1 or mode == "none":
        assert [each[4] for each in calls.seen] == [2, 4, 6]
    assert bench.rows("error") == []


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_receiver_that_raises_changes_nothing(
    bench: Bench, connect: Any, calls: Calls, events: Any, error: type[BaseException]
) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add("handled")
        if message.get("fails"):
            raise LookupError

    def receiver(**arguments: Any) -> None:
        raise error("broken receiver")

    for name in NAMES[1:]:
        connect(getattr(signals, name), receiver)
    bench.put_message_of(1, "Test.Message")
    bench.put_message_of(2, "Test.Message", {"fails": True})
    bench.run()
    assert calls.seen == ["handled", "handled"]
    assert len(bench.rows("error")) == 1
    assert bench.rows("Sales") == []
    assert events().count("signal_receiver_failed") == 3


@pytest.mark.parametrize("mode", MODES)
def test_failed_is_sent_for_each_attempt_with_what_happens_next(bench: Bench, failing: Calls, seen: Any, mode: str) -> None:
    retries = 0 if mode == "none" else 1
    bench.configure(TRANSACTION_MODE=mode, IMMEDIATE_RETRIES=retries, DELAYED_RETRIES=retries, DELAYED_RETRY_INCREASE=0)
    bench.put_message("Test.Message", **{"NServiceBus.MessageId": "one"})
    bench.run()

    found = seen("message_failed")
    kinds: list[type[Action]] = [RetryNow, RetryLater, RetryNow, MoveToError]
    if mode == "none":
        kinds = kinds[3:]
    assert [type(each["action"]) for each in found] == kinds
    assert [each["attempt"] for each in found] == ([1] if mode == "none" else [1, 2, 1, 2])
    assert {each["message_id"] for each in found} == {"one"}
    assert {each["exception_type"] for each in found} == {"LookupError"}
    assert str(found[0]["exception"]) == found[0]["exception_message"] == "always"
    (moved,) = seen("message_moved_to_error")
    assert (moved["message_id"], moved["error_queue"], str(moved["exception"])) == ("one", "error", "always")
    assert seen("message_handled") == []


def test_message_that_succeeds_later_reports_both(bench: Bench, seen: Any) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        if context.attempt == 1:
            raise LookupError

    bench.configure(IMMEDIATE_RETRIES=1)
    bench.put_message("Test.Message")
    bench.run()
    assert [type(each["action"]) for each in seen("message_failed")] == [RetryNow]
    assert [each["attempt"] for each in seen("message_handled")] == [2]
    assert seen("message_moved_to_error") == []


def discarding(config: Any, context: Any) -> Any:
    return Discard("of no use")


def test_discarded_message_is_not_moved(bench: Bench, failing: Calls, seen: Any) -> None:
    bench.configure(RECOVERABILITY="tests.receiving.test_signals.discarding")
    bench.put_message("Test.Message")
    bench.run()
    assert [each["action"] for each in seen("message_failed")] == [Discard("of no use")]
    assert seen("message_moved_to_error") == []


def test_unreadable_row_is_moved(bench: Bench, seen: Any) -> None:
    bench.put("{", b"body", row_id="00000000-0000-0000-0000-000000000001")
    bench.run()
    (moved,) = seen("message_moved_to_error")
    assert (moved["sender"], moved["message_type"], moved["headers"], moved["body"]) == (None, "", {}, b"body")
    assert moved["message_id"] == "00000000-0000-0000-0000-000000000001"


def test_lost_transaction_is_a_failed_attempt_whose_message_is_received_again(bench: Bench, seen: Any, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        if calls.add(context.attempt) == 1:
            context.connection.close()
            raise LookupError

    bench.configure(IMMEDIATE_RETRIES=2)
    bench.put_message("Test.Message")
    bench.run()
    assert [each["action"] for each in seen("message_failed")] == [None]
    assert [each["attempt"] for each in seen("message_handled")] == [2]


def test_outcome_that_is_not_committed_is_not_reported(bench: Bench, seen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit fails once; the message is handled again, and reported once."""
    handles("Test.Message")(lambda message, context: None)
    bench.configure(BATCH_SIZE=2, MAX_CONCURRENCY=1, IMMEDIATE_RETRIES=0)
    failures = iter([DatabaseError("no commit")])
    commit = MessageProcessor._commit

    def failing_once(self: Any) -> Any:
        if (error := next(failures, None)) is not None:
            raise error
        return commit(self)

    monkeypatch.setattr(MessageProcessor, "_commit", failing_once)
    bench.put_message_of(1, "Test.Message")
    bench.put_message_of(2, "Test.Message")
    bench.run()
    assert len(seen("message_handled")) == 2


def test_copy_that_is_dropped_is_not_handled(bench: Bench, seen: Any) -> None:
    handles("Test.Message")(lambda message, context: None)
    bench.configure(DEDUPLICATE_FOR=60)
    for number in (1, 2):
        bench.put(
            '{"NServiceBus.EnclosedMessageTypes":"Test.Message","NServiceBus.MessageId":"same"}',
            b"{}",
            row_id=f"00000000-0000-0000-0000-00000000000{number}",
        )
    bench.run()
    assert len(seen("message_handled")) == 1
