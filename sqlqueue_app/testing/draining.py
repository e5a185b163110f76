"""`drain()` handles waiting messages in the thread and transaction of the test, with the processors of the worker.

Inside an open transaction, savepoints replace BEGIN, COMMIT and ROLLBACK of the worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice

from django.db import Error as DjangoDatabaseError
from django.db.transaction import Atomic

from sqlqueue_app.conf import Settings, get_settings
from sqlqueue_app.messages.errors import DoomedTransaction, PoisonMessage
from sqlqueue_app.policies.priorities import PriorityTurns
from sqlqueue_app.policies.recoverability import (
    Action,
    Discard,
    FailureContext,
    RecoverabilityConfig,
    RetryLater,
    RetryNow,
    TransactionMode,
)
from sqlqueue_app.receiving.delayed import due_messages_of
from sqlqueue_app.receiving.endpoint import ReceivingEndpoint, ReceivingQueue, endpoints_of
from sqlqueue_app.receiving.processing import (
    Delivery,
    MessageProcessor,
    NonTransactionalProcessor,
    ProcessorConfig,
    ReceivedBatch,
    RowOutcome,
    read_message,
)
from sqlqueue_app.tables.connections import Hooks, connection_of
from sqlqueue_app.tables.queue import QueueTable
from sqlqueue_app.tables.receive_transaction import CANNOT_COMMIT, LEFT_OPEN, ReceiveTransaction, receive_transaction
from sqlqueue_app.tables.rows import ReceivedRow, received_rows
from sqlqueue_app.testing.asserting import SentMessage, record, whole_body

# Stops handlers that send to each other endlessly.
MAX_MESSAGES = 10_000


def drain(
    endpoint: str | None = None,
    *,
    with_delayed: bool = False,
    after: timedelta | None = None,
    raise_errors: bool = True,
    limit: int | None = None,
) -> Drained:
    """Handle the waiting messages of one endpoint or of all, and messages that handlers send there, until none is left.

    The real handlers run in the calling thread and inside its open transaction on the queues' alias, if there is one: in Django's
    TestCase everything is rolled back after the test, and `on_commit` hooks of a handler run when its message is done; in a
    transaction that commits, they run then. Messages sent at once are written when the message is done.

    With `raise_errors` the first exception of a handler is raised unchanged and its message returns to the queue (in mode none it
    is lost). Otherwise recoverability applies: retries, the error queue.

    Delayed messages wait until they are due by the clock of the database. `after` brings all due times forward by this much;
    `with_delayed` handles every delayed message in order of its due time. `limit` is the maximum number of messages to handle.
    Raises AssertionError after 10,000 messages, because two handlers probably send to each other.
    """
    return handle_waiting(endpoint, with_delayed=with_delayed, after=after, raise_errors=raise_errors, limit=limit)


def handle_waiting(
    endpoint: str | None = None,
    *,
    with_delayed: bool = False,
    after: timedelta | None = None,
    raise_errors: bool = True,
    limit: int | None = None,
    note: str = "raised while drain() handled {message}; drain(raise_errors=False) lets recoverability act",
    keeps_failed: bool = True,
) -> Drained:
    """As `drain()`. `note` is added to an error, with `{message}` as the message that was being handled.

    Without `keeps_failed`, the message whose handler has raised is removed: the next drain does not meet it again.
    """
    settings = get_settings()
    drained = Drained()
    drain = _Drain(settings, endpoint, drained, raise_errors)
    failure: BaseException | None = None
    try:
        drain.run(with_delayed=with_delayed, after=after, limit=limit)
    except FailedInTest as stop:
        failure = stop.error
    except PoisonMessage as poison:
        failure = poison
    finally:
        record(connection_of(settings.database), drained.messages)
    if failure is not None:
        if not keeps_failed:
            drain.remove_failed()
        failure.add_note(note.format(message=drain.handling))
        raise failure
    return drained


class _Drain:
    def __init__(self, settings: Settings, endpoint: str | None, drained: Drained, raises: bool) -> None:
        self._sources = [
            _Source([_Queue(each, queue, drained, raises) for queue in queues])
            for each in endpoints_of(settings, None if endpoint is None else [endpoint])
            for queues in _of_sources(each.receiving_queues(None))
        ]
        self._due = [due for due in due_messages_of(settings) if due.delayed.exists()]
        self.handling = "nothing"
        self._last: tuple[_Queue, list[ReceivedRow]] | None = None

    def run(self, *, with_delayed: bool, after: timedelta | None, limit: int | None) -> None:
        if after is not None:
            self._bring_nearer(after)
        for done, (queue, rows) in enumerate(islice(self._received(with_delayed), limit), start=1):
            self.handling, self._last = queue.describe(rows), (queue, rows)
            queue.processor.process(rows)
            if done >= MAX_MESSAGES:
                raise AssertionError(f"{done} messages are handled and more are waiting: do two handlers send to each other?")

    def remove_failed(self) -> None:
        """Remove the row that was handled last, if it is in its queue again."""
        if self._last is None:
            return
        queue, rows = self._last
        received = queue.processor.receive()
        if [row.id for row in received] == [row.id for row in rows]:
            queue.processor.transaction.commit()
        queue.processor.transaction.abandon()

    def _received(self, with_delayed: bool) -> Iterator[tuple[_Queue, list[ReceivedRow]]]:
        """One message of each queue in turn, of queues by priority the next one; due delayed messages when all are empty."""
        while True:
            found = False
            for source in self._sources:
                if (received := source.receive()) is not None:
                    found = True
                    yield received
            if not found and not self._move_due() and not (with_delayed and self._wait_for_the_next()):
                return

    def _move_due(self) -> int:
        return sum(moved for due in self._due for moved in iter(due.move_batch, 0))

    def _wait_for_the_next(self) -> bool:
        waits = [seconds for due in self._due if (seconds := due.delayed.seconds_until_due()) is not None]
        if not waits:
            return False
        # Due times are kept to the millisecond, or to three on SQL Server.
        self._bring_nearer(timedelta(seconds=max(0.0, min(waits)), milliseconds=10))
        return True

    def _bring_nearer(self, time: timedelta) -> None:
        for due in self._due:
            due.delayed.bring_nearer(time)


def _of_sources(queues: list[ReceivingQueue]) -> Iterator[list[ReceivingQueue]]:
    """The queues of all priorities together, in the order of PRIORITIES; each other queue alone."""
    main, others = queues[0], [queue for queue in queues[1:] if queue.shares_threads]
    yield [others[0], main, others[1]] if others else [main]
    # Satellites of old peers contain nothing for handlers.
    yield from ([queue] for queue in queues[1:] if not queue.shares_threads and not queue.is_drained)


class _Source:
    """One queue, or those of all priorities, which take turns as in a worker."""

    def __init__(self, queues: list[_Queue]) -> None:
        self._queues = queues
        self._turns = PriorityTurns()

    def receive(self) -> tuple[_Queue, list[ReceivedRow]] | None:
        """The next message and its queue; None if there is none."""
        for level in self._turns.order() if len(self._queues) > 1 else (0,):
            if rows := self._queues[level].processor.receive():
                self._turns.took(level)
                return self._queues[level], rows
        return None


class _Queue:
    """One queue of a drain with its processor."""

    def __init__(self, endpoint: ReceivingEndpoint, queue: ReceivingQueue, drained: Drained, raises: bool) -> None:
        self._queue = queue
        self._drained = drained
        config = endpoint.processor_config(queue)
        self.processor: MessageProcessor = watching_processor(config, transaction_for(queue.table), drained, raises=raises)

    def describe(self, rows: list[ReceivedRow]) -> str:
        """Record the message and describe it for errors."""
        try:
            incoming = read_message(rows[0])
        except PoisonMessage:
            return f"a row of {self._queue.name!r} that cannot be read"
        message = SentMessage(self._queue.table.address, incoming.headers, whole_body(incoming.headers, incoming.body))
        self._drained.messages.append(message)
        return f"message {incoming.message_id} ({message.message_type or 'without a type'}) of queue {self._queue.name!r}"


@dataclass(slots=True)
class Drained:
    """The result of `drain()`. Each message counts once in `handled`, `failed`, `discarded`, `expired` or `delayed`.

    `failed`: moved to the error queue. `delayed`: waits for a delayed retry, and counts again afterwards. `retried` counts
    immediate retries. `errors` are the exceptions of all failed attempts, `messages` the messages taken from the queues.
    """

    handled: int = 0
    failed: int = 0
    retried: int = 0
    delayed: int = 0
    discarded: int = 0
    expired: int = 0
    errors: list[BaseException] = field(default_factory=list)
    messages: list[SentMessage] = field(default_factory=list)


class FailedInTest(BaseException):
    """Carries the exception of a handler past recoverability. A BaseException, so that nothing catches it on the way."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


