"""Failed messages under different settings: a custom policy, and the facts in the error row."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connections, transaction

from sqlqueue_app import Discard, MoveToError, RetryLater, RetryNow, Unrecoverable, default_policy, handles
from sqlqueue_app.conf import get_settings
from sqlqueue_app.messages.errors import ConfigurationError
from sqlqueue_app.messages.times import parse_time
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint
from sqlqueue_app.receiving.processing import MessageProcessor, ProcessorConfig
from sqlqueue_app.receiving.stopping import StopSignal
from sqlqueue_app.signals import message_moved_to_error
from sqlqueue_app.tables.receive_transaction import receive_transaction
from tests.support.bench import Bench, Calls

DATA = "NServiceBus.ExceptionInfo.Data."
chosen: list[Any] = []


def processor_config() -> ProcessorConfig:
    """The state that a process keeps for the queue of Sales, including its memory of failures."""
    endpoint = ReceivingEndpoint(get_settings(), "Sales")
    return endpoint.processor_config(endpoint.receiving_queues(None)[0])


def chosen_policy(config: Any, context: Any) -> Any:
    """Return the action in `chosen`, or that of the function in it."""
    (policy,) = chosen
    return policy(config, context) if callable(policy) else policy


@pytest.fixture
def policy(bench: Bench) -> Any:
    """Set the policy of the endpoint: an action or a function."""

    def set_policy(given: Any, **endpoint: Any) -> None:
        chosen[:] = [given]
        bench.configure(RECOVERABILITY=f"{__name__}.chosen_policy", **endpoint)

    yield set_policy
    chosen.clear()


@pytest.fixture
def named_in_signals() -> Iterator[list[str]]:
    """The queues that the signal `message_moved_to_error` names."""
    found: list[str] = []

    def receiver(*, error_queue: str, **_: Any) -> None:
        found.append(error_queue)

    message_moved_to_error.connect(receiver)
    yield found
    message_moved_to_error.disconnect(receiver)


def test_policy_gets_the_failure_and_the_settings(bench: Bench, policy: Any, failing: Calls) -> None:
    seen: list[Any] = []

    def recording(config: Any, context: Any) -> Any:
        seen.append((config, context))
        return default_policy(config, context)

    policy(recording, IMMEDIATE_RETRIES=1)
    bench.put_message("Test.Message", **{"NServiceBus.MessageId": "m-1", "x": "y"})
    bench.run()

    assert [context.failed_attempts for _, context in seen] == [1, 2]
    config, context = seen[0]
    assert (config.immediate_retries, config.delayed_retries, config.error_queue) == (1, 0, "error")
    assert (context.endpoint, context.queue, context.message_id) == ("Sales", "Sales", "m-1")
    assert (context.message_types, context.headers["x"]) == (("Test.Message",), "y")
    assert (context.exception_type, context.exception_message, context.unrecoverable) == ("LookupError", "always", False)
    assert isinstance(context.exception, LookupError)
    assert [row["NServiceBus.MessageId"] for row in bench.headers("error")] == ["m-1"]


def test_operator_retry_is_attempted_where_an_earlier_attempt_was_lost(bench: Bench, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        calls.add(context.attempt)
        if len(calls.seen) == 1:
            context.connection.close()
        if len(calls.seen) < 3:
            raise LookupError

    def process(config: ProcessorConfig) -> None:
        processor = MessageProcessor(config, receive_transaction(bench.table("Sales")))
        processor.process(processor.receive())

    bench.configure(IMMEDIATE_RETRIES=0)
    here, elsewhere = processor_config(), processor_config()
    bench.put_message("Test.Message")
    process(here)
    process(elsewhere)
    (failed,) = bench.rows("error")
    bench.put(failed.headers or "", failed.body or b"", row_id=str(failed.id))
    process(here)
    assert calls.seen == [1, 1, 1]
    assert (bench.rows("Sales"), len(bench.rows("error"))) == ([], 1)


def test_policy_may_return_an_action_class(bench: Bench, policy: Any, failing: Calls) -> None:
    policy(lambda config, context: RetryNow if context.failed_attempts < 3 else Discard)
    bench.put_message("Test.Message")
    bench.run()

    assert failing.seen == [1, 2, 3]
    assert bench.rows("Sales") == bench.rows("error") == []


def test_retry_delay_may_be_seconds() -> None:
    assert RetryLater(1.5) == RetryLater(timedelta(seconds=1.5))
    assert RetryLater(60).delay == timedelta(minutes=1)


def test_policy_may_discard(bench: Bench, policy: Any, failing: Calls, events: Callable[[], list[str]]) -> None:
    policy(Discard("nobody wants it"))
    bench.put_message("Test.Message")
    bench.run()

    assert bench.rows("Sales") == bench.rows("error") == []
    assert failing.seen == [1]
    assert "message_discarded" in events()


def test_policy_may_choose_another_queue(bench: Bench, policy: Any, failing: Calls) -> None:
    bench.install_queues("cards")
    policy(MoveToError("cards"))
    bench.put_message("Test.Message")
    bench.run()

    (headers,) = bench.headers("cards")
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"] == "LookupError"
    assert bench.rows("error") == []


@pytest.mark.parametrize("mode", ["transaction_scope", "none"])
@pytest.mark.parametrize("queue", ["no-such-queue", "", 5, "Sales", "Sales.Extra"])
def test_queue_that_cannot_be_used_is_replaced_by_the_error_queue(
    bench: Bench,
    policy: Any,
    failing: Calls,
    events: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
    named_in_signals: list[str],
    queue: str,
    mode: str,
) -> None:
    # Back in a queue of the endpoint, the message would fail again and again.
    moves = [MoveToError(queue), *[Discard("moved to its own queue")] * 10]
    policy(lambda config, context: moves.pop(0), SATELLITES={"Sales.Extra": {}}, TRANSACTION_MODE=mode)
    bench.put_message("Test.Message")
    bench.run()

    assert len(bench.rows("error")) == 1
    assert bench.rows("Sales") == []
    assert events().count("recoverability_failed") == 1
    (moved,) = [record for record in caplog.records if getattr(record, "event", "") == "moved_to_error_queue"]
    assert moved.getMessage().startswith("message moved to the error queue error: ")
    assert named_in_signals == ["error"]


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (None, "it returned None: expected RetryNow(), RetryLater(delay), MoveToError(queue) or Discard(reason)"),
        (60, "it returned 60: expected RetryNow(), RetryLater(delay)"),
        (RetryLater("60"), "RetryLater('60'): expected seconds or a timedelta, of zero or more"),  # type: ignore[arg-type]
        (RetryLater(timedelta(seconds=-1)), "seconds=86399)): expected seconds or a timedelta, of zero or more"),
        (RetryLater(timedelta.max), "ends after the year 9999"),
        (lambda config, context: 1 / 0, "division by zero"),
        (lambda config, context: sys.exit("out of the policy"), "out of the policy"),
    ],
)
def test_default_policy_replaces_a_broken_one(
    bench: Bench,
    policy: Any,
    failing: Calls,
    events: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
    broken: Any,
    expected: str,
) -> None:
    policy(broken, IMMEDIATE_RETRIES=2)
    bench.put_message("Test.Message")
    bench.run()

    assert failing.seen == [1, 2, 3]
    assert len(bench.rows("error")) == 1
    assert events().count("recoverability_failed") == 3
    (level,) = {record.levelname for record in caplog.records if getattr(record, "event", "") == "recoverability_failed"}
    assert level == "CRITICAL"
    assert expected in caplog.text


def swallows_an_error(alias: str) -> None:
    with suppress(DatabaseError), connections[alias].cursor() as cursor:
        cursor.execute("SELECT * FROM no_such_table")


def runs(statement: str) -> Callable[[str], None]:
    def run(alias: str) -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute(statement)

    return run


@pytest.mark.parametrize(
    ("use", "ends"),
    [
        pytest.param(swallows_an_error, False, id="swallowed error"),
        pytest.param(lambda alias: transaction.set_rollback(True, using=alias), False, id="set_rollback"),
        pytest.param(lambda alias: transaction.atomic(using=alias).__enter__(), False, id="atomic left open"),
        pytest.param(runs("COMMIT"), True, id="COMMIT"),
        pytest.param(runs("ROLLBACK"), True, id="ROLLBACK"),
        pytest.param(lambda alias: connections[alias].close(), True, id="closed connection"),
    ],
)
@pytest.mark.parametrize("action", [Discard(), MoveToError("error")], ids=["discard", "error"])
@pytest.mark.parametrize("size", [1, 10])
def test_policy_cannot_break_the_transaction(
    bench: Bench, policy: Any, failing: Calls, use: Callable[[str], None], ends: bool, action: Any, size: int
) -> None:
    """Such messages used to be received forever, and each time another copy went to the error queue.

    The decision stands if the transaction can be repaired; if it has ended, the default policy decides.
    """
    decisions: list[int] = []
    stop = StopSignal()

    def using_the_database(config: Any, context: Any) -> Any:
        decisions.append(context.failed_attempts)
        if len(decisions) > 20:
            stop.set()
        use(bench.database.alias)
        return action

    policy(using_the_database, BATCH_SIZE=size, IMMEDIATE_RETRIES=1)
    for number in (1, 2):
        bench.put_message_of(number, "Test.Message")
    bench.run(stop)

    assert len(decisions) <= 20
    assert bench.rows("Sales") == []
    assert len(bench.rows("error")) == (2 if ends or isinstance(action, MoveToError) else 0)


def test_work_of_a_policy_in_the_database_is_undone(bench: Bench, policy: Any, failing: Calls) -> None:
    groups = Group.objects.using(bench.database.alias)

    def writing(config: Any, context: Any) -> Any:
        groups.create(name="made by a policy")
        return MoveToError("error")

    policy(writing)
    bench.put_message("Test.Message")
    bench.run()

    assert len(bench.rows("error")) == 1
    assert not groups.filter(name="made by a policy").exists()


def test_policy_may_retry_an_unrecoverable_error(bench: Bench, policy: Any, calls: Calls) -> None:
    @handles("Test.Message")
    def handler(message: Any, context: Any) -> None:
        if calls.add(context.attempt) == 1:
            raise Unrecoverable("not yet")

    policy(RetryNow())
    bench.put_message("Test.Message")
    bench.run()

    assert calls.seen == [1, 2]
    assert bench.rows("error") == []


@pytest.mark.parametrize("action", [RetryNow(), RetryLater(timedelta(seconds=1))])
def test_retry_without_transaction_goes_to_the_error_queue(
    bench: Bench, policy: Any, failing: Calls, events: Callable[[], list[str]], action: Any
) -> None:
    policy(action, TRANSACTION_MODE="none")
    bench.put_message("Test.Message")
    bench.run()

    assert failing.seen == [1]
    assert len(bench.rows("error")) == 1
    assert "retry_refused" in events()


def test_missing_policy_is_reported_by_name(bench: Bench) -> None:
    bench.configure(RECOVERABILITY="tests.receiving.no_such.policy")

    with pytest.raises(ConfigurationError, match=r"RECOVERABILITY of endpoint 'Sales' names 'tests.receiving.no_such.policy'"):
        bench.run()


def test_error_row_names_the_handler_and_its_times(bench: Bench, failing: Calls) -> None:
    bench.put_message("Test.Message", **{"NServiceBus.MessageId": "m-1"})
    bench.run()

    (headers,) = bench.headers("error")
    assert headers[DATA + "Message ID"] == "m-1"
    assert headers[DATA + "Transport message ID"] == "11111111-2222-3333-4444-555555555555"
    assert headers[DATA + "Message type"] == "Test.Message"
    assert headers[DATA + "Handler type"].endswith("failing.<locals>.fail")
    began, failed = (parse_time(headers[f"{DATA}Handler {what} time"]) for what in ("start", "failure"))
    assert began <= failed <= parse_time(headers["NServiceBus.TimeOfFailure"])


def test_error_row_names_no_handler_if_none_was_called(bench: Bench) -> None:
    bench.put_message("Test.Unknown")
    bench.run()

    (headers,) = bench.headers("error")
    assert headers[DATA + "Message type"] == "Test.Unknown"
    assert DATA + "Handler type" not in headers