class _Watching(MessageProcessor):
    drained: Drained
    raises: bool

    def process_row(self, batch: ReceivedBatch, row: ReceivedRow) -> RowOutcome:
        outcome = super().process_row(batch, row)
        if outcome is RowOutcome.HANDLED:
            self.drained.handled += 1
        elif outcome is RowOutcome.EXPIRED:
            self.drained.expired += 1
        elif outcome in (RowOutcome.POISON, RowOutcome.FAILED):
            self.drained.failed += 1
        elif isinstance(self.transaction, NestedReceiveTransaction):
            raise DoomedTransaction("the transaction of the test is lost: a handler has ended it, or its connection is lost")
        return outcome

    def move_poison(self, batch: ReceivedBatch, row: ReceivedRow, poison: PoisonMessage) -> RowOutcome:
        """Raise the error, or note it and move the row."""
        if self.raises:
            raise poison
        self.drained.errors.append(poison)
        return super().move_poison(batch, row, poison)

    def run_hooks(self, hooks: Hooks, message_id: str) -> None:
        """Run the hooks; the first error is raised, if the drain raises errors."""
        if not self.raises:
            super().run_hooks(hooks, message_id)
            return
        for hook in hooks:
            hook()


class _WatchingWithoutTransaction(_Watching, NonTransactionalProcessor):
    """Mode none, also inside the transaction of a test."""

    _blocks: int | None = None

    def deliver(self, batch: ReceivedBatch, delivery: Delivery) -> RowOutcome:
        # The receive itself is still open, and no block of the handler's.
        self._blocks = len(self.transaction.connection.atomic_blocks) - 1
        return super().deliver(batch, delivery)

    def check_usable(self) -> None:
        """DoomedTransaction if a handler has left a transaction open, apart from that of the test."""
        if self._left_open:
            raise DoomedTransaction(LEFT_OPEN)

    @property
    def _left_open(self) -> bool:
        return len(self.transaction.connection.atomic_blocks) > (self._blocks or 0)

    def leave_no_transaction(self) -> None:
        """Close transactions that a handler left open, like a worker; raises inside the transaction of a test, which is lost."""
        if not self._blocks:
            super().leave_no_transaction()
        elif self._left_open:
            raise FailedInTest(
                DoomedTransaction("a handler in mode none left an atomic() open in the transaction of the test, which is lost")
            )


def watching_processor(
    config: ProcessorConfig, transaction: ReceiveTransaction, drained: Drained, *, raises: bool
) -> MessageProcessor:
    """A processor that counts into `drained`; with `raises` the first failure ends it and the message stays in its queue."""
    inner = config.policy

    def policy(settings: RecoverabilityConfig, context: FailureContext) -> Action:
        if context.exception is not None:
            drained.errors.append(context.exception)
            if raises:
                raise FailedInTest(context.exception)
        try:
            action = inner(settings, context)
        except Exception as broken:
            if raises:
                raise FailedInTest(broken) from broken
            raise
        _count(action, drained, config.mode)
        return action

    # Immediate sends join the transaction, as on SQLite: on a second connection they would outlive the test.
    changed = replace(
        config, policy=policy, batch_size=1, dispatcher=config.joined_dispatcher, immediate_dispatcher=None, type_limits=None
    )
    kind = _WatchingWithoutTransaction if config.mode is TransactionMode.NONE else _Watching
    made = kind(changed, transaction)
    made.drained, made.raises = drained, raises
    return made


def _count(action: Action, drained: Drained, mode: TransactionMode) -> None:
    if isinstance(action, Discard):
        drained.discarded += 1
        drained.failed -= 1
    elif mode is TransactionMode.NONE:
        return  # whatever the policy decides, the message goes to the error queue
    elif isinstance(action, RetryNow):
        drained.retried += 1
    elif isinstance(action, RetryLater):
        drained.delayed += 1
        drained.failed -= 1


def transaction_for(table: QueueTable) -> ReceiveTransaction:
    """The receive transaction for a table: nested in the thread's open transaction, otherwise that of the worker."""
    return NestedReceiveTransaction(table) if table.connection().in_atomic_block else receive_transaction(table)


# libpq's number for an open transaction that has not failed, in both versions of psycopg.
_IN_TRANSACTION = 2


class NestedReceiveTransaction(ReceiveTransaction):
    """A receive transaction inside an open `atomic()` of the queue's alias. A commit keeps the work in that block.

    Uses Django's own cursor on every database. Hooks that were registered before the receive are not touched.
    """

    def __init__(self, table: QueueTable) -> None:
        super().__init__(table)
        self._blocks = 0
        self._savepoints = 0
        self._hooks = 0
        self._before_message: str | None = None

    def prepare(self) -> None:
        """Nothing to prepare: tests do not need the speed."""

    def _receive(self, limit: int) -> list[ReceivedRow]:
        connection = self.connection
        self._hooks = len(connection.run_on_commit)
        self._atomic = Atomic(self.table.alias, savepoint=True, durable=False)
        self._atomic.__enter__()
        self._blocks, self._savepoints = len(connection.atomic_blocks), len(connection.savepoint_ids)
        statement = self.table.receive_statement(limit)
        with connection.cursor() as cursor:
            cursor.execute(statement.sql, statement.bind({"lowest": 0}))
            found = cursor.fetchall()
            if connection.vendor == "microsoft":
                # Late errors follow the rows.
                while cursor.nextset():
                    pass
        return received_rows(found)

    def begin_message(self) -> None:
        """Take the savepoint of the next message, whether or not its handlers use the database."""
        connection = self.connection
        self._first_hook = len(connection.run_on_commit)
        self._before_message = connection.savepoint()

    def end_message(self) -> None:
        """Nothing: the commit follows."""

    def undo_handler(self) -> None:
        """Roll back the work and the hooks of the message; its row stays received."""
        connection = self.connection
        del connection.run_on_commit[self._first_hook :]
        self._leave_inner_blocks()
        connection.needs_rollback = False
        if self._before_message is not None:
            with self.table.errors("roll back to the savepoint behind the receive"):
                connection.savepoint_rollback(self._before_message)
                # Again, because on SQL Server the rollback has removed it, and the next attempt may fail too.
                self._before_message = connection.savepoint()

    def _leave_inner_blocks(self) -> None:
        # The handler has entered an atomic() by hand and never left it.
        connection = self.connection
        del connection.savepoint_ids[self._savepoints :]
        del connection.atomic_blocks[self._blocks :]

    def check_usable(self) -> None:
        """Raise DoomedTransaction if a worker could not commit in this state."""
        connection = self.connection
        if len(connection.atomic_blocks) > self._blocks:
            raise DoomedTransaction(LEFT_OPEN)
        if connection.needs_rollback or len(connection.atomic_blocks) < self._blocks or self._is_broken():
            raise DoomedTransaction(CANNOT_COMMIT)

    def _commit(self, atomic: Atomic) -> None:
        atomic.__exit__(None, None, None)

    def _is_broken(self) -> bool:
        # After an error that bypassed Django, PostgreSQL refuses all statements; the others continue.
        raw = self.connection.unwatched
        return raw is None or (self.connection.vendor == "postgresql" and raw.info.transaction_status != _IN_TRANSACTION)

    def was_ended(self) -> bool:
        """False: a handler that ends the transaction past Django has ended that of the test."""
        return False

    def commit(self, *, then_receive: Callable[[], int] | None = None) -> Hooks:
        """Keep the work in the surrounding transaction; returns the hooks of the message, to run now if that never commits."""
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            return []
        connection = self.connection
        hooks: Hooks = []
        if any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            hooks = [entry[1] for entry in connection.run_on_commit[self._hooks :]]
            del connection.run_on_commit[self._hooks :]
        with self._committing:
            atomic.__exit__(None, None, None)
        return hooks

    def abandon(self) -> None:
        """Undo everything since the receive; the rows are in their queue again. Never raises."""
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            return
        connection = self.connection
        del connection.run_on_commit[self._hooks :]
        self._leave_inner_blocks()
        with contextlib.suppress(DjangoDatabaseError):
            connection.needs_rollback = True
            atomic.__exit__(None, None, None)
